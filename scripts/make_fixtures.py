#!/usr/bin/env python3
"""make_fixtures.py - tiny random models and what transformers + PEFT compute with them, for test/unit/test_parity.c.

Writes test/fixtures/models/NAME/ with config.json, model.safetensors, adapter/ (a PEFT folder) and golden.safetensors.
The reference runs every document of the packed row alone (batch 1, eager attention, float32), so a program that packs
has to give the concatenation.  The same quantities in float64 give the reference's own rounding error, and HF's packed
path (positions that restart) must agree as well; both are printed and checked.

Needs torch, transformers 5, peft, safetensors.
Usage: make_fixtures.py [--out test/fixtures/models] [--bf16: only add these distances to files that exist] [NAME ...]

golden.safetensors holds (N tokens in the row, V vocabulary, S steps):
  input_ids position_ids labels target   [N] int32; target[t] is the label of t+1 in the same document, else -100
  cu_seqlens                             [documents + 1] int32
  base.logits [N,V], base.nll [N], base.loss [1]    without adapter; nll is 0 where nothing is learnt
  lora.logits, lora.nll, lora.loss                  with the adapter
  PARAM.grad                             full tuning (no adapter): dLoss/dPARAM for every parameter of the model
  LORA.grad, LORA.final                  adapter tensors, as named in PEFT's file: gradient, and value after S steps
  lora.steps.{loss,grad_norm,learning_rate}, full.steps.{...}   [S]
  bf16.{base,lora}.{logits,row,nll,loss,grads}, bf16.{full,lora}.steps, bf16.lora.final   [1]: how far the same model is
      from these values when transformers runs it in bfloat16: |a - b| / |b| of the tensor (row: of a token's logits;
      grads, final: of the worst tensor; steps: the worst loss or gradient norm).  The steps keep float32 masters.
"""
import argparse
import json
import math
import re
import shutil
import warnings
from pathlib import Path

import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, get_cosine_schedule_with_warmup

torch.set_num_threads(1)
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
warnings.filterwarnings("ignore")

STEPS = 20
MAX_GRAD_NORM = {"lora": 1.0, "full": 4.0}  # full: some steps are clipped and some are not
OPTIMIZER = {"lr": 1e-3, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
# (length, first position whose token is learnt)
DOCUMENTS = [(7, 3), (1, 0), (11, 5), (4, 1)]

COMMON = {"hidden_size": 32, "intermediate_size": 44, "num_hidden_layers": 2, "num_attention_heads": 4,
          "num_key_value_heads": 2, "vocab_size": 67, "max_position_embeddings": 256, "hidden_act": "silu",
          "rms_norm_eps": 1e-5, "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": False}
LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "attention_bias": False, "mlp_bias": False}
QWEN2 = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "rms_norm_eps": 1e-6}

# name -> (config.json, type of the stored weights, "hub": older files' spelling, kept as written here, or "saved": what
# this transformers saves; seed).  Seeds: ones whose gradients float32 gives well (see `noise` below).
MODELS = {
    "llama": (COMMON | LLAMA | {"rope_theta": 10000.0, "rope_scaling": None, "torch_dtype": "float32"}, "F32", "hub",
              1000),
    "llama-tied": (COMMON | LLAMA | {"tie_word_embeddings": True, "head_dim": 8}, "F32", "saved", 1001),
    "llama3-rope": (COMMON | LLAMA | {"hidden_size": 40, "num_attention_heads": 2, "num_key_value_heads": 1,
                                      "head_dim": 16, "rope_theta": 10000.0, "torch_dtype": "float32",
                                      "rope_scaling": {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0,
                                                       "high_freq_factor": 4.0,
                                                       "original_max_position_embeddings": 64}}, "F32", "hub", 6),
    "llama-bias": (COMMON | LLAMA | {"attention_bias": True, "mlp_bias": True}, "F32", "saved", 1003),
    "qwen2": (COMMON | QWEN2 | {"tie_word_embeddings": True, "rope_theta": 1000000.0, "torch_dtype": "float32",
                                "use_sliding_window": False, "sliding_window": 4, "max_window_layers": 2}, "F32",
              "hub", 1004),
    "qwen2-window": (COMMON | QWEN2 | {"intermediate_size": 24, "num_hidden_layers": 4, "use_sliding_window": True,
                                       "sliding_window": 4, "max_window_layers": 2}, "F32", "saved", 6),
    "qwen3": (COMMON | {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 12,
                        "rms_norm_eps": 1e-6, "attention_bias": False}, "BF16", "saved", 1006),
    "mistral": (COMMON | {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "hidden_size": 40,
                          "head_dim": 8, "sliding_window": 4, "rope_theta": 10000.0, "torch_dtype": "float16"},
                "F16", "hub", 1007),
}
TORCH_TYPE = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


def random_weights(model, generator, family):
    """Large enough that attention is far from uniform and every bias and norm matters."""
    for name, p in model.named_parameters():
        noise = torch.randn(p.shape, generator=generator)
        if "norm" in name:
            value = 1.0 + 0.3 * noise
        elif name.endswith(".bias"):
            value = (1.0 if family == "qwen2" else 0.5) * noise
        else:
            value = 0.2 * noise
        p.data.copy_(value)


def write_model(folder, config, stored, spelling, generator):
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    parsed = AutoConfig.from_pretrained(folder)
    parsed.dtype = TORCH_TYPE[stored]
    model = AutoModelForCausalLM.from_config(parsed, dtype=torch.float32)
    random_weights(model, generator, config["model_type"])
    tensors = {name: p.detach().to(TORCH_TYPE[stored]).contiguous() for name, p in model.named_parameters()}
    if stored == "BF16":  # one file of mixed types: norms stay float32
        tensors |= {n: p.detach().contiguous() for n, p in model.named_parameters() if "norm" in n}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    if spelling == "saved":
        saved = parsed.to_diff_dict() | {"architectures": config["architectures"]}
        saved["dtype"] = str(TORCH_TYPE[stored]).removeprefix("torch.")
        (folder / "config.json").write_text(json.dumps(saved, indent=2, sort_keys=True) + "\n")


def save_adapter(model, folder, base_name):
    """As PEFT saves it, without the card and with the same text on every run."""
    model.save_pretrained(folder)
    (folder / "README.md").unlink()
    path = folder / "adapter_config.json"
    config = json.loads(path.read_text())
    config["base_model_name_or_path"] = base_name
    config["target_modules"] = sorted(config["target_modules"])
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def write_adapter(folder, generator):
    base = load_base(folder, torch.float32)
    # Recent PEFT writes all-linear as whole module paths; most adapters name the last parts.
    targets = "all-linear" if folder.name == "llama" else TARGETS
    model = get_peft_model(base, LoraConfig(r=4, lora_alpha=8, target_modules=targets, task_type="CAUSAL_LM"))
    for name, p in model.named_parameters():
        if "lora_" in name:
            p.data.copy_(0.2 * torch.randn(p.shape, generator=generator))
    save_adapter(model, folder / "adapter", folder.name)


def load_base(folder, dtype, attention="eager"):
    """The stored values, whatever their type, computed with in `dtype`."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation=attention)
    return model.to(dtype).eval()


def load_lora(folder, dtype):
    model = PeftModel.from_pretrained(load_base(folder, torch.float32), folder / "adapter", is_trainable=True)
    return model.to(dtype).eval()


def make_row(config, generator):
    ids, pos, cu, labels, target = [], [], [0], [], []
    for length, first in DOCUMENTS:
        doc = torch.randint(3, config["vocab_size"], (length,), generator=generator).tolist()
        learnt = [doc[t] if t >= max(first, 1) else -100 for t in range(length)]
        ids += doc
        pos += range(length)
        labels += learnt
        target += learnt[1:] + [-100]
        cu.append(len(ids))
    row = {"input_ids": ids, "position_ids": pos, "cu_seqlens": cu, "labels": labels, "target": target}
    return {k: torch.tensor(v, dtype=torch.int32) for k, v in row.items()}


def token_nll(logits, target):
    return torch.nn.functional.cross_entropy(logits, target.long(), ignore_index=-100, reduction="none")


def run_alone(model, row):
    """Each document by itself; logits and nll concatenated."""
    logits = []
    cu = row["cu_seqlens"].tolist()
    for start, end in zip(cu, cu[1:]):
        logits.append(model(input_ids=row["input_ids"][None, start:end].long(), use_cache=False).logits[0])
    logits = torch.cat(logits)
    nll = token_nll(logits, row["target"])
    return logits, nll, nll.sum() / (row["target"] != -100).sum()


def lora_name(name):
    return name.replace(".default.", ".")


def run_once(model, row):
    """Forward and backward; every trainable parameter's gradient by its file name."""
    model.zero_grad()
    logits, nll, loss = run_alone(model, row)
    loss.backward()
    grads = {lora_name(n): p.grad.clone() for n, p in model.named_parameters() if p.requires_grad}
    return {"logits": logits.detach(), "nll": nll.detach(), "loss": loss.detach().reshape(1)}, grads


def no_decay(name):
    """transformers' Trainer decays neither biases nor norms."""
    return re.search(r"bias|layernorm|rmsnorm|(?:^|\.)norm(?:$|\.)|_norm(?:$|\.)", name.lower()) is not None


def train(model, row, max_grad_norm, working=None):
    """working: the same model in bfloat16, which computes loss and gradients; `model` then holds the masters."""
    named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    copies = [p for p in (working or model).parameters() if p.requires_grad]
    groups = [{"params": [p for n, p in named if not no_decay(n)]},
              {"params": [p for n, p in named if no_decay(n)], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW([g for g in groups if g["params"]], **OPTIMIZER)
    schedule = get_cosine_schedule_with_warmup(optimizer, 2, STEPS)
    out = {"loss": [], "grad_norm": [], "learning_rate": []}
    for _ in range(STEPS):
        optimizer.zero_grad()
        if working:
            working.zero_grad()
            for (_, p), copy in zip(named, copies):
                copy.data.copy_(p.data)
        loss = run_alone(working or model, row)[2]
        loss.backward()
        if working:
            for (_, p), copy in zip(named, copies):
                p.grad = copy.grad.float()
        norm = torch.nn.utils.clip_grad_norm_([p for _, p in named], max_grad_norm)
        out["loss"].append(loss.item())
        out["grad_norm"].append(norm.item())
        out["learning_rate"].append(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()
    return {k: torch.tensor(v, dtype=torch.float32) for k, v in out.items()}


def distance(a, b):
    """|a - b| / |b|, in float64."""
    a, b = a.double(), b.double()
    return ((a - b).norm() / b.norm().clamp_min(1e-300)).item()


def check_packed(folder, row, want):
    """transformers' own packed path: one row whose positions restart, and a mask written out."""
    ids, pos = row["input_ids"][None].long(), row["position_ids"][None].long()
    worst = 0.0
    for attention in ("sdpa", "eager"):
        with torch.no_grad():
            got = load_base(folder, torch.float32, attention)(input_ids=ids, position_ids=pos, use_cache=False)
        worst = max(worst, distance(got.logits[0], want))
    return worst


def bf16_distances(folder, golden):
    """transformers' own rounding in bfloat16, which a program in bfloat16 is measured against."""
    row = {k: golden[k] for k in ("input_ids", "position_ids", "cu_seqlens", "labels", "target")}
    far = {}
    for kind, load in (("base", load_base), ("lora", load_lora)):
        values, grads = run_once(load(folder, torch.bfloat16), row)
        far |= {f"{kind}.{k}": distance(v, golden[f"{kind}.{k}"]) for k, v in values.items()}
        far[f"{kind}.row"] = max(distance(a, b) for a, b in zip(values["logits"], golden[f"{kind}.logits"]))
        far[f"{kind}.grads"] = max(distance(g, golden[f"{n}.grad"]) for n, g in grads.items())
        label = "full" if kind == "base" else kind
        model = load(folder, torch.float32)
        steps = train(model, row, MAX_GRAD_NORM[label], load(folder, torch.bfloat16))
        far[f"{label}.steps"] = max(((steps[k] - golden[f"{label}.steps.{k}"]) / golden[f"{label}.steps.{k}"]).abs().max()
                                    .item() for k in ("loss", "grad_norm"))
        if kind == "lora":
            far["lora.final"] = max(distance(t, golden[f"{n}.final"])
                                    for n, t in get_peft_model_state_dict(model).items())
    return {f"bf16.{k}": torch.tensor([v], dtype=torch.float32) for k, v in far.items()}


def add_bf16(folder):
    golden = load_file(folder / "golden.safetensors")
    far = bf16_distances(folder, golden)
    save_file(golden | far, folder / "golden.safetensors")
    print(folder.name + ":", ", ".join(f"{k} {v.item():.1e}" for k, v in far.items()), flush=True)


def make(folder):
    config, stored, spelling, seed = MODELS[folder.name]
    shutil.rmtree(folder, ignore_errors=True)
    generator = torch.Generator().manual_seed(seed)
    write_model(folder, config, stored, spelling, generator)
    write_adapter(folder, generator)
    row = make_row(config, generator)
    golden = dict(row)
    noise = {}
    for kind, load in (("base", load_base), ("lora", load_lora)):
        values, grads = run_once(load(folder, torch.float32), row)
        exact, exact_grads = run_once(load(folder, torch.float64), row)
        golden |= {f"{kind}.{k}": v for k, v in values.items()} | {f"{n}.grad": g for n, g in grads.items()}
        noise[kind] = max(distance(values[k], exact[k]) for k in values)
        noise[kind + " rows"] = max(distance(a, b) for a, b in zip(values["logits"], exact["logits"]))
        noise[kind + " grads"] = max(distance(grads[n], exact_grads[n]) for n in grads)
        assert all(g.norm() > 1e-4 for g in grads.values()), [n for n, g in grads.items() if g.norm() <= 1e-4]
        model = load(folder, torch.float32)
        label = "full" if kind == "base" else kind
        steps = train(model, row, MAX_GRAD_NORM[label])
        exact = train(load(folder, torch.float64), row, MAX_GRAD_NORM[label])
        golden |= {f"{label}.steps.{k}": v for k, v in steps.items()}
        noise[label + " steps"] = ((steps["loss"] - exact["loss"]).abs() / exact["loss"]).max().item()
        if kind == "lora":
            golden |= {f"{n}.final": t for n, t in get_peft_model_state_dict(model).items()}
    golden |= bf16_distances(folder, golden)
    noise["packed"] = check_packed(folder, row, golden["base.logits"])
    save_file({k: v.contiguous() for k, v in golden.items()}, folder / "golden.safetensors")
    size = sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())
    lora, full = golden["lora.steps.loss"], golden["full.steps.loss"]
    print(f"{folder.name}: {size // 1024} KiB, loss {lora[0]:.4f} -> {lora[-1]:.4f} (lora), {full[0]:.4f} -> "
          f"{full[-1]:.4f} (full), grad norm {golden['lora.steps.grad_norm'][0]:.2f}, "
          f"{golden['full.steps.grad_norm'][0]:.2f}; rounding of the reference: "
          + ", ".join(f"{k} {v:.1e}" for k, v in noise.items()), flush=True)
    assert noise["packed"] < 1e-5 and math.isfinite(lora.sum()) and max(noise.values()) < 4e-6


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent.parent / "test/fixtures/models")
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("names", nargs="*", default=[])
    args = parser.parse_args()
    for name in args.names or MODELS:
        (add_bf16 if args.bf16 else make)(args.out / name)


if __name__ == "__main__":
    main()

"""hf_train.py - training by transformers + PEFT on packed rows, shared by parity_smollm2.py and peer_cpu.py.

Rows come from `liger-sft data --config ... --dump 0`: JSON lines with input_ids, labels (-100: not learnt) and
position_ids, which restart at every document.  transformers makes the document mask from the positions; sdpa is its
fastest attention on a CPU.  A row of batch 1 has no padding.
"""
import json
import time
import warnings

import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import (AutoModelForCausalLM, get_constant_schedule, get_constant_schedule_with_warmup,
                          get_cosine_schedule_with_warmup, get_linear_schedule_with_warmup)

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
warnings.filterwarnings("ignore", category=FutureWarning)
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def read_rows(path):
    with open(path, encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines if line.startswith("{")]
    rows = [row for row in rows if "input_ids" in row]
    for row in rows:
        assert len(row["input_ids"]) == len(row["labels"]) == len(row["position_ids"]), row["row"]
        for t, position in enumerate(row["position_ids"]):
            assert position != 0 or row["labels"][t] == -100, f"row {row['row']}: token {t} starts a document"
    return rows


def load_base(folder, attention="sdpa"):
    """float32 arithmetic whatever type the file stores."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation=attention)


def new_lora(base, rank, alpha, seed):
    torch.manual_seed(seed)
    return get_peft_model(base, LoraConfig(r=rank, lora_alpha=alpha, lora_dropout=0.0, target_modules=TARGETS,
                                           task_type="CAUSAL_LM"))


def load_lora(folder, adapter, trainable=False):
    return PeftModel.from_pretrained(load_base(folder), adapter, is_trainable=trainable)


def row_logits(model, row):
    ids, positions = (torch.tensor([row[k]]) for k in ("input_ids", "position_ids"))
    return model(input_ids=ids, position_ids=positions, use_cache=False).logits[0]


def row_nll(model, row):
    """Sum over the learnt tokens, and how many there are."""
    target = torch.tensor(row["labels"][1:] + [-100])
    nll = torch.nn.functional.cross_entropy(row_logits(model, row), target, ignore_index=-100, reduction="sum")
    return nll, int((target != -100).sum())


def make_schedule(optimizer, kind, warmup, steps):
    if kind == "cosine":
        return get_cosine_schedule_with_warmup(optimizer, warmup, steps)
    if kind == "linear":
        return get_linear_schedule_with_warmup(optimizer, warmup, steps)
    return get_constant_schedule_with_warmup(optimizer, warmup) if warmup else get_constant_schedule(optimizer)


def train(model, rows, steps, accumulation, lr, warmup, schedule="cosine", weight_decay=0.1, betas=(0.9, 0.95),
          eps=1e-8, max_grad_norm=1.0):
    """Yields a dict per optimizer step. The loss is divided once, by all label tokens of the step."""
    trainable = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)
    rate = make_schedule(optimizer, schedule, warmup, steps)
    model.train()
    for step in range(steps):
        start = time.perf_counter()
        window = [rows[(step * accumulation + k) % len(rows)] for k in range(accumulation)]
        labels = sum(sum(label != -100 for label in row["labels"]) for row in window)
        loss = 0.0
        for row in window:
            part = row_nll(model, row)[0] / labels
            part.backward()
            loss += part.item()
        norm = torch.nn.utils.clip_grad_norm_(trainable, max_grad_norm).item()
        used = rate.get_last_lr()[0]
        optimizer.step()
        rate.step()
        optimizer.zero_grad()
        yield {"step": step + 1, "loss": loss, "grad_norm": norm, "learning_rate": used, "label_tokens": labels,
               "tokens": sum(len(row["input_ids"]) for row in window), "seconds": time.perf_counter() - start}

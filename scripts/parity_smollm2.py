#!/usr/bin/env python3
"""parity_smollm2.py - real weights: our program against transformers + PEFT on the same batches.

1. PEFT makes a seeded adapter (A uniform, B zero); both programs start from it.
2. Both train LoRA for some steps on the same packed rows (`liger-sft data --dump 0` prints ours; transformers gets
   them as they are).  Compared: loss, gradient norm and learning rate of every step.
3. PEFT loads the adapter that we saved, and we load the one that PEFT saved.  Compared: all logits of one packed row.

Usage: parity_smollm2.py --model FOLDER --data alpaca.json --work SCRATCH [--build build/release] [--steps 30]
    [--fuse_rules all,fold]
Needs `ninja dump_logits` in the build folder.  Prints a table; exit code 1 when a bound is broken.
"""
import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

import hf_train

BOUND_LOSS, BOUND_LOGITS = 1e-3, 1e-4
LR, WARMUP, RANK, ALPHA = 2e-4, 3, 16, 32


def run(*command):
    print("$", " ".join(Path(c).name if i == 0 else c for i, c in enumerate(map(str, command))), flush=True)
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"exit code {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def write_config(args, adapter):
    config = {"model": str(args.model.resolve()), "dataset": [str(args.data.resolve())], "adapter": str(adapter),
              "output_dir": str(args.work / "ours"), "overwrite_output_dir": True, "packing": True, "max_length": 512,
              "dataset_shuffle": False, "per_device_train_batch_size": 1,
              "gradient_accumulation_steps": args.accumulation, "max_steps": args.steps, "learning_rate": LR, "warmup_steps": WARMUP, "lr_scheduler_type": "cosine",
              "weight_decay": 0.1, "max_grad_norm": 1.0, "lora_rank": RANK, "lora_alpha": ALPHA, "seed": 42,
              "fuse_rules": args.fuse_rules, "device": "cpu", "threads": args.threads}
    path = args.work / "config.json"
    path.write_text(json.dumps(config, indent=2) + "\n")
    return path


def compare_steps(ours, theirs):
    print("| step | loss, ours | loss, transformers | difference | grad norm, ours | transformers | learning rate |")
    print("|---|---|---|---|---|---|---|")
    worst = 0.0
    for a, b in zip(ours, theirs, strict=True):
        difference = abs(a["loss"] - b["loss"])
        worst = max(worst, difference)
        assert abs(a["learning_rate"] - b["learning_rate"]) <= 1e-6 * LR, (a, b)
        assert a["label_tokens"] == b["label_tokens"] and a["tokens"] == b["tokens"], (a, b)
        print(f"| {a['step']} | {a['loss']:.6f} | {b['loss']:.6f} | {difference:.1e} | {a['grad_norm']:.5f} "
              f"| {b['grad_norm']:.5f} | {a['learning_rate']:.3e} |")
    return worst


def our_logits(args, row, adapter):
    starts = [t for t, p in enumerate(row["position_ids"]) if p == 0]
    tensors = {"input_ids": row["input_ids"], "position_ids": row["position_ids"],
               "cu_seqlens": starts + [len(row["input_ids"])]}
    save_file({k: torch.tensor(v, dtype=torch.int32) for k, v in tensors.items()}, args.work / "row.safetensors")
    run(args.build / "dump_logits", args.work / "row.safetensors", args.work / "logits.safetensors",
        "--model", args.model, "--adapter", adapter, "--device", "cpu")
    return load_file(args.work / "logits.safetensors")["logits"]


def compare_logits(args, row, adapter, whose):
    ours = our_logits(args, row, adapter).double()
    with torch.no_grad():
        theirs = hf_train.row_logits(hf_train.load_lora(args.model, adapter).eval(), row).double()
    relative = ((ours - theirs).norm() / theirs.norm()).item()
    largest = (ours - theirs).abs().max().item()
    print(f"{whose}: {ours.shape[0]} x {ours.shape[1]} logits, relative difference {relative:.1e}, largest "
          f"{largest:.1e} (largest logit {theirs.abs().max():.1f}), same best token on "
          f"{(ours.argmax(1) == theirs.argmax(1)).double().mean():.1%} of rows")
    return relative


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--build", type=Path, default=Path("build/release"))
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--accumulation", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--fuse_rules", default="all", help="all,fold: norms dissolve into products")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    shutil.rmtree(args.work, ignore_errors=True)
    args.work.mkdir(parents=True)
    args.work = args.work.resolve()

    hf_train.new_lora(hf_train.load_base(args.model), RANK, ALPHA, 42).save_pretrained(args.work / "start")
    config = write_config(args, args.work / "start")
    (args.work / "rows.jsonl").write_text(run(args.build / "liger-sft", "data", "--config", config, "--dump", "0"))
    rows = hf_train.read_rows(args.work / "rows.jsonl")
    run(args.build / "liger-sft", "--config", config)
    ours = [json.loads(line) for line in (args.work / "ours/metrics.jsonl").read_text().splitlines()]
    ours = [m for m in ours if "grad_norm" in m]

    model = hf_train.load_lora(args.model, args.work / "start", trainable=True)
    theirs = list(hf_train.train(model, rows, args.steps, args.accumulation, LR, WARMUP))
    model.save_pretrained(args.work / "theirs")
    worst_loss = compare_steps(ours, theirs)
    worst_logits = max(compare_logits(args, rows[0], args.work / "ours", "our adapter, loaded by PEFT"),
                       compare_logits(args, rows[0], args.work / "theirs", "PEFT's adapter, loaded by us"))
    print(f"largest loss difference {worst_loss:.1e} (bound {BOUND_LOSS:g}), logits {worst_logits:.1e} "
          f"(bound {BOUND_LOGITS:g})")
    sys.exit(worst_loss > BOUND_LOSS or worst_logits > BOUND_LOGITS)


if __name__ == "__main__":
    main()

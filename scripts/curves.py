#!/usr/bin/env python3
"""curves.py - loss curves of one run in every form: on the GPU fused, folded and unfused, on the CPU, and by transformers + PEFT.

All start from one seeded adapter and see the same packed rows. Losses are smoothed over 10 steps and compared at every
step with transformers' (float32).

Usage: curves.py --model FOLDER --data alpaca.json --work SCRATCH --program liger-sft [--steps 200]
Prints a table of some steps and the largest relative distance of each curve; exit code 1 when one is above 1 %.
"""
import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path

import torch

import hf_train

LR, WARMUP, RANK, ALPHA, WINDOW = 2e-4, 10, 16, 32, 10
FORMS = {"gpu fused": ("cuda", "true", "all,-fold"), "gpu folded": ("cuda", "true", "all,fold"),
         "gpu unfused": ("cuda", "false", "all"), "cpu": ("cpu", "true", "all")}


def settings(args, device, fused, rules, output):
    return ["--model", args.model, "--dataset", args.data, "--adapter", args.work / "start", "--output_dir", output,
            "--max_length", 512, "--dataset_shuffle", "false", "--per_device_train_batch_size", 1,
            "--gradient_accumulation_steps", 1, "--max_steps", args.steps, "--learning_rate", LR, "--warmup_steps",
            WARMUP, "--device", device, "--use_liger_kernel", fused, "--fuse_rules", rules]


def run(*command):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{command[:2]}: exit code {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout


def losses_of(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [m["loss"] for m in lines if "grad_norm" in m]


def smooth(losses):
    return [sum(losses[max(0, i - WINDOW + 1):i + 1]) / min(i + 1, WINDOW) for i in range(len(losses))]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name in ("model", "data", "work", "program"):
        parser.add_argument("--" + name, type=Path, required=True)
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()
    shutil.rmtree(args.work, ignore_errors=True)
    args.work.mkdir(parents=True)
    hf_train.new_lora(hf_train.load_base(args.model), RANK, ALPHA, 42).save_pretrained(args.work / "start")
    rows_file = args.work / "rows.jsonl"
    rows_file.write_text(run(args.program, "data", *settings(args, *FORMS["cpu"], args.work / "none"), "--dump", 0))
    rows = hf_train.read_rows(rows_file)

    curves = {}
    for name, form in FORMS.items():
        run(args.program, *settings(args, *form, args.work / name))
        curves[name] = smooth(losses_of(args.work / name))
    torch.set_num_threads(8)
    model = hf_train.load_lora(args.model, args.work / "start", trainable=True)
    reference = smooth([s["loss"] for s in hf_train.train(model, rows, args.steps, 1, LR, WARMUP)])

    print("| step | transformers + PEFT | " + " | ".join(curves) + " |\n|---|---|" + "---|" * len(curves))
    for i in [*range(0, args.steps, max(1, args.steps // 10)), args.steps - 1]:
        print(f"| {i + 1} | {reference[i]:.5f} | " + " | ".join(f"{c[i]:.5f}" for c in curves.values()) + " |")
    worst = {name: max(abs(a - b) / b for a, b in zip(c, reference, strict=True)) for name, c in curves.items()}
    print("largest relative distance, smoothed over 10: " + ", ".join(f"{n} {w:.2e}" for n, w in worst.items()))
    sys.exit(any(w > 0.01 for w in worst.values()))


if __name__ == "__main__":
    main()

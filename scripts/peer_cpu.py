#!/usr/bin/env python3
"""peer_cpu.py - speed of transformers + PEFT on the CPU, for scripts/bench_cpu.sh to set beside ours.

The same job: float32, LoRA on all seven linears, packed rows (from `liger-sft data --dump 0`), batch 1.  The rows come
tokenized and packed, which spares the peer that work.  Prints one JSON object.
"""
import argparse
import json
import time

import psutil

import torch
import hf_train


def peak_memory_gib():
    with open("/proc/self/status", encoding="ascii") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 2**20


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--rows", required=True, help="JSON lines of liger-sft data --dump 0")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--warmup", type=int, default=2, help="steps left out of the median")
    parser.add_argument("--accumulation", type=int, default=1)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--alpha", type=float, default=32)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    rows = hf_train.read_rows(args.rows)
    model = hf_train.new_lora(hf_train.load_base(args.model), args.rank, args.alpha, 42)
    start_seconds = time.time() - psutil.Process().create_time()
    done = []
    for step in hf_train.train(model, rows, args.steps, args.accumulation, lr=1e-4, warmup=0):
        done.append(step)
    rates = sorted(s["tokens"] / s["seconds"] for s in done[args.warmup:])
    print(json.dumps({"program": "transformers + PEFT", "steps": args.steps, "start_seconds": start_seconds,
                      "first_step_seconds": done[0]["seconds"], "tokens_per_second": rates[len(rates) // 2],
                      "peak_memory_gib": peak_memory_gib(), "first_loss": done[0]["loss"], "loss": done[-1]["loss"]}))


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""gradients.py - gradients of a whole model in every form: on the GPU in bf16 fused, folded and unfused, on the CPU, and by
transformers + PEFT in bf16, each beside transformers' in float32.

One step with an epsilon so large that Adam moves every weight by its gradient; so the gradient is what the saved adapter
differs from the one that all start from. Printed is sum (g - r)^2 / sum r^2 (NMSE) over all adapters, and of the adapter
where it is largest.

Usage: gradients.py --model FOLDER --data alpaca.json --work SCRATCH --program liger-sft [--device cuda|cpu]
Exit code 1 when the NMSE over all is above 1e-6 in float32, or in bf16 above 1e-4 and above twice transformers' own (which a
deep model can have: 2e-3 with the 30 layers of SmolLM2-135M). What is left in float32 is the rounding of the adapters.
"""
import argparse
import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

import hf_train
from curves import ALPHA, FORMS, RANK, run, settings

RATE = EPSILON = 1.0
ONE_STEP = {"--max_steps": 1, "--learning_rate": RATE, "--adam_epsilon": EPSILON, "--weight_decay": 0, "--max_grad_norm": 0,
            "--lr_scheduler_type": "constant", "--warmup_steps": 0}
FILE = "adapter_model.safetensors"


def one_step(args, form, output):
    given = settings(args, *form, output)
    flags = dict(zip(given[::2], given[1::2])) | ONE_STEP
    flags["--torch_dtype"] = "bfloat16" if form[0] == "cuda" else "float32"
    run(args.program, *[x for flag in flags.items() for x in flag])


def make_start(args):
    """B is not zero, or A would have no gradient."""
    start = args.work / "start"
    hf_train.new_lora(hf_train.load_base(args.model), RANK, ALPHA, 42).save_pretrained(start)
    weights = load_file(start / FILE)
    torch.manual_seed(1)
    save_file({name: torch.randn_like(w) * 0.02 if "lora_B" in name else w for name, w in weights.items()}, start / FILE,
              metadata={"format": "pt"})
    return load_file(start / FILE)


def by_transformers(args, row, dtype):
    model = hf_train.load_lora(args.model, args.work / "start", trainable=True).to(dtype)
    nll, labels = hf_train.row_nll(model, row)
    (nll.float() / labels).backward()
    return {name.replace(".default", ""): p.grad.double() for name, p in model.named_parameters() if p.grad is not None}


def by_program(start, folder):
    gradients = {}
    for name, w in load_file(folder / FILE).items():
        moved = start[name].double() - w.double() # = rate g / (|g| + epsilon)
        gradients[name] = EPSILON * moved / (RATE - moved.abs())
    return gradients


def distance(gradients, reference):
    apart = {name: (gradients[name] - r).square().sum().item() for name, r in reference.items()}
    size = {name: r.square().sum().item() for name, r in reference.items()}
    worst = max(reference, key=lambda name: apart[name] / size[name])
    return sum(apart.values()) / sum(size.values()), apart[worst] / size[worst], worst


def show(name, over_all, largest, where):
    print(f"{name:24} {over_all:.2e}   {largest:.2e} in {where}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    for name in ("model", "data", "work", "program"):
        parser.add_argument("--" + name, type=Path, required=True)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    args = parser.parse_args()
    args.steps = 1
    shutil.rmtree(args.work, ignore_errors=True)
    args.work.mkdir(parents=True)
    start = make_start(args)
    rows = args.work / "rows.jsonl"
    rows.write_text(run(args.program, "data", *settings(args, *FORMS["cpu"], args.work / "none"), "--dump", 0))
    row = hf_train.read_rows(rows)[0]

    reference = by_transformers(args, row, torch.float32)
    in_bf16 = distance(by_transformers(args, row, torch.bfloat16), reference)
    bounds = {"cpu": 1e-6, "cuda": max(1e-4, 2 * in_bf16[0])}
    failed = False
    for name, form in FORMS.items():
        if form[0] == "cuda" and args.device != "cuda":
            continue
        one_step(args, form, args.work / name)
        found = distance(by_program(start, args.work / name), reference)
        failed = failed or not found[0] <= bounds[form[0]]
        show(name, *found)
    show("transformers in bf16", *in_bf16)
    sys.exit(failed)


if __name__ == "__main__":
    main()

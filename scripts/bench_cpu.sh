#!/usr/bin/env bash
# bench_cpu.sh - training speed on the CPU: ours and transformers + PEFT in turn, in one run, on the same packed rows.
#
#   PYTHON=python3 scripts/bench_cpu.sh MODEL_FOLDER ALPACA_FILE [ROUNDS [STEPS]]
#
# LoRA r=16 on all seven linears, float32 arithmetic, rows of 512 tokens, batch 1, all cores.  Tokens/s is the median
# over the steps of a round but its first two; the table has the median over the rounds.  The peer gets its rows
# tokenized and packed.  Start: from the start of the process to the start of the first step.  Paste the output into
# docs/bench/cpu.md.
set -eu
[ $# -ge 2 ] || { sed -n '2,10s/^# \{0,1\}//p' "$0"; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
program=${LIGER_SFT:-$here/../build/release/liger-sft}
python=${PYTHON:-python3}
model=$(realpath "$1") data=$(realpath "$2") rounds=${3:-3} steps=${4:-12}
threads=$(nproc)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cat >"$work/config.json" <<JSON
{"model": "$model", "dataset": ["$data"], "max_length": 512, "packing": true, "dataset_shuffle": false,
 "per_device_train_batch_size": 1, "gradient_accumulation_steps": 1, "max_steps": $steps, "lora_rank": 16,
 "lora_alpha": 32, "learning_rate": 1e-4, "device": "cpu", "threads": $threads, "output_dir": "ours",
 "overwrite_output_dir": true}
JSON
quietly() { "$@" 2>"$work/err" || { cat "$work/err" >&2; exit 1; }; }
quietly "$program" data --config "$work/config.json" --dump 0 >"$work/rows.jsonl"

for ((round = 1; round <= rounds; round++)); do
    quietly "$program" --config "$work/config.json" >/dev/null
    cp "$work/ours/metrics.jsonl" "$work/ours-$round.metrics"
    cp "$work/ours/summary.json" "$work/ours-$round.summary"
    quietly "$python" "$here/peer_cpu.py" --model "$model" --rows "$work/rows.jsonl" --steps "$steps" \
        --threads "$threads" >"$work/peer-$round.json"
done

echo "command: scripts/bench_cpu.sh $(basename "$model") $(basename "$data") $rounds $steps"
echo "commit: $(git -C "$here" rev-parse --short HEAD 2>/dev/null || echo unknown)"
echo "machine: $threads threads, $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1), $(uname -sr)"
"$python" - "$work" "$rounds" <<'PYTHON'
import json, statistics, sys
from importlib.metadata import version
work, rounds = sys.argv[1], range(1, int(sys.argv[2]) + 1)
print("peer: torch " + version("torch") + ", transformers " + version("transformers") + ", peft " + version("peft"))

def ours(r):
    steps = [json.loads(line) for line in open(f"{work}/ours-{r}.metrics")]
    steps = [s for s in steps if "grad_norm" in s]
    summary = json.load(open(f"{work}/ours-{r}.summary"))
    return {"tokens_per_second": statistics.median(s["tokens_per_second"] for s in steps[2:]),
            "start_seconds": summary["start_seconds"], "peak_memory_gib": summary["peak_memory_gib"],
            "first_step_seconds": steps[0]["step_seconds"], "first_loss": steps[0]["loss"], "loss": steps[-1]["loss"]}

runs = {"liger-sft": [ours(r) for r in rounds],
        "transformers + PEFT": [json.load(open(f"{work}/peer-{r}.json")) for r in rounds]}
print("\n| program | tokens/s | (each round) | start, s | first step, s | peak memory, GiB | first loss | last loss |")
print("|---|---|---|---|---|---|---|---|")
KEYS = "tokens_per_second", "start_seconds", "first_step_seconds", "peak_memory_gib", "first_loss", "loss"
middle = {name: {k: statistics.median(run[k] for run in list_) for k in KEYS} for name, list_ in runs.items()}
for name, m in middle.items():
    each = ", ".join(f"{run['tokens_per_second']:.0f}" for run in runs[name])
    print(f"| {name} | {m['tokens_per_second']:.1f} | {each} | {m['start_seconds']:.2f} "
          f"| {m['first_step_seconds']:.2f} | {m['peak_memory_gib']:.2f} | {m['first_loss']:.4f} | {m['loss']:.4f} |")
a, b = middle["liger-sft"], middle["transformers + PEFT"]
print(f"\nours / peer: tokens/s {a['tokens_per_second'] / b['tokens_per_second']:.2f} x, "
      f"start {b['start_seconds'] / a['start_seconds']:.1f} x sooner, "
      f"memory {a['peak_memory_gib'] / b['peak_memory_gib']:.2f} x")
PYTHON

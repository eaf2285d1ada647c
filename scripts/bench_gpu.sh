#!/usr/bin/env bash
# bench_gpu.sh - the speed table of docs/bench/h200.md: this program and a peer on the same card in one run, since a
# card's rate drifts with its temperature and power.
#   bench_gpu.sh PROGRAM [PEER]
# PROGRAM: the built liger-sft. PEER: a Python script that trains the same shapes with transformers + PEFT + Liger and
# prints one JSON line (--liger 1 --adapter bf16 --model NAME --batch B --seq S --ckpt 0|1 --padded 0|1 --steps N), run by
# $PYTHON (python3). ONLY=word runs the lines that contain it.
set -u
cd "$(dirname "$0")/.."
program=${1:?the path of liger-sft} peer=${2:-} python=${PYTHON:-python3}
log=$(mktemp)
trap 'rm -f "$log"' EXIT
say() { [ -z "${ONLY:-}" ] || [[ "$1" == *"$ONLY"* ]] && printf '\n# %s\n' "$1"; }
# ours TITLE SHAPES LENGTH BATCH ARGUMENTS...
ours() {
    say "ours: $1" || return 0
    "$program" bench --model "configs/shapes/$2" --device cuda --lora_rank 64 --lora_alpha 128 --max_length "$3" \
        --per_device_train_batch_size "$4" --gradient_accumulation_steps 1 "${@:5}" 2>&1
}
theirs() { # TITLE ARGUMENTS... A peer that does not run ends all: figures without it say little.
    [ -n "$peer" ] && say "peer: $1" || return 0
    "$python" "$peer" --liger 1 --adapter bf16 --rank 64 --steps 8 "${@:2}" >"$log" 2>&1
    grep '^{' "$log" && return
    echo "the peer gave no figures:"
    tail -n 5 "$log"
    exit 1
}

nvidia-smi --query-gpu=name,driver_version,power.limit,clocks.max.sm --format=csv,noheader
theirs "8B, 4 x 2048" --batch 4 --seq 2048
ours "8B, 4 x 2048, both paths" llama3-8b 2048 4 --gradient_checkpointing none --bench_ops true
ours "8B, 4 x 2048, norms folded by force" llama3-8b 2048 4 --gradient_checkpointing none --bench_paths fused \
    --fuse_rules all,fold
ours "8B, 4 x 2048, no norm folded" llama3-8b 2048 4 --gradient_checkpointing none --bench_paths fused \
    --fuse_rules all,-fold
theirs "8B, rows of 135 tokens on average, padded" --batch 32 --seq 2048 --padded 1
ours "8B, documents of 135 tokens on average, packed" llama3-8b 2048 4 --gradient_checkpointing none \
    --bench_paths fused --bench_mean_length 135
theirs "8B, 4 x 2048, full recompute" --batch 4 --seq 2048 --ckpt 1
ours "8B, 4 x 2048, full recompute" llama3-8b 2048 4 --gradient_checkpointing full --bench_paths fused
ours "8B, 4 x 2048, full recompute, layers' inputs in host memory" llama3-8b 2048 4 --gradient_checkpointing offload \
    --bench_paths fused
theirs "1B, 8 x 2048" --model llama3.2-1b --batch 8 --seq 2048
ours "1B, 8 x 2048" llama3.2-1b 2048 8 --gradient_checkpointing none --bench_paths fused
ours "8B, one document of 32768" llama3-8b 32768 1 --gradient_checkpointing cheap --bench_paths fused --bench_steps 3
ours "8B, 4 x 2048, cheap" llama3-8b 2048 4 --gradient_checkpointing cheap --bench_paths fused
ours "8B, 4 x 2048, each fused op" llama3-8b 2048 4 --kernels

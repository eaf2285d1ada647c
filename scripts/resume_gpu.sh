#!/usr/bin/env bash
# resume_gpu.sh - on a card, in bf16 and deterministic mode: a run that is killed again and again and goes on each time
# ends with the same adapter, byte for byte, and the same losses as one that is left alone.
#   resume_gpu.sh PROGRAM DATA [KILLS]
# PROGRAM: the built liger-sft. DATA: an Alpaca-style file. KILLS: how many times (10).
set -eu
cd "$(dirname "$0")/.."
program=$1 data=$2 kills=${3:-10}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
train() { # command|exec OUTPUT_DIR ARGUMENTS...; exec: in a subshell, so that a signal meets the program itself
    $1 "$program" --model data/demo-model --dataset "$data" --output_dir "$2" --device cuda --deterministic true \
        --max_length 512 --packing true --per_device_train_batch_size 4 --gradient_accumulation_steps 2 \
        --max_steps 400 --logging_steps 1 --lora_rank 8 --save_steps 5 --save_total_limit 3 "${@:3}"
}
train command "$work/whole" >"$work/whole.log" 2>&1
train command "$work/again" >"$work/again.log" 2>&1
cmp "$work/whole/adapter_model.safetensors" "$work/again/adapter_model.safetensors"
echo "two runs: the same adapter"

for ((i = 0; i < kills; i++)); do
    train exec "$work/killed" --resume_from_checkpoint auto >"$work/killed.log" 2>&1 & # the program: $!
    sleep "0.$((RANDOM % 9 + 1))"
    sleep 1.2 # most of which is the start of the card
    kill -9 $! 2>/dev/null || break
    wait $! 2>/dev/null || true
done
train command "$work/killed" --resume_from_checkpoint auto >"$work/killed.log" 2>&1 || {
    tail -3 "$work/killed.log"
    exit 1
}
cmp "$work/whole/adapter_model.safetensors" "$work/killed/adapter_model.safetensors"
losses() { sed -E 's/.*"step": ?([0-9]+).*"loss": ?([^,}]*).*/\1 \2/' "$1/metrics.jsonl"; }
cmp <(losses "$work/whole") <(losses "$work/killed")
echo "killed $i times and resumed: the same adapter and the same losses at every step"

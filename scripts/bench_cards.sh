#!/usr/bin/env bash
# bench_cards.sh - what several cards of one machine give, for docs/bench/h200xN.md: data parallel and spread training beside
# one card of the same machine, the same losses, what the links carry; last, ranks_gpu.sh.
#   bench_cards.sh BUILD/liger-sft | tee FILE
# CARDS: how many (all that nvidia-smi lists). One, a world of one over NCCL, tries the script; so does DEVICE=cpu, as many MPI
# ranks on small shapes.
set -u
program=$(realpath "$1")
cd "$(dirname "$0")/.."
device=${DEVICE:-cuda}
cards=${CARDS:-$(nvidia-smi -L 2>/dev/null | grep -c '^GPU')}
export NCCL_NVLS_ENABLE=0 # no NVLink multicast
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 # its own mpirun as root, as in a container
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ "$device" = cpu ]; then
    small=data/demo-model large=data/demo-model huge=data/demo-model length=256 rank=8 steps=2 type=float32
else
    small=configs/shapes/llama3.2-1b large=configs/shapes/llama3-8b huge=configs/shapes/llama3-70b length=2048 rank=64
    steps=10 type=bfloat16
fi
failed=0
wrong() {
    echo "FAILED: $*"
    failed=1
}
# bench NAME MODEL FLAGS...: the rows of `liger-sft bench` of the fused program; also kept in $folder/NAME.
bench() {
    local name=$1 model=$2
    shift 2
    printf '\n# %s\n' "$name: liger-sft bench --model $model $*"
    timeout 600 "$program" bench --model "$model" --device "$device" --torch_dtype $type --bench_paths fused --bench_steps $steps \
        --gradient_accumulation_steps 1 "$@" 2>&1 </dev/null | tee "$folder/$name"
    grep -q '^fused ' "$folder/$name" || wrong "$name gave no figures"
}
figure() { awk -v column="$2" '/^fused +[0-9.]+ / && $3 != "ranks:" { print $column; exit }' "$folder/$1"; }
# per_rank NAME NAME RANKS LEAST: tokens/s of the first, of all its ranks, against those of the second for each rank.
per_rank() {
    awk -v a="$(figure "$1" 2)" -v b="$(figure "$2" 2)" -v n="$3" -v least="$4" -v what="$1 / ($2 x $3)" 'BEGIN {
        if (a + 0 <= 0 || b + 0 <= 0) exit 1
        printf "%s: %.3f of the speed (asked: %s)\n", what, a / (n * b), least }' || wrong "no speed of $1 or $2"
}
# as_planned NAME: the device's memory against the plan, both of rank 0 (columns 8 and 9).
as_planned() {
    awk -v got="$(figure "$1" 8)" -v planned="$(figure "$1" 9)" -v what="$1" 'BEGIN {
        if (got + 0 > 0) printf "%s: %.1f GiB on the device, %.2f planned: %+.1f %%\n", what, got, planned,
            100 * (got / planned - 1) }'
}
# losses NAME FLAGS...: the losses of 20 steps of the demo model, 8 rows each, into $folder/NAME.
losses() {
    local name=$1
    shift
    timeout 600 "$program" --model data/demo-model --dataset "data/demo_train.json#256" --device "$device" --torch_dtype $type \
        --max_length 128 --packing false --max_steps 20 --lora_rank 8 --logging_steps 1 --output_dir "$folder/run-$name" "$@" \
        >"$folder/out" 2>&1 </dev/null || { wrong "losses of $name"; tail -n 3 "$folder/out"; }
    sed -n 's/^{"step".*"loss": \([^,}]*\)[,}].*/\1/p' "$folder/run-$name/metrics.jsonl" >"$folder/$name"
}
lora=(--lora_rank $rank --lora_alpha $((2 * rank)) --max_length $length --per_device_train_batch_size 4
    --gradient_checkpointing none)

[ "$device" = cpu ] || nvidia-smi --query-gpu=name,driver_version,power.limit --format=csv,noheader
[ "$cards" -ge 1 ] || { echo "bench_cards.sh: there is no card (CARDS=2 DEVICE=cpu tries it)"; exit 1; }
world=(--gpus "$cards")
[ "$device$cards" = cuda1 ] && world=(--gpus 1 --ddp_backend nccl)

bench one "$large" "${lora[@]}"
bench data-parallel "$large" "${lora[@]}" "${world[@]}"
per_rank data-parallel one "$cards" 0.97
bench spread-base "$large" "${lora[@]}" "${world[@]}" --shard_base true
per_rank spread-base data-parallel 1 0.90
as_planned data-parallel
as_planned spread-base

bench huge "$huge" --lora_rank $rank --max_length 512 --per_device_train_batch_size 1 --gradient_checkpointing full \
    "${world[@]}" --shard_base true
as_planned huge

for stage in 0 1 2 3; do
    bench full-$stage "$small" --tuner_type full --max_length $length --per_device_train_batch_size 2 \
        "${world[@]}" --zero_stage $stage
    as_planned full-$stage
    [ "$(figure full-$stage 14)" = "$(figure full-0 14)" ] || wrong "the last loss of stage $stage is not that of stage 0"
done

printf '\n# the same 8 rows a step on one card and on %d\n' "$cards"
losses alone --gradient_accumulation_steps 8
losses together --gradient_accumulation_steps $((8 / cards)) "${world[@]}"
paste "$folder/alone" "$folder/together" | awk '
    { d = $1 > $2 ? $1 - $2 : $2 - $1; if (d / $1 > worst) worst = d / $1 }
    END { printf "losses of %d steps: at most %.2e apart\n", NR, worst; exit !(NR == 20 && worst < 0.01) }' ||
    wrong "the losses of one and of $cards differ"

printf '\n# ranks_gpu.sh\n'
CARDS=$cards DEVICE=$device scripts/ranks_gpu.sh "$program" || failed=1
exit $failed

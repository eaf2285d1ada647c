#!/usr/bin/env bash
# ranks_gpu.sh - what of ranks only a machine with cards can check: the same numbers as one process, for NCCL with a world
# of one, for two ranks that share a card over MPI and host memory, and, with two cards or more, for --gpus N with and
# without shared moments; then a killed rank, and what the sums of gradients take.
#   ranks_gpu.sh BUILD/liger-sft
# CARDS says how many cards to use (2 ranks at least share one otherwise). DEVICE=cpu does without cards what can be done.
set -u
export LIGER_SFT=$(realpath "$1") TEST_DIR=$(realpath "$(dirname "$0")/../test")
cd "$(dirname "$0")/.."
. test/cli/train_lib.sh
device=${DEVICE:-cuda}
cards=${CARDS:-$(nvidia-smi -L 2>/dev/null | grep -c '^GPU')}
common=(--device "$device" --torch_dtype float32 --deterministic true --max_length 128 --adam_epsilon 1 --max_steps 10)
lora=(--model data/demo-model --dataset "data/demo_train.json#64" --packing false --learning_rate 0.1 --lora_rank 8)
full=(--model data/demo-model --dataset "data/demo_train.json#64" --packing false --learning_rate 0.1 --tuner_type full)
mpi=(mpirun --oversubscribe -n)

# run NAME COMMAND...: a run into $folder/NAME
run() {
    local name=$1
    shift
    timeout 300 "$@" "${common[@]}" --output_dir "$folder/$name" >"$folder/$name.out" 2>"$folder/$name.err" </dev/null && return
    wrong "exit code $? of $name: $*"
    tail -5 "$folder/$name.out" "$folder/$name.err"
}

# like_one NAME KIND: first loss and norm, and the weights, of NAME beside those of the one process of that kind.
like_one() {
    local key before=$failed file=adapter_model.safetensors
    [ "$2" = full ] && file=model.safetensors
    for key in loss grad_norm; do
        column "$1" $key | head -1 >"$folder/got"
        column "one-$2" $key | head -1 >"$folder/want"
        close 1e-6 "first $key of $1 and one process" "$folder/got" "$folder/want"
    done
    for name in "$1" "one-$2"; do
        mkdir -p "$folder/weights-$name"
        cp "$folder/$name/$file" "$folder/weights-$name/adapter_model.safetensors"
    done
    close_weights 1e-6 "weights-$1" "weights-one-$2"
    [ $failed = $before ] && echo "ok      $1"
}

run one-lora "$LIGER_SFT" "${lora[@]}" --gradient_accumulation_steps 8
run one-full "$LIGER_SFT" "${full[@]}" --gradient_accumulation_steps 8
if [ "$device" = cuda ]; then
    run nccl-of-one "$LIGER_SFT" "${lora[@]}" --gradient_accumulation_steps 8 --ddp_backend nccl
    like_one nccl-of-one lora
fi
run mpi-of-two "${mpi[@]}" 2 "$LIGER_SFT" "${lora[@]}" --gradient_accumulation_steps 4 --ddp_backend mpi
like_one mpi-of-two lora
run mpi-of-two-full "${mpi[@]}" 2 "$LIGER_SFT" "${full[@]}" --gradient_accumulation_steps 4 --ddp_backend mpi --zero_stage 1
like_one mpi-of-two-full full
[ "$device" = cuda ] || cards=4
for ((n = 2; n <= cards && n <= 8; n *= 2)); do
    run "gpus-$n-lora" "$LIGER_SFT" "${lora[@]}" --gradient_accumulation_steps $((8 / n)) --gpus $n
    like_one "gpus-$n-lora" lora
    for stage in 0 1; do
        run "gpus-$n-full-$stage" "$LIGER_SFT" "${full[@]}" --gradient_accumulation_steps $((8 / n)) --gpus $n \
            --zero_stage $stage --save_steps 5
        like_one "gpus-$n-full-$stage" full
    done
    run "mpi-nccl-$n" "${mpi[@]}" $n "$LIGER_SFT" "${lora[@]}" --gradient_accumulation_steps $((8 / n))
    like_one "mpi-nccl-$n" lora
    "$LIGER_SFT" "${lora[@]}" --device "$device" --max_length 128 --max_steps 1000000 --gpus $n --output_dir "$folder/killed" \
        --overwrite_output_dir >"$folder/killed.out.$n" 2>&1 </dev/null &
    parent=$!
    for ((i = 0; i < 600; i++)); do
        grep -qs '^step=' "$folder/killed.out.$n" && break
        sleep 0.1
    done
    mapfile -t ranks < <(pgrep -P $parent)
    SECONDS=0
    kill -9 "${ranks[1]}"
    wait $parent
    code=$?
    count=$((count + 1))
    [ $code != 0 ] && [ $SECONDS -lt 30 ] && echo "ok      kill -9 of one of $n: code $code after $SECONDS s" ||
        wrong "kill -9 of one of $n: code $code after $SECONDS s"
    "$LIGER_SFT" bench --model data/demo-model --device "$device" --max_length 512 --gradient_accumulation_steps 1 --gpus $n \
        --tuner_type full --bench_paths fused 2>/dev/null | grep -E '^(path|fused)'
done
finish

#!/usr/bin/env bash
# ranks_gpu.sh - what of ranks only a machine with cards can check: the same numbers as one process, for NCCL with a world
# of one, for two ranks that share a card over MPI and host memory, and, with two cards or more, for --gpus N, each with
# whole and spread moments, gradients, weights and base; then a killed rank, and what sums and gathers take.
#   ranks_gpu.sh BUILD/liger-sft
# CARDS says how many cards to use (2 ranks at least share one otherwise). DEVICE=cpu does without cards what can be done.
set -u
# the scripts' own mpirun as root, as in a container
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export LIGER_SFT=$(realpath "$1") TEST_DIR=$(realpath "$(dirname "$0")/../test")
cd "$(dirname "$0")/.."
. test/cli/train_lib.sh
device=${DEVICE:-cuda}
cards=${CARDS:-$(nvidia-smi -L 2>/dev/null | grep -c '^GPU')}
common=(--device "$device" --torch_dtype float32 --deterministic true --max_length 128 --adam_epsilon 1 --max_steps 10)
lora=(--model data/demo-model --dataset "data/demo_train.json#64" --packing false --learning_rate 0.1 --lora_rank 8)
full=(--model data/demo-model --dataset "data/demo_train.json#64" --packing false --learning_rate 0.1 --tuner_type full
    --save_steps 5)
mpi=(mpirun --oversubscribe -n)

# run NAME COMMAND...: a run into $folder/NAME
run() {
    local name=$1
    shift
    timeout 300 "$@" "${common[@]}" --output_dir "$folder/$name" >"$folder/$name.out" 2>"$folder/$name.err" </dev/null && return
    wrong "exit code $? of $name: $*"
    tail -n 5 "$folder/$name.out" "$folder/$name.err"
}

# like_weights NAME KIND: the weights of NAME beside those of the one process of that kind. The demo model is in bf16 and saved so:
# of full tuning the float32 masters, with the moments, are in the last checkpoint.
like_weights() {
    local name file=adapter_model.safetensors
    [ "$2" = full ] && file=checkpoint-10/optimizer.safetensors
    for name in "$1" "one-$2"; do
        mkdir -p "$folder/weights-$name"
        cp "$folder/$name/$file" "$folder/weights-$name/adapter_model.safetensors"
    done
    close_weights 1e-6 "weights-$1" "weights-one-$2"
}

# like_one NAME KIND: so, and first loss and norm.
like_one() {
    local key before=$failed
    for key in loss grad_norm; do
        column "$1" $key | head -1 >"$folder/got"
        column "one-$2" $key | head -1 >"$folder/want"
        close 1e-6 "first $key of $1 and one process" "$folder/got" "$folder/want"
    done
    like_weights "$1" "$2"
    [ $failed = $before ] && echo "ok      $1"
}

# like_whole NAME NAME: a base in pieces is the run of as many ranks with a whole one, bit for bit.
like_whole() {
    local before=$failed
    same_bytes "$1/adapter_model.safetensors" "$2/adapter_model.safetensors"
    cmp -s <(column "$1" loss) <(column "$2" loss) || wrong "losses of $1 and $2 differ"
    [ $failed = $before ] && echo "ok      $1, bit for bit $2"
}

# all_ways NAME ACCUMULATION COMMAND...: every way to spread LoRA and full tuning, with this start of a command.
all_ways() {
    local name=$1 steps=(--gradient_accumulation_steps "$2") stage
    shift 2
    run "$name-lora" "$@" "${lora[@]}" "${steps[@]}"
    like_one "$name-lora" lora
    for stage in 0 1 2; do
        run "$name-base-$stage" "$@" "${lora[@]}" "${steps[@]}" --shard_base true --zero_stage $stage
        like_one "$name-base-$stage" lora
        [ $stage = 2 ] || like_whole "$name-base-$stage" "$name-lora" # stage 2 adds micro-batches up in another order
    done
    run "$name-fold" "$@" "${lora[@]}" "${steps[@]}" --fuse_rules all,fold
    run "$name-base-fold" "$@" "${lora[@]}" "${steps[@]}" --shard_base true --fuse_rules all,fold
    like_whole "$name-base-fold" "$name-fold"
    for stage in 0 1 2 3; do
        run "$name-full-$stage" "$@" "${full[@]}" "${steps[@]}" --zero_stage $stage
        like_one "$name-full-$stage" full
    done
}

run one-lora "$LIGER_SFT" "${lora[@]}" --gradient_accumulation_steps 8
run one-full "$LIGER_SFT" "${full[@]}" --gradient_accumulation_steps 8
[ "$device" = cuda ] && all_ways nccl-of-one 8 "$LIGER_SFT" --ddp_backend nccl
all_ways mpi-of-two 4 "${mpi[@]}" 2 "$LIGER_SFT" --ddp_backend mpi
# what two ranks saved goes on in one process
run resumed "$LIGER_SFT" "${full[@]}" --gradient_accumulation_steps 8 \
    --resume_from_checkpoint "$folder/mpi-of-two-full-3/checkpoint-5"
like_weights resumed full
# ... and what one process saved, on two ranks
run resumed-by-two "${mpi[@]}" 2 "$LIGER_SFT" "${full[@]}" --ddp_backend mpi --zero_stage 3 --gradient_accumulation_steps 4 \
    --resume_from_checkpoint "$folder/one-full/checkpoint-5"
like_weights resumed-by-two full
[ "$device" = cuda ] || cards=4
for ((n = 2; n <= cards && n <= 8; n *= 2)); do
    all_ways "gpus-$n" $((8 / n)) "$LIGER_SFT" --gpus $n
    run "mpi-nccl-$n" "${mpi[@]}" $n "$LIGER_SFT" "${lora[@]}" --gradient_accumulation_steps $((8 / n))
    like_one "mpi-nccl-$n" lora
    "$LIGER_SFT" "${lora[@]}" --device "$device" --max_length 128 --max_steps 1000000 --gpus $n --output_dir "$folder/killed" \
        --overwrite_output_dir >"$folder/killed.out.$n" 2>&1 </dev/null &
    parent=$!
    await_step "$folder/killed.out.$n"
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

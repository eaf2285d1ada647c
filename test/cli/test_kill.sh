# test_kill.sh - SIGKILL at random times of a short run that saves often, resumed each time, until KILLS runs were killed
# (10 here; `KILLS=200 bash test/cli/test_kill.sh` is the long form). The result must be that of an undisturbed run, byte
# for byte, and no folder or file that was cut off may ever be taken for a whole one.  Case K01.
. "${TEST_DIR:?the test folder}/cli/train_lib.sh"
RANDOM=${SEED:-1}

run=(--dataset "$model/chat.json" --max_steps 40 --gradient_accumulation_steps 2 --learning_rate 1e-2 --lora_dropout 0.1
    --save_steps 2 --save_total_limit 3 --val_dataset "$model/chat.json" --eval_steps 5 --resume_from_checkpoint auto)
start=$(date +%s%N)
train straight "${run[@]}"
whole=$((($(date +%s%N) - start) / 1000)) # microseconds of an undisturbed run

# A run that is killed after a random part of two thirds of that time, or ends before.
kill_once() {
    local pid after=$((RANDOM * 32768 + RANDOM))
    after=$((after % (whole * 2 / 3)))
    "$LIGER_SFT" --model "$model" --device cpu --max_length 80 --logging_steps 1000 --threads 1 \
        --output_dir "$folder/killed" "${run[@]}" >>"$folder/killed.out" 2>"$folder/killed.err" </dev/null &
    pid=$!
    sleep "$(printf '0.%06d' $after)"
    kill -KILL $pid 2>/dev/null
    wait $pid 2>/dev/null
    code=$?
}

# What lies in the folder of a killed run.
look() {
    local file torn
    grep -q 'passed over' "$folder/killed.err" && wrong "a checkpoint could not be read: $(cat "$folder/killed.err")"
    for file in "$folder"/killed/checkpoint-*[0-9]; do
        [ -d "$file" ] || continue
        states=$((states + 1))
        for part in adapter_model.safetensors adapter_config.json optimizer.safetensors trainer_state.json run_state.json \
            args.json; do
            [ -s "$file/$part" ] || wrong "$file has no $part"
        done
    done
    compgen -G "$folder/killed/checkpoint-*.tmp" >/dev/null && partial=$((partial + 1))
    file=$folder/killed/adapter_model.safetensors
    [ ! -e "$file" ] || cmp -s "$file" "$folder/straight/adapter_model.safetensors" || wrong "a result that is not whole"
    [ -s "$folder/killed/metrics.jsonl" ] || return
    torn=$(grep -cvE '^\{"step": .*\}$' "$folder/killed/metrics.jsonl")
    [ "$torn" = 0 ] || wrong "$torn lines of metrics.jsonl are torn"
}

# `time` and `seconds` aside, the same lines as the undisturbed run: none twice, none missing.
finished() {
    runs=$((runs + 1))
    count=$((count + 1))
    same_bytes killed/adapter_model.safetensors straight/adapter_model.safetensors
    same_bytes killed/checkpoint-40/optimizer.safetensors straight/checkpoint-40/optimizer.safetensors
    for key in loss grad_norm learning_rate eval_loss; do
        [ "$(column killed $key)" = "$(column straight $key)" ] || wrong "$key of metrics.jsonl differs"
    done
    rm -rf "$folder/killed"
}

killed=0 runs=0 states=0 partial=0
while [ $killed -lt "${KILLS:-10}" ] && [ $failed = 0 ]; do
    kill_once
    case $code in
    137) killed=$((killed + 1)) && look ;;
    0) finished ;;
    *) wrong "exit code $code: $(cat "$folder/killed.err")" ;;
    esac
done
train killed "${run[@]}" # the rest
finished
echo "$killed runs killed, $partial while a checkpoint was written; $runs finished; $states checkpoint folders looked at"
finish

# test_stop.sh - SIGINT and SIGTERM while a run loads, steps, evaluates and saves: exit code 130, a checkpoint of the step
# it was in, and the rest of the run as if nothing had been.  Case R05.
. "${TEST_DIR:?the test folder}/cli/train_lib.sh"
set -m # a background job of a shell without job control has SIGINT ignored
RANDOM=2

for ((i = 0; i < 40; i++)); do cat "$model/chat.json"; done | grep -vE '^[][]$' | sed 's/,$//' >"$folder/rows.jsonl"
[ "$(wc -l <"$folder/rows.jsonl")" -gt 400 ] || wrong "the rows are not one per line"
usual=(--dataset "$model/chat.json" --max_steps 150 --gradient_accumulation_steps 3 --learning_rate 1e-2 --lora_dropout 0.1
    --val_dataset "$folder/rows.jsonl#20" --eval_steps 10 --resume_from_checkpoint auto)
run=("${usual[@]}")
start=$(date +%s%N)
train straight "${run[@]}"
whole=$((($(date +%s%N) - start) / 1000)) # microseconds

begin() { # in the background, until the shell's copy of itself has become the program; $pid
    "$LIGER_SFT" --model "$model" --device cpu --max_length 80 --logging_steps 1000 --threads 1 \
        --output_dir "$folder/$1" "${run[@]}" >"$folder/out" 2>"$folder/err" </dev/null &
    pid=$!
    until [ "$(readlink /proc/$pid/exe)" = "$(readlink -f "$LIGER_SFT")" ] || ! kill -0 $pid; do sleep 0.001; done
}
pause() { sleep "$(printf '%d.%06d' $(($1 / 1000000)) $(($1 % 1000000)))"; }

# Ten random times; the run goes on in the same folder until it is done.
stops=0 saved=0
for signal in INT TERM; do
    for ((i = 0; i < 5; i++)); do
        begin stopped
        pause $(((RANDOM * 32768 + RANDOM) % (whole / 2)))
        kill -$signal $pid 2>/dev/null
        wait $pid
        code=$?
        count=$((count + 1))
        kill -0 $pid 2>/dev/null && wrong "$signal: the process is still there"
        if [ $code = 0 ]; then # it was faster
            same_bytes stopped/adapter_model.safetensors straight/adapter_model.safetensors
            rm -r "$folder/stopped"
            continue
        fi
        { [ $code = 143 ] || [ $code = 130 ]; } && [ ! -s "$folder/err" ] && continue # before main: no line yet
        stops=$((stops + 1))
        [ $code = 130 ] || wrong "$signal: exit code $code: $(cat "$folder/err")"
        step=$(sed -n "s/^error: stopped by SIG$signal after step \([0-9]*\) of 150; .*/\1/p" "$folder/err")
        if [ -n "$step" ]; then
            saved=$((saved + 1))
            [ -s "$folder/stopped/checkpoint-$step/run_state.json" ] || wrong "$signal: no checkpoint-$step"
            [ "$(tail -n 1 "$folder/stopped/metrics.jsonl" | grep -c "^{\"step\": $step,")" = 1 ] ||
                wrong "$signal: the last line of metrics.jsonl is not of step $step"
        else
            grep -qE '^error: (interrupted before there|stopped by SIG[A-Z]+ before the first step)' "$folder/err" ||
                wrong "$signal: $(cat "$folder/err")"
        fi
    done
done
train stopped "${run[@]}"
same_bytes stopped/adapter_model.safetensors straight/adapter_model.safetensors
for key in loss learning_rate grad_norm eval_loss; do
    [ "$(column stopped $key)" = "$(column straight $key)" ] || wrong "$key differs after the stops"
done
[ $saved -ge 3 ] || wrong "only $saved of $stops stops came while steps ran"

# In the middle of an evaluation: it is left, and done when the run goes on.
run=(--dataset "$model/chat.json" --max_steps 6 --gradient_accumulation_steps 1 --learning_rate 1e-2 --eval_steps 3
    --val_dataset "$folder/rows.jsonl" --resume_from_checkpoint auto)
train evaluated "${run[@]}"
for step in 3 6; do
    begin evaluating
    until grep -q "^{\"step\": $step," "$folder/evaluating/metrics.jsonl" 2>/dev/null || ! kill -0 $pid; do sleep 0.001; done
    kill -TERM $pid
    wait $pid
    code=$?
    count=$((count + 1))
    [ $code = 130 ] && grep -q "after step $step of 6" "$folder/err" || wrong "in the evaluation: exit code $code: $(cat "$folder/err")"
    grep -q "\"evaluated\": $((step - 3))," "$folder/evaluating/checkpoint-$step/run_state.json" ||
        wrong "the evaluation behind step $step was not cut off"
done
train evaluating "${run[@]}"
same_bytes evaluating/adapter_model.safetensors evaluated/adapter_model.safetensors
[ "$(column evaluating eval_loss)" = "$(column evaluated eval_loss)" ] || wrong "evaluations differ"
[ "$(grep -c eval_loss "$folder/evaluating/metrics.jsonl")" = 2 ] || wrong "not two evaluations"

# While the rows are read and tokenized there is nothing to save, and no reason to wait.
for ((i = 0; i < 60; i++)); do cat "$folder/rows.jsonl"; done >"$folder/many.jsonl"
for signal in INT TERM; do
    run=(--dataset "$folder/many.jsonl")
    rm -rf "$folder/loading"
    begin loading
    for ((i = 0; i < 200; i++)); do [ -e "$folder/loading/run.lock" ] && break || sleep 0.002; done
    kill -$signal $pid
    wait $pid
    code=$?
    count=$((count + 1))
    { [ $code = 130 ] && grep -q '^error: interrupted before there was anything to save$' "$folder/err"; } ||
        wrong "$signal while loading: exit code $code: $(cat "$folder/err")"
    compgen -G "$folder/loading/*[!k]" >/dev/null && wrong "$signal while loading left $(ls "$folder/loading")"
done

# Two signals: ended at once; what was saved before is whole.
run=("${usual[@]}")
train before "${run[@]:2}" --dataset "$model/chat.json" --save_steps 10
for ((i = 0; i < 3; i++)); do
    rm -rf "$folder/twice"
    mkdir "$folder/twice"
    cp -r "$folder/before/checkpoint-$((i * 10 + 10))" "$folder/twice"
    begin twice
    pause $((whole / 20 + RANDOM % (whole / 10)))
    kill -INT $pid 2>/dev/null
    kill -TERM $pid 2>/dev/null
    wait $pid
    code=$?
    count=$((count + 1))
    [ $code = 130 ] || [ $code = 0 ] || wrong "twice: exit code $code: $(cat "$folder/err")"
    train twice "${run[@]}"
    same_bytes twice/adapter_model.safetensors straight/adapter_model.safetensors
done

# A signal that was ignored from the start (nohup) stays ignored.
(trap '' INT TERM && exec "$LIGER_SFT" --model "$model" --device cpu --max_length 80 --threads 1 --output_dir "$folder/deaf" \
    "${run[@]}" >/dev/null 2>&1 </dev/null) &
pid=$!
pause $((whole / 3))
kill -INT -- $pid 2>/dev/null
kill -TERM -- $pid 2>/dev/null
wait $pid
code=$?
count=$((count + 1))
[ $code = 0 ] || wrong "ignored signals: exit code $code"
same_bytes deaf/adapter_model.safetensors straight/adapter_model.safetensors
echo "$stops runs stopped, $saved with a checkpoint of the step they were in"
finish

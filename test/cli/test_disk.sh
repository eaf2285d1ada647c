# test_disk.sh - a disk that is full, or takes no longer files, in the middle of a save: exit code 3, the file and the cause
# in the message, no piece left behind, and the checkpoint before is good to go on from.  Case K01.
. "${TEST_DIR:?the test folder}/cli/train_lib.sh"

run=(--dataset "$model/chat.json" --max_steps 8 --gradient_accumulation_steps 2 --learning_rate 1e-2 --lora_dropout 0.1
    --save_steps 2 --resume_from_checkpoint auto)
train straight "${run[@]}"
train half "${run[@]}"
rm -r "$folder"/half/{checkpoint-[468],adapter_*,summary.json}
sums=$(cd "$folder/half/checkpoint-2" && cksum ./*)

# full NAME CAUSE: what a run into $folder/NAME, ended with exit code $code and $folder/err, left.
full() {
    count=$((count + 1))
    grep '^error: ' "$folder/err" >"$folder/said"
    { [ "$code" = 3 ] && grep -q "$folder/$1/.*: $2" "$folder/said"; } || wrong "exit code $code: $(cat "$folder/err")"
    [ "$(wc -l <"$folder/said")" = 1 ] || wrong "not one error: $(cat "$folder/err")"
    compgen -G "$folder/$1/*.tmp*" >/dev/null && wrong "pieces are left: $(ls "$folder/$1")"
    [ "$(cd "$folder/$1/checkpoint-2" && cksum ./*)" = "$sums" ] || wrong "checkpoint-2 changed"
    sed -E 's/.*\/([A-Za-z_]+\.[a-z]+)(\.tmp-[0-9]+)?: [a-z ]+: .*/\1/' "$folder/said" >>"$folder/places"
    if grep -q ': saving ' "$folder/said" || grep -q '^error: saving ' "$folder/said"; then
        grep -q 'checkpoint-[246] is whole: go on with --resume_from_checkpoint auto$' "$folder/said" ||
            wrong "the whole checkpoint is not named: $(cat "$folder/said")"
    fi
}

# With room again: to the same end.
goes_on() {
    train "$1" "${run[@]}"
    same_bytes "$1/adapter_model.safetensors" straight/adapter_model.safetensors
    grep -q 'passed over' "$folder/$1.err" && wrong "a checkpoint was not whole: $(cat "$folder/$1.err")"
}

# No file longer than a limit (RLIMIT_FSIZE), in KiB.
for limit in 4 16 30 40 60; do
    rm -rf "$folder/limit"
    cp -r "$folder/half" "$folder/limit"
    (ulimit -f $limit && exec "$LIGER_SFT" --model "$model" --device cpu --max_length 80 --logging_steps 1000 --threads 1 \
        --output_dir "$folder/limit" "${run[@]}") >"$folder/out" 2>"$folder/err" </dev/null
    code=$?
    full limit 'write failed: File too large'
    goes_on limit
done

# A small disk, smaller and smaller, so that every file of a checkpoint is once the one that does not fit.
small() {
    local pages
    for ((pages = $1; pages <= $2; pages += $3)); do
        rm -rf "$folder/small"
        mkdir "$folder/small"
        mount -t tmpfs -o size=$((pages * 4096)) none "$folder/small" || exit 9
        cp -r "$folder"/half/* "$folder/small" || exit 9
        "$LIGER_SFT" --model "$model" --device cpu --max_length 80 --logging_steps 1000 --threads 1 \
            --output_dir "$folder/small" "${run[@]}" >"$folder/out" 2>"$folder/err" </dev/null
        code=$?
        full small '[a-z ]*: No space left on device'
        mount -o remount,size=64m "$folder/small"
        goes_on small
        umount "$folder/small"
    done
    echo $count >"$folder/count"
    exit $failed
}
if unshare -rm true 2>/dev/null; then
    export -f small full goes_on train same_bytes wrong
    used=$(($(du -sk --apparent-size "$folder/half" | cut -f 1) / 4 + 6))
    # A folder of mounts of its own, which go with it.
    (
        set +e
        declare -p run >"$folder/run.sh"
        unshare -rm env folder="$folder" model="$model" sums="$sums" LIGER_SFT="$LIGER_SFT" failed=0 count=0 bash -c \
            '. "$folder/run.sh"; small '"$used $((used + 32)) 2"
    )
    code=$?
    [ $code = 0 ] || wrong "the small disk: exit code $code"
    count=$((count + $(cat "$folder/count")))
    echo "did not fit: $(sort -u "$folder/places" | tr '\n' ' ')"
    for file in adapter_model.safetensors optimizer.safetensors; do
        grep -qx "$file" "$folder/places" || wrong "$file was never the one that did not fit"
    done
else
    echo "skipped: a small disk: mounts are not allowed here"
fi
finish

# test_faults.sh - what can happen to a run while it runs: a second run in its folder, a folder that cannot be written or
# goes away, weights that are cut short under it, a full disk, SIGKILL. Each has its line and exit code, and leaves what
# was there before as it was.
. "${TEST_DIR:?the test folder}/cli/train_lib.sh"
data=$model/chat.json
run=(--dataset "$data" --max_length 80 --device cpu --threads 1 --logging_steps 1000)

# start NAME FLAGS...: a long run into $folder/NAME in the background, once its first step is done; its id in $pid.
start() {
    local name=$1
    shift
    "$LIGER_SFT" --model "$model" "${run[@]}" --max_steps 1000000 --output_dir "$folder/$name" "$@" \
        >"$folder/$name.out" 2>"$folder/$name.err" </dev/null &
    pid=$!
    for _ in $(seq 600); do
        [ -s "$folder/$name/metrics.jsonl" ] && return
        kill -0 $pid 2>/dev/null || break
        sleep 0.05
    done
    wrong "$name does not start"
    cat "$folder/$name.err"
}
# ends NAME CODE PATTERN: the run of start ends so, with one error line.
ends() {
    count=$((count + 1))
    timeout 60 tail --pid=$pid -f /dev/null || kill -9 $pid
    wait $pid
    local code=$?
    [ $code = "$2" ] && [ "$(grep -c '^error: ' "$folder/$1.err")" = 1 ] && grep '^error: ' "$folder/$1.err" | grep -qF -- "$3" ||
        { wrong "$1: exit code $code, expected $2 and \"$3\""; cat "$folder/$1.err"; }
}
# whole_lines NAME: metrics.jsonl of that run, steps 1, 2, 3, ... in whole lines.
whole_lines() {
    count=$((count + 1))
    awk -v name="$1" 'index($0, "{\"step\": " NR ",") != 1 || !/}$/ { bad = 1; print name ": line " NR ": " $0 }
        END { exit bad || NR == 0 }' "$folder/$1/metrics.jsonl" && [ "$(tail -c 1 "$folder/$1/metrics.jsonl" | od -An -tx1)" = ' 0a' ] ||
        wrong "$1: metrics.jsonl has torn lines"
}

# A second run in the folder is refused by the first one's pid, before it looks at anything else; the first goes on.
start first
for way in "$model" /gone; do
    count=$((count + 1))
    "$LIGER_SFT" --model "$way" "${run[@]}" --overwrite_output_dir --output_dir "$folder/first" >"$folder/out" 2>"$folder/err" </dev/null
    code=$?
    [ $code = 1 ] && grep -qF "error: output_dir: $folder/first: another run writes here (pid $pid on " "$folder/err" ||
        { wrong "a second run: exit code $code"; cat "$folder/err"; }
done
count=$((count + 1))
"$LIGER_SFT" merge --model "$model" --adapter "$model/adapter" --output_dir "$folder/first" --overwrite_output_dir >"$folder/out" 2>"$folder/err"
code=$?
[ $code = 1 ] && grep -qF "another run writes here (pid $pid on " "$folder/err" || { wrong "a merge into the folder: exit code $code"; cat "$folder/err"; }
kill -0 $pid || wrong "the first run is gone"
kill -9 $pid
wait $pid 2>/dev/null
whole_lines first
# The lock of the dead run does not block; a run that ends takes its lock along.
[ -e "$folder/first/run.lock" ] || wrong "no lock of the killed run: nothing tested"
train first --dataset "$data" --max_steps 1 --overwrite_output_dir
[ -e "$folder/first/run.lock" ] && wrong "a finished run leaves its lock"
[ -s "$folder/first/adapter_model.safetensors" ] || wrong "no adapter behind a dead run's lock"

# A folder that cannot be written is told before the model is looked at (which is not there either).
read_only() {
    count=$((count + 1))
    sed 's/^/  /' "$folder/err"
    [ "$1" = 3 ] && grep -qE "^error: output_dir: $folder/sealed[^ ]*: .*(Read-only file system|Permission denied)" "$folder/err" ||
        wrong "a read-only folder: exit code $1"
}
mkdir "$folder/sealed"
for out in sealed sealed/new/er; do
    # shellcheck disable=SC2016
    if unshare -rm true 2>/dev/null; then
        unshare -rm sh -c 'mount -t tmpfs -o ro none "$1" && shift && "$@"' sh "$folder/sealed" \
            "$LIGER_SFT" --model /gone "${run[@]}" --output_dir "$folder/$out" >/dev/null 2>"$folder/err"
        read_only $?
    elif [ "$(id -u)" != 0 ]; then
        chmod a-w "$folder/sealed"
        "$LIGER_SFT" --model /gone "${run[@]}" --output_dir "$folder/$out" >/dev/null 2>"$folder/err"
        read_only $?
        chmod u+w "$folder/sealed"
    else
        echo "skipped: a read-only $out: root writes everywhere, and mounts are not allowed here"
    fi
done

# Weights that get shorter, or go, while they are mapped. A file that is only removed stays readable.
for way in cut removed; do
    cp -r "$model" "$folder/$way.model"
    chmod -R u+w "$folder/$way.model"
    model=$folder/$way.model start $way
    if [ $way = cut ]; then
        truncate -s 4096 "$folder/$way.model/model.safetensors"
        ends $way 3 "$folder/$way.model/model.safetensors: cannot be read any more while it is in use"
    else
        rm -r "$folder/$way.model"
        steps=$(wc -l <"$folder/$way/metrics.jsonl")
        for _ in $(seq 200); do
            [ "$(wc -l <"$folder/$way/metrics.jsonl")" -gt $((steps + 3)) ] && break
            sleep 0.05
        done
        [ "$(wc -l <"$folder/$way/metrics.jsonl")" -gt $((steps + 3)) ] || wrong "a removed model file stops a run"
        count=$((count + 1))
        kill -9 $pid
        wait $pid 2>/dev/null
    fi
    whole_lines $way
done
# What is cut before it is opened is told then (R02).
cp -r "$model" "$folder/short.model"
chmod -R u+w "$folder/short.model"
truncate -s -1 "$folder/short.model/model.safetensors"
"$LIGER_SFT" --model "$folder/short.model" "${run[@]}" --output_dir "$folder/short" >/dev/null 2>"$folder/err"
code=$?
count=$((count + 1))
[ $code = 1 ] && grep -q "^error: $folder/short.model/model.safetensors: tensor " "$folder/err" && [ ! -e "$folder/short" ] ||
    { wrong "a shard short by a byte: exit code $code"; cat "$folder/err"; }

# A loss that is not finite: no update, the step and its rows are named, and the run stops at max_skipped_steps.
cp -r "$model" "$folder/nan.model"
chmod -R u+w "$folder/nan.model"
file=$folder/nan.model/model.safetensors
header=$(od -An -t u8 -N 8 "$file" | tr -d ' ')
norm=$(tail -c +9 "$file" | head -c "$header" | sed -nE 's/.*"model\.norm\.weight":\{[^}]*"data_offsets":\[([0-9]+),.*/\1/p')
printf '\377\377\377\377' | dd of="$file" bs=1 seek=$((8 + header + norm)) conv=notrunc 2>/dev/null # NaN in any type
# skips NAME PATTERN FLAGS...: exit code 1 and that error.
skips() {
    local name=$1 pattern=$2
    shift 2
    count=$((count + 1))
    "$LIGER_SFT" --model "$folder/nan.model" "${run[@]}" --dataset_shuffle false --packing false --gradient_accumulation_steps 1 \
        --per_device_train_batch_size 2 --output_dir "$folder/$name" "$@" >"$folder/out" 2>"$folder/err" </dev/null
    code=$?
    [ $code = 1 ] && grep -qF "error: $pattern" "$folder/err" || { wrong "$name: exit code $code"; cat "$folder/err"; }
    grep -qF "warning: step 2: loss nan, gradient norm nan: no update (2 skipped so far); not finite by itself: $data row 3-4" \
        "$folder/err" || wrong "$name: step 2 is not named with its rows"
    grep -qxF "{\"step\": 2, \"skipped_rows\": {\"$data\": [3, 4]}, \"bad_rows\": {\"$data\": [3, 4]}}" "$folder/$name/metrics.jsonl" ||
        wrong "$name: no line about the rows of step 2"
    [ -e "$folder/$name/adapter_model.safetensors" ] && wrong "$name: a result of nothing"
}
skips nan "step 2: 2 steps had a loss or gradient that is not finite (max_skipped_steps), the last not finite by itself: $data row 3-4" \
    --max_skipped_steps 2
skips nan-on 'every step had a loss or gradient that is not finite' --max_skipped_steps 0 --max_steps 3
[ "$(column nan-on loss | wc -l)" = 3 ] || wrong "--max_skipped_steps 0 stops a run"

# Weights that run away: what was learnt is saved, the line says where to look, and a resumed run goes on from there.
away=(--model "$model" "${run[@]}" --learning_rate 10 --weight_decay 10 --lr_scheduler_type constant --max_steps 20 --output_dir "$folder/away")
count=$((count + 1))
"$LIGER_SFT" "${away[@]}" --max_skipped_steps 3 >"$folder/out" 2>"$folder/err" </dev/null
code=$?
step=$(sed -nE 's/^error: step ([0-9]+): 3 steps had a loss .*\(max_skipped_steps\), the last no row that was tried is finite by itself, .*checkpoint-\1$/\1/p' "$folder/err")
[ $code = 1 ] && [ -n "$step" ] && [ -s "$folder/away/checkpoint-$step/adapter_model.safetensors" ] ||
    { wrong "weights that run away: exit code $code"; cat "$folder/err"; }
"$LIGER_SFT" "${away[@]}" --max_skipped_steps 100 --resume_from_checkpoint auto >"$folder/out" 2>"$folder/err" </dev/null ||
    { wrong "going on behind max_skipped_steps: exit code $?"; cat "$folder/err"; }
[ "$(column away loss | wc -l)" = 20 ] || wrong "$(column away loss | wc -l) steps of a run that stopped and went on, expected 20"

# The output folder goes away: the result cannot be written, and the line says where.
"$LIGER_SFT" --model "$model" "${run[@]}" --max_steps 200 --output_dir "$folder/gone" >/dev/null 2>"$folder/gone.err" </dev/null &
pid=$!
for _ in $(seq 600); do
    [ -s "$folder/gone/metrics.jsonl" ] && break
    sleep 0.01
done
mv "$folder/gone" "$folder/elsewhere"
ends gone 3 "$folder/gone/adapter_model.safetensors"
mv "$folder/elsewhere" "$folder/gone"
whole_lines gone

# A disk that is full in the middle of metrics.jsonl: whole lines stay.
(ulimit -f 2 && exec "$LIGER_SFT" --model "$model" "${run[@]}" --max_steps 100 --output_dir "$folder/full") \
    >/dev/null 2>"$folder/full.err" </dev/null &
pid=$!
ends full 3 "$folder/full/metrics.jsonl: write failed: File too large"
whole_lines full
[ "$(ls "$folder/full")" = metrics.jsonl ] || wrong "a full disk leaves $(ls "$folder/full")"

# Killed at any time: whole lines.
for pause in 0.01 0.03 0.05 0.1 0.2; do
    rm -rf "$folder/killed"
    start killed
    sleep $pause
    kill -9 $pid
    wait $pid 2>/dev/null
    whole_lines killed
done
finish

# test_memory.sh - runs with less host memory than they want (ulimit -v): each ends with exit code 3 and one line that says
# at what, how much and what to do, none hangs; and what the line advises works.
. "${TEST_DIR:?the test folder}/cli/train_lib.sh"
export OMP_NUM_THREADS=1 # OpenBLAS reserves address space for each processor
if ! (ulimit -v 4000000 && "$LIGER_SFT" --version) >/dev/null 2>&1; then
    echo "skipped: this build does not start under ulimit -v (a sanitizer's shadow memory)"
    exit 77
fi
# What the program and its libraries need to be loaded at all, in KiB (with CUDA's that is much): below it the system's
# loader fails by itself, with 127. Limits are beyond it.
low=0 high=4000000
while [ $((high - low)) -gt 2000 ]; do
    middle=$(((low + high) / 2))
    (ulimit -v $middle && exec timeout 60 "$LIGER_SFT" --version) >/dev/null 2>&1
    if [ $? = 127 ]; then low=$middle; else high=$middle; fi
done
base=$high
awk 'BEGIN { for (i = 0; i < 20000; i++) printf "{\"instruction\":\"say %d\",\"output\":\"abc def ghi\"}\n", i }' >"$folder/rows.jsonl"

# limited KIB NAME FLAGS...: a run of one step under that limit in all; leaves $code and $line.
limited() {
    local limit=$1 name=$2
    shift 2
    (ulimit -v "$limit" && exec timeout 60 "$LIGER_SFT" --model "$model" --device cpu --threads 1 --max_length 80 --max_steps 1 \
        --output_dir "$folder/$name" "$@") >"$folder/out" 2>"$folder/err" </dev/null
    code=$?
    line=$(grep '^error: ' "$folder/err")
}

# From far too little to enough.
sound=0 refused=0
for limit in $(seq $((base + 10000)) 20000 $((base + 570000))); do
    count=$((count + 1))
    rm -rf "$folder/small"
    limited "$limit" small --dataset "$folder/rows.jsonl"
    if [ $code = 0 ]; then
        sound=$((sound + 1))
        [ -s "$folder/small/adapter_model.safetensors" ] || wrong "$limit KiB: no result"
        continue
    fi
    refused=$((refused + 1))
    [ $code = 3 ] && [ "$(wc -l <<<"$line")" = 1 ] || { wrong "$limit KiB: exit code $code"; cat "$folder/err"; }
    grep -qE '^error: (out of host memory while [a-z ]+: [0-9.]+ MiB more are needed, [0-9.]+ MiB are free under ulimit -v; |host memory: OpenBLAS reserves |threads: |dataset: .*: cannot map [0-9]+ bytes: Cannot allocate memory$)' <<<"$line" ||
        { wrong "$limit KiB: not a line about memory"; cat "$folder/err"; }
    [ -z "$(ls "$folder/small" 2>/dev/null | grep -v '^run.lock$')" ] || wrong "$limit KiB: leaves $(ls "$folder/small")"
done
[ $sound -gt 0 ] && [ $refused -gt 0 ] || wrong "$sound runs done, $refused refused: nothing tested"

# More threads than there is room for: told by us, not by OpenMP, which would end the program with exit code 1.
count=$((count + 1))
(ulimit -v $((base + 270000)) && exec "$LIGER_SFT" --model "$model" --dataset "$model/chat.json" --threads 64 --output_dir "$folder/threads") \
    >"$folder/out" 2>"$folder/err" </dev/null
code=$?
[ $code = 3 ] && grep -qE '^error: threads: 64 are wanted, [0-9]+ can run \(' "$folder/err" || { wrong "64 threads: exit code $code"; cat "$folder/err"; }

# R01: headers that lie about their length are refused for what they are, not for the memory that they ask for.
cp -r "$model" "$folder/lie"
chmod -R u+w "$folder/lie"
fixture=$model model=$folder/lie
# lie LENGTH SIZE PATTERN: a header said to have LENGTH (8 bytes as printf writes them) in a file of SIZE bytes.
lie() {
    count=$((count + 1))
    printf '%b{' "$1" >"$model/model.safetensors"
    truncate -s "$2" "$model/model.safetensors"
    limited $((base + 470000)) lied --dataset "$model/chat.json"
    [ $code = 1 ] && grep -q "model.safetensors:.*$3" <<<"$line" || { wrong "R01: $3: exit code $code"; cat "$folder/err"; }
}
lie '\377\377\377\377\377\377\377\377' 100 'said to have 18446744073709551615 bytes'
lie '\000\000\000\000\000\000\000\200' 9 'said to have 9223372036854775808 bytes'
lie '\001\341\365\005\000\000\000\000' 200000000 'at most 100000000 are allowed'
lie '\000\341\365\005\000\000\000\000' 100000008 NUL
model=$fixture

# A plan that does not fit is refused with the parts of it and with settings that do, which then do.
for flags in '' '--gradient_checkpointing none' '--gradient_checkpointing cheap'; do
    count=$((count + 1))
    # shellcheck disable=SC2086
    limited $((base + 1370000)) big --dataset "$model/chat.json" --per_device_train_batch_size 30000 $flags
    way=${flags#--gradient_checkpointing }
    pattern="^error: this run needs [0-9.]+ GiB on the cpu with recompute ${way:-full} \(weights .* activations [0-9.]+,.* GiB\), [0-9.]+ GiB are free: per_device_train_batch_size ([0-9]+) with max_length 80( and gradient_checkpointing full)? would need [0-9.]+ GiB$"
    [ $code = 3 ] && [[ $line =~ $pattern ]] || { wrong "a batch too large $flags: exit code $code"; cat "$folder/err"; continue; }
    [ -e "$folder/big" ] && wrong "a plan that does not fit leaves a folder"
    batch=${BASH_REMATCH[1]} big=$line
    limited $((base + 1370000)) fits --dataset "$model/chat.json" --per_device_train_batch_size "$batch" --gradient_checkpointing full --overwrite_output_dir
    [ $code = 0 ] || { wrong "the advised batch of $batch: exit code $code"; cat "$folder/err"; }
done
# A batch that fits with recompute and not without: that is what the line advises.
room=$(sed -E 's/.*\), ([0-9.]+) GiB are free.*/\1/' <<<"$big") need=$(sed -E 's/.* would need ([0-9.]+) GiB$/\1/' <<<"$big")
batch=$(awk -v b="$batch" -v room="$room" -v need="$need" 'BEGIN { print int(0.95 * b * room / need) }')
count=$((count + 1))
limited $((base + 1370000)) level --dataset "$model/chat.json" --per_device_train_batch_size "$batch" --gradient_checkpointing none
[ $code = 3 ] && grep -qE ': gradient_checkpointing (cheap|full) would need [0-9.]+ GiB$' <<<"$line" ||
    { wrong "what fits instead of no recompute: exit code $code"; cat "$folder/err"; }
level=$(sed -E 's/.*: gradient_checkpointing ([a-z]+) would.*/\1/' <<<"$line")
limited $((base + 1370000)) level --dataset "$model/chat.json" --per_device_train_batch_size "$batch" --gradient_checkpointing "$level"
[ $code = 0 ] || { wrong "the advised gradient_checkpointing $level: exit code $code"; cat "$folder/err"; }
finish

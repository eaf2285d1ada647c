# test_eval.sh - `liger-sft eval` on the tiny chat model: transformers' and PEFT's loss, whatever the packing; exact
# matches; the form of the last line.
set -u
: "${LIGER_SFT:?the built program}" "${TEST_DIR:?}"
export LC_ALL=C
model=$TEST_DIR/fixtures/models/tiny-chat
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
failed=0 count=0
wrong() {
    echo "FAILED: $*"
    cat "$folder/out" "$folder/err"
    failed=1
}
evaluate() {
    count=$((count + 1))
    "$LIGER_SFT" eval --model "$model" --device cpu --max_length 128 "$@" >"$folder/out" 2>"$folder/err" ||
        wrong "eval $*: exit code $?"
    line=$(tail -n 1 "$folder/out")
}
value() { printf '%s\n' "$line" | tr ' ' '\n' | sed -n "s/^$1=//p"; }
near() { # key, right value, tolerance
    awk -v x="$(value "$1")" -v y="$2" -v t="$3" 'BEGIN { exit !(x != "" && x - y < t && y - x < t) }' ||
        wrong "$1=$(value "$1"), expected $2"
}

read -r base adapted <"$model/chat_loss.txt"
labels=$(sed 's/.*"labels"//' "$model/chat_ids.jsonl" | tr ',' '\n' | grep -cE '(^|\[) *[0-9]')
for flags in "" "--packing false" "--per_device_eval_batch_size 3" "--use_liger_kernel false"; do
    # shellcheck disable=SC2086
    evaluate --val_dataset "$model/chat.json" $flags
    near loss "$base" 2e-5
    [ "$(value rows) $(value label_tokens)" = "12 $labels" ] || wrong "expected rows=12 label_tokens=$labels"
    # shellcheck disable=SC2086
    evaluate --val_dataset "$model/chat.json" --adapter "$model/adapter" $flags
    near loss "$adapted" 2e-5
done
near perplexity "$(awk -v x="$adapted" 'BEGIN { print exp(x) }')" 0.05
printf '%s\n' "$line" | grep -qE \
    '^done rows=[0-9]+ tokens=[0-9]+ label_tokens=[0-9]+ loss=[0-9.]+ perplexity=[0-9.e+]+ seconds=[0-9.]+$' ||
    wrong "form of the last line: $line"
evaluate --dataset "$model/chat.json" # without val_dataset: dataset
near loss "$base" 2e-5

# A random model gets nothing right; test_demo.sh has a model that does.
evaluate --val_dataset "$model/chat.json" --exact_match
[ "$(value exact)" = 0 ] || wrong "exact=$(value exact), expected 0"
printf '%s\n' "$line" | grep -qE ' perplexity=[0-9.e+]+ exact=[0-9]+ exact_match=[0-9.]+ seconds=[0-9.]+$' ||
    wrong "form of the last line with exact_match: $line"

"$LIGER_SFT" eval --model "$model" --device cpu >"$folder/out" 2>"$folder/err"
[ $? -eq 2 ] || wrong "eval without data: exit code not 2"
[ -s "$folder/err" ] || wrong "eval without data: nothing on standard error"
count=$((count + 1))
echo "$count runs of eval"
exit $failed

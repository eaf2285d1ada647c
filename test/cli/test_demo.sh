# test_demo.sh - the demo as a newcomer runs it: the demo's own checks (exact match below 30 % before, above 90 % after),
# the last line of the training run, and a second training run that gives the same adapter byte for byte.
set -u
: "${LIGER_SFT:?the built program}" "${TEST_DIR:?}"
export LC_ALL=C
root=$(cd "$TEST_DIR/.." && pwd)
case $LIGER_SFT in */asan/*)
    echo "skip: the demo runs in the release build alone (minutes under sanitizers)"
    exit 77
    ;;
esac
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
failed=0
wrong() {
    echo "FAILED: $*"
    failed=1
}

"$root/scripts/demo.sh" --output_dir "$folder/one" >"$folder/out" 2>"$folder/err" || wrong "demo.sh: exit code $?"
cat "$folder/out" "$folder/err"
number='[0-9]+(\.[0-9]+)?'
grep -qE "^done steps=[0-9]+ loss=$number tokens_per_second=$number gpu_util=(na|$number) peak_memory_gib=$number \
seconds=$number output_dir=$folder/one\$" "$folder/out" || wrong "no last line in the contract's form"

# The loss falls: the mean of the last five steps is below a tenth of the first step's.
losses=$(sed -n 's/.*"loss": *\([0-9.e+-]*\).*/\1/p' "$folder/one/metrics.jsonl")
echo "$losses" | awk 'NR == 1 { first = $1 } { last[NR % 5] = $1 } END {
    for (i in last) sum += last[i]; exit !(NR > 20 && sum / 5 < first / 10) }' || wrong "the loss does not fall: $losses"

# No name of the held-out rows stands in the training rows.
grep '"output"' "$root/data/demo_test.json" | grep -oE '[A-Z][a-z]+' | sort -u >"$folder/held"
[ "$(wc -l <"$folder/held")" -ge 20 ] || wrong "too few held-out names"
grep -oE '[A-Z][a-z]+' "$root/data/demo_train.json" | sort -u >"$folder/seen"
shared=$(comm -12 "$folder/held" "$folder/seen")
[ -z "$shared" ] || wrong "names in both files: $shared"

cd "$root" || exit 1
"$LIGER_SFT" --config configs/demo.json --output_dir "$folder/two" >"$folder/out" 2>"$folder/err" ||
    wrong "second run: exit code $?"
for file in adapter_model.safetensors adapter_config.json; do
    cmp "$folder/one/$file" "$folder/two/$file" || wrong "$file differs between two runs with one seed"
done
exit $failed

# test_data.sh - liger-sft data: the report, dumps of JSON and JSONL, strict, and what stops a run.
set -u
: "${LIGER_SFT:?the built program}" "${TEST_DIR:?}"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
failed=0
model=$TEST_DIR/fixtures/models/tiny-chat

fail() {
    echo "FAILED: $*"
    failed=1
}
data() { "$LIGER_SFT" data --model "$model" --max_length "${length:-64}" "$@" >"$folder/out" 2>"$folder/err"; }
has() { grep -qF -- "$2" "$folder/$1" || { fail "no \"$2\" on std$1"; cat "$folder/out" "$folder/err"; }; }

rows='{"instruction":"Name a colour.","output":"red"}
{"instruction":"Name a colour.","input":null,"output":"red"}
{"instruction":"Name a colour.","input":"","output":"red"}
{"instruction":"Say yes."}
{"instruction":"Say yes.","output":null}
{"instruction":"Say yes.","output":""}
{"instruction":"Count.","output":7}
{"instruction":"Count.","output":["a"]}'
printf '%s\n' "$rows" >"$folder/a.jsonl"
printf '\xEF\xBB\xBF%s\r\n' "$rows" | sed 's/$/\r/' >"$folder/crlf.jsonl"
printf '[%s]\n' "$(printf '%s\n' "$rows" | paste -sd, -)" >"$folder/a.json"

# The report.
data --dataset "$folder/a.json" || fail "exit code $?"
has out "chat format chatml"
has out "8 rows read, 4 kept, 4 left out"
has out "2  the output is missing ($folder/a.json: row 4, 5)"
has out "1  the output is empty ($folder/a.json: row 6)"
has out "1  a list or object where text is expected ($folder/a.json: row 8)"
has out "1  a number, true or false taken as its JSON text ($folder/a.json: row 7)"
has out "[[red<|im_end|>]]"
has out "% filled"
[ -s "$folder/err" ] && fail "text on standard error"
tail -1 "$folder/out" >"$folder/last"
for form in a crlf; do
    data --dataset "$folder/$form.jsonl" || fail "$form.jsonl: exit code $?"
    tail -1 "$folder/out" | cmp -s - "$folder/last" || fail "$form.jsonl: another summary"
done

# Dumps: both forms alike, rows 1-3 alike, labels and positions.
plain="--packing false --dump 0"
data --dataset "$folder/a.json" $plain || fail "exit code $?"
has err "8 rows read"
cp "$folder/out" "$folder/dump"
[ "$(wc -l <"$folder/dump")" -eq 4 ] || fail "$(wc -l <"$folder/dump") rows, expected 4"
[ "$(head -3 "$folder/dump" | sed 's/"row":[0-9]*//; s/"source_rows":\[[0-9]*\]//' | uniq | wc -l)" -eq 1 ] || fail "rows 1-3 differ"
for form in a crlf; do
    data --dataset "$folder/$form.jsonl" $plain || fail "exit code $?"
    cmp -s "$folder/out" "$folder/dump" || fail "$form.jsonl: another dump"
done
cp "$folder/dump" "$folder/out"
has out '"text":"<|im_start|>user\nName a colour.<|im_end|>\n<|im_start|>assistant\nred<|im_end|>\n"'
has out ',302,-100],"position_ids":[0,1,2,'
[ "$(cut -d, -f1 "$folder/dump" | tr -d '\n')" = '{"row":1{"row":2{"row":3{"row":7' ] || fail "other row numbers"
has out '"source_rows":[7]'
data --dataset "$folder/a.json" --dump 1 || fail "exit code $?"
[ "$(wc -l <"$folder/out")" -eq 1 ] || fail "--dump 1 prints $(wc -l <"$folder/out") rows"
# The same tokens as transformers' template gives, with the same labels.
length=256 data --dataset "$model/chat.json" $plain || fail "exit code $?"
sed 's/ //g; s/}$//; s/^{//' "$model/chat_ids.jsonl" >"$folder/expected"
sed 's/^{"row":[0-9]*,//; s/,"position_ids".*//' "$folder/out" | cmp -s - "$folder/expected" || fail "another dump than chat_ids.jsonl"
# A seed gives one order, another seed another.
data --dataset "$model/chat.json" --dump 0 --seed 1 && cp "$folder/out" "$folder/one"
data --dataset "$model/chat.json" --dump 0 --seed 1 --threads 1 && cmp -s "$folder/out" "$folder/one" || fail "seed 1 twice differs"
data --dataset "$model/chat.json" --dump 0 --seed 2 && cmp -s "$folder/out" "$folder/one" && fail "seeds 1 and 2 are alike"

# stop CODE PATTERN ARGUMENTS...
stop() {
    local code=$1 pattern=$2 got
    shift 2
    data "$@"
    got=$?
    [ $got -eq "$code" ] || fail "$*: exit code $got, expected $code"
    has err "$pattern"
    [ -s "$folder/out" ] && fail "$*: text on standard output"
}
stop 1 "a.json: row 4 (from byte " --dataset "$folder/a.json" --strict
length=8 stop 1 "no row of the data set leaves a label token; 8 rows were read" --dataset "$folder/a.json"
printf '[{"instruction":"q","output":"a"},]' >"$folder/comma.json"
stop 1 "row 2, byte 34: found \"]\" after a comma" --dataset "$folder/comma.json"
stop 1 "$folder/none.json: No such file" --dataset "$folder/none.json"
stop 1 "did you mean \"chatml\"" --dataset "$folder/a.json" --template chatlm
stop 1 "has no token \"<end_of_turn>\"" --dataset "$folder/a.json" --template gemma
stop 2 "dataset is needed: Training files" --packing
exit $failed

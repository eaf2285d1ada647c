# test_generate.sh - `liger-sft generate`: where the prompt comes from, what the seed decides, errors.
set -u
: "${LIGER_SFT:?the built program}" "${TEST_DIR:?}"
model=$TEST_DIR/fixtures/models/tiny-chat
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
failed=0 count=0
wrong() {
    echo "FAILED: $*"
    cat "$folder/err"
    failed=1
}
# generate NAME CODE FLAGS...: standard output into $folder/NAME
generate() {
    local name=$1 code=$2 got
    shift 2
    count=$((count + 1))
    "$LIGER_SFT" generate --model "$model" --device cpu --max_new_tokens 12 "$@" >"$folder/$name" 2>"$folder/err"
    got=$?
    [ $got -eq "$code" ] || wrong "generate $*: exit code $got, expected $code"
}
same() { cmp -s "$folder/$1" "$folder/$2" || wrong "$1 and $2 differ"; }
differ() { cmp -s "$folder/$1" "$folder/$2" && wrong "$1 and $2 are equal"; }
says() { grep -q -e "$1" "$folder/err" || wrong "no \"$1\" on standard error"; }

generate greedy 0 --prompt "Name a colour."
[ -s "$folder/greedy" ] || wrong "no answer"
says 'cut at 12 tokens'
printf 'Name a colour.\n' >"$folder/prompt"
generate stdin 0 <"$folder/prompt"
same greedy stdin
generate again 0 --prompt "Name a colour." --seed 9
same greedy again
generate adapter 0 --prompt "Name a colour." --adapter "$model/adapter"
differ greedy adapter
generate unfused 0 --prompt "Name a colour." --adapter "$model/adapter" --use_liger_kernel false
same adapter unfused
generate system 0 --prompt "Name a colour." --system "Answer in one word."
differ greedy system
generate sampled5 0 --prompt "Name a colour." --temperature 1 --seed 5
generate sampled5again 0 --prompt "Name a colour." --temperature 1 --seed 5
same sampled5 sampled5again
generate sampled6 0 --prompt "Name a colour." --temperature 1 --seed 6
differ sampled5 sampled6
generate onlyone 0 --prompt "Name a colour." --temperature 5 --top_k 1
same greedy onlyone
generate head 0 --prompt "Name a colour." --temperature 1 --top_p 1e-6
same greedy head

generate empty 2 </dev/null
says 'no prompt'
printf 'a\377b' >"$folder/prompt"
generate bytes 1 <"$folder/prompt"
says 'UTF-8'
head -c 4000 /dev/zero | tr '\0' 'a' >"$folder/prompt"
generate long 1 <"$folder/prompt"
says 'no room'
generate nowhere 1 --adapter "$folder/none" --prompt hi
says "$folder/none"
echo "$count runs of generate"
exit $failed

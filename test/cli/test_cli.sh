# test_cli.sh - help, version, unknown commands and keys, exit codes and which stream each thing goes to.
set -u
: "${LIGER_SFT:?the built program}"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
failed=0 count=0 locale=

# expect CODE STREAM PATTERN ARGUMENTS...: the exit code, and a pattern in that stream; the other stream must be empty
# when STREAM ends in "!".
expect() {
    local code=$1 stream=${2%!} alone=$2 pattern=$3 got other
    shift 3
    env $locale "$LIGER_SFT" "$@" >"$folder/out" 2>"$folder/err" </dev/null
    got=$?
    count=$((count + 1))
    [ "$stream" = out ] && other=err || other=out
    if [ $got -ne "$code" ]; then
        echo "FAILED: liger-sft $*: exit code $got, expected $code"
    elif ! grep -q -e "$pattern" "$folder/$stream"; then
        echo "FAILED: liger-sft $*: no \"$pattern\" on std$stream"
    elif [ "$alone" != "$stream" ] && [ -s "$folder/$other" ]; then
        echo "FAILED: liger-sft $*: text on std$other"
    else
        return
    fi
    cat "$folder/out" "$folder/err"
    failed=1
}

expect 2 err! '^usage: '
expect 0 out! '^  --learning_rate' --help
expect 0 out! '^  --learning_rate' -h
expect 0 out! '^Exit codes: ' --help
expect 0 out! '^liger-sft [0-9][0-9.]*$' --version
expect 2 err! 'unknown command "xyzzy"' xyzzy --help
expect 2 err! 'given as --config run.json' run.json
commands=$("$LIGER_SFT" --help | sed -n '/^Commands$/,/^$/s/^  \([a-z]*\) .*/\1/p')
for command in $commands; do
    expect 0 out! "^liger-sft $command - " $command --help
    expect 0 out! '^liger-sft [0-9]' $command --version
    expect 2 err! 'nearest known key is --seed' $command --seeed 1
    expect 2 err! 'expected a number' $command --learning_rate 1e-5x
    expect 1 err! 'No such file' $command --config "$folder/none.json"
    expect 2 err! "nearest is $command" "${command}q"
done
if [ -n "$commands" ]; then
    first=${commands%%[[:space:]]*}
    expect 2 err! 'found "-x", expected --key value' "$first" -x
    printf '{"lora_rnak": 8}' >"$folder/bad.json"
    expect 1 err! "bad.json: unknown key lora_rnak; the nearest known key is lora_rank" "$first" --config "$folder/bad.json"
    printf '{"seed": 1.5}' >"$folder/bad.json"
    expect 1 err! "bad.json: seed: found 1.5, expected an integer" "$first" --config "$folder/bad.json"
    # A comma locale in the environment must not turn 1e-5 or 0.1 into something else: the failure is the key after it.
    locale="LC_ALL=de_DE.UTF-8"
    expect 2 err! 'unknown key --last;' "$first" --learning_rate 1.5e-5 --weight_decay .1 --last 1
    locale=
fi
models=$(dirname "$0")/../fixtures/models
expect 0 out! '^fold: norm_qkv_rope of 1 layer left as it is: it reads the embedding' graph --model "$models/llama" --fuse_rules all,fold --device cpu
expect 0 out! '^fold: norm_qkv_rope of 2 layers left as it is: q and k have norms of their own' graph --model "$models/qwen3" --fuse_rules fold,all --device cpu
expect 1 err! 'linear_ce, fold, fold_qkv, fold_mlp, and -NAME takes one out; nearest: fold' graph --model "$models/llama" --fuse_rules all,fodl --device cpu
if [ -c /dev/full ]; then
    "$LIGER_SFT" --help >/dev/full 2>"$folder/err"
    [ $? -eq 3 ] && grep -q 'standard output' "$folder/err" || { echo "FAILED: a full disk behind standard output"; failed=1; }
fi
echo "$count calls"
exit $failed

#!/usr/bin/env bash
# test_merge.sh - `liger-sft merge` on the fixture models: files, last line, exit codes.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
models=$TEST_DIR/fixtures/models
fail() { echo "FAIL: $*"; exit 1; }

"$LIGER_SFT" merge --model "$models/qwen2" --adapter "$models/qwen2/adapter" --output_dir "$work/out" > "$work/said"
tail -n 1 "$work/said" | grep -q '^done tensors=26 merged=14 files=1 ' || fail "last line: $(cat "$work/said")"
cmp "$models/qwen2/config.json" "$work/out/config.json"
cmp -s "$models/qwen2/model.safetensors" "$work/out/model.safetensors" && fail "the weights did not change"
[ "$(stat -c %s "$work/out/model.safetensors")" -gt 68096 ] || fail "the weights are too short"

refuse() { # code, words, arguments ...
    code=$1 words=$2
    shift 2
    got=0
    "$LIGER_SFT" merge "$@" > "$work/said" 2>&1 || got=$?
    [ "$got" = "$code" ] || fail "$*: exit code $got, expected $code: $(cat "$work/said")"
    grep -q "$words" "$work/said" || fail "$*: does not say \"$words\": $(cat "$work/said")"
}
refuse 1 'not empty' --model "$models/qwen2" --adapter "$models/qwen2/adapter" --output_dir "$work/out"
"$LIGER_SFT" merge --model "$models/qwen2" --adapter "$models/qwen2/adapter" --output_dir "$work/out" \
    --overwrite_output_dir > /dev/null
refuse 2 'adapter is needed' --model "$models/qwen2" --output_dir "$work/new"
refuse 1 'not on this machine' --model "$work/nowhere" --adapter "$models/qwen2/adapter" --output_dir "$work/new"
refuse 1 'no such adapter folder' --model "$models/qwen2" --adapter "$work/nowhere" --output_dir "$work/new"
refuse 1 'do not fit\|is no lora' --model "$models/llama3-rope" --adapter "$models/qwen3/adapter" --output_dir "$work/new"
refuse 1 "output_dir: $work/said is a file" --model "$models/qwen2" --adapter "$models/qwen2/adapter" --output_dir "$work/said"
refuse 1 'output_dir: found ""' --model "$models/qwen2" --adapter "$models/qwen2/adapter" --output_dir ''
[ ! -e "$work/new" ] || fail "a refused merge left a folder"
echo ok

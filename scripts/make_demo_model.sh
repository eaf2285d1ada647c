#!/usr/bin/env bash
# make_demo_model.sh - makes data/demo-model again: text -> tokenizer -> random weights -> full tuning by liger-sft.
#
# Needs Python with Hugging Face's `tokenizers` (for the tokenizer alone: --keep-tokenizer uses the committed one and
# needs plain Python), and about half an hour on 2 cores.  `make demo` needs none of this: the result is in the
# repository.  The text is too large to be kept there; it comes out of make_demo_data.py with the same bytes each time.
set -eu
cd "$(dirname "$0")/.."
program=${LIGER_SFT:-build/release/liger-sft}
python=${PYTHON:-python3}
work=build/demo-model
mkdir -p "$work/random"

"$python" scripts/make_demo_data.py pretrain "$work/pretrain.jsonl"
"$python" scripts/make_demo_data.py tune data
if [ "${1:-}" = --keep-tokenizer ]; then
    cp data/demo-model/tokenizer.json data/demo-model/tokenizer_config.json "$work/random/"
else
    "$python" scripts/make_demo_tokenizer.py "$work/pretrain.jsonl" "$work/random"
fi
cp data/demo-model/config.json "$work/random/config.json"
"$python" scripts/init_model.py "$work/random"

"$program" --config configs/demo-pretrain.json
for file in model.safetensors tokenizer.json tokenizer_config.json; do
    from=$work/pretrained/$file
    [ -e "$from" ] || from=$work/random/$file
    cp "$from" data/demo-model/
done
du -sh data/demo-model

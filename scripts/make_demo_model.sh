#!/usr/bin/env bash
# make_demo_model.sh - makes data/demo-model again: text -> tokenizer -> random weights -> full tuning by liger-sft.
#
# Needs Python with Hugging Face's `tokenizers` and about a quarter of an hour.  --keep-tokenizer, as the first flag, takes
# the committed tokenizer and needs plain Python; other flags go to the training run.  `make demo` needs none of this: the
# result is in the repository.  The pretraining text is too large to be kept there; make_demo_data.py writes the same bytes
# each time.
set -eu
cd "$(dirname "$0")/.."
program=${LIGER_SFT:-build/release/liger-sft}
python=${PYTHON:-python3}
work=build/demo-model
mkdir -p "$work/random"

"$python" scripts/make_demo_data.py pretrain "$work/pretrain.jsonl"
"$python" scripts/make_demo_data.py tune data
if [ "${1:-}" = --keep-tokenizer ]; then
    shift
    cp data/demo-model/tokenizer.json data/demo-model/tokenizer_config.json "$work/random/"
else
    "$python" scripts/make_demo_tokenizer.py "$work/pretrain.jsonl" "$work/random"
fi
cp data/demo-model/config.json "$work/random/config.json"
"$python" scripts/init_model.py "$work/random"

"$program" --config configs/demo-pretrain.json "$@"
for file in model.safetensors tokenizer.json tokenizer_config.json; do
    cp "$work/pretrained/$file" data/demo-model/
done
du -sh data/demo-model

#!/usr/bin/env bash
# demo.sh - trains a LoRA on the small model in data/demo-model and shows what changed.  Needs the built program alone.
#
# Exits with 1 when fewer than 90 % of the held-out rows are right afterwards, or 30 % were right before.
# Flags go to the training run: scripts/demo.sh --seed 7 --output_dir /tmp/adapter
set -eu
export LC_ALL=C
cd "$(dirname "$0")/.."
program=${LIGER_SFT:-build/release/liger-sft}
config=configs/demo.json
adapter=build/demo/adapter
for flag in "$@"; do
    case ${previous:-} in --output_dir) adapter=$flag ;; esac
    case $flag in --output_dir=*) adapter=${flag#*=} ;; esac
    previous=$flag
done
mkdir -p build/demo
started=$(date +%s)

# The value of a key in a line of key=value pairs.
value() { printf '%s\n' "$2" | tr ' ' '\n' | sed -n "s/^$1=//p"; }
percent() { awk -v x="$1" 'BEGIN { printf "%.1f", 100 * x }'; }
# The n-th question and answer of the held-out rows.
member() { sed -n "s/^  \"$1\": \"\(.*\)\",\{0,1\}\$/\1/p" data/demo_test.json | sed -n "$2p" | sed 's/\\n/\n/g'; }
# A text of several lines behind a label.
show() { printf '%s\n' "$2" | sed "1s/^/$(printf '%-11s' "$1")/; 2,\$s/^/           /"; }
ask() { # n, flags...
    local n=$1
    shift
    "$program" generate --config $config --max_new_tokens 80 "$@" --prompt "$(member instruction "$n")
$(member input "$n")"
}

echo "== The model before tuning: $(cd data/demo-model && du -sk . | cut -f1) KB in data/demo-model"
before=$("$program" eval --config $config --exact_match | tail -n 1)
echo "$before"
for n in 1 2 3; do ask $n > "build/demo/before-$n.txt"; done

echo
echo "== Training a LoRA adapter on data/demo_train.json"
"$program" --config $config "$@"

echo
echo "== The model with the adapter"
after=$("$program" eval --config $config --exact_match --adapter "$adapter" | tail -n 1)
echo "$after"

echo
echo "== Held-out rows: names and towns that the training never saw"
for n in 1 2 3; do
    show question "$(member instruction $n)"
    show "" "$(member input $n)"
    show before "$(cat build/demo/before-$n.txt)"
    show after "$(ask $n --adapter "$adapter")"
    show expected "$(member output $n)"
    echo
done

b=$(value exact_match "$before")
a=$(value exact_match "$after")
echo "held-out loss         $(value loss "$before") before, $(value loss "$after") after"
echo "held-out exact match  $(percent "$b") % before, $(percent "$a") % after, of $(value rows "$after") rows"
echo "adapter               $(sha256sum < "$adapter/adapter_model.safetensors" | cut -c1-16) (sha256; a second run with this seed gives the same)"
echo "seconds               $(($(date +%s) - started))"
awk -v b="$b" -v a="$a" 'BEGIN { exit !(b < 0.3 && a > 0.9) }' || {
    echo "demo: expected below 30 % before and above 90 % after" >&2
    exit 1
}

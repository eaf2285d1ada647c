# test_bench.sh - bench --kernels: every fused op beside the ops it replaces and the bare product.
set -u
: "${LIGER_SFT:?the built program}"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
failed=0
wrong() { echo "FAILED: $*"; failed=1; }
models=$(dirname "$0")/../fixtures/models
kernels() { "$LIGER_SFT" bench --kernels --device cpu --threads 1 --max_length 256 "$@" >"$folder/out" 2>"$folder/err"; }

# Nine groups and a sum, each in four forms, with positive figures; a bare product is one op (the head's are two), the
# folded prologue too, and a form's rows add up.
kernels --model "$models/qwen2-window" --lora_rank 4 || wrong "$(cat "$folder/err")"
[ -s "$folder/err" ] && wrong "$(cat "$folder/err")"
awk '/product alone|unfused|fused|folded/ && NF > 6 && !/^ops/ {
        line = $0; n++
        name = substr(line, 1, 22); form = substr(line, 24, 14); split(substr(line, 39), x)
        sub(/ +$/, "", form)
        if (name !~ /^ *$/) group = name
        if (!(x[1] > 0 && x[2] > 0 && x[3] > 0 && x[6] > 0 && x[7] > 0)) { print "not positive: " line; bad = 1 }
        if (group ~ /^a layer/) { if (x[1] != launches[form] || (x[2] - bytes[form])^2 > 1) { print "no sum: " line; bad = 1 } }
        else if (group !~ /^head/) { launches[form] += x[1]; bytes[form] += x[2] }
        if (form == "product alone" && x[6] != 1 || form == "unfused" && x[7] != 1) { print "ratio: " line; bad = 1 }
        if (group ~ /^norm, gate/ && x[1] != (form == "unfused" ? 12 : form == "fused" ? 2 : 1)) { print "ops: " line; bad = 1 }
        if (group ~ /^head/ && x[1] != (form == "product alone" ? 2 : form == "unfused" ? 4 : 1)) { print "ops: " line; bad = 1 }
    }
    END { if (n != 40) print n " lines"; exit bad || n != 40 }' "$folder/out" || wrong "$(cat "$folder/out")"

# Where no norm dissolves that form is missing, and the reason is said. With a norm in them, weights of a model in full
# tuning never do.
kernels --model "$models/llama" --tuner_type full || wrong "$(cat "$folder/err")"
grep -q '^fold: gate_up_glu of 2 layers left as it is: a norm or a weight trains' "$folder/out" || wrong "$(cat "$folder/out")"
grep -q ' folded ' "$folder/out" && wrong "$(cat "$folder/out")"

"$LIGER_SFT" bench --kernels --model "$folder/none" >"$folder/out" 2>"$folder/err"
[ $? -eq 1 ] && [ ! -s "$folder/out" ] || wrong "a model that is not there: $(cat "$folder/out" "$folder/err")"
exit $failed

# test_cases.sh - cases of docs/cases.md through the whole program: what ends an answer in each chat format (D02, D10),
# a pad token that is the end of a turn (D01), which modules get adapters (A02), rsLoRA from training to the merged
# model (A01), config.json spellings (M04), weights at odd places (R04).
. "${TEST_DIR:?the test folder}/cli/train_lib.sh"

cat >"$folder/chat.jsonl" <<'END'
{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"one"},{"role":"user","content":"b"},{"role":"assistant","content":"two"}]}
END
# ends MODEL FORMAT: the last label of each run of labels, and the number of runs; after the shift a run is what the
# model learns in one answer.
ends() {
    "$LIGER_SFT" data --model "$1" --template "$2" --dataset "$folder/chat.jsonl" --max_length 256 --dump 0 2>"$folder/err" |
        sed 's/.*"labels":\[\([^]]*\)\].*/\1/' | tr ',' '\n' |
        awk '$1 >= 0 { last = $1; inside = 1 } $1 < 0 { if (inside) printf "%s ", last; inside = 0 }
             END { if (inside) printf "%s ", last }'
}
# answers MODEL FORMAT ID: two answers, each ending with that id.
answers() {
    count=$((count + 1))
    [ "$(ends "$1" "$2")" = "$3 $3 " ] || { wrong "D02: $2: answers end with $(ends "$1" "$2"), expected $3 $3"; tail -1 "$folder/err"; }
}
tiny=$TEST_DIR/fixtures/tokenizers/tiny
token() { tr -d '\n ' <"$tiny/tokenizer.json" | sed -nE "s/.*\"id\":([0-9]+),\"content\":\"$1\".*/\1/p"; }
for pair in llama3:'<\|eot_id\|>' llama3.1:'<\|eot_id\|>' chatml:'<\|im_end\|>' qwen2:'<\|im_end\|>' qwen3:'<\|im_end\|>' \
    gemma:'<end_of_turn>' mistral-v0.1:'<\/s>' mistral-v0.3:'<\/s>' alpaca:'<\/s>'; do
    id=$(token "${pair#*:}")
    [ -n "$id" ] || wrong "no ${pair#*:} in the tiny tokenizer"
    answers "$tiny" "${pair%%:*}" "$id"
done
# The real ones: Gemma's <end_of_turn>, Llama 3's <|eot_id|>, Qwen's <|im_end|>, Mistral's </s>.
for real in gemma3:gemma:106 llama3:llama3:128009 qwen3:qwen3:151645 mistral-v0.1:mistral-v0.1:2; do
    IFS=: read -r name format id <<<"$real"
    if ! [ -e "${SHARED_DIR:-}/tokenizers/$name.tar.xz" ] || ! mkdir "$folder/$name" ||
        ! tar -xJf "$SHARED_DIR/tokenizers/$name.tar.xz" -C "$folder/$name" 2>/dev/null; then
        echo "skipped: D02 with the tokenizer of $name, which is not here"
        continue
    fi
    answers "$(dirname "$(find "$folder/$name" -name tokenizer.json | head -1)")" $format $id
done

# D01: with <|im_end|> for a pad token too, the same labels and the same steps.
cp -r "$model" "$folder/padded"
chmod -R u+w "$folder/padded"
sed -i 's/"pad_token": "<|endoftext|>"/"pad_token": "<|im_end|>"/' "$folder/padded/tokenizer_config.json"
cmp -s "$model/tokenizer_config.json" "$folder/padded/tokenizer_config.json" && wrong "D01: the pad token is as before"
data=$model/chat.json fixture=$model
for name in first padded; do
    [ $name = padded ] && model=$folder/padded
    "$LIGER_SFT" data --model "$model" --dataset "$data" --max_length 80 --packing false --dump 0 >"$folder/$name.dump" 2>/dev/null ||
        wrong "D01: data: exit code $?"
    train "$name.run" --dataset "$data" --packing false --per_device_train_batch_size 4 --max_steps 2
    model=$fixture
done
same_bytes padded.dump first.dump
same_bytes padded.run/adapter_model.safetensors first.run/adapter_model.safetensors

# A02: how many modules get adapters, and which.
# modules NAME N PATTERN FLAGS...: N adapters, all of modules that match PATTERN.
modules() {
    local name=$1 n=$2 pattern=$3
    shift 3
    train "$name" --dataset "$data" --max_steps 1 "$@"
    count=$((count + 1))
    shapes "$folder/$name/adapter_model.safetensors" | grep lora_A >"$folder/$name.modules"
    [ "$(grep -c . "$folder/$name.modules")" = "$n" ] && [ "$(grep -cE "$pattern" "$folder/$name.modules")" = "$n" ] ||
        wrong "A02: $*: $(cat "$folder/$name.modules"), expected $n of $pattern"
}
modules all 14 'layers\.[01]\.(self_attn\.[qkvo]|mlp\.(gate|up|down))_proj\.' --target_modules all-linear
modules two 4 'self_attn\.[qv]_proj\.' --target_modules q_proj v_proj
modules regex 1 'layers\.1\.self_attn\.q_proj\.' --target_regex '.*layers\.1\..*q_proj'
modules layer 7 'layers\.1\.' --layers_to_transform 1

# A01: rank 4, alpha 16: a scale of 4, and 8 with rsLoRA. The model in training, the adapter on its base and the merged
# model have one loss; without the flag the adapter is another one.
for name in plain stable; do
    flag=$([ $name = stable ] && echo true || echo false)
    train $name --dataset "$data" --val_dataset "$data" --max_steps 3 --learning_rate 1e-2 --lora_rank 4 --lora_alpha 16 \
        --use_rslora $flag
    column $name eval_loss >"$folder/$name.want"
    grep -q "\"use_rslora\": $flag" "$folder/$name/adapter_config.json" || wrong "A01: use_rslora of $name is not $flag"
    "$LIGER_SFT" merge --model "$model" --adapter "$folder/$name" --output_dir "$folder/$name.merged" >"$folder/out" 2>&1 ||
        { wrong "A01: merge: exit code $?"; cat "$folder/out"; }
    "$LIGER_SFT" eval --model "$model" --adapter "$folder/$name" --dataset "$data" --max_length 80 >"$folder/$name.adapter" 2>/dev/null
    "$LIGER_SFT" eval --model "$folder/$name.merged" --dataset "$data" --max_length 80 >"$folder/$name.model" 2>/dev/null
    for way in adapter model; do
        sed -n 's/^done .* loss=\([^ ]*\) .*/\1/p' "$folder/$name.$way" >"$folder/$name.got"
        close 1e-6 "A01: $name: loss of the $way and in training" "$folder/$name.got" "$folder/$name.want"
    done
done
sed -i 's/"use_rslora": true/"use_rslora": false/' "$folder/stable/adapter_config.json"
"$LIGER_SFT" eval --model "$model" --adapter "$folder/stable" --dataset "$data" --max_length 80 2>/dev/null |
    sed -n 's/^done .* loss=\([^ ]*\) .*/\1/p' >"$folder/weaker"
(failed=0 && close 1e-3 weaker "$folder/weaker" "$folder/stable.want" >/dev/null && [ $failed = 0 ]) &&
    wrong "A01: the scale does not matter"

# M04: spellings of one config, the same steps to the last bit; an unknown type stops the run.
spell() { # spell NAME TEXT: the fixture with that in the place of its rope_theta
    cp -r "$fixture" "$folder/$1"
    chmod -R u+w "$folder/$1"
    sed -i "s/\"rope_theta\": 10000.0,/$2/" "$folder/$1/config.json"
    grep -q "$2" "$folder/$1/config.json" || wrong "M04: config.json of $1 is as before"
}
spell old '"rope_theta": 10000, "rope_scaling": {"type": "linear", "factor": 2},'
spell middle '"rope_theta": 1e4, "rope_scaling": {"rope_type": "linear", "factor": 2.0},'
spell new '"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0},'
spell foo '"rope_theta": 10000.0, "rope_scaling": {"rope_type": "foo"},'
for name in old middle new; do
    model=$folder/$name train "$name.run" --dataset "$data" --max_steps 1
done
same_bytes middle.run/adapter_model.safetensors old.run/adapter_model.safetensors
same_bytes new.run/adapter_model.safetensors old.run/adapter_model.safetensors
other_bytes first.run/adapter_model.safetensors old.run/adapter_model.safetensors
"$LIGER_SFT" --model "$folder/foo" --dataset "$data" --output_dir "$folder/foo.run" >/dev/null 2>"$folder/err"
code=$?
[ $code = 1 ] && grep -q '"foo" is not supported' "$folder/err" || wrong "M04: rope_type foo: exit code $code"

# R04: weights behind a header of 1, 2 and 3 bytes more stand at odd places: the same run to the last bit.
file=$fixture/model.safetensors
header=$(od -An -t u8 -N 8 "$file" | tr -d ' ')
for pad in 1 2 3; do
    cp -r "$fixture" "$folder/odd$pad"
    chmod -R u+w "$folder/odd$pad"
    {
        for byte in 0 1 2 3 4 5 6 7; do printf '%b' "\\$(printf %03o $(((header + pad) >> 8 * byte & 255)))"; done
        tail -c +9 "$file" | head -c "$header"
        printf '%*s' $pad ''
        tail -c +$((9 + header)) "$file"
    } >"$folder/odd$pad/model.safetensors"
    [ "$(stat -c %s "$folder/odd$pad/model.safetensors")" = $(($(stat -c %s "$file") + pad)) ] || wrong "R04: the file of $pad"
    model=$folder/odd$pad train "odd$pad.run" --dataset "$data" --packing false --per_device_train_batch_size 4 --max_steps 2
    same_bytes "odd$pad.run/adapter_model.safetensors" first.run/adapter_model.safetensors
done
finish

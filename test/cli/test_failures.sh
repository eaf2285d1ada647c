# test_failures.sh - what a user can get wrong in a run: the exit code, a first line that names the setting or file, and
# nothing left behind. Then odd settings that must work.
. "${TEST_DIR:?the test folder}/cli/train_lib.sh"
data=$model/chat.json

# [out=FOLDER] refuse CODE PATTERN ARGUMENTS...: the failure's first line on standard error; no output folder, nothing on
# standard output.
refuse() {
    local code=$1 pattern=$2 got
    shift 2
    count=$((count + 1))
    "$LIGER_SFT" "$@" --output_dir "${out-$folder/none/out}" >"$folder/out" 2>"$folder/err" </dev/null
    got=$?
    [ $got = "$code" ] || wrong "exit code $got, expected $code, of: $*"
    grep -m 1 '^error: ' "$folder/err" | grep -qF -- "$pattern" || { wrong "no \"$pattern\": $*"; cat "$folder/err"; }
    [ "$(grep -c '^error: ' "$folder/err")" = 1 ] || wrong "not one error: $*"
    [ -s "$folder/out" ] && wrong "text on standard output: $*"
    [ -e "$folder/none" ] && { wrong "a failed run left $(find "$folder/none"): $*"; rm -r "$folder/none"; }
}
run=(--model "$model" --dataset "$data" --max_length 80 --device cpu --threads 1)

refuse 2 'model is needed' --max_length 80
refuse 2 'dataset is needed' --model "$model"
refuse 1 "\"$folder/gone\" is not on this machine" --model "$folder/gone" --dataset "$data"
refuse 1 "$folder/gone.json: No such file" --model "$model" --dataset "$folder/gone.json"
refuse 1 "val_dataset: $folder/gone.json: No such file" "${run[@]}" --val_dataset "$folder/gone.json"
refuse 1 "$model: not a regular file" --model "$model" --dataset "$model"
printf '{"a\\u009b31mb\\u001b[2Jc": 1}' >"$folder/escapes.json" # would colour and clear a terminal
refuse 1 'unknown key a??31mb?[2Jc' --config "$folder/escapes.json"
: >"$folder/empty.json"
echo '[]' >"$folder/none.json"
refuse 1 'empty.json: the file is empty' --model "$model" --dataset "$folder/empty.json"
refuse 1 'no row of the data set leaves a label token; 0 rows' --model "$model" --dataset "$folder/none.json"
refuse 1 'no row of the data set leaves a label token; 12 rows' --model "$model" --dataset "$data" --max_length 2
refuse 2 '--max_length: found 1, expected' --model "$model" --dataset "$data" --max_length 1
refuse 1 'found "#0", expected # and a count' --model "$model" --dataset "$data#0"
refuse 1 '0.5 of 1 rows leaves none to train on' --model "$model" --dataset "$data#1" --split_dataset_ratio 0.5
refuse 2 '--per_device_train_batch_size: found 0' "${run[@]}" --per_device_train_batch_size 0
refuse 1 'per_device_train_batch_size 2048 times max_length 1048576 is 2147483648 tokens' --model "$model" \
    --dataset "$data" --max_length 1048576 --per_device_train_batch_size 2048
refuse 1 'num_train_epochs: 0 leaves no step' "${run[@]}" --num_train_epochs 0
refuse 1 'max_steps: 0 leaves no step' "${run[@]}" --max_steps 0
refuse 1 'target_modules: "proj" matches no linear' "${run[@]}" --target_modules proj
refuse 1 'target_modules: "lm_head" matches no linear' "${run[@]}" --target_modules q_proj,lm_head # tied
refuse 1 'target_modules: "embed_tokens" matches no linear' "${run[@]}" --target_modules embed_tokens
refuse 1 'target_regex: "(q" is no regular expression' "${run[@]}" --target_regex '(q'
refuse 1 'layers_to_transform: found "2", expected a layer from 0 to 1' "${run[@]}" --layers_to_transform 2
refuse 1 'use_dora: DoRA is not in this version' "${run[@]}" --use_dora
refuse 1 'fuse_rules: "nosuch" is no rule' "${run[@]}" --fuse_rules nosuch
refuse 1 'template: found "nosuch"' "${run[@]}" --template nosuch
refuse 1 "$folder/gone: no such adapter folder" "${run[@]}" --adapter "$folder/gone"
refuse 1 'adapter: tuner_type full trains the model itself' "${run[@]}" --tuner_type full --adapter "$model/adapter"
refuse 2 '--learning_rate: found "nan"' "${run[@]}" --learning_rate nan
refuse 2 'unknown key --label_smoothing_factor' "${run[@]}" --label_smoothing_factor 0.1 # L02: not taken and left undone
if "$LIGER_SFT" plan --device cuda --model "$model" 2>&1 | grep -q 'no CUDA'; then
    refuse 3 'this build has no CUDA' --model "$model" --dataset "$data" --max_length 80 --device cuda
fi
for command in plan graph data merge; do
    refuse 2 'model is needed' $command --adapter "$model/adapter"
done

refuse 1 'target_modules: "proj" matches no linear' plan --model "$model" --target_modules proj
refuse 1 '"proj" matches no linear' graph --model "$model" --target_modules proj
refuse 1 'no room for an answer' generate --model "$model" --prompt "$(printf '%0400d' 0)"

# A model folder with a file missing or empty.
for file in config.json model.safetensors tokenizer.json tokenizer_config.json; do
    for way in missing empty; do
        rm -rf "$folder/broken"
        cp -r "$model" "$folder/broken"
        chmod -R u+w "$folder/broken"
        rm "$folder/broken/$file"
        [ $way = empty ] && : >"$folder/broken/$file"
        refuse 1 "$folder/broken" --model "$folder/broken" --dataset "$data" --max_length 80
    done
done

# Places where nothing can be written; a result is not overwritten unless told to.
train first --dataset "$data" --max_steps 1
sum=$(cksum "$folder"/first/*)
out=$folder/first refuse 1 'already holds adapter_config.json; name another folder, or give --overwrite_output_dir' "${run[@]}"
out=$folder/first/summary.json refuse 1 'summary.json is a file, expected a folder' "${run[@]}"
out=$folder/first/summary.json/x refuse 1 'summary.json is a file, expected a folder' "${run[@]}"
out='' refuse 1 'output_dir: found "", expected a folder' "${run[@]}"
out=$model refuse 1 "is the model's own folder" "${run[@]}" --tuner_type full
out=$model refuse 1 'holds a model, to which loaders would apply this adapter' "${run[@]}" --overwrite_output_dir
[ "$sum" = "$(cksum "$folder"/first/*)" ] || wrong "a refused run changed an older result"
train first --dataset "$data" --max_steps 1 --overwrite_output_dir
# A disk that takes 4 KiB of a file: the error names the file, no piece of the adapter stays.
(ulimit -f 4 && "$LIGER_SFT" "${run[@]}" --max_steps 1 --output_dir "$folder/short") >/dev/null 2>"$folder/err"
code=$?
count=$((count + 1))
[ $code = 3 ] && grep -q '^error: .*adapter_model.safetensors.*File too large' "$folder/err" ||
    { wrong "a full disk: exit code $code"; cat "$folder/err"; }
[ "$(ls "$folder/short")" = metrics.jsonl ] || wrong "a full disk leaves $(ls "$folder/short")"

# Odd but sound settings.
train batch-3 --dataset "$data" --num_train_epochs 1 --per_device_train_batch_size 3
train batch-64 --dataset "$data" --num_train_epochs 1 --per_device_train_batch_size 64
train half-epoch --dataset "$data" --num_train_epochs 0.5
train one-row --dataset "$data#1" --num_train_epochs 2
train many-rows --dataset "$data#999" --num_train_epochs 1
train rank-100 --dataset "$data" --max_steps 1 --lora_rank 100
train long-warmup --dataset "$data" --max_steps 3 --warmup_steps 100
train many-batches --dataset "$data" --num_train_epochs 1 --gradient_accumulation_steps 1048576
train split --dataset "$data" --max_steps 2 --split_dataset_ratio 0.5 --eval_steps 1
# steps NAME N
steps() {
    count=$((count + 1))
    [ "$(column "$1" loss | wc -l)" = "$2" ] || wrong "$1: $(column "$1" loss | wc -l) steps, expected $2"
}
steps batch-3 1
steps batch-64 1
steps half-epoch 1
steps one-row 2
steps many-rows 1
steps many-batches 1
column batch-3 loss >"$folder/a"
for name in batch-64 many-rows many-batches rank-100; do # the same rows and a fresh adapter: the same first loss
    column $name loss >"$folder/b"
    close 1e-6 "first loss of $name and batch-3" "$folder/b" "$folder/a"
done
printf '{"instruction":"%0300d","output":"x"}\n' 0 >"$folder/long.jsonl"
"$LIGER_SFT" --model "$model" --dataset "$folder/long.jsonl" --max_length 400 --max_steps 1 --threads 1 \
    --output_dir "$folder/long" >/dev/null 2>"$folder/err" || wrong "rows longer than the model's positions: exit code $?"
grep -q '1 rows are longer than the 256 positions' "$folder/err" || wrong "no word about rows longer than the model's positions"
[ "$(column split eval_loss | wc -l)" = 2 ] || wrong "--eval_steps 1 and 2 steps: not 2 evaluations"
[ "$(column long-warmup learning_rate | tr '\n' ' ')" = "0 1e-06 2e-06 " ] || wrong "rates of a warm-up longer than the run"

# The number of threads changes no bit of a run this small.
for threads in 1 2 3; do
    "$LIGER_SFT" "${run[@]:0:8}" --max_steps 2 --threads $threads --output_dir "$folder/threads-$threads" >/dev/null 2>&1 ||
        wrong "--threads $threads"
done
same_bytes threads-1/adapter_model.safetensors threads-2/adapter_model.safetensors
same_bytes threads-1/adapter_model.safetensors threads-3/adapter_model.safetensors
finish

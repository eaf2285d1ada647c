# test_train.sh - runs of the whole program on a tiny model: against transformers + PEFT's numbers, loss invariance,
# repeatability, learning rates, short windows, recompute, dropout, fused and unfused.  Cases L01, O02, O04, A05, A06.
. "${TEST_DIR:?the test folder}/cli/train_lib.sh"

# transformers + PEFT (scripts/make_chat_fixture.py): 6 steps of 4 rows in the file's order, from the fixture's adapter.
golden() { sed -n "s/.*\"$1\": \([^,}]*\)[,}].*/\1/p" "$model/chat_steps.jsonl"; }
for batch in 4:1 2:2 1:4; do
    for fused in true false; do
        train "hf-$batch-$fused" --dataset "$model/chat.json" --adapter "$model/adapter" --packing false \
            --dataset_shuffle false --per_device_train_batch_size ${batch%:*} --gradient_accumulation_steps ${batch#*:} \
            --max_steps 6 --learning_rate 1e-2 --lr_scheduler_type linear --warmup_steps 1 --use_liger_kernel $fused
        for key in loss grad_norm learning_rate tokens label_tokens; do
            golden $key >"$folder/want"
            column "hf-$batch-$fused" $key >"$folder/got"
            close 1e-5 "$key of $batch (fused: $fused) and transformers" "$folder/got" "$folder/want"
        done
    done
done

# L01: the same rows, split three ways. With an epsilon of 1 the steps are nearly SGD's: Adam's usual one would turn
# rounding errors of gradients near 0 into steps of full size.
run=(--dataset "$model/chat.json#8" --packing false --dataset_shuffle false --max_steps 3 --adam_epsilon 1
    --adapter "$model/adapter")
for batch in 8:1 4:2 1:8; do
    train "split-$batch" "${run[@]}" --learning_rate 0.5 --per_device_train_batch_size ${batch%:*} \
        --gradient_accumulation_steps ${batch#*:}
done
train unmoved "${run[@]}" --learning_rate 1e-30 --gradient_accumulation_steps 8
(failed=0 && close_weights 1e-2 split-8:1 unmoved >/dev/null && [ $failed = 0 ]) && wrong "L01: the weights hardly moved"
for batch in 4:2 1:8; do
    close_columns 1e-6 loss "split-$batch" split-8:1
    close_columns 1e-6 grad_norm "split-$batch" split-8:1
    close_weights 1e-6 "split-$batch" split-8:1
done

# Equal seeds give equal bytes, other seeds do not; so with packing, shuffling and dropout.
run=(--dataset "$model/chat.json" --max_steps 4 --gradient_accumulation_steps 2 --learning_rate 1e-2 --lora_dropout 0.5)
train seed-1 "${run[@]}" --seed 1
train seed-1-again "${run[@]}" --seed 1
train seed-2 "${run[@]}" --seed 2
same_bytes seed-1/adapter_model.safetensors seed-1-again/adapter_model.safetensors
other_bytes seed-1/adapter_model.safetensors seed-2/adapter_model.safetensors

# A05: recompute changes no bit, with dropout masks in the repeats.
for level in none cheap full offload; do
    for fused in true false; do
        train "$level-$fused" "${run[@]}" --gradient_checkpointing $level --use_liger_kernel $fused
    done
done
for level in cheap full offload; do
    same_bytes "$level-true/adapter_model.safetensors" none-true/adapter_model.safetensors
    same_bytes "$level-false/adapter_model.safetensors" none-false/adapter_model.safetensors
done
close_columns 1e-5 loss none-true none-false

# A06: rate 0 is no dropout, a rate changes the run, evaluation does not depend on it.
run=(--dataset "$model/chat.json" --max_steps 1 --gradient_accumulation_steps 1 --learning_rate 1e-30
    --adapter "$model/adapter" --val_dataset "$model/chat.json")
train dropout-none "${run[@]}"
train dropout-0 "${run[@]}" --lora_dropout 0
train dropout-5 "${run[@]}" --lora_dropout 0.5
same_bytes dropout-none/adapter_model.safetensors dropout-0/adapter_model.safetensors
for name in dropout-none dropout-5; do
    column $name eval_loss >"$folder/$name.eval"
    cut -d ' ' -f 2 "$model/chat_loss.txt" >"$folder/want"
    close 1e-5 "eval_loss of $name and transformers" "$folder/$name.eval" "$folder/want"
    column $name loss >"$folder/$name.loss"
done
other_bytes dropout-none.loss dropout-5.loss

# A03: names, types and shapes as PEFT saves them; what we saved starts the same run; a renamed tensor is refused.
shapes "$model/adapter/adapter_model.safetensors" >"$folder/peft.shapes"
shapes "$folder/unmoved/adapter_model.safetensors" >"$folder/ours.shapes"
same_bytes ours.shapes peft.shapes
train reloaded --dataset "$model/chat.json#8" --packing false --dataset_shuffle false --max_steps 3 --adam_epsilon 1 \
    --learning_rate 1e-30 --gradient_accumulation_steps 8 --adapter "$folder/unmoved"
column unmoved loss >"$folder/unmoved.loss"
column reloaded loss >"$folder/reloaded.loss"
same_bytes reloaded.loss unmoved.loss
mkdir "$folder/renamed"
cp "$folder/unmoved/adapter_config.json" "$folder/renamed"
sed 's/layers\.1\.mlp\.up_proj\.lora_A/layers.7.mlp.up_proj.lora_A/' "$folder/unmoved/adapter_model.safetensors" \
    >"$folder/renamed/adapter_model.safetensors"
"$LIGER_SFT" --model "$model" --device cpu --dataset "$model/chat.json" --max_length 80 --adapter "$folder/renamed" \
    --output_dir "$folder/refused" >"$folder/out" 2>"$folder/err"
code=$?
count=$((count + 1))
[ $code = 1 ] && grep -q 'layers\.[17]\.mlp\.up_proj\.lora_A' "$folder/err" || wrong "A03: a renamed tensor: exit code $code"

# M08: the model has more rows than the tokenizer has tokens; full tuning leaves its shapes as they are.
train full --dataset "$model/chat.json" --tuner_type full --max_steps 2 --gradient_accumulation_steps 1 \
    --learning_rate 1e-3
count=$((count + 1))
shapes "$model/model.safetensors" >"$folder/tiny-chat.shapes"
shapes "$folder/full/model.safetensors" >"$folder/full.shapes"
same_bytes tiny-chat.shapes full.shapes
[ "$(grep -c 'embed_tokens.*\[312,32\]' "$folder/full.shapes")" = 1 ] || wrong "M08: not 312 rows in the saved model"

# O02: the unit of the schedule is the optimizer step. Cosine, 2 warm-up steps, 10 in all.
for accumulation in 1 4; do
    train "rates-$accumulation" --dataset "$model/chat.json" --max_steps 10 --warmup_steps 2 --learning_rate 1e-3 \
        --gradient_accumulation_steps $accumulation
done
printf '%s\n' 0 5e-4 1e-3 9.61939766e-4 8.53553391e-4 6.91341716e-4 5e-4 3.08658284e-4 1.46446609e-4 3.80602337e-5 \
    >"$folder/want"
column rates-1 learning_rate >"$folder/rates-1.column"
column rates-4 learning_rate >"$folder/rates-4.column"
same_bytes rates-1.column rates-4.column
close 1e-6 "learning rates" "$folder/rates-1.column" "$folder/want"
train ratio --dataset "$model/chat.json" --max_steps 10 --warmup_ratio .03 --learning_rate 1e-3 --lr_scheduler_type linear
printf '%s\n' 0 1e-3 8.888888889e-4 7.777777778e-4 6.666666667e-4 5.555555556e-4 4.444444444e-4 3.333333333e-4 \
    2.222222222e-4 1.111111111e-4 >"$folder/want"
column ratio learning_rate >"$folder/got"
close 1e-6 "learning rates with a ratio" "$folder/got" "$folder/want"
train short --dataset "$model/chat.json" --max_steps 2 --warmup_steps 5 --learning_rate 1e-3
train single --dataset "$model/chat.json" --max_steps 1 --learning_rate 1e-3
for name in short single; do
    count=$((count + 1))
    column $name learning_rate | grep -qvE '^[0-9.e-]+$' && wrong "$name: a learning rate that is no number"
done

# O04: 7 micro-batches, 4 a step, 2 epochs: 4 steps that divide by their own tokens. 3 micro-batches are a step.
row='{"instruction": "Name a colour.", "output": "red and blue"}'
for n in 7 3; do
    for ((i = 0; i < n; i++)); do echo "$row"; done >"$folder/same-$n.jsonl"
    train "window-$n" --dataset "$folder/same-$n.jsonl" --packing false --per_device_train_batch_size 1 \
        --gradient_accumulation_steps 4 --num_train_epochs $((n == 7 ? 2 : 1)) --learning_rate 1e-30 \
        --adapter "$model/adapter"
done
count=$((count + 2))
[ "$(column window-7 loss | wc -l)" = 4 ] || wrong "7 micro-batches, 4 a step, 2 epochs: not 4 steps"
[ "$(column window-3 loss | wc -l)" = 1 ] || wrong "3 micro-batches, 4 a step: not 1 step"
for key in loss grad_norm; do
    for ((i = 0; i < 4; i++)); do column window-3 $key; done >"$folder/want"
    column window-7 $key >"$folder/got"
    close 1e-6 "$key of short windows" "$folder/got" "$folder/want"
done
finish

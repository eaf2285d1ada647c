# test_resume.sh - runs that go on: from every step of a run to the same bits, in another split of the batch, refused
# with what differs, finished, and past a checkpoint that cannot be read.  Cases K02, K03.
. "${TEST_DIR:?the test folder}/cli/train_lib.sh"

# broken_at NAME STEP COPY: run NAME as it is when it is killed behind checkpoint-STEP and some further lines.
broken_at() {
    local k
    rm -rf "${folder:?}/$3"
    mkdir "$folder/$3"
    for ((k = 1; k <= $2; k++)); do
        [ -d "$folder/$1/checkpoint-$k" ] && cp -r "$folder/$1/checkpoint-$k" "$folder/$3"
    done
    mkdir "$folder/$3/checkpoint-$(($2 + 1)).tmp" # what was being written
    sed -n "0,/^{\"step\": $(($2 + 1)),/p" "$folder/$1/metrics.jsonl" | head -c -7 >"$folder/$3/metrics.jsonl"
}

# equal_runs NAME NAME: all that does not depend on the clock
equal_runs() {
    local key
    for key in epoch loss learning_rate grad_norm tokens label_tokens slots eval_loss; do
        count=$((count + 1))
        [ "$(column "$1" $key)" = "$(column "$2" $key)" ] || wrong "$key of $1 and $2 differ"
    done
}

# [model=FOLDER length=N] expect CODE PATTERN NAME FLAGS...: a run into $folder/NAME ends so, PATTERN in its error lines.
length=80
expect() {
    local code=$1 pattern=$2 name=$3 got
    shift 3
    count=$((count + 1))
    "$LIGER_SFT" --model "$model" --device cpu --max_length $length --logging_steps 1000 --threads 1 \
        --output_dir "$folder/$name" "$@" >"$folder/out" 2>"$folder/err" </dev/null
    got=$?
    [ $got = "$code" ] && grep -qF -- "$pattern" "$folder/err" && return
    wrong "exit code $got, expected $code and \"$pattern\": $name $*"
    cat "$folder/err"
}

# K02: 10 steps straight, and stopped behind each of them. Packing, shuffling, dropout, 2 micro-batches a step, 4 steps
# an epoch (the last window is short): stops in mid-epoch and at its end. Evaluations in between.
run=(--dataset "$model/chat.json" --max_steps 10 --gradient_accumulation_steps 2 --learning_rate 1e-2 --lora_dropout 0.1
    --warmup_steps 2 --val_dataset "$model/chat.json#3" --eval_steps 3)
train straight "${run[@]}"
train saved "${run[@]}" --save_steps 1
same_bytes saved/adapter_model.safetensors straight/adapter_model.safetensors
equal_runs saved straight
for ((k = 1; k < 10; k++)); do
    broken_at saved $k "from-$k"
    train "from-$k" "${run[@]}" --save_steps 1 --resume_from_checkpoint auto
    same_bytes "from-$k/adapter_model.safetensors" straight/adapter_model.safetensors
    equal_runs "from-$k" straight
    for file in adapter_model.safetensors optimizer.safetensors trainer_state.json; do
        [ $file = trainer_state.json ] || same_bytes "from-$k/checkpoint-10/$file" "saved/checkpoint-10/$file"
        [ $file = trainer_state.json ] && diff <(grep -v 'runtime\|checkpoint"' "$folder/from-$k/checkpoint-10/$file") \
            <(grep -v 'runtime\|checkpoint"' "$folder/saved/checkpoint-10/$file") >"$folder/diff" || [ ! -s "$folder/diff" ] ||
            wrong "$file of from-$k and saved differ"
    done
    count=$((count + 2))
    [ -e "$folder/from-$k/checkpoint-$((k + 1)).tmp" ] && wrong "from-$k: a folder cut off in writing is still there"
    grep -q "\"resumed_from\": $k," "$folder/from-$k/summary.json" || wrong "from-$k: not resumed from $k"
    for key in tokens label_tokens slots first_loss; do # Z02: totals survive
        [ "$(grep "\"$key\"" "$folder/from-$k/summary.json")" = "$(grep "\"$key\"" "$folder/straight/summary.json")" ] ||
            wrong "$key of from-$k"
    done
done
# Named instead of auto, into another folder: the steps that are left, and the same result.
train elsewhere "${run[@]}" --resume_from_checkpoint "$folder/saved/checkpoint-7"
same_bytes elsewhere/adapter_model.safetensors straight/adapter_model.safetensors
[ "$(column elsewhere loss)" = "$(column straight loss | tail -n 3)" ] || wrong "elsewhere: not the last 3 steps"

# Full tuning: bfloat16 weights in the files, float32 masters beside them. The model of the checkpoint loads.
run_full=(--dataset "$model/chat.json#6" --tuner_type full --max_steps 5 --gradient_accumulation_steps 2 --learning_rate 1e-3
    --save_steps 2)
train full "${run_full[@]}"
broken_at full 2 full-from-2
train full-from-2 "${run_full[@]}" --resume_from_checkpoint auto
same_bytes full-from-2/model.safetensors full/model.safetensors
same_bytes full-from-2/checkpoint-5/optimizer.safetensors full/checkpoint-5/optimizer.safetensors
equal_runs full-from-2 full
"$LIGER_SFT" eval --model "$folder/full/checkpoint-4" --device cpu --max_length 80 --val_dataset "$model/chat.json" \
    >"$folder/out" 2>"$folder/err" || wrong "eval of full/checkpoint-4: $(cat "$folder/err")"

# What a checkpoint holds is read by others: the adapter as an adapter, its loss that of the run behind that step.
"$LIGER_SFT" eval --model "$model" --device cpu --max_length 80 --adapter "$folder/saved/checkpoint-3" \
    --val_dataset "$model/chat.json#3" >"$folder/out" 2>"$folder/err" || wrong "eval of checkpoint-3: $(cat "$folder/err")"
sed -n 's/.*"step": 3, "eval_loss": \([^,]*\),.*/\1/p' "$folder/saved/metrics.jsonl" >"$folder/want"
sed -n 's/.*loss[=" :]*\([0-9.]*\).*/\1/p' "$folder/out" | head -n 1 >"$folder/got"
close 1e-5 "loss of checkpoint-3's adapter" "$folder/got" "$folder/want"

# K03: 32 rows, 1 x 4 and then 4 x 1 from step 3 of 8 on. Adam's epsilon of 1: see test_train.sh.
for ((i = 0; i < 32; i++)); do
    echo "{\"instruction\": \"Say $i.\", \"output\": \"$i, and $((i * 7 % 11)) more\"}"
done >"$folder/rows.jsonl"
split=(--dataset "$folder/rows.jsonl" --packing false --num_train_epochs 1 --adam_epsilon 1 --learning_rate 0.5
    --adapter "$model/adapter")
train split "${split[@]}" --per_device_train_batch_size 1 --gradient_accumulation_steps 4 --save_steps 1
broken_at split 3 resplit
train resplit "${split[@]}" --per_device_train_batch_size 4 --gradient_accumulation_steps 1 --save_steps 1 \
    --resume_from_checkpoint auto
count=$((count + 4))
[ "$(column resplit loss | wc -l)" = 8 ] || wrong "K03: $(column resplit loss | wc -l) steps, expected 8"
grep -q 'step 3 of 8 done, .* next sample 12 of 32' "$folder/resplit.err" || wrong "K03: no \"next sample 12\""
grep -q 'steps of 4 rows were dealt as 1 x 4, now as 4 x 1' "$folder/resplit.err" || wrong "K03: the split is not said"
for key in loss grad_norm; do close_columns 1e-6 $key resplit split; done
[ "$(column resplit learning_rate)" = "$(column split learning_rate)" ] || wrong "K03: learning rates differ"
for key in tokens label_tokens epoch; do
    [ "$(column resplit $key)" = "$(column split $key)" ] || wrong "K03: $key differs"
done
close_weights 1e-6 resplit split

# The scale of the adapter that a run started from is not that of the lora_* keys.
broken_at split 3 unscaled
expect 1 'adapter, lora_rank, lora_alpha: rank ' unscaled "${split[@]:0:10}" --gradient_accumulation_steps 4 \
    --resume_from_checkpoint auto

# Refused with what differs, and nothing is touched.
refuse() {
    local pattern=$1 before after
    shift
    broken_at saved 4 refused
    before=$(cd "$folder/refused" && find . -type f -exec cksum {} + | sort)
    expect 1 "$pattern" refused "${run[@]}" --save_steps 1 --resume_from_checkpoint auto "$@"
    after=$(cd "$folder/refused" && find . -type f -exec cksum {} + | sort)
    [ "$before" = "$after" ] || wrong "refused, but files changed: $*"
}
once() { # the flags of `run` with one replaced
    local flags=("${run[@]}") i
    for ((i = 0; i < ${#flags[@]}; i++)); do [ "${flags[i]}" = "$1" ] && flags[i + 1]=$2; done
    saved_run=("${run[@]}")
    run=("${flags[@]}")
    shift 2
    refuse "$@"
    run=("${saved_run[@]}")
}
refuse 'lora_rank: 8 in the checkpoint, 4 now' --lora_rank 4
refuse 'lora_alpha: 32 in the checkpoint, 16 now' --lora_alpha 16
refuse 'target_modules: ["all-linear"] in the checkpoint, ["q_proj","v_proj"] now' --target_modules q_proj,v_proj
refuse 'seed: 42 in the checkpoint, 7 now' --seed 7
length=90 refuse 'max_length: 80 in the checkpoint, 90 now'
refuse 'packing: true in the checkpoint, false now' --packing false
refuse 'tuner_type: "lora" in the checkpoint, "full" now' --tuner_type full
refuse 'rows of a step: 2 in the checkpoint, 6 now' --per_device_train_batch_size 3
once --learning_rate 1e-3 'learning_rate: 0.01 in the checkpoint, 0.001 now'
once --max_steps 12 'this run has 12 steps, '
once --dataset "$model/chat.json#11" 'dataset: these files give 11 examples'
sed 's/teal/mint/; s/blue/grey/; s/the/The/' "$model/chat.json" >"$folder/chat.json"
cmp -s "$folder/chat.json" "$model/chat.json" && wrong "the changed rows are the same"
once --dataset "$folder/chat.json" 'dataset: these files give '
cp -r "$model" "$folder/model" # the same shapes, another weight
size=$(stat -c %s "$folder/model/model.safetensors")
printf '\x01' | dd of="$folder/model/model.safetensors" bs=1 seek=$((size - 3)) conv=notrunc 2>/dev/null
real=$model model=$folder/model
refuse 'holds other weights than those'
model=$real

# Allowed: where it runs and how much it says; files that moved.
cp "$model/chat.json" "$folder/moved.json"
broken_at saved 4 moved
train moved "${run[@]:2}" --dataset "$folder/moved.json" --resume_from_checkpoint auto --gradient_checkpointing full \
    --save_total_limit 2 --save_steps 3
same_bytes moved/adapter_model.safetensors straight/adapter_model.safetensors

# Other threads give the same bits; other kernels give the same run but for rounding, and a warning.
again() { # again NAME FLAGS...: from step 4 on
    local name=$1
    shift
    broken_at saved 4 "$name"
    count=$((count + 1))
    "$LIGER_SFT" --model "$model" --device cpu --max_length 80 --logging_steps 1000 --output_dir "$folder/$name" "${run[@]}" \
        --resume_from_checkpoint auto "$@" >"$folder/$name.out" 2>"$folder/$name.err" || wrong "$name: $(cat "$folder/$name.err")"
}
again threads --threads 2
same_bytes threads/adapter_model.safetensors straight/adapter_model.safetensors
again unfused --threads 1 --use_liger_kernel false
close_columns 1e-3 loss unfused straight
grep -q '^warning: .*goes on in other arithmetic' "$folder/unfused.err" || wrong "other kernels are not said"

# Back to an earlier checkpoint of a finished run: later lines go, later checkpoints are replaced.
cp -r "$folder/saved" "$folder/back"
train back "${run[@]}" --save_steps 1 --resume_from_checkpoint "$folder/back/checkpoint-6" --overwrite_output_dir
same_bytes back/adapter_model.safetensors straight/adapter_model.safetensors
equal_runs back straight
grep -q '"resumed_from": 6,' "$folder/back/summary.json" || wrong "back: not from 6"

# Checkpoints of an earlier run: in the way, or removed when asked to, never taken for this run's.
broken_at saved 4 taken
rm "$folder/taken/metrics.jsonl"
expect 1 'already holds checkpoint-4: go on with --resume_from_checkpoint auto' taken "${run[@]}"
train taken "${run[@]}" --seed 9 --save_steps 7 --overwrite_output_dir
count=$((count + 1))
[ "$(cd "$folder/taken" && echo checkpoint-*)" = 'checkpoint-10 checkpoint-7' ] || wrong "taken: $(ls "$folder/taken")"

# A finished run: nothing to do, nothing touched.
before=$(cd "$folder/saved" && find . -type f -exec cksum {} + | sort)
expect 0 'nothing to do' saved "${run[@]}" --save_steps 1 --resume_from_checkpoint auto
expect 0 'nothing to do' saved "${run[@]}" --save_steps 1 --resume_from_checkpoint "$folder/saved/checkpoint-10"
expect 1 'seed: 42 in the checkpoint, 3 now' saved "${run[@]}" --seed 3 --resume_from_checkpoint auto
expect 1 'already holds' saved "${run[@]}" --save_steps 1 --resume_from_checkpoint "$folder/saved/checkpoint-4"
expect 1 'already holds' saved "${run[@]}"
[ "$before" = "$(cd "$folder/saved" && find . -type f -exec cksum {} + | sort)" ] || wrong "a finished run was touched"

# auto without a checkpoint starts at the first step; a path must name one.
train fresh "${run[@]}" --resume_from_checkpoint auto
same_bytes fresh/adapter_model.safetensors straight/adapter_model.safetensors
grep -q 'has no whole checkpoint, the run starts' "$folder/fresh.err" || wrong "a fresh start is not said"
expect 1 'no such folder' none "${run[@]}" --resume_from_checkpoint "$folder/gone"
expect 1 'is no checkpoint of this program' none "${run[@]}" --resume_from_checkpoint "$model"

# Checkpoints that cannot be read are passed over by auto, refused by name.
for damage in optimizer.safetensors adapter_model.safetensors run_state.json trainer_state.json args.json; do
    broken_at saved 4 damaged
    file=$folder/damaged/checkpoint-4/$damage
    truncate -s $(($(stat -c %s "$file") / 2)) "$file"
    expect 1 "$damage" damaged "${run[@]}" --resume_from_checkpoint "$folder/damaged/checkpoint-4"
    train damaged "${run[@]}" --resume_from_checkpoint auto
    count=$((count + 1))
    grep -q "checkpoint-4 is passed over: .*$damage" "$folder/damaged.err" || wrong "$damage: passing over is not said"
    grep -q '"resumed_from": 3,' "$folder/damaged/summary.json" || wrong "$damage: not resumed from 3"
    same_bytes damaged/adapter_model.safetensors straight/adapter_model.safetensors
done

# save_total_limit: the newest stay, by number, and the one with the best evaluation: an early one, where a run unlearns
# what its adapter knew.
names() { (cd "$folder/$1" && ls -d checkpoint-* | sort -t - -k 2 -n | tr '\n' ' '); }
train limit --dataset "$model/chat.json" --max_steps 11 --gradient_accumulation_steps 1 --save_steps 1 --save_total_limit 3
echo '{"instruction": "Name a colour.", "output": "red"}' >"$folder/red.jsonl"
echo '{"instruction": "Name a colour.", "output": "the blue sky above"}' >"$folder/blue.jsonl"
train red --dataset "$folder/red.jsonl" --max_steps 40 --gradient_accumulation_steps 1 --learning_rate 1e-2
train best --dataset "$folder/blue.jsonl" --adapter "$folder/red" --max_steps 6 --gradient_accumulation_steps 1 --save_steps 1 \
    --save_total_limit 2 --learning_rate 1e-2 --eval_steps 2 --val_dataset "$folder/red.jsonl"
best=$(sed -n 's/^{"step": \([0-9]*\), "eval_loss": \([^,]*\),.*/\2 \1/p' "$folder/best/metrics.jsonl" | sort -g | head -n 1 | cut -d ' ' -f 2)
count=$((count + 4))
[ "$(names limit)" = 'checkpoint-9 checkpoint-10 checkpoint-11 ' ] || wrong "save_total_limit 3: $(names limit)"
[ "${best:-6}" = 6 ] && wrong "the best evaluation is the last"
[ "$(names best)" = "checkpoint-$best checkpoint-6 " ] || wrong "save_total_limit 2 beside the best ($best): $(names best)"
grep -q "\"best_model_checkpoint\": \".*/best/checkpoint-$best\"" "$folder/best/checkpoint-6/trainer_state.json" ||
    wrong "the best checkpoint is not named"
finish

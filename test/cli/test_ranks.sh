# test_ranks.sh - runs of the whole program as ranks over MPI: equal to one process for any number of them, and what
# happens when one of them fails, hangs or is asked to stop. Cases X01, L01, O03, K03, R05.
. "${TEST_DIR:?the test folder}/cli/train_lib.sh"

# Ranks of a test may be root. Open MPI leaves memory behind in modules that it unloads.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 ASAN_OPTIONS=detect_leaks=0
if "$LIGER_SFT" --model "$model" --dataset "$model/chat.json" --device cpu --gpus 2 --max_steps 1 \
    --output_dir "$folder/probe" 2>&1 | grep -q 'this build does not have'; then
    echo "skip: this build has no MPI"
    exit 77
fi

# close_model TOLERANCE NAME NAME: as close_weights, for full tuning.
close_model() {
    for name in "$2" "$3"; do
        mkdir -p "$folder/model-$name"
        cp "$folder/$name/model.safetensors" "$folder/model-$name/adapter_model.safetensors"
    done
    close_weights "$1" "model-$2" "model-$3"
}

# X01, L01, O03: 12 micro-batches a step, dealt to 1, 2, 3 and 4 ranks; the second step of an epoch would be short with
# packing. Then full tuning, dropout, and evaluation on the way.
lora=(--dataset "$model/chat.json" --adapter "$model/adapter" --packing false --adam_epsilon 1 --learning_rate 0.1
    --max_steps 10 --lora_dropout 0.2 --val_dataset "$model/chat.json#7" --eval_steps 5)
full=(--dataset "$model/chat.json" --tuner_type full --adam_epsilon 1 --learning_rate 0.1 --max_steps 10)
train lora-1 "${lora[@]}" --gradient_accumulation_steps 12
train full-1 "${full[@]}" --gradient_accumulation_steps 12
for ranks in 2 3 4; do
    train lora-$ranks "${lora[@]}" --gradient_accumulation_steps $((12 / ranks)) --gpus $ranks
    train full-$ranks "${full[@]}" --gradient_accumulation_steps $((12 / ranks)) --gpus $ranks
    for kind in lora full; do
        for key in loss grad_norm; do
            column $kind-$ranks $key | head -1 >"$folder/got"
            column $kind-1 $key | head -1 >"$folder/want"
            close 1e-6 "first $key of $kind with $ranks ranks and one" "$folder/got" "$folder/want"
        done
        for key in tokens label_tokens slots epoch learning_rate; do
            close_columns 0 $key $kind-$ranks $kind-1
        done
    done
    close_columns 1e-6 eval_loss lora-$ranks lora-1
    close_weights 1e-6 lora-$ranks lora-1
    close_model 1e-6 full-$ranks full-1
    grep -q "\"world_size\": $ranks," "$folder/lora-$ranks/summary.json" || wrong "world_size is not $ranks"
    peaks=$(grep -E '"rank_peak_memory_gib": \[[0-9]' "$folder/lora-$ranks/summary.json" | grep -oE '[0-9.]+' | wc -l)
    [ "$peaks" = "$ranks" ] || wrong "$ranks ranks: $peaks peaks of memory"
done
for how in 2:2 3:2 4:2 2:3 3:3 4:3; do # zero_stage 2 and 3
    ranks=${how%:*} name=full-$ranks-${how#*:}
    train $name "${full[@]}" --val_dataset "$model/chat.json#7" --gradient_accumulation_steps $((12 / ranks)) --gpus $ranks \
        --zero_stage ${how#*:}
    for key in loss grad_norm; do
        column $name $key | head -1 >"$folder/got"
        column full-1 $key | head -1 >"$folder/want"
        close 1e-6 "first $key of $name and one rank" "$folder/got" "$folder/want"
    done
    close_model 1e-6 $name full-1
done
count=$((count + 1))
grep -q 'zero_stage 3, shard_base false)' "$folder/full-2-3.err" || wrong "what is spread is not said: $(cat "$folder/full-2-3.err")"
train unmoved "${lora[@]/#0.1/1e-30}" --gradient_accumulation_steps 12
(failed=0 && close_weights 1e-2 lora-1 unmoved >/dev/null && [ $failed = 0 ]) && wrong "the weights hardly moved"

# X01: rows that do not divide: 2 ranks of one row a step, 2 epochs, against one process of two rows a step.
for rows in 1 3 4 5 7; do
    run=(--dataset "$model/chat.json#$rows" --packing false --num_train_epochs 2 --adam_epsilon 1 --learning_rate 0.1
        --adapter "$model/adapter")
    train "rows-$rows-1" "${run[@]}" --gradient_accumulation_steps 2
    SECONDS=0
    train "rows-$rows-2" "${run[@]}" --gradient_accumulation_steps 1 --gpus 2
    [ $SECONDS -lt 60 ] || wrong "$rows rows over 2 ranks took $SECONDS s"
    close_columns 1e-6 tokens "rows-$rows-2" "rows-$rows-1"
    close_weights 1e-6 "rows-$rows-2" "rows-$rows-1"
done

# K03: a run of 3 ranks that ended behind its second step of four goes on as one process, and with 2 ranks. Rank 0 wrote
# the checkpoint that all read.
run=(--dataset "$model/chat.json" --adapter "$model/adapter" --packing false --adam_epsilon 1 --learning_rate 0.1
    --num_train_epochs 2 --save_steps 1)
train whole "${run[@]}" --gradient_accumulation_steps 6 --gpus 1
train saved "${run[@]}" --gradient_accumulation_steps 2 --gpus 3
close_weights 1e-6 saved whole
for ranks in 1 2; do
    cut_back saved "on-$ranks" 2
    train "on-$ranks" "${run[@]}" --gradient_accumulation_steps $((6 / ranks)) --gpus $ranks --resume_from_checkpoint auto
    count=$((count + 2))
    grep -q 'steps of 6 rows were dealt as 1 x 6, now as 1 x 6' "$folder/on-$ranks.err" ||
        wrong "K03: the other split is not said: $(cat "$folder/on-$ranks.err")"
    [ "$(column "on-$ranks" loss | wc -l)" = 4 ] || wrong "K03: not 4 steps with $ranks ranks"
    close_columns 1e-6 loss "on-$ranks" whole
    close_weights 1e-6 "on-$ranks" whole
done
train on-2 "${run[@]}" --gradient_accumulation_steps 3 --gpus 2 --resume_from_checkpoint auto # finished
count=$((count + 1))
grep -q 'nothing to do' "$folder/on-2.err" || wrong "K03: a finished run of ranks: $(cat "$folder/on-2.err")"

# zero_stage 1, 2, 3: moments, gradients, weights spread over 3 ranks. The same run, the same checkpoint, which goes on with
# any ranks and stage.
run=(--dataset "$model/chat.json" --tuner_type full --packing false --adam_epsilon 1 --learning_rate 0.1
    --num_train_epochs 2 --save_steps 1)
train moments-1 "${run[@]}" --gradient_accumulation_steps 6
for stage in 1 2 3; do
name=moments-3-$stage
train $name "${run[@]}" --gradient_accumulation_steps 2 --gpus 3 --zero_stage $stage
close_model 1e-6 $name moments-1
for part in exp_avg. exp_avg_sq. master.; do
    count=$((count + 1))
    grep -aq "$part" "$folder/$name/checkpoint-2/optimizer.safetensors" || wrong "no $part in the checkpoint"
done
for step in 2 4; do # moments of all ranks, over the largest number of the file
    for run_of in moments-1 $name; do
        mkdir -p "$folder/all-$run_of-$step"
        cp "$folder/$run_of/checkpoint-$step/optimizer.safetensors" "$folder/all-$run_of-$step/adapter_model.safetensors"
    done
    shapes "$folder/all-moments-1-$step/adapter_model.safetensors" >"$folder/want"
    shapes "$folder/all-$name-$step/adapter_model.safetensors" >"$folder/got"
    same_bytes got want
    close_weights 1e-6 "all-$name-$step" "all-moments-1-$step"
done
done
for how in 1:0:1 2:1:2 6:1:3 2:2:1 6:2:3 3:3:1 6:3:2; do # ranks, stage, the stage that wrote it
    ranks=${how%%:*}
    rest=${how#*:}
    stage=${rest%:*} from=moments-3-${how##*:} name=moments-on-${how//:/-}
    cut_back "$from" "$name" 2
    train "$name" "${run[@]}" --gradient_accumulation_steps $((6 / ranks)) --gpus "$ranks" --zero_stage "$stage" \
        --resume_from_checkpoint auto
    count=$((count + 1))
    [ "$(column "$name" loss | wc -l)" = 4 ] || wrong "zero_stage: not 4 steps with $ranks ranks"
    close_columns 1e-6 loss "$name" moments-1
    close_model 1e-6 "$name" moments-1
done
count=$((count + 1))
"$LIGER_SFT" plan --model "$model" --device cpu --max_length 80 --tuner_type full --gpus 4 >"$folder/plan"
awk '/^zero_stage/ { stage = $2 } /^none/ { sub(/.*\(/, ""); bytes[stage] = $1 + 0 }
    END { exit !(bytes["0,"] > bytes["1,"] && bytes["1,"] > bytes["2,"] && bytes["2,"] > bytes["3,"] && bytes["3,"] > 0) }' "$folder/plan" || wrong "plan: $(cat "$folder/plan")"

# shard_base: frozen weights in pieces. The bits of a run of as many ranks with a whole base, evaluation (rows that do not
# divide) included.
for ranks in 2 3 4; do
    train base-$ranks "${lora[@]}" --gradient_accumulation_steps $((12 / ranks)) --gpus $ranks --shard_base true
    same_bytes base-$ranks/adapter_model.safetensors lora-$ranks/adapter_model.safetensors
    for key in loss grad_norm eval_loss; do close_columns 0 $key base-$ranks lora-$ranks; done
done

# K03 with it: written by 3 ranks with pieces, read by any number of ranks, in pieces or whole.
run=(--dataset "$model/chat.json" --adapter "$model/adapter" --packing false --adam_epsilon 1 --learning_rate 0.1
    --num_train_epochs 2 --save_steps 1)
train pieces "${run[@]}" --gradient_accumulation_steps 2 --gpus 3 --shard_base true
same_bytes pieces/adapter_model.safetensors saved/adapter_model.safetensors
for how in 1:false 2:true 6:true 3:auto; do
    ranks=${how%:*}
    name=pieces-on-$ranks
    cut_back pieces "$name" 2
    train "$name" "${run[@]}" --gradient_accumulation_steps $((6 / ranks)) --gpus "$ranks" --shard_base "${how#*:}" \
        --resume_from_checkpoint auto
    count=$((count + 1))
    [ "$(column "$name" loss | wc -l)" = 4 ] || wrong "shard_base: not 4 steps with $ranks ranks"
    close_columns 1e-6 loss "$name" whole
    close_weights 1e-6 "$name" whole
done
count=$((count + 2))
"$LIGER_SFT" plan --model "$model" --device cpu --max_length 80 --gpus 4 >"$folder/plan"
awk '/^zero_stage/ { way = $2 $4 } /^none/ { sub(/.*\(/, ""); bytes[way] = $1 + 0 }
    way == "0,true," && /in each micro-batch: 0\.[0-9]+ GiB of weights/ { said = 1 }
    END { exit !(said && length(bytes) == 4 && bytes["0,true,"] < bytes["0,false,"] && bytes["1,true,"] < bytes["0,true,"]) }' \
    "$folder/plan" || wrong "plan: $(cat "$folder/plan")"
[ "$(grep -c '^zero_stage .*shard_base true' <("$LIGER_SFT" plan --model "$model" --device cpu --gpus 4 --shard_base true))" = 2 ] ||
    wrong "plan with shard_base true"

# auto spreads the base where a whole one does not fit: 3 GiB of address space for 4 ranks, and a base of 0.8 GiB.
mkdir "$folder/large"
sed 's/"hidden_size": [0-9]*/"hidden_size": 1024/; s/"intermediate_size": [0-9]*/"intermediate_size": 4096/
    s/"num_hidden_layers": [0-9]*/"num_hidden_layers": 12/' "$model/config.json" >"$folder/large/config.json"
# auto_takes KIB WAY: what plan marks under that limit.
auto_takes() {
    count=$((count + 1))
    (ulimit -v "$1" && OMP_NUM_THREADS=1 exec "$LIGER_SFT" plan --model "$folder/large" --device cpu --max_length 32 --gpus 4) >"$folder/plan"
    [ "$(awk '/^zero_stage/ { way = $2 $4 } /<- auto/ { print way }' "$folder/plan")" = "$2" ] || wrong "auto: $(cat "$folder/plan")"
}
if (ulimit -v 3000000 && "$LIGER_SFT" --version) >/dev/null 2>&1; then # not with a sanitizer's shadow memory
    auto_takes 12000000 0,false,
    auto_takes 3000000 0,true,
fi

# bench as ranks: rank 0 prints, twice the tokens of one rank's step, what is summed, and how much of it is waited for.
count=$((count + 2))
"$LIGER_SFT" bench --model "$model" --device cpu --max_length 80 --gradient_accumulation_steps 3 --bench_steps 2 --threads 1 \
    --gpus 2 --tuner_type full >"$folder/bench" 2>"$folder/bench.err" || wrong "bench: $(cat "$folder/bench.err")"
[ "$(grep -cE '^(un)?fused +[0-9]+ ' "$folder/bench")" = 4 ] || wrong "bench: $(cat "$folder/bench")"
bytes=$(floats "$folder/full-1/model.safetensors" | wc -l)
awk -v floats="$bytes" '/ 2 ranks: / { n++; mib = $4; if (mib < floats / 262144 - .01 || $9 != 1 || $13 <= 0) bad = 1 }
    END { exit bad || n != 2 }' "$folder/bench" || wrong "bench: $(grep ranks "$folder/bench")"

count=$((count + 1))
"$LIGER_SFT" bench --model "$model" --device cpu --max_length 80 --gradient_accumulation_steps 1 --bench_steps 2 --threads 1 \
    --gpus 2 --bench_paths fused --shard_base true >"$folder/bench" 2>"$folder/bench.err" || wrong "bench: $(cat "$folder/bench.err")"
grep -qE '^fused +2 ranks: [0-9.]+ MiB of weights in [1-9][0-9]* gathers a step' "$folder/bench" ||
    wrong "bench: $(cat "$folder/bench")"

# What was not given follows from the number of ranks: 16 rows a step.
train sixteen --dataset "$model/chat.json" --packing false --max_steps 1 --per_device_train_batch_size 2 --gpus 4
count=$((count + 1))
grep -q '"gradient_accumulation_steps": 2,' "$folder/sixteen/summary.json" || wrong "not 16 rows over 4 ranks"

# Only rank 0 prints, lines and not the one rewritten line of a terminal; the others have their logs.
count=$((count + 3))
train logs "${lora[@]/#10/2}" --gradient_accumulation_steps 2 --gpus 3 --rank_logs "$folder/logs/of"
[ "$(grep -c '^done ' "$folder/logs.out")" = 1 ] && [ "$(grep -c '^step=' "$folder/logs.out")" = 3 ] ||
    wrong "standard output: $(cat "$folder/logs.out")"
[ "$(grep -c 'trainable weights' "$folder/logs.err")" = 1 ] || wrong "standard error: $(cat "$folder/logs.err")"
[ "$(cd "$folder/logs/of" && grep -l 'trainable weights' *)" = "rank-1.log
rank-2.log" ] || wrong "logs: $(ls "$folder/logs/of")"

# refuse CODE PATTERN COMMAND...: the failure said once, and no folder made.
refuse() {
    local code=$1 pattern=$2 got
    shift 2
    count=$((count + 1))
    "$@" >"$folder/out" 2>"$folder/err" </dev/null
    got=$?
    [ $got = "$code" ] || wrong "exit code $got, expected $code, of: $*"
    grep '^error: ' "$folder/err" | grep -qF -- "$pattern" || { wrong "no \"$pattern\": $*"; cat "$folder/err"; }
    [ "$(grep -c '^error: ' "$folder/err")" = 1 ] || { wrong "not one error: $*"; cat "$folder/err"; }
    [ -e "$folder/none" ] && wrong "a failed run left $(find "$folder/none"): $*"
}
base=(--model "$model" --device cpu --max_length 80)
none=(--output_dir "$folder/none")
refuse 1 'gone.json: No such file' "$LIGER_SFT" "${base[@]}" "${none[@]}" --dataset "$folder/gone.json" --gpus 3
refuse 1 'matches no linear' "$LIGER_SFT" "${base[@]}" "${none[@]}" --dataset "$model/chat.json" --target_modules proj --gpus 3
refuse 1 'ddp_backend: nccl needs GPUs' "$LIGER_SFT" "${base[@]}" "${none[@]}" --dataset "$model/chat.json" --gpus 2 --ddp_backend nccl
refuse 1 'shard_base: found true with tuner_type full' "$LIGER_SFT" "${base[@]}" "${none[@]}" --dataset "$model/chat.json" \
    --gpus 2 --tuner_type full --shard_base true
refuse 1 'they need mpirun -n 2' env RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 "$LIGER_SFT" "${base[@]}" \
    --dataset "$model/chat.json"
refuse 2 'RANK 2 of WORLD_SIZE 2' env RANK=2 WORLD_SIZE=2 LOCAL_RANK=1 "$LIGER_SFT" "${base[@]}" \
    --dataset "$model/chat.json"
refuse 2 'srun started 4 tasks' env SLURM_STEP_NUM_TASKS=4 "$LIGER_SFT" "${base[@]}" "${none[@]}" --dataset "$model/chat.json"
refuse 2 'gpus: found 3, and 2 ranks' mpirun --oversubscribe -n 2 "$LIGER_SFT" "${base[@]}" \
    --dataset "$model/chat.json" --gpus 3
refuse 2 'plan runs as one process' mpirun -n 1 "$LIGER_SFT" plan --model "$model" : \
    -n 1 sleep 0 </dev/null # the other one need not be ours

# Ranks that do not see the same: other data under the same name, or none.
mkdir "$folder/here" "$folder/there"
cp "$model/chat.json" "$folder/here/data.json"
sed 's/hello/hullo/I' "$model/chat.json" | sed '0,/the/s//The/' >"$folder/there/data.json"
cmp -s "$folder/here/data.json" "$folder/there/data.json" && wrong "the two data files are one"
two() { mpirun --oversubscribe -n 1 --wdir "$folder/here" "$LIGER_SFT" "$@" : -n 1 --wdir "$folder/there" "$LIGER_SFT" "$@"; }
refuse 1 "the data set differs from rank 0's" two "${base[@]}" "${none[@]}" --dataset data.json
rm "$folder/there/data.json"
refuse 1 'rank 1: dataset: data.json: No such file' two "${base[@]}" "${none[@]}" --dataset data.json
refuse 1 "the config differs from rank 0's" mpirun --oversubscribe -n 1 "$LIGER_SFT" "${base[@]}" "${none[@]}" --dataset \
    "$model/chat.json" : -n 1 "$LIGER_SFT" "${base[@]}" "${none[@]}" --dataset "$model/chat.json" --seed 7

# endless NAME FLAGS...: a run of three ranks without end, in the background; its parent in $run, once it trains the ranks in
# $ranks.
endless() {
    local name=$1
    shift
    "$LIGER_SFT" "${base[@]}" --dataset "$model/chat.json" --max_steps 1000000 --gpus 3 --threads 1 \
        --output_dir "$folder/$name" "$@" >"$folder/$name.out" 2>&1 </dev/null &
    run=$!
    await_step "$folder/$name.out"
    mapfile -t ranks < <(pgrep -P $run)
    [ ${#ranks[@]} = 3 ] || wrong "$name: ${#ranks[@]} ranks: $(cat "$folder/$name.out")"
}

# A rank that hangs: the others end after ddp_timeout, with their number and what they waited for.
count=$((count + 2))
endless hangs --ddp_timeout 2
kill -STOP "${ranks[1]}"
SECONDS=0
wait $run
code=$?
[ $code != 0 ] && [ $SECONDS -lt 30 ] || wrong "a rank that hangs: exit code $code after $SECONDS s"
grep -qE '^error: .*among 3 ranks over MPI: no answer within 2 s \(ddp_timeout\)' "$folder/hangs.out" ||
    wrong "a rank that hangs: $(grep -v '^step=' "$folder/hangs.out")"

# R05: one rank is asked to stop: all finish the step, rank 0 saves and says so once.
count=$((count + 3))
endless stops
kill -TERM "${ranks[2]}"
wait $run
code=$?
[ $code = 130 ] || wrong "SIGTERM to a rank: exit code $code: $(grep -v '^step=' "$folder/stops.out")"
[ "$(grep -c '^error: stopped by SIGTERM after step .* is saved' "$folder/stops.out")" = 1 ] ||
    wrong "SIGTERM to a rank: $(grep -v '^step=' "$folder/stops.out")"
[ -e "$folder/stops"/checkpoint-*/optimizer.safetensors ] || wrong "SIGTERM to a rank: no checkpoint: $(ls "$folder/stops")"

# X01: kill -9 of any rank at any step: the others end soon, with a code that is not 0, and nothing of the run stays.
# KILLS: how many.
slowest=0
for ((kill = 0; kill < ${KILLS:-3}; kill++)); do
    victim=$((kill % 3))
    count=$((count + 1))
    rm -rf "$folder/killed-$victim"*
    endless killed-$victim
    sleep 0.$((RANDOM % 10))
    SECONDS=0
    kill -9 "${ranks[$victim]}"
    wait $run
    code=$?
    [ $code != 0 ] && [ $SECONDS -lt 30 ] || wrong "kill -9 of a rank: exit code $code after $SECONDS s"
    [ $SECONDS -gt $slowest ] && slowest=$SECONDS
    for rank in "${ranks[@]}"; do # a dead process that nobody has asked after is a Z
        for ((i = 0; i < 50; i++)); do
            grep -qsv ') Z ' "/proc/$rank/stat" || break
            sleep 0.1
        done
        [ $i -lt 50 ] || wrong "a rank lives on after kill -9 of another: $(cat "/proc/$rank/stat")"
    done
    [ -e "$folder/killed-$victim/adapter_model.safetensors" ] && wrong "a killed run left a result"
done
[ -z "${KILLS:-}" ] || echo "$KILLS ranks killed, the others ended within $((slowest + 1)) s"
finish

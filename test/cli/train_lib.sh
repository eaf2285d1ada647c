# train_lib.sh - what the tests of training runs share: runs of the built program on the tiny-chat fixture, and numbers
# out of its files compared without anything but sed, awk and od. Sourced; leaves $folder, removed at exit.
set -u
: "${LIGER_SFT:?the built program}" "${TEST_DIR:?the test folder}"
model=$TEST_DIR/fixtures/models/tiny-chat
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
failed=0 count=0

wrong() {
    echo "FAILED: $*"
    failed=$((failed + 1))
}

# train NAME FLAGS...: a run into $folder/NAME; a failure is reported with its output.
train() {
    local name=$1
    shift
    "$LIGER_SFT" --model "$model" --device cpu --max_length 80 --logging_steps 1000 --threads 1 \
        --output_dir "$folder/$name" "$@" >"$folder/$name.out" 2>"$folder/$name.err" </dev/null && return
    wrong "exit code $? of: train $name $*"
    cat "$folder/$name.out" "$folder/$name.err"
}

# cut_back FROM NAME STEP: into $folder/NAME what the run in $folder/FROM had left behind when it ended after STEP.
cut_back() {
    local step
    mkdir "$folder/$2"
    for ((step = 1; step <= $3; step++)); do cp -r "$folder/$1/checkpoint-$step" "$folder/$2"; done
    sed "/^{\"step\": $(($3 + 1)),/,\$d" "$folder/$1/metrics.jsonl" >"$folder/$2/metrics.jsonl"
}

# await_step FILE: until a run that prints into FILE has made its first step, a minute at most.
await_step() {
    local i
    for ((i = 0; i < 600; i++)); do
        grep -qs '^step=' "$1" && return
        sleep 0.1
    done
}

# column NAME KEY: that key of every step of a run, one per line.
column() { sed -n "s/^{\"step\".*\"$2\": \([^,}]*\)[,}].*/\1/p" "$folder/$1/metrics.jsonl"; }

# close TOLERANCE WHAT FILE FILE: two files of numbers, one per line, relatively close and equally long.
close() {
    count=$((count + 1))
    [ -s "$3" ] || wrong "$2: no numbers"
    paste "$3" "$4" | awk -v tolerance="$1" '
        { d = $1 - $2; if (d < 0) d = -d; s = $2 < 0 ? -$2 : $2
          if (NF != 2 || !(d <= tolerance * s)) { print "  line " NR ": " $1 " and " $2; bad = 1 } }
        END { exit bad }' || wrong "$2 differ by more than $1"
}

# close_columns TOLERANCE KEY NAME NAME: that column of two runs.
close_columns() {
    column "$3" "$2" >"$folder/a"
    column "$4" "$2" >"$folder/b"
    close "$1" "$2 of $3 and $4" "$folder/a" "$folder/b"
}

# same_bytes FILE FILE / other_bytes FILE FILE, both below $folder
same_bytes() {
    count=$((count + 1))
    cmp -s "$folder/$1" "$folder/$2" || wrong "$1 and $2 differ"
}
other_bytes() {
    count=$((count + 1))
    ! cmp -s "$folder/$1" "$folder/$2" || wrong "$1 and $2 are the same"
}

# floats FILE: the data of a float32 safetensors file, one number per line.
floats() {
    local header
    header=$(od -An -t u8 -N 8 "$1" | tr -d ' ')
    od -An -v -t f4 -w4 -j $((8 + header)) "$1"
}

# shapes FILE: name, type and shape of every tensor of a safetensors file, sorted.
shapes() {
    head -c 20000 "$1" | grep -aoE '"[A-Za-z_.0-9]+": ?\{"dtype": ?"[A-Z0-9]+", ?"shape": ?\[[0-9, ]+\]' | tr -d ' ' | sort
}

# close_weights TOLERANCE NAME NAME: two adapters, over the largest weight.
close_weights() {
    count=$((count + 1))
    floats "$folder/$2/adapter_model.safetensors" >"$folder/a"
    floats "$folder/$3/adapter_model.safetensors" >"$folder/b"
    paste "$folder/a" "$folder/b" | awk -v tolerance="$1" '
        { d = $1 - $2; if (d < 0) d = -d; s = $2 < 0 ? -$2 : $2; if (d > worst) worst = d; if (s > top) top = s }
        END { if (!NR || !(worst <= tolerance * top)) { print "  largest difference " worst " of " top; exit 1 } }' ||
        wrong "weights of $2 and $3 differ by more than $1"
}

finish() {
    [ $failed = 0 ] && echo "$count checks passed"
    exit $((failed > 0))
}

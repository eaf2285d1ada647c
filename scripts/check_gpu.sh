#!/usr/bin/env bash
# check_gpu.sh - everything that only a machine with a card can check; the tests of `make test` that need one say "skip"
# elsewhere.
#   check_gpu.sh BUILD [DATA]
# BUILD: a build folder with the test programs. DATA: an Alpaca-style file for a killed and resumed run.
# With SANITIZER=1 also compute-sanitizer's memcheck and racecheck. No check runs longer than LIMIT seconds (500). Exit
# code 1 when anything failed.
set -u
cd "$(dirname "$0")/.."
build=$1 data=${2:-} logs=$(mktemp -d) titles=()
trap 'rm -rf "$logs"' EXIT
# check TITLE COMMAND... All run beside each other: the card has room for all of them.
check() {
    local log=$logs/${#titles[@]}
    titles+=("$1")
    (
        timeout "${LIMIT:-500}" "${@:2}" >"$log" 2>&1
        echo $? >"$log.code"
    ) &
}
report() { # NUMBER
    local log=$logs/$1 code
    code=$(cat "$logs/$1.code")
    if [ "$code" = 0 ]; then
        printf 'ok      %-44s %s\n' "${titles[$1]}" "$(grep -aE 'passed|PASSED|SUMMARY|equal|same' "$log" | tail -1)"
    else
        printf 'FAILED  %-44s exit code %d\n' "${titles[$1]}" "$code"
        grep -avE '^ok|\[ +(RUN|OK) +\]' "$log" | tail -15
        failed=1
    fi
}

check "ops against the CPU" "$build/test_cuda_ops"
check "products of the library" "$build/test_gemm"
check "own products" "$build/test_wgmma_gemm"
check "thin products of adapters" "$build/test_thin"
check "folded norms, whole programs" "$build/test_cuda_fold"
check "attention, ours and cuDNN's" "$build/test_attention"
# a race may show in few rows of few runs, and only where a block has more than one tile
check "attention, the same bits" "$build/test_attention" --repeat 400 --case "900, 63"
check "attention, the same bits at full size" "$build/test_attention" --perf --repeat 200 --case "of 2048"
check "whole programs, float32" "$build/test_parity" --cuda
check "whole programs, bf16" "$build/test_parity" --cuda-bf16
[ -n "$data" ] && check "killed and resumed" scripts/resume_gpu.sh "$build/liger-sft" "$data"
if [ -n "${SANITIZER:-}" ]; then
    check "memcheck: ops" compute-sanitizer --error-exitcode 9 --tool memcheck "$build/test_cuda_ops"
    check "memcheck: own products" compute-sanitizer --error-exitcode 9 --tool memcheck "$build/test_wgmma_gemm" --few
    check "memcheck: thin products" compute-sanitizer --error-exitcode 9 --tool memcheck "$build/test_thin" --few
    check "memcheck: attention" compute-sanitizer --error-exitcode 9 --tool memcheck "$build/test_attention" --own \
        --case "64, 600"
    for of in "cap 5" "7, 300, 130"; do
        check "racecheck: attention, $of" compute-sanitizer --error-exitcode 9 --tool racecheck --print-limit 20 \
            "$build/test_attention" --own --case "$of"
    done
    check "racecheck: thin products" compute-sanitizer --error-exitcode 9 --tool racecheck "$build/test_thin" --few
    for op in rms_norm add_rms_norm rms_norm_bwd rope glu_bwd cross_entropy embed dropout gather; do
        check "racecheck: $op" compute-sanitizer --error-exitcode 9 --tool racecheck "$build/test_cuda_ops" "$op"
    done
fi
wait
failed=0
for i in "${!titles[@]}"; do report "$i"; done
exit $failed

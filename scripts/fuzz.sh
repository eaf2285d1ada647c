#!/usr/bin/env bash
# fuzz.sh - builds the fuzz targets with clang (libFuzzer, ASan, UBSan) and runs each for a while; `make fuzz`.
#   FUZZ_SECONDS=60 each target's time; FUZZ_TARGETS="data index" only these (names as in test/fuzz/fuzz_NAME.c)
# What a run learns stays in build/fuzz/corpus/NAME. An input that crashes, hangs or takes too much memory lies in
# build/fuzz/found/ afterwards, and the exit code is 1. To see it again: build/fuzz/fuzz_NAME FILE
set -u
cd "$(dirname "$0")/.."
seconds=${FUZZ_SECONDS:-60}
if ! command -v clang >/dev/null; then
    echo "fuzz: no clang here; needed are (Debian's names) clang libclang-rt-14-dev libomp-dev: scripts/setup.sh --fuzz"
    exit 1
fi
cmake -G Ninja -S . -B build/fuzz -DFUZZ=ON -DCUDA=OFF -DCMAKE_C_COMPILER=clang -DCMAKE_BUILD_TYPE=Debug >/dev/null &&
    cmake --build build/fuzz --target fuzz || exit 1

targets=${FUZZ_TARGETS:-$(basename -s .c test/fuzz/fuzz_*.c | sed 's/^fuzz_//')}
mkdir -p build/fuzz/found
bad=
for target in $targets; do
    mkdir -p "build/fuzz/corpus/$target"
    dict=test/fuzz/dict/$target.dict
    nice -n 10 "build/fuzz/fuzz_$target" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -malloc_limit_mb=512 \
        -max_len=16384 -print_final_stats=1 -close_fd_mask=2 -artifact_prefix="build/fuzz/found/$target-" \
        ${dict:+$([ -f "$dict" ] && echo "-dict=$dict")} \
        "build/fuzz/corpus/$target" "test/fuzz/corpus/$target" >"build/fuzz/$target.log" 2>&1 &
    job=$!
    wait "$job" || bad="$bad $target"
    rm -rf "/dev/shm/liger-fuzz-$job" "/tmp/liger-fuzz-$job"
    coverage=$(grep -oE 'cov: [0-9]+' "build/fuzz/$target.log" | tail -1)
    echo "fuzz: $target: $(sed -n 's/^stat::number_of_executed_units: *//p' "build/fuzz/$target.log") runs, ${coverage:-cov: ?}"
done
[ -z "$bad" ] && exit 0
echo "fuzz: found something:$bad"
grep -hE 'runtime error|ERROR|does not hold|SUMMARY|Test unit written' $(printf 'build/fuzz/%s.log ' $bad)
exit 1

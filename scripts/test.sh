#!/usr/bin/env bash
# test.sh - runs the tests of build/release and build/asan in one ctest run and ends with its count.
set -u
cd "$(dirname "$0")/.."
printf 'subdirs("asan" "release")\n' >build/CTestTestfile.cmake
# Several tests at once, each with a few threads: waiting threads must sleep, not spin.
export OMP_WAIT_POLICY=passive OMP_NUM_THREADS=${OMP_NUM_THREADS:-2}
ctest --test-dir build -j "$(nproc)" --output-on-failure --timeout 900 2>&1 | tee build/test.log
code=${PIPESTATUS[0]}
grep -hiE '^skip' build/Testing/Temporary/LastTest.log 2>/dev/null | sort | uniq -c
grep -E 'tests passed, ' build/test.log
exit "$code"

#!/bin/sh
# Builds the attention test by itself: sh test/cuda/build_attention.sh [OUT] (nvcc, gcc; no cuDNN needed to build).
set -e
cd "$(dirname "$0")/../.."
out=${1:-build/test_attention}
mkdir -p "$(dirname "$out")"
for c in failure memory; do gcc -std=gnu11 -O2 -Isrc -c src/base/$c.c -o "$out.$c.o"; done
nvcc -std=c++17 -O3 -Isrc -Icuda -Itest/cuda -Xcompiler -Wall,-Wextra,-Wno-missing-field-initializers,-fopenmp \
    ${ARCH:--gencode=arch=compute_90a,code=sm_90a} test/cuda/test_attention.cu test/cuda/test_attention_cases.cu \
    cuda/attention.cu cuda/attention_bwd.cu cuda/cudnn_graph.cu cuda/cudnn_attention.cu "$out.failure.o" "$out.memory.o" -o "$out" -ldl
rm -f "$out.failure.o" "$out.memory.o"

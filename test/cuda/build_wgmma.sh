#!/bin/sh
# Builds one of the tests of our own products and of attention by itself, CUDA's run-time library inside:
# sh test/cuda/build_wgmma.sh [test_wgmma_gemm | test_thin | test_attention [OUT]]. Where it runs it needs libcuda.so.1
# and libcublasLt.so.13. Prints how many kernels have how much stack and spill; OUT.log has all.
set -e
cd "$(dirname "$0")/../.."
name=${1:-test_wgmma_gemm}
out=${2:-build/$name}
cuda=${CUDA_HOME:-/usr/local/cuda}
case $name in
test_thin) sources="cuda/thin.cu cuda/wgmma_gemm.cu" ;;
test_attention)
    sources="cuda/attention.cu cuda/attention_bwd.cu cuda/attention_turn.cu cuda/attention_wgmma.cu
        cuda/attention_wgmma_dq.cu cuda/attention_wgmma_dkv.cu cuda/cudnn_attention.cu cuda/cudnn_graph.cu
        cuda/wgmma_gemm.cu test/cuda/test_attention_cases.cu"
    ;;
*) sources="cuda/wgmma_gemm.cu cuda/rope.cu cuda/glu.cu cuda/rms_norm.cu cuda/rms_norm_bwd.cu" ;;
esac
mkdir -p "$(dirname "$out")" "$out.o"
for c in src/base/failure src/base/memory src/base/text src/base/file src/base/array src/base/dtype src/base/mapped src/base/host_memory src/base/log cuda/gemm \
    test/cuda/wgmma_stand_in; do
    gcc -std=gnu11 -D_GNU_SOURCE -O2 -Isrc -Icuda -I"$cuda/include" -I/usr/include/stb -c $c.c -o "$out.o/$(basename $c).o"
done
# shellcheck disable=SC2086 # a list of files
nvcc -std=c++17 -O3 -gencode=arch=compute_90a,code=sm_90a -Isrc -Icuda -Xptxas -v -cudart static \
    -Xcompiler -fopenmp,-Wall,-Wextra,-Wno-missing-field-initializers "test/cuda/$name.cu" $sources "$out.o"/*.o -o "$out" \
    -lcublasLt -Xcompiler -static-libstdc++ >"$out.log" 2>&1 || { cat "$out.log"; exit 1; }
grep -E 'spill stores|C75|warning' "$out.log" | sort | uniq -c || true
strip "$out"
rm -rf "$out.o"
ls -l "$out"

#!/bin/sh
# Links test_cuda_ops once more with OpenBLAS, OpenMP and the C++ library inside, as FOLDER/test_cuda_ops_static: one file
# (33 MB) for a machine with a card but without these libraries; it still loads libcublasLt.so.13.
# Usage: test/cuda/link_static.sh BUILD_FOLDER   (after `ninja -C BUILD_FOLDER test_cuda_ops`)
set -e
cd "$1"
command=$(ninja -t commands test_cuda_ops | tail -1 | sed -e 's/^: && //' -e 's/ && :$//' \
    -e 's#libopenblas\.so#libopenblas.a#' -e 's#libgomp\.so#libgomp.a#' \
    -e 's#-o test_cuda_ops#-static-libgcc -static-libstdc++ -s -o test_cuda_ops_static#')
eval "$command"
ls -l test_cuda_ops_static

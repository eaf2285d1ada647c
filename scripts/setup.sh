#!/usr/bin/env bash
# setup.sh - what the build needs: installs it with apt, or lists what is missing.
#   setup.sh          install what is missing
#   setup.sh --check  only say what is missing; exit code 1 when something is
#   setup.sh --fuzz   also what `make fuzz` needs (clang), which nothing else does
# A thing is there when its command, pkg-config module or header is there, wherever it came from.
set -u

missing=() packages=()
need() { # need KIND NAME PACKAGE
    case $1 in
    command) command -v "$2" >/dev/null ;;
    module) command -v pkg-config >/dev/null && pkg-config --exists "$2" ;;
    stb) for folder in /usr/include/stb /usr/include /usr/local/include/stb /usr/local/include; do
        [ -e "$folder/stb_ds.h" ] && break
    done && [ -e "$folder/stb_ds.h" ] ;;
    fuzzer) ls /usr/lib/llvm-*/lib/clang/*/lib/linux/libclang_rt.fuzzer-*.a >/dev/null 2>&1 ;;
    openmp) ls /usr/lib/llvm-*/lib/libomp.so >/dev/null 2>&1 ;;
    blas) command -v pkg-config >/dev/null && { pkg-config --exists openblas ||
        ls /usr/lib/*/openblas-openmp/pkgconfig/openblas.pc >/dev/null 2>&1; } ;;
    esac && return
    missing+=("$1 $2")
    packages+=("$3")
}

need command make build-essential
need command cc build-essential
need command cmake cmake
need command ninja ninja-build
need command pkg-config pkg-config
need module libcjson libcjson-dev
need stb stb_ds.h libstb-dev
need module libpcre2-8 libpcre2-dev
need module libutf8proc libutf8proc-dev
need blas openblas libopenblas-openmp-dev # with OpenMP: one pool of threads for BLAS and for our loops
need command mpicc libopenmpi-dev # ranks; srun and mpirun start them
need command mpirun openmpi-bin
need module cmocka libcmocka-dev
need command xz xz-utils # test data
# `make check` wants version 14's layout; only Debian 12 and its like are sure to have it.
grep -qs 'VERSION_ID="12"' /etc/os-release && need command clang-format clang-format
if [ "${1:-}" = --fuzz ]; then
    need command clang clang
    need fuzzer "libclang_rt.fuzzer (clang's libFuzzer)" libclang-rt-14-dev
    need openmp "libomp (clang's OpenMP)" libomp-dev
fi

if [ ${#missing[@]} -eq 0 ]; then
    [ "${1:-}" = --check ] || echo "setup: everything is there"
    exit 0
fi
echo "setup: missing:"
printf '  %s\n' "${missing[@]}"
[ "${1:-}" = --check ] && exit 1

if ! command -v apt-get >/dev/null; then
    echo "setup: no apt-get here; install with your own package manager what Debian calls: ${packages[*]}"
    exit 1
fi
as_root=
if [ "$(id -u)" -ne 0 ]; then
    as_root=sudo
    if ! command -v sudo >/dev/null; then
        echo "setup: not root and no sudo; ask for: apt-get install ${packages[*]}"
        exit 1
    fi
fi
set -e
$as_root apt-get update
$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${packages[@]}"
exec "$0" --check

#!/usr/bin/env bash
# dist.sh - makes dist/liger-sft-VERSION/, a folder that runs on another Linux machine with the same kind of processor and
# a C library at least as new: bin/liger-sft, and in lib/ every library it needs but the C library and the GPU's. Then
# starts the copy from an empty environment elsewhere and checks that nothing came from outside.
set -eu
cd "$(dirname "$0")/.."
# Without MPI, which cannot be moved to another machine: its plugins belong to an installation. --gpus needs none.
cmake -G Ninja -S . -B build/dist -DMPI=OFF >/dev/null
cmake --build build/dist --target liger-sft
version=$(build/dist/liger-sft --version | cut -d' ' -f2)
name=liger-sft-$version
folder=dist/$name
rm -rf "$folder"
mkdir -p "$folder/lib"
cmake --install build/dist --prefix "$folder" --strip >/dev/null
for page in README.md LICENSE CHANGELOG.md configs docs; do
    [ -e $page ] && cp -r $page "$folder/"
done

# What must come from the machine itself: the C library, and the NVIDIA driver's and CUDA's libraries.
outside='/(ld-linux[^/]*|lib(c|m|dl|rt|pthread|resolv|util|mvec|cuda|nvidia-ml|cudart|cublas|cublasLt|cudnn[^.]*|nccl))\.so'
needed() { ldd "$1" | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | { grep -vE "$outside" || true; }; }
needed build/dist/liger-sft | while read -r library; do
    cp -L "$library" "$folder/lib/$(basename "$library")"
    # Their licences ask to travel with them.
    package=$(dpkg -S "*/$(basename "$(readlink -f "$library")")" 2>/dev/null | head -1 | cut -d: -f1 || true)
    [ -z "$package" ] || cp -L "/usr/share/doc/$package/copyright" "$folder/lib/$package.copyright"
done

# The copy, moved, without an environment: it must start, and find every library of ours in its own folder.
moved=$(mktemp -d)
trap 'rm -rf "$moved"' EXIT
cp -r "$folder" "$moved/"
program=$moved/$name/bin/liger-sft
(cd / && env -i "$program" --version && env -i "$program" --help >/dev/null)
strays=$(env -i /usr/bin/ldd "$program" | awk '$2 == "=>" { print $1, $3 }' | grep -v " $moved/" | grep -vE "$outside" |
    grep -v linux-vdso || true)
if [ -n "$strays" ]; then
    echo "dist: libraries that are not in the folder: $strays"
    exit 1
fi
tar -C dist -czf "dist/$name.tar.gz" "$name"
echo "$folder: $(du -sh "$folder" | cut -f1), dist/$name.tar.gz: $(du -h "dist/$name.tar.gz" | cut -f1)"

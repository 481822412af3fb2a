#!/bin/sh
# Compiles the core headers for CUDA (sm_90a, to an object). Without nvcc it says so and succeeds:
# a machine without CUDA cannot check this, and CI on one that has it does.
# usage: tests/cuda/compile.sh [output folder]
set -eu
here=$(cd "$(dirname "$0")" && pwd)
out=${1:-$(mktemp -d)}
if ! command -v nvcc >/dev/null 2>&1; then
    echo "skipped: nvcc is not installed"
    exit 0
fi
mkdir -p "$out"
python3 "$here/../../core/policy/generate.py" "$out/generated"
nvcc -std=c++20 -arch=sm_90a -Werror all-warnings -I "$out/generated" \
    -c "$here/core_headers.cu" -o "$out/core_headers.o"
echo "compiled: $out/core_headers.o"

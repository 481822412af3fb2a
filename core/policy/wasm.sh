#!/bin/sh
# Builds the decision function for WebAssembly: clients/policy/decide.wasm, or the file named.
# Needs clang-16 and lld-16 (other releases make other bytes). usage: core/policy/wasm.sh [output]
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"${PYTHON:-python3}" "$root/core/policy/generate.py" "$scratch"
cd "$root" # so that no path of this machine gets into the file
clang++-16 --target=wasm32 -std=c++20 -Os -Wall -Wextra -Werror -ffreestanding -fno-exceptions \
    -fno-rtti -nostdlib -I "$scratch" -Wl,--no-entry -Wl,--export=__heap_base -Wl,--strip-all \
    -Wl,-z,stack-size=8192 core/policy/wasm.cpp -o "${1:-clients/policy/decide.wasm}"

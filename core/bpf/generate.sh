#!/bin/sh
# Compiles the programs for the kernel into light skeletons: generate.sh FOLDER. Needs clang, bpftool
# and libbpf's headers, and only this does. The versions are in generated/made-with.
set -eu
here=$(dirname "$0")
out=$1
objects=$(mktemp -d)
trap 'rm -rf "$objects"' EXIT

skeleton() { # name, source, options
    clang -target bpf -O2 -g -Wall -Werror -I"/usr/include/$(uname -m)-linux-gnu" \
        -ffile-prefix-map="$here"= -fdebug-compilation-dir=. ${3:-} -c "$here/$2.bpf.c" -o "$objects/$1.o"
    bpftool gen skeleton -L "$objects/$1.o" name "$1" > "$out/$1.lskel.h"
}

skeleton steering steering
skeleton connections connections
skeleton packets connections -DSUBLIMATE_PACKETS
{ clang --version | head -n 1; bpftool version | head -n 1; } > "$out/made-with"

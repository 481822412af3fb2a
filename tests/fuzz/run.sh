#!/usr/bin/env bash
# Runs the fuzz targets for SECONDS_EACH (default 20), side by side: those in C++ from their corpus in tests/fuzz/corpus, those in
# Python from a first seed, which they print. With clang and libFuzzer new inputs are searched for the former; without them the
# corpus is replayed under AddressSanitizer by the default compiler.
set -eu
cd "$(dirname "$0")/../.."
seconds=${SECONDS_EACH:-20}
compiler=clang++-16
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
passed=0
failed=0

count() {  # count STATUS NAME
    if [ "$1" = 0 ]; then passed=$((passed + 1)); echo "ok      $2"; else failed=$((failed + 1)); echo "FAILED  $2"; fi
}

search() {  # search PROGRAM NAME: new inputs go to a scratch folder, a finding stays in build/fuzz
    mkdir -p "$scratch/$2" "tests/fuzz/corpus/$2"
    "$1" -max_total_time="$3" -max_len=65536 -rss_limit_mb=2048 -timeout=10 -verbosity=0 \
        -artifact_prefix="build/fuzz/$2-" "$scratch/$2" "tests/fuzz/corpus/$2" >"$scratch/$2.log" 2>&1
}

declare -A searches

end_searches() {
    local name status
    for name in "${!searches[@]}"; do
        status=0
        wait "${searches[$name]}" || status=$?
        [ "$status" = 0 ] || tail -n 40 "$scratch/$name.log"
        count "$status" "$name"
    done
}

start_python() {
    local name
    for name in quic grpc; do
        PYTHONPATH=tests python "tests/fuzz/fuzz_$name.py" --seconds "$seconds" >"$scratch/$name.log" 2>&1 &
        searches[$name]=$!
    done
}

if command -v "$compiler" >/dev/null && echo 'int main(){return 0;}' |
    "$compiler" -x c++ -fsanitize=address - -o "$scratch/probe" 2>/dev/null; then
    cmake --preset fuzz >/dev/null
    cmake --build --preset fuzz
    start_python
    for program in build/fuzz/fuzzers/fuzz_*; do
        name=$(basename "$program" | sed 's/^fuzz_//')
        [ "$name" = canary ] && continue
        search "$program" "$name" "$seconds" &
        searches[$name]=$!
    done
    end_searches
    status=0
    search build/fuzz/fuzzers/fuzz_canary canary 60 && status=1
    grep -q 'deadly signal' "$scratch/canary.log" || status=1
    count "$status" "canary (finds its planted fault)"
else
    echo "no $compiler with sanitizers here: replaying the corpus"
    cmake --preset asan >/dev/null
    cmake --build --preset replay
    start_python
    for program in build/asan/fuzzers/fuzz_*; do
        name=$(basename "$program" | sed 's/^fuzz_//')
        [ "$name" != canary ] || continue
        status=0
        "$program" "tests/fuzz/corpus/$name" || status=$?
        count "$status" "$name (replay)"
    done
    end_searches
fi
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]

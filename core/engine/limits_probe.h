// What this machine can give any program at most: measured by loops that do nothing else, best of
// several rounds, since a shared or virtual core is slow for reasons of its own.
//
// defines: ReadRate, ComputeRate, MachineLimits, measure_limits
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "../cpu/ops.h"

namespace sublimate {

struct ReadRate {
    int64_t working_set_bytes;
    int32_t threads;         // each reads a part of its own
    double bytes_per_s;      // 0: there was no memory for it
    double huge_pages_share; // of the working set that lay in huge pages
};

struct ComputeRate {
    const char* name; // fma_f32, dot_int8, tile_bf16, tile_bf16_loads, tile_int8
    int32_t threads;
    double ops_per_s; // a multiply-add is two; 0: not on this machine
};

struct MachineLimits {
    std::string isa; // of the loops that read and multiply in registers
    std::vector<ReadRate> reads;
    std::vector<ComputeRate> computes;
};

// With one thread and with `threads`. Takes about half a second per working set and thread count.
MachineLimits measure_limits(cpu::Isa isa, int32_t threads, std::span<const int64_t> working_sets);

} // namespace sublimate

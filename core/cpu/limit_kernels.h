// Loops that do nothing but what a machine is limited by: reading memory, and multiplying operands
// that are in registers (or, for tiles, in the first cache). What they compute is of no use; how
// fast they do it bounds every kernel of this folder.
//
// defines: LimitKernels, TileKernels, limit_kernels, tile_kernels
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops.h"

namespace sublimate::cpu {

constexpr int64_t READ_BLOCK_BYTES = 256; // a read is a multiple of it, aligned to a cache line

struct LimitKernels {
    // A sum over all words, so that every byte is needed. ahead_bytes: software prefetch, 0 none.
    uint64_t (*read)(const std::byte* data, int64_t bytes, int64_t ahead_bytes);
    // Each returns the operations that it did in `rounds` turns, a multiply-add being two. Null:
    // this instruction set has no such instruction. Its sums pass through an empty __asm__ in each
    // round: to the compiler they are unknown values, so that it can neither compute equal ones
    // once nor leave a round out.
    int64_t (*fma_f32)(int64_t rounds);
    int64_t (*dot_int8)(int64_t rounds); // VNNI
};

struct TileKernels {
    int64_t (*bf16)(int64_t rounds);
    int64_t (*bf16_loads)(int64_t rounds); // four tile loads for each four multiplications
    int64_t (*int8)(int64_t rounds);
};

// Of the widest instruction set that runs here, up to `isa`.
const LimitKernels& limit_kernels(Isa isa);
// Null where the processor or the kernel grants no tiles.
const TileKernels* tile_kernels();

extern const LimitKernels PORTABLE_LIMITS;
extern const LimitKernels AVX2_LIMITS;
extern const LimitKernels AVX512_LIMITS;
extern const TileKernels AMX_LIMITS;

} // namespace sublimate::cpu

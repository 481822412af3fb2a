// Any 64-bit machine: sixteen lanes are four 128-bit vectors of the compiler, no intrinsics. The
// fused multiply-add is built from double precision, so that the bits equal those of machines that
// have one.
#pragma once

#include "numbers.h"
#include "ops.h"

#define INLINE __attribute__((always_inline)) inline

namespace sublimate::cpu {
namespace {

using Part = float __attribute__((vector_size(16)));
using PartBits = uint32_t __attribute__((vector_size(16)));
using PartSigned = int32_t __attribute__((vector_size(16)));
using PairFloat = float __attribute__((vector_size(8)));
using PairDouble = double __attribute__((vector_size(16)));
using PairBits = uint64_t __attribute__((vector_size(16)));
using PartWide = uint64_t __attribute__((vector_size(16)));
constexpr int32_t PARTS = 4;

INLINE Part part_splat(float value) {
    return Part{value, value, value, value};
}
// a * b + c rounded once to float. The product of two floats is exact in double. The sum is rounded
// to odd there (Boldo and Melquiond 2008): its error term (Knuth's two-sum) moves an even last bit
// towards the true value, so that the second rounding, to float, sees on which side of a tie the
// true sum lies. Cold: kept out of line.
[[gnu::noinline]] PairDouble fused_pair(PairDouble a, PairDouble b, PairDouble c) {
    const PairDouble product = a * b;
    const PairDouble sum = product + c;
    const PairDouble other = sum - product;
    const PairDouble error = (product - (sum - other)) + (c - other);
    const PairBits bits = reinterpret_cast<PairBits>(sum);
    const PairBits inexact = reinterpret_cast<PairBits>((error > 0.0) | (error < 0.0));
    const PairBits even = (bits & 1) - 1;
    const PairBits away = (bits ^ reinterpret_cast<PairBits>(error)) >> 63; // 1: towards zero
    const PairBits step = (1 - (away << 1)) & inexact & even;
    return reinterpret_cast<PairDouble>(bits + step);
}

INLINE PairDouble low_pair(Part a) {
    return __builtin_convertvector(__builtin_shufflevector(a, a, 0, 1), PairDouble);
}
INLINE PairDouble high_pair(Part a) {
    return __builtin_convertvector(__builtin_shufflevector(a, a, 2, 3), PairDouble);
}

// Whether rounding a sum in double again, to float, could go wrong: the bits below float's
// precision are exactly half of its last one, or the float would be subnormal (or zero, which costs
// nothing to take for one).
INLINE PartBits rounds_twice(PairDouble sum) {
    constexpr PartBits BELOW_FLOAT = {0x1fffffffu, 0, 0x1fffffffu, 0};
    constexpr PartBits HALF = {0x10000000u, 1, 0x10000000u, 1};
    constexpr PartBits MAGNITUDE = {0, 0x7fffffffu, 0, 0x7fffffffu};
    constexpr PartSigned NORMAL = {0, 0x38100000, 0, 0x38100000}; // 2^-126 as a double, upper half
    const auto bits = reinterpret_cast<PartBits>(sum);
    const auto tie = reinterpret_cast<PartBits>((bits & BELOW_FLOAT) == HALF);
    const auto small =
        reinterpret_cast<PartBits>(NORMAL > reinterpret_cast<PartSigned>(bits & MAGNITUDE));
    return tie | small;
}

// Almost every sum may be rounded twice; the others take the exact way. Not inlined: it is called
// in so many places that the code would be ten times as long.
[[gnu::noinline]] Part fma_part(Part a, Part b, Part c) {
    PairDouble low = low_pair(a) * low_pair(b) + low_pair(c);
    PairDouble high = high_pair(a) * high_pair(b) + high_pair(c);
    const auto doubt = reinterpret_cast<PairBits>(rounds_twice(low) | rounds_twice(high));
    if (__builtin_expect((doubt[0] | doubt[1]) != 0, 0)) {
        low = fused_pair(low_pair(a), low_pair(b), low_pair(c));
        high = fused_pair(high_pair(a), high_pair(b), high_pair(c));
    }
    const PairFloat low_float = __builtin_convertvector(low, PairFloat);
    const PairFloat high_float = __builtin_convertvector(high, PairFloat);
    return __builtin_shufflevector(low_float, high_float, 0, 1, 2, 3);
}
// The low half of every 64-bit lane times a factor.
INLINE PartWide part_multiply(PartWide a, uint32_t factor) {
    return (a & 0xffffffffu) * (PartWide{} + factor);
}
INLINE Part part_even(Part a) {
    return __builtin_shufflevector(a, a, 0, 0, 2, 2);
}
INLINE Part part_odd(Part a) {
    return __builtin_shufflevector(a, a, 1, 1, 3, 3);
}
INLINE Part part_swap(Part a) {
    return __builtin_shufflevector(a, a, 1, 0, 3, 2);
}

} // namespace
} // namespace sublimate::cpu

#include "lanes.inl.h"

namespace sublimate::cpu {
namespace {

INLINE float max_lanes(Lanes a) {
    float lanes[LANES];
    store(lanes, a);
    float r = lanes[0];
    for (int32_t i = 1; i < LANES; ++i) r = lanes[i] > r ? lanes[i] : r;
    return r;
}
INLINE uint32_t max_lanes_bits(LanesBits a) {
    uint32_t lanes[LANES];
    store_bits(lanes, a);
    uint32_t r = lanes[0];
    for (int32_t i = 1; i < LANES; ++i) r = lanes[i] > r ? lanes[i] : r;
    return r;
}
INLINE int32_t sum_lanes_signed(LanesBits a) {
    uint32_t lanes[LANES];
    store_bits(lanes, a);
    uint32_t r = 0;
    for (int32_t i = 0; i < LANES; ++i) r += lanes[i];
    return static_cast<int32_t>(r);
}
// Lanes hold integers in [-128, 127] as floats.
INLINE LanesBits store_int8(int8_t* to, Lanes a) {
    int32_t lanes[LANES];
    for (int32_t i = 0; i < PARTS; ++i) {
        const PartSigned integers = __builtin_convertvector(a.part[i], PartSigned);
        __builtin_memcpy(lanes + i * PART_LANES, &integers, sizeof(integers));
    }
    for (int32_t i = 0; i < LANES; ++i) to[i] = static_cast<int8_t>(lanes[i]);
    return load_bits(lanes);
}
INLINE Lanes load_half(const uint16_t* from) {
    float lanes[LANES];
    for (int32_t i = 0; i < LANES; ++i) lanes[i] = half_to_float(from[i]);
    return load(lanes);
}
INLINE Lanes load_bf16(const uint16_t* from) {
    uint32_t lanes[LANES];
    for (int32_t i = 0; i < LANES; ++i) lanes[i] = static_cast<uint32_t>(from[i]) << 16;
    return floats_of(load_bits(lanes));
}
INLINE Lanes load_uint8(const std::byte* from) {
    float lanes[LANES];
    for (int32_t i = 0; i < LANES; ++i) lanes[i] = static_cast<uint8_t>(from[i]);
    return load(lanes);
}
INLINE Lanes load_int8(const std::byte* from) {
    float lanes[LANES];
    for (int32_t i = 0; i < LANES; ++i) lanes[i] = static_cast<int8_t>(from[i]);
    return load(lanes);
}
// Sums of 16 numbers each, four of them.
INLINE void store_sums_of_16(int32_t* to, const int8_t* from) {
    for (int32_t i = 0; i < 4; ++i) {
        to[i] = 0;
        for (int32_t j = 0; j < LANES; ++j) to[i] += from[i * LANES + j];
    }
}
// The first 32 bytes, zero after them.
INLINE LanesBits load_bits_half(const void* from) {
    LanesBits r = {};
    __builtin_memcpy(&r, from, sizeof(r) / 2);
    return r;
}

// table[byte] for every byte, all below 16.
INLINE LanesBits lookup(LanesBits places, const uint8_t (&table)[16]) {
    uint8_t bytes[sizeof(LanesBits)];
    store_bits(bytes, places);
    for (uint8_t& byte : bytes) byte = table[byte];
    return load_bits(bytes);
}

// Attention's products are rounded before they are added: a fused operation costs twenty here.
INLINE Lanes multiply_add(Lanes a, Lanes b, Lanes c) {
    return a * b + c;
}

// Sizes of the register blocks.
constexpr int32_t FLOAT_ROWS = 1;
constexpr int32_t FLOAT_PANELS = 1;
constexpr int32_t BLOCK_VECTORS = 2;
constexpr int32_t SUMS_MAX = 4; // of attention, in registers

} // namespace
} // namespace sublimate::cpu

// AVX-512: sixteen lanes are one register.
#pragma once

#include "numbers.h"
#include "ops.h"

#include "intrinsics.h"

#define INLINE __attribute__((always_inline)) inline

namespace sublimate::cpu {
namespace {

using Part = __m512;
using PartBits = uint32_t __attribute__((vector_size(64)));
using PartSigned = int32_t __attribute__((vector_size(64)));
using PartWide = uint64_t __attribute__((vector_size(64)));
constexpr int32_t PARTS = 1;

INLINE Part part_splat(float value) {
    return _mm512_set1_ps(value);
}
INLINE Part fma_part(Part a, Part b, Part c) {
    return _mm512_fmadd_ps(a, b, c);
}
// The low half of every 64-bit lane times a factor.
INLINE PartWide part_multiply(PartWide a, uint32_t factor) {
    return reinterpret_cast<PartWide>(_mm512_mul_epu32(
        reinterpret_cast<__m512i>(a), _mm512_set1_epi32(static_cast<int32_t>(factor))));
}
INLINE Part part_even(Part a) {
    return _mm512_moveldup_ps(a);
}
INLINE Part part_odd(Part a) {
    return _mm512_movehdup_ps(a);
}
INLINE Part part_swap(Part a) {
    return _mm512_permute_ps(a, 0xb1);
}

} // namespace
} // namespace sublimate::cpu

#include "lanes.inl.h"

namespace sublimate::cpu {
namespace {

INLINE float max_lanes(Lanes a) {
    return _mm512_reduce_max_ps(a.part[0]);
}
INLINE uint32_t max_lanes_bits(LanesBits a) {
    return _mm512_reduce_max_epu32(reinterpret_cast<__m512i>(a.part[0]));
}
INLINE int32_t sum_lanes_signed(LanesBits a) {
    return _mm512_reduce_add_epi32(reinterpret_cast<__m512i>(a.part[0]));
}
// Lanes hold integers in [-128, 127] as floats.
INLINE LanesBits store_int8(int8_t* to, Lanes a) {
    const __m512i integers = _mm512_cvtps_epi32(a.part[0]);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(integers));
    return {reinterpret_cast<PartBits>(integers)};
}
INLINE Lanes load_half(const uint16_t* from) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)))};
}
INLINE Lanes load_bf16(const uint16_t* from) {
    const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16))};
}
INLINE Lanes load_uint8(const std::byte* from) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return {_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes))};
}
INLINE Lanes load_int8(const std::byte* from) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes))};
}
// Sums of 16 numbers each, four of them.
INLINE void store_sums_of_16(int32_t* to, const int8_t* from) {
    // As unsigned numbers, 128 too large each.
    const __m512i bytes = _mm512_xor_si512(_mm512_loadu_si512(from), _mm512_set1_epi8(-128));
    const __m512i eights = _mm512_sad_epu8(bytes, _mm512_setzero_si512());
    const __m512i sums = _mm512_add_epi64(eights, _mm512_shuffle_epi32(eights, _MM_PERM_BADC));
    const __m512i firsts = _mm512_setr_epi32(0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12);
    const __m128i four = _mm512_castsi512_si128(_mm512_permutexvar_epi32(firsts, sums));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm_sub_epi32(four, _mm_set1_epi32(16 * 128)));
}
// The first 32 bytes, zero after them.
INLINE LanesBits load_bits_half(const void* from) {
    const __m256i half = _mm256_loadu_si256(static_cast<const __m256i*>(from));
    return {reinterpret_cast<PartBits>(_mm512_zextsi256_si512(half))};
}

// table[byte] for every byte, all below 16.
INLINE __m512i looked_up(__m512i places, const uint8_t (&table)[16]) {
    const auto* bytes = reinterpret_cast<const __m128i*>(table);
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_load_si128(bytes)), places);
}
INLINE LanesBits lookup(LanesBits places, const uint8_t (&table)[16]) {
    const auto at = reinterpret_cast<__m512i>(places.part[0]);
    return {reinterpret_cast<PartBits>(looked_up(at, table))};
}

INLINE Lanes multiply_add(Lanes a, Lanes b, Lanes c) {
    return fma(a, b, c);
}

// Sizes of the register blocks.
constexpr int32_t FLOAT_ROWS = 4;
constexpr int32_t FLOAT_PANELS = 4;
constexpr int32_t BLOCK_VECTORS = 8;
constexpr int32_t SUMS_MAX = 16; // of attention, in registers

} // namespace
} // namespace sublimate::cpu

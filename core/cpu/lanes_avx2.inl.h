// AVX2 with FMA and F16C: sixteen lanes are two registers.
#pragma once

#include "numbers.h"
#include "ops.h"

#include "intrinsics.h"

#define INLINE __attribute__((always_inline)) inline

namespace sublimate::cpu {
namespace {

using Part = __m256;
using PartBits = uint32_t __attribute__((vector_size(32)));
using PartSigned = int32_t __attribute__((vector_size(32)));
using PartWide = uint64_t __attribute__((vector_size(32)));
constexpr int32_t PARTS = 2;

INLINE Part part_splat(float value) {
    return _mm256_set1_ps(value);
}
INLINE Part fma_part(Part a, Part b, Part c) {
    return _mm256_fmadd_ps(a, b, c);
}
// The low half of every 64-bit lane times a factor.
INLINE PartWide part_multiply(PartWide a, uint32_t factor) {
    return reinterpret_cast<PartWide>(_mm256_mul_epu32(
        reinterpret_cast<__m256i>(a), _mm256_set1_epi32(static_cast<int32_t>(factor))));
}
INLINE Part part_even(Part a) {
    return _mm256_moveldup_ps(a);
}
INLINE Part part_odd(Part a) {
    return _mm256_movehdup_ps(a);
}
INLINE Part part_swap(Part a) {
    return _mm256_permute_ps(a, 0xb1);
}

} // namespace
} // namespace sublimate::cpu

#include "lanes.inl.h"

namespace sublimate::cpu {
namespace {

INLINE float max_lanes(Lanes a) {
    const __m256 eight = _mm256_max_ps(a.part[0], a.part[1]);
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    four = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
}
INLINE __m256i integers_of(PartBits a) {
    return reinterpret_cast<__m256i>(a);
}
INLINE uint32_t max_lanes_bits(LanesBits a) {
    const __m256i eight = _mm256_max_epu32(integers_of(a.part[0]), integers_of(a.part[1]));
    __m128i four = _mm_max_epu32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    four = _mm_max_epu32(four, _mm_shuffle_epi32(four, 0x4e));
    four = _mm_max_epu32(four, _mm_shuffle_epi32(four, 0xb1));
    return static_cast<uint32_t>(_mm_cvtsi128_si32(four));
}
INLINE int32_t sum_lanes_signed(LanesBits a) {
    const __m256i eight = _mm256_add_epi32(integers_of(a.part[0]), integers_of(a.part[1]));
    __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1));
    return _mm_cvtsi128_si32(four);
}
// Lanes hold integers in [-128, 127] as floats.
INLINE LanesBits store_int8(int8_t* to, Lanes a) {
    const __m256i low = _mm256_cvtps_epi32(a.part[0]);
    const __m256i high = _mm256_cvtps_epi32(a.part[1]);
    // Packing works within 128-bit halves: put the quarters back into order before the last step.
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(low, high), 0xd8);
    const __m128i bytes =
        _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), bytes);
    return {{reinterpret_cast<PartBits>(low), reinterpret_cast<PartBits>(high)}};
}
INLINE Lanes load_half(const uint16_t* from) {
    const auto* halves = reinterpret_cast<const __m128i*>(from);
    return {
        {_mm256_cvtph_ps(_mm_loadu_si128(halves)), _mm256_cvtph_ps(_mm_loadu_si128(halves + 1))}};
}
INLINE Lanes load_bf16(const uint16_t* from) {
    const auto* halves = reinterpret_cast<const __m128i*>(from);
    Lanes r;
    for (int32_t i = 0; i < PARTS; ++i) {
        const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(halves + i));
        r.part[i] = _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
    }
    return r;
}
INLINE Lanes load_uint8(const std::byte* from) {
    Lanes r;
    for (int32_t i = 0; i < PARTS; ++i) {
        const auto* part = reinterpret_cast<const __m128i*>(from + i * PART_LANES);
        r.part[i] = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(part)));
    }
    return r;
}
INLINE Lanes load_int8(const std::byte* from) {
    Lanes r;
    for (int32_t i = 0; i < PARTS; ++i) {
        const auto* part = reinterpret_cast<const __m128i*>(from + i * PART_LANES);
        r.part[i] = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(part)));
    }
    return r;
}
// Sums of 16 numbers each, four of them.
INLINE void store_sums_of_16(int32_t* to, const int8_t* from) {
    for (int32_t i = 0; i < 4; ++i) { // as unsigned numbers, 128 too large each
        const __m128i bytes = _mm_xor_si128(
            _mm_loadu_si128(reinterpret_cast<const __m128i*>(from) + i), _mm_set1_epi8(-128));
        const __m128i eights = _mm_sad_epu8(bytes, _mm_setzero_si128());
        to[i] = _mm_cvtsi128_si32(eights) + _mm_extract_epi32(eights, 2) - 16 * 128;
    }
}
// The first 32 bytes, zero after them.
INLINE LanesBits load_bits_half(const void* from) {
    LanesBits r = {};
    __builtin_memcpy(&r, from, sizeof(r) / 2);
    return r;
}

// table[byte] for every byte, all below 16.
INLINE __m256i looked_up(__m256i places, const uint8_t (&table)[16]) {
    const auto* bytes = reinterpret_cast<const __m128i*>(table);
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_load_si128(bytes)), places);
}
INLINE LanesBits lookup(LanesBits places, const uint8_t (&table)[16]) {
    for (PartBits& part : places.part) {
        part = reinterpret_cast<PartBits>(looked_up(integers_of(part), table));
    }
    return places;
}

INLINE Lanes multiply_add(Lanes a, Lanes b, Lanes c) {
    return fma(a, b, c);
}

// Sizes of the register blocks.
constexpr int32_t FLOAT_ROWS = 2;
constexpr int32_t FLOAT_PANELS = 2;
constexpr int32_t BLOCK_VECTORS = 2;
constexpr int32_t SUMS_MAX = 4; // of attention, in registers

} // namespace
} // namespace sublimate::cpu

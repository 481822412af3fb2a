// Exact int32 sums of one group with AVX2. vpmaddubsw adds two products in 16 bits and saturates:
// 15 * 127 * 2 fits, 255 * 127 * 2 does not. So every weight is taken by its nibbles; the eight
// products of a lane in a group of nibbles sum to 8 * 3,810 = 30,480 at most (30,720 with an
// activation of -128) and never saturate. A byte is low + 16 * high, two such sums, whether it lies
// in memory or in a table that four bits are a place in.
//
// defines: Dot
#pragma once

#include "lanes_avx2.inl.h"
#include "value_tables.inl.h"

#include <type_traits>

namespace sublimate::cpu {
namespace {

struct Dot {
    static constexpr int32_t ROWS = 4; // of a block with decoded panels
    static constexpr int32_t PANELS = 1;
    static constexpr bool MULTIPLIES_BYTES = false;
    static constexpr int32_t ROWS_DIRECT = 4; // up to here a panel is decoded in registers
    static constexpr int32_t HALVES = 2;      // registers of 16 outputs x 4 columns

    struct Nibbles {
        static constexpr int64_t BYTES = 256;
    };
    struct Bytes {
        static constexpr int64_t BYTES = 512;
    };
    struct WideNibbles { // one nibble a byte
        static constexpr int64_t BYTES = 512;
    };
    template <class Table>
    struct Places { // four bits a weight, which stand for bytes
        static constexpr int64_t BYTES = 256;
        static constexpr TableBytes VALUES = Table::BYTES;
    };
    template <class GroupKind>
    using DecodedOf = std::conditional_t<std::is_same_v<GroupKind, Nibbles>, WideNibbles, Bytes>;

    INLINE static __m256i load_half_chunk(const std::byte* at) {
        return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
    }
    INLINE static __m256i broadcast(const int8_t* at) {
        int32_t four;
        __builtin_memcpy(&four, at, sizeof(four));
        return _mm256_set1_epi32(four);
    }
    INLINE static __m256i low_nibbles(__m256i both) {
        return _mm256_and_si256(both, _mm256_set1_epi8(15));
    }
    INLINE static __m256i high_nibbles(__m256i both) {
        return low_nibbles(_mm256_srli_epi16(both, 4));
    }

    // What four bits stand for.
    template <class GroupKind>
    INLINE static __m256i weights_of(__m256i nibbles) {
        if constexpr (std::is_same_v<GroupKind, Nibbles>) {
            return nibbles;
        } else {
            return looked_up(nibbles, GroupKind::VALUES.whole);
        }
    }

    template <class GroupKind>
    INLINE static void decode(const std::byte* from, std::byte* to) {
        if constexpr (std::is_same_v<GroupKind, Bytes>) {
            __builtin_memcpy(to, from, Bytes::BYTES);
        } else {
            constexpr int32_t HALF = 32;
            for (int32_t i = 0; i < 8; ++i) {
                const __m256i both = load_half_chunk(from + i * HALF);
                _mm256_store_si256(reinterpret_cast<__m256i*>(to + i * HALF),
                                   weights_of<GroupKind>(low_nibbles(both)));
                _mm256_store_si256(reinterpret_cast<__m256i*>(to + (i + 8) * HALF),
                                   weights_of<GroupKind>(high_nibbles(both)));
            }
        }
    }

    // acc16 += products of nibbles with the four activations at `at`.
    template <int32_t ROWS_NOW>
    INLINE static void step(__m256i (&acc)[ROWS_NOW][HALVES], const __m256i (&w)[HALVES],
                            const int8_t* const (&x)[ROWS_NOW], int32_t at) {
        for (int32_t r = 0; r < ROWS_NOW; ++r) {
            const __m256i value = broadcast(x[r] + at);
            for (int32_t h = 0; h < HALVES; ++h) {
                acc[r][h] = _mm256_add_epi16(acc[r][h], _mm256_maddubs_epi16(w[h], value));
            }
        }
    }
    template <int32_t ROWS_NOW>
    INLINE static void clear(__m256i (&acc)[ROWS_NOW][HALVES]) {
        for (auto& row : acc) {
            for (__m256i& lanes : row) lanes = _mm256_setzero_si256();
        }
    }
    // Pairs of 16-bit sums to the 32-bit lanes of 16 outputs, times 2^shift.
    template <int32_t ROWS_NOW>
    INLINE static void widen(const __m256i (&acc)[ROWS_NOW][HALVES], int32_t shift,
                             LanesBits (&sums)[ROWS_NOW][1]) {
        for (int32_t r = 0; r < ROWS_NOW; ++r) {
            for (int32_t h = 0; h < HALVES; ++h) {
                const __m256i wide = _mm256_madd_epi16(acc[r][h], _mm256_set1_epi16(1));
                const __m256i scaled = _mm256_slli_epi32(wide, shift);
                sums[r][0].part[h] = sums[r][0].part[h] + reinterpret_cast<PartBits>(scaled);
            }
        }
    }

    // Weights of four columns, a byte each and below 128, times the activations at `at`, on top.
    template <int32_t ROWS_NOW, int32_t PANELS_NOW>
    INLINE static void add_four(const LanesBits (&weights)[PANELS_NOW],
                                const int8_t* const (&x)[ROWS_NOW], int32_t at,
                                LanesBits (&sums)[ROWS_NOW][PANELS_NOW]) {
        for (int32_t r = 0; r < ROWS_NOW; ++r) {
            const __m256i value = broadcast(x[r] + at);
            for (int32_t p = 0; p < PANELS_NOW; ++p) {
                for (int32_t h = 0; h < HALVES; ++h) {
                    const auto w = reinterpret_cast<__m256i>(weights[p].part[h]);
                    const __m256i pairs = _mm256_maddubs_epi16(w, value);
                    const __m256i wide = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
                    sums[r][p].part[h] = sums[r][p].part[h] + reinterpret_cast<PartBits>(wide);
                }
            }
        }
    }

    // The products of one nibble of each value.
    template <int32_t ROWS_NOW>
    INLINE static void step_places(const std::byte* group, const uint8_t (&table)[16],
                                   const int8_t* const (&x)[ROWS_NOW], int32_t first,
                                   __m256i (&acc)[ROWS_NOW][HALVES]) {
        for (int32_t c = 0; c < 4; ++c) {
            __m256i low[HALVES];
            __m256i high[HALVES];
            for (int32_t h = 0; h < HALVES; ++h) {
                const __m256i both = load_half_chunk(group + c * 64 + h * 32);
                low[h] = looked_up(low_nibbles(both), table);
                high[h] = looked_up(high_nibbles(both), table);
            }
            step(acc, low, x, first + c * 4);
            step(acc, high, x, first + 16 + c * 4);
        }
    }

    // weights: the group of the panel; x: the rows' first group; g: which group of theirs. On top
    // of what is in `sums`.
    template <class GroupKind, int32_t ROWS_NOW, int32_t PANELS_NOW>
    INLINE static void run(const std::byte* const (&weights)[PANELS_NOW],
                           const int8_t* const (&x)[ROWS_NOW], int32_t g,
                           LanesBits (&sums)[ROWS_NOW][PANELS_NOW]) {
        static_assert(PANELS_NOW == 1);
        __m256i acc[ROWS_NOW][HALVES];
        clear(acc);
        const int32_t first = g * GROUP_COLUMNS;
        const auto load_chunk = [&](int32_t c, int32_t h) {
            return load_half_chunk(weights[0] + c * 64 + h * 32);
        };
        if constexpr (std::is_same_v<GroupKind, WideNibbles>) {
            for (int32_t c = 0; c < 8; ++c) {
                const __m256i w[HALVES] = {load_chunk(c, 0), load_chunk(c, 1)};
                step(acc, w, x, first + c * 4);
            }
        } else if constexpr (std::is_same_v<GroupKind, Nibbles>) {
            for (int32_t c = 0; c < 4; ++c) {
                const __m256i both[HALVES] = {load_chunk(c, 0), load_chunk(c, 1)};
                const __m256i low[HALVES] = {low_nibbles(both[0]), low_nibbles(both[1])};
                const __m256i high[HALVES] = {high_nibbles(both[0]), high_nibbles(both[1])};
                step(acc, low, x, first + c * 4);
                step(acc, high, x, first + 16 + c * 4);
            }
        } else if constexpr (!std::is_same_v<GroupKind, Bytes>) {
            step_places(weights[0], GroupKind::VALUES.high, x, first, acc);
            widen(acc, 4, sums);
            clear(acc);
            step_places(weights[0], GroupKind::VALUES.low, x, first, acc);
        } else {
            for (int32_t c = 0; c < 8; ++c) {
                const __m256i w[HALVES] = {high_nibbles(load_chunk(c, 0)),
                                           high_nibbles(load_chunk(c, 1))};
                step(acc, w, x, first + c * 4);
            }
            widen(acc, 4, sums);
            clear(acc);
            for (int32_t c = 0; c < 8; ++c) {
                const __m256i w[HALVES] = {low_nibbles(load_chunk(c, 0)),
                                           low_nibbles(load_chunk(c, 1))};
                step(acc, w, x, first + c * 4);
            }
        }
        widen(acc, 0, sums);
    }
};

} // namespace
} // namespace sublimate::cpu

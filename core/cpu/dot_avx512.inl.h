// Exact int32 sums of one group with VNNI: vpdpbusd multiplies four unsigned weights with four
// signed activations per 32-bit lane, so that one register holds 16 outputs x 4 columns and the
// activations are one broadcast.
//
// defines: Dot
#pragma once

#include "lanes_avx512.inl.h"
#include "value_tables.inl.h"

#include <type_traits>

namespace sublimate::cpu {
namespace {

struct Dot {
    static constexpr int32_t ROWS = 6; // of a block: 24 of 32 registers are sums
    static constexpr int32_t PANELS = 2;
    static constexpr bool MULTIPLIES_BYTES = true; // all of 0 to 255, no slower than nibbles
    static constexpr int32_t ROWS_DIRECT = 12;     // up to here a block decodes panels in registers

    struct Nibbles {
        static constexpr int64_t BYTES = 256;
    };
    struct Bytes {
        static constexpr int64_t BYTES = 512;
    };
    template <class Table>
    struct Places { // four bits a weight, which stand for bytes
        static constexpr int64_t BYTES = 256;
        static constexpr TableBytes VALUES = Table::BYTES;
    };
    template <class GroupKind>
    using DecodedOf = Bytes;

    INLINE static __m512i load_chunk(const std::byte* at) { return _mm512_loadu_si512(at); }
    INLINE static __m512i broadcast(const int8_t* at) {
        int32_t four;
        __builtin_memcpy(&four, at, sizeof(four));
        return _mm512_set1_epi32(four);
    }
    INLINE static __m512i low_nibbles(__m512i both) {
        return _mm512_and_si512(both, _mm512_set1_epi8(15));
    }
    INLINE static __m512i high_nibbles(__m512i both) {
        return low_nibbles(_mm512_srli_epi16(both, 4));
    }

    // What four bits stand for.
    template <class GroupKind>
    INLINE static __m512i weights_of(__m512i nibbles) {
        if constexpr (std::is_same_v<GroupKind, Nibbles>) {
            return nibbles;
        } else {
            return looked_up(nibbles, GroupKind::VALUES.whole);
        }
    }

    template <class GroupKind>
    INLINE static void decode(const std::byte* from, std::byte* to) {
        constexpr int32_t CHUNK = 64;
        if constexpr (GroupKind::BYTES == Bytes::BYTES) {
            for (int32_t c = 0; c < 8; ++c) {
                _mm512_store_si512(to + c * CHUNK, load_chunk(from + c * CHUNK));
            }
        } else {
            for (int32_t c = 0; c < 4; ++c) {
                const __m512i both = load_chunk(from + c * CHUNK);
                _mm512_store_si512(to + c * CHUNK, weights_of<GroupKind>(low_nibbles(both)));
                _mm512_store_si512(to + (c + 4) * CHUNK, weights_of<GroupKind>(high_nibbles(both)));
            }
        }
    }

    template <int32_t ROWS_NOW, int32_t PANELS_NOW>
    INLINE static void step(__m512i (&acc)[ROWS_NOW][PANELS_NOW], const __m512i (&w)[PANELS_NOW],
                            const int8_t* const (&x)[ROWS_NOW], int32_t at) {
        for (int32_t r = 0; r < ROWS_NOW; ++r) {
            const __m512i value = broadcast(x[r] + at);
            for (int32_t p = 0; p < PANELS_NOW; ++p) {
                acc[r][p] = _mm512_dpbusd_epi32(acc[r][p], w[p], value);
            }
        }
    }

    // Weights of four columns, a byte each, times the activations at `at`, on top.
    template <int32_t ROWS_NOW, int32_t PANELS_NOW>
    INLINE static void add_four(const LanesBits (&weights)[PANELS_NOW],
                                const int8_t* const (&x)[ROWS_NOW], int32_t at,
                                LanesBits (&sums)[ROWS_NOW][PANELS_NOW]) {
        for (int32_t r = 0; r < ROWS_NOW; ++r) {
            const __m512i value = broadcast(x[r] + at);
            for (int32_t p = 0; p < PANELS_NOW; ++p) {
                const auto sum = reinterpret_cast<__m512i>(sums[r][p].part[0]);
                const auto w = reinterpret_cast<__m512i>(weights[p].part[0]);
                sums[r][p] = {reinterpret_cast<PartBits>(_mm512_dpbusd_epi32(sum, w, value))};
            }
        }
    }

    // weights: the group of each panel; x: the rows' first group; g: which group of theirs. On top
    // of what is in `sums`.
    template <class GroupKind, int32_t ROWS_NOW, int32_t PANELS_NOW>
    INLINE static void run(const std::byte* const (&weights)[PANELS_NOW],
                           const int8_t* const (&x)[ROWS_NOW], int32_t g,
                           LanesBits (&sums)[ROWS_NOW][PANELS_NOW]) {
        __m512i acc[ROWS_NOW][PANELS_NOW];
        for (int32_t r = 0; r < ROWS_NOW; ++r) {
            for (int32_t p = 0; p < PANELS_NOW; ++p) {
                acc[r][p] = reinterpret_cast<__m512i>(sums[r][p].part[0]);
            }
        }
        const int32_t first = g * GROUP_COLUMNS;
        __m512i low[PANELS_NOW];
        __m512i high[PANELS_NOW];
        if constexpr (GroupKind::BYTES == Bytes::BYTES) {
            for (int32_t c = 0; c < 8; ++c) {
                for (int32_t p = 0; p < PANELS_NOW; ++p) low[p] = load_chunk(weights[p] + c * 64);
                step(acc, low, x, first + c * 4);
            }
        } else {
            for (int32_t c = 0; c < 4; ++c) {
                for (int32_t p = 0; p < PANELS_NOW; ++p) {
                    const __m512i both = load_chunk(weights[p] + c * 64);
                    low[p] = weights_of<GroupKind>(low_nibbles(both));
                    high[p] = weights_of<GroupKind>(high_nibbles(both));
                }
                step(acc, low, x, first + c * 4);
                step(acc, high, x, first + 16 + c * 4);
            }
        }
        for (int32_t r = 0; r < ROWS_NOW; ++r) {
            for (int32_t p = 0; p < PANELS_NOW; ++p) {
                sums[r][p] = {reinterpret_cast<PartBits>(acc[r][p])};
            }
        }
    }
};

} // namespace
} // namespace sublimate::cpu

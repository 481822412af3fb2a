// Exact int32 sums of one group in 16-bit lanes, which every 64-bit machine multiplies. A 32-bit
// lane holds four columns of one output: its even and its odd bytes are pairs of 16-bit numbers.
// Products of nibbles fit: the 16 that a lane collects over a group sum to 16 * 15 * 128 = 30,720
// at most. A byte is low + 16 * high, two sums.
//
// defines: Dot
#pragma once

#include "lanes_portable.inl.h"
#include "value_tables.inl.h"

#include <type_traits>

namespace sublimate::cpu {
namespace {

using Words = int16_t __attribute__((vector_size(16)));

struct Dot {
    static constexpr int32_t ROWS = 2; // of a block with decoded panels
    static constexpr int32_t PANELS = 1;
    static constexpr bool MULTIPLIES_BYTES = false;
    static constexpr int32_t ROWS_DIRECT = 1;
    static constexpr int32_t CHUNKS = 8; // of four columns
    static constexpr uint32_t EVEN_BYTES = 0x00ff00ffu;
    static constexpr uint32_t NIBBLES_OF_BYTES = 0x0f0f0f0fu;
    static constexpr int64_t PLANE_BYTES = 1024; // nibbles of a group as 16-bit numbers

    struct Nibbles {
        static constexpr int64_t BYTES = 256;
        static constexpr int32_t PLANES = 1;
    };
    struct Bytes {
        static constexpr int64_t BYTES = 512;
        static constexpr int32_t PLANES = 2;
    };
    template <class Table>
    struct Places { // four bits a weight, which stand for bytes
        static constexpr int64_t BYTES = 256;
        static constexpr int32_t PLANES = 2;
        static constexpr TableBytes VALUES = Table::BYTES;
    };
    template <class GroupKind>
    struct Decoded { // (plane, chunk, even or odd, part): low nibbles, then high ones
        static constexpr int64_t BYTES = GroupKind::PLANES * PLANE_BYTES;
        static constexpr int32_t PLANES = GroupKind::PLANES;
    };
    template <class GroupKind>
    using DecodedOf = Decoded<GroupKind>;

    INLINE static void store_words(std::byte* to, int32_t chunk, LanesBits nibbles) {
        const LanesBits even = splat_bits(EVEN_BYTES);
        store_bits(to + chunk * 128, nibbles & even);
        store_bits(to + chunk * 128 + 64, shift_right(nibbles, 8) & even);
    }

    template <class GroupKind>
    INLINE static void decode(const std::byte* from, std::byte* to) {
        const LanesBits nibbles = splat_bits(NIBBLES_OF_BYTES);
        constexpr bool WHOLE_BYTES = std::is_same_v<GroupKind, Bytes>;
        constexpr int32_t CHUNKS_READ = WHOLE_BYTES ? CHUNKS : CHUNKS / 2;
        for (int32_t c = 0; c < CHUNKS_READ; ++c) {
            const LanesBits both = load_bits(from + c * 64);
            const LanesBits low = both & nibbles;
            const LanesBits high = shift_right(both, 4) & nibbles;
            if constexpr (WHOLE_BYTES) {
                store_words(to, c, low);
                store_words(to + PLANE_BYTES, c, high);
            } else if constexpr (std::is_same_v<GroupKind, Nibbles>) {
                store_words(to, c, low);
                store_words(to, c + CHUNKS / 2, high);
            } else {
                store_words(to, c, lookup(low, GroupKind::VALUES.low));
                store_words(to, c + CHUNKS / 2, lookup(high, GroupKind::VALUES.low));
                store_words(to + PLANE_BYTES, c, lookup(low, GroupKind::VALUES.high));
                store_words(to + PLANE_BYTES, c + CHUNKS / 2, lookup(high, GroupKind::VALUES.high));
            }
        }
    }

    // Activations 0 and 2 of a chunk, or 1 and 3, as the two 16-bit halves of every lane.
    INLINE static Words pair_of(const int8_t* x) {
        const uint32_t low = static_cast<uint16_t>(int16_t{x[0]});
        const uint32_t high = static_cast<uint32_t>(static_cast<uint16_t>(int16_t{x[2]})) << 16;
        return reinterpret_cast<Words>(PartBits{} + (low | high));
    }

    INLINE static PartBits sum_of_pairs(Words words) {
        const auto both = reinterpret_cast<PartSigned>(words);
        const auto low =
            reinterpret_cast<PartSigned>(reinterpret_cast<PartBits>(words) << 16) >> 16;
        return reinterpret_cast<PartBits>(low + (both >> 16));
    }

    // The sums of one plane of nibbles, both halves of each lane added.
    template <int32_t ROWS_NOW>
    INLINE static void run_plane(const std::byte* plane, const int8_t* const (&x)[ROWS_NOW],
                                 int32_t first, int32_t factor_bits,
                                 LanesBits (&sums)[ROWS_NOW][1]) {
        Words acc[ROWS_NOW][PARTS] = {};
        for (int32_t c = 0; c < CHUNKS; ++c) {
            for (int32_t r = 0; r < ROWS_NOW; ++r) {
                const Words even = pair_of(x[r] + first + c * 4);
                const Words odd = pair_of(x[r] + first + c * 4 + 1);
                for (int32_t i = 0; i < PARTS; ++i) {
                    Words w[2];
                    __builtin_memcpy(&w[0], plane + c * 128 + i * 16, 16);
                    __builtin_memcpy(&w[1], plane + c * 128 + 64 + i * 16, 16);
                    acc[r][i] += w[0] * even;
                    acc[r][i] += w[1] * odd;
                }
            }
        }
        for (int32_t r = 0; r < ROWS_NOW; ++r) {
            for (int32_t i = 0; i < PARTS; ++i) {
                sums[r][0].part[i] += sum_of_pairs(acc[r][i]) << factor_bits;
            }
        }
    }

    // Weights of four columns, a byte each and below 128, times the activations at `at`, on top.
    template <int32_t ROWS_NOW, int32_t PANELS_NOW>
    INLINE static void add_four(const LanesBits (&weights)[PANELS_NOW],
                                const int8_t* const (&x)[ROWS_NOW], int32_t at,
                                LanesBits (&sums)[ROWS_NOW][PANELS_NOW]) {
        const LanesBits even_bytes = splat_bits(EVEN_BYTES);
        for (int32_t r = 0; r < ROWS_NOW; ++r) {
            const Words even = pair_of(x[r] + at);
            const Words odd = pair_of(x[r] + at + 1);
            for (int32_t p = 0; p < PANELS_NOW; ++p) {
                const LanesBits w[2] = {weights[p] & even_bytes,
                                        shift_right(weights[p], 8) & even_bytes};
                for (int32_t i = 0; i < PARTS; ++i) {
                    const Words products = reinterpret_cast<Words>(w[0].part[i]) * even +
                                           reinterpret_cast<Words>(w[1].part[i]) * odd;
                    sums[r][p].part[i] += sum_of_pairs(products);
                }
            }
        }
    }

    // weights: the group of the panel; x: the rows' first group; g: which group of theirs. On top
    // of what is in `sums`.
    template <class GroupKind, int32_t ROWS_NOW, int32_t PANELS_NOW>
    INLINE static void run(const std::byte* const (&weights)[PANELS_NOW],
                           const int8_t* const (&x)[ROWS_NOW], int32_t g,
                           LanesBits (&sums)[ROWS_NOW][PANELS_NOW]) {
        static_assert(PANELS_NOW == 1);
        alignas(64) std::byte planes[GroupKind::PLANES * PLANE_BYTES];
        const std::byte* decoded = weights[0];
        if constexpr (GroupKind::BYTES < PLANE_BYTES) {
            decode<GroupKind>(weights[0], planes);
            decoded = planes;
        }
        for (int32_t plane = 0; plane < GroupKind::PLANES; ++plane) {
            run_plane(decoded + plane * PLANE_BYTES, x, g * GROUP_COLUMNS, plane * 4, sums);
        }
    }
};

} // namespace
} // namespace sublimate::cpu

// Reading the panels of the K kinds: weights of a chunk as bytes, scales of a group as floats (see
// WeightKind in ops.h for the layout).
//
// defines: K2, K3, K4, Kn4, K5, K6, Products, nibbles_of, chunk_of, byte_chunk, SuperSource
#pragma once

#include "lanes.inl.h"
#include "value_tables.inl.h"

#include <type_traits>

namespace sublimate::cpu {
namespace {

constexpr int32_t CHUNKS = 8;               // of four columns in a group
constexpr int32_t HALF_CHUNKS = CHUNKS / 2; // those in low nibbles
constexpr int64_t CHUNK_BYTES = 64;         // of 16 outputs x 4 columns
constexpr uint32_t ONE_OF_EACH_BYTE = 0x01010101u;

struct K2 {
    using Table = void;
    static constexpr SuperLayout LAYOUT = K2_LAYOUT;
    static constexpr int32_t BITS = 2;   // of a weight
    static constexpr int32_t HALVES = 2; // scales of a group
    static constexpr int32_t MINIMA = 2; // of a group
    static constexpr int32_t OFFSET = 0; // of a weight; 0: there are minima
    static constexpr bool IS_SMALL = true;
    static constexpr int32_t PRODUCT_OFFSET = 0; // up to 15 * 3
};
struct K3 {
    using Table = void;
    static constexpr SuperLayout LAYOUT = K3_LAYOUT;
    static constexpr int32_t BITS = 3;
    static constexpr int32_t HALVES = 2;
    static constexpr int32_t MINIMA = 0;
    static constexpr int32_t OFFSET = K3_OFFSET;
    static constexpr bool IS_SMALL = true;
    static constexpr int32_t PRODUCT_OFFSET = 127; // of -32 .. 31 times -4 .. 3, up to 128
};
struct K4 {
    using Table = void;
    static constexpr SuperLayout LAYOUT = K4_LAYOUT;
    static constexpr int32_t BITS = 4;
    static constexpr int32_t HALVES = 1;
    static constexpr int32_t MINIMA = 1;
    static constexpr int32_t OFFSET = 0;
    static constexpr bool IS_SMALL = false;
};
struct Kn4 {
    using Table = NonLinear;
    static constexpr SuperLayout LAYOUT = KN4_LAYOUT;
    static constexpr int32_t BITS = 4;
    static constexpr int32_t HALVES = 1;
    static constexpr int32_t MINIMA = 0;
    static constexpr int32_t OFFSET = TABLE_OFFSET;
    static constexpr bool IS_SMALL = false;
};
struct K5 {
    using Table = void;
    static constexpr SuperLayout LAYOUT = K5_LAYOUT;
    static constexpr int32_t BITS = 5;
    static constexpr int32_t HALVES = 1;
    static constexpr int32_t MINIMA = 1;
    static constexpr int32_t OFFSET = 0;
    static constexpr bool IS_SMALL = false;
};
struct K6 {
    using Table = void;
    static constexpr SuperLayout LAYOUT = K6_LAYOUT;
    static constexpr int32_t BITS = 6;
    static constexpr int32_t HALVES = 2;
    static constexpr int32_t MINIMA = 0;
    static constexpr int32_t OFFSET = K6_OFFSET;
    static constexpr bool IS_SMALL = false;
};

// Scale times weight in a byte, where both are that small: a group of one scale, d, and the same
// sum.
template <class Kind>
struct Products {
    using Table = void;
    static constexpr SuperLayout LAYOUT = Kind::LAYOUT;
    static constexpr int32_t BITS = 8;
    static constexpr int32_t HALVES = 1;
    static constexpr int32_t MINIMA = Kind::MINIMA;
    static constexpr int32_t OFFSET = Kind::PRODUCT_OFFSET;
    static constexpr bool IS_SMALL = false;
};

INLINE LanesBits shifted(LanesBits a, int32_t left) {
    return left < 0 ? shift_right(a, -left) : shift_left(a, left);
}

INLINE LanesBits nibbles_of(const std::byte* group, int32_t c) {
    const LanesBits both = load_bits(group + c % HALF_CHUNKS * CHUNK_BYTES);
    return shift_right(both, c < HALF_CHUNKS ? 0 : 4) & splat_bits(0x0f0f0f0fu);
}

// Four columns of 16 outputs, a byte each. The bits above the nibble never leave their byte.
template <class Kind>
INLINE LanesBits chunk_of(const std::byte* group, int32_t c) {
    const std::byte* planes = group + HALF_CHUNKS * CHUNK_BYTES;
    if constexpr (Kind::BITS == 2) {
        const LanesBits four = load_bits(group + c / HALF_CHUNKS * CHUNK_BYTES);
        return shift_right(four, 2 * (c % HALF_CHUNKS)) & splat_bits(0x03030303u);
    } else if constexpr (Kind::BITS == 3) {
        const LanesBits four = load_bits(group + c / HALF_CHUNKS * CHUNK_BYTES);
        const LanesBits above = shifted(load_bits(group + 2 * CHUNK_BYTES), 2 - c);
        return (shift_right(four, 2 * (c % HALF_CHUNKS)) & splat_bits(0x03030303u)) |
               (above & splat_bits(0x04040404u));
    } else if constexpr (Kind::BITS == 5) {
        const LanesBits above = shifted(load_bits(planes), 4 - c) & splat_bits(0x10101010u);
        return nibbles_of(group, c) | above;
    } else if constexpr (Kind::BITS == 6) {
        const LanesBits plane = load_bits(planes + c / HALF_CHUNKS * CHUNK_BYTES);
        const LanesBits above = shifted(plane, 4 - 2 * (c % HALF_CHUNKS));
        return nibbles_of(group, c) | (above & splat_bits(0x30303030u));
    } else if constexpr (!std::is_void_v<typename Kind::Table>) {
        return lookup(nibbles_of(group, c), Kind::Table::BYTES.whole);
    }
    return nibbles_of(group, c);
}

// The same of a kind with scales behind all groups.
INLINE LanesBits byte_chunk(WeightKind kind, const std::byte* group, int32_t c) {
    if (kind == WeightKind::u8) return load_bits(group + c * CHUNK_BYTES);
    const LanesBits nibbles = nibbles_of(group, c);
    if (kind == WeightKind::n4) return lookup(nibbles, NonLinear::BYTES.whole);
    if (kind == WeightKind::m4) return lookup(nibbles, TwiceFp4::BYTES.whole);
    return nibbles;
}

INLINE LanesBits multiply_bits(LanesBits a, LanesBits b) {
    LanesBits product;
    for (int32_t i = 0; i < PARTS; ++i) product.part[i] = a.part[i] * b.part[i];
    return product;
}
// Whole numbers below 2^22 in magnitude.
INLINE LanesBits small_integers(Lanes x) {
    constexpr uint32_t MAGIC_BITS = __builtin_bit_cast(uint32_t, EXP_ROUND_MAGIC);
    return bits_of(x + splat(EXP_ROUND_MAGIC)) + splat_bits(0u - MAGIC_BITS);
}

// A super-group as it lies in the panel.
template <class Kind>
struct SuperSource {
    static constexpr bool DECODED = false;

    const std::byte* base; // of the panel
    const std::byte* super;
    Lanes d;
    Lanes minus_dmin;

    INLINE void enter(int32_t index) {
        super = base + index * Kind::LAYOUT.bytes;
        const auto* halves = reinterpret_cast<const uint16_t*>(super + Kind::LAYOUT.super_scales);
        d = load_half(halves);
        if (Kind::OFFSET == 0) minus_dmin = splat(-1.0f) * load_half(halves + PANEL_ROWS);
    }
    INLINE const std::byte* group(int32_t g) const { return super + g * Kind::LAYOUT.group_bytes; }
    INLINE LanesBits chunk(int32_t g, int32_t c) const { return chunk_of<Kind>(group(g), c); }
    INLINE Lanes scale(int32_t g) const {
        if (Kind::HALVES == 2) return d;
        const std::byte* small = super + Kind::LAYOUT.scales + g * PANEL_ROWS;
        return d * (Kind::OFFSET == 0 ? load_uint8(small) : load_int8(small));
    }
    INLINE Lanes minimum(int32_t g) const {
        return minus_dmin * load_uint8(super + Kind::LAYOUT.minima + g * PANEL_ROWS);
    }
    // Four bits of k2's scale and minimum.
    INLINE Lanes small_nibble(int32_t g, int32_t half, int32_t shift) const {
        const int32_t i = 2 * g + half;
        const LanesBits four = load_bits(super + Kind::LAYOUT.scales + i / 4 * CHUNK_BYTES);
        return floats_from_signed(shift_right(four, 8 * (i % 4) + shift) & splat_bits(15));
    }
    INLINE Lanes half_minimum(int32_t g, int32_t half) const {
        return minus_dmin * small_nibble(g, half, 4);
    }
    INLINE Lanes half_scale(int32_t g, int32_t half) const {
        if (Kind::BITS == 2) return small_nibble(g, half, 0);
        return load_int8(super + Kind::LAYOUT.scales + (2 * g + half) * PANEL_ROWS);
    }
    // Scale times weight, and the offset. A byte of the outcome is from 0 to 255, so that what a
    // negative product borrows from the byte above is given back, modulo 2^32.
    INLINE LanesBits product(int32_t g, int32_t c) const {
        const Lanes small = half_scale(g, c / HALF_CHUNKS);
        const Lanes base = splat(static_cast<float>(Kind::PRODUCT_OFFSET)) -
                           splat(static_cast<float>(Kind::OFFSET)) * small;
        const LanesBits four = multiply_bits(splat_bits(ONE_OF_EACH_BYTE), small_integers(base));
        return multiply_bits(chunk(g, c), small_integers(small)) + four;
    }
};

} // namespace
} // namespace sublimate::cpu

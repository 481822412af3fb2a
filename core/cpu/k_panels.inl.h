// Reading the panels of the K kinds: weights of a chunk as bytes, scales of a group as floats (see
// WeightKind in ops.h for the layout).
//
// defines: K2, K4, Kn4, K5, K6, nibbles_of, chunk_of, byte_chunk, SuperSource
#pragma once

#include "lanes.inl.h"
#include "value_tables.inl.h"

#include <type_traits>

namespace sublimate::cpu {
namespace {

constexpr int32_t CHUNKS = 8;               // of four columns in a group
constexpr int32_t HALF_CHUNKS = CHUNKS / 2; // those in low nibbles
constexpr int64_t CHUNK_BYTES = 64;         // of 16 outputs x 4 columns

struct K2 {
    using Table = void;
    static constexpr SuperLayout LAYOUT = K2_LAYOUT;
    static constexpr int32_t BITS = 2;   // of a weight
    static constexpr int32_t HALVES = 2; // scales of a group
    static constexpr int32_t OFFSET = 0; // of a weight; 0: it has a minimum beside each scale
};
struct K4 {
    using Table = void;
    static constexpr SuperLayout LAYOUT = K4_LAYOUT;
    static constexpr int32_t BITS = 4;
    static constexpr int32_t HALVES = 1;
    static constexpr int32_t OFFSET = 0;
};
struct Kn4 {
    using Table = NonLinear;
    static constexpr SuperLayout LAYOUT = KN4_LAYOUT;
    static constexpr int32_t BITS = 4;
    static constexpr int32_t HALVES = 1;
    static constexpr int32_t OFFSET = TABLE_OFFSET;
};
struct K5 {
    using Table = void;
    static constexpr SuperLayout LAYOUT = K5_LAYOUT;
    static constexpr int32_t BITS = 5;
    static constexpr int32_t HALVES = 1;
    static constexpr int32_t OFFSET = 0;
};
struct K6 {
    using Table = void;
    static constexpr SuperLayout LAYOUT = K6_LAYOUT;
    static constexpr int32_t BITS = 6;
    static constexpr int32_t HALVES = 2;
    static constexpr int32_t OFFSET = K6_OFFSET;
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
};

} // namespace
} // namespace sublimate::cpu

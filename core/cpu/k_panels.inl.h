// Reading the panels of the K kinds: weights of a chunk as bytes, scales of a group as floats (see
// WeightKind in ops.h for the layout).
//
// defines: K4, K5, K6, chunk_of, SuperSource
#pragma once

#include "lanes.inl.h"

namespace sublimate::cpu {
namespace {

constexpr int32_t CHUNKS = 8;               // of four columns in a group
constexpr int32_t HALF_CHUNKS = CHUNKS / 2; // those in low nibbles
constexpr int64_t CHUNK_BYTES = 64;         // of 16 outputs x 4 columns

struct K4 {
    static constexpr SuperLayout LAYOUT = K4_LAYOUT;
    static constexpr int32_t HIGH_BITS = 0; // above a weight's nibble
    static constexpr int32_t HALVES = 1;    // scales of a group
};
struct K5 {
    static constexpr SuperLayout LAYOUT = K5_LAYOUT;
    static constexpr int32_t HIGH_BITS = 1;
    static constexpr int32_t HALVES = 1;
};
struct K6 {
    static constexpr SuperLayout LAYOUT = K6_LAYOUT;
    static constexpr int32_t HIGH_BITS = 2;
    static constexpr int32_t HALVES = 2;
};

INLINE LanesBits shifted(LanesBits a, int32_t left) {
    return left < 0 ? shift_right(a, -left) : shift_left(a, left);
}

// Four columns of 16 outputs, a byte each. The bits above the nibble never leave their byte.
template <class Kind>
INLINE LanesBits chunk_of(const std::byte* group, int32_t c) {
    const LanesBits both = load_bits(group + c % HALF_CHUNKS * CHUNK_BYTES);
    const LanesBits nibble = shift_right(both, c < HALF_CHUNKS ? 0 : 4) & splat_bits(0x0f0f0f0fu);
    const std::byte* planes = group + HALF_CHUNKS * CHUNK_BYTES;
    if constexpr (Kind::HIGH_BITS == 1) {
        return nibble | (shifted(load_bits(planes), 4 - c) & splat_bits(0x10101010u));
    } else if constexpr (Kind::HIGH_BITS == 2) {
        const LanesBits plane = load_bits(planes + c / HALF_CHUNKS * CHUNK_BYTES);
        return nibble | (shifted(plane, 4 - 2 * (c % HALF_CHUNKS)) & splat_bits(0x30303030u));
    }
    return nibble;
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
        if (Kind::HALVES == 1) minus_dmin = splat(-1.0f) * load_half(halves + PANEL_ROWS);
    }
    INLINE const std::byte* group(int32_t g) const { return super + g * Kind::LAYOUT.group_bytes; }
    INLINE LanesBits chunk(int32_t g, int32_t c) const { return chunk_of<Kind>(group(g), c); }
    INLINE Lanes scale(int32_t g) const {
        if (Kind::HALVES == 2) return d;
        return d * load_uint8(super + Kind::LAYOUT.scales + g * PANEL_ROWS);
    }
    INLINE Lanes minimum(int32_t g) const {
        return minus_dmin * load_uint8(super + Kind::LAYOUT.minima + g * PANEL_ROWS);
    }
    INLINE Lanes half_scale(int32_t g, int32_t half) const {
        return load_int8(super + Kind::LAYOUT.scales + (2 * g + half) * PANEL_ROWS);
    }
};

} // namespace
} // namespace sublimate::cpu

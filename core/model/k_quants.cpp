// Taking blocks of the K types apart and putting them together, four columns to a 32-bit word.
#include "k_quants.h"

#include <cstring>

#include "../check.h"
#include "../cpu/numbers.h"

namespace sublimate {

namespace {

using cpu::GROUP_COLUMNS;
using cpu::PANEL_ROWS;
using cpu::SUPER_COLUMNS;
using cpu::SUPER_GROUPS;
using cpu::SuperLayout;
using cpu::WeightKind;

constexpr int32_t CHUNK_BYTES = 64; // one word of each of the 16 rows
constexpr int32_t WORD_BYTES = 4;
constexpr int32_t CHUNKS = 8;             // words of a group
constexpr int32_t NIBBLE_CHUNKS = 4;      // that hold the low four bits of two of them each
constexpr uint32_t NIBBLES = 0x0f0f0f0fu; // of each byte of a word
constexpr uint32_t ONE_BITS = 0x01010101u;
constexpr uint32_t TWO_BITS = 0x03030303u;
constexpr int32_t Q6_HALF_COLUMNS = 128; // of a block of Q6_K, each laid out alike

static_assert(CHUNKS * WORD_BYTES == GROUP_COLUMNS);
static_assert(CHUNK_BYTES == PANEL_ROWS * WORD_BYTES);

template <class Number>
Number read(const std::byte* at) {
    Number number;
    std::memcpy(&number, at, sizeof number);
    return number;
}
template <class Number>
void write(std::byte* at, Number number) {
    std::memcpy(at, &number, sizeof number);
}

// Eight scales and eight minima of six bits in twelve bytes: the first four of each in the low bits
// of bytes 0-3 and 4-7, the last four in the nibbles of bytes 8-11 and the top bits of the others.
void read_six_bits(const std::byte* packed, uint8_t* scales, uint8_t* minima) {
    constexpr uint8_t LOW_SIX = 63;
    const auto* bytes = reinterpret_cast<const uint8_t*>(packed);
    for (int32_t i = 0; i < 4; i++) {
        scales[i] = bytes[i] & LOW_SIX;
        minima[i] = bytes[i + 4] & LOW_SIX;
        scales[i + 4] = static_cast<uint8_t>((bytes[i + 8] & 15) | bytes[i] >> 6 << 4);
        minima[i + 4] = static_cast<uint8_t>(bytes[i + 8] >> 4 | bytes[i + 4] >> 6 << 4);
    }
}

// Groups 2i and 2i + 1 are the low and the high nibbles of the same 32 bytes.
void read_nibbles(const std::byte* nibbles, uint8_t* values) {
    for (int32_t pair = 0; pair < SUPER_GROUPS / 2; pair++) {
        const auto* from = reinterpret_cast<const uint8_t*>(nibbles) + pair * GROUP_COLUMNS;
        uint8_t* to = values + pair * 2 * GROUP_COLUMNS;
        for (int32_t i = 0; i < GROUP_COLUMNS; i++) {
            to[i] = from[i] & 15;
            to[i + GROUP_COLUMNS] = from[i] >> 4;
        }
    }
}

KBlock read_q6_k(const std::byte* block) {
    constexpr int32_t LOW_BYTES = 128;
    constexpr int32_t HIGH_BYTES = 64;
    KBlock result = {};
    for (int32_t half = 0; half < 2; half++) {
        const auto* low = reinterpret_cast<const uint8_t*>(block) + half * LOW_BYTES / 2;
        const auto* high =
            reinterpret_cast<const uint8_t*>(block) + LOW_BYTES + half * HIGH_BYTES / 2;
        uint8_t* to = result.values + half * Q6_HALF_COLUMNS;
        for (int32_t i = 0; i < GROUP_COLUMNS; i++) {
            const uint32_t first = low[i];
            const uint32_t second = low[i + GROUP_COLUMNS];
            const uint32_t above = high[i];
            to[i] = static_cast<uint8_t>((first & 15) | (above & 3) << 4);
            to[i + 32] = static_cast<uint8_t>((second & 15) | (above >> 2 & 3) << 4);
            to[i + 64] = static_cast<uint8_t>(first >> 4 | (above >> 4 & 3) << 4);
            to[i + 96] = static_cast<uint8_t>(second >> 4 | (above >> 6) << 4);
        }
    }
    const std::byte* scales = block + LOW_BYTES + HIGH_BYTES;
    std::memcpy(result.scales, scales, sizeof result.scales);
    result.super_scale = read<uint16_t>(scales + sizeof result.scales);
    return result;
}

// Two low bits of each weight, a plane of high bits, sixteen signed scales of six bits:
// w = d * (s - 32) * (q - 4).
KBlock read_q3_k(const std::byte* block) {
    constexpr int32_t HIGH_BYTES = 32;
    constexpr int32_t LOW_BYTES = 64;
    constexpr int32_t SCALE_BYTES = 12; // low nibbles of all in eight, pairs of high bits in four
    constexpr int32_t SCALE_OFFSET = 32;
    const auto* high = reinterpret_cast<const uint8_t*>(block);
    const uint8_t* low = high + HIGH_BYTES;
    const uint8_t* scales = low + LOW_BYTES;
    KBlock result = {};
    for (int32_t c = 0; c < SUPER_COLUMNS; c++) {
        const int32_t plane = c / GROUP_COLUMNS; // bit of `high`; four of them share 32 bytes
        const int32_t i = c % GROUP_COLUMNS;
        const uint32_t two = low[plane / 4 * GROUP_COLUMNS + i] >> 2 * (plane % 4) & 3u;
        const uint32_t one = high[i] >> plane & 1u;
        result.values[c] = static_cast<uint8_t>(two | one << 2);
    }
    for (int32_t i = 0; i < 2 * SUPER_GROUPS; i++) {
        const uint32_t nibble = scales[i % 8] >> 4 * (i / 8) & 15u;
        const uint32_t above = scales[8 + i % 4] >> 2 * (i / 4) & 3u;
        const auto scale = static_cast<int32_t>(nibble | above << 4) - SCALE_OFFSET;
        result.scales[i] = static_cast<uint8_t>(static_cast<int8_t>(scale));
    }
    result.super_scale = read<uint16_t>(block + HIGH_BYTES + LOW_BYTES + SCALE_BYTES);
    return result;
}

// A byte of scale and minimum for each 16 columns, then two bits of each weight, four of which
// share a byte.
KBlock read_q2_k(const std::byte* block) {
    constexpr int32_t PAIRS = 2 * SUPER_GROUPS;
    constexpr int32_t LOW_BYTES = 64;
    const auto* pairs = reinterpret_cast<const uint8_t*>(block);
    const uint8_t* low = pairs + PAIRS;
    KBlock result = {};
    for (int32_t i = 0; i < PAIRS; i++) {
        result.scales[i] = pairs[i] & 15;
        result.minima[i] = pairs[i] >> 4;
    }
    for (int32_t c = 0; c < SUPER_COLUMNS; c++) {
        const int32_t plane = c / GROUP_COLUMNS; // four of them share 32 bytes
        result.values[c] =
            low[plane / 4 * GROUP_COLUMNS + c % GROUP_COLUMNS] >> 2 * (plane % 4) & 3;
    }
    result.super_scale = read<uint16_t>(block + PAIRS + LOW_BYTES);
    result.super_minimum = read<uint16_t>(block + PAIRS + LOW_BYTES + 2);
    return result;
}

// Eight signed scales of six bits, two above and four below, then blocks as of IQ4_NL.
KBlock read_iq4_xs(const std::byte* block) {
    constexpr int32_t HEADER_BYTES = 8; // d, pairs of high bits, low nibbles
    constexpr int32_t SCALE_OFFSET = 32;
    const auto high = read<uint16_t>(block + 2);
    const auto* low = reinterpret_cast<const uint8_t*>(block) + 4;
    const auto* places = reinterpret_cast<const uint8_t*>(block) + HEADER_BYTES;
    KBlock result = {};
    result.super_scale = read<uint16_t>(block);
    for (int32_t g = 0; g < SUPER_GROUPS; g++) {
        const uint32_t nibble = low[g / 2] >> 4 * (g % 2) & 15u;
        const uint32_t above = static_cast<uint32_t>(high) >> 2 * g & 3u;
        const auto scale = static_cast<int32_t>(nibble | above << 4) - SCALE_OFFSET;
        result.scales[g] = static_cast<uint8_t>(static_cast<int8_t>(scale));
        uint8_t* to = result.values + g * GROUP_COLUMNS;
        for (int32_t i = 0; i < GROUP_COLUMNS / 2; i++) {
            const uint8_t both = places[g * GROUP_COLUMNS / 2 + i];
            to[i] = both & 15;
            to[i + GROUP_COLUMNS / 2] = both >> 4;
        }
    }
    return result;
}

// k2, k3: a group's low bits in two words of each output; k3: the third in one more.
void write_low_bits(WeightKind kind, const KBlock& block, int32_t lane, std::byte* super) {
    for (int32_t g = 0; g < SUPER_GROUPS; g++) {
        uint32_t words[CHUNKS];
        std::memcpy(words, block.values + g * GROUP_COLUMNS, sizeof words);
        uint32_t two[2] = {};
        uint32_t third = 0;
        for (int32_t c = 0; c < CHUNKS; c++) {
            two[c / NIBBLE_CHUNKS] |= (words[c] & TWO_BITS) << 2 * (c % NIBBLE_CHUNKS);
            third |= (words[c] >> 2 & ONE_BITS) << c;
        }
        std::byte* group = super + g * cpu::super_layout(kind).group_bytes + lane * WORD_BYTES;
        write(group, two[0]);
        write(group + CHUNK_BYTES, two[1]);
        if (kind == WeightKind::k3) write(group + 2 * CHUNK_BYTES, third);
    }
}

void read_low_bits(WeightKind kind, const std::byte* super, int32_t lane, KBlock& block) {
    for (int32_t g = 0; g < SUPER_GROUPS; g++) {
        const std::byte* group =
            super + g * cpu::super_layout(kind).group_bytes + lane * WORD_BYTES;
        uint32_t words[CHUNKS];
        for (int32_t c = 0; c < CHUNKS; c++) {
            const auto two = read<uint32_t>(group + c / NIBBLE_CHUNKS * CHUNK_BYTES);
            words[c] = two >> 2 * (c % NIBBLE_CHUNKS) & TWO_BITS;
            if (kind != WeightKind::k3) continue;
            words[c] |= (read<uint32_t>(group + 2 * CHUNK_BYTES) >> c & ONE_BITS) << 2;
        }
        std::memcpy(block.values + g * GROUP_COLUMNS, words, sizeof words);
    }
}

// k2: scale and minimum in a byte.
void write_k2(const KBlock& block, int32_t lane, std::byte* super) {
    const SuperLayout layout = cpu::K2_LAYOUT;
    write_low_bits(WeightKind::k2, block, lane, super);
    for (int32_t i = 0; i < 2 * SUPER_GROUPS; i++)
        super[layout.scales + i / WORD_BYTES * CHUNK_BYTES + lane * WORD_BYTES + i % WORD_BYTES] =
            static_cast<std::byte>(block.scales[i] | block.minima[i] << 4);
    write(super + layout.super_scales + 2 * lane, block.super_scale);
    write(super + layout.super_scales + 2 * (PANEL_ROWS + lane), block.super_minimum);
}

KBlock packed_k2(const std::byte* super, int32_t lane) {
    const SuperLayout layout = cpu::K2_LAYOUT;
    KBlock block = {};
    read_low_bits(WeightKind::k2, super, lane, block);
    for (int32_t i = 0; i < 2 * SUPER_GROUPS; i++) {
        const auto both = read<uint8_t>(super + layout.scales + i / WORD_BYTES * CHUNK_BYTES +
                                        lane * WORD_BYTES + i % WORD_BYTES);
        block.scales[i] = both & 15;
        block.minima[i] = both >> 4;
    }
    block.super_scale = read<uint16_t>(super + layout.super_scales + 2 * lane);
    block.super_minimum = read<uint16_t>(super + layout.super_scales + 2 * (PANEL_ROWS + lane));
    return block;
}

// Others: nibbles of two words each, then the bits above.
void write_nibbles(WeightKind kind, const KBlock& block, int32_t lane, std::byte* super) {
    for (int32_t g = 0; g < SUPER_GROUPS; g++) {
        std::byte* group = super + g * cpu::super_layout(kind).group_bytes + lane * WORD_BYTES;
        std::byte* planes = group + NIBBLE_CHUNKS * CHUNK_BYTES;
        uint32_t words[CHUNKS];
        std::memcpy(words, block.values + g * GROUP_COLUMNS, sizeof words);
        for (int32_t c = 0; c < NIBBLE_CHUNKS; c++)
            write(group + c * CHUNK_BYTES,
                  (words[c] & NIBBLES) | (words[c + NIBBLE_CHUNKS] & NIBBLES) << 4);
        uint32_t one = 0;
        uint32_t two[2] = {};
        for (int32_t c = 0; c < CHUNKS; c++) {
            one |= (words[c] >> 4 & ONE_BITS) << c;
            two[c / NIBBLE_CHUNKS] |= (words[c] >> 4 & TWO_BITS) << 2 * (c % NIBBLE_CHUNKS);
        }
        if (kind == WeightKind::k5) write(planes, one);
        if (kind != WeightKind::k6) continue;
        write(planes, two[0]);
        write(planes + CHUNK_BYTES, two[1]);
    }
}

void read_packed_nibbles(WeightKind kind, const std::byte* super, int32_t lane, KBlock& block) {
    for (int32_t g = 0; g < SUPER_GROUPS; g++) {
        const std::byte* group =
            super + g * cpu::super_layout(kind).group_bytes + lane * WORD_BYTES;
        const std::byte* planes = group + NIBBLE_CHUNKS * CHUNK_BYTES;
        uint32_t words[CHUNKS];
        for (int32_t c = 0; c < CHUNKS; c++) {
            const bool low = c < NIBBLE_CHUNKS;
            const auto both = read<uint32_t>(group + c % NIBBLE_CHUNKS * CHUNK_BYTES);
            words[c] = both >> (low ? 0 : 4) & NIBBLES;
            if (kind == WeightKind::k5) words[c] |= (read<uint32_t>(planes) >> c & ONE_BITS) << 4;
            if (kind == WeightKind::k6)
                words[c] |=
                    (read<uint32_t>(planes + (low ? 0 : CHUNK_BYTES)) >> 2 * (c % NIBBLE_CHUNKS) &
                     TWO_BITS)
                    << 4;
        }
        std::memcpy(block.values + g * GROUP_COLUMNS, words, sizeof words);
    }
}

} // namespace

KBlock read_k_block(TensorType type, const std::byte* block) {
    if (type == TensorType::q6_k) return read_q6_k(block);
    if (type == TensorType::q3_k) return read_q3_k(block);
    if (type == TensorType::q2_k) return read_q2_k(block);
    if (type == TensorType::iq4_xs) return read_iq4_xs(block);
    CHECK(type == TensorType::q4_k || type == TensorType::q5_k);
    constexpr int32_t HEADER_BYTES = 4; // two halves
    constexpr int32_t SIX_BITS_BYTES = 12;
    KBlock result = {};
    result.super_scale = read<uint16_t>(block);
    result.super_minimum = read<uint16_t>(block + 2);
    read_six_bits(block + HEADER_BYTES, result.scales, result.minima);
    const std::byte* rest = block + HEADER_BYTES + SIX_BITS_BYTES;
    if (type == TensorType::q4_k) {
        read_nibbles(rest, result.values);
        return result;
    }
    read_nibbles(rest + GROUP_COLUMNS, result.values);
    for (int32_t c = 0; c < SUPER_COLUMNS; c++) { // bit g of a byte is the fifth of group g
        const auto above = static_cast<uint32_t>(rest[c % GROUP_COLUMNS]);
        result.values[c] |= static_cast<uint8_t>((above >> c / GROUP_COLUMNS & 1u) << 4);
    }
    return result;
}

void write_k_block(WeightKind kind, const KBlock& block, int32_t lane, std::byte* super) {
    CHECK(cpu::is_k_kind(kind));
    CHECK(lane >= 0 && lane < PANEL_ROWS);
    if (kind == WeightKind::k2) return write_k2(block, lane, super);
    const SuperLayout layout = cpu::super_layout(kind);
    if (kind == WeightKind::k3) {
        write_low_bits(kind, block, lane, super);
    } else {
        write_nibbles(kind, block, lane, super);
    }
    const int32_t halves = cpu::has_half_scales(kind) ? 2 : 1; // scales of a group
    for (int32_t i = 0; i < halves * SUPER_GROUPS; i++)
        write(super + layout.scales + i * PANEL_ROWS + lane, block.scales[i]);
    write(super + layout.super_scales + 2 * lane, block.super_scale);
    if (!cpu::has_small_minima(kind)) return;
    for (int32_t i = 0; i < SUPER_GROUPS; i++)
        write(super + layout.minima + i * PANEL_ROWS + lane, block.minima[i]);
    write(super + layout.super_scales + 2 * (PANEL_ROWS + lane), block.super_minimum);
}

KBlock packed_k_block(WeightKind kind, const std::byte* super, int32_t lane) {
    CHECK(cpu::is_k_kind(kind));
    CHECK(lane >= 0 && lane < PANEL_ROWS);
    if (kind == WeightKind::k2) return packed_k2(super, lane);
    const SuperLayout layout = cpu::super_layout(kind);
    KBlock block = {};
    if (kind == WeightKind::k3) {
        read_low_bits(kind, super, lane, block);
    } else {
        read_packed_nibbles(kind, super, lane, block);
    }
    const int32_t halves = cpu::has_half_scales(kind) ? 2 : 1;
    for (int32_t i = 0; i < halves * SUPER_GROUPS; i++)
        block.scales[i] = read<uint8_t>(super + layout.scales + i * PANEL_ROWS + lane);
    block.super_scale = read<uint16_t>(super + layout.super_scales + 2 * lane);
    if (!cpu::has_small_minima(kind)) return block;
    for (int32_t i = 0; i < SUPER_GROUPS; i++)
        block.minima[i] = read<uint8_t>(super + layout.minima + i * PANEL_ROWS + lane);
    block.super_minimum = read<uint16_t>(super + layout.super_scales + 2 * (PANEL_ROWS + lane));
    return block;
}

void k_block_to_floats(WeightKind kind, const KBlock& block, float* out) {
    const float super_scale = cpu::half_to_float(block.super_scale);
    const float super_minimum = cpu::half_to_float(block.super_minimum);
    const bool minima = cpu::has_small_minima(kind); // else scales are signed
    const int32_t run = cpu::has_half_scales(kind) ? GROUP_COLUMNS / 2 : GROUP_COLUMNS;
    int32_t offset = kind == WeightKind::k6 ? cpu::K6_OFFSET : 0;
    if (kind == WeightKind::k3) offset = cpu::K3_OFFSET;
    for (int32_t i = 0; i < SUPER_COLUMNS / run; i++) {
        const int32_t small = minima ? block.scales[i] : static_cast<int8_t>(block.scales[i]);
        const float scale = super_scale * static_cast<float>(small);
        const float minimum = minima ? super_minimum * static_cast<float>(block.minima[i]) : 0.0f;
        for (int32_t c = i * run; c < (i + 1) * run; c++) {
            const int32_t value = kind == WeightKind::kn4 ? cpu::NON_LINEAR_VALUES[block.values[c]]
                                                          : block.values[c] - offset;
            out[c] = scale * static_cast<float>(value) - minimum;
        }
    }
}

} // namespace sublimate

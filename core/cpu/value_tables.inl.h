// The tables of kinds whose four bits are a place in one, as the bytes that kernels look up: values
// made unsigned by TABLE_OFFSET, and the two nibbles of each.
//
// defines: TableBytes, NonLinear, TwiceFp4
#pragma once

#include "numbers.h"
#include "ops.h"

namespace sublimate::cpu {
namespace {

struct TableBytes {
    alignas(16) uint8_t whole[16];
    alignas(16) uint8_t low[16];
    alignas(16) uint8_t high[16];
};

constexpr TableBytes table_bytes(const int8_t (&values)[16]) {
    TableBytes bytes = {};
    for (int32_t i = 0; i < 16; ++i) {
        bytes.whole[i] = static_cast<uint8_t>(values[i] + TABLE_OFFSET);
        bytes.low[i] = bytes.whole[i] & 15;
        bytes.high[i] = bytes.whole[i] >> 4;
    }
    return bytes;
}

struct NonLinear {
    static constexpr TableBytes BYTES = table_bytes(NON_LINEAR_VALUES);
};
struct TwiceFp4 {
    static constexpr TableBytes BYTES = table_bytes(TWICE_FP4_VALUES);
};

} // namespace
} // namespace sublimate::cpu

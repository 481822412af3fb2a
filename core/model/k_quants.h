// The K types and IQ4_XS of GGUF files: blocks of 256 columns, scales in two stages. A block is
// taken apart into plain numbers, from the file or from a panel, and put into a panel (WeightKind
// in cpu/ops.h has that layout). Source of the file's: ggml, src/ggml-common.h and ggml-quants.c.
//
// defines: KBlock, is_k_type, read_k_block, write_k_block, packed_k_block, k_block_to_floats
#pragma once

#include <cstddef>
#include <cstdint>

#include "../cpu/ops.h"
#include "gguf.h"

namespace sublimate {

struct KBlock {
    uint8_t values[cpu::SUPER_COLUMNS];    // 2 to 6 bits each
    uint8_t scales[2 * cpu::SUPER_GROUPS]; // per 32 columns; k6, k3, k2: per 16
    uint8_t minima[2 * cpu::SUPER_GROUPS]; // likewise; k6, k3, kn4: not used
    uint16_t super_scale;                  // half
    uint16_t super_minimum;                // half; k6, k3, kn4: not used
};

constexpr bool is_k_type(TensorType type) {
    return (type >= TensorType::q2_k && type <= TensorType::q6_k) || type == TensorType::iq4_xs;
}

// `block` of the file, of one row.
KBlock read_k_block(TensorType type, const std::byte* block);

// The block as output `lane` of a super-group of `kind`, and back.
void write_k_block(cpu::WeightKind kind, const KBlock& block, int32_t lane, std::byte* super);
KBlock packed_k_block(cpu::WeightKind kind, const std::byte* super, int32_t lane);

// out[c] = d * s * u - dmin * m, for k6 d * s * (u - 32), for k3 d * s * (u - 4), for kn4
// d * s * value: the products of d and s, and of dmin and m, are exact in fp32.
void k_block_to_floats(cpu::WeightKind kind, const KBlock& block, float* out);

} // namespace sublimate

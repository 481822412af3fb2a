// Packing. A quantised block of the file is a row's 32 columns; a group of a panel is the same 32
// columns of 16 rows, so packing is a transposition of 4-byte words. Block layouts: ggml,
// src/ggml-common.h.
#include "pack.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "../check.h"
#include "../cpu/numbers.h"
#include "k_quants.h"

namespace sublimate {

namespace {

using cpu::GROUP_COLUMNS;
using cpu::PackedMatrix;
using cpu::PANEL_ROWS;
using cpu::SUPER_COLUMNS;
using cpu::WeightKind;

constexpr int32_t CHUNK_BYTES = 64; // one word of each of the 16 rows
constexpr int32_t WORD_BYTES = 4;
constexpr int32_t SIGNED_OFFSET = 128; // of signed bytes that were made unsigned
uint16_t read_half(const std::byte* at) {
    uint16_t value;
    std::memcpy(&value, at, sizeof value);
    return value;
}

float read_float(const std::byte* at) {
    float value;
    std::memcpy(&value, at, sizeof value);
    return value;
}

// Types with blocks of 32 columns: scale and minimum, then the weights.
struct BlockFormat {
    WeightKind kind;
    int32_t offset;
    bool affine;
    const int8_t* table = nullptr; // what the four bits of a weight stand for; null: themselves
    int32_t header_bytes = 2;      // halves, but for MXFP4
};

// A power of two that MXFP4 multiplies twice its values with: 2^(exponent - 128), as a half.
constexpr int32_t MXFP4_BIAS = 128;
constexpr int32_t HALF_EXPONENT_MIN = -24; // of a subnormal
constexpr int32_t HALF_EXPONENT_NORMAL = -14;
constexpr int32_t HALF_EXPONENT_MAX = 15;
constexpr int32_t HALF_MANTISSA_BITS = 10;

bool is_half(int32_t exponent) {
    return exponent >= HALF_EXPONENT_MIN && exponent <= HALF_EXPONENT_MAX;
}

uint16_t half_of_power(int32_t exponent) {
    CHECK(is_half(exponent));
    if (exponent < HALF_EXPONENT_NORMAL)
        return static_cast<uint16_t>(1 << (exponent - HALF_EXPONENT_MIN));
    return static_cast<uint16_t>((exponent - HALF_EXPONENT_NORMAL + 1) << HALF_MANTISSA_BITS);
}

BlockFormat block_format(TensorType type) {
    switch (type) {
    case TensorType::q4_0:
        return {WeightKind::u4, 8, false};
    case TensorType::q4_1:
        return {WeightKind::u4, 0, true, nullptr, 4};
    case TensorType::q5_0: // five bits lie in a byte each: such tensors are few
        return {WeightKind::u8, 16, false};
    case TensorType::q5_1:
        return {WeightKind::u8, 0, true, nullptr, 4};
    case TensorType::iq4_nl:
        return {WeightKind::n4, cpu::TABLE_OFFSET, false, cpu::NON_LINEAR_VALUES};
    case TensorType::mxfp4:
        return {WeightKind::m4, cpu::TABLE_OFFSET, false, cpu::TWICE_FP4_VALUES, 1};
    case TensorType::q8_0:
        return {WeightKind::u8, SIGNED_OFFSET, false};
    default:
        CHECK(false);
        return {};
    }
}

// The weights of a block, a byte each and none negative.
void block_values(TensorType type, const std::byte* block, uint8_t* values) {
    const BlockFormat format = block_format(type);
    const std::byte* weights = block + format.header_bytes;
    if (format.table != nullptr) {
        for (int32_t i = 0; i < GROUP_COLUMNS / 2; i++) {
            auto both = static_cast<uint32_t>(weights[i]);
            values[i] = static_cast<uint8_t>(format.table[both & 15u] + format.offset);
            values[i + GROUP_COLUMNS / 2] =
                static_cast<uint8_t>(format.table[both >> 4] + format.offset);
        }
        return;
    }
    if (type == TensorType::q8_0) {
        for (int32_t i = 0; i < GROUP_COLUMNS; i++)
            values[i] = static_cast<uint8_t>(static_cast<int32_t>(weights[i]) ^ SIGNED_OFFSET);
        return;
    }
    uint32_t above = 0; // bit i is the fifth of weight i
    if (type == TensorType::q5_0 || type == TensorType::q5_1) {
        std::memcpy(&above, weights, sizeof above);
        weights += sizeof above;
    }
    for (int32_t i = 0; i < GROUP_COLUMNS / 2; i++) {
        auto both = static_cast<uint32_t>(weights[i]);
        values[i] = static_cast<uint8_t>((both & 15u) | (above >> i & 1u) << 4);
        values[i + GROUP_COLUMNS / 2] =
            static_cast<uint8_t>(both >> 4 | (above >> (i + GROUP_COLUMNS / 2) & 1u) << 4);
    }
}

int32_t mxfp4_exponent(const std::byte* block) {
    return static_cast<int32_t>(*block) - MXFP4_BIAS;
}

// Of a type with blocks of 32 columns, whose scales are halves or can be.
uint16_t block_scale(TensorType type, const std::byte* block) {
    return type == TensorType::mxfp4 ? half_of_power(mxfp4_exponent(block)) : read_half(block);
}

void block_to_floats(TensorType type, const std::byte* block, float* out) {
    const BlockFormat format = block_format(type);
    float scale = type == TensorType::mxfp4 ? std::ldexp(1.0f, mxfp4_exponent(block))
                                            : cpu::half_to_float(read_half(block));
    float minimum = format.affine ? cpu::half_to_float(read_half(block + 2)) : 0.0f;
    uint8_t values[GROUP_COLUMNS];
    block_values(type, block, values);
    for (int32_t i = 0; i < GROUP_COLUMNS; i++)
        out[i] = scale * static_cast<float>(values[i] - format.offset) + minimum;
}

// Block `index` of a row.
const std::byte* block_at(const GgufTensor& tensor, const std::byte* row, int32_t block_columns,
                          int64_t index) {
    uint64_t blocks = tensor.columns() / static_cast<uint64_t>(block_columns);
    return row + static_cast<uint64_t>(index) * (tensor.row_bytes() / blocks);
}

WeightKind k_kind(TensorType type) {
    CHECK(is_k_type(type));
    if (type == TensorType::q2_k) return WeightKind::k2;
    if (type == TensorType::q3_k) return WeightKind::k3;
    if (type == TensorType::q4_k) return WeightKind::k4;
    if (type == TensorType::iq4_xs) return WeightKind::kn4;
    return type == TensorType::q5_k ? WeightKind::k5 : WeightKind::k6;
}

// One row of the file as numbers.
void row_to_floats(const GgufTensor& tensor, const std::byte* row, float* out) {
    int64_t columns = static_cast<int64_t>(tensor.columns());
    switch (tensor.type) {
    case TensorType::f32:
        std::memcpy(out, row, static_cast<size_t>(columns) * sizeof(float));
        return;
    case TensorType::f16:
        for (int64_t c = 0; c < columns; c++) out[c] = cpu::half_to_float(read_half(row + c * 2));
        return;
    case TensorType::bf16:
        for (int64_t c = 0; c < columns; c++) out[c] = cpu::bf16_to_float(read_half(row + c * 2));
        return;
    case TensorType::q2_k:
    case TensorType::q3_k:
    case TensorType::q4_k:
    case TensorType::q5_k:
    case TensorType::q6_k:
    case TensorType::iq4_xs:
        for (int64_t i = 0; i < columns / SUPER_COLUMNS; i++)
            k_block_to_floats(k_kind(tensor.type),
                              read_k_block(tensor.type, block_at(tensor, row, SUPER_COLUMNS, i)),
                              out + i * SUPER_COLUMNS);
        return;
    default:
        for (int64_t i = 0; i < columns / GROUP_COLUMNS; i++)
            block_to_floats(tensor.type, block_at(tensor, row, GROUP_COLUMNS, i),
                            out + i * GROUP_COLUMNS);
    }
}

// Whether all scales of MXFP4 lie in the range of a half, as those of trained weights do.
bool scales_are_halves(const GgufTensor& tensor) {
    CHECK(tensor.type == TensorType::mxfp4);
    uint64_t block_bytes = tensor.row_bytes() / (tensor.columns() / GROUP_COLUMNS);
    for (uint64_t at = 0; at < tensor.data.size(); at += block_bytes)
        if (!is_half(mxfp4_exponent(tensor.data.data() + at))) return false;
    return true;
}

// Rows [first, first + 16) of a quantised tensor; rows at or past the end are zero.
void pack_quantised(const GgufTensor& tensor, const PackedMatrix& shape, const RowOrder& order,
                    int32_t first, std::byte* panel) {
    bool bytes = shape.kind == WeightKind::u8;
    int32_t chunks = bytes ? 8 : 4;
    int32_t groups = shape.columns / GROUP_COLUMNS;
    std::byte* scales = panel + int64_t{groups} * chunks * CHUNK_BYTES;
    std::byte* minima = scales + int64_t{groups} * PANEL_ROWS * 2;
    int32_t rows = std::min(PANEL_ROWS, shape.rows - first);
    for (int32_t r = 0; r < rows; r++) {
        const std::byte* row =
            tensor.data.data() + static_cast<uint64_t>(order(first + r)) * tensor.row_bytes();
        for (int32_t group = 0; group < groups; group++) {
            const std::byte* block = block_at(tensor, row, GROUP_COLUMNS, group);
            uint8_t weights[GROUP_COLUMNS];
            if (bytes)
                block_values(tensor.type, block, weights);
            else
                std::memcpy(weights, block + block_format(tensor.type).header_bytes,
                            GROUP_COLUMNS / 2);
            std::byte* chunk = panel + int64_t{group} * chunks * CHUNK_BYTES + r * WORD_BYTES;
            for (int32_t c = 0; c < chunks; c++)
                std::memcpy(chunk + c * CHUNK_BYTES, weights + c * WORD_BYTES, WORD_BYTES);
            int64_t at = (int64_t{group} * PANEL_ROWS + r) * 2;
            const uint16_t scale = block_scale(tensor.type, block);
            std::memcpy(scales + at, &scale, sizeof scale);
            if (shape.affine) std::memcpy(minima + at, block + 2, 2);
        }
    }
}

void pack_k(const GgufTensor& tensor, const PackedMatrix& shape, const RowOrder& order,
            int32_t first, std::byte* panel) {
    int64_t super_bytes = cpu::super_layout(shape.kind).bytes;
    int32_t rows = std::min(PANEL_ROWS, shape.rows - first);
    for (int32_t r = 0; r < rows; r++) {
        const std::byte* row =
            tensor.data.data() + static_cast<uint64_t>(order(first + r)) * tensor.row_bytes();
        for (int32_t i = 0; i < shape.columns / SUPER_COLUMNS; i++)
            write_k_block(shape.kind,
                          read_k_block(tensor.type, block_at(tensor, row, SUPER_COLUMNS, i)), r,
                          panel + i * super_bytes);
    }
}

// Rows of a 16-bit tensor, columns outermost; the number's bits stay as they are.
void pack_halves(const GgufTensor& tensor, const PackedMatrix& shape, const RowOrder& order,
                 int32_t first, std::byte* panel) {
    int32_t rows = std::min(PANEL_ROWS, shape.rows - first);
    for (int32_t r = 0; r < rows; r++) {
        const std::byte* row =
            tensor.data.data() + static_cast<uint64_t>(order(first + r)) * tensor.row_bytes();
        for (int32_t c = 0; c < shape.columns; c++)
            std::memcpy(panel + (int64_t{c} * PANEL_ROWS + r) * 2, row + int64_t{c} * 2, 2);
    }
}

void pack_floats(const GgufTensor& tensor, const PackedMatrix& shape, const RowOrder& order,
                 int32_t first, std::vector<float>* scratch, std::byte* panel) {
    int32_t rows = std::min(PANEL_ROWS, shape.rows - first);
    scratch->resize(static_cast<size_t>(shape.columns));
    for (int32_t r = 0; r < rows; r++) {
        row_to_floats(tensor,
                      tensor.data.data() +
                          static_cast<uint64_t>(order(first + r)) * tensor.row_bytes(),
                      scratch->data());
        for (int32_t c = 0; c < shape.columns; c++)
            std::memcpy(panel + (int64_t{c} * PANEL_ROWS + r) * int64_t{sizeof(float)},
                        scratch->data() + c, sizeof(float));
    }
}

int32_t packed_value(const PackedMatrix& matrix, int32_t u) {
    if (matrix.kind == WeightKind::n4) return cpu::NON_LINEAR_VALUES[u];
    if (matrix.kind == WeightKind::m4) return cpu::TWICE_FP4_VALUES[u];
    return u - matrix.offset;
}

} // namespace

PackedMatrix shape_of_kind(WeightKind kind, int32_t rows, int32_t columns, int32_t offset,
                           bool affine) {
    CHECK(rows > 0 && columns > 0);
    PackedMatrix shape = {};
    shape.kind = kind;
    shape.rows = rows;
    shape.columns = columns;
    shape.panels = rows / PANEL_ROWS + (rows % PANEL_ROWS != 0 ? 1 : 0);
    shape.offset = offset;
    shape.affine = affine;
    shape.panel_bytes = cpu::panel_bytes_for(kind, columns, affine);
    return shape;
}

PackedMatrix packed_shape(const GgufTensor& tensor, bool exact) {
    CHECK(tensor.columns() <= INT32_MAX && tensor.rows() <= INT32_MAX);
    PackedMatrix shape = {};
    shape.rows = static_cast<int32_t>(tensor.rows());
    shape.columns = static_cast<int32_t>(tensor.columns());
    shape.panels = shape.rows / PANEL_ROWS + (shape.rows % PANEL_ROWS != 0 ? 1 : 0);
    shape.kind = WeightKind::f32;
    if (!exact) {
        switch (tensor.type) {
        case TensorType::f32:
            break;
        case TensorType::f16:
            shape.kind = WeightKind::f16;
            break;
        case TensorType::bf16:
            shape.kind = WeightKind::bf16;
            break;
        case TensorType::q2_k:
        case TensorType::q3_k:
        case TensorType::q4_k:
        case TensorType::q5_k:
        case TensorType::q6_k:
        case TensorType::iq4_xs:
            CHECK(shape.columns % SUPER_COLUMNS == 0); // the parser has seen to whole blocks
            shape.kind = k_kind(tensor.type);
            break;
        case TensorType::mxfp4:
            if (!scales_are_halves(tensor)) break;
            [[fallthrough]];
        default: {
            const BlockFormat format = block_format(tensor.type);
            shape.kind = format.kind;
            shape.offset = format.offset;
            shape.affine = format.affine;
        }
        }
    }
    shape.panel_bytes = cpu::panel_bytes_for(shape.kind, shape.columns, shape.affine);
    return shape;
}

void pack_panels(const GgufTensor& tensor, const PackedMatrix& shape, int32_t panel_begin,
                 int32_t panel_end, std::byte* data, const RowOrder& order) {
    CHECK(order.head_rows == 0 || shape.rows % order.head_rows == 0);
    CHECK(panel_begin >= 0 && panel_end <= shape.panels && !tensor.data.empty());
    std::vector<float> scratch;
    for (int32_t p = panel_begin; p < panel_end; p++) {
        std::byte* panel = data + (p - panel_begin) * shape.panel_bytes;
        int32_t first = p * PANEL_ROWS;
        // The arena is zero where it was never written, so missing rows need nothing.
        if (cpu::is_k_kind(shape.kind))
            pack_k(tensor, shape, order, first, panel);
        else if (cpu::is_quantised(shape.kind))
            pack_quantised(tensor, shape, order, first, panel);
        else if (shape.kind == WeightKind::f32)
            pack_floats(tensor, shape, order, first, &scratch, panel);
        else
            pack_halves(tensor, shape, order, first, panel);
    }
}

void unpack_row(const PackedMatrix& matrix, int32_t row, float* out) {
    CHECK(row >= 0 && row < matrix.rows);
    const std::byte* panel = matrix.data + row / PANEL_ROWS * matrix.panel_bytes;
    int32_t lane = row % PANEL_ROWS;
    if (cpu::is_k_kind(matrix.kind)) {
        int64_t super_bytes = cpu::super_layout(matrix.kind).bytes;
        for (int32_t i = 0; i < matrix.columns / SUPER_COLUMNS; i++)
            k_block_to_floats(matrix.kind,
                              packed_k_block(matrix.kind, panel + i * super_bytes, lane),
                              out + int64_t{i} * SUPER_COLUMNS);
        return;
    }
    if (!cpu::is_quantised(matrix.kind)) {
        for (int32_t c = 0; c < matrix.columns; c++) {
            int64_t at = int64_t{c} * PANEL_ROWS + lane;
            if (matrix.kind == WeightKind::f32)
                out[c] = read_float(panel + at * 4);
            else if (matrix.kind == WeightKind::f16)
                out[c] = cpu::half_to_float(read_half(panel + at * 2));
            else
                out[c] = cpu::bf16_to_float(read_half(panel + at * 2));
        }
        return;
    }
    bool bytes = matrix.kind == WeightKind::u8;
    int32_t chunks = bytes ? 8 : 4;
    int32_t groups = matrix.columns / GROUP_COLUMNS;
    const std::byte* scales = panel + int64_t{groups} * chunks * CHUNK_BYTES;
    const std::byte* minima = scales + int64_t{groups} * PANEL_ROWS * 2;
    for (int32_t group = 0; group < groups; group++) {
        int64_t at = (int64_t{group} * PANEL_ROWS + lane) * 2;
        float scale = cpu::half_to_float(read_half(scales + at));
        float minimum = matrix.affine ? cpu::half_to_float(read_half(minima + at)) : 0.0f;
        float* to = out + int64_t{group} * GROUP_COLUMNS;
        for (int32_t i = 0; i < chunks * WORD_BYTES; i++) {
            const std::byte* chunk =
                panel + (int64_t{group} * chunks + i / WORD_BYTES) * CHUNK_BYTES;
            int32_t both = static_cast<int32_t>(chunk[lane * WORD_BYTES + i % WORD_BYTES]);
            int32_t low = packed_value(matrix, bytes ? both : both & 15);
            to[i] = scale * static_cast<float>(low) + minimum;
            if (!bytes)
                to[i + GROUP_COLUMNS / 2] =
                    scale * static_cast<float>(packed_value(matrix, both >> 4)) + minimum;
        }
    }
}

void tensor_row(const GgufTensor& tensor, uint64_t row, float* out) {
    CHECK(row < tensor.rows() && !tensor.data.empty());
    row_to_floats(tensor, tensor.data.data() + row * tensor.row_bytes(), out);
}

std::vector<float> tensor_to_floats(const GgufTensor& tensor) {
    CHECK(!tensor.data.empty());
    std::vector<float> floats(static_cast<size_t>(tensor.columns() * tensor.rows()));
    for (uint64_t r = 0; r < tensor.rows(); r++)
        row_to_floats(tensor, tensor.data.data() + r * tensor.row_bytes(),
                      floats.data() + r * tensor.columns());
    return floats;
}

} // namespace sublimate

// Packing. A quantised block of the file is a row's 32 columns; a group of a panel is the same 32
// columns of 16 rows, so packing is a transposition of 4-byte words. Block layouts: ggml,
// src/ggml-common.h.
#include "pack.h"

#include <algorithm>
#include <cstring>

#include "../check.h"
#include "../cpu/numbers.h"

namespace sublimate {

namespace {

using cpu::GROUP_COLUMNS;
using cpu::PackedMatrix;
using cpu::PANEL_ROWS;
using cpu::WeightKind;

constexpr int32_t CHUNK_BYTES = 64; // one word of each of the 16 rows
constexpr int32_t WORD_BYTES = 4;
constexpr uint32_t SIGN_BITS = 0x80808080u; // signed bytes to bytes offset by 128

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

bool is_quantised(WeightKind kind) {
    return kind == WeightKind::u4 || kind == WeightKind::u8;
}

// One block of 32 weights as numbers.
void block_to_floats(TensorType type, const std::byte* block, float* out) {
    float scale = cpu::half_to_float(read_half(block));
    if (type == TensorType::q8_0) {
        for (int32_t i = 0; i < GROUP_COLUMNS; i++)
            out[i] = scale * static_cast<float>(static_cast<int8_t>(block[2 + i]));
        return;
    }
    bool affine = type == TensorType::q4_1;
    float minimum = affine ? cpu::half_to_float(read_half(block + 2)) : -8.0f * scale;
    const std::byte* nibbles = block + (affine ? 4 : 2);
    for (int32_t i = 0; i < GROUP_COLUMNS / 2; i++) {
        uint32_t both = static_cast<uint32_t>(nibbles[i]);
        out[i] = scale * static_cast<float>(both & 15u) + minimum;
        out[i + GROUP_COLUMNS / 2] = scale * static_cast<float>(both >> 4) + minimum;
    }
}

uint64_t block_bytes(TensorType type) {
    switch (type) {
    case TensorType::q4_0:
        return 18;
    case TensorType::q4_1:
        return 20;
    case TensorType::q8_0:
        return 34;
    case TensorType::f32:
        return 4;
    case TensorType::f16:
    case TensorType::bf16:
        return 2;
    }
    return 0;
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
    default:
        for (int64_t group = 0; group < columns / GROUP_COLUMNS; group++)
            block_to_floats(tensor.type,
                            row + static_cast<uint64_t>(group) * block_bytes(tensor.type),
                            out + group * GROUP_COLUMNS);
    }
}

// Rows [first, first + 16) of a quantised tensor; rows at or past the end are zero.
void pack_quantised(const GgufTensor& tensor, const PackedMatrix& shape, int32_t first,
                    std::byte* panel) {
    bool bytes = tensor.type == TensorType::q8_0;
    int32_t chunks = bytes ? 8 : 4;
    int32_t groups = shape.columns / GROUP_COLUMNS;
    uint64_t header = shape.affine ? 4 : 2;
    std::byte* scales = panel + int64_t{groups} * chunks * CHUNK_BYTES;
    std::byte* minima = scales + int64_t{groups} * PANEL_ROWS * 2;
    int32_t rows = std::min(PANEL_ROWS, shape.rows - first);
    for (int32_t r = 0; r < rows; r++) {
        const std::byte* row =
            tensor.data.data() + static_cast<uint64_t>(first + r) * tensor.row_bytes();
        for (int32_t group = 0; group < groups; group++) {
            const std::byte* block = row + static_cast<uint64_t>(group) * block_bytes(tensor.type);
            std::byte* chunk = panel + int64_t{group} * chunks * CHUNK_BYTES + r * WORD_BYTES;
            for (int32_t c = 0; c < chunks; c++) {
                uint32_t word;
                std::memcpy(&word, block + header + static_cast<uint64_t>(c) * WORD_BYTES,
                            sizeof word);
                if (bytes) word ^= SIGN_BITS;
                std::memcpy(chunk + c * CHUNK_BYTES, &word, sizeof word);
            }
            int64_t at = (int64_t{group} * PANEL_ROWS + r) * 2;
            std::memcpy(scales + at, block, 2);
            if (shape.affine) std::memcpy(minima + at, block + 2, 2);
        }
    }
}

// Rows of a 16-bit tensor, columns outermost; the number's bits stay as they are.
void pack_halves(const GgufTensor& tensor, const PackedMatrix& shape, int32_t first,
                 std::byte* panel) {
    int32_t rows = std::min(PANEL_ROWS, shape.rows - first);
    for (int32_t r = 0; r < rows; r++) {
        const std::byte* row =
            tensor.data.data() + static_cast<uint64_t>(first + r) * tensor.row_bytes();
        for (int32_t c = 0; c < shape.columns; c++)
            std::memcpy(panel + (int64_t{c} * PANEL_ROWS + r) * 2, row + int64_t{c} * 2, 2);
    }
}

void pack_floats(const GgufTensor& tensor, const PackedMatrix& shape, int32_t first,
                 std::vector<float>* scratch, std::byte* panel) {
    int32_t rows = std::min(PANEL_ROWS, shape.rows - first);
    scratch->resize(static_cast<size_t>(shape.columns));
    for (int32_t r = 0; r < rows; r++) {
        row_to_floats(tensor,
                      tensor.data.data() + static_cast<uint64_t>(first + r) * tensor.row_bytes(),
                      scratch->data());
        for (int32_t c = 0; c < shape.columns; c++)
            std::memcpy(panel + (int64_t{c} * PANEL_ROWS + r) * int64_t{sizeof(float)},
                        scratch->data() + c, sizeof(float));
    }
}

} // namespace

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
        case TensorType::q4_0:
            shape.kind = WeightKind::u4;
            shape.offset = 8;
            break;
        case TensorType::q4_1:
            shape.kind = WeightKind::u4;
            shape.affine = true;
            break;
        case TensorType::q8_0:
            shape.kind = WeightKind::u8;
            shape.offset = 128;
            break;
        }
    }
    shape.panel_bytes = cpu::panel_bytes_for(shape.kind, shape.columns, shape.affine);
    return shape;
}

void pack_panels(const GgufTensor& tensor, const PackedMatrix& shape, int32_t panel_begin,
                 int32_t panel_end, std::byte* data) {
    std::vector<float> scratch;
    for (int32_t p = panel_begin; p < panel_end; p++) {
        std::byte* panel = data + p * shape.panel_bytes;
        int32_t first = p * PANEL_ROWS;
        // The arena is zero where it was never written, so missing rows need nothing.
        if (is_quantised(shape.kind))
            pack_quantised(tensor, shape, first, panel);
        else if (shape.kind == WeightKind::f32)
            pack_floats(tensor, shape, first, &scratch, panel);
        else
            pack_halves(tensor, shape, first, panel);
    }
}

void unpack_row(const PackedMatrix& matrix, int32_t row, float* out) {
    CHECK(row >= 0 && row < matrix.rows);
    const std::byte* panel = matrix.data + row / PANEL_ROWS * matrix.panel_bytes;
    int32_t lane = row % PANEL_ROWS;
    if (!is_quantised(matrix.kind)) {
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
            int32_t low = (bytes ? both : both & 15) - matrix.offset;
            to[i] = scale * static_cast<float>(low) + minimum;
            if (!bytes)
                to[i + GROUP_COLUMNS / 2] =
                    scale * static_cast<float>((both >> 4) - matrix.offset) + minimum;
        }
    }
}

std::vector<float> tensor_to_floats(const GgufTensor& tensor) {
    std::vector<float> floats(static_cast<size_t>(tensor.columns() * tensor.rows()));
    for (uint64_t r = 0; r < tensor.rows(); r++)
        row_to_floats(tensor, tensor.data.data() + r * tensor.row_bytes(),
                      floats.data() + r * tensor.columns());
    return floats;
}

} // namespace sublimate

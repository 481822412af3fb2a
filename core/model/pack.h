// Turning a file's tensors into the panels of cpu/ops.h, and reading one row back out of panels
// (for token embeddings). Panels are independent, so any thread can pack any of them.
//
// defines: Quantise, WeightForm, RowOrder, shape_of_kind, packed_shape, pack_panels, unpack_row,
// row_to_floats, tensor_to_floats
#pragma once

#include <cstdint>
#include <vector>

#include "../cpu/ops.h"
#include "gguf.h"

namespace sublimate {

// What weights of 16 and 32 bits become (quantise.h).
enum class Quantise : int32_t { none = 0, int8 = 1, int4 = 2 };

// In which form all weights of a model are packed.
struct WeightForm {
    bool exact = false; // fp32, whatever the file has
    Quantise quantise = Quantise::none;

    bool operator==(const WeightForm&) const = default;
};

// Which row of a tensor is row r of its matrix. Files of some architectures keep the channels that
// rotate together half a head apart; here they become neighbours.
struct RowOrder {
    int32_t head_rows = 0; // of one head; 0: rows stay where they are
    int32_t rotated = 0;   // leading rows of a head, of which row i and i + rotated / 2 are a pair

    int32_t operator()(int32_t row) const {
        if (head_rows == 0) return row;
        int32_t within = row % head_rows;
        if (within >= rotated) return row;
        return row - within + within / 2 + within % 2 * (rotated / 2);
    }
};

// A matrix without data.
cpu::PackedMatrix shape_of_kind(cpu::WeightKind kind, int32_t rows, int32_t columns, int32_t offset,
                                bool affine);

// The packed form of a tensor, without data: its kind, or f32 in the exact mode.
cpu::PackedMatrix packed_shape(const GgufTensor& tensor, bool exact);

// Packs panels [panel_begin, panel_end) of `tensor` to `data`, which is zero there. Lanes past the
// last row are zero weights.
void pack_panels(const GgufTensor& tensor, const cpu::PackedMatrix& shape, int32_t panel_begin,
                 int32_t panel_end, std::byte* data, const RowOrder& order = {});

// out[c] = weight of (row, c): exactly the number that the packed matrix stands for, in fp32.
void unpack_row(const cpu::PackedMatrix& matrix, int32_t row, float* out);

// out[c] = weight of (row, c) of the file, in fp32.
void tensor_row(const GgufTensor& tensor, uint64_t row, float* out);

// The whole tensor in fp32, in file order. For vectors (norm weights).
std::vector<float> tensor_to_floats(const GgufTensor& tensor);

} // namespace sublimate

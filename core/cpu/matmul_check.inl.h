// What every kernel of a matrix product asks of its arguments.
//
// defines: check_product
#pragma once

#include "lanes.inl.h"
#include "tables.h"

namespace sublimate::cpu {
namespace {

INLINE void check_product(const PackedMatrix& matrix, const Activations& x, int32_t row_begin,
                          int32_t row_end, int32_t panel_begin, int32_t panel_end) {
    KERNEL_CHECK(matrix.columns == x.columns, "a matrix meets rows of its own width");
    KERNEL_CHECK(panel_begin >= 0 && panel_end <= matrix.panels, "panels that exist");
    KERNEL_CHECK(row_begin >= 0 && row_begin <= row_end, "rows in order");
    KERNEL_CHECK(matrix.panel_bytes >= panel_bytes_for(matrix.kind, matrix.columns, matrix.affine),
                 "panels of their full size");
}

} // namespace
} // namespace sublimate::cpu

// The matrix product of a table: checks, and the kernel of the matrix's kind.
//
// defines: matmul
#pragma once

#include "matmul_check.inl.h"
#include "matmul_float.inl.h"
#include "matmul_k.inl.h"
#include "matmul_quantised.inl.h"
#include "value_tables.inl.h"

namespace sublimate::cpu {
namespace {

void matmul(const PackedMatrix& matrix, const Activations& x, int32_t row_begin, int32_t row_end,
            int32_t panel_begin, int32_t panel_end, float* out, int64_t out_stride) {
    check_product(matrix, x, row_begin, row_end, panel_begin, panel_end);
    const MatmulCall call{matrix, x, out, out_stride};
    switch (matrix.kind) {
    case WeightKind::f32:
        matmul_float<Float32>(matrix, x, row_begin, row_end, panel_begin, panel_end, out,
                              out_stride);
        break;
    case WeightKind::f16:
        matmul_float<Float16>(matrix, x, row_begin, row_end, panel_begin, panel_end, out,
                              out_stride);
        break;
    case WeightKind::bf16:
        matmul_float<Bfloat16>(matrix, x, row_begin, row_end, panel_begin, panel_end, out,
                               out_stride);
        break;
    case WeightKind::u4:
        if (matrix.affine) {
            matmul_quantised<Dot::Nibbles, true>(call, row_begin, row_end, panel_begin, panel_end);
        } else {
            matmul_quantised<Dot::Nibbles, false>(call, row_begin, row_end, panel_begin, panel_end);
        }
        break;
    case WeightKind::u8:
        if (matrix.affine) {
            matmul_quantised<Dot::Bytes, true>(call, row_begin, row_end, panel_begin, panel_end);
        } else {
            matmul_quantised<Dot::Bytes, false>(call, row_begin, row_end, panel_begin, panel_end);
        }
        break;
    case WeightKind::n4:
        matmul_quantised<Dot::Places<NonLinear>, false>(call, row_begin, row_end, panel_begin,
                                                        panel_end);
        break;
    case WeightKind::m4:
        matmul_quantised<Dot::Places<TwiceFp4>, false>(call, row_begin, row_end, panel_begin,
                                                       panel_end);
        break;
    case WeightKind::k2:
        matmul_k<K2>(call, row_begin, row_end, panel_begin, panel_end);
        break;
    case WeightKind::k3:
        matmul_k<K3>(call, row_begin, row_end, panel_begin, panel_end);
        break;
    case WeightKind::kn4:
        matmul_k<Kn4>(call, row_begin, row_end, panel_begin, panel_end);
        break;
    case WeightKind::k4:
        matmul_k<K4>(call, row_begin, row_end, panel_begin, panel_end);
        break;
    case WeightKind::k5:
        matmul_k<K5>(call, row_begin, row_end, panel_begin, panel_end);
        break;
    case WeightKind::k6:
        matmul_k<K6>(call, row_begin, row_end, panel_begin, panel_end);
        break;
    }
}

} // namespace
} // namespace sublimate::cpu

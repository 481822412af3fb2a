// The thin products of low-rank adapters: matrices of few outputs or few columns, for one row or
// many. Each output has four chains of fused multiply-adds, so that a single row of a single panel
// does not wait for the latency of one.
//
// defines: low_rank
#pragma once

#include "matmul_float.inl.h"

namespace sublimate::cpu {
namespace {

constexpr int32_t LOW_RANK_SUMS = 4;
// As many rows as have their sums in registers.
constexpr int32_t LOW_RANK_ROWS = PARTS == 1 ? 4 : 1;

template <class Kind, int32_t ROWS>
INLINE void low_rank_block(const LowRankCall& call, int32_t row, int32_t panel) {
    const PackedMatrix& matrix = call.matrix;
    const std::byte* weights = matrix.data + panel * matrix.panel_bytes;
    const float* values = call.x + row * call.x_stride;
    Lanes sums[ROWS][LOW_RANK_SUMS];
    for (auto& chains : sums) {
        for (Lanes& sum : chains) sum = splat(0.0f);
    }
    const auto step = [&](int32_t column, int32_t chain) {
        const Lanes weight = Kind::load_weights(weights + int64_t{column} * LANES * Kind::BYTES);
        for (int32_t r = 0; r < ROWS; ++r) {
            sums[r][chain] = fma(weight, splat(values[r * call.x_stride + column]), sums[r][chain]);
        }
    };
    int32_t column = 0;
    for (; column + LOW_RANK_SUMS <= matrix.columns; column += LOW_RANK_SUMS) {
        for (int32_t chain = 0; chain < LOW_RANK_SUMS; ++chain) step(column + chain, chain);
    }
    for (int32_t chain = 0; chain < LOW_RANK_SUMS; ++chain) {
        if (column + chain < matrix.columns) step(column + chain, chain);
    }
    const int32_t outputs = panel_outputs(matrix, panel);
    for (int32_t r = 0; r < ROWS; ++r) {
        float* to = call.out + (row + r) * call.out_stride + int64_t{panel} * PANEL_ROWS;
        const Lanes sum = (sums[r][0] + sums[r][1]) + (sums[r][2] + sums[r][3]);
        const Lanes before = !call.adds         ? splat(0.0f)
                             : outputs == LANES ? load(to)
                                                : load_first(to, outputs);
        store_outputs(to, fma(sum, splat(call.factor), before), outputs);
    }
}

template <class Kind>
void low_rank_panels(const LowRankCall& call) {
    for (int32_t panel = 0; panel < call.matrix.panels; ++panel) {
        int32_t row = 0;
        for (; row + LOW_RANK_ROWS <= call.rows; row += LOW_RANK_ROWS) {
            low_rank_block<Kind, LOW_RANK_ROWS>(call, row, panel);
        }
        for (; row < call.rows; ++row) low_rank_block<Kind, 1>(call, row, panel);
    }
}

void low_rank(const LowRankCall& call) {
    KERNEL_CHECK(call.rows >= 0 && call.matrix.columns <= call.x_stride, "rows of their width");
    switch (call.matrix.kind) {
    case WeightKind::f32:
        low_rank_panels<Float32>(call);
        break;
    case WeightKind::f16:
        low_rank_panels<Float16>(call);
        break;
    case WeightKind::bf16:
        low_rank_panels<Bfloat16>(call);
        break;
    default:
        misuse("a low-rank matrix is of floats");
    }
}

} // namespace
} // namespace sublimate::cpu

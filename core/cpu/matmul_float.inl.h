// Matrix products of the kinds that are not quantised: every output is one chain of fused
// multiply-adds over its columns in order. Blocks of rows and panels run side by side only to hide
// the latency of the chain.
//
// defines: matmul_float
#pragma once

#include "lanes.inl.h"

namespace sublimate::cpu {
namespace {

constexpr int64_t FLOAT_PREFETCH_BYTES = 4096;

struct Float32 {
    static constexpr int64_t BYTES = 4;
    INLINE static Lanes load_weights(const std::byte* at) { return floats_of(load_bits(at)); }
};
struct Float16 {
    static constexpr int64_t BYTES = 2;
    INLINE static Lanes load_weights(const std::byte* at) {
        return load_half(reinterpret_cast<const uint16_t*>(at));
    }
};
struct Bfloat16 {
    static constexpr int64_t BYTES = 2;
    INLINE static Lanes load_weights(const std::byte* at) {
        return load_bf16(reinterpret_cast<const uint16_t*>(at));
    }
};

// How many lanes of a panel exist: all but in the last.
INLINE int32_t panel_outputs(const PackedMatrix& matrix, int32_t panel) {
    const int32_t left = matrix.rows - panel * PANEL_ROWS;
    return left < PANEL_ROWS ? left : PANEL_ROWS;
}
INLINE void store_outputs(float* to, Lanes value, int32_t count) {
    if (count == LANES) {
        store(to, value);
    } else {
        store_first(to, value, count);
    }
}

template <class Kind, int32_t ROWS, int32_t PANELS>
INLINE void float_block(const PackedMatrix& matrix, const Activations& x, int32_t row,
                        int32_t panel, float* out, int64_t out_stride) {
    const std::byte* weights = matrix.data + panel * matrix.panel_bytes;
    const float* values = x.f32 + int64_t{row} * x.columns;
    Lanes sums[ROWS][PANELS];
    for (auto& panels : sums) {
        for (Lanes& sum : panels) sum = splat(0.0f);
    }
    for (int32_t column = 0; column < matrix.columns; ++column) {
        Lanes weight[PANELS];
        for (int32_t p = 0; p < PANELS; ++p) {
            const std::byte* at = weights + p * matrix.panel_bytes + column * LANES * Kind::BYTES;
            __builtin_prefetch(at + FLOAT_PREFETCH_BYTES);
            weight[p] = Kind::load_weights(at);
        }
        for (int32_t r = 0; r < ROWS; ++r) {
            const Lanes value = splat(values[int64_t{r} * x.columns + column]);
            for (int32_t p = 0; p < PANELS; ++p) sums[r][p] = fma(weight[p], value, sums[r][p]);
        }
    }
    for (int32_t r = 0; r < ROWS; ++r) {
        for (int32_t p = 0; p < PANELS; ++p) {
            store_outputs(out + (row + r) * out_stride + int64_t{panel + p} * PANEL_ROWS,
                          sums[r][p], panel_outputs(matrix, panel + p));
        }
    }
}

template <class Kind, int32_t PANELS>
INLINE void float_rows(const PackedMatrix& matrix, const Activations& x, int32_t row_begin,
                       int32_t row_end, int32_t panel, float* out, int64_t out_stride) {
    int32_t row = row_begin;
    for (; row + FLOAT_ROWS <= row_end; row += FLOAT_ROWS) {
        float_block<Kind, FLOAT_ROWS, PANELS>(matrix, x, row, panel, out, out_stride);
    }
    for (; row < row_end; ++row) {
        float_block<Kind, 1, PANELS>(matrix, x, row, panel, out, out_stride);
    }
}

template <class Kind>
void matmul_float(const PackedMatrix& matrix, const Activations& x, int32_t row_begin,
                  int32_t row_end, int32_t panel_begin, int32_t panel_end, float* out,
                  int64_t out_stride) {
    int32_t panel = panel_begin;
    for (; panel + FLOAT_PANELS <= panel_end; panel += FLOAT_PANELS) {
        float_rows<Kind, FLOAT_PANELS>(matrix, x, row_begin, row_end, panel, out, out_stride);
    }
    for (; panel < panel_end; ++panel) {
        float_rows<Kind, 1>(matrix, x, row_begin, row_end, panel, out, out_stride);
    }
}

} // namespace
} // namespace sublimate::cpu

// What the files of the step share: forward.cpp (a step from its rows to the last layer's end),
// forward_attention.cpp, forward_feed_forward.cpp (the two blocks of a layer, and the head) and
// forward_experts.cpp (a feed-forward of several).
//
// defines: quantised, any_quantised, divide_up, scale, CpuModel::share_rows
#pragma once

#include <algorithm>

#include "forward.h"

namespace sublimate::cpu {

inline bool quantised(const PackedMatrix& matrix) {
    return is_quantised(matrix.kind);
}

inline bool any_quantised(const FusedProjection& projection) {
    for (int32_t i = 0; i < projection.part_count; i++)
        if (quantised(projection.parts[i])) return true;
    return false;
}

inline int32_t divide_up(int32_t count, int32_t size) {
    return (count + size - 1) / size;
}

inline void scale(float* x, int32_t count, float factor) {
    if (factor == 1.0f) return;
    for (int32_t i = 0; i < count; i++) x[i] *= factor;
}

template <class Body>
void CpuModel::share_rows(int32_t thread, int32_t rows, Body&& body) {
    int32_t rows_per_item = plan_->rows_per_item;
    pool_.share(thread, divide_up(rows, rows_per_item), [&](int32_t item) {
        int32_t end = std::min(rows, (item + 1) * rows_per_item);
        for (int32_t row = item * rows_per_item; row < end; row++) body(row);
    });
}

} // namespace sublimate::cpu

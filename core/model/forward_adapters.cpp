// Low-rank adapters in a step: before a place's matrices are multiplied, a phase that brings each
// row down to the rank of its adapter; then each product gets its part of the way up. Both are sums
// of a row alone, in one order. Without a row that has an adapter there is no such phase.
#include <algorithm>

#include "../check.h"
#include "forward_parts.h"

namespace sublimate::cpu {

namespace {

// Of one item: they read a panel of A once.
constexpr int32_t ADAPTER_ROWS_MAX = 32;

} // namespace

Status CpuModel::use_adapters(const Adapters& adapters) {
    adapters_ = &adapters;
    if (adapters.columns_max == 0) return Status::success();
    int64_t bytes = int64_t{limits::STEP_ROWS_MAX} * adapters.columns_max * int64_t{sizeof(float)};
    RETURN_IF_ERROR(AnonymousMemory::map(bytes, "rows of adapters", &adapter_memory_));
    low_rank_ = reinterpret_cast<float*>(adapter_memory_.data());
    return Status::success();
}

// Those of one adapter behind each other, so that its weights are read from memory once.
void CpuModel::prepare_adapters(const Step& step) {
    adapter_rows_count_ = 0;
    bool any = false;
    for (int32_t s = 0; s < step.segment_count; s++) any = any || step.segments[s].adapter != 0;
    if (!any) return;
    for (int32_t s = 0; s < step.segment_count; s++) {
        const Segment& segment = step.segments[s];
        CHECK_BECAUSE(segment.adapter >= 0 && segment.adapter <= adapter_count(),
                      "a row asks for an adapter that is not there");
        std::fill_n(row_adapters_.begin() + segment.first_row, segment.row_count, segment.adapter);
        if (segment.adapter == 0) continue;
        for (int32_t i = 0; i < segment.row_count; i += ADAPTER_ROWS_MAX) {
            int32_t begin = segment.first_row + i;
            int32_t end = begin + std::min(ADAPTER_ROWS_MAX, segment.row_count - i);
            auto count = static_cast<size_t>(adapter_rows_count_);
            AdapterRows* last = count > 0 ? &adapter_rows_[count - 1] : nullptr;
            if (last != nullptr && last->adapter == segment.adapter && last->end == begin &&
                end - last->begin <= ADAPTER_ROWS_MAX) {
                last->end = end;
                continue;
            }
            adapter_rows_[count] = {segment.adapter, begin, end};
            adapter_rows_count_++;
        }
    }
    std::sort(adapter_rows_.begin(), adapter_rows_.begin() + adapter_rows_count_,
              [](const AdapterRows& a, const AdapterRows& b) {
                  return a.adapter != b.adapter ? a.adapter < b.adapter : a.begin < b.begin;
              });
}

void CpuModel::run_adapters(int32_t thread, int32_t layer_index, AdapterPlace place,
                            const ActivationBuffer& x) {
    if (adapter_rows_count_ == 0) return;
    int32_t panels_max = 0;
    for (int32_t i = 0; i < adapter_rows_count_; i++) {
        const AdapterRows& rows = adapter_rows_[static_cast<size_t>(i)];
        panels_max = std::max(panels_max, update_of(rows.adapter, layer_index, place).down.panels);
    }
    if (panels_max == 0) return;
    pool_.share(thread, panels_max * adapter_rows_count_, [&](int32_t item) {
        const AdapterRows& rows = adapter_rows_[static_cast<size_t>(item % adapter_rows_count_)];
        const LowRankUpdate& update = update_of(rows.adapter, layer_index, place);
        int32_t panel = item / adapter_rows_count_;
        if (panel >= update.down.panels) return;
        LowRankCall call = {};
        call.matrix = update.down;
        call.matrix.data += panel * update.down.panel_bytes;
        call.matrix.panels = 1;
        call.matrix.rows = PANEL_ROWS;
        call.x = x.f32 + int64_t{rows.begin} * x.columns;
        call.x_stride = x.columns;
        call.rows = rows.end - rows.begin;
        call.out_stride = adapters_->columns_max;
        call.out = low_rank_ + rows.begin * call.out_stride + panel * PANEL_ROWS;
        call.factor = update.factors[static_cast<size_t>(panel)];
        ops_->low_rank(call);
    });
    pool_.barrier();
}

void CpuModel::add_adapters(int32_t layer_index, AdapterPlace place, const RowBlock& block,
                            int32_t first_panel, int32_t panels, float* product,
                            int64_t stride) const {
    if (adapter_rows_count_ == 0) return;
    for (int32_t row = block.begin, end = row; row < block.end; row = end) {
        int32_t adapter = row_adapters_[static_cast<size_t>(row)];
        while (end < block.end && row_adapters_[static_cast<size_t>(end)] == adapter) end++;
        if (adapter == 0) continue;
        const LowRankUpdate& update = update_of(adapter, layer_index, place);
        for (int32_t i = 0; i < update.output_count; i++) {
            const LowRankOutput& output = update.outputs[i];
            int32_t from = std::max(first_panel, output.first_panel);
            int32_t to = std::min(first_panel + panels, output.first_panel + output.up.panels);
            if (from >= to) continue;
            LowRankCall call = {};
            call.matrix = output.up;
            call.matrix.data += (from - output.first_panel) * output.up.panel_bytes;
            call.matrix.panels = to - from;
            call.matrix.rows -= (from - output.first_panel) * PANEL_ROWS;
            call.matrix.rows = std::min(call.matrix.rows, (to - from) * PANEL_ROWS);
            call.x_stride = adapters_->columns_max;
            call.x = low_rank_ + row * call.x_stride + output.first_column;
            call.rows = end - row;
            call.out = product + (row - block.begin) * stride + (from - first_panel) * PANEL_ROWS;
            call.out_stride = stride;
            call.factor = 1.0f;
            call.adds = true;
            ops_->low_rank(call);
        }
    }
}

} // namespace sublimate::cpu

// Sizes of work items: enough items that threads of unequal speed end together, and each large
// enough that claiming it costs nothing.
#include "plan.h"

#include <algorithm>

#include "../check.h"

namespace sublimate::cpu {

namespace {

constexpr int32_t ITEMS_PER_THREAD = 8;
constexpr int64_t ITEM_BYTES_MAX = 64
                                   << 10; // weights of one item: they stay in L2 for all its rows

int32_t panels_per_item(const PackedMatrix& matrix, int32_t panels, int32_t rows, int32_t blocks,
                        int32_t threads) {
    int32_t balanced =
        static_cast<int32_t>(int64_t{panels} * blocks / (threads * ITEMS_PER_THREAD));
    int32_t cached = static_cast<int32_t>(ITEM_BYTES_MAX / matrix.panel_bytes);
    int32_t fitting = PlanTable::ITEM_FLOATS_MAX / (rows * PANEL_ROWS);
    // Kernels run two panels side by side.
    return std::max(2, std::min({balanced, cached, fitting}) / 2 * 2);
}

} // namespace

PlanTable::PlanTable(const ModelConfig& config, const Weights& weights, int32_t threads)
    : threads_(threads) {
    CHECK(threads >= 1);
    const LayerWeights& layer = weights.layers.front();
    for (int32_t i = 0; i < BUCKETS; i++) {
        StepPlan& plan = plans_[i];
        int32_t rows = ROWS_MAX[i];
        plan.rows_max = rows;
        plan.repeats_norms = rows <= REPEATED_NORM_ROWS_MAX;
        plan.rows_per_item = std::clamp(rows / (threads * ITEMS_PER_THREAD), 1, 16);
        plan.rows_per_block = std::min(rows, BLOCK_ROWS_MAX);
        int32_t blocks = rows / plan.rows_per_block;
        auto panels = [&](const PackedMatrix& matrix, int32_t count) {
            return panels_per_item(matrix, count, plan.rows_per_block, blocks, threads);
        };
        // Two activation rows for each row.
        plan.query_key_value =
            panels_per_item(layer.query_key_value.parts[0],
                            (config.query_columns() + 2 * config.kv_columns()) / PANEL_ROWS,
                            2 * plan.rows_per_block, blocks, threads);
        plan.attention_output =
            panels_per_item(layer.attention_output, layer.attention_output.panels,
                            2 * plan.rows_per_block, blocks, threads);
        // Of an expert; each row meets `experts_used`, and an item of the last matrix all of them.
        const int32_t experts = std::max(config.experts, 1);
        plan.gate_up = panels_per_item(layer.gate, layer.gate.panels / experts, plan.rows_per_block,
                                       blocks * config.experts_used, threads);
        plan.down = panels(layer.down, layer.down.panels / experts);
        plan.head = panels(weights.head, weights.head.panels);
        CHECK(plan.gate_up * PANEL_ROWS * plan.rows_per_block <= ITEM_FLOATS_MAX);
    }
}

const StepPlan& PlanTable::for_rows(int32_t rows) const {
    for (const StepPlan& plan : plans_)
        if (rows <= plan.rows_max) return plan;
    CHECK_BECAUSE(false, "a step has more rows than STEP_ROWS_MAX");
    return plans_[BUCKETS - 1];
}

} // namespace sublimate::cpu

// How a step of some number of rows is cut into work items for some number of threads, decided once
// at load for a few of both. None of it changes a result: an item computes whole outputs of whole
// rows.
//
// defines: StepPlan, PlanTable
#pragma once

#include <cstdint>

#include "../limits.h"
#include "config.h"
#include "weights.h"

namespace sublimate::cpu {

struct StepPlan {
    int32_t rows_max;   // steps of up to so many rows
    bool repeats_norms; // every thread norms all rows for itself, which costs less than a barrier
    int32_t rows_per_item;    // of row-wise work: norms, rope
    int32_t rows_per_block;   // of matrix items
    int32_t query_key_value;  // panels per item
    int32_t attention_output; // likewise
    int32_t gate_up; // panels of gate and as many of up; even, so that items end between groups
    int32_t down;    // likewise
    int32_t head;    // likewise
};

class PlanTable {
public:
    static constexpr int32_t BUCKETS = 5;
    static constexpr int32_t ROWS_MAX[BUCKETS] = {4, 16, 64, 256, limits::STEP_ROWS_MAX};
    static constexpr int32_t REPEATED_NORM_ROWS_MAX = 4;
    static constexpr int32_t BLOCK_ROWS_MAX = 128;
    // Outputs of one matrix item, times its rows: what fits a thread's scratch, and its L1/L2
    // cache.
    static constexpr int32_t ITEM_FLOATS_MAX = 16384;

    PlanTable(const ModelConfig& config, const Weights& weights, int32_t threads);
    int32_t threads() const { return threads_; }
    const StepPlan& for_rows(int32_t rows) const;

private:
    int32_t threads_;
    StepPlan plans_[BUCKETS] = {};
};

} // namespace sublimate::cpu

// What a step costs: linear in its rows and in the positions that they attend to. The host measures
// the prices once, before the first request, and hands them in; from then on the scheduler weighs
// time against time with integers alone, so that equal inputs give equal plans on any machine. Only
// ratios of prices matter to it.
//
// defines: StepCost, DEFAULT_STEP_COST, sane_cost, decode_row_cost, prompt_rows_cost,
// prompt_rows_within
#pragma once

#include <cstdint>

#include "../check.h"
#include "../limits.h"

namespace sublimate {

// In picoseconds, since a position may cost less than a nanosecond.
struct StepCost {
    int64_t step_ps;            // of any step: the weights are read, the threads meet
    int64_t prompt_step_ps;     // besides, of a step with prompt rows
    int64_t decode_row_ps;      // a generated row and its logits
    int64_t decode_position_ps; // each position that it attends to
    int64_t prompt_row_ps;      // a prompt row
    int64_t prompt_position_ps; // each position that it attends to
};

// Of a 135M-parameter model in 4 bits on two cores with VNNI.
constexpr StepCost DEFAULT_STEP_COST = {.step_ps = 2'500'000'000,
                                        .prompt_step_ps = 2'000'000'000,
                                        .decode_row_ps = 630'000'000,
                                        .decode_position_ps = 970'000,
                                        .prompt_row_ps = 500'000'000,
                                        .prompt_position_ps = 350'000};

// Ten seconds a row and a millisecond a position: no sum over a step leaves int64, not even after
// it was multiplied by a percentage.
constexpr int64_t ROW_COST_PS_MAX = 10'000'000'000'000;
constexpr int64_t POSITION_COST_PS_MAX = 1'000'000'000;
constexpr int64_t COST_FACTOR_MAX = 100; // what a sum over a step may be multiplied by
static_assert((ROW_COST_PS_MAX + POSITION_COST_PS_MAX * limits::CONTEXT_TOKENS_MAX) *
                  limits::SEQUENCES_MAX <
              INT64_MAX / COST_FACTOR_MAX);
static_assert((ROW_COST_PS_MAX + POSITION_COST_PS_MAX * limits::CONTEXT_TOKENS_MAX) *
                  limits::STEP_ROWS_MAX <
              INT64_MAX / 10);

SUBLIMATE_HD constexpr bool sane_cost(const StepCost& c) {
    const int64_t rows[] = {c.step_ps, c.prompt_step_ps, c.decode_row_ps, c.prompt_row_ps};
    const int64_t positions[] = {c.decode_position_ps, c.prompt_position_ps};
    for (int64_t price : rows)
        if (price < 0 || price > ROW_COST_PS_MAX) return false;
    for (int64_t price : positions)
        if (price < 0 || price > POSITION_COST_PS_MAX) return false;
    return c.decode_row_ps > 0 && c.prompt_row_ps > 0;
}
static_assert(sane_cost(DEFAULT_STEP_COST));

// One generated row at a position.
SUBLIMATE_HD constexpr int64_t decode_row_cost(const StepCost& c, int32_t position) {
    return c.decode_row_ps + c.decode_position_ps * position;
}

// Consecutive rows of a prompt from `position` on.
SUBLIMATE_HD constexpr int64_t prompt_rows_cost(const StepCost& c, int32_t position, int32_t rows) {
    int64_t attended = int64_t{rows} * position + int64_t{rows} * (rows - 1) / 2;
    return c.prompt_row_ps * rows + c.prompt_position_ps * attended;
}

// The most rows, up to rows_max, of a prompt at `position` that cost no more than budget_ps.
SUBLIMATE_HD constexpr int32_t prompt_rows_within(const StepCost& c, int32_t position,
                                                  int32_t rows_max, int64_t budget_ps) {
    int32_t low = 0;
    int32_t high = rows_max;
    while (low < high) {
        int32_t middle = low + (high - low + 1) / 2;
        if (prompt_rows_cost(c, position, middle) <= budget_ps)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

} // namespace sublimate

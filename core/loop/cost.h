// What a step costs: linear in its rows and in the positions that they attend to. The host measures
// the prices before the first request and hands them in; the loop then scales them by what steps
// really take, since other processes were busy during the measurement, or are now. The scheduler
// weighs time against time with integers alone, so that equal prices give equal plans on any
// machine. Only ratios of prices matter to it.
//
// defines: StepCost, DEFAULT_STEP_COST, sane_cost, decode_row_cost, prompt_rows_cost,
// prompt_rows_within, CostScale, follow, scaled
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

// Measured prices times these, in parts of CostScale::ONE. A median filter: each step moves a scale
// by the same small part, up or down, so that one step that lost its core for a while counts no
// more than any other; 45 steps double a scale.
struct CostScale {
    static constexpr int32_t ONE = 1024;
    static constexpr int32_t LEAST = ONE / 4;
    static constexpr int32_t MOST = ONE * 4;
    static constexpr int32_t PART = 64;

    int32_t decode = ONE; // of the prices of any step and of generated rows
    int32_t prompt = ONE;
};

SUBLIMATE_HD constexpr int32_t follow(int32_t scale, int64_t predicted_ps, int64_t took_ps) {
    int32_t move = scale / CostScale::PART;
    int32_t moved = took_ps > predicted_ps ? scale + move : scale - move;
    if (moved < CostScale::LEAST) return CostScale::LEAST;
    return moved > CostScale::MOST ? CostScale::MOST : moved;
}

SUBLIMATE_HD constexpr int64_t scaled_price(int64_t price, int32_t scale, int64_t least,
                                            int64_t most) {
    int64_t product = price * scale / CostScale::ONE;
    if (product < least) return least;
    return product > most ? most : product;
}

SUBLIMATE_HD constexpr StepCost scaled(const StepCost& c, const CostScale& s) {
    constexpr int64_t ROW = ROW_COST_PS_MAX;
    constexpr int64_t POSITION = POSITION_COST_PS_MAX;
    return {scaled_price(c.step_ps, s.decode, 0, ROW),
            scaled_price(c.prompt_step_ps, s.prompt, 0, ROW),
            scaled_price(c.decode_row_ps, s.decode, 1, ROW),
            scaled_price(c.decode_position_ps, s.decode, 0, POSITION),
            scaled_price(c.prompt_row_ps, s.prompt, 1, ROW),
            scaled_price(c.prompt_position_ps, s.prompt, 0, POSITION)};
}
static_assert(sane_cost(scaled(DEFAULT_STEP_COST, {CostScale::MOST, CostScale::LEAST})));

} // namespace sublimate

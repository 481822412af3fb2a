// Steps before the first request, on pages that no request owns yet: the caches, the branch
// predictors and the memory's first touch are paid here and not by the first request. Timing them
// gives the scheduler its prices (loop/cost.h). Where these are known already, one step of either
// kind is enough.
//
// defines: WarmUpStep, warm_up_model, touch_model
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <vector>

#include "../loop/cost.h"
#include "../loop/memory.h"
#include "../loop/step.h"
#include "engine.h"

namespace sublimate {

// Some sequences that decode, and a chunk of a prompt. No two share a page, as in a busy server.
class WarmUpStep {
public:
    WarmUpStep(int32_t decode_rows, int32_t decode_position, int32_t prompt_rows,
               int32_t prompt_position) {
        CHECK(decode_position >= 0 && prompt_position >= 0 && decode_rows + prompt_rows >= 1);
        int32_t longest = std::max(decode_position + 1, prompt_position + prompt_rows);
        stride_ = pages_for(longest);
        for (int32_t i = 0; i < decode_rows; i++)
            add_segment(decode_position, 1, Arithmetic::generated);
        if (prompt_rows > 0) add_segment(prompt_position, prompt_rows, Arithmetic::prompt);
    }

    bool fits(const LoopConfig& config) const {
        auto rows = static_cast<int32_t>(tokens_.size());
        return pages_ <= config.pages && rows <= limits::STEP_ROWS_MAX &&
               stride_ <= config.context_tokens / limits::PAGE_TOKENS;
    }

    Step step() const {
        Step step = {};
        step.row_count = static_cast<int32_t>(tokens_.size());
        step.segment_count = static_cast<int32_t>(segments_.size());
        step.logit_row_count = static_cast<int32_t>(logit_rows_.size());
        step.page_table_stride = stride_;
        step.tokens = tokens_.data();
        step.positions = positions_.data();
        step.segments = segments_.data();
        step.logit_rows = logit_rows_.data();
        step.page_tables = page_tables_.data();
        return step;
    }

private:
    void add_segment(int32_t position, int32_t rows, Arithmetic arithmetic) {
        auto index = static_cast<int32_t>(segments_.size());
        auto first_row = static_cast<int32_t>(tokens_.size());
        bool generated = arithmetic == Arithmetic::generated;
        int32_t prompt_length = generated ? position : position + rows;
        segments_.push_back({index, first_row, rows, position, prompt_length, arithmetic, 0, 0, 0});
        for (int32_t i = 0; i < rows; i++) {
            tokens_.push_back(0);
            positions_.push_back(position + i);
        }
        logit_rows_.push_back(first_row + rows - 1);
        for (int32_t page = 0; page < stride_; page++)
            page_tables_.push_back(page < pages_for(position + rows) ? pages_++ : 0);
    }

    int32_t stride_ = 0;
    int32_t pages_ = 0;
    std::vector<int32_t> tokens_, positions_, logit_rows_, page_tables_;
    std::vector<Segment> segments_;
};

namespace warm_up {

constexpr int32_t ROUNDS = 2;
// The first positions of a sequence cost a model more than later ones: none of the steps that are
// compared has them.
constexpr int32_t NEAR_POSITION = limits::PAGE_TOKENS;
constexpr int32_t DECODE_ROWS = 16;
constexpr int32_t DECODE_POSITION = 256;
constexpr int32_t CHUNK_ROWS = 16;
constexpr int32_t CHUNK_POSITION = 1024;
constexpr int32_t LONG_ROWS = 128;
constexpr double PS_PER_NS = 1e3;

// Least time of each step, in picoseconds.
struct Times {
    double one, decode, decode_deep, chunk, chunk_deep, prompt;
};

inline double attended(int32_t position, int32_t rows) {
    double whole = rows;
    return whole * position + whole * (whole - 1) / 2;
}

inline int64_t price(double ps, int64_t least, int64_t most) {
    return static_cast<int64_t>(
        std::clamp(ps, static_cast<double>(least), static_cast<double>(most)));
}

// Two unknowns at a time, from steps that differ in one thing. What noise makes negative is 0.
inline StepCost solve(const Times& t, int32_t chunk_position) {
    double near_row = (t.decode - t.one) / (DECODE_ROWS - 1);
    double step = std::max(0.0, t.one - near_row);
    double decode_position =
        (t.decode_deep - t.decode) / (DECODE_ROWS * (DECODE_POSITION - NEAR_POSITION));
    double decode_row = near_row - std::max(0.0, decode_position) * NEAR_POSITION;
    double prompt_position =
        std::max(0.0, (t.chunk_deep - t.chunk) / (CHUNK_ROWS * (chunk_position - NEAR_POSITION)));
    double chunk = t.chunk - t.decode - prompt_position * attended(NEAR_POSITION, CHUNK_ROWS);
    double prompt = t.prompt - step - prompt_position * attended(0, LONG_ROWS);
    // A row costs least in the largest chunk; what a small one costs beyond that is fixed.
    double prompt_row = std::min((prompt - chunk) / (LONG_ROWS - CHUNK_ROWS), chunk / CHUNK_ROWS);
    double prompt_step = chunk - CHUNK_ROWS * prompt_row;
    return {price(step, 0, ROW_COST_PS_MAX),       price(prompt_step, 0, ROW_COST_PS_MAX),
            price(decode_row, 1, ROW_COST_PS_MAX), price(decode_position, 0, POSITION_COST_PS_MAX),
            price(prompt_row, 1, ROW_COST_PS_MAX), price(prompt_position, 0, POSITION_COST_PS_MAX)};
}

} // namespace warm_up

// Runs the steps; what they cost, or the prices of `config` if the context or the pages are too few
// to tell. Nothing may run meanwhile.
template <class Model>
StepCost warm_up_model(Model& model, const LoopConfig& config) {
    using namespace warm_up;
    CHECK(config.pages > 0 && sane_cost(config.cost));
    int32_t whole_pages = config.context_tokens / limits::PAGE_TOKENS * limits::PAGE_TOKENS;
    int32_t chunk_position = std::min(CHUNK_POSITION, whole_pages - LONG_ROWS);
    const WarmUpStep steps[] = {
        {1, NEAR_POSITION, 0, 0},
        {DECODE_ROWS, NEAR_POSITION, 0, 0},
        {DECODE_ROWS, DECODE_POSITION, 0, 0},
        {DECODE_ROWS, NEAR_POSITION, CHUNK_ROWS, NEAR_POSITION},
        {DECODE_ROWS, NEAR_POSITION, CHUNK_ROWS, std::max(0, chunk_position)},
        {0, 0, LONG_ROWS, 0},
    };
    constexpr size_t COUNT = std::size(steps);
    double best[COUNT];
    bool all = chunk_position > NEAR_POSITION;
    for (const WarmUpStep& each : steps) all = all && each.fits(config);
    for (int32_t round = 0; round < ROUNDS; round++) {
        for (size_t i = 0; i < COUNT; i++) {
            if (!steps[i].fits(config)) continue;
            if (i + 1 == COUNT && round > 0) continue; // it takes long and varies little
            Step step = steps[i].step();
            int64_t begin_ns = monotonic_ns();
            model.forward(step);
            double ps = static_cast<double>(monotonic_ns() - begin_ns) * PS_PER_NS;
            best[i] = round == 0 ? ps : std::min(best[i], ps);
        }
    }
    if (!all) return config.cost;
    return solve({best[0], best[1], best[2], best[3], best[4], best[5]}, chunk_position);
}

// Runs a step of a row alone and one of decode rows beside a chunk, and measures neither. Nothing
// may run meanwhile.
template <class Model>
void touch_model(Model& model, const LoopConfig& config) {
    using namespace warm_up;
    CHECK(config.pages > 0);
    const WarmUpStep steps[] = {{1, NEAR_POSITION, 0, 0},
                                {DECODE_ROWS, NEAR_POSITION, CHUNK_ROWS, NEAR_POSITION}};
    for (const WarmUpStep& each : steps) {
        if (!each.fits(config)) continue;
        Step step = each.step();
        model.forward(step);
    }
}

} // namespace sublimate

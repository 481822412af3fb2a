// The cost of a step: sums and their inverse agree, no sum overflows, and warm-up finds the prices
// of a model that takes exactly the time that some prices say.
#include "../../core/engine/warm_up.h"
#include "../../core/loop/cost.h"
#include "test.h"

#include <cstdlib>
#include <random>

namespace sublimate {
namespace {

TEST(the_most_rows_within_a_budget) {
    std::mt19937_64 random(5);
    for (int32_t round = 0; round < 20000; round++) {
        StepCost cost = DEFAULT_STEP_COST;
        cost.prompt_row_ps = 1 + static_cast<int64_t>(random() % 1'000'000'000);
        cost.prompt_position_ps = static_cast<int64_t>(random() % 1'000'000);
        auto position = static_cast<int32_t>(random() % limits::CONTEXT_TOKENS_MAX);
        auto rows_max = static_cast<int32_t>(random() % (limits::STEP_ROWS_MAX + 1));
        auto budget = static_cast<int64_t>(random() % 200'000'000'000);
        int32_t rows = prompt_rows_within(cost, position, rows_max, budget);
        EXPECT(rows >= 0 && rows <= rows_max);
        EXPECT(prompt_rows_cost(cost, position, rows) <= budget);
        if (rows < rows_max) EXPECT(prompt_rows_cost(cost, position, rows + 1) > budget);
    }
    EXPECT_EQ(prompt_rows_within(DEFAULT_STEP_COST, 0, 100, -1), 0);
}

TEST(the_dearest_step_fits_its_integers) {
    StepCost dear = {ROW_COST_PS_MAX,      ROW_COST_PS_MAX, ROW_COST_PS_MAX,
                     POSITION_COST_PS_MAX, ROW_COST_PS_MAX, POSITION_COST_PS_MAX};
    EXPECT(sane_cost(dear));
    int64_t decode = decode_row_cost(dear, limits::CONTEXT_TOKENS_MAX) * limits::SEQUENCES_MAX;
    int64_t prompt = prompt_rows_cost(dear, limits::CONTEXT_TOKENS_MAX, limits::STEP_ROWS_MAX);
    EXPECT(decode > 0 && prompt > 0 && decode < INT64_MAX / 100 && prompt < INT64_MAX / 10);
    dear.decode_row_ps = 0;
    EXPECT(!sane_cost(dear));
}

// Whatever the measurement said and whatever a few steps do: half of them take less than predicted.
TEST(a_scale_finds_the_median_and_forgets_outliers) {
    std::mt19937_64 random(9);
    for (double truth : {0.3, 0.7, 1.0, 1.9, 3.5}) {
        constexpr int64_t PRICE_PS = 1'000'000'000;
        int32_t scale = CostScale::ONE;
        int32_t above = 0;
        for (int32_t step = 0; step < 2000; step++) {
            int64_t predicted = PRICE_PS * scale / CostScale::ONE;
            double noise = 0.97 + 0.06 * static_cast<double>(random() % 1000) / 1000;
            if (random() % 20 == 0) noise = 30; // its core was somebody else's
            auto took = static_cast<int64_t>(truth * noise * static_cast<double>(PRICE_PS));
            scale = follow(scale, predicted, took);
            if (step >= 1000) above += predicted > took;
        }
        EXPECT(std::abs(scale - truth * CostScale::ONE) < 0.06 * truth * CostScale::ONE);
        EXPECT(above > 400 && above < 600);
    }
}

TEST(a_scale_stays_within_its_bounds) {
    int32_t up = CostScale::ONE;
    int32_t down = CostScale::ONE;
    for (int32_t step = 0; step < 1000; step++) {
        up = follow(up, 1, INT64_MAX);
        down = follow(down, INT64_MAX, -5);
    }
    EXPECT_EQ(up, CostScale::MOST);
    EXPECT_EQ(down, CostScale::LEAST);
    EXPECT(follow(down, 0, 1) > down && follow(up, 1, 0) < up);
    StepCost dear = {ROW_COST_PS_MAX,      ROW_COST_PS_MAX, ROW_COST_PS_MAX,
                     POSITION_COST_PS_MAX, ROW_COST_PS_MAX, POSITION_COST_PS_MAX};
    EXPECT(sane_cost(scaled(dear, {up, up})));
    EXPECT(sane_cost(scaled({0, 0, 1, 0, 1, 0}, {down, down})));
    StepCost twice = scaled(DEFAULT_STEP_COST, {CostScale::ONE, 2 * CostScale::ONE});
    EXPECT_EQ(twice.decode_row_ps, DEFAULT_STEP_COST.decode_row_ps);
    EXPECT_EQ(twice.prompt_position_ps, 2 * DEFAULT_STEP_COST.prompt_position_ps);
}

// Prices that differ as those of real models do, and back from the times of six steps.
TEST(prices_are_found_from_times) {
    std::mt19937_64 random(6);
    for (int32_t round = 0; round < 1000; round++) {
        auto price = [&random](int64_t most) {
            return 1 + static_cast<int64_t>(random() % static_cast<uint64_t>(most));
        };
        StepCost c = {price(5'000'000'000), price(2'000'000'000), price(900'000'000),
                      price(2'000'000),     price(700'000'000),   price(800'000)};
        auto decode = [&c](int32_t rows, int32_t position) {
            return c.step_ps + rows * decode_row_cost(c, position);
        };
        auto prompt = [&c](int32_t position, int32_t rows) {
            return c.prompt_step_ps + prompt_rows_cost(c, position, rows);
        };
        using namespace warm_up;
        constexpr int32_t DEEP = 1000;
        int64_t many = decode(DECODE_ROWS, NEAR_POSITION);
        auto ps = [](int64_t time) { return static_cast<double>(time); };
        StepCost found =
            solve({ps(decode(1, NEAR_POSITION)), ps(many), ps(decode(DECODE_ROWS, DECODE_POSITION)),
                   ps(many + prompt(NEAR_POSITION, CHUNK_ROWS)),
                   ps(many + prompt(DEEP, CHUNK_ROWS)), ps(c.step_ps + prompt(0, LONG_ROWS))},
                  DEEP);
        auto near = [](int64_t a, int64_t b) {
            return std::abs(a - b) <= std::max<int64_t>(a, b) / 100 + 10;
        };
        EXPECT(near(found.step_ps, c.step_ps));
        EXPECT(near(found.decode_row_ps, c.decode_row_ps));
        EXPECT(near(found.decode_position_ps, c.decode_position_ps));
        EXPECT(near(found.prompt_position_ps, c.prompt_position_ps));
        EXPECT(near(found.prompt_row_ps, c.prompt_row_ps));
        EXPECT(near(found.prompt_step_ps, c.prompt_step_ps));
    }
}

TEST(noise_never_makes_a_price_that_is_not_sane) {
    std::mt19937_64 random(7);
    for (int32_t round = 0; round < 1000; round++) {
        auto time = [&random] { return static_cast<double>(random() % 400'000'000'000); };
        warm_up::Times times = {time(), time(), time(), time(), time(), time()};
        EXPECT(sane_cost(warm_up::solve(times, 1000)));
    }
}

} // namespace
} // namespace sublimate

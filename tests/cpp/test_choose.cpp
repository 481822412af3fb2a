// The choice of threads and kernels as a function of times: what is preferred stays unless
// something else is faster by more than noise, and little is measured to find out.
#include <algorithm>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "core/engine/choose.h"
#include "test.h"

namespace {

using namespace sublimate;
using namespace sublimate::cpu;

const Ops WIDE = {};
const Ops NARROW = {};
const Candidates BOTH = {{2, 1}, {&WIDE, &NARROW}};

// A machine of which it is known how long a step takes by each variant.
struct Machine {
    std::map<std::pair<const Ops*, int32_t>, double> ns;
    double noise = 0; // a step takes up to so much longer than it must
    std::mt19937_64 random{11};
    int32_t steps = 0;

    double disturbed = 0; // chance of a step that takes far longer, and shows it

    choose::Timing operator()(const Variant& variant) {
        steps++;
        double share = static_cast<double>(random() % 1000) / 1000;
        double took = ns.at({variant.ops, variant.threads}) * (1 + noise * share);
        if (static_cast<double>(random() % 1000) / 1000 < disturbed) return {5 * took, true};
        return {took, false};
    }
};

Candidates threads_only(int32_t size) {
    return {thread_counts(size), {&WIDE}};
}

// What choose_variants needs of a model.
struct CountingModel {
    Choice choices[PHASES] = {{{&WIDE, 2}, {}}, {{&WIDE, 2}, {}}};
    int32_t few_steps = 0, many_steps = 0;

    const Candidates& candidates() const { return BOTH; }
    int64_t waited_ns() const { return 0; }
    void set_choice(Phase phase, const Choice& choice) {
        choices[static_cast<size_t>(phase)] = choice;
    }
    const float* forward(const Step& step) {
        (phase_of(step.row_count) == Phase::few_rows ? few_steps : many_steps)++;
        return nullptr;
    }
};

} // namespace

TEST(counts_are_all_and_the_powers_of_two_below) {
    EXPECT(thread_counts(1) == std::vector<int32_t>{1});
    EXPECT(thread_counts(2) == (std::vector<int32_t>{2, 1}));
    EXPECT(thread_counts(6) == (std::vector<int32_t>{6, 4, 2, 1}));
    EXPECT(thread_counts(16) == (std::vector<int32_t>{16, 8, 4, 2, 1}));
}

TEST(rows_have_a_phase) {
    EXPECT(phase_of(1) == Phase::few_rows);
    EXPECT(phase_of(PlanTable::REPEATED_NORM_ROWS_MAX) == Phase::few_rows);
    EXPECT(phase_of(PlanTable::REPEATED_NORM_ROWS_MAX + 1) == Phase::many_rows);
}

TEST(one_candidate_is_not_measured) {
    Machine machine;
    Choice choice = choose::choose_variant(threads_only(1), machine);
    EXPECT(choice.kept.ops == &WIDE && choice.kept.threads == 1);
    EXPECT(choice.measured.empty());
    EXPECT_EQ(machine.steps, 0);
}

TEST(ties_and_noise_keep_what_is_preferred) {
    for (double half : {100.0, 101.0, 96.0, 87.1, 1000.0}) {
        Machine machine{.ns = {{{&WIDE, 2}, 100.0}, {{&WIDE, 1}, half}}};
        Choice choice = choose::choose_variant(threads_only(2), machine);
        EXPECT_EQ(choice.kept.threads, 2);
        EXPECT_EQ(choice.kept.least_ns, 100.0);
        EXPECT_EQ(choice.measured.size(), 2u);
    }
}

TEST(what_is_faster_by_more_than_noise_is_kept) {
    Machine machine{.ns = {{{&WIDE, 2}, 100.0}, {{&WIDE, 1}, 86.0}}};
    EXPECT_EQ(choose::choose_variant(threads_only(2), machine).kept.threads, 1);
    // Of those within noise of the fastest, the most threads; 8 is not among them.
    Machine large{
        .ns = {{{&WIDE, 8}, 120.0}, {{&WIDE, 4}, 113.0}, {{&WIDE, 2}, 100.0}, {{&WIDE, 1}, 101.0}}};
    EXPECT_EQ(choose::choose_variant(threads_only(8), large).kept.threads, 4);
}

TEST(clearly_slower_ends_the_list_and_costs_one_step) {
    Machine machine{.ns = {{{&WIDE, 16}, 100.0}, {{&WIDE, 8}, 160.0}}}; // no more is asked for
    Choice choice = choose::choose_variant(threads_only(16), machine);
    EXPECT_EQ(choice.kept.threads, 16);
    EXPECT_EQ(choice.measured.size(), 2u);
    EXPECT_EQ(machine.steps, 2);
}

TEST(a_slow_start_is_forgiven) {
    int32_t steps = 0;
    auto time_ns = [&](const Variant& variant) {
        bool first = steps++ == 0;
        double took = variant.threads == 2 ? (first ? 500.0 : 100.0) : 180.0;
        return choose::Timing{took, false};
    };
    Choice choice = choose::choose_variant(threads_only(2), time_ns);
    EXPECT_EQ(choice.kept.threads, 2);
    EXPECT_EQ(choice.kept.least_ns, 100.0);
}

TEST(noise_does_not_outweigh_a_clear_difference) {
    for (uint64_t seed = 0; seed < 500; seed++) {
        Machine machine{.ns = {{{&WIDE, 2}, 100.0}, {{&WIDE, 1}, 190.0}}, .noise = 0.7};
        machine.random.seed(seed);
        EXPECT_EQ(choose::choose_variant(threads_only(2), machine).kept.threads, 2);
    }
}

TEST(disturbed_times_decide_nothing) {
    for (uint64_t seed = 0; seed < 500; seed++) {
        Machine machine{.ns = {{{&WIDE, 2}, 100.0}, {{&WIDE, 1}, 120.0}}, .disturbed = 0.5};
        machine.random.seed(seed);
        Choice choice = choose::choose_variant(threads_only(2), machine);
        EXPECT_EQ(choice.kept.threads, 2);
        for (const Variant& each : choice.measured) EXPECT(each.least_ns <= 120.0);
    }
    // What is better in truth is kept only if both were seen at rest.
    Machine machine{.ns = {{{&WIDE, 2}, 100.0}, {{&WIDE, 1}, 50.0}}, .disturbed = 1};
    Choice choice = choose::choose_variant(threads_only(2), machine);
    EXPECT(choice.kept.threads == 2 && choice.measured.empty());
}

TEST(kernels_are_compared_on_the_threads_that_were_kept) {
    Machine machine{.ns = {{{&WIDE, 2}, 100.0}, {{&WIDE, 1}, 80.0}, {{&NARROW, 1}, 60.0}}};
    Choice choice = choose::choose_variant(BOTH, machine);
    EXPECT(choice.kept.ops == &NARROW && choice.kept.threads == 1);
    EXPECT_EQ(choice.measured.size(), 3u);
    machine.ns[{&NARROW, 1}] = 79.0; // no more than noise
    EXPECT(choose::choose_variant(BOTH, machine).kept.ops == &WIDE);
    machine.ns[{&NARROW, 1}] = 300.0;
    choice = choose::choose_variant(BOTH, machine);
    EXPECT(choice.kept.ops == &WIDE && choice.kept.threads == 1);
    EXPECT_EQ(choice.kept.least_ns, 80.0);
}

// Large models: each candidate once is enough, since their steps vary less.
TEST(long_steps_are_measured_once) {
    Machine machine{.ns = {{{&WIDE, 2}, choose::BUDGET_NS}, {{&WIDE, 1}, choose::BUDGET_NS}}};
    EXPECT_EQ(choose::choose_variant(threads_only(2), machine).kept.threads, 2);
    EXPECT_EQ(machine.steps, 2);
}

TEST(both_phases_of_a_model_are_measured) {
    LoopConfig config;
    config.pages = 1000;
    config.context_tokens = 4096;
    CountingModel model;
    choose_variants(model, config);
    EXPECT(model.few_steps > 2 && model.many_steps > 2);
    for (const Choice& choice : model.choices) {
        EXPECT(choice.measured.size() >= 3 && choice.measured.size() <= 4);
        EXPECT(choice.kept.least_ns > 0);
    }
    CountingModel small;
    config.pages = 4; // a row has room, a batch has not
    choose_variants(small, config);
    EXPECT(small.few_steps > 2);
    EXPECT_EQ(small.many_steps, 0);
    EXPECT(small.choices[1].measured.empty() && small.choices[1].kept.threads == 2);
}

// After a crash: nothing is measured again, and the model's memory is touched all the same.
TEST(what_an_engine_before_has_measured_costs_one_step_of_either_kind) {
    LoopConfig config;
    config.pages = 1000;
    config.context_tokens = 4096;
    CountingModel first;
    choose_variants(first, config);
    Measured measured = {{1e9, 1e12}, {first.choices[0], first.choices[1]}, DEFAULT_STEP_COST};
    measured.choices[0].kept.threads = 1;
    CountingModel next;
    take_choices(next, measured);
    touch_model(next, config);
    EXPECT_EQ(next.few_steps, 1);
    EXPECT_EQ(next.many_steps, 1);
    EXPECT_EQ(next.choices[0].kept.threads, 1);
    EXPECT(next.choices[1].kept.ops == first.choices[1].kept.ops);
    CountingModel small;
    config.pages = 4; // a row has room, a batch has not
    touch_model(small, config);
    EXPECT(small.few_steps == 1 && small.many_steps == 0);
}

TEST(what_was_measured_of_another_model_is_not_gone_by) {
    const Measured good = {{1e9, 1e12}, {{{&WIDE, 2}, {}}, {{&NARROW, 1}, {}}}, DEFAULT_STEP_COST};
    EXPECT(is_of(good, BOTH));
    EXPECT(!is_of(good, threads_only(2))); // kernels that this one may not take
    EXPECT(!is_of(good, Candidates{{1}, {&WIDE, &NARROW}}));
    Measured bad = good;
    bad.cost.decode_row_ps = 0;
    EXPECT(!is_of(bad, BOTH));
    bad = good;
    bad.rates.bytes_per_s = -1;
    EXPECT(!is_of(bad, BOTH));
    bad = good;
    bad.choices[1].kept.ops = nullptr;
    EXPECT(!is_of(bad, BOTH));
}

// Chooses by measurement how the steps of a loaded model run: on how many threads, and by which of
// the kernels that return equal bits. Two steps stand for all: a row alone, which takes as long as
// reading the weights, and a batch that decodes beside a piece of a prompt, which computes. What is
// preferred (all threads, the widest instruction set) stays unless something else is faster by more
// than noise. A measurement during which a thread waited for its core, because the edge starts
// beside it or because others are busy, tells nothing and is dropped.
//
// defines: Timing, kept, time_in_turn, choose_variant, choose_variants, take_choices
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <vector>

#include "../check.h"
#include "measured.h"
#include "stopwatch.h"
#include "warm_up.h"

namespace sublimate {

namespace choose {

constexpr double NOISE = 1.15;          // times that differ by less are equal
constexpr double CLEARLY_SLOWER = 1.25; // no further round will mend that
constexpr int32_t ROUNDS = 3;
constexpr double BUDGET_NS = 40e6; // a round that begins later is left out
// A thread that sat out the step before is asleep; in a running server it is not.
constexpr int32_t CALLS_OF_FEW_ROWS = 2;
constexpr double DISTURBED_PART = 0.02; // of the time, spent waiting for a core

struct Timing {
    double ns;
    bool disturbed;
};

// Index of the first variant that only noise tells from the fastest. Without an undisturbed time of
// what is preferred there is nothing to compare with, and it stays.
inline size_t kept(const std::vector<cpu::Variant>& variants) {
    CHECK(!variants.empty());
    double best_ns = variants[0].least_ns;
    if (best_ns == 0) return 0;
    for (const cpu::Variant& each : variants)
        if (each.least_ns > 0) best_ns = std::min(best_ns, each.least_ns);
    size_t index = 0;
    while (variants[index].least_ns == 0 || variants[index].least_ns > best_ns * NOISE) index++;
    return index;
}

// Measures variants, which come in order of preference, turn by turn: what disturbs a while then
// disturbs all. One that is clearly slower ends the list. The first may have been measured before.
template <class Time>
void time_in_turn(std::vector<cpu::Variant>& variants, Time&& time_ns) {
    CHECK(!variants.empty());
    double spent_ns = 0;
    double best_ns = variants[0].least_ns;
    size_t contenders = variants.size();
    for (int32_t round = 0; round < ROUNDS && spent_ns < BUDGET_NS; round++) {
        for (size_t i = 0; i < contenders; i++) {
            cpu::Variant& each = variants[i];
            if (round == 0 && each.least_ns > 0) continue;
            auto [ns, disturbed] = time_ns(each);
            CHECK(ns > 0);
            spent_ns += ns;
            if (disturbed && i == 0 && each.least_ns == 0) return; // no time for comparisons
            if (disturbed) continue;
            each.least_ns = each.least_ns > 0 ? std::min(each.least_ns, ns) : ns;
            best_ns = best_ns > 0 ? std::min(best_ns, ns) : ns;
            if (round == 0 && ns > best_ns * CLEARLY_SLOWER) contenders = i;
        }
        if (contenders < variants.size()) variants.resize(contenders + 1);
        if (contenders == 1) break;
    }
}

// First the number of threads, by the preferred kernels, then the kernels on that number. `time_ns`
// times a step of a variant.
template <class Time>
cpu::Choice choose_variant(const cpu::Candidates& candidates, Time&& time_ns) {
    cpu::Choice choice;
    choice.kept = {candidates.ops.front(), candidates.threads.front()};
    auto choose = [&](std::vector<cpu::Variant> variants) {
        if (variants.size() == 1) return;
        time_in_turn(variants, time_ns);
        std::erase_if(choice.measured, [&](const cpu::Variant& each) {
            return each.ops == variants[0].ops && each.threads == variants[0].threads;
        });
        choice.kept = variants[kept(variants)];
        std::copy_if(variants.begin(), variants.end(), std::back_inserter(choice.measured),
                     [](const cpu::Variant& each) { return each.least_ns > 0; });
    };
    std::vector<cpu::Variant> variants;
    for (int32_t threads : candidates.threads) variants.push_back({choice.kept.ops, threads});
    choose(variants);
    variants = {choice.kept};
    for (size_t i = 1; i < candidates.ops.size(); i++)
        variants.push_back({candidates.ops[i], choice.kept.threads});
    choose(variants);
    return choice;
}

} // namespace choose

// Nothing may run meanwhile. A phase whose step does not fit the context or the pages stays as it
// is.
template <class Model>
void choose_variants(Model& model, const LoopConfig& config) {
    using namespace warm_up;
    CHECK(config.pages > 0);
    for (cpu::Phase phase : {cpu::Phase::few_rows, cpu::Phase::many_rows}) {
        bool few = phase == cpu::Phase::few_rows;
        WarmUpStep rows = few ? WarmUpStep(1, NEAR_POSITION, 0, 0)
                              : WarmUpStep(DECODE_ROWS, NEAR_POSITION, CHUNK_ROWS, NEAR_POSITION);
        if (!rows.fits(config)) continue;
        Step step = rows.step();
        CHECK(cpu::phase_of(step.row_count) == phase);
        model.forward(step); // touches its memory for the first time
        auto time_ns = [&](const cpu::Variant& variant) {
            model.set_choice(phase, {variant, {}});
            int32_t calls = few ? choose::CALLS_OF_FEW_ROWS : 1;
            int64_t waited_before_ns = model.waited_ns();
            int64_t begin_ns = monotonic_ns();
            double ns = best_ns(calls, [&] { model.forward(step); });
            auto took_ns = static_cast<double>(monotonic_ns() - begin_ns);
            auto waited_ns = static_cast<double>(model.waited_ns() - waited_before_ns);
            bool known = waited_before_ns >= 0;
            return choose::Timing{ns, !known || waited_ns > took_ns * choose::DISTURBED_PART};
        };
        model.set_choice(phase, choose::choose_variant(model.candidates(), time_ns));
    }
}

// As another engine has chosen, without a step.
template <class Model>
void take_choices(Model& model, const Measured& measured) {
    CHECK_BECAUSE(is_of(measured, model.candidates()), "measured of another model");
    for (cpu::Phase phase : {cpu::Phase::few_rows, cpu::Phase::many_rows})
        model.set_choice(phase, measured.choices[static_cast<size_t>(phase)]);
}

} // namespace sublimate

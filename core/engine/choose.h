// Chooses by measurement how the steps of a loaded model run: on how many threads, and by which of
// the kernels that return equal bits. Two steps stand for all: a row alone, which takes as long as
// reading the weights, and a batch that decodes beside a piece of a prompt, which computes. What is
// preferred (all threads, the widest instruction set) stays unless something else is faster by more
// than noise.
//
// defines: kept, time_in_turn, choose_variant, choose_variants
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "../check.h"
#include "stopwatch.h"
#include "warm_up.h"

namespace sublimate {

namespace choose {

// Times that differ by less are equal. Other processes, the edge among them, start beside the
// measurement and take cores from it: what is preferred yields only to what is clearly faster.
constexpr double NOISE = 1.15;
constexpr double CLEARLY_SLOWER = 1.25; // no further round will mend that
constexpr int32_t ROUNDS = 3;
constexpr double BUDGET_NS = 40e6; // a round that begins later is left out
// A thread that sat out the step before is asleep; in a running server it is not.
constexpr int32_t CALLS_OF_FEW_ROWS = 2;

// Index of the first variant that only noise tells from the fastest.
inline size_t kept(const std::vector<cpu::Variant>& measured) {
    CHECK(!measured.empty());
    double best_ns = measured[0].least_ns;
    for (const cpu::Variant& each : measured) best_ns = std::min(best_ns, each.least_ns);
    size_t index = 0;
    while (measured[index].least_ns > best_ns * NOISE) index++;
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
            double ns = time_ns(each);
            CHECK(ns > 0);
            spent_ns += ns;
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
        choice.measured.insert(choice.measured.end(), variants.begin(), variants.end());
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
            return best_ns(few ? choose::CALLS_OF_FEW_ROWS : 1, [&] { model.forward(step); });
        };
        model.set_choice(phase, choose::choose_variant(model.candidates(), time_ns));
    }
}

} // namespace sublimate

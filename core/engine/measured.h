// What is measured of a loaded model before its first request. An engine that is started again for
// the same model on the same machine, as after a crash, takes it from the one before and is there
// sooner.
//
// defines: Measured, is_choice_of, is_of
#pragma once

#include <algorithm>

#include "../loop/cost.h"
#include "../model/variant.h"
#include "roofline.h"

namespace sublimate {

struct Measured {
    RooflineRates rates;
    cpu::Choice choices[cpu::PHASES]; // (phase)
    StepCost cost = DEFAULT_STEP_COST;
};

inline bool is_choice_of(const cpu::Candidates& candidates, const cpu::Choice& choice) {
    auto has = [](const auto& all, const auto& one) {
        return std::find(all.begin(), all.end(), one) != all.end();
    };
    return has(candidates.ops, choice.kept.ops) && has(candidates.threads, choice.kept.threads);
}

// Whether an engine that may choose among these can go by it: it came from another process.
inline bool is_of(const Measured& measured, const cpu::Candidates& candidates) {
    for (const cpu::Choice& choice : measured.choices)
        if (!is_choice_of(candidates, choice)) return false;
    return measured.rates.bytes_per_s >= 0 && measured.rates.row_ops_per_s >= 0 &&
           sane_cost(measured.cost);
}

} // namespace sublimate

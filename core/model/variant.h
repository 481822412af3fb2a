// What may differ from step to step without touching a bit: the kernels, among tables that return
// equal bits, and the number of threads. Which is faster depends on the machine, so it is measured
// on the loaded model (engine/choose.h), for steps that mostly read weights and for steps that
// mostly compute.
//
// defines: Phase, PHASES, Variant, Candidates, Choice, thread_counts
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "../check.h"
#include "../cpu/ops.h"
#include "plan.h"

namespace sublimate::cpu {

enum class Phase : int32_t {
    few_rows = 0,  // up to PlanTable::REPEATED_NORM_ROWS_MAX: one stream, or few
    many_rows = 1, // batches and prompts
};
constexpr size_t PHASES = 2;

inline Phase phase_of(int32_t rows) {
    return rows <= PlanTable::REPEATED_NORM_ROWS_MAX ? Phase::few_rows : Phase::many_rows;
}

struct Variant {
    const Ops* ops;
    int32_t threads;
    double least_ns = 0; // of a step, where it was measured
};

// Each in the order of preference: what is no faster than noise explains stays behind.
struct Candidates {
    std::vector<int32_t> threads;
    std::vector<const Ops*> ops;
};

struct Choice {
    Variant kept;
    std::vector<Variant> measured; // empty where there was nothing to choose
};

// What is worth trying of `size` threads: all, and each power of two below; the most first.
inline std::vector<int32_t> thread_counts(int32_t size) {
    CHECK(size >= 1 && size <= limits::COMPUTE_THREADS_MAX);
    std::vector<int32_t> counts = {size};
    int32_t power = 1;
    while (2 * power < size) power *= 2;
    for (; power >= 1 && power < size; power /= 2) counts.push_back(power);
    return counts;
}

} // namespace sublimate::cpu

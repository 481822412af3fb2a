// Short measurements of work whose time others can only lengthen.
//
// defines: NS_PER_S, best_ns
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include "../check.h"
#include "engine.h"

namespace sublimate {

constexpr double NS_PER_S = 1e9;

// The least time of so many rounds, at least 1.
template <class Work>
double best_ns(int32_t rounds, Work&& work) {
    CHECK(rounds >= 1);
    int64_t best = INT64_MAX;
    for (int32_t round = 0; round < rounds; round++) {
        int64_t begin = monotonic_ns();
        work();
        best = std::min(best, monotonic_ns() - begin);
    }
    return static_cast<double>(std::max<int64_t>(best, 1));
}

} // namespace sublimate

// Counts by bucket, as Prometheus wants them.
//
// defines: Histogram
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "../check.h"

namespace sublimate {

// Observing costs a bisection and two additions: it happens once per stream and step.
class Histogram {
public:
    // edges: ascending; bucket i holds values up to edges[i], the last one those beyond all.
    explicit Histogram(std::vector<double> edges)
        : edges_(std::move(edges)), counts_(edges_.size() + 1) {
        CHECK_BECAUSE(std::is_sorted(edges_.begin(), edges_.end()), "a bisection needs order");
    }

    void observe(double value) {
        auto bucket = std::lower_bound(edges_.begin(), edges_.end(), value) - edges_.begin();
        counts_[static_cast<size_t>(bucket)]++;
        sum_ += value;
    }

    const std::vector<double>& edges() const { return edges_; }
    const std::vector<uint64_t>& counts() const { return counts_; } // (edges + 1)
    double sum() const { return sum_; }

private:
    std::vector<double> edges_;
    std::vector<uint64_t> counts_;
    double sum_ = 0.0;
};

} // namespace sublimate

// Choosing experts, and sorting rows by them: two passes of counting, in time linear in the rows.
#include "routing.h"

#include <algorithm>

#include "../loop/gumbel.h"

namespace sublimate::cpu {

void Routing::reserve(const ModelConfig& config, int32_t rows_max) {
    experts_ = config.experts;
    used_ = config.experts_used;
    renormalised_ = config.experts_renormalised;
    CHECK(used_ >= 1 && used_ <= experts_ && used_ <= limits::EXPERTS_USED_MAX);
    auto rows = static_cast<size_t>(rows_max);
    logits_.resize(rows * static_cast<size_t>(experts_));
    choices_.resize(rows * static_cast<size_t>(used_));
    places_.resize(choices_.size());
    blocks_.resize(choices_.size());
    ends_.resize(static_cast<size_t>(experts_ * KINDS));
}

void Routing::choose(int32_t row) {
    const float* x = logits(row);
    Choice* best = choices_.data() + int64_t{row} * used_;
    int32_t kept = 0;
    float maximum = x[0];
    for (int32_t e = 0; e < experts_; e++) {
        // Sorted by insertion: an equal one that came before stays before. A NaN is never above.
        maximum = x[e] > maximum ? x[e] : maximum;
        if (kept == used_ && !(x[e] > best[kept - 1].weight)) continue;
        int32_t at = kept < used_ ? kept++ : kept - 1;
        for (; at > 0 && x[e] > best[at - 1].weight; at--) best[at] = best[at - 1];
        best[at] = {e, x[e]};
    }
    // The order of a sum is that of the experts, or of the choices.
    float sum = 0.0f;
    if (!renormalised_)
        for (int32_t e = 0; e < experts_; e++) sum += exp_polynomial(x[e] - maximum);
    for (int32_t i = 0; i < used_; i++) {
        best[i].weight = exp_polynomial(best[i].weight - maximum);
        if (renormalised_) sum += best[i].weight;
    }
    // The polynomial makes zero of a NaN, and a row whose numbers are lost has to be noticed.
    for (int32_t e = 0; e < experts_; e++)
        if (x[e] != x[e]) sum = x[e];
    for (int32_t i = 0; i < used_; i++) best[i].weight /= sum;
}

void Routing::begin_sort() {
    std::fill(ends_.begin(), ends_.end(), 0);
}

void Routing::count(int32_t row, int32_t kind) {
    CHECK(kind >= 0 && kind < KINDS);
    for (int32_t i = 0; i < used_; i++)
        ends_[static_cast<size_t>(choices(row)[i].expert * KINDS + kind)]++;
}

void Routing::end_count() {
    int32_t begin = 0;
    for (int32_t& end : ends_) { // now where each begins; placing moves it to its end
        int32_t count = end;
        end = begin;
        begin += count;
    }
}

void Routing::place(int32_t row, int32_t kind) {
    for (int32_t i = 0; i < used_; i++) {
        const Choice& choice = choices(row)[i];
        int32_t& end = ends_[static_cast<size_t>(choice.expert * KINDS + kind)];
        places_[static_cast<size_t>(end++)] = {row, choice.weight};
    }
}

void Routing::cut() {
    block_count_ = 0;
    int32_t begin = 0;
    for (int32_t i = 0; i < experts_ * KINDS; i++) {
        const int32_t end = ends_[static_cast<size_t>(i)];
        const int32_t kind = i % KINDS;
        CHECK(rows_max_[kind] >= 1);
        for (; begin < end; begin = std::min(begin + rows_max_[kind], end))
            blocks_[static_cast<size_t>(block_count_++)] = {i / KINDS, kind, begin,
                                                            std::min(begin + rows_max_[kind], end)};
    }
}

} // namespace sublimate::cpu

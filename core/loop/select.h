// Top-k, top-p and min-p without a sort of the vocabulary and without allocation. All three keep a
// prefix of the ranking (logit descending, then id ascending), so the survivors are the shortest of
// the three prefixes.
//
// Candidates are gathered above a floor below the maximum, which is lowered until they provably
// contain the answer; then a radix select over their ordered bits finds the last survivor. Order of
// application: temperature, top-k, top-p over what top-k left, min-p.
//
// defines: SelectScratch, rank_key, SelectLimits, select_survivors
#pragma once

#include <cstdint>

#include "gumbel.h"
#include "sampler_ops.h"

namespace sublimate {

struct SelectScratch {
    int32_t* ids;   // (vocabulary)
    float* weights; // (vocabulary) exp((logit - maximum) / temperature) of the candidate
};

struct SelectLimits {
    int32_t top_k; // 0 off
    float top_p;   // >= 1 off
    float min_p;   // 0 off
};

// Order-preserving map of a float's bits to unsigned; larger key = larger logit.
SUBLIMATE_HD inline uint32_t rank_key(float value) {
    uint32_t bits = float_bits(value == 0.0f ? 0.0f : value); // -0 ranks with 0
    return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

namespace selection {

constexpr int32_t RADIX_BITS = 8;
constexpr int32_t RADIX_BINS = 1 << RADIX_BITS;
constexpr int32_t KEY_BITS = 32;
constexpr float GATHER_DEPTH_FIRST = 8.0f; // in units of temperature below the maximum
constexpr float GATHER_DEPTH_LAST = 64.0f; // exp underflows soon after: then everything is gathered

// Candidates with logit >= floor, ids ascending.
SUBLIMATE_HD inline int32_t gather(const float* logits, int32_t count, float floor, int32_t* ids) {
    int32_t found = 0;
    for (int32_t i = 0; i < count; i++) {
        ids[found] = i;
        found += logits[i] >= floor && logits[i] != MINUS_INFINITY ? 1 : 0;
    }
    return found;
}

struct Cut {
    uint32_t key; // survivors have a larger key, or this one and are among the first `ties`
    int32_t ties;
};

// Walks the ranking until `amount` is collected, each candidate counting as weight (or 1 if weights
// is null). The candidate that reaches the amount still belongs to the survivors.
SUBLIMATE_HD inline Cut radix_cut(const float* logits, const int32_t* ids, const float* weights,
                                  int32_t count, double amount) {
    double left = amount;
    uint32_t prefix = 0;
    uint32_t prefix_mask = 0;
    for (int32_t shift = KEY_BITS - RADIX_BITS; shift >= 0; shift -= RADIX_BITS) {
        double bins[RADIX_BINS] = {};
        for (int32_t i = 0; i < count; i++) {
            uint32_t key = rank_key(logits[ids[i]]);
            if ((key & prefix_mask) == prefix)
                bins[key >> shift & (RADIX_BINS - 1)] += weights ? double{weights[i]} : 1.0;
        }
        int32_t bin = RADIX_BINS - 1;
        int32_t lowest = 0; // rounding may leave a rest: then everything survives
        while (lowest < RADIX_BINS - 1 && bins[lowest] == 0.0) lowest++;
        while (bin > lowest && bins[bin] < left) left -= bins[bin--];
        prefix |= static_cast<uint32_t>(bin) << shift;
        prefix_mask |= static_cast<uint32_t>(RADIX_BINS - 1) << shift;
    }
    int32_t ties = 0;
    for (int32_t i = 0; i < count && (ties == 0 || left > 0.0); i++) {
        if (rank_key(logits[ids[i]]) != prefix) continue;
        left -= weights ? double{weights[i]} : 1.0;
        ties++;
    }
    return {prefix, ties};
}

// Keeps the survivors of a cut, in place.
SUBLIMATE_HD inline int32_t apply_cut(const float* logits, const SelectScratch& scratch,
                                      int32_t count, Cut cut) {
    int32_t kept = 0;
    for (int32_t i = 0; i < count; i++) {
        uint32_t key = rank_key(logits[scratch.ids[i]]);
        if (key < cut.key || (key == cut.key && cut.ties-- <= 0)) continue;
        scratch.ids[kept] = scratch.ids[i];
        scratch.weights[kept++] = scratch.weights[i];
    }
    return kept;
}

SUBLIMATE_HD inline double weigh(const float* logits, const SelectScratch& scratch, int32_t count,
                                 float maximum, float inverse_temperature) {
    double mass = 0.0;
    for (int32_t i = 0; i < count; i++) {
        float difference = logits[scratch.ids[i]] - maximum;
        scratch.weights[i] = exp_polynomial(difference * inverse_temperature);
        mass += double{scratch.weights[i]};
    }
    return mass;
}

} // namespace selection

// Leaves the ids of the survivors in scratch.ids, ascending; returns how many (>= 1 unless all
// logits are -infinity). Logits are finite or -infinity; inverse_temperature > 0.
SUBLIMATE_HD inline int32_t select_survivors(const SamplerOps& ops, const float* logits,
                                             int32_t vocabulary, float inverse_temperature,
                                             const SelectLimits& limits,
                                             const SelectScratch& scratch) {
    using namespace selection;
    CHECK(vocabulary >= 1 && inverse_temperature > 0.0f);
    float maximum = ops.max_value(logits, vocabulary);
    if (maximum == MINUS_INFINITY) return 0;
    float min_floor = MINUS_INFINITY;
    if (limits.min_p > 0.0f)
        min_floor = maximum + log_polynomial(limits.min_p) / inverse_temperature;
    bool by_rank = limits.top_k > 0 && limits.top_k < vocabulary;
    bool by_mass = limits.top_p < 1.0f;
    if (!by_rank && !by_mass) return gather(logits, vocabulary, min_floor, scratch.ids);
    double total = 0.0;
    if (!by_rank) total = double{ops.sum_exp(logits, vocabulary, maximum, inverse_temperature)};
    int32_t count = 0;
    double mass = 0.0;
    for (float depth = GATHER_DEPTH_FIRST;; depth *= 2.0f) {
        bool whole = depth > GATHER_DEPTH_LAST;
        float floor = whole ? MINUS_INFINITY : maximum - depth / inverse_temperature;
        count = gather(logits, vocabulary, floor, scratch.ids);
        if (by_rank && count < limits.top_k && !whole) continue;
        mass = weigh(logits, scratch, count, maximum, inverse_temperature);
        if (whole || by_rank || mass >= double{limits.top_p} * total) break;
    }
    if (by_rank && count > limits.top_k) {
        Cut cut = radix_cut(logits, scratch.ids, nullptr, count, double(limits.top_k));
        count = apply_cut(logits, scratch, count, cut);
        mass = weigh(logits, scratch, count, maximum, inverse_temperature);
    }
    if (by_mass) {
        double wanted = double{limits.top_p} * (by_rank ? mass : total);
        count = apply_cut(logits, scratch, count,
                          radix_cut(logits, scratch.ids, scratch.weights, count, wanted));
    }
    if (limits.min_p <= 0.0f) return count;
    int32_t kept = 0;
    for (int32_t i = 0; i < count; i++) {
        if (logits[scratch.ids[i]] >= min_floor) scratch.ids[kept++] = scratch.ids[i];
    }
    return kept;
}

} // namespace sublimate

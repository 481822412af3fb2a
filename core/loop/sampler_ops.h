// The five vector primitives that sampling is made of, as a table of function pointers, and their
// scalar twins. core/cpu fills the same table with SIMD variants; every variant returns the twin's
// bits.
//
// defines: SamplerOps, argmax, max_value, sum_exp, all_finite, gumbel_argmax, scalar_sampler_ops
#pragma once

#include <cstdint>

#include "gumbel.h"

namespace sublimate {

// Same signatures and meaning as the sampler part of cpu::Ops. `logits` is (count), count >= 1.
struct SamplerOps {
    int32_t (*argmax)(const float* logits, int32_t count);
    float (*max_value)(const float* logits, int32_t count);
    float (*sum_exp)(const float* logits, int32_t count, float maximum, float inverse_temperature);
    bool (*all_finite)(const float* logits, int32_t count);
    int32_t (*gumbel_argmax)(const float* logits, int32_t count, float inverse_temperature,
                             float floor, uint64_t seed, int32_t position);
};

constexpr float MINUS_INFINITY = -__builtin_huge_valf();
constexpr uint32_t FLOAT_EXPONENT_BITS = 0x7F800000u;
constexpr int32_t SUM_LANES = 16; // partial sums of sum_exp; fixed, whatever the vector width

// Lowest index of the maximum. No NaN among the logits; -infinity is allowed.
SUBLIMATE_HD inline int32_t argmax(const float* logits, int32_t count) {
    int32_t best = 0;
    for (int32_t i = 1; i < count; i++) {
        if (logits[i] > logits[best]) best = i;
    }
    return best;
}

SUBLIMATE_HD inline float max_value(const float* logits, int32_t count) {
    float best = logits[0];
    for (int32_t i = 1; i < count; i++) best = logits[i] > best ? logits[i] : best;
    return best;
}

// Sum over i of exp((logits[i] - maximum) * inverse_temperature). Element i goes to partial sum i %
// 16 in ascending order (a tail past the last full run of 16 too); then the tree lane += lane + 8,
// + 4, + 2, + 1.
SUBLIMATE_HD inline float sum_exp(const float* logits, int32_t count, float maximum,
                                  float inverse_temperature) {
    float lanes[SUM_LANES] = {};
    for (int32_t i = 0; i < count; i++) {
        float difference = logits[i] - maximum;
        lanes[i % SUM_LANES] += exp_polynomial(difference * inverse_temperature);
    }
    for (int32_t width = SUM_LANES / 2; width >= 1; width /= 2) {
        for (int32_t lane = 0; lane < width; lane++) lanes[lane] += lanes[lane + width];
    }
    return lanes[0];
}

SUBLIMATE_HD inline bool all_finite(const float* logits, int32_t count) {
    bool finite = true;
    for (int32_t i = 0; i < count; i++) {
        finite &= (float_bits(logits[i]) & FLOAT_EXPONENT_BITS) != FLOAT_EXPONENT_BITS;
    }
    return finite;
}

// Lowest index of the maximum of fma(logits[i], inverse_temperature, gumbel_noise(seed, position,
// i)) over the i with logits[i] >= floor; -1 if no score is above -infinity (so logits of -infinity
// never win). Skipping elements whose logit plus GUMBEL_NOISE_MAX is below the best so far gives
// the same result.
SUBLIMATE_HD inline int32_t gumbel_argmax(const float* logits, int32_t count,
                                          float inverse_temperature, float floor, uint64_t seed,
                                          int32_t position) {
    float best_score = MINUS_INFINITY;
    int32_t best = -1;
    for (int32_t i = 0; i < count; i++) {
        if (logits[i] < floor || logits[i] == MINUS_INFINITY) continue;
        if (fused_multiply_add(logits[i], inverse_temperature, GUMBEL_NOISE_MAX) < best_score)
            continue;
        float noise = gumbel_noise(seed, position, i);
        float score = fused_multiply_add(logits[i], inverse_temperature, noise);
        if (score > best_score) {
            best_score = score;
            best = i;
        }
    }
    return best;
}

inline const SamplerOps& scalar_sampler_ops() {
    static constexpr SamplerOps OPS = {argmax, max_value, sum_exp, all_finite, gumbel_argmax};
    return OPS;
}

} // namespace sublimate

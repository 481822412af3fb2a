// Records that no honest edge would write. Each must be refused as malformed, and nothing else may
// happen.
//
// defines: HOSTILE_KINDS, hostile_float, damage_lengths, damage_sampling, damage_counts,
//          damage_record
#pragma once

#include <climits>
#include <cstdint>

#include "oracle.h"
#include "scenario.h"

namespace sublimate::sim {

constexpr int32_t HOSTILE_KINDS = 24;

inline int32_t hostile_float(Random& random) {
    constexpr float VALUES[] = {__builtin_nanf(""), __builtin_huge_valf(), -__builtin_huge_valf(),
                                -1e30f, -3.0f};
    return static_cast<int32_t>(float_bits(VALUES[random.below(5)]));
}

// Sampling parameters; kind in [0, 7).
inline void damage_sampling(Random& random, int32_t kind, RequestHeader& h) {
    int32_t bad = hostile_float(random);
    bool other = random.chance(50);
    switch (kind) {
    case 0:
        h.temperature_bits = bad;
        break;
    case 1:
        h.top_k = -1 - random.below(9);
        break;
    case 2:
        h.top_p_bits = other ? 0 : bad;
        break;
    case 3:
        h.min_p_bits = other ? static_cast<int32_t>(float_bits(1.0f)) : bad;
        break;
    case 4:
        h.repetition_penalty_bits = other ? 0 : bad;
        break;
    case 5:
        h.presence_penalty_bits = bad;
        break;
    default:
        h.frequency_penalty_bits = bad;
        break;
    }
}

// Counts and indices; kind in [0, 9).
inline void damage_counts(Random& random, int32_t kind, int32_t vocabulary, RequestHeader& h) {
    bool other = random.chance(50);
    switch (kind) {
    case 0:
        h.flags |= 1 << random.between(6, 30);
        break;
    case 1:
        h.logprobs = other ? -2 : limits::LOGPROBS_MAX + 1;
        break;
    case 2:
        h.logit_bias_count = other ? -1 : limits::LOGIT_BIAS_MAX + 1;
        break;
    case 3:
        h.stop_token_count = other ? -1 : limits::STOP_TOKENS_MAX + 1;
        break;
    case 4:
        h.stop_token_count = 1, h.stop_tokens[0] = other ? vocabulary : -1;
        break;
    case 5:
        (random.chance(50) ? h.mask_slot : h.trigger_slot) = other ? limits::MASK_SLOTS : -2;
        break;
    case 6:
        h.flags |= FLAG_MASKED, h.mask_slot = other ? -1 : 3, h.trigger_slot = 3;
        break;
    case 7:
        (other ? h.adapter : h.free_end) = -1;
        break;
    default:
        h.reserved[random.below(27)] = 1;
        break;
    }
}

// Identity and lengths; kind in [0, 7).
inline void damage_lengths(Random& random, int32_t kind, RequestHeader& h) {
    bool other = random.chance(50);
    switch (kind) {
    case 0:
        h.version = other ? 0 : REQUEST_VERSION + 1;
        break;
    case 1:
        h.slot = other ? h.slot + 1 : -1;
        break;
    case 2:
        h.generation = -random.below(5);
        break;
    case 3:
        h.profile = other ? -1 : limits::PRIORITIES_MAX;
        break;
    case 4:
        h.prompt_length = other ? 0 : INT_MIN;
        break;
    case 5:
        h.prompt_length = other ? INT_MAX : 1 << 20;
        break;
    default:
        h.token_budget = other ? -1 : INT_MIN;
        break;
    }
}

// header and tokens as they lie in the slot.
inline void damage_record(Random& random, const Scenario& scenario, RequestHeader& h,
                          int32_t* tokens) {
    int32_t kind = random.below(HOSTILE_KINDS);
    if (kind < 7) return damage_lengths(random, kind, h);
    if (kind < 14) return damage_sampling(random, kind - 7, h);
    if (kind < 23) return damage_counts(random, kind - 14, scenario.loop.vocabulary, h);
    int32_t at = random.below(h.prompt_length);
    tokens[at] = random.chance(50) ? scenario.loop.vocabulary : -1;
}

} // namespace sublimate::sim

// Records that no honest edge would write. Each must be refused as malformed, and nothing else may
// happen.
//
// defines: damage_record, HOSTILE_KINDS
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

inline void damage_field(Random& random, int32_t kind, const Scenario& scenario, RequestHeader& h) {
    int32_t vocabulary = scenario.loop.vocabulary;
    switch (kind) {
    case 0:
        h.version = random.chance(50) ? 0 : 2;
        break;
    case 1:
        h.slot = random.chance(50) ? h.slot + 1 : -1;
        break;
    case 2:
        h.generation = -random.below(5);
        break;
    case 3:
        h.profile = random.chance(50) ? -1 : limits::PRIORITIES_MAX;
        break;
    case 4:
        h.prompt_length = random.chance(50) ? 0 : INT_MIN;
        break;
    case 5:
        h.prompt_length = random.chance(50) ? INT_MAX : 1 << 20;
        break;
    case 6:
        h.token_budget = random.chance(50) ? -1 : INT_MIN;
        break;
    case 7:
        h.temperature_bits = hostile_float(random);
        break;
    case 8:
        h.top_k = -1 - random.below(9);
        break;
    case 9:
        h.top_p_bits = random.chance(50) ? 0 : hostile_float(random);
        break;
    case 10:
        h.min_p_bits = random.chance(50) ? 0x3f800000 : hostile_float(random);
        break;
    case 11:
        h.repetition_penalty_bits = random.chance(50) ? 0 : hostile_float(random);
        break;
    case 12:
        h.presence_penalty_bits = hostile_float(random);
        break;
    case 13:
        h.frequency_penalty_bits = hostile_float(random);
        break;
    case 14:
        h.flags |= 1 << random.between(6, 30);
        break;
    case 15:
        h.logprobs = random.chance(50) ? -2 : limits::LOGPROBS_MAX + 1;
        break;
    case 16:
        h.logit_bias_count = random.chance(50) ? -1 : limits::LOGIT_BIAS_MAX + 1;
        break;
    case 17:
        h.stop_token_count = random.chance(50) ? -1 : limits::STOP_TOKENS_MAX + 1;
        break;
    case 18:
        h.stop_token_count = 1;
        h.stop_tokens[0] = random.chance(50) ? vocabulary : -1;
        break;
    case 19:
        h.mask_slot = random.chance(50) ? limits::MASK_SLOTS : -2;
        break;
    case 20:
        h.flags |= FLAG_MASKED;
        h.mask_slot = -1;
        break;
    case 21:
        h.adapter = -1;
        break;
    case 22:
        h.reserved[random.below(29)] = 1;
        break;
    default:
        break;
    }
}

// header and tokens as they lie in the slot.
inline void damage_record(Random& random, const Scenario& scenario, RequestHeader& h,
                          int32_t* tokens) {
    int32_t kind = random.below(HOSTILE_KINDS);
    if (kind == HOSTILE_KINDS - 1) {
        int32_t at = random.below(h.prompt_length);
        tokens[at] = random.chance(50) ? scenario.loop.vocabulary : -1;
        return;
    }
    damage_field(random, kind, scenario, h);
}

} // namespace sublimate::sim

// The scheduling policy as the core is compiled with it. Its values stand in
// proto/sublimate/v1/layer.proto, nowhere else; core/policy/generate.py brings them here. Nothing
// in this folder needs a library, not even C's, so that it is WebAssembly and device code too.
//
// defines: ProfilePolicy, SplitAlgorithm, LayerPolicy, LAYER_POLICY, LAYER_POLICY_DIGEST,
//          sane_layer_policy; then decide.h
#pragma once

#include <stdint.h> // without the C++ library's <cstdint>, which WebAssembly has none of

namespace sublimate {

constexpr int32_t POLICY_PROFILES = 3; // by Profile of request.h: low latency, throughput, long
constexpr int32_t PPM = 1'000'000;

// How the rows of one profile share a step of the loop.
struct ProfilePolicy {
    int32_t decode_rows_max;                 // decode rows of this profile in one step
    int32_t decode_rows_beside_short_prompt; // the same while a short prompt waits
    int32_t step_rows_max;                   // row budget of a step
    int32_t step_percent; // time of a step with prompt rows that decodes this profile, in percent
                          // of the time that its decode rows take alone
    int32_t step_percent_max;    // the same when short prompts crowd
    int32_t short_prompt_weight; // decode rows that one waiting short prompt outweighs
    int32_t prefill_rows_min;    // of a waiting prompt of this profile, whatever they cost
    int32_t prompts_at_once;     // prompts of this profile in one step
    int32_t priority;            // larger goes first
};

enum class SplitAlgorithm : int32_t { uniform = 1, semantic = 2 };

struct LayerPolicy {
    int32_t max_tokens_per_shard;
    int32_t fallback_cpu_threshold_ppm; // share of the KV memory that a new request may fill
    SplitAlgorithm split_algorithm;
    int32_t semantic_system_characters_min; // system prompt from which a semantic split applies
    int32_t semantic_shard_percent_min; // of max_tokens_per_shard; a shorter shard is not cut off
    int32_t attention_block_tokens;     // borders of shards are multiples of it
    int32_t characters_per_token;       // estimate, for who has no tokenizer
    int32_t short_prompt_tokens;        // a prompt that computes so many in all is short
    int32_t ageing_steps;               // what waits so long goes up by one priority
    int32_t local_cores_min;            // what makes a machine a fallback: these, or a GPU
    int32_t local_memory_mib_min;       // and this
    ProfilePolicy profiles[POLICY_PROFILES];
};

#include "policy_values.h" // LAYER_POLICY, LAYER_POLICY_DIGEST; in the build's folder

constexpr int32_t SHARDS_MAX = 64; // of one plan
constexpr int32_t PLANNED_TOKENS_MAX = 1 << 17;

// What the functions of this folder rely on. The loop's own demands are in core/loop/schedule.h.
constexpr bool sane_layer_policy(const LayerPolicy& p) {
    if (p.attention_block_tokens < 1 || p.max_tokens_per_shard < 2 * p.attention_block_tokens)
        return false;
    if (p.max_tokens_per_shard % p.attention_block_tokens != 0) return false;
    if (p.fallback_cpu_threshold_ppm < 1 || p.fallback_cpu_threshold_ppm > PPM) return false;
    if (p.semantic_shard_percent_min < 1 || p.semantic_shard_percent_min > 100) return false;
    if (p.semantic_system_characters_min < 0 || p.characters_per_token < 1) return false;
    if (p.short_prompt_tokens < 1 || p.ageing_steps < 1) return false;
    if (p.local_cores_min < 1 || p.local_memory_mib_min < 0) return false;
    // The longest prompt in the shortest shards, each a block shorter for its rounding.
    int64_t shortest = int64_t{p.max_tokens_per_shard} * p.semantic_shard_percent_min / 100 -
                       p.attention_block_tokens;
    return shortest >= 1 && PLANNED_TOKENS_MAX / shortest < SHARDS_MAX;
}
static_assert(sane_layer_policy(LAYER_POLICY));
static_assert(sizeof LAYER_POLICY_DIGEST == 64 + 1, "SHA-256 in hex");

} // namespace sublimate

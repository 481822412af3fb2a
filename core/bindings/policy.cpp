// What the loop is compiled with of proto/sublimate/v1/layer.proto.
//
// defines: bind_policy
#include "../policy/policy.h"

#include <nanobind/nanobind.h>

#include "bindings.h"

namespace nb = nanobind;

namespace sublimate {

namespace {

nb::dict profile_numbers(const ProfilePolicy& p) {
    nb::dict numbers;
#define NUMBER(name) numbers[#name] = p.name
    NUMBER(decode_rows_max);
    NUMBER(decode_rows_beside_short_prompt);
    NUMBER(step_rows_max);
    NUMBER(step_percent);
    NUMBER(step_percent_max);
    NUMBER(short_prompt_weight);
    NUMBER(prefill_rows_min);
    NUMBER(prompts_at_once);
    NUMBER(priority);
#undef NUMBER
    static_assert(sizeof p == 9 * sizeof(int32_t), "a number is missing here");
    return numbers;
}

nb::dict policy_numbers(const LayerPolicy& p) {
    nb::dict numbers;
#define NUMBER(name) numbers[#name] = static_cast<int32_t>(p.name)
    NUMBER(max_tokens_per_shard);
    NUMBER(fallback_cpu_threshold_ppm);
    NUMBER(split_algorithm);
    NUMBER(semantic_system_characters_min);
    NUMBER(semantic_shard_percent_min);
    NUMBER(attention_block_tokens);
    NUMBER(characters_per_token);
    NUMBER(short_prompt_tokens);
    NUMBER(ageing_steps);
    NUMBER(local_cores_min);
    NUMBER(local_memory_mib_min);
#undef NUMBER
    static_assert(sizeof p == 11 * sizeof(int32_t) + sizeof p.profiles, "a number is missing here");
    nb::list profiles;
    for (const ProfilePolicy& profile : p.profiles) profiles.append(profile_numbers(profile));
    numbers["profiles"] = profiles;
    return numbers;
}

} // namespace

void bind_policy(nb::module_& m) {
    m.attr("POLICY") = policy_numbers(LAYER_POLICY);
    m.attr("POLICY_DIGEST") = LAYER_POLICY_DIGEST;
}

} // namespace sublimate

// What the loop is compiled with of proto/sublimate/v1/layer.proto, and the decision function.
//
// defines: bind_policy
#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <bit>
#include <utility>
#include <vector>

#include "../policy/decide.h"

#include "../check.h"
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

using InputWords = std::array<int32_t, sizeof(DecisionInput) / sizeof(int32_t)>;

// As WebAssembly has it: words in, words out. src/sublimate/policy/decision.py has the names.
std::vector<int32_t> decide_words(const InputWords& words,
                                  const std::vector<std::pair<int32_t, int32_t>>& places) {
    auto in = std::bit_cast<DecisionInput>(words);
    std::vector<Border> borders;
    borders.reserve(places.size());
    for (auto [position, kind] : places)
        borders.push_back({position, static_cast<BorderKind>(kind)});
    Decision out = decide(in, borders.data(), static_cast<int32_t>(borders.size()));
    CHECK(out.shard_count >= 0 && out.shard_count <= SHARDS_MAX);
    auto told = std::bit_cast<std::array<int32_t, sizeof(Decision) / sizeof(int32_t)>>(out);
    return {told.begin(), told.end() - (SHARDS_MAX - out.shard_count)};
}

} // namespace

void bind_policy(nb::module_& m) {
    m.attr("POLICY") = policy_numbers(LAYER_POLICY);
    m.attr("POLICY_DIGEST") = LAYER_POLICY_DIGEST;
    m.def("decide", &decide_words, nb::arg("words"), nb::arg("borders"));
}

} // namespace sublimate

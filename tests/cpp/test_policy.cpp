// The decision function against the shared vectors (made by its Python twin), and what any plan
// must hold, whatever its input.
#include "../../core/policy/decide.h"
#include "test.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <fstream>
#include <random>
#include <string>
#include <vector>

namespace sublimate {
namespace {

using Numbers = std::vector<int32_t>;

constexpr size_t INPUT_WORDS = sizeof(DecisionInput) / sizeof(int32_t);
constexpr size_t OUTPUT_WORDS = 6;

// A line of the file, "[[1,2],[],[-3]],", as its three lists; nothing for other lines.
std::vector<Numbers> lists_of(const std::string& line) {
    std::vector<Numbers> lists;
    if (line.rfind("[[", 0) != 0) return lists;
    for (size_t at = 1; at < line.size(); at++) {
        if (line[at] == '[') lists.emplace_back();
        if (line[at] != '-' && (line[at] < '0' || line[at] > '9')) continue;
        size_t used = 0;
        lists.back().push_back(static_cast<int32_t>(std::stol(line.substr(at), &used)));
        at += used - 1;
    }
    return lists;
}

DecisionInput input_of(const Numbers& words) {
    std::array<int32_t, INPUT_WORDS> all = {};
    std::copy_n(words.begin(), INPUT_WORDS, all.begin());
    return std::bit_cast<DecisionInput>(all);
}

std::vector<Border> borders_of(const Numbers& words) {
    std::vector<Border> borders;
    for (size_t i = 0; i + 1 < words.size(); i += 2)
        borders.push_back({words[i], static_cast<BorderKind>(words[i + 1])});
    return borders;
}

Numbers words_of(const Decision& decision) {
    Numbers words(OUTPUT_WORDS + static_cast<size_t>(decision.shard_count));
    std::memcpy(words.data(), &decision, words.size() * sizeof(int32_t));
    return words;
}

TEST(vectors) {
    std::ifstream file("tests/policy/vectors.json");
    int checked = 0;
    for (std::string line; std::getline(file, line);) {
        std::vector<Numbers> lists = lists_of(line);
        if (lists.empty()) continue;
        EXPECT_EQ(lists.size(), 3u);
        EXPECT_EQ(lists[0].size(), INPUT_WORDS);
        DecisionInput in = input_of(lists[0]);
        std::vector<Border> borders = borders_of(lists[1]);
        Decision out = decide(in, borders.data(), static_cast<int32_t>(borders.size()));
        EXPECT(words_of(out) == lists[2]);
        checked++;
    }
    EXPECT(checked >= 400);
}

LayerPolicy random_policy(std::mt19937& random) {
    auto between = [&](int32_t low, int32_t high) {
        return std::uniform_int_distribution<int32_t>(low, high)(random);
    };
    LayerPolicy policy = LAYER_POLICY;
    for (;;) {
        policy.attention_block_tokens = 1 << between(0, 9);
        policy.max_tokens_per_shard = policy.attention_block_tokens * between(2, 600);
        policy.semantic_shard_percent_min = between(1, 100);
        policy.characters_per_token = between(1, 9);
        policy.fallback_cpu_threshold_ppm = between(1, PPM);
        if (sane_layer_policy(policy)) return policy;
    }
}

// Shards follow each other without a gap, begin at whole blocks, and are neither empty nor too
// long.
void check_shards(const Decision& out, const LayerPolicy& policy) {
    EXPECT(out.shard_count <= SHARDS_MAX);
    EXPECT_EQ(out.shard_count == 0, out.prompt_tokens > PLANNED_TOKENS_MAX);
    EXPECT_EQ(out.shard_count > 1, out.split != Split::none);
    int32_t start = 0;
    for (int32_t i = 0; i < out.shard_count; i++) {
        int32_t end = out.shard_ends[i];
        EXPECT(end - start <= policy.max_tokens_per_shard);
        EXPECT(end > start || out.prompt_tokens == 0);
        EXPECT_EQ(start % policy.attention_block_tokens, 0);
        start = end;
    }
    if (out.shard_count > 0) EXPECT_EQ(start, out.prompt_tokens);
}

TEST(any_numbers_have_a_plan) {
    std::mt19937 random(7);
    std::uniform_int_distribution<int32_t> any(INT32_MIN, INT32_MAX);
    for (int32_t round = 0; round < 20'000; round++) {
        LayerPolicy policy = random_policy(random);
        Numbers words(INPUT_WORDS);
        for (int32_t& word : words) word = any(random) % 4 == 0 ? any(random) : any(random) % 3;
        DecisionInput in = input_of(words);
        if (round % 2 == 0) in.prompt_length = any(random) & (2 * PLANNED_TOKENS_MAX - 1);
        Numbers places(2 * (any(random) & 31));
        for (int32_t& place : places) place = any(random) & (2 * PLANNED_TOKENS_MAX - 1);
        std::vector<Border> borders = borders_of(places);
        Decision out = decide(in, borders.data(), static_cast<int32_t>(borders.size()), policy);
        check_shards(out, policy);
        EXPECT(out.profile >= 0 && out.profile < POLICY_PROFILES);
        EXPECT_EQ(out.reason == Reason::none, out.target == Target::resident);
        if (out.reason == Reason::too_long) EXPECT(out.target != Target::queue);
    }
}

TEST(a_shard_ends_after_a_message_where_it_can) {
    DecisionInput in = {.prompt_length = 20'000, .system_characters = 5000, .profile = -1};
    Border borders[] = {{5000, BorderKind::message},
                        {8100, BorderKind::paragraph},
                        {13'000, BorderKind::paragraph}};
    Decision out = decide(in, borders, 3);
    EXPECT(out.split == Split::semantic);
    EXPECT_EQ(out.shard_count, 3);
    EXPECT_EQ(out.shard_ends[0], 5000 - 5000 % 128);     // not at 8100, which is no message's end
    EXPECT_EQ(out.shard_ends[1], 13'000 - 13'000 % 128); // the only border in reach
    in.system_characters--;
    EXPECT(decide(in, borders, 3).split == Split::uniform);
}

TEST(past_the_threshold) {
    DecisionInput in = {.prompt_length = 1000,
                        .profile = -1,
                        .kv_tokens_total = 10'000,
                        .kv_tokens_free = 2500,
                        .queue_is_open = 1};
    EXPECT(decide(in, nullptr, 0).target == Target::resident); // 0.85 exactly
    in.kv_tokens_free = 2499;
    EXPECT(decide(in, nullptr, 0).target ==
           Target::resident); // it fits, and there is no other place
    in.has_fallback_server = 1;
    EXPECT(decide(in, nullptr, 0).target == Target::server);
    in.cores = LAYER_POLICY.local_cores_min;
    in.memory_mib = LAYER_POLICY.local_memory_mib_min;
    EXPECT(decide(in, nullptr, 0).target == Target::cpu);
    in.role = Role::engine; // its CPU is what is full
    EXPECT(decide(in, nullptr, 0).target == Target::server);
    in.has_gpu = 1;
    EXPECT(decide(in, nullptr, 0).target == Target::cpu);
    in.has_gpu = in.has_fallback_server = 0;
    in.kv_tokens_free = 999;
    EXPECT(decide(in, nullptr, 0).target == Target::queue);
    in.queue_is_open = 0;
    Decision refused = decide(in, nullptr, 0);
    EXPECT(refused.target == Target::refuse && refused.reason == Reason::oom);
    in.output_tokens_max = 9001;
    EXPECT(decide(in, nullptr, 0).reason == Reason::too_long);
}

} // namespace
} // namespace sublimate

// Small rules: why a request ends, which records are refused, which state transitions exist.
#include "../../core/loop/buckets.h"
#include "../../core/loop/sequence.h"
#include "../../core/loop/stop.h"
#include "../../core/loop/validate.h"
#include "test.h"

#include <functional>
#include <vector>

namespace sublimate {
namespace {

constexpr int32_t SLOT = 3;
constexpr int32_t VOCABULARY = 100;
constexpr int32_t CONTEXT = 256;

int32_t bits(float value) {
    return static_cast<int32_t>(float_bits(value));
}

RequestHeader good() {
    RequestHeader h = {};
    h.version = REQUEST_VERSION;
    h.slot = SLOT;
    h.generation = 1;
    h.prompt_length = 4;
    h.token_budget = 8;
    h.top_p_bits = h.repetition_penalty_bits = bits(1.0f);
    h.logprobs = h.mask_slot = h.trigger_slot = -1;
    return h;
}

RefuseReason judge(const RequestHeader& h, int32_t slot_words = limits::SLOT_WORDS[0]) {
    return validate_header(h, SLOT, slot_words, VOCABULARY, CONTEXT);
}

TEST(a_stop_token_ends_unless_ignored) {
    RequestHeader h = good();
    h.stop_token_count = 2;
    h.stop_tokens[0] = 7;
    h.stop_tokens[1] = 9;
    h.stop_tokens[2] = 11; // beyond the count
    EXPECT(stop_reason(h, 9, 1, CONTEXT) == FinishReason::stop_token);
    EXPECT(stop_reason(h, 11, 1, CONTEXT) == FinishReason::none);
    EXPECT(stop_reason(h, 9, 8, CONTEXT) == FinishReason::stop_token); // wins over the budget
    h.flags = FLAG_IGNORE_EOS;
    EXPECT(stop_reason(h, 9, 1, CONTEXT) == FinishReason::none);
    EXPECT(stop_reason(h, 9, 8, CONTEXT) == FinishReason::budget);
}

TEST(the_budget_and_the_context_end) {
    RequestHeader h = good();
    EXPECT(stop_reason(h, 1, 7, CONTEXT) == FinishReason::none);
    EXPECT(stop_reason(h, 1, 8, CONTEXT) == FinishReason::budget);
    EXPECT(stop_reason(h, 1, 5, 9) == FinishReason::budget); // 4 + 5 fills a context of 9
    EXPECT(stop_reason(h, 1, 4, 9) == FinishReason::none);
}

TEST(good_records_pass) {
    EXPECT(judge(good()) == RefuseReason::none);
    RequestHeader h = good();
    h.flags = KNOWN_FLAGS;
    h.mask_slot = limits::MASK_SLOTS - 1;
    h.prompt_length = CONTEXT; // scoring generates nothing
    EXPECT(judge(h) == RefuseReason::none);
    h = good();
    h.token_budget = CONTEXT - 4;
    EXPECT(judge(h) == RefuseReason::none);
    h.token_budget++;
    EXPECT(judge(h) == RefuseReason::too_long);
    h.token_budget = INT32_MAX;
    EXPECT(judge(h) == RefuseReason::too_long);
}

TEST(damaged_records_are_malformed) {
    using Damage = std::function<void(RequestHeader&)>;
    const std::vector<Damage> damages = {
        [](RequestHeader& h) { h.version++; },
        [](RequestHeader& h) { h.slot++; },
        [](RequestHeader& h) { h.generation = 0; },
        [](RequestHeader& h) { h.profile = limits::PRIORITIES_MAX; },
        [](RequestHeader& h) { h.profile = -1; },
        [](RequestHeader& h) { h.prompt_length = 0; },
        [](RequestHeader& h) { h.prompt_length = INT32_MAX; },
        [](RequestHeader& h) { h.token_budget = -1; },
        [](RequestHeader& h) { h.temperature_bits = bits(-0.5f); },
        [](RequestHeader& h) { h.temperature_bits = 0x7f800000; },
        [](RequestHeader& h) { h.temperature_bits = 0x7fc00000; },
        [](RequestHeader& h) { h.top_k = -1; },
        [](RequestHeader& h) { h.top_p_bits = 0; },
        [](RequestHeader& h) { h.top_p_bits = bits(1.0001f); },
        [](RequestHeader& h) { h.min_p_bits = bits(1.0f); },
        [](RequestHeader& h) { h.repetition_penalty_bits = bits(0.0f); },
        [](RequestHeader& h) { h.presence_penalty_bits = bits(2.01f); },
        [](RequestHeader& h) { h.frequency_penalty_bits = bits(-2.01f); },
        [](RequestHeader& h) { h.flags = KNOWN_FLAGS + 1; },
        [](RequestHeader& h) { h.logprobs = limits::LOGPROBS_MAX + 1; },
        [](RequestHeader& h) { h.logit_bias_count = limits::LOGIT_BIAS_MAX + 1; },
        [](RequestHeader& h) { h.stop_token_count = limits::STOP_TOKENS_MAX + 1; },
        [](RequestHeader& h) { h.stop_tokens[0] = VOCABULARY, h.stop_token_count = 1; },
        [](RequestHeader& h) { h.mask_slot = limits::MASK_SLOTS; },
        [](RequestHeader& h) { h.trigger_slot = limits::MASK_SLOTS; },
        [](RequestHeader& h) { h.trigger_slot = -2; },
        [](RequestHeader& h) { h.flags = FLAG_MASKED; },
        [](RequestHeader& h) { h.flags = FLAG_MASKED, h.mask_slot = h.trigger_slot = 1; },
        [](RequestHeader& h) { h.adapter = -1; },
        [](RequestHeader& h) { h.adapter = 1; }, // of none
        [](RequestHeader& h) { h.sparse_mode = -1; },
        [](RequestHeader& h) { h.shard_count = -1; },
        [](RequestHeader& h) { h.reserved[26] = 1; },
    };
    for (const Damage& damage : damages) {
        RequestHeader h = good();
        damage(h);
        EXPECT(judge(h) == RefuseReason::malformed);
    }
    RequestHeader adapted = good();
    adapted.adapter = 2;
    for (int32_t adapters : {1, 2})
        EXPECT(
            validate_header(adapted, SLOT, limits::SLOT_WORDS[0], VOCABULARY, CONTEXT, adapters) ==
            (adapters == 2 ? RefuseReason::none : RefuseReason::malformed));
    EXPECT(judge(good(), REQUEST_HEADER_WORDS + 3) == RefuseReason::malformed); // 4 tokens
    EXPECT(judge(good(), REQUEST_HEADER_WORDS + 4) == RefuseReason::none);
    RequestHeader score = good();
    score.flags = FLAG_SCORE;
    EXPECT(judge(score, REQUEST_HEADER_WORDS + 11) == RefuseReason::malformed);
    EXPECT(judge(score, REQUEST_HEADER_WORDS + 12) == RefuseReason::none);
}

TEST(payloads_are_checked) {
    std::vector<int32_t> words(limits::SLOT_WORDS[0]);
    RequestHeader h = good();
    h.logit_bias_count = 1;
    memcpy(words.data(), &h, sizeof h);
    RequestHeader copy;
    copy_header(words.data(), &copy);
    EXPECT(memcmp(&copy, &h, sizeof h) == 0);
    EXPECT(validate_payload(words.data(), h, VOCABULARY));
    int32_t* tokens = words.data() + REQUEST_HEADER_WORDS;
    EXPECT(bias_words(words.data(), h) == tokens + 4);
    EXPECT(score_words(words.data(), h) == tokens + 6);
    for (int32_t bad : {-1, VOCABULARY}) {
        tokens[3] = bad;
        EXPECT(!validate_payload(words.data(), h, VOCABULARY));
        tokens[3] = 0;
        tokens[4] = bad;
        EXPECT(!validate_payload(words.data(), h, VOCABULARY));
        tokens[4] = 0;
    }
    tokens[5] = 0x7fc00000;
    EXPECT(!validate_payload(words.data(), h, VOCABULARY));
}

TEST(only_the_transitions_of_the_table_exist) {
    int32_t allowed = 0;
    for (int32_t from = 0; from < STATES; from++)
        for (int32_t to = 0; to < STATES; to++)
            allowed += transition_allowed(static_cast<State>(from), static_cast<State>(to)) ? 1 : 0;
    EXPECT_EQ(allowed, 16);
    EXPECT(transition_allowed(State::queued, State::prefill));
    EXPECT(!transition_allowed(State::queued, State::decode));
    EXPECT(!transition_allowed(State::decode, State::prefill));
    EXPECT(!transition_allowed(State::draining, State::prefill));
    EXPECT(!transition_allowed(State::free, State::prefill));
}

TEST(positions_needed_leave_out_the_last_token) {
    RequestHeader h = good();
    EXPECT_EQ(positions_needed(h), 4 + 7);
    h.token_budget = 1;
    EXPECT_EQ(positions_needed(h), 4);
    h.token_budget = 0;
    EXPECT_EQ(positions_needed(h), 4);
    h.token_budget = 100;
    h.flags = FLAG_SCORE;
    EXPECT_EQ(positions_needed(h), 4);
}

} // namespace
} // namespace sublimate

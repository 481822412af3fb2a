// Checks of a request record. Everything in it came from another process; the loop works on a
// private copy of the header that has passed here, and whatever it reads from slot memory later is
// clamped again at each read.
//
// defines: copy_header, validate_header, validate_payload, prompt_tokens, bias_words, score_words
#pragma once

#include <cstdint>

#include "../request.h"
#include "gumbel.h"
#include "kv.h"
#include "sampler_ops.h"
#include "sequence.h"

namespace sublimate {

constexpr int32_t KNOWN_FLAGS =
    FLAG_IGNORE_EOS | FLAG_SCORE | FLAG_SCORE_DECODE | FLAG_NO_CACHE | FLAG_MASKED | FLAG_SEEDED;

static_assert((KNOWN_FLAGS & (KNOWN_FLAGS + 1)) == 0, "the flags are consecutive bits");

// Word by word, each read once, so that a concurrent writer cannot show two values of one field.
SUBLIMATE_HD inline void copy_header(const int32_t* slot_words, RequestHeader* header) {
    auto* words = reinterpret_cast<unsigned char*>(header);
    for (int32_t i = 0; i < REQUEST_HEADER_WORDS; i++) {
        int32_t word = *static_cast<const volatile int32_t*>(slot_words + i);
        memcpy(words + i * static_cast<int32_t>(sizeof word), &word, sizeof word);
    }
}

// Is the float whose bits these are finite and inside [low, high]?
SUBLIMATE_HD inline bool float_within(int32_t bits, float low, float high) {
    auto word = static_cast<uint32_t>(bits);
    if ((word & FLOAT_EXPONENT_BITS) == FLOAT_EXPONENT_BITS) return false;
    float value = bits_float(word);
    return value >= low && value <= high;
}

SUBLIMATE_HD inline bool within(int32_t value, int32_t low, int32_t high) {
    return value >= low && value <= high;
}

constexpr float FLOAT_LARGEST = 3.402823466e38f;
constexpr float FLOAT_SMALLEST = 1.175494351e-38f;
constexpr float MIN_P_LARGEST = 0.99999994f; // the float below 1

SUBLIMATE_HD inline bool valid_sampling(const RequestHeader& h) {
    return float_within(h.temperature_bits, 0.0f, FLOAT_LARGEST) && h.top_k >= 0 &&
           float_within(h.top_p_bits, FLOAT_SMALLEST, 1.0f) &&
           float_within(h.min_p_bits, 0.0f, MIN_P_LARGEST) &&
           float_within(h.repetition_penalty_bits, FLOAT_SMALLEST, FLOAT_LARGEST) &&
           float_within(h.presence_penalty_bits, -2.0f, 2.0f) &&
           float_within(h.frequency_penalty_bits, -2.0f, 2.0f) &&
           within(h.logprobs, -1, limits::LOGPROBS_MAX);
}

// none, malformed, or too_long (well-formed, but longer than the context).
SUBLIMATE_HD inline RefuseReason validate_header(const RequestHeader& h, int32_t slot,
                                                 int32_t slot_words, int32_t vocabulary,
                                                 int32_t context_tokens, int32_t adapters = 0) {
    constexpr RefuseReason malformed = RefuseReason::malformed;
    if (h.version != REQUEST_VERSION || h.slot != slot || h.generation <= 0) return malformed;
    if (!within(h.profile, 0, limits::PRIORITIES_MAX - 1)) return malformed;
    if (h.prompt_length < 1 || h.token_budget < 0) return malformed;
    if ((h.flags & ~KNOWN_FLAGS) != 0 || !valid_sampling(h)) return malformed;
    if (!within(h.logit_bias_count, 0, limits::LOGIT_BIAS_MAX)) return malformed;
    if (!within(h.stop_token_count, 0, limits::STOP_TOKENS_MAX)) return malformed;
    for (int32_t i = 0; i < h.stop_token_count; i++) {
        if (!within(h.stop_tokens[i], 0, vocabulary - 1)) return malformed;
    }
    if (!within(h.mask_slot, -1, limits::MASK_SLOTS - 1)) return malformed;
    if (!within(h.trigger_slot, -1, limits::MASK_SLOTS - 1)) return malformed;
    bool masked = (h.flags & FLAG_MASKED) != 0;
    if (masked && (h.mask_slot < 0 || h.mask_slot == h.trigger_slot)) return malformed;
    if (h.free_end < 0) return malformed;
    if (!within(h.adapter, 0, adapters)) return malformed;
    if (h.sparse_mode < 0 || h.shard_count < 0) return malformed;
    for (int32_t word : h.reserved) {
        if (word != 0) return malformed;
    }
    if (request_words(h.prompt_length, h.logit_bias_count, is_score(h)) > slot_words)
        return malformed;
    int64_t positions = h.prompt_length;
    if (!is_score(h)) positions += h.token_budget;
    return positions > context_tokens ? RefuseReason::too_long : RefuseReason::none;
}

// ---- parts of a slot that follow a validated header
SUBLIMATE_HD inline PromptTokens prompt_tokens(const int32_t* slot_words, const RequestHeader& h,
                                               int32_t vocabulary) {
    return {slot_words + REQUEST_HEADER_WORDS, h.prompt_length, vocabulary};
}

SUBLIMATE_HD inline const int32_t* bias_words(const int32_t* slot_words, const RequestHeader& h) {
    return slot_words + REQUEST_HEADER_WORDS + h.prompt_length; // (logit_bias_count, 2)
}

SUBLIMATE_HD inline int32_t* score_words(int32_t* slot_words, const RequestHeader& h) {
    return slot_words + REQUEST_HEADER_WORDS + h.prompt_length + 2 * h.logit_bias_count;
}

SUBLIMATE_HD inline bool validate_payload(const int32_t* slot_words, const RequestHeader& h,
                                          int32_t vocabulary) {
    const auto* tokens = static_cast<const volatile int32_t*>(slot_words + REQUEST_HEADER_WORDS);
    for (int32_t i = 0; i < h.prompt_length; i++) {
        if (!within(tokens[i], 0, vocabulary - 1)) return false;
    }
    const auto* bias = static_cast<const volatile int32_t*>(bias_words(slot_words, h));
    for (int32_t i = 0; i < h.logit_bias_count; i++) {
        if (!within(bias[2 * i], 0, vocabulary - 1)) return false;
        if (!float_within(bias[2 * i + 1], -FLOAT_LARGEST, FLOAT_LARGEST)) return false;
    }
    return true;
}

} // namespace sublimate

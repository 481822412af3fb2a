// The two records that cross between an edge and the loop: the request tensor and the token record.
// Plain little-endian int32 words with a frozen layout; the static_asserts at the end are the
// layout test.
#pragma once

#include <cstddef>
#include <cstdint>

#include "check.h"
#include "limits.h"

namespace sublimate {

enum class Profile : int32_t { low_latency = 0, high_throughput = 1, long_context = 2 };

// Bits of RequestHeader::flags.
enum RequestFlags : int32_t {
    FLAG_IGNORE_EOS = 1 << 0, // stop tokens do not end the request; only the token budget does
    FLAG_SCORE = 1 << 1,      // no generation: log-probability and arg-max of every prompt position
    FLAG_SCORE_DECODE = 1 << 2, // with FLAG_SCORE: use the arithmetic of generated rows
    FLAG_NO_CACHE = 1 << 3,     // neither read from nor publish to the prefix cache
    FLAG_MASKED = 1 << 4,       // each generated token needs its mask (mask_slot) or to be free
    FLAG_SEEDED = 1 << 5, // seed was given by the client (else drawn by the edge); informative
};

// Fixed header of a request record. Then follow prompt_length token ids, then logit_bias_count
// pairs of (token id, float bits), then, for FLAG_SCORE, 2 * prompt_length words that the loop
// fills with (log-probability bits, arg-max id) per position; position 0 predicts nothing before it
// and holds (0, -1) in its log-probability.
struct RequestHeader {
    int32_t version;
    int32_t slot;             // [0, SLOTS_MAX)
    int32_t generation;       // of the slot, so that a late cancel cannot meet its successor
    int32_t profile;          // Profile
    int32_t prompt_length;    // tokens, >= 1
    int32_t token_budget;     // tokens to generate at most, >= 0 (0 only computes the prompt's KV)
    int32_t temperature_bits; // float bits, finite, >= 0; 0 is greedy
    int32_t top_k;            // 0 is off
    int32_t top_p_bits;       // float bits in (0, 1]; 1 is off
    int32_t min_p_bits;       // float bits in [0, 1); 0 is off
    int32_t repetition_penalty_bits; // float bits > 0; 1 is off; over prompt and output
    int32_t presence_penalty_bits;   // float bits in [-2, 2]; 0 is off; over output
    int32_t frequency_penalty_bits;  // float bits in [-2, 2]; 0 is off; over output
    int32_t seed_low;
    int32_t seed_high;
    int32_t flags;            // RequestFlags
    int32_t logprobs;         // -1 none, else how many alternatives per token, [0, LOGPROBS_MAX]
    int32_t logit_bias_count; // [0, LOGIT_BIAS_MAX]
    int32_t stop_token_count; // [0, STOP_TOKENS_MAX]
    int32_t stop_tokens[limits::STOP_TOKENS_MAX];
    int32_t adapter;    // 0 none; part of the KV key
    int32_t mask_slot;  // -1 none, else [0, MASK_SLOTS)
    int32_t tenant_low; // secret of the tenant; part of the KV key
    int32_t tenant_high;
    int32_t sparse_mode;      // 0 dense; part of the KV key
    int32_t shard_count;      // 0 or 1 unsharded
    int32_t submitted_ns_low; // monotonic clock when the edge handed it over
    int32_t submitted_ns_high;
    int32_t trigger_slot; // with FLAG_MASKED: tokens that end a free stretch; -1 none
    int32_t free_end; // a free stretch that began before this generated token ends at it; 0: none
    int32_t reserved[27]; // zero
};

constexpr int32_t REQUEST_VERSION = 3;
constexpr int32_t REQUEST_HEADER_WORDS = sizeof(RequestHeader) / sizeof(int32_t);

// What a row of a step record says. One request sees ADMITTED once, then rows with TOKEN, then
// exactly one row with FINISHED (which may carry the last TOKEN). A request refused before
// admission sees FINISHED only.
enum TokenRowFlags : int32_t {
    ROW_ADMITTED = 1
        << 0,           // `token` holds cached prompt tokens, `detail` the step bucket's row count
    ROW_TOKEN = 1 << 1, // `token` holds the sampled id
    ROW_FINISHED = 1 << 2, // `reason` holds why
};

enum class FinishReason : int32_t {
    none = 0,
    stop_token = 1, // `token` is the stop token if ROW_TOKEN is set; it is not part of the text
    budget = 2,     // token_budget reached
    cancelled = 3,
    refused = 4, // can never fit (`detail`: RefuseReason)
    failed = 5,  // no token can be sampled (`detail`: FailReason)
    scored = 6,  // FLAG_SCORE is done; results lie in the slot
};

enum class RefuseReason : int32_t { none = 0, too_long = 1, queue_full = 2, malformed = 3 };

// not_finite: the row's logits. nothing_allowed: by its token mask.
enum class FailReason : int32_t { none = 0, not_finite = 1, nothing_allowed = 2 };

// Fixed part of a row; `extra_pairs` pairs of (token id, log-probability bits) follow it.
struct TokenRow {
    int32_t slot;
    int32_t generation;
    int32_t flags; // TokenRowFlags
    int32_t token;
    int32_t logprob_bits; // log-probability of `token` before any transform, if asked for
    int32_t reason;       // FinishReason
    int32_t detail;
    int32_t extra_pairs;
};

// One record per publish: header, then row_count rows. `words` counts the header too.
struct StepRecord {
    int32_t words;
    int32_t row_count;
    int32_t step_low;
    int32_t step_high;
    int32_t time_ns_low; // monotonic clock at publish
    int32_t time_ns_high;
    int32_t step_rows; // rows that the step computed (0: admissions only)
    int32_t reserved;
};

// Words that a request needs in its slot.
SUBLIMATE_HD constexpr int64_t request_words(int64_t prompt_length, int64_t logit_bias_count,
                                             bool score) {
    return REQUEST_HEADER_WORDS + prompt_length * (score ? 3 : 1) + 2 * logit_bias_count;
}

static_assert(sizeof(RequestHeader) == 256 && alignof(RequestHeader) == 4);
static_assert(offsetof(RequestHeader, prompt_length) == 4 * 4);
static_assert(offsetof(RequestHeader, seed_low) == 13 * 4);
static_assert(offsetof(RequestHeader, flags) == 15 * 4);
static_assert(offsetof(RequestHeader, stop_tokens) == 19 * 4);
static_assert(offsetof(RequestHeader, adapter) == 27 * 4);
static_assert(offsetof(RequestHeader, tenant_low) == 29 * 4);
static_assert(offsetof(RequestHeader, submitted_ns_low) == 33 * 4);
static_assert(offsetof(RequestHeader, trigger_slot) == 35 * 4);
static_assert(offsetof(RequestHeader, free_end) == 36 * 4);
static_assert(offsetof(RequestHeader, reserved) == 37 * 4);
static_assert(sizeof(TokenRow) == limits::TOKEN_ROW_WORDS * 4);
static_assert(sizeof(StepRecord) == limits::STEP_HEADER_WORDS * 4);
// The longest context fits the largest slot together with the scores of all its positions.
static_assert(request_words(limits::CONTEXT_TOKENS_MAX, limits::LOGIT_BIAS_MAX, true) <=
              limits::SLOT_WORDS[limits::SLOT_CLASSES - 1]);
static_assert(request_words(128, limits::LOGIT_BIAS_MAX, true) <= limits::SLOT_WORDS[0]);

} // namespace sublimate

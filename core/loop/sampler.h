// From one row of logits to one token. A pure function of the row, the request and the sequence's
// own tokens: no other row of the batch takes part, so what a request says does not depend on its
// company.
//
// Order: finite check; repetition penalty (prompt and output), frequency and presence penalties
// (output), logit_bias, token mask; then temperature, top-k, top-p, min-p and a Gumbel-max draw
// keyed by (seed, position). Where an answer must go on, a stop token is drawn again without stop
// tokens. Log-probabilities are those of the untransformed row. A greedy row
// without any of these is one finite check and one argmax.
//
// defines: SampleRequest, SampleScratch, SAMPLE_*, Sample, needs_transform, transform,
// is_kept_from, sample_row, score_row
#pragma once

#include <cstdint>

#include "../request.h"
#include "fault.h"
#include "sampler_ops.h"
#include "select.h"
#include "stop.h"

namespace sublimate {

constexpr float TEMPERATURE_GREEDY =
    1e-4f;                             // at or below: greedy, so that 1 / temperature stays small
constexpr float LOGIT_LARGEST = 1e30f; // transformed logits stay within, so that sums stay finite

struct SampleRequest {
    const RequestHeader* header;
    const int32_t* bias;  // (logit_bias_count, 2) in slot memory; ids are clamped at each read
    const uint32_t* mask; // (ceil(vocabulary / 32)) bit 1 = allowed; null: all
    int32_t vocabulary;
    int32_t position; // of the token to sample: prompt_length + index of the generated token
    const uint32_t* kept = nullptr; // as `mask`: a stop token that is one of these is drawn again
    bool without_stops = false;     // no stop token is allowed
};

// One per row that is sampled at the same time. `counts` is all zero between calls.
struct SampleScratch {
    float* logits;   // (vocabulary)
    int32_t* counts; // (vocabulary)
    SelectScratch select;
};

// In place of a token.
constexpr int32_t SAMPLE_NOT_FINITE = -1;
constexpr int32_t SAMPLE_NOTHING_ALLOWED = -2; // by the mask
constexpr int32_t SAMPLE_MASK_MISSING = -3;    // not sampled: the row runs again

struct Sample {
    int32_t token; // or SAMPLE_*
    float logprob;
    int32_t alternatives;
    int32_t ids[limits::LOGPROBS_MAX];
    float logprobs[limits::LOGPROBS_MAX]; // descending
};

SUBLIMATE_HD inline float header_float(int32_t bits) {
    return bits_float(static_cast<uint32_t>(bits));
}

SUBLIMATE_HD inline uint64_t header_seed(const RequestHeader& header) {
    return uint64_t{static_cast<uint32_t>(header.seed_high)} << 32 |
           static_cast<uint32_t>(header.seed_low);
}

SUBLIMATE_HD inline bool has_penalties(const RequestHeader& h) {
    return header_float(h.repetition_penalty_bits) != 1.0f ||
           header_float(h.presence_penalty_bits) != 0.0f ||
           header_float(h.frequency_penalty_bits) != 0.0f;
}

SUBLIMATE_HD inline bool needs_transform(const SampleRequest& request) {
    return request.mask != nullptr || request.without_stops ||
           request.header->logit_bias_count > 0 || has_penalties(*request.header);
}

SUBLIMATE_HD inline float clamp_logit(float value) {
    return value > LOGIT_LARGEST ? LOGIT_LARGEST
                                 : (value < -LOGIT_LARGEST ? -LOGIT_LARGEST : value);
}

// history(i): token at position i in [0, request.position); a token counts as output from
// prompt_length on.
template <class History>
SUBLIMATE_HD inline void apply_penalties(const SampleRequest& request, History&& history,
                                         const SampleScratch& scratch) {
    constexpr int32_t SEEN = 1 << 30;
    const RequestHeader& h = *request.header;
    float repetition = header_float(h.repetition_penalty_bits);
    float presence = header_float(h.presence_penalty_bits);
    float frequency = header_float(h.frequency_penalty_bits);
    int32_t first = repetition != 1.0f ? 0 : h.prompt_length;
    for (int32_t i = first; i < request.position; i++)
        scratch.counts[history(i)] += i >= h.prompt_length ? 1 : 0;
    for (int32_t i = first; i < request.position; i++) {
        int32_t token = history(i);
        int32_t count = scratch.counts[token];
        if ((count & SEEN) != 0) continue;
        scratch.counts[token] = count | SEEN;
        float value = scratch.logits[token];
        if (repetition != 1.0f) value = value > 0.0f ? value / repetition : value * repetition;
        if (count > 0) value = value - frequency * static_cast<float>(count) - presence;
        scratch.logits[token] = clamp_logit(value);
    }
    for (int32_t i = first; i < request.position; i++) scratch.counts[history(i)] = 0;
}

SUBLIMATE_HD inline void apply_mask(const uint32_t* mask, int32_t vocabulary, float* logits) {
    constexpr int32_t BITS = 32;
    for (int32_t first = 0; first < vocabulary; first += BITS) {
        uint32_t bits = *static_cast<const volatile uint32_t*>(mask + first / BITS); // once
        if (bits == ~0u) continue;
        int32_t count = vocabulary - first < BITS ? vocabulary - first : BITS;
        for (int32_t i = 0; i < count; i++) {
            if ((bits >> i & 1u) == 0) logits[first + i] = MINUS_INFINITY;
        }
    }
}

template <class History>
SUBLIMATE_HD inline void transform(const float* logits, const SampleRequest& request,
                                   History&& history, const SampleScratch& scratch) {
    memcpy(scratch.logits, logits, sizeof(float) * static_cast<size_t>(request.vocabulary));
    if (has_penalties(*request.header)) apply_penalties(request, history, scratch);
    const auto* bias = static_cast<const volatile int32_t*>(request.bias);
    for (int32_t i = 0; i < request.header->logit_bias_count; i++) {
        int32_t id = bias[2 * i];
        auto word = static_cast<uint32_t>(bias[2 * i + 1]);
        if (id < 0 || id >= request.vocabulary) continue;
        if ((word & FLOAT_EXPONENT_BITS) == FLOAT_EXPONENT_BITS) continue;
        scratch.logits[id] = clamp_logit(scratch.logits[id] + bits_float(word));
    }
    for (int32_t i = 0; request.without_stops && i < request.header->stop_token_count; i++) {
        CHECK(request.header->stop_tokens[i] >= 0);
        scratch.logits[request.header->stop_tokens[i]] = MINUS_INFINITY;
    }
    if (request.mask == nullptr || fault(Fault::mask_ignored)) return;
    apply_mask(request.mask, request.vocabulary, scratch.logits);
}

// The token, from transformed logits; -1 if none is allowed.
SUBLIMATE_HD inline int32_t choose_token(const SamplerOps& ops, const float* logits,
                                         const SampleRequest& request,
                                         const SampleScratch& scratch) {
    const RequestHeader& h = *request.header;
    float temperature = header_float(h.temperature_bits);
    if (temperature <= TEMPERATURE_GREEDY) {
        int32_t best = ops.argmax(logits, request.vocabulary);
        if (best < 0 || best >= request.vocabulary) return -1;
        return logits[best] == MINUS_INFINITY ? -1 : best;
    }
    float inverse = 1.0f / temperature;
    uint64_t seed = header_seed(h);
    int32_t position = fault(Fault::seed_ignores_position) ? 0 : request.position;
    SelectLimits limits = {h.top_k, header_float(h.top_p_bits), header_float(h.min_p_bits)};
    if (limits.top_k == 0 && limits.top_p >= 1.0f && limits.min_p <= 0.0f)
        return ops.gumbel_argmax(logits, request.vocabulary, inverse, MINUS_INFINITY, seed,
                                 position);
    int32_t count =
        select_survivors(ops, logits, request.vocabulary, inverse, limits, scratch.select);
    float best_score = MINUS_INFINITY;
    int32_t best = -1;
    for (int32_t i = 0; i < count; i++) {
        int32_t id = scratch.select.ids[i];
        float noise = gumbel_noise(seed, position, id);
        float score = fused_multiply_add(logits[id], inverse, noise);
        if (score > best_score) {
            best_score = score;
            best = id;
        }
    }
    return best;
}

// The `wanted` most probable tokens, descending, ties by id, and the log-probability of `token`.
SUBLIMATE_HD inline void fill_logprobs(const SamplerOps& ops, const float* logits,
                                       int32_t vocabulary, int32_t wanted, Sample& sample) {
    CHECK(sample.token >= 0 && sample.token < vocabulary && wanted <= limits::LOGPROBS_MAX);
    float maximum = ops.max_value(logits, vocabulary);
    float log_sum = log_polynomial(ops.sum_exp(logits, vocabulary, maximum, 1.0f));
    sample.logprob = logits[sample.token] - maximum - log_sum;
    int32_t count = 0;
    for (int32_t id = 0; id < vocabulary && wanted > 0; id++) {
        if (count == wanted && logits[id] <= sample.logprobs[count - 1]) continue;
        int32_t at = count < wanted ? count++ : count - 1;
        for (; at > 0 && logits[id] > sample.logprobs[at - 1]; at--) {
            sample.ids[at] = sample.ids[at - 1];
            sample.logprobs[at] = sample.logprobs[at - 1];
        }
        sample.ids[at] = id;
        sample.logprobs[at] = logits[id];
    }
    for (int32_t i = 0; i < count; i++) sample.logprobs[i] = sample.logprobs[i] - maximum - log_sum;
    sample.alternatives = count;
}

// Whether the token would end an answer that must go on.
SUBLIMATE_HD inline bool is_kept_from(const SampleRequest& request, int32_t token) {
    if (request.kept == nullptr || fault(Fault::kept_stop_ends)) return false;
    if ((request.header->flags & FLAG_IGNORE_EOS) != 0) return false;
    return is_stop_token(*request.header, token) &&
           (request.kept[token / 32] >> (token % 32) & 1u) != 0;
}

template <class History>
SUBLIMATE_HD inline void sample_row(const SamplerOps& ops, const float* logits,
                                    const SampleRequest& request, History&& history,
                                    const SampleScratch& scratch, Sample& sample) {
    CHECK(request.vocabulary >= 1 && request.position >= 1);
    sample.token = SAMPLE_NOT_FINITE;
    sample.logprob = 0.0f;
    sample.alternatives = 0;
    if (!ops.all_finite(logits, request.vocabulary) && !fault(Fault::nan_accepted)) return;
    const float* used = logits;
    if (needs_transform(request)) {
        transform(logits, request, history, scratch);
        used = scratch.logits;
    }
    int32_t token = choose_token(ops, used, request, scratch);
    if (token < 0 || token >= request.vocabulary) {
        if (request.mask != nullptr) sample.token = SAMPLE_NOTHING_ALLOWED;
        return;
    }
    if (is_kept_from(request, token)) {
        // Rare, so that a stretch without masks costs nothing: drawn again, not masked before.
        SampleRequest again = request;
        again.kept = nullptr;
        again.without_stops = true;
        transform(logits, again, history, scratch);
        token = choose_token(ops, scratch.logits, again, scratch);
        if (token < 0 || token >= request.vocabulary) return;
    }
    sample.token = token;
    if (request.header->logprobs >= 0)
        fill_logprobs(ops, logits, request.vocabulary, request.header->logprobs, sample);
}

// For FLAG_SCORE: the log-probability of `next` and the arg-max (in ids[0]) of a prompt row.
SUBLIMATE_HD inline void score_row(const SamplerOps& ops, const float* logits, int32_t vocabulary,
                                   int32_t next, Sample& sample) {
    sample.token = SAMPLE_NOT_FINITE;
    sample.alternatives = 0;
    if (!ops.all_finite(logits, vocabulary)) return;
    sample.token = next;
    fill_logprobs(ops, logits, vocabulary, 0, sample);
    sample.ids[0] = ops.argmax(logits, vocabulary);
}

} // namespace sublimate

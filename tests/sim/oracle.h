// What a request must say, computed from the request alone: no pages, no batch, no scheduler. It
// follows the rows that the edge sees and names the first thing that is wrong.
//
// defines: RequestSpec, mask_words_for, is_free_from, trigger_words_for, Oracle
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "../../core/loop/sampler.h"
#include "../../core/loop/sequence.h"
#include "../../core/loop/stop.h"
#include "../../core/ring/ring.h"
#include "hash_model.h"

namespace sublimate::sim {

// A request as its author knows it.
struct RequestSpec {
    RequestHeader header = {};
    std::vector<int32_t> prompt;
    std::vector<int32_t> bias; // (token, float bits) pairs
    uint64_t mask_seed = 0;
    RefuseReason refusal = RefuseReason::none; // what it must be refused for
    bool trusted = true; // false: its record was damaged on the way; only its end is checked
};

constexpr uint64_t NOTHING_PERIOD = 150; // one mask in so many allows no token

// The token mask of a generated token: about one id in four, hardly ever none.
inline void mask_words_for(uint64_t seed, int32_t index, int32_t vocabulary, uint32_t* words) {
    bool nothing = mix_hash(seed + static_cast<uint64_t>(index)) % NOTHING_PERIOD == 0;
    for (int32_t id = 0; id < vocabulary; id++) {
        if (id % 32 == 0) words[id / 32] = 0;
        uint64_t draw = mix_hash(seed ^ join_words(id, index));
        bool allowed = (draw % 4 == 0 || id == index % vocabulary) && !nothing;
        words[id / 32] |= (allowed ? 1u : 0u) << (id % 32);
    }
}

// Whether the edge, asked for a mask of this token, says that none is needed until a trigger.
inline bool is_free_from(const RequestHeader& h, uint64_t seed, int32_t index) {
    return h.trigger_slot >= 0 && mix_hash(~seed + static_cast<uint64_t>(index)) % 2 == 0;
}

inline void trigger_words_for(uint64_t seed, int32_t vocabulary, uint32_t* words) {
    for (int32_t id = 0; id < vocabulary; id++) {
        if (id % 32 == 0) words[id / 32] = 0;
        bool trigger = mix_hash(seed ^ mix_hash(static_cast<uint64_t>(id))) % 5 == 0;
        words[id / 32] |= (trigger ? 1u : 0u) << (id % 32);
    }
}

// Plain functions of the product run here without the planted fault: the oracle must not have it
// too.
class WithoutFault {
public:
#if defined(SUBLIMATE_FAULTS)
    WithoutFault() : saved_(planted_fault) { planted_fault = Fault::none; }
    ~WithoutFault() { planted_fault = saved_; }
    WithoutFault(const WithoutFault&) = delete;
    WithoutFault& operator=(const WithoutFault&) = delete;

private:
    Fault saved_;
#endif
};

class Oracle {
public:
    void start(const RequestSpec& spec, const ModelTraits& traits, int32_t context_tokens) {
        spec_ = &spec;
        traits_ = traits;
        context_tokens_ = context_tokens;
        tokens_.clear();
        sum_ = 0;
        generated_ = 0;
        logits_.resize(static_cast<size_t>(traits.vocabulary));
        work_.resize(static_cast<size_t>(traits.vocabulary));
        weights_.resize(static_cast<size_t>(traits.vocabulary));
        counts_.assign(static_cast<size_t>(traits.vocabulary), 0);
        ids_.resize(static_cast<size_t>(traits.vocabulary));
        mask_.resize(static_cast<size_t>(traits.vocabulary / 32 + 1));
        triggers_.resize(mask_.size());
        trigger_words_for(spec.mask_seed, traits.vocabulary, triggers_.data());
        free_ = false;
        if (!is_score(spec.header))
            for (int32_t token : spec.prompt) feed(token, false);
    }

    // Checks one row with ROW_TOKEN, and that it ends the request exactly when it must. Empty if
    // right.
    std::string check_token(const TokenRow& row, const int32_t* pairs) {
        [[maybe_unused]] WithoutFault off;
        if (generated_ >= spec_->header.token_budget) return "a token beyond the budget";
        Sample expected = {};
        predict(expected);
        if (expected.token < 0) return "a token from a row that must fail";
        if (row.token != expected.token)
            return "token " + std::to_string(row.token) + ", expected " +
                   std::to_string(expected.token);
        if (spec_->header.logprobs >= 0) {
            if (static_cast<uint32_t>(row.logprob_bits) != float_bits(expected.logprob))
                return "another log-probability";
            if (row.extra_pairs != expected.alternatives) return "number of alternatives";
            for (int32_t i = 0; i < row.extra_pairs; i++) {
                if (pairs[2 * i] != expected.ids[i] ||
                    static_cast<uint32_t>(pairs[2 * i + 1]) != float_bits(expected.logprobs[i]))
                    return "another alternative";
            }
        }
        free_ = !needs_mask() && !mask_has(triggers_.data(), row.token) &&
                generated_ + 1 != spec_->header.free_end;
        generated_++;
        FinishReason why = stop_reason(spec_->header, row.token, generated_, context_tokens_);
        bool ends = (row.flags & ROW_FINISHED) != 0;
        if (ends != (why != FinishReason::none)) return ends ? "ends too early" : "must end here";
        if (ends && row.reason != static_cast<int32_t>(why)) return "ends for another reason";
        feed(row.token, true);
        return "";
    }

    // Checks a FINISHED row without a token (not a cancel, not a refusal).
    std::string check_end(const TokenRow& row, const int32_t* scores) {
        [[maybe_unused]] WithoutFault off;
        auto why = static_cast<FinishReason>(row.reason);
        const RequestHeader& h = spec_->header;
        if (is_score(h)) return check_scores(why, scores);
        if (why == FinishReason::budget && h.token_budget == 0) return "";
        Sample expected = {};
        predict(expected);
        FailReason cause = expected.token == SAMPLE_NOTHING_ALLOWED ? FailReason::nothing_allowed
                                                                    : FailReason::not_finite;
        if (why == FinishReason::failed && row.detail != static_cast<int32_t>(cause))
            return "failed for another cause";
        if (why == FinishReason::failed) return expected.token < 0 ? "" : "failed without cause";
        return "a wrong end without a token";
    }

    int32_t generated() const { return generated_; }
    const std::vector<int32_t>& tokens() const { return tokens_; }

private:
    void feed(int32_t token, bool generated) {
        const RequestHeader& h = spec_->header;
        bool other_bits = generated && traits_.arithmetics_differ;
        auto position = static_cast<int32_t>(tokens_.size());
        uint64_t tenant = join_words(h.tenant_low, h.tenant_high);
        sum_ += context_hash(sum_, token, position, tenant, h.adapter, other_bits);
        tokens_.push_back(token);
    }

    SampleScratch scratch() {
        return {work_.data(), counts_.data(), {ids_.data(), weights_.data()}};
    }

    bool needs_mask() const {
        const RequestHeader& h = spec_->header;
        if ((h.flags & FLAG_MASKED) == 0 || free_) return false;
        return !is_free_from(h, spec_->mask_seed, generated_);
    }

    void predict(Sample& sample) {
        fill_logits(row_hash(sum_), tokens_.back(), traits_, logits_.data());
        const RequestHeader& h = spec_->header;
        bool masked = needs_mask();
        if (masked) mask_words_for(spec_->mask_seed, generated_, traits_.vocabulary, mask_.data());
        SampleRequest request = {&h, spec_->bias.data(), masked ? mask_.data() : nullptr,
                                 traits_.vocabulary, static_cast<int32_t>(tokens_.size())};
        bool watched = !masked && (h.flags & FLAG_MASKED) != 0 && h.trigger_slot >= 0;
        if (watched) request.kept = triggers_.data();
        auto history = [this](int32_t at) { return tokens_[static_cast<size_t>(at)]; };
        sample_row(scalar_sampler_ops(), logits_.data(), request, history, scratch(), sample);
    }

    std::string check_scores(FinishReason why, const int32_t* scores) {
        const RequestHeader& h = spec_->header;
        bool generated = (h.flags & FLAG_SCORE_DECODE) != 0;
        for (int32_t at = 0; at < h.prompt_length; at++) {
            Sample sample = {};
            sample.ids[0] = -1;
            if (at > 0) {
                fill_logits(row_hash(sum_), tokens_.back(), traits_, logits_.data());
                int32_t next = spec_->prompt[static_cast<size_t>(at)];
                score_row(scalar_sampler_ops(), logits_.data(), traits_.vocabulary, next, sample);
                if (sample.token < 0)
                    return why == FinishReason::failed ? "" : "a score from a row that must fail";
            }
            feed(spec_->prompt[static_cast<size_t>(at)], generated);
            if (why != FinishReason::scored) continue;
            if (static_cast<uint32_t>(scores[2 * at]) != float_bits(sample.logprob) ||
                scores[2 * at + 1] != sample.ids[0])
                return "another score at position " + std::to_string(at);
        }
        return why == FinishReason::scored ? "" : "a score request failed without cause";
    }

    const RequestSpec* spec_ = nullptr;
    ModelTraits traits_;
    int32_t context_tokens_ = 0;
    int32_t generated_ = 0;
    uint64_t sum_ = 0;
    std::vector<int32_t> tokens_;
    std::vector<float> logits_, work_, weights_;
    std::vector<int32_t> counts_, ids_;
    std::vector<uint32_t> mask_, triggers_;
    bool free_ = false; // from masks, as the loop must see it
};

} // namespace sublimate::sim

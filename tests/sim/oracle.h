// What a request must say, computed from the request alone: no pages, no batch, no scheduler. It
// follows the rows that the edge sees and names the first thing that is wrong.
//
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

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

// ---- sampling, once more: from the definitions, in double precision, over sorted rows. It shares
// no code with the loop, so it cannot share a fault; where rounding may decide, both ways are
// right.
constexpr double DOUBT = 1e-4;
constexpr double NO_LOGIT = -HUGE_VAL;

inline float float_of(int32_t bits) {
    return std::bit_cast<float>(bits);
}

// Philox4x32-10 of Salmon et al. (SC 2011); the counter's place of a token id is that of core/loop.
inline double noise_of(uint64_t seed, int32_t position, int32_t id) {
    auto token = static_cast<uint32_t>(id);
    uint32_t counter[4] = {token / 64 * 16 + token % 16, static_cast<uint32_t>(position), 0, 0};
    uint32_t key[2] = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
    for (int32_t round = 0; round < 10; round++) {
        uint64_t left = uint64_t{0xD2511F53} * counter[0];
        uint64_t right = uint64_t{0xCD9E8D57} * counter[2];
        counter[0] = static_cast<uint32_t>(right >> 32) ^ counter[1] ^ key[0];
        counter[2] = static_cast<uint32_t>(left >> 32) ^ counter[3] ^ key[1];
        counter[1] = static_cast<uint32_t>(right);
        counter[3] = static_cast<uint32_t>(left);
        key[0] += 0x9E3779B9;
        key[1] += 0xBB67AE85;
    }
    double uniform = (static_cast<double>(counter[token / 16 % 4] >> 9) + 0.5) / 8388608.0;
    return -std::log(-std::log(uniform));
}

inline bool has_bit(const std::vector<uint32_t>& words, int32_t id) {
    return (words[static_cast<size_t>(id) / 32] >> (id % 32) & 1) != 0;
}

inline bool is_stop(const RequestHeader& h, int32_t token) {
    return std::find(h.stop_tokens, h.stop_tokens + h.stop_token_count, token) !=
           h.stop_tokens + h.stop_token_count;
}

// Ids of finite logits: descending, and of equal ones the lower id first.
template <class Value>
void rank(const std::vector<Value>& logits, std::vector<int32_t>& ids) {
    ids.clear();
    for (int32_t id = 0; id < static_cast<int32_t>(logits.size()); id++)
        if (logits[static_cast<size_t>(id)] > static_cast<Value>(NO_LOGIT)) ids.push_back(id);
    std::stable_sort(ids.begin(), ids.end(), [&logits](int32_t a, int32_t b) {
        return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
    });
}

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
        mask_.resize(static_cast<size_t>(traits.vocabulary / 32 + 1));
        triggers_.resize(mask_.size());
        trigger_words_for(spec.mask_seed, traits.vocabulary, triggers_.data());
        free_ = false;
        if (!scores())
            for (int32_t token : spec.prompt) feed(token, false);
    }

    // Checks one row with ROW_TOKEN, and that it ends the request exactly when it must. Empty if
    // right.
    std::string check_token(const TokenRow& row, const int32_t* pairs) {
        const RequestHeader& h = spec_->header;
        if (generated_ >= h.token_budget) return "a token beyond the budget";
        if (row.token < 0 || row.token >= traits_.vocabulary) return "a token that is none";
        predict();
        if (failure() != FailReason::none) return "a token from a row that must fail";
        if (!may_say(row.token)) return "token " + std::to_string(row.token) + " is not the one";
        if (h.logprobs >= 0) {
            std::string why = check_logprobs(row, pairs);
            if (!why.empty()) return why;
        }
        free_ = !needs_mask() && !has_bit(triggers_, row.token) && generated_ + 1 != h.free_end;
        generated_++;
        FinishReason why = end_after(row.token);
        bool ends = (row.flags & ROW_FINISHED) != 0;
        if (ends != (why != FinishReason::none)) return ends ? "ends too early" : "must end here";
        if (ends && row.reason != static_cast<int32_t>(why)) return "ends for another reason";
        feed(row.token, true);
        return "";
    }

    // Checks a FINISHED row without a token (not a cancel, not a refusal).
    std::string check_end(const TokenRow& row, const int32_t* pairs) {
        auto why = static_cast<FinishReason>(row.reason);
        if (scores()) return check_scores(why, pairs);
        if (spec_->header.token_budget == 0)
            return why == FinishReason::budget ? "" : "another end of a request for no token";
        if (why != FinishReason::failed) return "a wrong end without a token";
        predict();
        FailReason cause = failure();
        if (cause == FailReason::none) return "failed without cause";
        return row.detail == static_cast<int32_t>(cause) ? "" : "failed for another cause";
    }

    int32_t generated() const { return generated_; }
    const std::vector<int32_t>& tokens() const { return tokens_; }

private:
    bool scores() const { return (spec_->header.flags & FLAG_SCORE) != 0; }

    void feed(int32_t token, bool generated) {
        const RequestHeader& h = spec_->header;
        bool other_bits = generated && traits_.arithmetics_differ;
        auto position = static_cast<int32_t>(tokens_.size());
        uint64_t tenant = join_words(h.tenant_low, h.tenant_high);
        sum_ += context_hash(sum_, token, position, tenant, h.adapter, other_bits);
        tokens_.push_back(token);
    }

    // A stop token comes first, then the request's own limit, then that of the context.
    FinishReason end_after(int32_t token) const {
        const RequestHeader& h = spec_->header;
        bool stops = is_stop(h, token) && (h.flags & FLAG_IGNORE_EOS) == 0;
        if (stops) return FinishReason::stop_token;
        bool is_over = generated_ == h.token_budget ||
                       static_cast<int32_t>(spec_->prompt.size()) + generated_ >= context_tokens_;
        return is_over ? FinishReason::budget : FinishReason::none;
    }

    bool needs_mask() const {
        const RequestHeader& h = spec_->header;
        if ((h.flags & FLAG_MASKED) == 0 || free_) return false;
        return !is_free_from(h, spec_->mask_seed, generated_);
    }

    void predict() {
        fill_logits(row_hash(sum_), tokens_.back(), traits_, logits_.data());
        masked_ = needs_mask();
        if (masked_) mask_words_for(spec_->mask_seed, generated_, traits_.vocabulary, mask_.data());
        changed_ = false;
        is_finite_ = std::all_of(logits_.begin(), logits_.end(),
                                 [](float logit) { return std::isfinite(logit); });
    }

    FailReason failure() const {
        if (!is_finite_) return FailReason::not_finite;
        if (!masked_) return FailReason::none;
        for (int32_t id = 0; id < traits_.vocabulary; id++)
            if (has_bit(mask_, id)) return FailReason::none;
        return FailReason::nothing_allowed;
    }

    // ---- what may be said
    bool may_say(int32_t token) {
        const RequestHeader& h = spec_->header;
        bool is_watched = (h.flags & FLAG_MASKED) != 0 && !masked_ && h.trigger_slot >= 0 &&
                          (h.flags & FLAG_IGNORE_EOS) == 0;
        change(false);
        find_candidates();
        if (!is_watched) return is_candidate(token);
        // A stop token that is a trigger is no answer's end here: the row is drawn without any.
        bool is_redrawn = false;
        bool is_right = false;
        for (int32_t id : candidates_) {
            bool is_kept = is_stop(h, id) && has_bit(triggers_, id);
            is_redrawn |= is_kept;
            is_right |= id == token && !is_kept;
        }
        if (is_right || !is_redrawn) return is_right;
        change(true);
        find_candidates();
        return is_candidate(token);
    }

    bool is_candidate(int32_t token) const {
        return std::find(candidates_.begin(), candidates_.end(), token) != candidates_.end();
    }

    // The logits as penalties, biases and masks leave them.
    void change(bool without_stops) {
        const RequestHeader& h = spec_->header;
        double repetition = float_of(h.repetition_penalty_bits);
        double presence = float_of(h.presence_penalty_bits);
        double frequency = float_of(h.frequency_penalty_bits);
        changed_ = without_stops || masked_ || h.logit_bias_count > 0 || repetition != 1.0 ||
                   presence != 0.0 || frequency != 0.0;
        values_.assign(logits_.begin(), logits_.end());
        if (repetition != 1.0 || presence != 0.0 || frequency != 0.0) {
            auto output = tokens_.begin() + static_cast<int64_t>(spec_->prompt.size());
            for (int32_t id = 0; id < traits_.vocabulary; id++) {
                double& value = values_[static_cast<size_t>(id)];
                auto times = static_cast<double>(std::count(output, tokens_.end(), id));
                if (std::find(tokens_.begin(), tokens_.end(), id) != tokens_.end())
                    value = value > 0.0 ? value / repetition : value * repetition;
                value -= times * frequency + (times > 0.0 ? presence : 0.0);
            }
        }
        for (size_t i = 0; i + 1 < spec_->bias.size(); i += 2)
            values_[static_cast<size_t>(spec_->bias[i])] += float_of(spec_->bias[i + 1]);
        for (int32_t id = 0; id < traits_.vocabulary; id++) {
            bool is_out = (masked_ && !has_bit(mask_, id)) || (without_stops && is_stop(h, id));
            if (is_out) values_[static_cast<size_t>(id)] = NO_LOGIT;
        }
    }

    // All tokens that a correct sampler may choose: one, but where rounding decides.
    void find_candidates() {
        const RequestHeader& h = spec_->header;
        double temperature = float_of(h.temperature_bits);
        candidates_.clear();
        rank(values_, ids_);
        if (temperature <= 1e-4) {
            for (int32_t id : ids_)
                if (value(id) >= value(ids_[0]) - (changed_ ? DOUBT : 0.0))
                    candidates_.push_back(id);
            if (!changed_) candidates_.resize(1); // exact: of equal ones the lowest id
            return;
        }
        survive(temperature);
        uint64_t seed = join_words(h.seed_low, h.seed_high);
        auto position = static_cast<int32_t>(tokens_.size());
        double best = NO_LOGIT;
        scored_.assign(values_.size(), NO_LOGIT);
        for (size_t i = 0; i < ids_.size(); i++) {
            double score = value(ids_[i]) / temperature + noise_of(seed, position, ids_[i]);
            scored_[static_cast<size_t>(ids_[i])] = score;
            if (i < certain_ && score > best) best = score;
        }
        for (int32_t id : ids_)
            if (scored_[static_cast<size_t>(id)] >= best - DOUBT) candidates_.push_back(id);
    }

    // Leaves in ids_ what top-k, top-p and min-p let pass, and behind the first certain_ of them
    // what they may let pass.
    void survive(double temperature) {
        const RequestHeader& h = spec_->header;
        double top_p = float_of(h.top_p_bits);
        double min_p = float_of(h.min_p_bits);
        size_t possible = ids_.size();
        certain_ = possible;
        if (h.top_k > 0 && static_cast<size_t>(h.top_k) < ids_.size()) {
            double last = value(ids_[static_cast<size_t>(h.top_k) - 1]);
            double doubt = changed_ ? DOUBT : 0.0;
            certain_ = possible = static_cast<size_t>(h.top_k);
            while (changed_ && certain_ > 0 && value(ids_[certain_ - 1]) <= last + doubt)
                certain_--;
            while (changed_ && possible < ids_.size() && value(ids_[possible]) >= last - doubt)
                possible++;
        }
        auto weight = [&](size_t i) {
            return std::exp((value(ids_[i]) - value(ids_[0])) / temperature);
        };
        double total = 0.0;
        size_t by_rank =
            h.top_k > 0 ? std::min<size_t>(static_cast<size_t>(h.top_k), ids_.size()) : ids_.size();
        for (size_t i = 0; i < by_rank; i++) total += weight(i);
        double before = 0.0;
        for (size_t i = 0; i < possible; i++) {
            bool is_out = (top_p < 1.0 && before >= top_p * total * (1.0 + DOUBT)) ||
                          weight(i) < min_p * (1.0 - DOUBT);
            bool is_doubtful = (top_p < 1.0 && before >= top_p * total * (1.0 - DOUBT)) ||
                               weight(i) < min_p * (1.0 + DOUBT);
            if (is_doubtful && i > 0) certain_ = std::min(certain_, i);
            if (is_out) possible = i;
            before += weight(i);
        }
        ids_.resize(possible);
    }

    double value(int32_t id) const { return values_[static_cast<size_t>(id)]; }

    // ---- log-probabilities: those of the row as the model made it
    double log_sum() const {
        double sum = 0.0;
        for (float logit : logits_) sum += std::exp(static_cast<double>(logit));
        return std::log(sum);
    }

    bool is_logprob(int32_t bits, int32_t id, double log_sum) const {
        double wanted = static_cast<double>(logits_[static_cast<size_t>(id)]) - log_sum;
        return std::fabs(static_cast<double>(float_of(bits)) - wanted) < DOUBT;
    }

    std::string check_logprobs(const TokenRow& row, const int32_t* pairs) {
        double sum = log_sum();
        if (!is_logprob(row.logprob_bits, row.token, sum)) return "another log-probability";
        rank(logits_, ids_);
        if (row.extra_pairs != std::min(spec_->header.logprobs, traits_.vocabulary))
            return "number of alternatives";
        for (int32_t i = 0; i < row.extra_pairs; i++) {
            bool is_right = pairs[2 * i] == ids_[static_cast<size_t>(i)] &&
                            is_logprob(pairs[2 * i + 1], pairs[2 * i], sum);
            if (!is_right) return "another alternative";
        }
        return "";
    }

    std::string check_scores(FinishReason why, const int32_t* pairs) {
        bool generated = (spec_->header.flags & FLAG_SCORE_DECODE) != 0;
        if (why != FinishReason::scored && why != FinishReason::failed)
            return "another end of a request for scores";
        bool is_scored = why == FinishReason::scored;
        for (size_t at = 0; at < spec_->prompt.size(); at++) {
            int32_t token = spec_->prompt[at];
            const int32_t* pair = pairs + 2 * at;
            if (at == 0 && is_scored && (pair[0] != 0 || pair[1] != -1))
                return "a score of the first token";
            if (at > 0) {
                predict();
                if (!is_finite_) return is_scored ? "a score from a row that must fail" : "";
                rank(logits_, ids_);
                bool is_right = is_logprob(pair[0], token, log_sum()) && pair[1] == ids_[0];
                if (is_scored && !is_right)
                    return "another score at position " + std::to_string(at);
            }
            feed(token, generated);
        }
        return is_scored ? "" : "a score request failed without cause";
    }

    const RequestSpec* spec_ = nullptr;
    ModelTraits traits_;
    int32_t context_tokens_ = 0;
    int32_t generated_ = 0;
    uint64_t sum_ = 0;
    std::vector<int32_t> tokens_;
    std::vector<uint32_t> mask_, triggers_;
    bool free_ = false; // from masks, as the loop must see it
    // Of the row that is checked.
    bool masked_ = false;
    bool changed_ = false; // its logits are not the model's any more
    bool is_finite_ = true;
    size_t certain_ = 0; // of ids_
    std::vector<float> logits_;
    std::vector<double> values_, scored_;
    std::vector<int32_t> ids_, candidates_;
};

} // namespace sublimate::sim

// A model whose next token is a hash of (tenant, adapter, all tokens so far), computed only through
// the KV pages that it wrote itself: each row reads every earlier position through its page table,
// as attention does. So a wrong page, a page written too late, or a page of another tenant shows up
// as other text.
//
// defines: Random, context_hash, row_hash, fill_logits, HashModel
#pragma once

#include <cstdint>
#include <vector>

#include "../../core/loop/pages.h"
#include "../../core/loop/sampler_ops.h"
#include "../../core/loop/step.h"

namespace sublimate::sim {

// SplitMix64: small, seeded, the same everywhere.
class Random {
public:
    explicit Random(uint64_t seed) : state_(seed) {}
    uint64_t next() {
        state_ += 0x9E3779B97F4A7C15u;
        return mix_hash(state_);
    }
    // In [0, bound); bound >= 1.
    int32_t below(int32_t bound) {
        return static_cast<int32_t>((next() >> 32) * static_cast<uint64_t>(bound) >> 32);
    }
    // In [low, high].
    int32_t between(int32_t low, int32_t high) { return low + below(high - low + 1); }
    bool chance(int32_t percent) { return below(100) < percent; }
    bool per_mille(int32_t parts) { return below(1000) < parts; }
    float unit() { return static_cast<float>(next() >> 40) * (1.0f / 16777216.0f); }

private:
    uint64_t state_;
};

// How the model behaves in one seed; the oracle uses the same values.
struct ModelTraits {
    int32_t vocabulary = 48;
    bool arithmetics_differ = false; // the generated arithmetic gives other bits
    int32_t nan_period = 0;          // one row in so many has a non-finite logit; 0 none
    int32_t habit_percent = 0;       // rows that prefer the token that follows their own by habit
};

constexpr float HABIT_LOGIT = 12.0f; // the others lie in [-4, 4)

// What a position contributes: sum is the sum over all earlier positions.
inline uint64_t context_hash(uint64_t sum, int32_t token, int32_t position, uint64_t tenant,
                             int32_t adapter, bool generated) {
    uint64_t own = mix_hash(join_words(token, position) ^ mix_hash(tenant));
    return mix_hash(sum ^ mix_hash(own ^ join_words(adapter, generated ? 1 : 0)));
}

// Of the row whose inclusive sum this is.
inline uint64_t row_hash(uint64_t sum) {
    return mix_hash(sum ^ 0x5bd1e995u);
}

inline bool is_poisoned(uint64_t hash, const ModelTraits& traits) {
    return traits.nan_period > 0 && mix_hash(hash) % static_cast<uint64_t>(traits.nan_period) == 0;
}

// token: the row's own. By habit each token has one successor, so the text runs in circles, which
// is what drafts are made of; whether a row follows the habit depends on all that came before.
inline void fill_logits(uint64_t hash, int32_t token, const ModelTraits& traits, float* logits) {
    for (int32_t id = 0; id < traits.vocabulary; id++) {
        uint64_t value = mix_hash(hash + static_cast<uint64_t>(id)) >> 40;
        logits[id] = static_cast<float>(value) * (8.0f / 16777216.0f) - 4.0f;
    }
    if (static_cast<int32_t>(mix_hash(~hash) % 100) < traits.habit_percent)
        logits[mix_hash(static_cast<uint64_t>(token)) % static_cast<uint64_t>(traits.vocabulary)] +=
            HABIT_LOGIT;
    if (!is_poisoned(hash, traits)) return;
    auto victim = static_cast<int32_t>(hash % static_cast<uint64_t>(traits.vocabulary));
    logits[victim] = (hash & 1) != 0 ? __builtin_nanf("") : __builtin_huge_valf();
}

class HashModel {
public:
    HashModel(const ModelTraits& traits, int32_t pages, uint64_t seed)
        : traits_(traits), page_count_(pages), random_(seed) {
        kv_.resize(static_cast<size_t>(pages) * limits::PAGE_TOKENS);
        for (uint64_t& word : kv_) word = random_.next(); // whatever is read before written
        sums_.resize(limits::STEP_ROWS_MAX);
        logits_.resize(static_cast<size_t>(limits::LOGIT_ROWS_MAX * traits.vocabulary));
    }

    int32_t vocabulary() const { return traits_.vocabulary; }
    const SamplerOps& sampler_ops() const { return scalar_sampler_ops(); }

    // Last to first: nothing may depend on the order.
    template <class Body>
    void for_rows(int32_t count, Body&& body) {
        for (int32_t i = count - 1; i >= 0; i--) body(i);
    }

    const float* forward(const Step& step) {
        CHECK(step.row_count >= 1 && step.row_count <= limits::STEP_ROWS_MAX);
        CHECK(step.logit_row_count <= limits::LOGIT_ROWS_MAX);
        prompt_segments = decode_segments = 0;
        int32_t next_row = 0;
        for (int32_t i = 0; i < step.segment_count; i++) {
            CHECK(step.segments[i].first_row == next_row);
            compute(step, step.segments[i]);
            next_row += step.segments[i].row_count;
        }
        CHECK(next_row == step.row_count);
        for (int32_t i = 0; i < step.logit_row_count; i++) {
            CHECK(i == 0 || step.logit_rows[i] > step.logit_rows[i - 1]);
            int32_t row = step.logit_rows[i];
            uint64_t sum = sums_[static_cast<size_t>(row)];
            fill_logits(row_hash(sum), step.tokens[row], traits_,
                        logits_.data() + i * traits_.vocabulary);
        }
        return logits_.data();
    }

    int32_t prompt_segments = 0; // of the last step
    int32_t decode_segments = 0;

private:
    uint64_t& word(const int32_t* table, int32_t position) {
        int32_t page = table[position / limits::PAGE_TOKENS];
        CHECK(page >= 0 && page < page_count_);
        return kv_[static_cast<size_t>(page * limits::PAGE_TOKENS +
                                       position % limits::PAGE_TOKENS)];
    }

    void compute(const Step& step, const Segment& segment) {
        const int32_t* table =
            step.page_tables + int64_t{segment.sequence} * step.page_table_stride;
        bool generated = segment.arithmetic == Arithmetic::generated;
        bool other_bits = generated && traits_.arithmetics_differ;
        bool decode = segment.first_position >= segment.prompt_length;
        (decode ? decode_segments : prompt_segments)++;
        uint64_t tenant = join_words(segment.tenant_low, segment.tenant_high);
        uint64_t sum = 0;
        for (int32_t at = 0; at < segment.first_position; at++) sum += word(table, at);
        for (int32_t i = 0; i < segment.row_count; i++) {
            int32_t row = segment.first_row + i;
            int32_t position = step.positions[row];
            int32_t token = step.tokens[row];
            CHECK(token >= 0 && token < traits_.vocabulary);
            uint64_t own = context_hash(sum, token, position, tenant, segment.adapter, other_bits);
            word(table, position) = own;
            sum += own;
            sums_[static_cast<size_t>(row)] = sum;
        }
    }

    ModelTraits traits_;
    int32_t page_count_;
    Random random_;
    std::vector<uint64_t> kv_;   // (page, PAGE_TOKENS)
    std::vector<uint64_t> sums_; // (row)
    std::vector<float> logits_;  // (logit row, vocabulary)
};

} // namespace sublimate::sim

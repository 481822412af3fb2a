// A loop with one or two edges in plain memory and the simulator's hash model, for tests that
// script it step by step.
//
// defines: LoopBench
#pragma once

#include <cstdlib>
#include <vector>

#include "../../core/loop/loop.h"
#include "../sim/hash_model.h"

namespace sublimate::test {

struct ManualClock {
    int64_t now_ns() const { return time_ns; }
    int64_t time_ns = 1000;
};

// One row as the edge reads it, with its alternatives.
struct SeenRow {
    TokenRow row;
    int32_t edge;
    int32_t step_rows;
    std::vector<int32_t> pairs;
};

inline LoopConfig small_config() {
    LoopConfig config;
    config.vocabulary = 48;
    config.context_tokens = 512;
    config.pages = 64;
    config.sequences_max = 16;
    config.queue_max = 16;
    config.salt = 99;
    return config;
}

class LoopBench {
public:
    explicit LoopBench(const LoopConfig& config = small_config(), int32_t edges = 1,
                       sim::ModelTraits traits = {})
        : model(traits, config.pages, 1) {
        block_ = std::aligned_alloc(4096, size_of(loop_memory_bytes(config)));
        loop = new Loop<sim::HashModel, ManualClock>(config, loop_memory(config, block_), model,
                                                     clock);
        for (int32_t e = 0; e < edges; e++) {
            RegionLayout at = region_layout(config.vocabulary);
            regions_.push_back(std::aligned_alloc(4096, size_of(at.total_bytes)));
            memset(regions_.back(), 0, static_cast<size_t>(at.slots));
            views.push_back(region_view(regions_.back(), config.vocabulary));
            region_format(views.back());
            slots.emplace_back();
            loop->attach(e, views.back());
        }
    }
    ~LoopBench() {
        delete loop;
        std::free(block_);
        for (void* region : regions_) std::free(region);
    }
    LoopBench(const LoopBench&) = delete;
    LoopBench& operator=(const LoopBench&) = delete;

    static RequestHeader header(int32_t budget) {
        RequestHeader h = {};
        h.version = REQUEST_VERSION;
        h.profile = static_cast<int32_t>(Profile::high_throughput);
        h.token_budget = budget;
        h.top_p_bits = h.repetition_penalty_bits = static_cast<int32_t>(float_bits(1.0f));
        h.logprobs = h.mask_slot = h.trigger_slot = -1;
        return h;
    }

    static std::vector<int32_t> prompt(int32_t length, int32_t first = 0) {
        std::vector<int32_t> tokens;
        for (int32_t i = 0; i < length; i++) tokens.push_back((first + i * 5) % 48);
        return tokens;
    }

    Slots::Lease submit(RequestHeader h, const std::vector<int32_t>& tokens, int32_t edge = 0) {
        auto at = static_cast<size_t>(edge);
        h.prompt_length = static_cast<int32_t>(tokens.size());
        Slots::Lease lease = slots[at].acquire(
            request_words(h.prompt_length, h.logit_bias_count, (h.flags & FLAG_SCORE) != 0));
        h.slot = lease.slot;
        h.generation = lease.generation;
        int32_t* words = views[at].slot_memory(lease.slot);
        memcpy(words, &h, sizeof h);
        memcpy(words + REQUEST_HEADER_WORDS, tokens.data(), tokens.size() * sizeof(int32_t));
        CHECK(submission_push(views[at], lease.slot));
        return lease;
    }

    // One iteration; returns the rows that it published.
    std::vector<SeenRow> iterate() {
        clock.time_ns += 1'000'000;
        worked = loop->run_once();
        const char* why = loop->audit();
        CHECK_BECAUSE(why == nullptr, why);
        return read();
    }

    std::vector<SeenRow> read() {
        std::vector<SeenRow> seen;
        std::vector<int32_t> record(TOKEN_RECORD_WORDS_MAX);
        for (size_t e = 0; e < views.size(); e++) {
            while (token_pop(views[e], record.data(), TOKEN_RECORD_WORDS_MAX) > 0) {
                StepRecord head;
                memcpy(&head, record.data(), sizeof head);
                int32_t at = limits::STEP_HEADER_WORDS;
                for (int32_t i = 0; i < head.row_count; i++) {
                    SeenRow row = {{}, static_cast<int32_t>(e), head.step_rows, {}};
                    memcpy(&row.row, record.data() + at, sizeof row.row);
                    at += limits::TOKEN_ROW_WORDS;
                    for (int32_t p = 0; p < 2 * row.row.extra_pairs; p++)
                        row.pairs.push_back(record[static_cast<size_t>(at++)]);
                    seen.push_back(row);
                }
            }
        }
        return seen;
    }

    // Iterates until nothing is outstanding; returns all rows.
    std::vector<SeenRow> finish() {
        std::vector<SeenRow> all;
        for (int32_t i = 0; i < 5000; i++) {
            for (SeenRow& row : iterate()) all.push_back(row);
            if (loop->outstanding() == 0) return all;
        }
        CHECK_BECAUSE(false, "the loop does not come to an end");
        return all;
    }

    static std::vector<int32_t> tokens_of(const std::vector<SeenRow>& rows, int32_t slot) {
        std::vector<int32_t> tokens;
        for (const SeenRow& seen : rows)
            if (seen.row.slot == slot && (seen.row.flags & ROW_TOKEN) != 0)
                tokens.push_back(seen.row.token);
        return tokens;
    }

    static const TokenRow* end_of(const std::vector<SeenRow>& rows, int32_t slot) {
        const TokenRow* end = nullptr;
        for (const SeenRow& seen : rows)
            if (seen.row.slot == slot && (seen.row.flags & ROW_FINISHED) != 0) end = &seen.row;
        return end;
    }

    ManualClock clock;
    sim::HashModel model;
    Loop<sim::HashModel, ManualClock>* loop = nullptr;
    std::vector<RegionView> views;
    std::vector<Slots> slots;
    bool worked = false;

private:
    static size_t size_of(int64_t bytes) { return static_cast<size_t>(align_up(bytes, 4096)); }

    void* block_ = nullptr;
    std::vector<void*> regions_;
};

} // namespace sublimate::test

// A simulated edge over a real region: slots, submissions, cancels, masks, a reader that can be
// slow, and an oracle per request. Whatever the loop says is checked here, row by row.
//
// defines: Live, SimEdge
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "../../core/ring/ring.h"
#include "hostile.h"
#include "oracle.h"
#include "scenario.h"

namespace sublimate::sim {

// A submitted request that has not seen its terminal row.
struct Live {
    RequestSpec spec;
    Oracle oracle;
    int32_t slot = -1;
    int32_t generation = 0;     // of the slot
    int32_t row_generation = 0; // as written in the header: rows carry it
    int32_t mask_at = 0;        // index of the next mask to publish
    int32_t masks_end = 0;      // from this one on masks never come
    int32_t tokens_seen = 0;
    bool unmasked = false; // until a trigger is seen
    bool admitted = false;
    bool cancelled = false;
    bool used = false;
    int32_t ends_expected = 1;
};

class SimEdge {
public:
    explicit SimEdge(int32_t vocabulary_max) {
        bytes_ = region_layout(vocabulary_max).total_bytes;
        base_ = std::aligned_alloc(4096, static_cast<size_t>(bytes_));
        CHECK(base_ != nullptr);
        record_.resize(TOKEN_RECORD_WORDS_MAX);
        by_slot_.assign(limits::SLOTS_MAX, -1);
    }
    ~SimEdge() { std::free(base_); }
    SimEdge(const SimEdge&) = delete;
    SimEdge& operator=(const SimEdge&) = delete;

    // A fresh region; whatever was live is forgotten, as after a death on either side.
    void restart(const Scenario& scenario, RequestMaker& maker) {
        scenario_ = &scenario;
        maker_ = &maker;
        view = region_view(base_, scenario.loop.vocabulary);
        RegionLayout at = region_layout(scenario.loop.vocabulary);
        memset(base_, 0, static_cast<size_t>(at.tokens));
        region_format(view);
        slots_ = Slots();
        for (Live& live : lives_) live.used = false;
        std::fill(by_slot_.begin(), by_slot_.end(), -1);
        std::fill(mask_owner_, mask_owner_ + limits::MASK_SLOTS, -1);
        ballast_ = 0;
        cursor_ = 0;
        live_count = bad_slots_ = 0;
        blocked_iterations = 0;
        hostile = others_may_fill = false;
        ended_.clear();
    }

    int32_t live_count = 0;
    int32_t blocked_iterations = 0; // in a row
    bool hostile = false;           // its ring was damaged: its rows mean nothing any more
    bool others_may_fill = false;   // the queue of the loop, besides this edge's honest requests
    uint64_t rows_seen = 0;
    uint64_t freed = 0, triggered = 0; // ends and beginnings of stretches that need masks
    RegionView view;

    // ---- submitting
    bool submit(Random& random, const RequestSpec& spec, bool damage) {
        bool score = (spec.header.flags & FLAG_SCORE) != 0;
        int64_t words =
            request_words(spec.header.prompt_length, spec.header.logit_bias_count, score);
        if (random.chance(3)) words = limits::SLOT_WORDS[1];
        int32_t mask_slot = -1;
        int32_t trigger_slot = -1;
        bool masked = (spec.header.flags & FLAG_MASKED) != 0;
        if (masked && (mask_slot = free_mask_slot(0)) < 0) return false;
        if (masked && random.chance(80)) trigger_slot = free_mask_slot(mask_slot + 1);
        Slots::Lease lease = slots_.acquire(words);
        if (lease.slot < 0) return false;
        int32_t index = free_live();
        Live& live = lives_[static_cast<size_t>(index)];
        live.spec = spec;
        live.slot = lease.slot;
        live.generation = lease.generation;
        live.admitted = live.cancelled = false;
        live.used = true;
        live.unmasked = false;
        live.mask_at = live.tokens_seen = 0;
        live.masks_end =
            random.per_mille(scenario_->absent_mask) ? random.below(9) : limits::CONTEXT_TOKENS_MAX;
        live.ends_expected = 1;
        RequestHeader& h = live.spec.header;
        h.slot = lease.slot;
        h.generation = lease.generation;
        if (masked) prepare_masks(random, live, index, mask_slot, trigger_slot);
        write_record(random, live, damage);
        by_slot_[static_cast<size_t>(lease.slot)] = index;
        CHECK(submission_push(view, lease.slot));
        live_count++;
        return true;
    }

    // A slot number that does not exist.
    void submit_bad_slot(Random& random) {
        bad_slots_++;
        CHECK(submission_push(view, limits::SLOTS_MAX + random.below(1 << 20)));
    }

    // The same record once more while the first is live, and words of live slots overwritten.
    void misbehave(Random& random) {
        Live* live = pick(random);
        if (!live || submission_pending(view)) return; // what the loop has taken, it took a copy of
        live->spec.trusted = false;
        others_may_fill = true;
        if (random.chance(50)) {
            int32_t* words = view.slot_memory(live->slot);
            for (int32_t i = 0; i < 40; i++)
                words[random.below(128)] = static_cast<int32_t>(random.next());
        }
        if (random.chance(30)) {
            CHECK(submission_push(view, live->slot));
            live->ends_expected++;
        }
    }

    void damage_ring(Random& random) {
        hostile = true;
        RegionControl* c = view.control;
        uint64_t* words[] = {&c->token_head, &c->token_tail, &c->submission_tail,
                             &c->submission_head};
        uint64_t* word = words[random.below(4)];
        *word =
            random.chance(50) ? random.next() : *word + static_cast<uint64_t>(random.below(999));
        c->vocabulary = 1u << 31;
        c->total_bytes = 0;
    }

    // ---- cancelling
    void cancel_one(Random& random, bool twice) {
        Live* live = pick(random);
        if (!live) return;
        live->cancelled = true;
        cancel_request(view, live->slot, live->row_generation);
        if (twice) cancel_request(view, live->slot, live->row_generation);
    }

    // A cancel that comes after its request has ended, perhaps when the slot serves another one.
    void cancel_late(Random& random) {
        if (ended_.empty()) return;
        const auto& [slot, generation] =
            ended_[static_cast<size_t>(random.below(static_cast<int32_t>(ended_.size())))];
        int32_t index = by_slot_[static_cast<size_t>(slot)];
        if (index >= 0 && lives_[static_cast<size_t>(index)].cancelled) return;
        cancel_request(view, slot, generation);
    }

    // ---- masks
    void publish_masks(Random& random, int32_t late_per_mille) {
        for (int32_t slot = 0; slot < limits::MASK_SLOTS; slot++) {
            if (mask_owner_[slot] < 0) continue;
            Live& live = lives_[static_cast<size_t>(mask_owner_[slot])];
            if (live.spec.header.mask_slot == slot && !random.per_mille(late_per_mille))
                publish_mask(live);
        }
    }

    // Of those that wait for a mask that never comes.
    void cancel_unmasked(Random& random, int32_t per_mille) {
        for (Live& live : lives_) {
            if (!live.used || (live.spec.header.flags & FLAG_MASKED) == 0) continue;
            if (live.tokens_seen < live.masks_end || !random.per_mille(per_mille)) continue;
            live.cancelled = true;
            cancel_request(view, live.slot, live.row_generation);
        }
    }

    // ---- reading. ballast: words that the edge pretends not to have read.
    void set_ballast(int64_t words) {
        ballast_ = static_cast<uint64_t>(words);
        view.control->token_head = cursor_ - ballast_;
    }
    bool full() const { return ballast_ > 0; }

    // Everything in the ring. Empty if all of it is right.
    std::string read() {
        if (hostile) return "";
        view.control->token_head = cursor_;
        std::string why;
        for (;;) {
            int32_t words = token_pop(view, record_.data(), TOKEN_RECORD_WORDS_MAX);
            if (words < 0) why = "the token ring holds no record";
            if (words <= 0) break;
            why = check_record(words);
            if (!why.empty()) break;
        }
        cursor_ = view.control->token_head;
        view.control->token_head = cursor_ - ballast_;
        return why;
    }

    void cancel_untrusted() {
        for (Live& live : lives_)
            if (live.used && !live.spec.trusted)
                cancel_request(view, live.slot, live.row_generation);
    }

    const std::vector<Live>& lives() const { return lives_; }
    int32_t bad_slots() const { return bad_slots_; }

private:
    void write_record(Random& random, Live& live, bool damage) {
        int32_t* words = view.slot_memory(live.slot);
        const RequestSpec& spec = live.spec;
        RequestHeader written = spec.header;
        int32_t* tokens = words + REQUEST_HEADER_WORDS;
        memcpy(tokens, spec.prompt.data(), spec.prompt.size() * sizeof(int32_t));
        if (!spec.bias.empty())
            memcpy(tokens + spec.prompt.size(), spec.bias.data(),
                   spec.bias.size() * sizeof(int32_t));
        if (damage) {
            damage_record(random, *scenario_, written, tokens);
            live.spec.refusal = RefuseReason::malformed;
        }
        memcpy(words, &written, sizeof written);
        live.row_generation = written.generation;
        live.oracle.start(live.spec, scenario_->traits, scenario_->loop.context_tokens);
    }

    int32_t free_live() {
        for (size_t i = 0; i < lives_.size(); i++)
            if (!lives_[i].used) return static_cast<int32_t>(i);
        if (lives_.capacity() == 0) lives_.reserve(limits::SLOTS_MAX); // oracles keep pointers
        lives_.emplace_back();
        return static_cast<int32_t>(lives_.size()) - 1;
    }

    int32_t free_mask_slot(int32_t from) const {
        for (int32_t slot = from; slot < limits::MASK_SLOTS; slot++)
            if (mask_owner_[slot] < 0) return slot;
        return -1;
    }

    uint32_t* mask_memory(int32_t slot) { return view.masks + int64_t{slot} * view.mask_words; }

    // Before the submission: slots, triggers, and now and then the first mask.
    void prepare_masks(Random& random, Live& live, int32_t index, int32_t mask_slot,
                       int32_t trigger_slot) {
        live.spec.header.mask_slot = mask_slot;
        live.spec.header.trigger_slot = trigger_slot;
        mask_clear(view, mask_slot);
        mask_owner_[mask_slot] = index;
        if (trigger_slot >= 0) {
            mask_clear(view, trigger_slot);
            mask_owner_[trigger_slot] = index;
            trigger_words_for(live.spec.mask_seed, view.vocabulary, mask_memory(trigger_slot));
        }
        if (random.chance(30)) publish_mask(live);
    }

    // Of the next token, once that is known to be the next one.
    void publish_mask(Live& live) {
        const RequestHeader& h = live.spec.header;
        int32_t index = live.tokens_seen;
        if (live.unmasked || live.mask_at > index || index >= live.masks_end) return;
        live.mask_at = index + 1;
        auto at = static_cast<uint32_t>(index);
        live.unmasked = is_free_from(h, live.spec.mask_seed, index);
        freed += live.unmasked ? 1 : 0;
        if (live.unmasked) return mask_publish_free(view, h.mask_slot, at);
        mask_words_for(live.spec.mask_seed, index, view.vocabulary, mask_memory(h.mask_slot));
        mask_publish(view, h.mask_slot, at);
    }

    void see_token(Live& live, int32_t token) {
        live.tokens_seen++;
        if (!live.unmasked || token < 0 || token >= view.vocabulary) return;
        const RequestHeader& h = live.spec.header;
        live.unmasked = !mask_has(mask_memory(h.trigger_slot), token);
        if (live.tokens_seen == h.free_end) live.unmasked = false;
        triggered += live.unmasked ? 0 : 1;
    }

    Live* pick(Random& random) {
        if (live_count == 0) return nullptr;
        int32_t skip = random.below(live_count);
        for (Live& live : lives_)
            if (live.used && skip-- == 0) return &live;
        return nullptr;
    }

    std::string check_record(int32_t words) {
        StepRecord header;
        memcpy(&header, record_.data(), sizeof header);
        int32_t at = limits::STEP_HEADER_WORDS;
        for (int32_t i = 0; i < header.row_count; i++) {
            if (at + limits::TOKEN_ROW_WORDS > words) return "a record with too few words";
            TokenRow row;
            memcpy(&row, record_.data() + at, sizeof row);
            at += limits::TOKEN_ROW_WORDS;
            if (row.extra_pairs < 0 || at + 2 * row.extra_pairs > words) return "wrong extra pairs";
            std::string why = check_row(row, record_.data() + at);
            if (!why.empty())
                return why + " (slot " + std::to_string(row.slot) + ", generation " +
                       std::to_string(row.generation) + ", flags " + std::to_string(row.flags) +
                       ", reason " + std::to_string(row.reason) + ")";
            at += 2 * row.extra_pairs;
            rows_seen++;
        }
        return at == words ? "" : "a record with too many words";
    }

    std::string check_row(const TokenRow& row, const int32_t* pairs) {
        if (row.slot >= limits::SLOTS_MAX) {
            bool refused = row.flags == ROW_FINISHED &&
                           row.reason == static_cast<int32_t>(FinishReason::refused);
            return refused && bad_slots_-- > 0 ? "" : "a row for a slot that does not exist";
        }
        int32_t index = row.slot < 0 ? -1 : by_slot_[static_cast<size_t>(row.slot)];
        if (index < 0) return "a row for a request that is not live";
        Live& live = lives_[static_cast<size_t>(index)];
        std::string why;
        if ((row.flags & ROW_TOKEN) != 0) see_token(live, row.token);
        if (live.spec.trusted) {
            if (row.generation != live.row_generation) return "a row of another generation";
            why = judge_row(live, row, pairs);
        }
        if (why.empty() && (row.flags & ROW_FINISHED) != 0 && --live.ends_expected == 0) end(live);
        return why;
    }

    std::string judge_row(Live& live, const TokenRow& row, const int32_t* pairs) {
        if ((row.flags & ROW_ADMITTED) != 0) return judge_admission(live, row);
        auto reason = static_cast<FinishReason>(row.reason);
        if ((row.flags & ROW_FINISHED) != 0 && reason == FinishReason::cancelled)
            return live.cancelled && row.flags == ROW_FINISHED ? "" : "cancelled by nobody";
        if ((row.flags & ROW_FINISHED) != 0 && reason == FinishReason::refused)
            return judge_refusal(live, row);
        if (!live.admitted) return "a row before the admission";
        if ((row.flags & ROW_TOKEN) != 0) return live.oracle.check_token(row, pairs);
        if ((row.flags & ROW_FINISHED) == 0) return "a row that says nothing";
        const int32_t* words = view.slot_memory(live.slot);
        return live.oracle.check_end(row, words + REQUEST_HEADER_WORDS +
                                              live.spec.header.prompt_length +
                                              2 * live.spec.header.logit_bias_count);
    }

    std::string judge_admission(Live& live, const TokenRow& row) const {
        const RequestHeader& h = live.spec.header;
        if (live.admitted) return "admitted twice";
        if (live.spec.refusal != RefuseReason::none) return "admitted what must be refused";
        live.admitted = true;
        bool reuses = (h.flags & (FLAG_NO_CACHE | FLAG_SCORE)) == 0;
        if (row.token < 0 || row.token >= h.prompt_length) return "too many cached tokens";
        if (row.token % limits::PAGE_TOKENS != 0) return "part of a page was cached";
        return row.token > 0 && !reuses ? "cached tokens for a private request" : "";
    }

    std::string judge_refusal(Live& live, const TokenRow& row) const {
        if (live.admitted) return "refused after admission";
        auto why = static_cast<RefuseReason>(row.detail);
        if (why == live.spec.refusal && why != RefuseReason::none) return "";
        if (why != RefuseReason::queue_full) return "refused for a wrong reason";
        return live_count > scenario_->loop.queue_max || others_may_fill ? ""
                                                                         : "the queue was not full";
    }

    void end(Live& live) {
        if (live.spec.trusted && live.spec.refusal == RefuseReason::none &&
            (live.spec.header.flags & FLAG_SCORE) == 0)
            maker_->remember(live.oracle.tokens());
        if (ended_.size() < ENDED_KEPT) {
            ended_.emplace_back(live.slot, live.generation);
        } else {
            ended_[rows_seen % ENDED_KEPT] = {live.slot, live.generation};
        }
        for (int32_t slot : {live.spec.header.mask_slot, live.spec.header.trigger_slot})
            if (slot >= 0) mask_owner_[slot] = -1;
        by_slot_[static_cast<size_t>(live.slot)] = -1;
        slots_.release(live.slot, live.generation);
        live.used = false;
        live_count--;
    }

    static constexpr size_t ENDED_KEPT = 16;
    const Scenario* scenario_ = nullptr;
    RequestMaker* maker_ = nullptr;
    void* base_ = nullptr;
    int64_t bytes_ = 0;
    Slots slots_;
    std::vector<Live> lives_;
    std::vector<int32_t> by_slot_;                   // index into lives_, -1 free
    std::vector<std::pair<int32_t, int32_t>> ended_; // (slot, generation)
    std::vector<int32_t> record_;
    int32_t mask_owner_[limits::MASK_SLOTS] = {};
    uint64_t ballast_ = 0;
    uint64_t cursor_ = 0;
    int32_t bad_slots_ = 0;
};

} // namespace sublimate::sim

// Speculation: rows for tokens that a sequence may say next, in the same step as the token before
// them, so that one reading of the weights confirms several tokens.
//
// Exact. A token is a function of its row's logits, the tokens before it, and (seed, position). A
// row behind right drafts has all of these as if it ran alone in a later step; what follows the
// first wrong draft is thrown away. So tokens, log-probabilities and ends are those without
// speculation, for greedy and for sampled requests.
//
// When it pays. Drafts take rows that the plan left free, the likeliest first, and as many of them
// as give the most expected tokens per time of the step. With nothing to win that is none.
//
// defines: history_token, may_draft, drafts_max, plan_drafts, rows_confirmed
#pragma once

#include <cstdint>

#include "cost.h"
#include "draft.h"
#include "schedule.h"
#include "state.h"
#include "stop.h"

namespace sublimate {

constexpr float GAIN_MIN = 1.02f; // less would be lost to what the costs leave out
// All requests of a step wait for its drafts, few gain by them: they make it longer by no more than
// this part of it, beside other streams and beside prompt rows.
constexpr int64_t BESIDE_STREAMS_PART = 4;
constexpr int64_t BESIDE_PROMPT_PART = 16;

// Position `computed` holds the token that was sampled last.
SUBLIMATE_HD inline int32_t history_token(const LoopState& loop, const Sequence& s, int32_t at) {
    return at < s.computed ? loop.kv.token_at(s.table, at) : s.next_token;
}

// A mask exists for one token only.
SUBLIMATE_HD inline bool may_draft(const LoopState& loop, const Sequence& s) {
    bool masked = (s.header.flags & FLAG_MASKED) != 0 && !s.unmasked;
    if (fault(Fault::draft_for_masked)) masked = false;
    return loop.config.speculation && s.state == State::decode && !masked;
}

// One token comes from the sequence's own row; the pages of the rest were reserved at admission.
SUBLIMATE_HD inline int32_t drafts_max(const Sequence& s) {
    int32_t left = s.header.token_budget - s.generated - 1;
    if (fault(Fault::draft_beyond_budget)) left = limits::DRAFT_TOKENS_MAX;
    return left < limits::DRAFT_TOKENS_MAX ? left : limits::DRAFT_TOKENS_MAX;
}

namespace speculating {

// What an entry of the plan could add.
struct Offer {
    float chance; // that its next draft counts: that it and all before it are right; 0: no draft
    int32_t taken;
    int32_t room;
};

struct Offers {
    Offer of[limits::SEQUENCES_MAX]; // by entry
    int32_t decodes;                 // entries that give a token
};

SUBLIMATE_HD inline void collect(LoopState& loop, Offers& offers) {
    offers.decodes = 0;
    for (int32_t i = 0; i < loop.plan->count; i++) {
        const Candidate& c = loop.candidates[loop.plan->entries[i].candidate];
        const Sequence& s = loop.sequences[c.sequence];
        CHECK(!c.decode || loop.plan->entries[i].rows == 1);
        offers.of[i] = {0.0f, 0, 0};
        offers.decodes += c.decode ? 1 : 0;
        if (!c.decode || !may_draft(loop, s)) continue;
        Drafter& drafter = loop.drafters[s.table_row];
        auto history = [&loop, &s](int32_t at) { return history_token(loop, s, at); };
        bool found = drafter.follow(history, s.computed + 1);
        int32_t room = drafts_max(s);
        if (found && room > 0) offers.of[i] = {drafter.chance(0), 0, room};
    }
}

SUBLIMATE_HD inline int32_t best_offer(const Offers& offers, int32_t count) {
    int32_t best = -1;
    for (int32_t i = 0; i < count; i++) {
        const Offer& offer = offers.of[i];
        if (offer.taken >= offer.room || offer.chance <= 0.0f) continue;
        if (best < 0 || offer.chance > offers.of[best].chance) best = i;
    }
    return best;
}

// Fills picks with entries, likeliest draft first, and returns how many of them pay.
SUBLIMATE_HD inline int32_t choose(const LoopState& loop, Offers& offers, int32_t room,
                                   int16_t* picks) {
    const Plan& plan = *loop.plan;
    auto expected = static_cast<float>(offers.decodes);
    int64_t cost_ps = plan.decode_ps + plan.prefill_ps;
    int64_t cost_max_ps = INT64_MAX;
    if (offers.decodes > 1) cost_max_ps = cost_ps + cost_ps / BESIDE_STREAMS_PART;
    if (plan.prefill_rows > 0) cost_max_ps = cost_ps + cost_ps / BESIDE_PROMPT_PART;
    float best = GAIN_MIN * expected / static_cast<float>(cost_ps);
    int32_t paying = 0;
    for (int32_t count = 0; count < room;) {
        int32_t entry = best_offer(offers, plan.count);
        if (entry < 0) break;
        Offer& offer = offers.of[entry];
        const Candidate& c = loop.candidates[plan.entries[entry].candidate];
        cost_ps += decode_row_cost(loop.cost, c.position + offer.taken + 1);
        if (cost_ps > cost_max_ps) break;
        picks[count++] = static_cast<int16_t>(entry);
        expected += offer.chance;
        offer.taken++;
        const Drafter& drafter = loop.drafters[loop.sequences[c.sequence].table_row];
        offer.chance *= drafter.chance(offer.taken);
        float rate = expected / static_cast<float>(cost_ps);
        if (rate <= best) continue;
        best = rate;
        paying = count;
    }
    return paying;
}

} // namespace speculating

// After schedule: adds drafts to the plan's decode entries. No other entry changes.
SUBLIMATE_HD inline void plan_drafts(LoopState& loop) {
    using namespace speculating;
    Plan& plan = *loop.plan;
    int32_t room = limits::LOGIT_ROWS_MAX - plan.logit_rows;
    if (plan.rows_max - plan.rows < room) room = plan.rows_max - plan.rows;
    if (!loop.config.speculation || room <= 0) return;
    Offers offers;
    int16_t picks[limits::LOGIT_ROWS_MAX];
    collect(loop, offers);
    if (offers.decodes == 0) return;
    int32_t count = choose(loop, offers, room, picks);
    for (int32_t i = 0; i < count; i++) plan.entries[picks[i]].rows++;
    plan.rows += count;
    plan.logit_rows += count;
    plan.draft_rows = count;
    CHECK(plan.rows <= plan.rows_max && plan.logit_rows <= limits::LOGIT_ROWS_MAX);
    for (int32_t i = 0; i < plan.count && count > 0; i++) {
        const Candidate& c = loop.candidates[plan.entries[i].candidate];
        if (!c.decode || plan.entries[i].rows == 1) continue;
        const Sequence& s = loop.sequences[c.sequence];
        auto history = [&loop, &s](int32_t at) { return history_token(loop, s, at); };
        loop.drafters[s.table_row].draft(history, plan.entries[i].rows - 1);
    }
}

// Of the rows [first_task, end_task) of a decoding sequence, those that count: up to the first
// whose token ends the request or its freedom from masks, is none, or is not the draft in the row
// behind it.
SUBLIMATE_HD inline int32_t rows_confirmed(const LoopState& loop, const Sequence& s,
                                           int32_t first_task, int32_t end_task) {
    CHECK_BECAUSE(end_task > first_task, "a decoding sequence samples in each of its steps");
    int32_t rows = 1;
    for (int32_t task = first_task; task + 1 < end_task; task++, rows++) {
        int32_t token = loop.samples[task].token;
        int32_t draft = loop.tokens[loop.logit_rows[task + 1]];
        bool right = token == draft || (fault(Fault::draft_not_compared) && token >= 0);
        if (!right) break;
        FinishReason why =
            stop_reason(s.header, token, s.generated + rows, loop.config.context_tokens);
        if (why != FinishReason::none) break;
        bool ends = ends_freedom(loop, s, token, s.generated + rows);
        if (ends && !fault(Fault::draft_past_trigger)) break;
    }
    return rows;
}

} // namespace sublimate

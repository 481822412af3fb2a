// The scheduler: a pure function from what could run to what runs in this step. Same view, same
// plan; no clock, no randomness, no memory of its own (ageing counters are in the view, the loop
// keeps them; what things cost is a table, see cost.h).
//
// Rows of all profiles share a step.
//   - A step has a row budget. While a low-latency row decodes, it is the low-latency one.
//   - Decode rows come first, by aged priority and then the longest wait, so that a batch limit
//     means "in turn". If a prompt waits too, some rows are kept for it (prefill_rows_min).
//   - Prompt rows fill the rest, but beside decode rows they have a budget in time: all streams
//     get their next token when the step ends, so it may take step_percent of what its decode rows
//     take alone. Of every such step prompts have 1 - 100 / step_percent, less what rounding costs
//     them: that is their guaranteed share. Short prompts that crowd earn more, by how many decode
//     rows they outweigh.
//   - Profiles take turns by aged priority; inside a profile prompts are first come, first served,
//     at most prompts_at_once of them.
//   - Of several prompts that are about to compute the same page, one does; the others adopt it.
// Ageing lifts whatever waits by one priority each AGEING_STEPS, so nothing waits for ever.
//
// defines: Policy, DEFAULT_POLICY, Candidate, ScheduleView, Plan, aged, schedule
#pragma once

#include <cstdint>

#include "../check.h"
#include "../limits.h"
#include "../policy/policy.h"
#include "cost.h"
#include "fault.h"

namespace sublimate {

struct Policy {
    ProfilePolicy profiles[limits::PRIORITIES_MAX]; // by Profile
};

// The policy that the build compiles from proto/sublimate/v1/layer.proto, where its numbers stand.
static_assert(limits::PRIORITIES_MAX == POLICY_PROFILES);
constexpr Policy DEFAULT_POLICY = {
    {LAYER_POLICY.profiles[0], LAYER_POLICY.profiles[1], LAYER_POLICY.profiles[2]}};

constexpr int32_t STEP_PERCENT_MAX = 10000;
static_assert(STEP_PERCENT_MAX / 100 <= COST_FACTOR_MAX, "a budget fits its integer");
constexpr int32_t SHORT_PROMPT_ROWS = LAYER_POLICY.short_prompt_tokens; // that it computes in all
constexpr int32_t AGEING_STEPS = LAYER_POLICY.ageing_steps;
static_assert(LAYER_POLICY.attention_block_tokens % limits::PAGE_TOKENS == 0,
              "a shard begins at a page");
static_assert(LAYER_POLICY.max_tokens_per_shard <= limits::CONTEXT_TOKENS_MAX);

SUBLIMATE_HD constexpr bool sane_policy(const Policy& policy) {
    for (const ProfilePolicy& p : policy.profiles) {
        if (p.decode_rows_max < 1 || p.decode_rows_max > limits::SEQUENCES_MAX) return false;
        if (p.decode_rows_beside_short_prompt < 1 || p.prompts_at_once < 1) return false;
        if (p.step_rows_max < 2 || p.step_rows_max > limits::STEP_ROWS_MAX) return false;
        if (p.step_percent < 100 || p.step_percent_max < p.step_percent) return false;
        if (p.step_percent_max > STEP_PERCENT_MAX || p.prefill_rows_min < 1) return false;
        if (p.short_prompt_weight < 0 || p.short_prompt_weight > limits::STEP_ROWS_MAX)
            return false;
    }
    return true;
}
static_assert(sane_policy(DEFAULT_POLICY));

// A sequence that could run in this step. Whoever waits for room in its ring is not listed, nor is
// a row that would only wait for its mask.
struct Candidate {
    int32_t sequence; // the caller's index
    int32_t profile;
    bool decode;          // one row; else prompt rows
    bool score;           // each prompt row needs its logits
    int32_t position;     // of the first row
    int32_t rows_left;    // to the end of the prompt, whose row needs its logits; >= 1
    int32_t prompt_rows;  // that the prompt computes in all: those that no cache had
    int32_t waited_steps; // since its last row
    uint64_t arrival;
    uint64_t page_hash; // of the page it computes next; 0 if nobody can share it
};

struct ScheduleView {
    const Candidate* candidates;
    int32_t count;                                  // <= SEQUENCES_MAX
    int32_t prefill_waited[limits::PRIORITIES_MAX]; // steps since a prompt of the profile got rows
};

struct Plan {
    struct Entry {
        int32_t candidate;
        int32_t rows;
    };
    int32_t count;
    int32_t rows;
    int32_t logit_rows;
    int32_t prefill_rows;
    int32_t prefill_profiles; // bit per profile whose prompts got rows
    int32_t rows_max;         // row budget of the step
    int32_t late_rows;        // of `rows`, added by add_late_rows: one in each of the last entries
    int32_t draft_rows;       // of `rows`, added by plan_drafts
    int64_t decode_ps;        // cost of the step's decode rows alone; 0 without any
    int64_t prefill_ps;       // what its prompt rows cost besides
    Entry entries[limits::SEQUENCES_MAX];
};

SUBLIMATE_HD constexpr int32_t aged(int32_t priority, int32_t waited_steps) {
    return priority + waited_steps / AGEING_STEPS;
}

namespace scheduling {

constexpr int32_t PROFILES = limits::PRIORITIES_MAX;

struct Totals {
    int32_t decode[PROFILES]; // candidates
    int32_t prefill[PROFILES];
    int32_t decodes;
    int32_t prompts;
    int32_t prompt_rows; // capped at STEP_ROWS_MAX
    int32_t short_prompts;
    int32_t prompts_weight; // decode rows that the short prompts outweigh together
};

SUBLIMATE_HD constexpr int32_t smaller(int32_t a, int32_t b) {
    return a < b ? a : b;
}
SUBLIMATE_HD constexpr int32_t larger(int32_t a, int32_t b) {
    return a > b ? a : b;
}

SUBLIMATE_HD inline Totals count_candidates(const ScheduleView& view, const Policy& policy) {
    Totals totals = {};
    for (int32_t i = 0; i < view.count; i++) {
        const Candidate& c = view.candidates[i];
        CHECK(c.profile >= 0 && c.profile < PROFILES && c.rows_left >= 1);
        if (c.decode) {
            totals.decode[c.profile]++;
            totals.decodes++;
        } else {
            totals.prefill[c.profile]++;
            totals.prompts++;
            totals.prompt_rows =
                smaller(limits::STEP_ROWS_MAX,
                        totals.prompt_rows + smaller(c.rows_left, limits::STEP_ROWS_MAX));
            if (c.prompt_rows > SHORT_PROMPT_ROWS) continue;
            totals.short_prompts++;
            totals.prompts_weight += policy.profiles[c.profile].short_prompt_weight;
        }
    }
    return totals;
}

struct Budget {
    int32_t rows;         // of the step
    int32_t prefill_kept; // prompt rows that decode rows must leave free
};

SUBLIMATE_HD inline Budget row_budget(const Totals& totals, const Policy& policy) {
    Budget budget = {2, 0};
    int32_t kept = 1;
    for (int32_t p = 0; p < PROFILES; p++) {
        const ProfilePolicy& own = policy.profiles[p];
        if (totals.decode[p] + totals.prefill[p] > 0)
            budget.rows = larger(budget.rows, own.step_rows_max);
        if (totals.prefill[p] > 0) kept = larger(kept, own.prefill_rows_min);
    }
    if (totals.decode[0] > 0)
        budget.rows = smaller(budget.rows, larger(policy.profiles[0].step_rows_max, 2));
    budget.rows = smaller(budget.rows, limits::STEP_ROWS_MAX);
    if (totals.prompts > 0 && !fault(Fault::starve_prefill)) {
        int32_t most = totals.decodes > 0 ? budget.rows / 2 : budget.rows;
        budget.prefill_kept = smaller(smaller(kept, most), totals.prompt_rows);
    }
    return budget;
}

// No step takes longer than about this, however deep its prompt is in its context: between steps
// the loop takes requests, hears cancels and beats for the watchdog, which waits 5 s.
constexpr int64_t PROMPT_STEP_PS_MAX = 2'000'000'000'000;

// What prompt rows may cost beside the planned decode rows.
SUBLIMATE_HD inline int64_t prefill_budget_ps(const ScheduleView& view, const Policy& policy,
                                              const StepCost& cost, const Totals& totals,
                                              const Plan& plan) {
    if (plan.rows == 0) return PROMPT_STEP_PS_MAX;
    int32_t percent = STEP_PERCENT_MAX;
    int32_t percent_max = STEP_PERCENT_MAX;
    for (int32_t i = 0; i < plan.count; i++) {
        int32_t profile = view.candidates[plan.entries[i].candidate].profile;
        percent = smaller(percent, policy.profiles[profile].step_percent);
        percent_max = smaller(percent_max, policy.profiles[profile].step_percent_max);
    }
    int64_t more = percent - 100;
    if (totals.prompts_weight > plan.rows) more = more * totals.prompts_weight / plan.rows;
    if (more > percent_max - 100) more = percent_max - 100;
    CHECK(more >= 0 && plan.decode_ps > 0);
    int64_t budget_ps = plan.decode_ps / 100 * more - cost.prompt_step_ps;
    return budget_ps < PROMPT_STEP_PS_MAX ? budget_ps : PROMPT_STEP_PS_MAX;
}

SUBLIMATE_HD inline bool decodes_before(const Candidate& a, const Candidate& b,
                                        const Policy& policy) {
    int32_t aged_a = aged(policy.profiles[a.profile].priority, a.waited_steps);
    int32_t aged_b = aged(policy.profiles[b.profile].priority, b.waited_steps);
    if (aged_a != aged_b) return aged_a > aged_b;
    if (a.waited_steps != b.waited_steps) return a.waited_steps > b.waited_steps;
    return a.arrival < b.arrival;
}

SUBLIMATE_HD inline void add_entry(Plan& plan, int32_t candidate, int32_t rows, int32_t logits) {
    CHECK(plan.count < limits::SEQUENCES_MAX && rows >= 1);
    plan.entries[plan.count++] = {candidate, rows};
    plan.rows += rows;
    plan.logit_rows += logits;
}

SUBLIMATE_HD inline void plan_decodes(const ScheduleView& view, const Policy& policy,
                                      const StepCost& cost, const Totals& totals, int32_t room,
                                      Plan& plan) {
    int16_t order[limits::SEQUENCES_MAX];
    int32_t count = 0;
    for (int32_t i = 0; i < view.count; i++) {
        if (!view.candidates[i].decode) continue;
        int32_t at = count++;
        for (; at > 0 && decodes_before(view.candidates[i], view.candidates[order[at - 1]], policy);
             at--)
            order[at] = order[at - 1];
        order[at] = static_cast<int16_t>(i);
    }
    int32_t taken[PROFILES] = {};
    for (int32_t i = 0; i < count && plan.rows < room; i++) {
        int32_t profile = view.candidates[order[i]].profile;
        const ProfilePolicy& own = policy.profiles[profile];
        int32_t cap =
            totals.short_prompts > 0 ? own.decode_rows_beside_short_prompt : own.decode_rows_max;
        if (taken[profile] >= larger(cap, 1)) continue;
        if (fault(Fault::starve_decode) && totals.prompts > 0) continue;
        taken[profile]++;
        add_entry(plan, order[i], 1, 1);
        if (plan.decode_ps == 0) plan.decode_ps = cost.step_ps;
        plan.decode_ps += decode_row_cost(cost, view.candidates[order[i]].position);
    }
}

constexpr int32_t ROW_BLOCK = 4; // kernels take rows in blocks of a few, evenly cut

// The end of a chunk that does not end the prompt: a page border, so that the page is published at
// once, if that costs the chunk no more than a third of its rows; else whole blocks of rows.
SUBLIMATE_HD inline int32_t rounded_rows(const Candidate& c, int32_t rows) {
    if (rows == c.rows_left) return rows;
    int32_t to_border = rows - (c.position + rows) % limits::PAGE_TOKENS;
    if (3 * to_border >= 2 * rows) return to_border;
    return rows > ROW_BLOCK ? rows - rows % ROW_BLOCK : rows;
}

// What the prompts of a step may still use.
struct Room {
    int32_t rows;
    int32_t rows_min; // of the first prompt in the step, whatever they cost
    int64_t time_ps;
};

SUBLIMATE_HD inline int32_t chunk_rows(const Candidate& c, const StepCost& cost, const Room& room,
                                       int32_t rows_max) {
    int32_t most = smaller(smaller(c.rows_left, room.rows), rows_max);
    int32_t rows = prompt_rows_within(cost, c.position, most, room.time_ps);
    rows = larger(rows, smaller(most, room.rows_min));
    CHECK(rows <= c.rows_left && rows <= room.rows);
    return rows < 1 ? 0 : rounded_rows(c, rows);
}

SUBLIMATE_HD inline bool same_page_planned(const ScheduleView& view, const Plan& plan,
                                           uint64_t page_hash) {
    if (page_hash == 0) return false;
    for (int32_t i = 0; i < plan.count; i++) {
        if (view.candidates[plan.entries[i].candidate].page_hash == page_hash) return true;
    }
    return false;
}

// Prompts of one profile, in order of arrival, into the room that is left.
SUBLIMATE_HD inline void plan_prompts(const ScheduleView& view, const StepCost& cost,
                                      int32_t profile, int32_t prompts_max, Room& room,
                                      Plan& plan) {
    uint64_t after = 0; // arrivals are >= 1
    for (int32_t prompts = 0; prompts < prompts_max && room.rows > 0;) {
        int32_t next = -1;
        for (int32_t i = 0; i < view.count; i++) {
            const Candidate& c = view.candidates[i];
            if (c.decode || c.profile != profile || c.arrival <= after) continue;
            if (next < 0 || c.arrival < view.candidates[next].arrival) next = i;
        }
        if (next < 0) return;
        const Candidate& c = view.candidates[next];
        after = c.arrival;
        if (same_page_planned(view, plan, c.page_hash)) continue;
        int32_t logits_left = limits::LOGIT_ROWS_MAX - plan.logit_rows;
        int32_t rows = chunk_rows(c, cost, room, c.score ? logits_left : room.rows);
        bool ends = rows == c.rows_left;
        if (rows < 1 || (ends && logits_left < 1)) continue;
        add_entry(plan, next, rows, c.score ? rows : (ends ? 1 : 0));
        int64_t cost_ps = prompt_rows_cost(cost, c.position, rows);
        plan.prefill_ps += cost_ps + (plan.prefill_rows == 0 ? cost.prompt_step_ps : 0);
        plan.prefill_rows += rows;
        plan.prefill_profiles |= 1 << profile;
        room.rows -= rows;
        room.rows_min = 0;
        room.time_ps -= cost_ps;
        prompts++;
    }
}

} // namespace scheduling

SUBLIMATE_HD inline void schedule(const ScheduleView& view, const Policy& policy,
                                  const StepCost& cost, Plan& plan) {
    using namespace scheduling;
    CHECK(view.count >= 0 && view.count <= limits::SEQUENCES_MAX);
    plan.count = plan.rows = plan.logit_rows = plan.prefill_rows = plan.prefill_profiles = 0;
    plan.decode_ps = plan.prefill_ps = 0;
    Totals totals = count_candidates(view, policy);
    Budget budget = row_budget(totals, policy);
    plan.rows_max = budget.rows;
    plan.late_rows = plan.draft_rows = 0;
    plan_decodes(view, policy, cost, totals, budget.rows - budget.prefill_kept, plan);
    int64_t time_ps = prefill_budget_ps(view, policy, cost, totals, plan);
    bool tried[PROFILES] = {};
    for (int32_t round = 0; round < PROFILES; round++) {
        int32_t best = -1;
        for (int32_t p = 0; p < PROFILES; p++) {
            if (tried[p] || totals.prefill[p] == 0) continue;
            int32_t mine = aged(policy.profiles[p].priority, view.prefill_waited[p]);
            if (best < 0 || mine > aged(policy.profiles[best].priority, view.prefill_waited[best]))
                best = p;
        }
        if (best < 0) break;
        tried[best] = true;
        const ProfilePolicy& own = policy.profiles[best];
        int32_t least = plan.prefill_rows == 0 ? larger(own.prefill_rows_min, 1) : 0;
        Room room = {smaller(budget.rows - plan.rows, own.step_rows_max), least, time_ps};
        if (fault(Fault::starve_prefill) && totals.decodes > 0) room.rows = 0;
        plan_prompts(view, cost, best, larger(own.prompts_at_once, 1), room, plan);
        time_ps = room.time_ps;
    }
    CHECK(plan.rows <= budget.rows && plan.logit_rows <= limits::LOGIT_ROWS_MAX);
}

} // namespace sublimate

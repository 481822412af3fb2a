// The scheduler: a pure function from what could run to what runs in this step. Same view, same
// plan; no clock, no randomness, no memory of its own (ageing counters are in the view, the loop
// keeps them).
//
// Rows of all profiles share a step.
//   - A step has a row budget. While a low-latency row decodes, it is the low-latency one.
//   - Decode rows come first, by aged priority and then the longest wait, so that a batch limit
//   means "in
//     turn". If a prompt waits too, some rows are kept for it (prefill_rows_min).
//   - Prompt rows fill the rest, but no more than each decoding profile tolerates beside its decode
//   rows
//     (prefill_rows_beside_decode). Profiles take turns by aged priority; inside a profile prompts
//     are first come, first served, at most prompts_at_once of them.
//   - Of several prompts that are about to compute the same page, one does; the others adopt it.
// Ageing lifts whatever waits by one priority each AGEING_STEPS, so nothing waits for ever.
//
// defines: ProfilePolicy, Policy, DEFAULT_POLICY, Candidate, ScheduleView, Plan, aged, schedule
#pragma once

#include <cstdint>

#include "../check.h"
#include "../limits.h"
#include "fault.h"

namespace sublimate {

struct ProfilePolicy {
    int32_t decode_rows_max;            // decode rows of this profile in one step
    int32_t decode_rows_beside_prefill; // the same when the step also holds prompt rows
    int32_t step_rows_max;              // row budget of a step
    int32_t prefill_rows_beside_decode; // prompt rows in a step that decodes this profile
    int32_t prefill_rows_min;           // prompt rows kept free when a prompt of this profile waits
    int32_t prompts_at_once;            // prompts of this profile in one step
    int32_t priority;                   // larger goes first
};

struct Policy {
    ProfilePolicy profiles[limits::PRIORITIES_MAX]; // by Profile
};

// low_latency: whole short prompts in one step, a few decode rows beside them, one prompt at a
// time: the time
//   to the first token. high_throughput: everything in large steps: tokens per second.
//   long_context: one page of prompt beside any decode row: an even gap between tokens.
constexpr Policy DEFAULT_POLICY = {{
    {.decode_rows_max = 16,
     .decode_rows_beside_prefill = 4,
     .step_rows_max = 256,
     .prefill_rows_beside_decode = 224,
     .prefill_rows_min = 64,
     .prompts_at_once = 1,
     .priority = 2},
    {.decode_rows_max = 128,
     .decode_rows_beside_prefill = 128,
     .step_rows_max = 640,
     .prefill_rows_beside_decode = 512,
     .prefill_rows_min = 128,
     .prompts_at_once = 16,
     .priority = 1},
    {.decode_rows_max = 64,
     .decode_rows_beside_prefill = 64,
     .step_rows_max = 512,
     .prefill_rows_beside_decode = 32,
     .prefill_rows_min = 32,
     .prompts_at_once = 1,
     .priority = 1},
}};

constexpr int32_t AGEING_STEPS = 16;

SUBLIMATE_HD constexpr bool sane_policy(const Policy& policy) {
    for (const ProfilePolicy& p : policy.profiles) {
        if (p.decode_rows_max < 1 || p.decode_rows_max > limits::SEQUENCES_MAX) return false;
        if (p.decode_rows_beside_prefill < 1 || p.prompts_at_once < 1) return false;
        if (p.step_rows_max < 2 || p.step_rows_max > limits::STEP_ROWS_MAX) return false;
        if (p.prefill_rows_min < 1 || p.prefill_rows_beside_decode < 1) return false;
    }
    return true;
}
static_assert(sane_policy(DEFAULT_POLICY));

// A sequence that could run in this step. Whoever waits for a mask or for room in its ring is not
// listed.
struct Candidate {
    int32_t sequence; // the caller's index
    int32_t profile;
    bool decode;          // one row; else prompt rows
    bool score;           // each prompt row needs its logits
    bool ends_prompt;     // rows_left reaches the end of the prompt, whose row needs its logits
    int32_t position;     // of the first row
    int32_t rows_left;    // prompt rows that may run now, >= 1
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
};

SUBLIMATE_HD constexpr int32_t smaller(int32_t a, int32_t b) {
    return a < b ? a : b;
}
SUBLIMATE_HD constexpr int32_t larger(int32_t a, int32_t b) {
    return a > b ? a : b;
}

SUBLIMATE_HD inline Totals count_candidates(const ScheduleView& view) {
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
        }
    }
    return totals;
}

struct Budget {
    int32_t rows;         // of the step
    int32_t prefill_cap;  // prompt rows at most
    int32_t prefill_kept; // prompt rows that decode rows must leave free
};

SUBLIMATE_HD inline Budget row_budget(const Totals& totals, const Policy& policy) {
    Budget budget = {1, limits::STEP_ROWS_MAX, 0};
    int32_t kept = 0;
    for (int32_t p = 0; p < PROFILES; p++) {
        const ProfilePolicy& own = policy.profiles[p];
        if (totals.decode[p] + totals.prefill[p] > 0)
            budget.rows = larger(budget.rows, own.step_rows_max);
        if (totals.decode[p] > 0)
            budget.prefill_cap = smaller(budget.prefill_cap, own.prefill_rows_beside_decode);
        if (totals.prefill[p] > 0) kept = larger(kept, own.prefill_rows_min);
    }
    if (totals.decode[0] > 0) budget.rows = smaller(budget.rows, policy.profiles[0].step_rows_max);
    budget.rows = smaller(larger(budget.rows, 2), limits::STEP_ROWS_MAX);
    if (totals.prompts > 0 && !fault(Fault::starve_prefill)) {
        int32_t half = budget.rows / 2;
        budget.prefill_cap = larger(budget.prefill_cap, 1);
        budget.prefill_kept = smaller(smaller(larger(kept, 1), budget.prefill_cap),
                                      totals.decodes > 0 ? half : budget.rows);
        budget.prefill_kept = smaller(budget.prefill_kept, totals.prompt_rows);
    }
    return budget;
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
                                      const Totals& totals, int32_t room, Plan& plan) {
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
        int32_t cap = totals.prompts > 0 ? own.decode_rows_beside_prefill : own.decode_rows_max;
        if (taken[profile] >= larger(cap, 1)) continue;
        if (fault(Fault::starve_decode) && totals.prompts > 0) continue;
        taken[profile]++;
        add_entry(plan, order[i], 1, 1);
    }
}

// Rows of one prompt: as many as fit; a chunk that does not end the prompt ends at a page border if
// it can, so that the page is published at once.
SUBLIMATE_HD inline int32_t chunk_rows(const Candidate& c, int32_t room) {
    int32_t rows = smaller(c.rows_left, room);
    if (rows == c.rows_left) return rows;
    int32_t over = (c.position + rows) % limits::PAGE_TOKENS;
    return over < rows ? rows - over : rows;
}

SUBLIMATE_HD inline bool same_page_planned(const ScheduleView& view, const Plan& plan,
                                           uint64_t page_hash) {
    if (page_hash == 0) return false;
    for (int32_t i = 0; i < plan.count; i++) {
        if (view.candidates[plan.entries[i].candidate].page_hash == page_hash) return true;
    }
    return false;
}

// Prompts of one profile, in order of arrival. room: prompt rows that this profile may use.
SUBLIMATE_HD inline void plan_prompts(const ScheduleView& view, int32_t profile, int32_t room,
                                      int32_t prompts_max, int32_t logits_max, Plan& plan) {
    uint64_t after = 0; // arrivals are >= 1
    for (int32_t prompts = 0; prompts < prompts_max && room > 0;) {
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
        int32_t logits_left = logits_max - plan.logit_rows;
        int32_t rows = chunk_rows(c, c.score ? smaller(room, logits_left) : room);
        bool ends = c.ends_prompt && rows == c.rows_left;
        if (rows < 1 || (ends && logits_left < 1)) continue;
        add_entry(plan, next, rows, c.score ? rows : (ends ? 1 : 0));
        plan.prefill_rows += rows;
        plan.prefill_profiles |= 1 << profile;
        room -= rows;
        prompts++;
    }
}

} // namespace scheduling

SUBLIMATE_HD inline void schedule(const ScheduleView& view, const Policy& policy, Plan& plan) {
    using namespace scheduling;
    CHECK(view.count >= 0 && view.count <= limits::SEQUENCES_MAX);
    plan.count = plan.rows = plan.logit_rows = plan.prefill_rows = plan.prefill_profiles = 0;
    Totals totals = count_candidates(view);
    Budget budget = row_budget(totals, policy);
    plan_decodes(view, policy, totals, budget.rows - budget.prefill_kept, plan);
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
        int32_t room = smaller(budget.prefill_cap - plan.prefill_rows, budget.rows - plan.rows);
        room = smaller(room, own.step_rows_max);
        if (totals.decodes > 0) room = smaller(room, larger(own.prefill_rows_beside_decode, 1));
        if (fault(Fault::starve_prefill) && totals.decodes > 0) room = 0;
        plan_prompts(view, best, room, larger(own.prompts_at_once, 1), limits::LOGIT_ROWS_MAX,
                     plan);
    }
}

} // namespace sublimate

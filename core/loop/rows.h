// The middle of an iteration: which rows run, and the step they make. schedule -> lay out.
//
// A masked row does not wait for its mask: it runs, and the mask is looked at when its logits are
// there, so that both are computed at the same time. If it is missing then, the row runs again: at
// once in a row that the plan of the others left free, but MASK_MISSES_MAX times in all and never
// without others; else when its mask has come.
//
// defines: MASK_MISSES_MAX, add_candidate, planned_sequence, add_late_rows, schedule_rows,
// lay_out_step, trace_step
#pragma once

#include <cstdint>

#include "schedule.h"
#include "speculate.h"
#include "state.h"
#include "step.h"

namespace sublimate {

constexpr int32_t MASK_MISSES_MAX = 2;

SUBLIMATE_HD inline void add_candidate(LoopState& loop, int32_t index) {
    Sequence& s = loop.sequences[index];
    Edge& edge = loop.edges[s.edge];
    if (!edge.room) {
        if (!edge.waited_for_room) edge.counters.ring_full_waits++;
        edge.waited_for_room = true;
        return;
    }
    int32_t prompt_left = s.header.prompt_length - s.computed;
    bool in_prompt = prompt_left > 0;
    if (in_prompt && s.computed % limits::PAGE_TOKENS == 0 && s.table.sharing &&
        !is_score(s.header)) {
        int32_t adopted = loop.kv.adopt(s.table, prompt(loop, s)) * limits::PAGE_TOKENS;
        s.computed += adopted;
        prompt_left -= adopted;
        edge.counters.cached_tokens += static_cast<uint64_t>(adopted);
        if (adopted > 0)
            trace_request(loop, s, TraceKind::adopted, adopted / limits::PAGE_TOKENS,
                          s.computed - adopted);
    }
    State next = in_prompt ? State::prefill : State::decode;
    if (s.state == State::waiting_mask) move_to(s, next);
    CHECK(s.state == next);
    CHECK(loop.candidate_count < loop.config.sequences_max);
    Candidate& c = loop.candidates[loop.candidate_count++];
    c = {index,
         s.header.profile,
         !in_prompt,
         is_score(s.header),
         s.computed,
         in_prompt ? prompt_left : 1,
         s.header.prompt_length - s.cached_tokens,
         s.waited_steps,
         s.arrival,
         0};
    if (in_prompt && !is_score(s.header))
        c.page_hash = loop.kv.next_page_hash(s.table, prompt(loop, s), s.computed);
}

SUBLIMATE_HD inline int32_t planned_sequence(const LoopState& loop, int32_t entry) {
    return loop.candidates[loop.plan->entries[entry].candidate].sequence;
}

SUBLIMATE_HD inline void age_candidates(LoopState& loop) {
    for (int32_t i = 0; i < loop.candidate_count; i++)
        loop.sequences[loop.candidates[i].sequence].waited_steps++;
    for (int32_t i = 0; i < loop.plan->count; i++)
        loop.sequences[planned_sequence(loop, i)].waited_steps = 0;
    bool waits[limits::PRIORITIES_MAX] = {};
    for (int32_t i = 0; i < loop.candidate_count; i++) {
        if (!loop.candidates[i].decode) waits[loop.candidates[i].profile] = true;
    }
    for (int32_t p = 0; p < limits::PRIORITIES_MAX; p++) {
        bool served = (loop.plan->prefill_profiles >> p & 1) != 0;
        loop.prefill_waited[p] = waits[p] && !served ? loop.prefill_waited[p] + 1 : 0;
    }
}

// held: by place in `running`, rows whose mask was missing when they ran and still is. Each is one
// row, of a prompt the last one.
SUBLIMATE_HD inline void add_late_rows(LoopState& loop, const bool* held) {
    Plan& plan = *loop.plan;
    if (plan.rows == 0 && !fault(Fault::late_row_spins)) return;
    for (int32_t i = 0; i < loop.running_count; i++) {
        if (!held[i] || loop.sequences[loop.running[i]].mask_misses >= MASK_MISSES_MAX) continue;
        if (plan.rows >= plan.rows_max || plan.logit_rows >= limits::LOGIT_ROWS_MAX) return;
        int32_t candidate = loop.candidate_count;
        add_candidate(loop, loop.running[i]);
        if (loop.candidate_count == candidate) continue;
        CHECK(loop.candidates[candidate].rows_left == 1);
        scheduling::add_entry(plan, candidate, 1, 1);
        plan.late_rows++;
    }
}

SUBLIMATE_HD inline int32_t longest_context(const LoopState& loop) {
    int32_t longest = 1;
    for (int32_t i = 0; i < loop.plan->count; i++) {
        int32_t end =
            loop.sequences[planned_sequence(loop, i)].computed + loop.plan->entries[i].rows;
        longest = end > longest ? end : longest;
    }
    return longest;
}

SUBLIMATE_HD inline void schedule_rows(LoopState& loop) {
    bool held[limits::SEQUENCES_MAX]; // as seen once: the edge may publish meanwhile
    loop.candidate_count = 0;
    for (int32_t i = 0; i < loop.running_count; i++) {
        const Sequence& s = loop.sequences[loop.running[i]];
        held[i] = s.mask_misses > 0 && mask_needed(loop, s) == MaskState::missing;
        if (!held[i]) add_candidate(loop, loop.running[i]);
    }
    ScheduleView view = {loop.candidates, loop.candidate_count, {}};
    for (int32_t p = 0; p < limits::PRIORITIES_MAX; p++)
        view.prefill_waited[p] = loop.prefill_waited[p];
    schedule(view, loop.config.policy, loop.cost, *loop.plan);
    add_late_rows(loop, held);
    plan_drafts(loop);
    age_candidates(loop);
    loop.bucket = {};
    if (loop.plan->rows > 0) loop.bucket = choose_bucket(loop.plan->rows, longest_context(loop));
    for (int32_t i = loop.admitted_first; i < loop.running_count; i++) {
        const Sequence& s = loop.sequences[loop.running[i]];
        edge_add_row(loop.edges[s.edge],
                     {s.header.slot, s.header.generation, ROW_ADMITTED, s.cached_tokens, 0, 0,
                      loop.bucket.rows, 0},
                     nullptr);
    }
}

// ---- step
// Maps the rows of one sequence into the step and notes whose logits are wanted.
SUBLIMATE_HD inline void lay_out(LoopState& loop, int32_t index, int32_t rows, int32_t first_row,
                                 int32_t segment) {
    Sequence& s = loop.sequences[index];
    const RequestHeader& h = s.header;
    bool in_prompt = s.computed < h.prompt_length;
    bool generated = !in_prompt || (is_score(h) && (h.flags & FLAG_SCORE_DECODE) != 0);
    CHECK(rows >= 1 && first_row + rows <= limits::STEP_ROWS_MAX);
    CHECK(in_prompt || rows == 1 || may_draft(loop, s));
    PromptTokens tokens = prompt(loop, s);
    const int32_t* drafts = loop.config.speculation ? loop.drafters[s.table_row].tokens : nullptr;
    for (int32_t i = 0; i < rows; i++) {
        int32_t position = s.computed + i;
        int32_t token = in_prompt ? tokens.at(position) : (i == 0 ? s.next_token : drafts[i - 1]);
        if (fault(Fault::stale_next_token) && !in_prompt && s.generated == 3) token = 1;
        loop.kv.append(s.table, position, token, generated);
        loop.tokens[first_row + i] = token;
        loop.positions[first_row + i] = position;
        bool last = position == h.prompt_length - 1;
        bool wanted = is_score(h) ? !last : (!in_prompt || (last && h.token_budget > 0));
        if (!wanted) continue;
        CHECK(loop.task_count < limits::LOGIT_ROWS_MAX);
        loop.logit_rows[loop.task_count] = first_row + i;
        int32_t of = fault(Fault::draft_position) && !in_prompt ? s.computed : position;
        loop.tasks[loop.task_count++] = {index, of, MaskState::free};
    }
    if (fault(Fault::off_by_one_position) && s.generated == 2)
        loop.positions[first_row] = s.computed - 1;
    loop.segments[segment] = {
        s.table_row, first_row,       rows,
        s.computed,  h.prompt_length, generated ? Arithmetic::generated : Arithmetic::prompt,
        h.adapter,   h.tenant_low,    h.tenant_high};
}

// The step of the current plan. Pointers stay valid until the next one.
SUBLIMATE_HD inline Step lay_out_step(LoopState& loop) {
    int32_t rows = 0;
    loop.task_count = 0;
    for (int32_t i = 0; i < loop.plan->count; i++) {
        lay_out(loop, planned_sequence(loop, i), loop.plan->entries[i].rows, rows, i);
        rows += loop.plan->entries[i].rows;
    }
    CHECK(rows == loop.plan->rows && loop.task_count <= loop.plan->logit_rows);
    Step step = {};
    step.row_count = rows;
    step.segment_count = loop.plan->count;
    step.logit_row_count = loop.task_count;
    step.page_table_stride = loop.pages_per_sequence;
    step.tokens = loop.tokens;
    step.positions = loop.positions;
    step.segments = loop.segments;
    step.logit_rows = loop.logit_rows;
    step.page_tables = loop.page_tables;
    return step;
}

// Tells of the step to all who follow, after it. kernels: see concept Model.
SUBLIMATE_HD inline void trace_step(LoopState& loop, int64_t begin_ns, int64_t took_ns,
                                    int32_t kernels) {
    if (!loop.traced) return;
    const Plan& plan = *loop.plan;
    CHECK(plan.rows > 0 && plan.count > 0);
    CHECK(loop.kv.available() <= loop.config.pages && loop.bucket.rows >= plan.rows);
    int64_t took = took_ns < 0 ? 0 : took_ns > UINT32_MAX ? int64_t{UINT32_MAX} : took_ns;
    for (int32_t e = 0; e < limits::EDGES_MAX; e++) {
        if (!loop.edges[e].traced) continue;
        trace(loop.edges[e], begin_ns, TraceKind::step, -1, 0,
              static_cast<int32_t>(loop.step_count), plan.rows, plan.count, plan.prefill_rows,
              plan.draft_rows, loop.bucket.rows, loop.bucket.context_tokens,
              static_cast<int32_t>(static_cast<uint32_t>(took)),
              loop.config.pages - loop.kv.available(), loop.queue_count, kernels);
    }
}

// Prices follow what the step took. Steps with drafts are left out: their rows are cheaper than
// others, and few. So are prompts alone: rows in large chunks are cheaper than those beside
// streams, and only these are weighed against anything.
SUBLIMATE_HD inline void follow_cost(LoopState& loop, int64_t took_ns) {
    const Plan& plan = *loop.plan;
    CHECK(plan.rows > 0 && plan.decode_ps >= 0 && plan.prefill_ps >= 0);
    if (plan.draft_rows + plan.late_rows > 0 || plan.decode_ps == 0 || took_ns <= 0) return;
    constexpr int64_t PS_PER_NS = 1000;
    constexpr int64_t LONGEST_NS = INT64_MAX / PS_PER_NS;
    int64_t took_ps = (took_ns < LONGEST_NS ? took_ns : LONGEST_NS) * PS_PER_NS;
    CostScale& scale = loop.cost_scale;
    if (plan.prefill_rows == 0)
        scale.decode = follow(scale.decode, plan.decode_ps, took_ps);
    else
        scale.prompt = follow(scale.prompt, plan.prefill_ps, took_ps - plan.decode_ps);
    loop.cost = scaled(loop.config.cost, scale);
}

} // namespace sublimate

// The last part of an iteration: what a step means for its sequences. sample -> stop -> publish.
//
// defines: sample_task, wait_for_mask, trace_part, stop, publish
#pragma once

#include <cstdint>

#include "rows.h"
#include "sampler.h"
#include "speculate.h"
#include "state.h"
#include "stop.h"

namespace sublimate {

// One row of the step's logits. all_logits: (task, vocabulary). Rows may be sampled on several
// threads: each writes its own sample and uses its own lane of scratch.
SUBLIMATE_HD inline void sample_task(LoopState& loop, const SamplerOps& ops,
                                     const float* all_logits, int32_t task, int32_t lane) {
    const Sequence& s = loop.sequences[loop.tasks[task].sequence];
    const float* logits = all_logits + int64_t{task} * loop.config.vocabulary;
    int32_t position = loop.tasks[task].position;
    if (is_score(s.header)) {
        score_row(ops, logits, loop.config.vocabulary, prompt(loop, s).at(position + 1),
                  loop.samples[task]);
        return;
    }
    const RegionView& view = loop.edges[s.edge].view;
    const int32_t* words = view.slot_memory(s.header.slot);
    MaskState mask = mask_needed(loop, s);
    loop.tasks[task].mask = mask;
    if (mask == MaskState::missing) {
        loop.samples[task].token = SAMPLE_MASK_MISSING;
        return;
    }
    bool masked = mask == MaskState::ready;
    SampleRequest request = {&s.header, bias_words(words, s.header),
                             masked ? mask_bits(view, s.header.mask_slot) : nullptr,
                             loop.config.vocabulary, position + 1};
    // Who says when a free stretch ends may also keep the answer from ending in it.
    bool watched = !masked && (s.header.flags & FLAG_MASKED) != 0 && s.header.trigger_slot >= 0;
    if (watched) request.kept = mask_bits(view, s.header.trigger_slot);
    auto history = [&loop, &s](int32_t at) { return loop.kv.token_at(s.table, at); };
    sample_row(ops, logits, request, history, loop.scratch[lane], loop.samples[task]);
}

// ---- stop
SUBLIMATE_HD inline void store_scores(LoopState& loop, const Sequence& s, int32_t first_task,
                                      int32_t end_task) {
    int32_t* words = loop.edges[s.edge].view.slot_memory(s.header.slot);
    int32_t* scores = score_words(words, s.header);
    scores[0] = 0;
    scores[1] = -1;
    for (int32_t t = first_task; t < end_task; t++) {
        int32_t at = loop.tasks[t].position + (fault(Fault::score_off_by_one) ? 0 : 1);
        CHECK(at >= 1 && at < s.header.prompt_length);
        scores[2 * at] = static_cast<int32_t>(float_bits(loop.samples[t].logprob));
        scores[2 * at + 1] = loop.samples[t].ids[0];
    }
}

SUBLIMATE_HD inline void accept_token(LoopState& loop, int32_t index, int32_t task) {
    Sequence& s = loop.sequences[index];
    Edge& edge = loop.edges[s.edge];
    const Sample& sample = loop.samples[task];
    CHECK(sample.token >= 0 && sample.token < loop.config.vocabulary);
    CHECK(loop.tasks[task].sequence == index && loop.tasks[task].mask != MaskState::missing);
    s.next_token = sample.token;
    s.generated++;
    s.mask_misses = 0;
    s.unmasked = loop.tasks[task].mask == MaskState::free;
    if (ends_freedom(loop, s, sample.token, s.generated)) s.unmasked = false;
    edge.counters.generated_tokens++;
    FinishReason why = stop_reason(s.header, sample.token, s.generated, loop.config.context_tokens);
    TokenRow row = terminal_row(s, why);
    row.flags = ROW_TOKEN | (why == FinishReason::none ? 0 : ROW_FINISHED);
    row.token = sample.token;
    row.logprob_bits = static_cast<int32_t>(float_bits(sample.logprob));
    if (why != FinishReason::none) {
        finish(loop, index, row, &sample);
        return;
    }
    edge_add_row(edge, row, &sample);
    if (s.state == State::prefill) move_to(s, State::decode);
}

// token: of the sample that is none.
SUBLIMATE_HD inline void fail(LoopState& loop, int32_t index, int32_t token) {
    const Sequence& s = loop.sequences[index];
    FailReason why =
        token == SAMPLE_NOTHING_ALLOWED ? FailReason::nothing_allowed : FailReason::not_finite;
    TokenRow row = terminal_row(s, FinishReason::failed);
    row.detail = static_cast<int32_t>(why);
    loop.edges[s.edge].counters.failed++;
    finish(loop, index, row, nullptr);
}

// The last row was computed and cannot be sampled yet: as if it had not run. What a prompt computed
// before it stays.
SUBLIMATE_HD inline void wait_for_mask(LoopState& loop, int32_t index, int32_t rows) {
    Sequence& s = loop.sequences[index];
    CHECK(rows >= 1 && (s.state == State::prefill || rows == 1));
    int32_t before = s.computed;
    s.computed += fault(Fault::late_row_kept) ? rows : rows - 1;
    loop.kv.commit(s.table, before, s.computed);
    loop.kv.take_back(s.table, s.computed);
    loop.edges[s.edge].counters.mask_waits++;
    s.mask_misses++;
    move_to(s, State::waiting_mask);
}

// Commits what the step computed for one sequence, then says what follows from it.
SUBLIMATE_HD inline void advance(LoopState& loop, int32_t index, int32_t rows, int32_t first_task,
                                 int32_t end_task, bool failed) {
    Sequence& s = loop.sequences[index];
    int32_t before = s.computed;
    s.computed += rows;
    if (failed) {
        fail(loop, index, end_task > first_task ? loop.samples[end_task - 1].token : 0);
        return;
    }
    int32_t ahead = fault(Fault::publish_before_computed) ? limits::PAGE_TOKENS - 1 : 0;
    loop.kv.commit(s.table, before, s.computed + ahead);
    if (is_score(s.header)) {
        store_scores(loop, s, first_task, end_task);
        if (s.computed == s.header.prompt_length)
            finish(loop, index, terminal_row(s, FinishReason::scored), nullptr);
        return;
    }
    if (s.computed < s.header.prompt_length) return;
    if (s.header.token_budget == 0) {
        finish(loop, index, terminal_row(s, FinishReason::budget), nullptr);
        return;
    }
    CHECK_BECAUSE(end_task == first_task + 1, "one row of a prompt is sampled");
    accept_token(loop, index, first_task);
}

// The same for a sequence that decodes: of its rows, the ones behind a wrong draft never were.
SUBLIMATE_HD inline void advance_decode(LoopState& loop, int32_t index, int32_t first_task,
                                        int32_t end_task, bool neighbour_failed) {
    Sequence& s = loop.sequences[index];
    EdgeCounters& counters = loop.edges[s.edge].counters;
    int32_t before = s.computed;
    int32_t rows = rows_confirmed(loop, s, first_task, end_task);
    bool failed = neighbour_failed || loop.samples[first_task + rows - 1].token < 0;
    int32_t tokens = failed ? rows - 1 : rows;
    counters.drafted_tokens += static_cast<uint64_t>(end_task - first_task - 1);
    counters.accepted_drafts += static_cast<uint64_t>(rows - 1);
    s.computed += rows;
    int32_t wrong = fault(Fault::draft_published) ? end_task - first_task - rows : 0;
    if (!failed) loop.kv.commit(s.table, before, s.computed + wrong);
    loop.kv.take_back(s.table, s.computed);
    for (int32_t i = 0; i < tokens; i++) accept_token(loop, index, first_task + i);
    if (failed) fail(loop, index, loop.samples[first_task + tokens].token);
}

SUBLIMATE_HD inline bool rows_succeeded(const LoopState& loop, int32_t first_task,
                                        int32_t end_task) {
    for (int32_t t = first_task; t < end_task; t++) {
        if (loop.samples[t].token < 0) return false;
    }
    return true;
}

// What the step was for one of its requests, before that is acted upon.
SUBLIMATE_HD inline void trace_part(LoopState& loop, int32_t entry, int32_t first_task,
                                    int32_t end_task) {
    const Segment& segment = loop.segments[entry];
    const Sequence& s = loop.sequences[planned_sequence(loop, entry)];
    if (!loop.edges[s.edge].traced) return;
    CHECK(segment.row_count >= 1 && segment.sequence == s.table_row);
    CHECK(first_task <= end_task && end_task <= loop.task_count);
    int32_t prompt_rows = s.header.prompt_length - segment.first_position;
    if (prompt_rows < 0) prompt_rows = 0;
    if (prompt_rows > segment.row_count) prompt_rows = segment.row_count;
    int32_t tasks = is_score(s.header) ? 0 : end_task - first_task;
    bool sampled = tasks > 0 && loop.samples[end_task - 1].token != SAMPLE_MASK_MISSING;
    int32_t drafted = tasks > 0 ? tasks - 1 : 0;
    int32_t confirmed = sampled ? rows_confirmed(loop, s, first_task, end_task) : 0;
    bool failed = confirmed > 0 && loop.samples[first_task + confirmed - 1].token < 0;
    trace_request(loop, s, TraceKind::part, static_cast<int32_t>(loop.step_count - 1),
                  segment.row_count, segment.first_position, prompt_rows, drafted,
                  confirmed > 0 ? confirmed - 1 : 0, confirmed - (failed ? 1 : 0),
                  static_cast<int32_t>(sampled || tasks == 0),
                  static_cast<int32_t>(segment.arithmetic));
}

SUBLIMATE_HD inline void stop(LoopState& loop) {
    int32_t task = 0;
    bool poisoned = false;
    for (int32_t i = 0; i < loop.plan->count; i++) {
        int32_t index = planned_sequence(loop, i);
        int32_t first = task;
        while (task < loop.task_count && loop.tasks[task].sequence == index) task++;
        trace_part(loop, i, first, task);
        if (task > first && loop.samples[task - 1].token == SAMPLE_MASK_MISSING) {
            wait_for_mask(loop, index, loop.plan->entries[i].rows);
            continue;
        }
        bool killed = fault(Fault::nan_kills_neighbours) && poisoned;
        bool failed = !rows_succeeded(loop, first, task);
        poisoned |= failed;
        if (loop.sequences[index].state == State::decode) {
            advance_decode(loop, index, first, task, killed);
        } else {
            advance(loop, index, loop.plan->entries[i].rows, first, task, failed || killed);
        }
    }
    CHECK_BECAUSE(task == loop.task_count, "a sampled row belongs to nobody");
}

// ---- publish
SUBLIMATE_HD inline void publish(LoopState& loop, int64_t now) {
    RecordStamp stamp = {loop.step_count, now, loop.plan->rows, loop.bucket.id};
    for (int32_t e = 0; e < limits::EDGES_MAX; e++) {
        Edge& edge = loop.edges[e];
        if (!edge.serving()) continue;
        if (edge.record_rows > 0)
            trace(edge, now, TraceKind::published, -1, 0, static_cast<int32_t>(loop.step_count),
                  edge.record_rows);
        if (!edge_push(edge, stamp)) edge.damaged = true; // lost at the next begin
    }
}

} // namespace sublimate

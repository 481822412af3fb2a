// Everything a loop knows, as one plain struct, and the few operations that more than one phase
// needs: how a request ends, and how an edge ends.
//
// defines: LoopState, state_start, prompt, mask_needed, is_trigger, ends_freedom, terminal_row,
// remove_from, set_free, trace_request, finish, lose
#pragma once

#include <cstdint>

#include "buckets.h"
#include "edge.h"
#include "kv.h"
#include "memory.h"
#include "sequence.h"
#include "validate.h"

namespace sublimate {

struct LoopState : LoopMemory {
    LoopConfig config = {};
    StepCost cost = {}; // of the config, scaled by what steps took
    CostScale cost_scale = {};
    KvCache kv = {};
    Bucket bucket = {};        // of the current step
    EdgeCounters retired = {}; // of edges that were detached
    int64_t last_ns = 0;       // clock at the start of the iteration
    int64_t last_step_ns = 0;  // clock when the last step ended
    uint64_t busy_ns = 0;
    uint64_t launch_ns = 0; // from the start of an iteration to that of its step
    uint64_t step_count = 0;
    uint64_t iterations = 0;
    uint64_t arrivals = 0;
    uint64_t utilization_ppm = 0;
    int32_t free_count = 0; // of free_sequences
    int32_t queue_count = 0;
    int32_t running_count = 0;
    int32_t candidate_count = 0; // of the current step, as the following
    int32_t task_count = 0;
    int32_t admitted_first = 0; // running[admitted_first..] were admitted in this iteration
    int32_t prefill_waited[limits::PRIORITIES_MAX] = {};
    bool worked_before = false; // did the last iteration find work?
    bool traced = false;        // some edge is, in this iteration
};

SUBLIMATE_HD inline void state_start(LoopState& loop, const LoopConfig& config,
                                     const LoopMemory& memory, int64_t now_ns) {
    static_cast<LoopMemory&>(loop) = memory;
    memory::check_config(config);
    CHECK(memory.sequences != nullptr && memory.edges != nullptr);
    loop.config = config;
    loop.cost = config.cost;
    loop.kv.start({config.pages, config.salt, config.hash_mask, config.share_generated,
                   config.same_arithmetic, config.prefixes.digests},
                  loop.pages, loop.hash_table);
    loop.free_count = config.sequences_max + config.queue_max;
    for (int32_t i = 0; i < loop.free_count; i++) {
        loop.sequences[i] = {};
        loop.free_sequences[i] = loop.free_count - 1 - i;
    }
    for (int32_t i = 0; i < config.sequences_max; i++)
        loop.free_rows[i] = config.sequences_max - 1 - i;
    loop.plan->count = loop.plan->rows = 0;
    loop.last_ns = now_ns;
}

SUBLIMATE_HD inline PromptTokens prompt(const LoopState& loop, const Sequence& s) {
    return prompt_tokens(loop.edges[s.edge].view.slot_memory(s.header.slot), s.header,
                         loop.config.vocabulary);
}

// How the next token of the sequence may be sampled: freely, with its mask, or not yet.
SUBLIMATE_HD inline MaskState mask_needed(const LoopState& loop, const Sequence& s) {
    const RequestHeader& h = s.header;
    if ((h.flags & FLAG_MASKED) == 0 || is_score(h) || h.token_budget == 0 || s.unmasked)
        return MaskState::free;
    if (fault(Fault::stale_mask_used) && s.generated > 0) return MaskState::ready;
    const RegionView& view = loop.edges[s.edge].view;
    bool any = fault(Fault::stale_freedom_used) &&
               (load_acquire(&view.mask_ready[h.mask_slot]) & MASK_FREE) != 0;
    if (any) return MaskState::free;
    return mask_state(view, h.mask_slot, static_cast<uint32_t>(s.generated));
}

// Whether this token, sampled while the sequence is free, ends that.
SUBLIMATE_HD inline bool is_trigger(const LoopState& loop, const Sequence& s, int32_t token) {
    const RequestHeader& h = s.header;
    if ((h.flags & FLAG_MASKED) == 0 || h.trigger_slot < 0 || !s.unmasked) return false;
    CHECK(token >= 0 && token < loop.config.vocabulary);
    return mask_has(mask_bits(loop.edges[s.edge].view, h.trigger_slot), token);
}

// Whether the sequence, free until now, needs a mask behind this token, the last of `generated`.
SUBLIMATE_HD inline bool ends_freedom(const LoopState& loop, const Sequence& s, int32_t token,
                                      int32_t generated) {
    CHECK(generated >= 1 && generated >= s.generated);
    if (generated == s.header.free_end && !fault(Fault::free_end_ignored)) return true;
    return is_trigger(loop, s, token) && !fault(Fault::trigger_ignored);
}

SUBLIMATE_HD inline TokenRow terminal_row(const Sequence& s, FinishReason why) {
    return {
        s.header.slot, s.header.generation, ROW_FINISHED, 0, 0, static_cast<int32_t>(why), 0, 0};
}

SUBLIMATE_HD inline void remove_from(int32_t* list, int32_t& count, int32_t index) {
    int32_t at = 0;
    while (at < count && list[at] != index) at++;
    CHECK_BECAUSE(at < count, "a sequence is not in its list");
    for (; at + 1 < count; at++) list[at] = list[at + 1];
    count--;
}

SUBLIMATE_HD inline void set_free(LoopState& loop, int32_t index) {
    Sequence& s = loop.sequences[index];
    move_to(s, State::free);
    CHECK(loop.edges[s.edge].live > 0);
    loop.edges[s.edge].live--;
    loop.free_sequences[loop.free_count++] = index;
}

// Stages before a step are told with the time at which the iteration began, those after it with the
// step's end.
template <class... Words>
SUBLIMATE_HD inline void trace_request(LoopState& loop, const Sequence& s, TraceKind kind,
                                       Words... words) {
    CHECK(s.state != State::free);
    int64_t now = loop.last_step_ns > loop.last_ns ? loop.last_step_ns : loop.last_ns;
    trace(loop.edges[s.edge], now, kind, s.header.slot, s.header.generation, words...);
}

// Gives pages back at once; the terminal row leaves with this iteration, or waits for room.
SUBLIMATE_HD inline void finish(LoopState& loop, int32_t index, const TokenRow& row,
                                const Sample* sample) {
    Sequence& s = loop.sequences[index];
    CHECK_BECAUSE(s.state != State::free && s.state != State::draining, "a request ends twice");
    Edge& edge = loop.edges[s.edge];
    trace_request(loop, s, TraceKind::finished, row.reason, row.detail, s.generated, s.computed);
    if (s.state == State::queued) {
        CHECK_BECAUSE(s.table_row < 0, "a queue entry owns something");
        remove_from(loop.queue, loop.queue_count, index);
    } else {
        bool forget = row.reason == static_cast<int32_t>(FinishReason::failed);
        if (!fault(Fault::detach_keeps_pages) || !edge.lost) loop.kv.release(s.table, forget);
        remove_from(loop.running, loop.running_count, index);
        loop.free_rows[loop.config.sequences_max - 1 - loop.running_count] = s.table_row;
    }
    bool room = edge.room;
    if (fault(Fault::ring_full_drop) && !room) {
        set_free(loop, index);
    } else if (edge.lost) {
        set_free(loop, index);
    } else if (room) {
        bool skip = fault(Fault::missing_terminal) &&
                    row.reason == static_cast<int32_t>(FinishReason::cancelled);
        if (!skip) edge_add_row(edge, row, sample);
        if (fault(Fault::double_terminal)) edge_add_row(edge, row, sample);
        set_free(loop, index);
    } else {
        move_to(s, State::draining);
        s.terminal = row;
        edge.draining++;
    }
}

// The edge reads nothing any more, or broke its ring: all its requests end without rows.
SUBLIMATE_HD inline void lose(LoopState& loop, int32_t e) {
    Edge& edge = loop.edges[e];
    edge.lost = true;
    store_release(&edge.view.control->edge_lost, uint32_t{1});
    edge.room = edge.traced = false;
    edge.record_rows = 0;
    edge.record_words = limits::STEP_HEADER_WORDS;
    for (int32_t i = 0; i < loop.config.sequences_max + loop.config.queue_max; i++) {
        Sequence& s = loop.sequences[i];
        if (s.state == State::free || s.edge != e) continue;
        if (s.state == State::draining) {
            CHECK(edge.draining > 0);
            edge.draining--;
            set_free(loop, i);
        } else {
            finish(loop, i, terminal_row(s, FinishReason::cancelled), nullptr);
        }
    }
}

} // namespace sublimate

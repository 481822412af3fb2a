// The first half of an iteration: what comes in. begin -> drain -> take -> cancel -> admit.
//
// defines: begin_iteration, drain, take, cancel, trace_admission, trace_waits, admit
#pragma once

#include <cstdint>

#include "state.h"

namespace sublimate {

SUBLIMATE_HD inline void begin_iteration(LoopState& loop, int64_t now) {
    int64_t passed = now - loop.last_ns;
    loop.last_ns = now;
    loop.iterations++;
    loop.plan->count = loop.plan->rows = 0;
    loop.traced = false;
    for (int32_t e = 0; e < limits::EDGES_MAX; e++) {
        Edge& edge = loop.edges[e];
        if (!edge.serving()) continue;
        store_release(&edge.view.control->engine_heartbeat_ns, static_cast<uint64_t>(now));
        edge.traced = trace_followed(edge.view, now);
        loop.traced |= edge.traced;
        if (edge.damaged || !edge_begin(edge, passed, loop.config.ring_full_deadline_ns))
            lose(loop, e);
    }
}

// Terminal rows that waited for room.
SUBLIMATE_HD inline bool drain(LoopState& loop) {
    bool worked = false;
    for (int32_t e = 0; e < limits::EDGES_MAX; e++) {
        Edge& edge = loop.edges[e];
        if (!edge.serving() || edge.draining == 0 || !edge.room) continue;
        for (int32_t i = 0; i < loop.config.sequences_max + loop.config.queue_max; i++) {
            Sequence& s = loop.sequences[i];
            if (s.state != State::draining || s.edge != e) continue;
            edge_add_row(edge, s.terminal, nullptr);
            edge.draining--;
            set_free(loop, i);
        }
        worked = true;
    }
    return worked;
}

// ---- take
SUBLIMATE_HD inline RefuseReason judge(const LoopState& loop, const RequestHeader& header,
                                       int32_t slot, const int32_t* words) {
    if (loop.queue_count >= loop.config.queue_max || loop.free_count == 0)
        return RefuseReason::queue_full;
    RefuseReason why = validate_header(header, slot, slot_place(slot).words, loop.config.vocabulary,
                                       loop.config.context_tokens, loop.config.adapters);
    if (why != RefuseReason::none) return why;
    if (!validate_payload(words, header, loop.config.vocabulary)) return RefuseReason::malformed;
    if (!loop.kv.could_ever_fit(pages_for(positions_needed(header)))) return RefuseReason::too_long;
    return RefuseReason::none;
}

SUBLIMATE_HD inline void accept(LoopState& loop, int32_t e, int32_t slot) {
    Edge& edge = loop.edges[e];
    edge.counters.accepted++;
    RequestHeader header = {};
    RefuseReason why = RefuseReason::malformed;
    if (slot < limits::SLOTS_MAX) {
        const int32_t* words = edge.view.slot_memory(slot);
        copy_header(words, &header);
        uint32_t word = load_acquire(&edge.view.cancel[slot]);
        if (word != static_cast<uint32_t>(header.generation)) edge_count_stale(edge, slot, word);
        why = judge(loop, header, slot, words);
    }
    if (why != RefuseReason::none) {
        edge.counters.refused++;
        trace(edge, loop.last_ns, TraceKind::refused, slot, header.generation,
              static_cast<int32_t>(why));
        edge_add_row(edge,
                     {slot, header.generation, ROW_FINISHED, 0, 0,
                      static_cast<int32_t>(FinishReason::refused), static_cast<int32_t>(why), 0},
                     nullptr);
        return;
    }
    CHECK(loop.free_count > 0 && loop.queue_count < loop.config.queue_max);
    int32_t index = loop.free_sequences[--loop.free_count];
    Sequence& s = loop.sequences[index];
    move_to(s, State::queued);
    s.edge = e;
    s.header = header;
    s.arrival = ++loop.arrivals;
    s.queued_step = loop.iterations;
    s.tried_changes = 0;
    s.accepted_ns = loop.last_ns;
    s.computed = s.generated = s.waited_steps = s.cached_tokens = s.mask_misses = 0;
    s.unmasked = false;
    s.table_row = -1;
    s.waits_for = WaitReason::none;
    trace_request(loop, s, TraceKind::taken, header.prompt_length, header.token_budget,
                  header.profile, header.flags, loop.queue_count, loop.running_count);
    loop.queue[loop.queue_count++] = index;
    edge.live++;
}

SUBLIMATE_HD inline bool take(LoopState& loop) {
    bool worked = false;
    for (int32_t e = 0; e < limits::EDGES_MAX; e++) {
        Edge& edge = loop.edges[e];
        if (!edge.serving() || !edge.room) continue;
        for (int32_t n = 0; n < limits::SEQUENCES_MAX; n++) {
            int32_t slot = submission_pop(edge.view);
            if (slot < 0) break;
            accept(loop, e, slot);
            worked = true;
        }
    }
    return worked;
}

// ---- cancel
SUBLIMATE_HD inline bool cancel_one(LoopState& loop, int32_t index) {
    Sequence& s = loop.sequences[index];
    Edge& edge = loop.edges[s.edge];
    uint32_t word = load_acquire(&edge.view.cancel[s.header.slot]);
    bool meant = word == static_cast<uint32_t>(s.header.generation);
    if (fault(Fault::cancel_ignores_generation)) meant = word != 0;
    if (fault(Fault::lost_cancel) && s.state == State::decode) meant = false;
    if (!meant) return false;
    edge.cancel_seen[s.header.slot] = word;
    bool prompt = s.computed < s.header.prompt_length;
    if (s.state == State::queued) {
        edge.counters.cancelled_queue++;
    } else if (prompt) {
        edge.counters.cancelled_prefill++;
    } else {
        edge.counters.cancelled_decode++;
    }
    trace_request(loop, s, TraceKind::cancelled, static_cast<int32_t>(s.state), s.generated);
    finish(loop, index, terminal_row(s, FinishReason::cancelled), nullptr);
    return true;
}

// Counts cancels that met nobody: a window of slots per iteration, without those that are live.
SUBLIMATE_HD inline void scan_stale(LoopState& loop, int32_t e) {
    Edge& edge = loop.edges[e];
    for (int32_t i = 0; i < STALE_SCAN_WORDS; i++) {
        int32_t slot = edge.scan_slot + i;
        uint32_t word = load_acquire(&edge.view.cancel[slot]);
        if (word == 0 || word == edge.cancel_seen[slot] || submission_pending(edge.view)) continue;
        edge_count_stale(edge, slot, word);
    }
    edge.scan_slot = (edge.scan_slot + STALE_SCAN_WORDS) % limits::SLOTS_MAX;
}

SUBLIMATE_HD inline bool cancel(LoopState& loop) {
    bool worked = false;
    for (int32_t i = loop.queue_count - 1; i >= 0; i--) worked |= cancel_one(loop, loop.queue[i]);
    for (int32_t i = loop.running_count - 1; i >= 0; i--)
        worked |= cancel_one(loop, loop.running[i]);
    for (int32_t e = 0; e < limits::EDGES_MAX; e++) {
        if (loop.edges[e].serving()) scan_stale(loop, e);
    }
    return worked;
}

// ---- admit
// By aged priority, then arrival. Nobody overtakes the next one, even if it does not fit yet.
SUBLIMATE_HD inline int32_t next_to_admit(const LoopState& loop) {
    int32_t best = -1;
    int32_t best_priority = 0;
    for (int32_t i = 0; i < loop.queue_count; i++) {
        const Sequence& s = loop.sequences[loop.queue[i]];
        if (!loop.edges[s.edge].room) continue;
        int32_t priority = aged(loop.config.policy.profiles[s.header.profile].priority,
                                static_cast<int32_t>(loop.iterations - s.queued_step));
        if (best >= 0 && priority <= best_priority) continue;
        best = loop.queue[i];
        best_priority = priority;
    }
    return best;
}

SUBLIMATE_HD inline void trace_admission(LoopState& loop, const Sequence& s) {
    if (!loop.edges[s.edge].traced) return;
    CHECK(s.state == State::prefill && s.table.count <= KvCache::shareable_pages(prompt(loop, s)));
    int32_t running_blocks = 0;
    for (int32_t i = 0; i < s.table.count; i++)
        running_blocks += loop.kv.store().at(s.table.pages[i]).refcount > 1 ? 1 : 0;
    bool looked = s.table.sharing && !is_score(s.header);
    trace_request(loop, s, TraceKind::admitted, s.table.count, running_blocks,
                  looked ? KvCache::shareable_pages(prompt(loop, s)) : 0, s.table.reserved,
                  loop.kv.available(), loop.running_count, loop.queue_count);
}

// Tells those who wait why they do, once per reason. next: who would be admitted next.
SUBLIMATE_HD inline void trace_waits(LoopState& loop, int32_t next) {
    if (!loop.traced) return;
    for (int32_t i = 0; i < loop.queue_count; i++) {
        Sequence& s = loop.sequences[loop.queue[i]];
        CHECK(s.state == State::queued);
        if (!loop.edges[s.edge].traced) continue;
        bool full = loop.running_count == loop.config.sequences_max;
        WaitReason why = loop.queue[i] == next ? WaitReason::pages : WaitReason::turn;
        if (full) why = WaitReason::rows;
        if (why == s.waits_for) continue;
        s.waits_for = why;
        trace_request(loop, s, TraceKind::waiting, static_cast<int32_t>(why),
                      pages_for(positions_needed(s.header)), loop.kv.available(),
                      loop.kv.reserved(), loop.running_count, loop.queue_count);
    }
}

SUBLIMATE_HD inline bool admit_one(LoopState& loop, int32_t index) {
    Sequence& s = loop.sequences[index];
    if (s.tried_changes == loop.kv.changes()) return false;
    const RequestHeader& h = s.header;
    CHECK(pages_for(positions_needed(h)) <= loop.pages_per_sequence);
    int32_t row = loop.free_rows[loop.config.sequences_max - 1 - loop.running_count];
    s.table.pages = loop.page_tables + int64_t{row} * loop.pages_per_sequence;
    s.table.count = s.table.reserved = 0;
    s.table.key = {h.tenant_low, h.tenant_high, h.adapter, h.sparse_mode};
    s.table.sharing = (h.flags & FLAG_NO_CACHE) == 0;
    if (!loop.kv.admit(s.table, prompt(loop, s), pages_for(positions_needed(h)), !is_score(h))) {
        s.tried_changes = loop.kv.changes();
        return false;
    }
    s.table_row = row;
    if (loop.config.speculation) loop.drafters[row].start();
    s.computed = s.table.count * limits::PAGE_TOKENS;
    CHECK_BECAUSE(s.computed < h.prompt_length, "a prompt was cached to its end");
    s.cached_tokens = s.computed;
    move_to(s, State::prefill);
    remove_from(loop.queue, loop.queue_count, index);
    loop.running[loop.running_count++] = index;
    EdgeCounters& counters = loop.edges[s.edge].counters;
    counters.prompt_tokens += static_cast<uint64_t>(h.prompt_length);
    counters.cached_tokens += static_cast<uint64_t>(s.computed);
    trace_admission(loop, s);
    return true;
}

SUBLIMATE_HD inline bool admit(LoopState& loop) {
    loop.admitted_first = loop.running_count;
    int32_t index = -1;
    while (loop.running_count < loop.config.sequences_max) {
        index = next_to_admit(loop);
        if (index < 0 || !admit_one(loop, index)) break;
    }
    trace_waits(loop, index);
    return loop.running_count > loop.admitted_first;
}

} // namespace sublimate

// What the loop keeps per edge: its region, its counters, and the record that the current iteration
// builds for it. A row is added to the record when it happens; the record is pushed into the token
// ring at a publish.
//
// Back-pressure. An edge "has room" in an iteration if its token ring takes everything that one
// iteration can produce. Without room the edge's rows wait, its submissions stay in their ring, and
// a terminal row is kept in its sequence (State::draining). Waiting is charged in bounded ticks, so
// that a jump of the clock is not a wait.
//
// defines: EdgeCounters, Edge, edge_begin, edge_add_row, edge_push, edge_count_stale, trace
#pragma once

#include <cstdint>

#include "../ring/ring.h"
#include "../ring/trace_ring.h"
#include "fault.h"
#include "sampler.h"
#include "sequence.h"

namespace sublimate {

constexpr int64_t BLOCKED_TICK_MAX_NS =
    100'000'000; // most that one iteration adds to a wait for room
constexpr int32_t ROOM_WORDS_MIN =
    2 * TOKEN_RECORD_WORDS_MAX;          // an iteration publishes at most twice
constexpr int32_t STALE_SCAN_WORDS = 61; // cancel words looked at per iteration: 488 = 8 * 61
static_assert(ROOM_WORDS_MIN <= limits::TOKEN_RING_WORDS);
static_assert(limits::SLOTS_MAX % STALE_SCAN_WORDS == 0);

struct EdgeCounters {
    uint64_t prompt_tokens;
    uint64_t cached_tokens;
    uint64_t generated_tokens;
    uint64_t drafted_tokens;  // rows that speculation added
    uint64_t accepted_drafts; // of these, right ones
    uint64_t accepted;
    uint64_t finished;
    uint64_t cancelled_queue;
    uint64_t cancelled_prefill;
    uint64_t cancelled_decode;
    uint64_t stale_cancels;
    uint64_t refused;
    uint64_t failed;
    uint64_t mask_waits;
    uint64_t ring_full_waits;
};

struct Edge {
    RegionView view;
    bool attached;
    bool lost;            // read nothing for too long, or damaged its ring: ignored until detach
    bool damaged;         // its ring shrank under a push: lost at the next iteration
    bool room;            // in this iteration
    bool waited_for_room; // counted once per iteration
    bool traced;          // in this iteration
    int32_t live;         // sequences of this edge, draining ones included
    int32_t draining;
    int64_t blocked_ns;
    int32_t* record; // (TOKEN_RECORD_WORDS_MAX)
    int32_t record_words;
    int32_t record_rows;
    int32_t scan_slot;     // where the search for stale cancels goes on
    uint32_t* cancel_seen; // (SLOTS_MAX) last cancel word that had an effect or was counted
    uint64_t trace_head;   // number of its next trace record
    EdgeCounters counters;

    SUBLIMATE_HD bool serving() const { return attached && !lost; }
};

SUBLIMATE_HD inline void edge_start(Edge& edge, const RegionView& view) {
    CHECK(view.control != nullptr && edge.record != nullptr && edge.cancel_seen != nullptr);
    edge.view = view;
    store_release(&view.control->edge_lost, uint32_t{0});
    edge.attached = true;
    edge.lost = edge.damaged = edge.room = edge.waited_for_room = edge.traced = false;
    edge.trace_head = load_acquire(&view.control->trace_head);
    edge.live = edge.draining = edge.record_rows = edge.scan_slot = 0;
    edge.record_words = limits::STEP_HEADER_WORDS;
    edge.blocked_ns = 0;
    edge.counters = {};
    for (int32_t slot = 0; slot < limits::SLOTS_MAX; slot++) edge.cancel_seen[slot] = 0;
}

// Looks at the ring once per iteration. False: it had no room for so long that the edge counts as
// lost.
SUBLIMATE_HD inline bool edge_begin(Edge& edge, int64_t passed_ns, int64_t deadline_ns) {
    edge.room = token_room_words(edge.view) >= ROOM_WORDS_MIN;
    edge.waited_for_room = false;
    if (edge.room || (edge.live == 0 && !submission_pending(edge.view))) {
        edge.blocked_ns = 0;
        return true;
    }
    int64_t tick = passed_ns < 0 ? 0 : passed_ns;
    edge.blocked_ns += tick > BLOCKED_TICK_MAX_NS ? BLOCKED_TICK_MAX_NS : tick;
    return edge.blocked_ns <= deadline_ns;
}

// sample: the row's alternatives; null if it has none.
SUBLIMATE_HD inline void edge_add_row(Edge& edge, const TokenRow& row, const Sample* sample) {
    int32_t pairs = sample ? sample->alternatives : 0;
    int32_t words = limits::TOKEN_ROW_WORDS + 2 * pairs;
    CHECK(edge.room && edge.record_words + words <= TOKEN_RECORD_WORDS_MAX);
    int32_t* out = edge.record + edge.record_words;
    TokenRow counted = row;
    counted.extra_pairs = pairs;
    memcpy(out, &counted, sizeof counted);
    for (int32_t i = 0; i < pairs; i++) {
        out[limits::TOKEN_ROW_WORDS + 2 * i] = sample->ids[i];
        out[limits::TOKEN_ROW_WORDS + 2 * i + 1] =
            static_cast<int32_t>(float_bits(sample->logprobs[i]));
    }
    edge.record_words += words;
    edge.record_rows++;
    if ((row.flags & ROW_FINISHED) != 0) edge.counters.finished++;
}

struct RecordStamp {
    uint64_t step;
    int64_t time_ns;
    int32_t step_rows;
    int32_t bucket;
};

// Pushes the record, if there is one. False: the ring has less room than it had at the iteration's
// start.
SUBLIMATE_HD inline bool edge_push(Edge& edge, const RecordStamp& stamp) {
    if (edge.record_rows == 0) return true;
    CHECK(edge.record_words <= TOKEN_RECORD_WORDS_MAX);
    auto time = static_cast<uint64_t>(stamp.time_ns);
    StepRecord header = {edge.record_words,
                         edge.record_rows,
                         static_cast<int32_t>(stamp.step),
                         static_cast<int32_t>(stamp.step >> 32),
                         static_cast<int32_t>(time),
                         static_cast<int32_t>(time >> 32),
                         stamp.step_rows,
                         stamp.bucket};
    memcpy(edge.record, &header, sizeof header);
    bool pushed = token_try_push(edge.view, edge.record, edge.record_words);
    edge.record_words = limits::STEP_HEADER_WORDS;
    edge.record_rows = 0;
    return pushed;
}

// A cancel word that meets no live request came too late. Each value is counted once.
SUBLIMATE_HD inline void edge_count_stale(Edge& edge, int32_t slot, uint32_t word) {
    if (word == 0 || word == edge.cancel_seen[slot]) return;
    edge.cancel_seen[slot] = word;
    edge.counters.stale_cancels++;
}

// Tells what was decided, to an edge that follows. If none does, that is a branch on a byte beside
// those that are read anyway, so nothing that costs is computed for it by the caller either.
template <class... Words>
SUBLIMATE_HD inline void trace(Edge& edge, int64_t time_ns, TraceKind kind, int32_t slot,
                               int32_t generation, Words... words) {
    static_assert(sizeof...(words) <= TRACE_ARGUMENTS);
    if (!edge.traced) return;
    CHECK(edge.serving());
    trace_write(edge.view, edge.trace_head++, {time_ns, kind, slot, generation, {words...}});
}

} // namespace sublimate

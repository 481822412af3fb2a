// The trace ring of a region: what the loop decided and when, for whoever debugs it. One writer
// (the loop), one reader (the edge) with a cursor of its own. The writer never waits: the oldest
// records are overwritten, and the reader learns how many it missed.
//
//   edge                                     loop
//   trace_follow: until this time    ----->  trace_followed, once per iteration
//   trace_read                       <-----  trace_write
//
// It is followed up to a time that the edge keeps moving, so an edge that dies leaves nothing
// switched on.
//
// A record is overwritten only after the head has passed it by a whole ring, and each word is
// stored with release and loaded with acquire. So a reader that met a word of a newer record sees,
// when it looks at the head again, that the one it copied has gone. It keeps no torn one.
//
// defines: TraceKind, TraceRecord, TraceEvent, TRACE_EVENTS, trace_follow, trace_followed,
// trace_write, trace_read
#pragma once

#include <cstdint>
#include <cstring>

#include "ring.h"

namespace sublimate {

enum class TraceKind : int32_t {
    taken = 0,
    refused,
    waiting,
    admitted,
    adopted,
    step,
    part,
    cancelled,
    finished,
    published,
};

constexpr int32_t TRACE_ARGUMENTS = 11;

// time_ns: monotonic clock. slot and generation: of the request; -1 and 0 for the loop itself.
struct TraceRecord {
    int64_t time_ns;
    TraceKind kind;
    int32_t slot;
    int32_t generation;
    int32_t arguments[TRACE_ARGUMENTS];
};
static_assert(sizeof(TraceRecord) == limits::TRACE_RECORD_WORDS * 8);
static_assert(sizeof(TraceRecord) == limits::CACHE_LINE_BYTES, "one line a record");

// What a kind is called and what its arguments are, in order. The readers take both from here.
struct TraceEvent {
    TraceKind kind;
    const char* name;
    const char* arguments;
};

// taken      The loop has read the record. waiting, running: before it, of all edges.
// refused    Judged and refused; reason: RefuseReason.
// waiting    Not admitted, when the reason changes. reason: 1 all rows are taken, 2 pages, 3 others
//            come first. Pages available are free or cached; promised ones are reserved by others.
// admitted   blocks are pages of the prompt: found in the prefix cache, of them owned by running
//            requests, and looked up. pages_reserved: that it may still take.
// adopted    Blocks that another request has computed meanwhile, from this position on.
// step       Began at time_ns. took_ns is an uint32 and saturates. kernels: how the model ran it
//            (see Model::kernels); -1: it does not tell.
// part       What the step was for one request; sampled: 0 its mask was missing. arithmetic: of its
//            rows, see Arithmetic.
// cancelled  The loop has seen the cancel word. state: of sequence.h.
// finished   reason: FinishReason; detail: of RefuseReason or FailReason.
// published  A record has left; rows: its rows.
constexpr TraceEvent TRACE_EVENTS[] = {
    {TraceKind::taken, "taken", "prompt_tokens token_budget profile flags waiting running"},
    {TraceKind::refused, "refused", "reason"},
    {TraceKind::waiting, "waiting",
     "reason pages_needed pages_available pages_promised running waiting"},
    {TraceKind::admitted, "admitted",
     "blocks_found blocks_running blocks_looked_up pages_reserved pages_available running waiting"},
    {TraceKind::adopted, "adopted", "blocks position"},
    {TraceKind::step, "step",
     "step rows requests prompt_rows draft_rows bucket_rows bucket_tokens took_ns pages_owned "
     "waiting kernels"},
    {TraceKind::part, "part",
     "step rows position prompt_rows drafted accepted tokens sampled arithmetic"},
    {TraceKind::cancelled, "cancelled", "state output_tokens"},
    {TraceKind::finished, "finished", "reason detail output_tokens computed"},
    {TraceKind::published, "published", "steps rows"},
};
constexpr int32_t TRACE_KINDS = sizeof(TRACE_EVENTS) / sizeof(TraceEvent);

constexpr bool trace_events_in_order() {
    for (int32_t i = 0; i < TRACE_KINDS; i++)
        if (static_cast<int32_t>(TRACE_EVENTS[i].kind) != i) return false;
    return true;
}
static_assert(trace_events_in_order(), "a kind is the index of its event");

// Edge: the loop traces while its clock is below until_ns; 0 ends that.
SUBLIMATE_HD inline void trace_follow(RegionView& view, int64_t until_ns) {
    CHECK(until_ns >= 0);
    store_release(&view.control->trace_until_ns, static_cast<uint64_t>(until_ns));
}

SUBLIMATE_HD inline bool trace_followed(const RegionView& view, int64_t now_ns) {
    return load_acquire(&view.control->trace_until_ns) > static_cast<uint64_t>(now_ns);
}

// Loop: the record number `head`, counted from the region's first. The caller keeps the count: what
// lies in the region is the edge's to damage.
SUBLIMATE_HD inline void trace_write(RegionView& view, uint64_t head, const TraceRecord& record) {
    CHECK(view.attached() && record.kind >= TraceKind::taken &&
          record.kind <= TraceKind::published);
    uint64_t words[limits::TRACE_RECORD_WORDS];
    memcpy(words, &record, sizeof words);
    uint64_t* place = view.trace + head % limits::TRACE_RECORDS * limits::TRACE_RECORD_WORDS;
    for (int32_t i = 0; i < limits::TRACE_RECORD_WORDS; i++) store_release(place + i, words[i]);
    store_release(&view.control->trace_head, head + 1);
}

// Edge: copies up to `capacity` records from number `next` on and moves `next` behind them. Adds to
// `missed` those that were overwritten before they could be copied whole. Returns how many.
SUBLIMATE_HD inline int32_t trace_read(const RegionView& view, uint64_t& next, uint64_t& missed,
                                       TraceRecord* records, int32_t capacity) {
    CHECK(view.attached() && capacity >= 0);
    constexpr uint64_t RECORDS = limits::TRACE_RECORDS;
    // The one that the writer may be at work on is never among them.
    auto oldest = [](uint64_t head) { return head < RECORDS ? uint64_t{0} : head - RECORDS + 1; };
    uint64_t head = load_acquire(&view.control->trace_head);
    if (head < next) next = head; // only a loop that broke the region counts backwards
    if (next < oldest(head)) {
        missed += oldest(head) - next;
        next = oldest(head);
    }
    uint64_t count = head - next;
    if (count > static_cast<uint64_t>(capacity)) count = static_cast<uint64_t>(capacity);
    for (uint64_t i = 0; i < count; i++) {
        const uint64_t* place =
            view.trace + (next + i) % RECORDS * static_cast<uint64_t>(limits::TRACE_RECORD_WORDS);
        uint64_t words[limits::TRACE_RECORD_WORDS];
        for (int32_t w = 0; w < limits::TRACE_RECORD_WORDS; w++) words[w] = load_acquire(place + w);
        memcpy(records + i, words, sizeof words);
    }
    CHECK_BECAUSE(count < RECORDS, "the record that is being written is read");
    uint64_t gone = oldest(load_acquire(&view.control->trace_head));
    uint64_t torn = gone > next ? gone - next : 0;
    if (torn > count) torn = count;
    if (torn > 0) memmove(records, records + torn, (count - torn) * sizeof(TraceRecord));
    missed += torn;
    next += count;
    return static_cast<int32_t>(count - torn);
}

} // namespace sublimate

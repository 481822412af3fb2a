// The loop's figures: per edge into its region, and totals.
//
// defines: make_stats, write_stats, loop_totals, write_load, end_iteration
#pragma once

#include <cstdint>

#include "state.h"

namespace sublimate {

SUBLIMATE_HD inline void add_counters(EdgeCounters& sum, const EdgeCounters& more) {
    constexpr int32_t WORDS = sizeof(EdgeCounters) / sizeof(uint64_t);
    uint64_t a[WORDS];
    uint64_t b[WORDS];
    memcpy(a, &sum, sizeof a);
    memcpy(b, &more, sizeof b);
    for (int32_t i = 0; i < WORDS; i++) a[i] += b[i];
    memcpy(&sum, a, sizeof a);
}

// edge -1: of all edges. The queue is in order of arrival.
SUBLIMATE_HD inline uint64_t oldest_waiting_ns(const LoopState& loop, int32_t e) {
    for (int32_t i = 0; i < loop.queue_count; i++) {
        const Sequence& s = loop.sequences[loop.queue[i]];
        if (e >= 0 && s.edge != e) continue;
        return loop.last_ns > s.accepted_ns ? static_cast<uint64_t>(loop.last_ns - s.accepted_ns)
                                            : 0;
    }
    return 0;
}

SUBLIMATE_HD inline StatsPage make_stats(const LoopState& loop, const EdgeCounters& c,
                                         uint64_t running, uint64_t waiting, uint64_t oldest_ns) {
    StatsPage stats = {};
    stats.step_count = loop.step_count;
    stats.last_step_ns = static_cast<uint64_t>(loop.last_step_ns);
    stats.busy_ns = loop.busy_ns;
    stats.launch_ns = loop.launch_ns;
    stats.running = running;
    stats.waiting = waiting;
    stats.pages_total = static_cast<uint64_t>(loop.config.pages);
    stats.pages_free = static_cast<uint64_t>(loop.kv.store().free_count());
    stats.pages_cached = static_cast<uint64_t>(loop.kv.store().cached_count());
    stats.pages_reserved = static_cast<uint64_t>(loop.kv.reserved());
    stats.prompt_tokens = c.prompt_tokens;
    stats.cached_tokens = c.cached_tokens;
    stats.generated_tokens = c.generated_tokens;
    stats.drafted_tokens = c.drafted_tokens;
    stats.accepted_drafts = c.accepted_drafts;
    stats.accepted = c.accepted;
    stats.finished = c.finished;
    stats.cancelled_queue = c.cancelled_queue;
    stats.cancelled_prefill = c.cancelled_prefill;
    stats.cancelled_decode = c.cancelled_decode;
    stats.stale_cancels = c.stale_cancels;
    stats.refused = c.refused;
    stats.failed = c.failed;
    stats.mask_waits = c.mask_waits;
    stats.ring_full_waits = c.ring_full_waits;
    stats.evictions = loop.kv.store().evictions();
    stats.utilization_ppm = loop.utilization_ppm;
    stats.last_step_rows = static_cast<uint64_t>(loop.plan->rows);
    stats.oldest_waiting_ns = oldest_ns;
    return stats;
}

SUBLIMATE_HD inline void write_stats(LoopState& loop, Edge& edge) {
    auto e = static_cast<int32_t>(&edge - loop.edges);
    uint64_t running = 0;
    uint64_t waiting = 0;
    for (int32_t i = 0; i < loop.running_count; i++)
        running += loop.sequences[loop.running[i]].edge == e ? 1 : 0;
    for (int32_t i = 0; i < loop.queue_count; i++)
        waiting += loop.sequences[loop.queue[i]].edge == e ? 1 : 0;
    StatsPage stats = make_stats(loop, edge.counters, running, waiting, oldest_waiting_ns(loop, e));
    constexpr int32_t WORDS = sizeof(StatsPage) / sizeof(uint64_t);
    uint64_t words[WORDS];
    memcpy(words, &stats, sizeof words);
    auto* out = reinterpret_cast<uint64_t*>(&edge.view.control->stats);
    for (int32_t i = 0; i < WORDS; i++) store_release(out + i, words[i]);
}

// Totals over all edges, also those that have gone.
SUBLIMATE_HD inline StatsPage loop_totals(const LoopState& loop) {
    EdgeCounters sum = loop.retired;
    for (int32_t e = 0; e < limits::EDGES_MAX; e++) {
        if (loop.edges[e].attached) add_counters(sum, loop.edges[e].counters);
    }
    return make_stats(loop, sum, static_cast<uint64_t>(loop.running_count),
                      static_cast<uint64_t>(loop.queue_count), oldest_waiting_ns(loop, -1));
}

// For edges that choose between engines.
SUBLIMATE_HD inline void write_load(LoopState& loop) {
    if (!loop.config.prefixes.control) return;
    PrefixLoad load = {};
    load.running = static_cast<uint64_t>(loop.running_count);
    load.waiting = static_cast<uint64_t>(loop.queue_count);
    for (int32_t i = 0; i < loop.running_count + loop.queue_count; i++) {
        bool runs = i < loop.running_count;
        const Sequence& s =
            loop.sequences[runs ? loop.running[i] : loop.queue[i - loop.running_count]];
        int32_t left = s.header.prompt_length - s.computed;
        load.prompt_tokens_left += left > 0 ? static_cast<uint64_t>(left) : 0;
    }
    CHECK_BECAUSE(loop.kv.available() >= loop.kv.reserved(), "more pages are promised than are");
    load.pages_total = static_cast<uint64_t>(loop.config.pages);
    load.pages_available = static_cast<uint64_t>(loop.kv.available() - loop.kv.reserved());
    load.prompt_row_ps = static_cast<uint64_t>(loop.cost.prompt_row_ps);
    constexpr int32_t WORDS = sizeof(PrefixLoad) / sizeof(uint64_t);
    uint64_t words[WORDS];
    memcpy(words, &load, sizeof words);
    auto* out = reinterpret_cast<uint64_t*>(&loop.config.prefixes.control->load);
    for (int32_t i = 0; i < WORDS; i++) store_release(out + i, words[i]);
}

SUBLIMATE_HD inline void end_iteration(LoopState& loop, bool worked) {
    if (worked || loop.worked_before || loop.queue_count > 0) {
        for (int32_t e = 0; e < limits::EDGES_MAX; e++) {
            if (loop.edges[e].serving()) write_stats(loop, loop.edges[e]);
        }
        write_load(loop);
    }
    loop.worked_before = worked;
}

} // namespace sublimate

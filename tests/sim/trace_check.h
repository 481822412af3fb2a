// Reads the trace of a simulated edge and holds it against the loop's own counters: what is told
// about requests, one by one, has to add up to what was counted.
//
// defines: TraceCheck
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "../../core/loop/edge.h"
#include "../../core/ring/trace_ring.h"

namespace sublimate::sim {

class TraceCheck {
public:
    TraceCheck() : records_(limits::TRACE_RECORDS) {}

    // A fresh region. steady: the clock never goes back.
    void restart(RegionView& view, bool follows, bool steady) {
        follows_ = follows;
        steady_ = steady;
        next_ = 0;
        counts_ = {};
        for (uint64_t& count : kinds_) count = 0;
        trace_follow(view, follows ? INT64_MAX : 0);
    }

    // Behind an iteration. Empty if the trace is right.
    std::string check(const Edge& edge) {
        uint64_t missed = 0;
        int32_t count =
            trace_read(edge.view, next_, missed, records_.data(), limits::TRACE_RECORDS);
        if (missed > 0) return "the trace ring lost records of one iteration";
        if (!follows_) return count == 0 ? "" : "a trace that nobody asked for";
        int64_t before_ns = INT64_MIN;
        for (int32_t i = 0; i < count; i++) {
            const TraceRecord& record = records_[static_cast<size_t>(i)];
            bool step = record.kind == TraceKind::step; // told at its end
            if (steady_ && !step && record.time_ns < before_ns)
                return "the trace's clock went back";
            before_ns = step ? before_ns : record.time_ns;
            add(record);
        }
        const EdgeCounters& c = edge.counters;
        auto draining = static_cast<uint64_t>(edge.draining);
        if (of(TraceKind::taken) + counts_.refused != c.accepted) return "taken requests differ";
        if (of(TraceKind::finished) + counts_.refused != c.finished + draining)
            return "the trace ends other requests than the loop";
        if (of(TraceKind::cancelled) !=
            c.cancelled_queue + c.cancelled_prefill + c.cancelled_decode)
            return "the trace cancels other requests than the loop";
        if (counts_.refused != c.refused) return "refusals differ";
        if (counts_.cached_tokens != c.cached_tokens) return "traced cache hits differ";
        if (counts_.generated_tokens != c.generated_tokens) return "traced tokens differ";
        if (counts_.drafted_tokens != c.drafted_tokens) return "traced drafts differ";
        if (counts_.accepted_drafts != c.accepted_drafts) return "traced right drafts differ";
        if (counts_.mask_waits != c.mask_waits) return "traced late masks differ";
        return "";
    }

    uint64_t of(TraceKind kind) const { return kinds_[static_cast<int32_t>(kind)]; }

private:
    void add(const TraceRecord& record) {
        kinds_[static_cast<int32_t>(record.kind)]++;
        auto argument = [&record](int32_t i) { return static_cast<uint64_t>(record.arguments[i]); };
        if (record.kind == TraceKind::refused) counts_.refused++;
        if (record.kind == TraceKind::admitted || record.kind == TraceKind::adopted)
            counts_.cached_tokens += argument(0) * limits::PAGE_TOKENS;
        if (record.kind != TraceKind::part) return;
        counts_.drafted_tokens += argument(4);
        counts_.accepted_drafts += argument(5);
        counts_.generated_tokens += argument(6);
        counts_.mask_waits += 1 - argument(7);
    }

    std::vector<TraceRecord> records_;
    EdgeCounters counts_ = {};
    uint64_t kinds_[TRACE_KINDS] = {};
    uint64_t next_ = 0;
    bool follows_ = false, steady_ = false;
};

} // namespace sublimate::sim

// The resident loop: take -> cancel -> admit -> schedule -> step -> sample -> stop -> publish, once
// per step. Its memory, rings, clock and model are handed in; it never allocates, blocks, throws or
// trusts an edge.
//
// Table of contents of this folder, in the order of the data path:
//   memory.h       LoopConfig, LoopMemory: everything the loop owns
//   edge.h         one edge's region, counters and the record being built for it
//   validate.h     checks of a request record
//   sequence.h     the states of a request
//   page_hash.h pages.h kv.h   paged KV: ownership, prefix sharing, reservation, audit
//   cost.h         what a step costs
//   schedule.h     the pure scheduler and its policy; buckets.h the step's bucket
//   speculate.h    drafts in rows that the plan left free; draft.h where they come from
//   step.h         the seam to the model
//   sampler.h      one row of logits to one token; select.h, sampler_ops.h, gumbel.h below it
//   stop.h         why a request ends
//   state.h        LoopState; how a request and an edge end
//   intake.h       begin, drain, take, cancel, admit
//   rows.h         schedule_rows, lay_out_step
//   outcome.h      sample_task, stop, publish
//   loop_stats.h   figures for /metrics
//   fault.h        planted bugs for the simulator
//
// concept Clock: int64_t now_ns(), monotonic; optionally void published(), called after publishes
// so that the host can wake sleeping edges. concept Model: see step.h.
//
// defines: Loop
#pragma once

#include <cstdint>

#include "intake.h"
#include "loop_stats.h"
#include "memory.h"
#include "outcome.h"
#include "rows.h"
#include "state.h"

namespace sublimate {

template <class Model, class Clock>
class Loop {
public:
    Loop(const LoopConfig& config, const LoopMemory& memory, Model& model, Clock& clock)
        : model_(model), clock_(clock) {
        CHECK(model.vocabulary() == config.vocabulary);
        state_start(state_, config, memory, clock.now_ns());
        write_load(state_);
    }

    // One iteration, at most one step. Returns whether there was anything to do; if not, the caller
    // may sleep until a bell rings, unless mask_arrived(), but while outstanding() > 0 for no
    // longer than BLOCKED_TICK_MAX_NS.
    bool run_once() {
        begin_iteration(state_, clock_.now_ns());
        bool worked = drain(state_);
        worked |= take(state_);
        worked |= cancel(state_);
        worked |= admit(state_);
        schedule_rows(state_);
        publish(state_, clock_.now_ns()); // admissions leave before the step is computed
        ring();
        if (state_.plan->rows > 0) {
            step();
            sample();
            stop(state_);
            publish(state_, clock_.now_ns());
            ring();
            worked = true;
        }
        end_iteration(state_, worked);
        return worked;
    }

    // ---- edges; callable between iterations, on the loop's thread
    void attach(int32_t edge, const RegionView& view) {
        CHECK(edge >= 0 && edge < limits::EDGES_MAX && !state_.edges[edge].attached);
        CHECK(view.vocabulary == state_.config.vocabulary);
        edge_start(state_.edges[edge], view);
        write_stats(state_, state_.edges[edge]);
    }

    // Cancels all of the edge's requests, without rows, and forgets the region.
    void detach(int32_t edge) {
        CHECK(edge >= 0 && edge < limits::EDGES_MAX && state_.edges[edge].attached);
        if (!state_.edges[edge].lost) lose(state_, edge);
        add_counters(state_.retired, state_.edges[edge].counters);
        state_.edges[edge].attached = false;
        state_.edges[edge].view = {};
    }

    // It read nothing for RING_FULL_DEADLINE_NS, or damaged its ring: nothing more is served until
    // detach.
    bool lost(int32_t edge) const { return state_.edges[edge].lost; }

    // ---- observation
    int32_t running() const { return state_.running_count; }
    int32_t waiting() const { return state_.queue_count; }
    int32_t outstanding() const { // requests that have not seen their terminal row
        return state_.config.sequences_max + state_.config.queue_max - state_.free_count;
    }
    // Whether a row that waits for its mask could be sampled by now.
    bool mask_arrived() const {
        for (int32_t i = 0; i < state_.running_count; i++) {
            const Sequence& s = state_.sequences[state_.running[i]];
            if (s.state != State::waiting_mask || !state_.edges[s.edge].room) continue;
            if (mask_needed(state_, s) != MaskState::missing) return true;
        }
        return false;
    }
    uint64_t step_count() const { return state_.step_count; }
    StatsPage totals() const { return loop_totals(state_); }
    const LoopState& state() const { return state_; }
    // Prices as measured, before the first request; plans depend on them.
    void set_cost(const StepCost& cost) {
        CHECK(outstanding() == 0 && sane_cost(cost));
        state_.config.cost = state_.cost = cost;
        state_.cost_scale = {};
    }
    void set_utilization_ppm(uint64_t ppm) {
        state_.worked_before |= ppm != state_.utilization_ppm; // so that it is published
        state_.utilization_ppm = ppm;
    }

    // Null if page ownership, lists and counts agree; else what is wrong. O(pages).
    const char* audit() const {
        for (int32_t i = 0; i < state_.running_count; i++)
            state_.tables[i] = &state_.sequences[state_.running[i]].table;
        const char* why = state_.kv.audit(state_.tables, state_.running_count, state_.owners);
        if (why) return why;
        int32_t live = 0;
        int32_t draining = 0;
        for (int32_t e = 0; e < limits::EDGES_MAX; e++) {
            live += state_.edges[e].live;
            draining += state_.edges[e].draining;
        }
        if (live != outstanding()) return "live requests do not add up";
        if (live != running() + waiting() + draining) return "a request is in no list";
        return nullptr;
    }

private:
    // Wakes edges that sleep while their ring holds records, where the clock's owner can do that.
    void ring() {
        if constexpr (requires { clock_.published(); }) clock_.published();
    }

    int32_t kernels() const {
        if constexpr (requires { model_.kernels(); }) return model_.kernels();
        return -1;
    }

    void step() {
        Step step = lay_out_step(state_);
        int64_t begin_ns = clock_.now_ns();
        logits_ = model_.forward(step);
        int64_t end_ns = clock_.now_ns();
        CHECK(begin_ns >= state_.last_ns);
        state_.launch_ns += static_cast<uint64_t>(begin_ns - state_.last_ns);
        state_.busy_ns += static_cast<uint64_t>(end_ns > begin_ns ? end_ns - begin_ns : 0);
        follow_cost(state_, end_ns - begin_ns);
        trace_step(state_, begin_ns, end_ns - begin_ns, kernels());
        state_.last_step_ns = end_ns;
        state_.step_count++;
    }

    void sample() {
        int32_t tasks = state_.task_count;
        for (int32_t first = 0; first < tasks; first += state_.config.sample_lanes) {
            int32_t left = tasks - first;
            int32_t lanes = left < state_.config.sample_lanes ? left : state_.config.sample_lanes;
            model_.for_rows(lanes, [this, first](int32_t lane) {
                sample_task(state_, model_.sampler_ops(), logits_, first + lane, lane);
            });
        }
    }

    LoopState state_;
    Model& model_;
    Clock& clock_;
    const float* logits_ = nullptr; // (task, vocabulary) of the current step
};

} // namespace sublimate

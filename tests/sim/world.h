// One simulated server: the real loop on a virtual clock with the hash model, some edges, and
// everything that can go wrong with them. `run` plays one seed and says what was wrong, if
// anything.
//
// defines: VirtualClock, Coverage, World
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "../../core/loop/loop.h"
#include "hash_model.h"
#include "scenario.h"
#include "sim_edge.h"
#include "trace_check.h"

namespace sublimate::sim {

class VirtualClock {
public:
    int64_t now_ns() const { return time_ns; }
    int64_t time_ns = 1;
};

// What the seeds so far have exercised. A simulator that exercises nothing proves nothing.
struct Coverage {
    uint64_t steps = 0, rows = 0, tokens = 0, cached = 0, evictions = 0;
    uint64_t cancelled_queue = 0, cancelled_prefill = 0, cancelled_decode = 0, stale = 0;
    uint64_t refused = 0, failed = 0, mask_waits = 0, ring_full = 0, lost_edges = 0;
    uint64_t edge_deaths = 0, engine_deaths = 0, hostile = 0, drained = 0;
    uint64_t drafted = 0, accepted_drafts = 0, freed = 0, triggered = 0, traced = 0;
};

class World {
public:
    using SimLoop = Loop<HashModel, VirtualClock>;

    World();
    ~World();
    World(const World&) = delete;
    World& operator=(const World&) = delete;

    // Empty if the seed holds; else what was wrong and when.
    std::string run(uint64_t seed, int32_t steps, bool verbose);

    const Coverage& coverage() const { return coverage_; }

private:
    void start(uint64_t seed);
    void start_engine();
    void restart_edge(int32_t e, bool attached);
    void collect();

    void act(int32_t e);
    void submit(int32_t e);
    void let_things_happen();
    std::string iterate(bool quiet);
    std::string check_after_iteration();
    std::string check_cancels() const;
    std::string check_admissions();
    std::string check_turns() const;
    std::string check_time_budget() const;
    std::string check_drafts() const;
    std::string check_masks() const;
    std::string check_progress();
    std::string check_lost();
    std::string check_traces();
    std::string read_edges(bool all);
    std::string drain();
    std::string check_idle();

    // Longest legal waits of a running request for its next row. Decode rows take turns. Prompts
    // are first come, first served within a profile, so the last one waits for all rows before it,
    // one a step at worst, and the three profiles share the steps.
    static constexpr int32_t DECODE_WAIT_MAX = 600;
    static constexpr int32_t PROMPT_WAIT_MAX =
        SEQUENCES_SIMULATED_MAX * CONTEXT_SIMULATED_MAX * limits::PRIORITIES_MAX;
    static constexpr int32_t IDLE_FACTOR = 20; // iterations per step at most
    static constexpr int32_t DRAIN_ITERATIONS_MAX = 60000;
    static constexpr int64_t STEP_NS = 8'000'000;
    static constexpr int32_t ROOM_WORDS_SPARE = 64; // less than most records have

    struct Progress {
        uint64_t arrival = 0;
        int32_t computed = 0;
        int32_t waited = 0;
    };

    struct Wait {
        uint64_t arrival = 0;
        uint64_t since = 0; // the iteration in which it was taken
    };

    void* memory_ = nullptr;
    void* prefixes_ = nullptr; // of the largest table; the audit compares it with the page index
    Scenario scenario_;
    Random random_{0};
    RequestMaker maker_;
    VirtualClock clock_;
    std::optional<HashModel> model_;
    std::optional<SimLoop> loop_;
    std::unique_ptr<SimEdge> edges_[EDGES_SIMULATED];
    TraceCheck traces_[EDGES_SIMULATED];
    int32_t ring_full_left_[EDGES_SIMULATED] = {}; // iterations until the edge reads again
    Progress progress_[SEQUENCES_SIMULATED_MAX + QUEUE_SIMULATED_MAX];
    Wait waits_[SEQUENCES_SIMULATED_MAX + QUEUE_SIMULATED_MAX];
    uint64_t iterations_ = 0; // of this engine
    RequestSpec spec_;
    uint64_t engine_seed_ = 0;
    Coverage coverage_;
};

} // namespace sublimate::sim

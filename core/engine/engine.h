// The host side of the loop: a thread to run it on, sleeping when idle, and attaching edges while
// it runs. The loop itself (core/loop) knows neither threads nor file descriptors.
//
// defines: EngineLoop, monotonic_ns, EngineOptions, Engine, make_model_engine,
//          make_scripted_engine
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "../loop/cost.h"
#include "../loop/schedule.h"
#include "../model/model.h"
#include "../ring/prefix_memory.h"
#include "../ring/region.h"
#include "measured.h"
#include "scripted_model.h"

namespace sublimate {

// A Loop of some model, with the model's type erased: one virtual call per step.
class EngineLoop {
public:
    virtual ~EngineLoop() = default;
    virtual void attach(int32_t edge, const RegionView& view) = 0;
    virtual void detach(int32_t edge) = 0;
    virtual bool run_once() = 0;           // false: nothing to do until a bell rings
    virtual bool has_requests() const = 0; // accepted requests without a terminal row
    virtual bool mask_arrived() const = 0; // for a row that waits for it
    virtual bool at_rest() = 0;            // and its published figures say so
    virtual void warm_up() = 0;
    virtual void populate_ahead() = 0; // once, after the warm-up
    virtual void place_threads() = 0;  // on the thread that will run the loop, before it does
    virtual std::string audit() = 0;   // empty: page ownership is consistent
    virtual StatsPage stats() const = 0;
    virtual Measured measured() const = 0;
    virtual bool was_measured_before() const = 0; // by the engine before it
};

int64_t monotonic_ns();

struct EngineOptions {
    Policy policy = DEFAULT_POLICY;
    bool speculation = false;
    uint64_t prefix_secret = 0; // keys the hash of the prefix cache; 0: a random one of its own
    PrefixMemory prefixes;      // for PageStore::table_entries of its pages; empty: nobody is told
    std::optional<Measured> measured; // by an engine before it; what does not fit is passed over
};

class Engine {
public:
    Engine();
    ~Engine();
    Engine(const Engine&) = delete;
    Engine& operator=(const Engine&) = delete;

    // prefixes: written by the loop, if it is not empty.
    void set_loop(std::unique_ptr<EngineLoop> loop, PrefixMemory prefixes);
    int prefix_fd() const { return prefixes_.fd(); } // -1: none
    // Of tests (injected_faults.h); before run().
    void inject_faults(const std::string& folder);

    // From any thread. attach returns the edge index, or -1 when EDGES_MAX are attached. Both
    // return when the loop has done it; while run() is not running they act at once.
    int32_t attach(std::shared_ptr<Region> region);
    void detach(int32_t edge);
    void run(); // until stop(); one caller at a time
    void stop();
    void warm_up();
    std::string audit();
    StatsPage stats();
    Measured measured() const { return loop_->measured(); } // fixed once warm_up() has returned
    bool was_measured_before() const { return loop_->was_measured_before(); }

    // Called by the loop after it has published: wakes the edges that sleep and have records.
    void published();

private:
    struct Command {
        enum class Kind { attach, detach, stats, audit } kind;
        int32_t edge;
        std::shared_ptr<Region> region;
    };

    void submit_command(Command command);
    void apply(const Command& command);
    void apply_locked();
    bool submissions_pending() const;
    uint64_t submissions() const; // made by all attached edges since they attached
    bool work_arrived(uint64_t submitted_before) const;
    void sleep_until_work(uint64_t submitted_before);
    void beat();

    PrefixMemory prefixes_; // outlives the loop
    std::unique_ptr<EngineLoop> loop_;
    std::shared_ptr<Region>
        regions_[limits::EDGES_MAX]; // touched by the loop's thread only, while it runs
    std::mutex mutex_;
    std::condition_variable applied_;
    std::vector<Command> commands_;      // under mutex_
    uint64_t submitted_ = 0, done_ = 0;  // under mutex_
    bool taken_[limits::EDGES_MAX] = {}; // under mutex_
    bool running_ = false;               // under mutex_
    StatsPage stats_ = {};               // under mutex_; of the last command that asked
    std::string audit_;                  // under mutex_; likewise
    std::atomic<bool> commands_pending_{false};
    std::atomic<bool> stopping_{false};
    int control_bell_ = -1; // eventfd: a command or stop arrived
};

std::unique_ptr<Engine> make_model_engine(std::shared_ptr<LoadedModel> model,
                                          EngineOptions options);
std::unique_ptr<Engine> make_scripted_engine(std::vector<ScriptLine> script,
                                             const ScriptOptions& script_options,
                                             EngineOptions options);

} // namespace sublimate

// Faults that a test injects into a running engine: the machine's and the model's, not bugs of ours
// (core/loop/fault.h plants those in the simulator). A fault is a file in a folder that the process
// was started with, named after its point; docs/faults.md tells how to use them. Without such a
// folder nothing here exists at run time: the loop is wrapped only when faults are asked for.
//
// defines: FaultFolder, FaultyLoop
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "../check.h"
#include "../retry.h"
#include "engine.h"

namespace sublimate {

class FaultFolder {
public:
    explicit FaultFolder(std::string path) : path_(std::move(path)) {
        CHECK_BECAUSE(!path_.empty(), "faults without a folder");
    }

    // As long as the file is there.
    bool holds(const char* point) const { return access(file(point).c_str(), F_OK) == 0; }

    // Once per file, whoever sees it first: a process that is restarted does not fail again.
    bool take(const char* point) const { return unlink(file(point).c_str()) == 0; }

    // The number that the file holds; 0 if it holds none.
    int64_t number(const char* point) const {
        char text[32] = {};
        int fd = retried([&] { return open(file(point).c_str(), O_RDONLY | O_CLOEXEC); });
        if (fd < 0) return 0;
        ssize_t bytes = retried([&] { return read(fd, text, sizeof(text) - 1); });
        close(fd);
        return bytes > 0 ? std::atoll(text) : 0;
    }

private:
    std::string file(const char* point) const { return path_ + "/" + point; }

    std::string path_;
};

// The loop of another, with faults before its turns. As the real ones do, they hold up all that the
// loop's thread does, commands and heartbeats among it.
class FaultyLoop final : public EngineLoop {
public:
    FaultyLoop(std::unique_ptr<EngineLoop> loop, std::string folder)
        : loop_(std::move(loop)), folder_(std::move(folder)) {
        CHECK(loop_);
    }

    void attach(int32_t edge, const RegionView& view) override {
        CHECK(edge >= 0 && edge < limits::EDGES_MAX);
        control_[edge] = view.control;
        loop_->attach(edge, view);
    }

    void detach(int32_t edge) override {
        CHECK(edge >= 0 && edge < limits::EDGES_MAX);
        control_[edge] = nullptr;
        loop_->detach(edge);
    }

    bool run_once() override {
        CHECK_BECAUSE(!folder_.take("engine.abort"), "an injected fault");
        if (folder_.take("engine.region.broken")) break_regions();
        if (loop_->has_requests()) {
            while (folder_.holds("engine.step.hung")) wait_ms(1);
            if (folder_.holds("engine.step.slow")) wait_ms(folder_.number("engine.step.slow"));
        }
        return loop_->run_once();
    }

    bool has_requests() const override { return loop_->has_requests(); }
    bool mask_arrived() const override { return loop_->mask_arrived(); }
    bool at_rest() override { return loop_->at_rest(); }
    void warm_up() override { loop_->warm_up(); }
    void populate_ahead() override { loop_->populate_ahead(); }
    void place_threads() override { loop_->place_threads(); }
    std::string audit() override { return loop_->audit(); }
    StatsPage stats() const override { return loop_->stats(); }
    Measured measured() const override { return loop_->measured(); }
    bool was_measured_before() const override { return loop_->was_measured_before(); }

private:
    static void wait_ms(int64_t ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

    // More words than the ring can hold: what no edge can read on from.
    void break_regions() {
        for (RegionControl* control : control_)
            if (control)
                store_sequential(&control->token_tail, load_acquire(&control->token_head) +
                                                           uint64_t{limits::TOKEN_RING_WORDS} + 1);
    }

    std::unique_ptr<EngineLoop> loop_;
    FaultFolder folder_;
    RegionControl* control_[limits::EDGES_MAX] = {};
};

} // namespace sublimate

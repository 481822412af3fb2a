// Ties a Loop to a model, its memory and the host's clock.
//
// defines: HostClock, ModelLoop
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "../loop/loop.h"
#include "engine.h"
#include "roofline.h"

namespace sublimate {

// Time, and the bells: what the loop knows of its host.
class HostClock {
public:
    explicit HostClock(Engine& engine) : engine_(engine) {}
    int64_t now_ns() const { return monotonic_ns(); }
    void published() { engine_.published(); }

private:
    Engine& engine_;
};

// Owner: whatever keeps the model alive. Model: concept of loop/step.h.
template <class Owner, class Model>
class ModelLoop final : public EngineLoop {
public:
    ModelLoop(Engine& engine, Owner owner, Model& model, const LoopConfig& config,
              const Roofline& roofline)
        : owner_(std::move(owner)), model_(model), clock_(engine), roofline_(roofline),
          config_(config), block_(allocate(loop_memory_bytes(config))),
          loop_(config, loop_memory(config, block_.get()), model_, clock_) {}

    void attach(int32_t edge, const RegionView& view) override { loop_.attach(edge, view); }
    void detach(int32_t edge) override { loop_.detach(edge); }
    bool has_requests() const override { return loop_.outstanding() > 0; }
    StatsPage stats() const override { return loop_.totals(); }

    bool run_once() override {
        uint64_t steps = loop_.step_count();
        loop_.set_utilization_ppm(roofline_.utilization_ppm(clock_.now_ns()));
        bool worked = loop_.run_once();
        if (loop_.step_count() != steps) roofline_.count_step(loop_.state().plan->rows);
        return worked;
    }

    bool at_rest() override {
        return loop_.outstanding() == 0 && loop_.state().utilization_ppm == 0;
    }

    std::string audit() override {
        const char* why = loop_.audit();
        return why ? why : "";
    }

    // Steps of four sizes, on pages that no request owns yet: the caches, the branch predictors and
    // the memory's first touch are paid here and not by the first request.
    void warm_up() override {
        CHECK_BECAUSE(loop_.outstanding() == 0, "warm-up while requests run");
        for (int32_t rows : WARM_UP_ROWS) warm_up_rows(rows);
    }

private:
    static constexpr int32_t WARM_UP_ROWS[] = {1, 16, 128, 512};

    struct Free {
        void operator()(void* block) const { std::free(block); }
    };

    static std::unique_ptr<void, Free> allocate(int64_t bytes) {
        void* block = std::aligned_alloc(
            memory::ALIGNMENT_BYTES, static_cast<size_t>(align_up(bytes, memory::ALIGNMENT_BYTES)));
        CHECK_BECAUSE(block, "no memory for the loop");
        return std::unique_ptr<void, Free>(block);
    }

    void warm_up_rows(int32_t rows) {
        int32_t pages = (rows + limits::PAGE_TOKENS - 1) / limits::PAGE_TOKENS;
        if (pages > config_.pages || rows > config_.context_tokens) return;
        std::vector<int32_t> tokens(static_cast<size_t>(rows), 0);
        std::vector<int32_t> positions(static_cast<size_t>(rows));
        std::vector<int32_t> table(static_cast<size_t>(pages));
        for (int32_t i = 0; i < rows; i++) positions[static_cast<size_t>(i)] = i;
        for (int32_t i = 0; i < pages; i++) table[static_cast<size_t>(i)] = i;
        Segment segment = {};
        segment.row_count = rows;
        segment.prompt_length = rows;
        int32_t last = rows - 1;
        Step step = {};
        step.row_count = rows;
        step.segment_count = 1;
        step.logit_row_count = 1;
        step.page_table_stride = pages;
        step.tokens = tokens.data();
        step.positions = positions.data();
        step.segments = &segment;
        step.logit_rows = &last;
        step.page_tables = table.data();
        segment.arithmetic = Arithmetic::prompt;
        model_.forward(step);
        if (config_.same_arithmetic || rows > limits::SEQUENCES_MAX)
            return; // no decode step is larger
        segment.arithmetic = Arithmetic::generated;
        model_.forward(step);
    }

    Owner owner_;
    Model& model_;
    HostClock clock_;
    Roofline roofline_;
    LoopConfig config_;
    std::unique_ptr<void, Free> block_;
    Loop<Model, HostClock> loop_;
};

} // namespace sublimate

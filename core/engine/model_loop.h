// Ties a Loop to a model, its memory and the host's clock.
//
// defines: HostClock, ModelLoop
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "../loop/loop.h"
#include "choose.h"
#include "engine.h"
#include "measured.h"
#include "roofline.h"
#include "warm_up.h"

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

// Owner: whatever keeps the model alive. Model: concept of loop/step.h. before: what an engine
// before this one has measured of the model.
template <class Owner, class Model>
class ModelLoop final : public EngineLoop {
public:
    ModelLoop(Engine& engine, Owner owner, Model& model, const LoopConfig& config,
              const Roofline& roofline, const RooflineRates& rates = {},
              std::optional<Measured> before = {})
        : owner_(std::move(owner)), model_(model), clock_(engine), roofline_(roofline),
          rates_(rates), before_(std::move(before)), config_(config),
          block_(allocate(loop_memory_bytes(config))),
          loop_(config, loop_memory(config, block_.get()), model_, clock_) {}

    void attach(int32_t edge, const RegionView& view) override { loop_.attach(edge, view); }
    void detach(int32_t edge) override { loop_.detach(edge); }
    bool has_requests() const override { return loop_.outstanding() > 0; }
    bool mask_arrived() const override { return loop_.mask_arrived(); }
    StatsPage stats() const override { return loop_.totals(); }

    Measured measured() const override {
        Measured found = {rates_, {}, loop_.state().cost};
        if constexpr (requires { model_.candidates(); })
            for (cpu::Phase phase : {cpu::Phase::few_rows, cpu::Phase::many_rows})
                found.choices[static_cast<size_t>(phase)] = model_.choice(phase);
        return found;
    }
    bool was_measured_before() const override { return before_.has_value(); }

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

    void place_threads() override {
        if constexpr (requires { model_.place_threads(); }) model_.place_threads();
    }

    void warm_up() override {
        CHECK_BECAUSE(loop_.outstanding() == 0, "warm-up while requests run");
        if (before_) {
            if constexpr (requires { model_.candidates(); }) take_choices(model_, *before_);
            touch_model(model_, config_);
            loop_.set_cost(before_->cost);
            return;
        }
        if constexpr (requires { model_.candidates(); }) choose_variants(model_, config_);
        loop_.set_cost(warm_up_model(model_, config_));
    }

    void populate_ahead() override {
        if constexpr (requires { model_.populate_ahead(); }) model_.populate_ahead();
    }

private:
    struct Free {
        void operator()(void* block) const { std::free(block); }
    };

    static std::unique_ptr<void, Free> allocate(int64_t bytes) {
        void* block = std::aligned_alloc(
            memory::ALIGNMENT_BYTES, static_cast<size_t>(align_up(bytes, memory::ALIGNMENT_BYTES)));
        CHECK_BECAUSE(block, "no memory for the loop");
        return std::unique_ptr<void, Free>(block);
    }

    Owner owner_;
    Model& model_;
    HostClock clock_;
    Roofline roofline_;
    RooflineRates rates_;
    std::optional<Measured> before_;
    LoopConfig config_;
    std::unique_ptr<void, Free> block_;
    Loop<Model, HostClock> loop_;
};

} // namespace sublimate

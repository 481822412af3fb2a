// Engines for the two kinds of model: a loaded one, and a script.
#include <optional>
#include <random>

#include "measured.h"
#include "model_loop.h"
#include "rates.h"

namespace sublimate {

namespace {

uint64_t random_secret() {
    std::random_device device;
    return (uint64_t{device()} << 32) | device();
}

// What both kinds share. The prefix cache's hash is keyed by a number that no client can know.
LoopConfig loop_config(const EngineOptions& options, int32_t pages) {
    LoopConfig config;
    config.pages = pages;
    config.salt = options.prefix_secret != 0 ? options.prefix_secret : random_secret();
    config.policy = options.policy;
    config.speculation = options.speculation;
    config.prefixes = options.prefixes.view();
    return config;
}

// Multiply-adds of one row: every weight of the layers once.
int64_t layer_multiply_adds(const ModelConfig& c) {
    int64_t attention = int64_t{c.hidden} * (2 * c.query_columns() + 2 * c.kv_columns());
    int64_t feed_forward = 3 * int64_t{c.hidden} * c.feed_forward * c.experts_used;
    return c.layers * (attention + feed_forward + int64_t{c.hidden} * c.experts);
}

// Weights that a step of one row reads: of experts the part that it uses.
int64_t step_bytes(const LoadedModel& model) {
    const ModelConfig& c = model.config;
    if (c.experts == 0) return model.weights.bytes;
    int64_t of_experts = 0;
    for (const LayerWeights& layer : model.weights.layers)
        for (const cpu::PackedMatrix* matrix : {&layer.gate, &layer.up, &layer.down})
            of_experts += matrix->panels * matrix->panel_bytes;
    return model.weights.bytes - of_experts / c.experts * (c.experts - c.experts_used);
}

} // namespace

std::unique_ptr<Engine> make_model_engine(std::shared_ptr<LoadedModel> model,
                                          EngineOptions options) {
    LoopConfig config = loop_config(options, model->model->kv_pages());
    config.vocabulary = model->config.vocabulary;
    config.context_tokens = model->config.context_length;
    config.same_arithmetic = model->model->same_arithmetic();
    config.adapters = model->adapters.count();
    cpu::CpuModel& compute = *model->model;
    std::optional<Measured> before = std::move(options.measured);
    if (before && !is_of(*before, compute.candidates())) before.reset();
    RooflineRates rates = before ? before->rates : measure_rates(*model);
    Roofline roofline(rates, step_bytes(*model), layer_multiply_adds(model->config));
    auto engine = std::make_unique<Engine>();
    auto loop = std::make_unique<ModelLoop<std::shared_ptr<LoadedModel>, cpu::CpuModel>>(
        *engine, std::move(model), compute, config, roofline, rates, std::move(before));
    engine->set_loop(std::move(loop), std::move(options.prefixes));
    return engine;
}

std::unique_ptr<Engine> make_scripted_engine(std::vector<ScriptLine> script,
                                             const ScriptOptions& script_options,
                                             EngineOptions options) {
    LoopConfig config = loop_config(options, script_options.kv_pages);
    config.vocabulary = script_options.vocabulary;
    config.context_tokens = script_options.context_length;
    config.same_arithmetic = true;
    config.adapters = script_options.adapters;
    auto engine = std::make_unique<Engine>();
    auto model = std::make_unique<ScriptedModel>(std::move(script), script_options);
    ScriptedModel& compute = *model;
    auto loop = std::make_unique<ModelLoop<std::unique_ptr<ScriptedModel>, ScriptedModel>>(
        *engine, std::move(model), compute, config, Roofline());
    engine->set_loop(std::move(loop), std::move(options.prefixes));
    return engine;
}

} // namespace sublimate

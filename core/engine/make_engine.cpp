// Engines for the two kinds of model: a loaded one, and a script.
#include <random>

#include "model_loop.h"
#include "rates.h"

namespace sublimate {

namespace {

// The prefix cache's hash is keyed by a number that no client can know.
uint64_t random_salt() {
    std::random_device device;
    return (uint64_t{device()} << 32) | device();
}

// Multiply-adds of one row: every weight of the layers once.
int64_t layer_multiply_adds(const ModelConfig& c) {
    int64_t attention = int64_t{c.hidden} * (2 * c.query_columns() + 2 * c.kv_columns());
    return c.layers * (attention + 3 * int64_t{c.hidden} * c.feed_forward);
}

} // namespace

std::unique_ptr<Engine> make_model_engine(std::shared_ptr<LoadedModel> model, const Policy& policy,
                                          bool speculation) {
    LoopConfig config;
    config.vocabulary = model->config.vocabulary;
    config.context_tokens = model->config.context_length;
    config.pages = model->model->kv_pages();
    config.salt = random_salt();
    config.same_arithmetic = model->model->same_arithmetic();
    config.policy = policy;
    config.speculation = speculation;
    Roofline roofline(measure_rates(*model), model->weights.bytes,
                      layer_multiply_adds(model->config));
    auto engine = std::make_unique<Engine>();
    cpu::CpuModel& compute = *model->model;
    engine->set_loop(std::make_unique<ModelLoop<std::shared_ptr<LoadedModel>, cpu::CpuModel>>(
        *engine, std::move(model), compute, config, roofline));
    return engine;
}

std::unique_ptr<Engine> make_scripted_engine(std::vector<ScriptLine> script,
                                             const ScriptOptions& options, const Policy& policy,
                                             bool speculation) {
    LoopConfig config;
    config.vocabulary = options.vocabulary;
    config.context_tokens = options.context_length;
    config.pages = options.kv_pages;
    config.salt = random_salt();
    config.same_arithmetic = true;
    config.policy = policy;
    config.speculation = speculation;
    auto engine = std::make_unique<Engine>();
    auto model = std::make_unique<ScriptedModel>(std::move(script), options);
    ScriptedModel& compute = *model;
    engine->set_loop(std::make_unique<ModelLoop<std::unique_ptr<ScriptedModel>, ScriptedModel>>(
        *engine, std::move(model), compute, config, Roofline()));
    return engine;
}

} // namespace sublimate

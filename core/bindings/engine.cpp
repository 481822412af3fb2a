// Python's view of the resident loop: LoopEngine. See _core.pyi for the contract.
//
// defines: engine_options, variant_from, measured_from, with_model, with_script, attach,
// measured_info,
//          bind_engine
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "../engine/engine.h"
#include "../loop/pages.h"
#include "../ring/region.h"
#include "bindings.h"
#include "stats.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace sublimate {

namespace {

using Script = std::vector<std::pair<std::vector<int32_t>, std::vector<int32_t>>>;

EngineOptions engine_options(int32_t kv_pages, bool speculation, uint64_t prefix_secret) {
    EngineOptions options;
    options.speculation = speculation;
    options.prefix_secret = prefix_secret;
    const char* why = PrefixMemory::create(PageStore::table_entries(kv_pages), options.prefixes);
    if (why) throw CoreError(why);
    return options;
}

constexpr double NS_PER_MS = 1e6;

// Kernels by their name, of those that the model may choose among; else none, which fits no model.
cpu::Variant variant_from(nb::handle told, const cpu::Candidates& candidates) {
    auto isa = nb::cast<std::string>(told["isa"]);
    cpu::Variant variant = {nullptr, nb::cast<int32_t>(told["threads"])};
    for (const cpu::Ops* ops : candidates.ops)
        if (isa == ops->name) variant.ops = ops;
    return variant;
}

cpu::Choice choice_from(nb::handle told, const cpu::Candidates& candidates) {
    cpu::Choice choice = {variant_from(told, candidates), {}};
    for (nb::handle each : told["measured"]) {
        cpu::Variant variant = variant_from(each, candidates);
        variant.least_ns = nb::cast<double>(each["least_ms"]) * NS_PER_MS;
        if (variant.ops != nullptr) choice.measured.push_back(variant);
    }
    return choice;
}

// As `measured_info` tells it.
Measured measured_from(const nb::dict& told, const cpu::Candidates& candidates) {
    Measured found;
    found.rates = {nb::cast<double>(told["bytes_per_s"]), nb::cast<double>(told["row_ops_per_s"])};
    found.choices[0] = choice_from(told["few_rows"], candidates);
    found.choices[1] = choice_from(told["many_rows"], candidates);
    nb::handle cost = told["step_cost"];
    auto price = [&](const char* name) { return nb::cast<int64_t>(cost[name]); };
    found.cost = {price("step_ps"),       price("prompt_step_ps"),
                  price("decode_row_ps"), price("decode_position_ps"),
                  price("prompt_row_ps"), price("prompt_position_ps")};
    return found;
}

std::unique_ptr<Engine> with_model(std::shared_ptr<LoadedModel> model, bool speculation,
                                   uint64_t prefix_secret,
                                   const std::optional<nb::dict>& measured) {
    cpu::CpuModel& compute = *model->model;
    EngineOptions options = engine_options(compute.kv_pages(), speculation, prefix_secret);
    if (measured) options.measured = measured_from(*measured, compute.candidates());
    return make_model_engine(std::move(model), std::move(options));
}

void check_ids(const std::vector<int32_t>& ids, int32_t vocabulary) {
    for (int32_t id : ids) {
        if (id < 0 || id >= vocabulary)
            throw CoreError("script: token id " + std::to_string(id) + " is not in [0, " +
                            std::to_string(vocabulary) + ")");
    }
}

std::unique_ptr<Engine> with_script(const Script& script, int32_t vocabulary,
                                    int32_t context_length, int32_t kv_pages, int32_t stop_token,
                                    int32_t step_delay_us, int32_t prefill_delay_us_per_token,
                                    bool speculation, uint64_t prefix_secret, int32_t adapters) {
    if (vocabulary < 1 || vocabulary > limits::VOCABULARY_MAX)
        throw CoreError("vocabulary: not in [1, VOCABULARY_MAX]");
    if (context_length < 1 || context_length > limits::CONTEXT_TOKENS_MAX)
        throw CoreError("context_length: not in [1, CONTEXT_TOKENS_MAX]");
    if (kv_pages < 1 || kv_pages > limits::KV_PAGES_MAX)
        throw CoreError("kv_pages: not in [1, KV_PAGES_MAX]");
    if (step_delay_us < 0 || prefill_delay_us_per_token < 0)
        throw CoreError("a delay must not be negative");
    if (adapters < 0 || adapters > limits::ADAPTERS_MAX)
        throw CoreError("adapters: not in [0, ADAPTERS_MAX]");
    check_ids({stop_token}, vocabulary);
    std::vector<ScriptLine> lines;
    for (const auto& [match, answer] : script) {
        check_ids(match, vocabulary);
        check_ids(answer, vocabulary);
        lines.push_back({match, answer});
    }
    ScriptOptions options;
    options.vocabulary = vocabulary;
    options.context_length = context_length;
    options.kv_pages = kv_pages;
    options.stop_token = stop_token;
    options.step_delay_us = step_delay_us;
    options.prefill_delay_us_per_token = prefill_delay_us_per_token;
    options.adapters = adapters;
    return make_scripted_engine(std::move(lines), options,
                                engine_options(kv_pages, speculation, prefix_secret));
}

// A Python Region owned by Python, held by the engine for as long as it is attached.
int32_t attach(Engine& engine, std::shared_ptr<Region> region) {
    nb::gil_scoped_release released;
    int32_t edge = engine.attach(std::move(region));
    if (edge < 0)
        throw CoreError("the engine serves EDGES_MAX edges already; detach one before attaching");
    return edge;
}

nb::dict step_cost_info(const StepCost& cost) {
    nb::dict found;
    found["step_ps"] = cost.step_ps;
    found["prompt_step_ps"] = cost.prompt_step_ps;
    found["decode_row_ps"] = cost.decode_row_ps;
    found["decode_position_ps"] = cost.decode_position_ps;
    found["prompt_row_ps"] = cost.prompt_row_ps;
    found["prompt_position_ps"] = cost.prompt_position_ps;
    return found;
}

nb::dict measured_info(const Engine& engine) {
    Measured measured = engine.measured();
    nb::dict found;
    found["bytes_per_s"] = measured.rates.bytes_per_s;
    found["row_ops_per_s"] = measured.rates.row_ops_per_s;
    found["few_rows"] = choice_info(measured.choices[0]);
    found["many_rows"] = choice_info(measured.choices[1]);
    found["step_cost"] = step_cost_info(measured.cost);
    return found;
}

} // namespace

void bind_engine(nb::module_& m) {
    using release = nb::call_guard<nb::gil_scoped_release>;
    nb::class_<Engine>(m, "LoopEngine")
        .def_static("with_model", &with_model, "model"_a, nb::kw_only(), "speculation"_a = true,
                    "prefix_secret"_a = 0, "measured"_a = nb::none())
        .def_static("with_script", &with_script, "script"_a, nb::kw_only(), "vocabulary"_a,
                    "context_length"_a = 8192, "kv_pages"_a = 4096, "stop_token"_a = 2,
                    "step_delay_us"_a = 0, "prefill_delay_us_per_token"_a = 0,
                    "speculation"_a = false, "prefix_secret"_a = 0, "adapters"_a = 0)
        .def_prop_ro("prefix_fd", &Engine::prefix_fd)
        .def("attach", &attach, "region"_a)
        .def("detach", &Engine::detach, "edge"_a, release())
        .def("run", &Engine::run, release())
        .def("stop", &Engine::stop)
        .def("inject_faults", &Engine::inject_faults, "folder"_a)
        .def(
            "warm_up", [](Engine& engine) { with_threads([&] { engine.warm_up(); }); }, release())
        .def("stats",
             [](Engine& engine) {
                 StatsPage page;
                 {
                     nb::gil_scoped_release released;
                     page = engine.stats();
                 }
                 return stats_dict(page);
             })
        .def("step_cost",
             [](const Engine& engine) { return step_cost_info(engine.measured().cost); })
        .def("measured", &measured_info)
        .def_prop_ro("was_measured_before", &Engine::was_measured_before)
        .def("audit", &Engine::audit, release());
}

} // namespace sublimate

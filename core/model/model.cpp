// Loading, in order: header, configuration, threads, adapters, weights, step memory and KV pages.
#include "model.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <span>

#include "../cpu/probe.h"

namespace sublimate {

namespace {

// Small models gain little from many threads, and every thread waits at every barrier.
constexpr int32_t AUTOMATIC_THREADS_MAX = 16;

Status choose_isa(const std::string& name, cpu::Isa* isa) {
    *isa = cpu::best_isa();
    if (name.empty()) return Status::success();
    if (!cpu::isa_from_name(name.c_str(), isa))
        return Status::error("'" + name +
                             "' is no instruction set (ref, portable, avx2, avx512, amx)");
    if (!cpu::isa_runs(*isa)) return Status::error("this machine cannot run " + name);
    return Status::success();
}

Status choose_threads(int32_t wanted, int32_t* threads) {
    if (wanted < 0 || wanted > limits::COMPUTE_THREADS_MAX)
        return Status::error(std::to_string(wanted) + " threads are outside 1 to " +
                             std::to_string(limits::COMPUTE_THREADS_MAX));
    *threads = wanted > 0 ? wanted : std::min(cpu::usable_cores(), AUTOMATIC_THREADS_MAX);
    return Status::success();
}

// What the user asked for is not up for choice.
cpu::Candidates candidates(const LoadOptions& options, cpu::Isa isa, int32_t threads) {
    cpu::Candidates all = {cpu::thread_counts(threads), cpu::equal_ops(isa)};
    if (options.threads > 0) all.threads.resize(1);
    if (cpu::asked_isa(&isa) || !options.isa.empty()) all.ops.resize(1);
    return all;
}

cpu::KvType kv_type_of(bool exact, cpu::KvType asked) {
    return exact ? cpu::KvType::f32 : asked;
}

int64_t choose_kv_bytes(const ModelConfig& config, cpu::KvType type, const LoadOptions& options) {
    if (options.kv_bytes > 0) return options.kv_bytes;
    CHECK(options.engines >= 1);
    int64_t page_bytes = cpu::KvArena::page_bytes(config, type);
    int64_t pages = (config.context_length + limits::PAGE_TOKENS - 1) / limits::PAGE_TOKENS;
    int64_t full = limits::SEQUENCES_MAX * pages * page_bytes;
    return std::min(full, std::max(cpu::memory_bytes() / limits::KV_MEMORY_SHARE / options.engines,
                                   pages * page_bytes));
}

} // namespace

namespace {

Status open_files(const std::string& path, const LoadOptions& options, Gguf* file) {
    if (options.header.empty()) return Gguf::open(path, file);
    Status status = Gguf::join(std::as_bytes(std::span(options.header)), options.files, file);
    return status.ok() ? status : Status::error(path + ": " + status.message);
}

} // namespace

Status load_model(const std::string& path, const LoadOptions& options,
                  std::shared_ptr<LoadedModel>* model) {
    auto begin = std::chrono::steady_clock::now();
    Gguf file;
    Status status = open_files(path, options, &file);
    if (!status.ok()) return status;
    auto fresh = std::make_shared<LoadedModel>();
    RopeTables ropes;
    status = read_config(file, options.overrides, &fresh->config);
    if (status.ok()) status = make_rope_tables(file, fresh->config, &ropes);
    if (!status.ok()) return Status::error(path + ": " + status.message);
    cpu::Isa isa;
    RETURN_IF_ERROR(choose_isa(options.isa, &isa));
    int32_t threads = 0;
    RETURN_IF_ERROR(choose_threads(options.threads, &threads));
    if (options.engines < 1) return Status::error("there is one engine at least");
    if (options.exact && options.quantise != Quantise::none)
        return Status::error("--exact keeps weights in fp32: leave it or --quantize out");
    if (options.exact && options.kv_type == cpu::KvType::int8)
        return Status::error("--exact keeps keys and values in f32: leave out --kv int8");
    if (options.kv_bytes < 0) return Status::error("the KV memory cannot be negative");
    fresh->pool = std::make_unique<cpu::ThreadPool>(threads);
    fresh->exact = options.exact;
    RETURN_IF_ERROR(
        load_adapters(options.adapters, fresh->config, options.exact, &fresh->adapters));
    fresh->quantise = file.packed() != nullptr ? file.packed()->form.quantise : options.quantise;
    status = load_weights(file, fresh->config, {options.exact, options.quantise}, options.share,
                          *fresh->pool, options.progress, &fresh->weights);
    if (!status.ok()) return Status::error(path + ": " + status.message);
    cpu::KvType kv_type = kv_type_of(options.exact, options.kv_type);
    RETURN_IF_ERROR(cpu::CpuModel::create(fresh->config, fresh->weights, ropes, cpu::ops_for(isa),
                                          kv_type, choose_kv_bytes(fresh->config, kv_type, options),
                                          *fresh->pool, &fresh->model));
    RETURN_IF_ERROR(fresh->model->use_adapters(fresh->adapters));
    fresh->model->set_candidates(candidates(options, isa, threads));
    fresh->model->set_batch_invariant(options.batch_invariant);
    std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    fresh->load_seconds = took.count();
    *model = std::move(fresh);
    return Status::success();
}

Status plan_model(const Gguf& file, const ConfigOverrides& overrides, bool exact, ModelPlan* plan) {
    ModelPlan fresh;
    RETURN_IF_ERROR(read_config(file, overrides, &fresh.config));
    RopeTables ropes;
    RETURN_IF_ERROR(make_rope_tables(file, fresh.config, &ropes));
    fresh.kv_page_bytes =
        cpu::KvArena::page_bytes(fresh.config, kv_type_of(exact, cpu::KvType::bf16));
    const auto& tensors = file.tensors();
    if (std::all_of(tensors.begin(), tensors.end(),
                    [](const GgufTensor& tensor) { return is_supported(tensor.type); }))
        RETURN_IF_ERROR(plan_weights(file, fresh.config, {exact, {}}, &fresh.weight_bytes));
    *plan = fresh;
    return Status::success();
}

Status compute_logits(const LoadedModel& model, const std::vector<int32_t>& ids,
                      Arithmetic arithmetic, int32_t adapter, std::vector<float>* logits) {
    const ModelConfig& config = model.config;
    if (ids.empty() || ids.size() > static_cast<size_t>(config.context_length))
        return Status::error(std::to_string(ids.size()) +
                             " tokens are outside 1 to the context of " +
                             std::to_string(config.context_length));
    for (int32_t id : ids)
        if (id < 0 || id >= config.vocabulary)
            return Status::error("token id " + std::to_string(id) +
                                 " is outside the vocabulary of " +
                                 std::to_string(config.vocabulary));
    if (adapter < 0 || adapter > model.adapters.count())
        return Status::error("adapter " + std::to_string(adapter) + " is none of the " +
                             std::to_string(model.adapters.count()) + " that are loaded");
    int32_t length = static_cast<int32_t>(ids.size());
    std::vector<int32_t> table(ids.size() / limits::PAGE_TOKENS + 1);
    std::iota(table.begin(), table.end(), 0);
    std::vector<int32_t> positions(ids.size());
    std::iota(positions.begin(), positions.end(), 0);
    cpu::KvType kv_type = model.model->kv().layout.type;
    int64_t kv_bytes =
        static_cast<int64_t>(table.size()) * cpu::KvArena::page_bytes(config, kv_type);
    cpu::ThreadPool pool(1);
    std::unique_ptr<cpu::CpuModel> own;
    RETURN_IF_ERROR(cpu::CpuModel::create(config, model.weights, model.model->ropes(),
                                          model.model->ops(), kv_type, kv_bytes, pool, &own));
    RETURN_IF_ERROR(own->use_adapters(model.adapters));
    logits->clear();
    for (int32_t at = 0; at < length; at += limits::LOGIT_ROWS_MAX) {
        int32_t rows = std::min(limits::LOGIT_ROWS_MAX, length - at);
        Segment segment = {0, 0, rows, at, length, arithmetic, adapter, 0, 0};
        Step step = {rows,
                     1,
                     rows,
                     static_cast<int32_t>(table.size()),
                     ids.data() + at,
                     positions.data() + at,
                     &segment,
                     positions.data(),
                     table.data()};
        const float* computed = own->forward(step);
        logits->insert(logits->end(), computed, computed + int64_t{rows} * config.vocabulary);
    }
    return Status::success();
}

} // namespace sublimate

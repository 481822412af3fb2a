// Loading, in order: header, configuration, threads, weights, step memory and KV pages.
#include "model.h"

#include <algorithm>
#include <chrono>

#include "../cpu/probe.h"

namespace sublimate {

namespace {

// Small models gain little from many threads, and every thread waits at every barrier.
constexpr int32_t AUTOMATIC_THREADS_MAX = 16;
constexpr int64_t MEMORY_SHARE_OF_KV = 4;

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

int64_t choose_kv_bytes(const ModelConfig& config, cpu::KvType type, int64_t wanted) {
    if (wanted > 0) return wanted;
    int64_t page_bytes = cpu::KvArena::page_bytes(config, type);
    int64_t pages = (config.context_length + limits::PAGE_TOKENS - 1) / limits::PAGE_TOKENS;
    int64_t full = limits::SEQUENCES_MAX * pages * page_bytes;
    return std::min(full, std::max(cpu::memory_bytes() / MEMORY_SHARE_OF_KV, pages * page_bytes));
}

} // namespace

Status load_model(const std::string& path, const LoadOptions& options,
                  std::shared_ptr<LoadedModel>* model) {
    auto begin = std::chrono::steady_clock::now();
    Gguf file;
    RETURN_IF_ERROR(Gguf::open(path, &file));
    auto fresh = std::make_shared<LoadedModel>();
    Status status = read_config(file, options.overrides, &fresh->config);
    if (!status.ok()) return Status::error(path + ": " + status.message);
    RopeTable rope;
    RETURN_IF_ERROR(make_rope_table(file, fresh->config.rope, &rope));
    cpu::Isa isa;
    RETURN_IF_ERROR(choose_isa(options.isa, &isa));
    int32_t threads = 0;
    RETURN_IF_ERROR(choose_threads(options.threads, &threads));
    if (options.kv_bytes < 0) return Status::error("the KV memory cannot be negative");
    fresh->pool = std::make_unique<cpu::ThreadPool>(threads);
    fresh->exact = options.exact;
    status = load_weights(file, fresh->config, options.exact, *fresh->pool, options.progress,
                          &fresh->weights);
    if (!status.ok()) return Status::error(path + ": " + status.message);
    cpu::KvType kv_type = options.exact ? cpu::KvType::f32 : cpu::KvType::bf16;
    RETURN_IF_ERROR(cpu::CpuModel::create(
        fresh->config, fresh->weights, rope, cpu::ops_for(isa), kv_type,
        choose_kv_bytes(fresh->config, kv_type, options.kv_bytes), *fresh->pool, &fresh->model));
    std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    fresh->load_seconds = took.count();
    *model = std::move(fresh);
    return Status::success();
}

} // namespace sublimate

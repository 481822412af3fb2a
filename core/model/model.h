// A model that is ready to serve: read, checked, packed, with its compute threads and KV pages.
//
// defines: LoadOptions, LoadedModel, load_model, ModelPlan, plan_model, compute_logits
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "adapters.h"
#include "config.h"
#include "forward.h"
#include "weights.h"

namespace sublimate {

struct LoadOptions {
    bool exact = false;                 // fp32 weights, fp32 KV and fp32 arithmetic
    Quantise quantise = Quantise::none; // of weights of 16 and 32 bits; not with exact
    bool batch_invariant = true;        // see CpuModel::set_batch_invariant
    ConfigOverrides overrides;
    int32_t threads = 0; // 0: the cores this process may use, or fewer where that is faster
    std::string isa;     // "": the best that runs here, or one of equal bits that is faster
    cpu::KvType kv_type = cpu::KvType::bf16; // without `exact`: bf16 or int8
    int64_t kv_bytes = 0; // 0: 128 sequences of the context, at most a quarter of memory
    int32_t engines = 1;  // that share that quarter
    ShareOptions share;
    std::vector<AdapterSource> adapters; // a row asks for one by its place here, from 1
    // Not empty: the model is in other files than GGUF, which this header describes (Gguf::join).
    std::string header;
    std::vector<FilePart> files;
    std::function<void(float)> progress; // fraction in [0, 1], on the calling thread
};

struct LoadedModel {
    ModelConfig config;
    Weights weights;
    Adapters adapters;
    std::unique_ptr<cpu::ThreadPool> pool;
    std::unique_ptr<cpu::CpuModel> model; // refers to the four above
    bool exact = false;
    Quantise quantise = Quantise::none;
    double load_seconds = 0.0;
};

Status load_model(const std::string& path, const LoadOptions& options,
                  std::shared_ptr<LoadedModel>* model);

// What loading would make of a file, from its header alone.
struct ModelPlan {
    ModelConfig config;
    int64_t weight_bytes = 0;  // packed; 0: the file has tensors of a type that is not supported
    int64_t kv_page_bytes = 0; // of all layers
};

// An error is what load_model would say of the file.
Status plan_model(const Gguf& file, const ConfigOverrides& overrides, bool exact, ModelPlan* plan);

// Logits (position, vocabulary) of a text, each position given those before it. Computes beside
// whatever else uses the model: on the calling thread, with pages of its own. adapter: 0 for none.
Status compute_logits(const LoadedModel& model, const std::vector<int32_t>& ids,
                      Arithmetic arithmetic, int32_t adapter, std::vector<float>* logits);

} // namespace sublimate

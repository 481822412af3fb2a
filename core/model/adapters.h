// Low-rank adapters (LoRA, arXiv 2106.09685): beside a matrix W of the model, which stays as it is,
// a row of a request that asks for one meets W x + factor * B (A x), with A and B of few rows and
// columns. All adapters of a server are loaded with its model; a row names its own by number, and a
// row without one costs nothing.
//
// Files are GGUF (general.type = adapter), or safetensors with PEFT's names, of which whoever has
// read the header tells what lies where. Nothing of either is trusted.
//
// defines: AdapterTensor, AdapterSource, AdapterPlace, ADAPTER_PLACES, LowRankOutput,
// LowRankUpdate,
//          Adapter, Adapters, load_adapters
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "../cpu/ops.h"
#include "config.h"
#include "gguf.h"
#include "memory.h"
#include "status.h"

namespace sublimate {

// One A or B of a file without a header that the core reads.
struct AdapterTensor {
    std::string name;   // in its file, for errors
    std::string target; // blk.N.attn_q.weight.lora_a, as GGUF adapters have it
    TensorType type;    // f32, f16 or bf16
    uint64_t rows;
    uint64_t columns;
    uint64_t offset;     // in the file
    double factor = 1.0; // of what a B adds
};

struct AdapterSource {
    std::string name; // that requests ask for
    std::string path;
    std::vector<AdapterTensor> tensors; // empty: a GGUF file, which says all of this itself
};

// Where in a layer: matrices that read the same activations are one place.
enum class AdapterPlace : int32_t { query_key_value, attention_output, gate_up, down };
constexpr size_t ADAPTER_PLACES = 4;

// B of one of a place's matrices.
struct LowRankOutput {
    int32_t first_panel = 0;   // of the place's outputs, each matrix of whole panels
    int32_t first_column = 0;  // of what `down` computes
    cpu::PackedMatrix up = {}; // (outputs, rank)
};

struct LowRankUpdate {
    static constexpr int32_t OUTPUTS_MAX = 3; // query, key, value

    cpu::PackedMatrix down = {}; // (sum of ranks, each filled up to whole panels; inputs): every A
    std::vector<float> factors;  // (panels of `down`)
    int32_t output_count = 0;    // 0: nothing is added here
    LowRankOutput outputs[OUTPUTS_MAX] = {};
};

struct Adapter {
    std::string name;
    int32_t rank = 0; // the largest
    int64_t parameters = 0;
    int64_t bytes = 0;
    cpu::WeightKind kind = cpu::WeightKind::f32;
    std::vector<std::array<LowRankUpdate, ADAPTER_PLACES>> layers;
    AnonymousMemory memory;

    const LowRankUpdate& at(int32_t layer, AdapterPlace place) const {
        return layers[static_cast<size_t>(layer)][static_cast<size_t>(place)];
    }
};

struct Adapters {
    std::vector<Adapter> all; // row's number 1 is the first
    int32_t columns_max = 0;  // of `down` of any of them, in whole panels

    int32_t count() const { return static_cast<int32_t>(all.size()); }
};

// Reads, checks against the model and packs. exact: in fp32, whatever the files have. An error
// names the adapter and the tensor.
Status load_adapters(const std::vector<AdapterSource>& sources, const ModelConfig& config,
                     bool exact, Adapters* adapters);

} // namespace sublimate

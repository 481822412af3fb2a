// All weights of a model, packed once at load into one piece of memory in the order in which a step
// reads them. Several engines can share that piece: the first one packs, the others map it. Those
// of a packed file (packed_file.h) are there already and are only mapped.
//
// defines: FusedProjection, LayerWeights, expert_of, Weights, Sharing, ShareOptions, load_weights,
// plan_weights
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "../cpu/ops.h"
#include "../cpu/threads.h"
#include "config.h"
#include "gguf.h"
#include "memory.h"
#include "pack.h"
#include "packed_file.h"
#include "shared_memory.h"
#include "status.h"

namespace sublimate {

// Matrices that read the same activations; outputs lie side by side. Neighbours of one kind are one
// matrix.
struct FusedProjection {
    static constexpr int32_t PARTS_MAX = 3; // query, key, value

    int32_t part_count = 0;
    cpu::PackedMatrix parts[PARTS_MAX] = {};
    int32_t first_output[PARTS_MAX] = {};
    const float* bias = nullptr; // (outputs of all parts); null: none
};

struct LayerWeights {
    const float* attention_norm = nullptr;         // (hidden); null: the residual is read as it is
    const float* query_norm = nullptr;             // (head_dim), or (query columns); null: none
    const float* key_norm = nullptr;               // (head_dim), or (kv columns)
    FusedProjection query_key_value;               // (query, key, value columns; hidden)
    cpu::PackedMatrix attention_output = {};       // (hidden, query columns)
    const float* attention_post_norm = nullptr;    // (hidden); null: none
    const float* feed_forward_norm = nullptr;      // (hidden); null: as above
    const float* feed_forward_post_norm = nullptr; // (hidden); null: none
    cpu::PackedMatrix router = {};                 // (experts, hidden) f32; where there are experts
    cpu::PackedMatrix gate = {};                   // (feed_forward, hidden), of each expert in turn
    cpu::PackedMatrix up = {};                     // (feed_forward, hidden), likewise
    cpu::PackedMatrix down = {};                   // (hidden, feed_forward), likewise
};

// One of `experts` matrices whose rows follow each other in whole panels.
inline cpu::PackedMatrix expert_of(const cpu::PackedMatrix& all, int32_t expert, int32_t experts) {
    cpu::PackedMatrix one = all;
    one.rows = all.rows / experts;
    one.panels = all.panels / experts;
    one.data = all.data + int64_t{expert} * one.panels * all.panel_bytes;
    return one;
}

struct Weights {
    cpu::PackedMatrix embedding = {}; // (vocabulary, hidden)
    std::vector<LayerWeights> layers;
    const float* final_norm = nullptr; // (hidden)
    cpu::PackedMatrix head = {};       // (vocabulary, hidden); the embedding itself if tied
    AnonymousMemory own;               // one of the three holds them
    SharedMemory shared;
    std::shared_ptr<const FileMapping> file; // packed
    const std::byte* data = nullptr;
    int64_t bytes = 0;                // at data
    std::vector<PackedEntry> entries; // what lies there
    bool reused = false;              // another process has packed them

    bool have_half_scales() const; // any of them
};

// Whether to pack into memory that other processes can map. where_free: if that costs nothing,
// which means huge pages and a machine of one NUMA node (else all of it lies on one).
enum class Sharing : int32_t { never, where_free, always };

struct ShareOptions {
    Sharing sharing = Sharing::never;
    int fd = -1; // of what another process may have packed of this file; -1: none. Of no use: as -1
};

// Packs on all threads of `pool`. `progress` (may be empty) is called on the calling thread with
// the fraction done. Which kernels will read the weights makes no difference to how they lie.
Status load_weights(const Gguf& file, const ModelConfig& config, const WeightForm& form,
                    const ShareOptions& share, cpu::ThreadPool& pool,
                    const std::function<void(float)>& progress, Weights* weights);

// The same checks of names and shapes, and what the arena would take. A packed file has its own
// form.
Status plan_weights(const Gguf& file, const ModelConfig& config, const WeightForm& form,
                    int64_t* bytes);

} // namespace sublimate

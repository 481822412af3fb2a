// What a model is, read from its GGUF keys and checked against its tensors: its architecture
// (architecture.h), its sizes, scales and windows, and its rotary position embedding.
//
// defines: RopeScaling, RopeConfig, ModelConfig, ConfigOverrides, read_config, RopeTable,
// make_rope_table, RopeTables, make_rope_tables, is_rope_tensor
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "architecture.h"
#include "gguf.h"

namespace sublimate {

// linear: positions divided by `factor`. yarn: arXiv 2309.00071. llama3: per-frequency divisors
// that the file carries as the tensor rope_freqs.weight. longrope (arXiv 2402.13753): divisors too,
// of which the file carries two sets, for contexts up to the original one and beyond it.
enum class RopeScaling : int32_t { none = 0, linear = 1, yarn = 2, llama3 = 3, longrope = 4 };

const char* rope_scaling_name(RopeScaling scaling);

struct RopeConfig {
    RopeScaling scaling = RopeScaling::none;
    int32_t dimension = 0; // leading channels of a head that are rotated; even
    double base = 10000.0;
    double factor = 1.0;           // linear and yarn
    double original_context = 0.0; // yarn: tokens the model saw before it was stretched
    double attention_factor = 1.0; // yarn: multiplies the 0.1 ln(factor) + 1 of the paper;
                                   // longrope: of cosine and sine
    bool is_long = false;          // longrope: the context offered is beyond the original one
    double beta_fast = 32.0;
    double beta_slow = 1.0;
};

struct ModelConfig {
    const Architecture* architecture = &ARCHITECTURES[0];
    int32_t layers = 0;
    int32_t hidden = 0;
    int32_t feed_forward = 0; // columns; of each expert where there are any
    int32_t experts = 0;      // feed-forwards of a layer to choose from; 0: one, for all rows
    int32_t experts_used = 1; // by a row
    bool experts_renormalised = true; // the weights of those that a row uses sum to 1
    int32_t heads = 0;
    int32_t kv_heads = 0;
    int32_t head_dim = 0;
    int32_t vocabulary = 0;
    int32_t trained_context_length = 0;
    int32_t context_length = 0; // what this server offers
    float norm_epsilon = 0.0f;
    bool tied_embeddings = false; // the output matrix is the token embedding
    RopeConfig rope;
    RopeConfig window_rope; // of the layers with a window
    int32_t window = 0;     // positions that a row sees in such a layer, its own included; 0: none
    float embedding_scale = 1.0f;     // multiplies embeddings
    float residual_scale = 1.0f;      // multiplies what a block adds to the residual
    float attention_scale = 0.0f;     // multiplies scores
    float logit_scale = 1.0f;         // multiplies logits
    float attention_soft_cap = 0.0f;  // c: a score s becomes c * tanh(s / c); 0: none
    float logit_soft_cap = 0.0f;      // likewise of logits
    bool rotates_halves = false;      // as Architecture has it, or as the file says
    int32_t full_attention_every = 0; // likewise
    float norm_offset = 0.0f;         // added to what the file has of a norm's weights
    int64_t parameters = 0;

    int32_t query_columns() const { return heads * head_dim; }
    int32_t kv_columns() const { return kv_heads * head_dim; }
    int32_t group_heads() const { return heads / kv_heads; }
    bool has_window(int32_t layer) const {
        return window > 0 && (full_attention_every == 0 || (layer + 1) % full_attention_every != 0);
    }
    bool has_two_ropes() const { return window > 0 && architecture->window_rotation_base > 0.0; }
};

struct ConfigOverrides {
    int32_t context_length = 0; // 0: the file's
    std::string rope_scaling;   // "": the file's; none, linear, yarn
    double rope_factor = 0.0;   // 0: context_length / trained context
};

Status read_config(const Gguf& file, const ConfigOverrides& overrides, ModelConfig* config);

struct RopeTable {
    std::vector<float> inverse_frequencies; // (dimension / 2)
    float magnitude = 1.0f;                 // multiplies cosine and sine
};

Status make_rope_table(const Gguf& file, const RopeConfig& rope, RopeTable* table);

// Of the layers that see everything and of those with a window.
struct RopeTables {
    RopeTable full;
    RopeTable window;
};

Status make_rope_tables(const Gguf& file, const ModelConfig& config, RopeTables* tables);

// Whether a tensor is read here, and so is no weight.
bool is_rope_tensor(std::string_view name);

} // namespace sublimate

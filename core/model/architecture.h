// The architectures that are served: each one a few words on a decoder of pre-normed residual
// blocks, attention and a gated feed-forward, or a choice of them for each row. What a word means
// is in ModelConfig; forward.cpp has one place for each. docs/architectures.md says how to add one.
//
// defines: QueryKeyNorm, NormPlace, Activation, Architecture, ARCHITECTURES, find_architecture
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace sublimate {

// Queries and keys are normed before they are rotated: each head on its own, or all heads of a row
// as one vector.
enum class QueryKeyNorm : int32_t { none = 0, head = 1, row = 2 };

// Norms of a block: of what it reads, of what it adds to the residual, or of both.
enum class NormPlace : int32_t { before = 0, after = 1, around = 2 };

// Of the feed-forward's gate: x * sigmoid(x), or the tanh form of GELU (arXiv 1606.08415).
enum class Activation : int32_t { silu = 0, gelu = 1 };

struct Architecture {
    const char* name;   // general.architecture of a file, and the prefix of its keys
    const char* models; // for people
    // Files keep channel i of a head beside its partner i + dimension / 2 in rotation (as GPT-NeoX
    // does), not beside i + 1; rows are brought into pairs when they are packed.
    bool rotates_halves = false;
    bool query_key_value_bias = false;
    QueryKeyNorm query_key_norm = QueryKeyNorm::none;
    NormPlace norms = NormPlace::before;
    Activation activation = Activation::silu;
    bool embedding_times_root = false; // embeddings are multiplied by sqrt(hidden)
    bool has_scales = false;           // the file's keys embedding_scale, residual_scale, ...
    bool has_soft_caps = false;        // the file's keys attn_logit_softcapping, final_...
    bool fused_tensors = false;        // query, key, value are one tensor, gate and up another
    bool has_experts = false;          // the file's keys expert_count, expert_used_count, ...
    // Layers with a sliding window: all, where the file has one; or all but every n-th.
    int32_t full_attention_every = 0;
    // Rotation base of the layers with a window; 0: that of the others.
    double window_rotation_base = 0.0;
    double norm_epsilon = 0.0; // of files that do not tell it; 0: they have to
};

// Papers and model cards: llama arXiv 2302.13971 and 2407.21783, mistral 2310.06825, qwen2
// 2407.10671, qwen3 and qwen3moe 2505.09388, granite IBM Granite 3.0 (2024) with the scales of
// 2203.03466, olmo2 2501.00656, gemma 2403.08295, gemma2 2408.00118, gemma3 2503.19786, phi3
// 2404.14219.
constexpr Architecture ARCHITECTURES[] = {
    {.name = "llama", .models = "SmolLM2, Llama 2 and 3, Mistral, TinyLlama"},
    {.name = "mistral", .models = "Mistral"},
    {.name = "qwen2",
     .models = "Qwen 2 and 2.5",
     .rotates_halves = true,
     .query_key_value_bias = true},
    {.name = "qwen3",
     .models = "Qwen 3",
     .rotates_halves = true,
     .query_key_norm = QueryKeyNorm::head},
    {.name = "qwen3moe",
     .models = "Qwen 3 mixtures of experts",
     .rotates_halves = true,
     .query_key_norm = QueryKeyNorm::head,
     .has_experts = true},
    {.name = "granite", .models = "Granite 3", .has_scales = true},
    {.name = "olmo2",
     .models = "OLMo 2",
     .rotates_halves = true,
     .query_key_norm = QueryKeyNorm::row,
     .norms = NormPlace::after},
    {.name = "gemma",
     .models = "Gemma 1",
     .rotates_halves = true,
     .activation = Activation::gelu,
     .embedding_times_root = true},
    {.name = "gemma2",
     .models = "Gemma 2",
     .rotates_halves = true,
     .norms = NormPlace::around,
     .activation = Activation::gelu,
     .embedding_times_root = true,
     .has_soft_caps = true,
     .full_attention_every = 2,
     .norm_epsilon = 1e-6},
    {.name = "gemma3",
     .models = "Gemma 3",
     .rotates_halves = true,
     .query_key_norm = QueryKeyNorm::head,
     .norms = NormPlace::around,
     .activation = Activation::gelu,
     .embedding_times_root = true,
     .full_attention_every = 6,
     .window_rotation_base = 10000.0,
     .norm_epsilon = 1e-6},
    {.name = "phi3", .models = "Phi 3 and 4", .rotates_halves = true, .fused_tensors = true},
};

// nullptr for a name that is not in the table.
const Architecture* find_architecture(std::string_view name);

// "llama (SmolLM2, ...), qwen2 (...), ..."
std::string supported_architectures();

} // namespace sublimate

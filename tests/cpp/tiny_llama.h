// A small random llama model as a GGUF file: every size, weight type and extra key can be chosen.
//
// defines: TinyLlama, tiny_of_type, add_router, tiny_file, TemporaryFile, load_tiny
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <unistd.h>
#include <vector>

#include "core/check.h"
#include "core/model/k_quants.h"
#include "core/model/model.h"
#include "gguf_writer.h"
#include "ops_testing.h"

namespace sublimate::test {

using cpu::testing::Random;

struct TinyLlama {
    int32_t layers = 2;
    int32_t hidden = 64;
    int32_t feed_forward = 96;
    int32_t heads = 4;
    int32_t kv_heads = 2;
    int32_t head_dim = 16;
    int32_t vocabulary = 101; // no whole panels
    int32_t context = 256;
    bool tied = true;
    TensorType type = TensorType::q4_1;
    TensorType value_type = TensorType::q4_1; // of attn_v: other than `type`, it is not fused
    std::string architecture = "llama";
    int32_t window = 0;  // the file's sliding window; 0: it has none
    int32_t experts = 6; // where the architecture has any
    int32_t experts_used = 3;
    uint64_t seed = 1;
    std::function<void(GgufBytes&)> extra; // more keys and tensors
    std::string without;                   // a tensor left out
};

// Of that type throughout, with rows that its blocks divide.
inline TinyLlama tiny_of_type(TensorType type) {
    TinyLlama tiny;
    tiny.type = tiny.value_type = type;
    if (is_k_type(type)) {
        tiny.hidden = 256;
        tiny.head_dim = 64;
        tiny.feed_forward = 512;
    }
    return tiny;
}

inline uint16_t half_bits(float value) { // small numbers only; rounds down
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    if (std::fabs(value) < 0x1p-14f) { // subnormal
        return static_cast<uint16_t>((bits >> 16 & 0x8000u) |
                                     static_cast<uint32_t>(std::fabs(value) * 0x1p24f));
    }
    uint32_t exponent = (bits >> 23 & 0xFFu) - 112;
    CHECK(exponent < 31);
    return static_cast<uint16_t>((bits >> 16 & 0x8000u) | exponent << 10 | (bits >> 13 & 0x3FFu));
}

inline void append_half(std::vector<std::byte>& out, uint16_t half) {
    out.push_back(static_cast<std::byte>(half & 0xFFu));
    out.push_back(static_cast<std::byte>(half >> 8));
}

// Of any bytes; the halves make a weight's mean about zero and its deviation about `spread`.
inline void append_k_block(Random& random, TensorType type, float spread,
                           std::vector<std::byte>& out) {
    struct Form {
        int32_t bytes; // beside the halves
        float steps;   // deviation of the weights for d = 1
        float middle;  // of the integers: dmin for d = 1
    };
    Form form = {140, 255.0f, 7.5f};
    if (type == TensorType::q3_k) form = {108, 43.0f, 0.0f};
    if (type == TensorType::q2_k) form = {80, 13.9f, 1.5f};
    if (type == TensorType::iq4_xs) form = {134, 1246.0f, 0.0f};
    const bool at_the_end =
        type == TensorType::q2_k || type == TensorType::q3_k || type == TensorType::q6_k;
    if (type == TensorType::q5_k) form = {172, 525.0f, 15.5f};
    if (type == TensorType::q6_k) form = {208, 1366.0f, 0.0f};
    float d = random.between(0.5f, 1.5f) * spread / form.steps;
    auto halves = [&] {
        append_half(out, half_bits(d));
        if (form.middle > 0) append_half(out, half_bits(form.middle * d));
    };
    if (!at_the_end) halves();
    for (int32_t i = 0; i < form.bytes; i++)
        out.push_back(static_cast<std::byte>(random.below(256)));
    if (at_the_end) halves();
}

// Random weights of about 1 / sqrt(columns).
inline TensorSpec random_tensor(Random& random, const std::string& name, TensorType type,
                                int32_t columns, int32_t rows) {
    TensorSpec spec = {name, type, {static_cast<uint64_t>(columns)}, {}};
    if (rows > 0) spec.dimensions.push_back(static_cast<uint64_t>(rows));
    int64_t count = int64_t{columns} * std::max(rows, 1);
    float spread = 1.0f / std::sqrt(static_cast<float>(columns));
    if (is_k_type(type)) {
        for (int64_t block = 0; block < count / cpu::SUPER_COLUMNS; block++)
            append_k_block(random, type, spread, spec.data);
        return spec;
    }
    bool fifth_bits = type == TensorType::q5_0 || type == TensorType::q5_1;
    bool quantised = type == TensorType::q4_0 || type == TensorType::q4_1 ||
                     type == TensorType::q8_0 || type == TensorType::iq4_nl ||
                     type == TensorType::mxfp4 || fifth_bits;
    if (!quantised) {
        for (int64_t i = 0; i < count; i++) {
            float value = random.between(0.25f, 2.0f) * spread;
            if (rows > 0 && random.below(2) == 0) value = -value;
            uint32_t bits;
            std::memcpy(&bits, &value, sizeof bits);
            if (type == TensorType::f16) append_half(spec.data, half_bits(value));
            if (type != TensorType::f32 && type != TensorType::f16)
                append_half(spec.data, static_cast<uint16_t>(bits >> 16));
            for (int32_t b = 0; type == TensorType::f32 && b < 4; b++)
                spec.data.push_back(static_cast<std::byte>(bits >> 8 * b & 0xFFu));
        }
        return spec;
    }
    // Of a uniform integer, its deviation.
    float steps = type == TensorType::q8_0 ? 73.0f : (fifth_bits ? 9.2f : 4.6f);
    if (type == TensorType::iq4_nl) steps = 68.0f; // about, as of the next one
    if (type == TensorType::mxfp4) steps = 5.7f;
    int32_t bytes = type == TensorType::q8_0 ? 32 : (fifth_bits ? 20 : 16);
    for (int64_t block = 0; block < count / cpu::GROUP_COLUMNS; block++) {
        float scale = random.between(0.5f, 1.5f) * spread / steps;
        if (type == TensorType::mxfp4)
            spec.data.push_back(static_cast<std::byte>(128 + std::ilogb(scale)));
        else
            append_half(spec.data, half_bits(scale));
        if (type == TensorType::q4_1)
            append_half(spec.data, half_bits(-7.5f * scale * random.between(0.9f, 1.1f)));
        if (type == TensorType::q5_1)
            append_half(spec.data, half_bits(-15.5f * scale * random.between(0.9f, 1.1f)));
        for (int32_t i = 0; i < bytes; i++)
            spec.data.push_back(static_cast<std::byte>(random.below(256)));
    }
    return spec;
}

inline void add_tiny_keys(const TinyLlama& model, GgufBytes& file) {
    auto number = [&](const char* key, int32_t value) {
        file.value(model.architecture + "." + key, ValueType::u32, static_cast<uint32_t>(value));
    };
    const Architecture& architecture = *find_architecture(model.architecture);
    file.text("general.architecture", model.architecture);
    number("block_count", model.layers);
    number("context_length", model.context);
    number("embedding_length", model.hidden);
    number("feed_forward_length", model.feed_forward);
    number("attention.head_count", model.heads);
    number("attention.head_count_kv", model.kv_heads);
    number("attention.key_length", model.head_dim);
    number("attention.value_length", model.head_dim);
    auto real = [&](const char* key, float value) {
        file.value(model.architecture + "." + key, ValueType::f32, value);
    };
    real("attention.layer_norm_rms_epsilon", 1e-5f);
    if (model.window > 0) number("attention.sliding_window", model.window);
    if (architecture.has_scales) {
        real("embedding_scale", 3.0f);
        real("residual_scale", 0.5f);
        real("attention.scale", 0.125f);
        real("logit_scale", 4.0f);
    }
    if (architecture.has_experts) {
        number("expert_count", model.experts);
        number("expert_used_count", model.experts_used);
        number("expert_feed_forward_length", model.feed_forward);
    }
    if (architecture.has_soft_caps) {
        real("attn_logit_softcapping", 2.0f);
        real("final_logit_softcapping", 5.0f);
    }
}

// So wide apart that a row's last expert weighs little, as in models that were trained: which one
// it is turns on the last bits where two are as good, and then it must not matter.
inline void add_router(Random& random, const TinyLlama& model, const std::string& name,
                       GgufBytes& file) {
    TensorSpec spec = {name, TensorType::f32, {}, {}};
    spec.dimensions = {static_cast<uint64_t>(model.hidden), static_cast<uint64_t>(model.experts)};
    for (int32_t i = 0; i < model.hidden * model.experts; i++) {
        float value = random.between(-6.0f, 6.0f) / std::sqrt(static_cast<float>(model.hidden));
        const auto bytes = std::bit_cast<std::array<std::byte, sizeof value>>(value);
        spec.data.insert(spec.data.end(), bytes.begin(), bytes.end());
    }
    if (name != model.without + ".weight") file.tensor(std::move(spec));
}

inline std::vector<std::byte> tiny_file(const TinyLlama& model) {
    Random random(model.seed);
    GgufBytes file;
    add_tiny_keys(model, file);
    const Architecture& architecture = *find_architecture(model.architecture);
    auto add = [&](const std::string& name, TensorType type, int32_t columns, int32_t rows) {
        TensorSpec spec = random_tensor(random, name + ".weight", type, columns, rows);
        if (name != model.without) file.tensor(std::move(spec));
    };
    int32_t query = model.heads * model.head_dim;
    int32_t kv = model.kv_heads * model.head_dim;
    add("token_embd", model.type, model.hidden, model.vocabulary);
    for (int32_t i = 0; i < model.layers; i++) {
        std::string block = "blk." + std::to_string(i) + ".";
        auto vector = [&](const char* name, int32_t count) {
            TensorSpec spec = random_tensor(random, block + name, TensorType::f32, count, 0);
            file.tensor(std::move(spec));
        };
        if (architecture.norms != NormPlace::after)
            add(block + "attn_norm", TensorType::f32, model.hidden, 0);
        if (architecture.fused_tensors) {
            add(block + "attn_qkv", model.type, model.hidden, query + 2 * kv);
        } else {
            add(block + "attn_q", model.type, model.hidden, query);
            add(block + "attn_k", model.type, model.hidden, kv);
            add(block + "attn_v", model.value_type, model.hidden, kv);
        }
        if (architecture.query_key_value_bias) {
            vector("attn_q.bias", query);
            vector("attn_k.bias", kv);
            vector("attn_v.bias", kv);
        }
        bool each = architecture.query_key_norm == QueryKeyNorm::head;
        if (architecture.query_key_norm != QueryKeyNorm::none) {
            vector("attn_q_norm.weight", each ? model.head_dim : query);
            vector("attn_k_norm.weight", each ? model.head_dim : kv);
        }
        add(block + "attn_output", model.type, query, model.hidden);
        if (architecture.norms != NormPlace::before) {
            vector("post_attention_norm.weight", model.hidden);
            vector("post_ffw_norm.weight", model.hidden);
        }
        if (architecture.norms != NormPlace::after)
            add(block + "ffn_norm", TensorType::f32, model.hidden, 0);
        if (architecture.has_experts) {
            add_router(random, model, block + "ffn_gate_inp.weight", file);
            int32_t inner = model.experts * model.feed_forward;
            add(block + "ffn_gate_exps", model.type, model.hidden, inner);
            add(block + "ffn_up_exps", model.type, model.hidden, inner);
            add(block + "ffn_down_exps", model.type, model.feed_forward,
                model.experts * model.hidden);
            continue;
        }
        if (!architecture.fused_tensors)
            add(block + "ffn_gate", model.type, model.hidden, model.feed_forward);
        add(block + "ffn_up", model.type, model.hidden,
            (architecture.fused_tensors ? 2 : 1) * model.feed_forward);
        add(block + "ffn_down", model.type, model.feed_forward, model.hidden);
    }
    add("output_norm", TensorType::f32, model.hidden, 0);
    if (!model.tied) add("output", model.type, model.hidden, model.vocabulary);
    if (model.extra) model.extra(file);
    return file.bytes();
}

class TemporaryFile {
public:
    explicit TemporaryFile(const std::vector<std::byte>& bytes) {
        std::string name = (std::filesystem::temp_directory_path() / "tiny-XXXXXX").string();
        int descriptor = mkstemp(name.data());
        CHECK(descriptor >= 0);
        close(descriptor);
        path_ = name;
        std::ofstream out(path_, std::ios::binary);
        out.write(reinterpret_cast<const char*>(bytes.data()),
                  static_cast<std::streamsize>(bytes.size()));
    }
    ~TemporaryFile() { std::filesystem::remove(path_); }
    TemporaryFile(const TemporaryFile&) = delete;
    TemporaryFile& operator=(const TemporaryFile&) = delete;
    const std::string& path() const { return path_; }

private:
    std::string path_;
};

// Loads with 1 MiB of KV unless the options say otherwise. *model is empty after an error.
inline Status load_tiny(const TinyLlama& tiny, LoadOptions options,
                        std::shared_ptr<LoadedModel>* model) {
    TemporaryFile file(tiny_file(tiny));
    if (options.kv_bytes == 0) options.kv_bytes = 1 << 20;
    if (options.threads == 0) options.threads = 2;
    return load_model(file.path(), options, model);
}

} // namespace sublimate::test

// Random low-rank adapters of a tiny model, as a GGUF file, as PEFT's tensors, and merged into the
// model's own weights: three forms of the same numbers.
//
// defines: TinyAdapter, AdapterMatrix, adapter_matrices, adapter_file, DescribedAdapter,
// merged_file
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "core/model/adapters.h"
#include "tiny_llama.h"

namespace sublimate::test {

struct TinyAdapter {
    int32_t rank = 5; // no whole panel
    float alpha = 7.5f;
    TensorType type = TensorType::f32;
    uint64_t seed = 11;
    std::vector<std::string> modules; // empty: all that the architecture has
    std::function<void(GgufBytes&)> extra;
    std::string general_type = "adapter";
    std::string adapter_type = "lora";
};

// A (rank, columns) and B (rows, rank) of one matrix of the model's file.
struct AdapterMatrix {
    std::string name; // blk.0.attn_q.weight
    int32_t heads;    // whose rows rotate; 0: none do
    int32_t rows;
    int32_t columns;
    std::vector<float> a;
    std::vector<float> b;
};

inline std::vector<AdapterMatrix> adapter_matrices(const TinyLlama& model,
                                                   const TinyAdapter& adapter) {
    struct Shape {
        const char* module;
        int32_t heads, rows, columns;
    };
    int32_t query = model.heads * model.head_dim;
    int32_t kv = model.kv_heads * model.head_dim;
    int32_t inner = model.feed_forward;
    int32_t hidden = model.hidden;
    std::vector<Shape> shapes = {{"attn_q", model.heads, query, hidden},
                                 {"attn_k", model.kv_heads, kv, hidden},
                                 {"attn_v", 0, kv, hidden},
                                 {"attn_output", 0, hidden, query},
                                 {"ffn_gate", 0, inner, hidden},
                                 {"ffn_up", 0, inner, hidden},
                                 {"ffn_down", 0, hidden, inner}};
    if (find_architecture(model.architecture)->fused_tensors)
        shapes = {{"attn_qkv", 0, query + 2 * kv, hidden},
                  {"attn_output", 0, hidden, query},
                  {"ffn_up", 0, 2 * inner, hidden},
                  {"ffn_down", 0, hidden, inner}};
    if (find_architecture(model.architecture)->has_experts) shapes.resize(4); // attention's
    Random random(adapter.seed);
    std::vector<AdapterMatrix> all;
    for (int32_t layer = 0; layer < model.layers; layer++)
        for (const Shape& shape : shapes) {
            bool wanted = adapter.modules.empty();
            for (const std::string& module : adapter.modules) wanted |= module == shape.module;
            if (!wanted) continue;
            std::string name = "blk." + std::to_string(layer) + "." + shape.module + ".weight";
            float spread = 1.0f / std::sqrt(static_cast<float>(shape.columns));
            all.push_back({name, shape.heads, shape.rows, shape.columns,
                           random.floats(int64_t{adapter.rank} * shape.columns, -spread, spread),
                           random.floats(int64_t{adapter.rank} * shape.rows, -0.5f, 0.5f)});
            // Exact in sixteen bits too.
            for (std::vector<float>* part : {&all.back().a, &all.back().b})
                for (float& value : *part) {
                    uint32_t bits;
                    std::memcpy(&bits, &value, sizeof bits);
                    bits &= 0xFFFF0000u;
                    std::memcpy(&value, &bits, sizeof bits);
                }
        }
    return all;
}

inline std::vector<std::byte> adapter_bytes(const std::vector<float>& floats, TensorType type) {
    std::vector<std::byte> bytes;
    for (float value : floats) {
        uint32_t bits;
        std::memcpy(&bits, &value, sizeof bits);
        if (type == TensorType::f16) append_half(bytes, half_bits(value));
        if (type == TensorType::bf16) append_half(bytes, static_cast<uint16_t>(bits >> 16));
        for (int32_t b = 0; type == TensorType::f32 && b < 4; b++)
            bytes.push_back(static_cast<std::byte>(bits >> 8 * b & 0xFFu));
    }
    return bytes;
}

inline std::vector<std::byte> adapter_file(const TinyLlama& model, const TinyAdapter& adapter) {
    GgufBytes file;
    file.text("general.architecture", model.architecture);
    file.text("general.type", adapter.general_type);
    file.text("adapter.type", adapter.adapter_type);
    file.value("adapter.lora.alpha", ValueType::f32, adapter.alpha);
    for (const AdapterMatrix& m : adapter_matrices(model, adapter)) {
        auto rank = static_cast<uint64_t>(adapter.rank);
        file.tensor({m.name + ".lora_a",
                     adapter.type,
                     {static_cast<uint64_t>(m.columns), rank},
                     adapter_bytes(m.a, adapter.type)});
        file.tensor({m.name + ".lora_b",
                     adapter.type,
                     {rank, static_cast<uint64_t>(m.rows)},
                     adapter_bytes(m.b, adapter.type)});
    }
    if (adapter.extra) adapter.extra(file);
    return file.bytes();
}

// The same with nothing but numbers in the file, and rows as PEFT's models have them: where GGUF
// files keep rotating channels side by side, those have them half a head apart.
struct DescribedAdapter {
    std::vector<std::byte> bytes;
    std::vector<AdapterTensor> tensors;

    DescribedAdapter(const TinyLlama& model, const TinyAdapter& adapter) {
        bool halves = find_architecture(model.architecture)->rotates_halves;
        for (AdapterMatrix& m : adapter_matrices(model, adapter)) {
            auto width = static_cast<size_t>(adapter.rank);
            std::vector<float> b = m.b;
            for (int32_t row = 0; m.heads > 0 && !halves && row < m.rows; row++) {
                int32_t within = row % model.head_dim;
                int32_t half = within / 2 + within % 2 * (model.head_dim / 2);
                auto to = static_cast<size_t>(row - within + half) * width;
                auto from = static_cast<size_t>(row) * width;
                for (size_t i = 0; i < width; i++) b[to + i] = m.b[from + i];
            }
            auto rank = static_cast<uint64_t>(adapter.rank);
            double factor = double(adapter.alpha) / double(adapter.rank);
            add("A of " + m.name, m.name + ".lora_a", adapter.type, rank, m.columns, m.a, factor);
            add("B of " + m.name, m.name + ".lora_b", adapter.type, static_cast<uint64_t>(m.rows),
                adapter.rank, b, factor);
        }
    }

private:
    void add(const std::string& name, const std::string& target, TensorType type, uint64_t rows,
             int32_t columns, const std::vector<float>& values, double factor) {
        tensors.push_back(
            {name, target, type, rows, static_cast<uint64_t>(columns), bytes.size(), factor});
        std::vector<std::byte> more = adapter_bytes(values, type);
        bytes.insert(bytes.end(), more.begin(), more.end());
    }
};

// The model's file, of f32, with W + factor * B A for W.
inline std::vector<std::byte> merged_file(const TinyLlama& model, const TinyAdapter& adapter) {
    CHECK(model.type == TensorType::f32 && model.value_type == TensorType::f32);
    std::vector<std::byte> bytes = tiny_file(model);
    Gguf file;
    CHECK(Gguf::parse(bytes, &file).ok());
    double factor = adapter.alpha == 0.0f ? 1.0 : double(adapter.alpha) / double(adapter.rank);
    for (const AdapterMatrix& m : adapter_matrices(model, adapter)) {
        const GgufTensor* tensor = file.tensor(m.name);
        CHECK(tensor != nullptr && tensor->rows() == static_cast<uint64_t>(m.rows));
        std::byte* data = bytes.data() + (tensor->data.data() - bytes.data());
        for (int32_t row = 0; row < m.rows; row++)
            for (int32_t column = 0; column < m.columns; column++) {
                double sum = 0.0;
                for (int32_t r = 0; r < adapter.rank; r++)
                    sum += double(m.b[static_cast<size_t>(row * adapter.rank + r)]) *
                           double(m.a[static_cast<size_t>(r * m.columns + column)]);
                std::byte* at = data + (int64_t{row} * m.columns + column) * int64_t{sizeof(float)};
                float weight;
                std::memcpy(&weight, at, sizeof weight);
                weight = static_cast<float>(double(weight) + factor * sum);
                std::memcpy(at, &weight, sizeof weight);
            }
    }
    return bytes;
}

} // namespace sublimate::test

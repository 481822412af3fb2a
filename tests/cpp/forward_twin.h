// Driving the model step by hand, and its slow twin: the plain formulas in double precision.
//
// defines: Part, Driver, twin_logits, random_tokens, ropes_of, worst_error, same_bits
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "core/model/pack.h"
#include "tiny_llama.h"

namespace sublimate::test {

using Logits = std::vector<float>; // (vocabulary)

// Consecutive positions of one sequence in a step.
struct Part {
    int32_t sequence;
    int32_t first_position;
    int32_t count;
    Arithmetic arithmetic = Arithmetic::prompt;
    int32_t adapter = 0;
};

// Sequences of one length with their own pages. Pages start as NaN, so that reading a lane that no
// row wrote shows.
class Driver {
public:
    Driver(LoadedModel& model, std::vector<std::vector<int32_t>> tokens)
        : model_(model), tokens_(std::move(tokens)) {
        pages_ = static_cast<int32_t>(tokens_.front().size()) / limits::PAGE_TOKENS + 1;
        const cpu::KvArena& kv = model.model->kv();
        CHECK(pages_ * static_cast<int32_t>(tokens_.size()) <= kv.pages);
        std::memset(kv.memory.data(), 0xFF,
                    static_cast<size_t>(kv.layer_bytes * model.config.layers));
        for (int32_t s = 0; s < static_cast<int32_t>(tokens_.size()); s++)
            for (int32_t p = 0; p < pages_; p++)
                table_.push_back(p * static_cast<int32_t>(tokens_.size()) + s);
    }

    // Makes page `index` of `sequence` the page of another sequence.
    void share_page(int32_t sequence, int32_t index, int32_t owner) {
        table_[static_cast<size_t>(sequence * pages_ + index)] =
            table_[static_cast<size_t>(owner * pages_ + index)];
    }

    // One step; the logits of every row, in row order.
    std::vector<Logits> step(const std::vector<Part>& parts) {
        std::vector<int32_t> tokens, positions, logit_rows;
        std::vector<Segment> segments;
        for (const Part& part : parts) {
            segments.push_back({part.sequence, static_cast<int32_t>(tokens.size()), part.count,
                                part.first_position, part.first_position + part.count,
                                part.arithmetic, part.adapter, 0, 0});
            for (int32_t i = 0; i < part.count; i++) {
                int32_t position = part.first_position + i;
                logit_rows.push_back(static_cast<int32_t>(tokens.size()));
                positions.push_back(position);
                tokens.push_back(
                    tokens_[static_cast<size_t>(part.sequence)][static_cast<size_t>(position)]);
            }
        }
        int32_t rows = static_cast<int32_t>(tokens.size());
        Step step = {rows,
                     static_cast<int32_t>(segments.size()),
                     rows,
                     pages_,
                     tokens.data(),
                     positions.data(),
                     segments.data(),
                     logit_rows.data(),
                     table_.data()};
        const float* logits = model_.model->forward(step);
        std::vector<Logits> result;
        for (int32_t r = 0; r < rows; r++, logits += model_.config.vocabulary)
            result.emplace_back(logits, logits + model_.config.vocabulary);
        return result;
    }

    // All positions of one sequence alone, in chunks of at most `chunk` rows.
    std::vector<Logits> alone(int32_t sequence, int32_t chunk,
                              Arithmetic arithmetic = Arithmetic::prompt, int32_t adapter = 0) {
        std::vector<Logits> all;
        int32_t length = static_cast<int32_t>(tokens_[static_cast<size_t>(sequence)].size());
        for (int32_t at = 0; at < length; at += chunk) {
            int32_t count = std::min(chunk, length - at);
            auto some = step({{sequence, at, count, arithmetic, adapter}});
            all.insert(all.end(), some.begin(), some.end());
        }
        return all;
    }

private:
    LoadedModel& model_;
    std::vector<std::vector<int32_t>> tokens_;
    int32_t pages_ = 0;
    std::vector<int32_t> table_;
};

inline std::vector<double> twin_product(const cpu::PackedMatrix& matrix,
                                        const std::vector<double>& x) {
    std::vector<float> row(x.size());
    std::vector<double> out;
    for (int32_t r = 0; r < matrix.rows; r++) {
        unpack_row(matrix, r, row.data());
        double sum = 0.0;
        for (size_t c = 0; c < x.size(); c++) sum += double(row[c]) * x[c];
        out.push_back(sum);
    }
    return out;
}

inline std::vector<double> twin_norm(const std::vector<double>& x, const float* weight,
                                     double epsilon) {
    double sum = 0.0;
    for (double value : x) sum += value * value;
    std::vector<double> out(x.size());
    for (size_t c = 0; c < x.size(); c++)
        out[c] = x[c] / std::sqrt(sum / double(x.size()) + epsilon) * double(weight[c]);
    return out;
}

inline void twin_rope(std::vector<double>& x, size_t begin, size_t end, int32_t head_dim,
                      int32_t position, const RopeTable& rope) {
    for (size_t head = begin; head < end; head += static_cast<size_t>(head_dim))
        for (size_t i = 0; i < rope.inverse_frequencies.size(); i++) {
            double angle = double(position) * double(rope.inverse_frequencies[i]);
            double cosine = std::cos(angle) * double(rope.magnitude);
            double sine = std::sin(angle) * double(rope.magnitude);
            double even = x[head + 2 * i];
            double odd = x[head + 2 * i + 1];
            x[head + 2 * i] = even * cosine - odd * sine;
            x[head + 2 * i + 1] = odd * cosine + even * sine;
        }
}

// History of one layer: roped keys and values of all positions so far.
using History = std::vector<std::vector<double>>;

inline double twin_cap(double x, float cap) {
    return cap == 0.0f ? x : double(cap) * std::tanh(x / double(cap));
}

inline std::vector<double> twin_attention(const ModelConfig& config, size_t layer,
                                          const std::vector<double>& projected,
                                          const History& history) {
    size_t head_dim = static_cast<size_t>(config.head_dim);
    size_t queries = static_cast<size_t>(config.query_columns());
    size_t keys = static_cast<size_t>(config.kv_columns());
    size_t first = 0;
    size_t window = static_cast<size_t>(config.window);
    if (config.has_window(static_cast<int32_t>(layer)) && history.size() > window)
        first = history.size() - window;
    std::vector<double> out(queries);
    for (size_t head = 0; head < static_cast<size_t>(config.heads); head++) {
        size_t kv = head / static_cast<size_t>(config.group_heads()) * head_dim;
        std::vector<double> weights(history.size());
        double total = 0.0;
        for (size_t t = first; t < history.size(); t++) {
            double score = 0.0;
            for (size_t c = 0; c < head_dim; c++)
                score += projected[head * head_dim + c] * history[t][queries + kv + c];
            score *= double(config.attention_scale);
            weights[t] = std::exp(twin_cap(score, config.attention_soft_cap));
            total += weights[t];
        }
        for (size_t t = first; t < history.size(); t++)
            for (size_t c = 0; c < head_dim; c++)
                out[head * head_dim + c] +=
                    weights[t] / total * history[t][queries + keys + kv + c];
    }
    return out;
}

// `heads` heads of x from `begin` on, normed in place.
inline void twin_head_norm(const ModelConfig& config, std::vector<double>& x, size_t begin,
                           int32_t heads, const float* weight) {
    bool each = config.architecture->query_key_norm == QueryKeyNorm::head;
    auto count = static_cast<size_t>(each ? config.head_dim : heads * config.head_dim);
    for (size_t at = begin; at < begin + static_cast<size_t>(heads * config.head_dim);
         at += count) {
        auto from = x.begin() + static_cast<std::ptrdiff_t>(at);
        std::vector<double> part(from, from + static_cast<std::ptrdiff_t>(count));
        part = twin_norm(part, weight, double(config.norm_epsilon));
        std::copy(part.begin(), part.end(), from);
    }
}

// Queries, keys and values of one position, rotated.
inline std::vector<double> twin_projections(const ModelConfig& config, const LayerWeights& layer,
                                            const std::vector<double>& x, int32_t position,
                                            const RopeTable& rope) {
    std::vector<double> all;
    for (int32_t p = 0; p < layer.query_key_value.part_count; p++) {
        auto part = twin_product(layer.query_key_value.parts[p], x);
        all.insert(all.end(), part.begin(), part.end());
    }
    if (layer.query_key_value.bias != nullptr)
        for (size_t i = 0; i < all.size(); i++) all[i] += double(layer.query_key_value.bias[i]);
    auto queries = static_cast<size_t>(config.query_columns());
    if (layer.query_norm != nullptr) {
        twin_head_norm(config, all, 0, config.heads, layer.query_norm);
        twin_head_norm(config, all, queries, config.kv_heads, layer.key_norm);
    }
    twin_rope(all, 0, queries + static_cast<size_t>(config.kv_columns()), config.head_dim, position,
              rope);
    return all;
}

inline std::vector<double> twin_gated(const ModelConfig& config, const cpu::PackedMatrix& gate_rows,
                                      const cpu::PackedMatrix& up_rows,
                                      const cpu::PackedMatrix& down_rows,
                                      const std::vector<double>& x) {
    auto gate = twin_product(gate_rows, x);
    auto up = twin_product(up_rows, x);
    bool gelu = config.architecture->activation == Activation::gelu;
    for (size_t c = 0; c < gate.size(); c++) {
        double g = gate[c];
        double silu = g / (1.0 + std::exp(-g));
        double tanh_form =
            0.5 * g * (1.0 + std::tanh(std::sqrt(2.0 / M_PI) * (g + 0.044715 * g * g * g)));
        gate[c] = (gelu ? tanh_form : silu) * up[c];
    }
    return twin_product(down_rows, gate);
}

// Of the softmax over all experts, the largest shares; of each its expert.
inline std::vector<std::pair<double, int32_t>> twin_routing(const ModelConfig& config,
                                                            const std::vector<double>& logits) {
    std::vector<std::pair<double, int32_t>> shares;
    double total = 0.0;
    for (double logit : logits) total += std::exp(logit);
    for (size_t e = 0; e < logits.size(); e++)
        shares.push_back({std::exp(logits[e]) / total, static_cast<int32_t>(e)});
    std::stable_sort(shares.begin(), shares.end(),
                     [](const auto& a, const auto& b) { return a.first > b.first; });
    shares.resize(static_cast<size_t>(config.experts_used));
    total = 0.0;
    for (const auto& share : shares) total += share.first;
    if (config.experts_renormalised)
        for (auto& share : shares) share.first /= total;
    return shares;
}

inline std::vector<double> twin_feed_forward(const ModelConfig& config, const LayerWeights& layer,
                                             const std::vector<double>& x) {
    if (config.experts == 0) return twin_gated(config, layer.gate, layer.up, layer.down, x);
    std::vector<double> sum(x.size());
    for (const auto& [share, expert] : twin_routing(config, twin_product(layer.router, x))) {
        auto of_expert = [&, e = expert](const cpu::PackedMatrix& all) {
            return expert_of(all, e, config.experts);
        };
        auto said = twin_gated(config, of_expert(layer.gate), of_expert(layer.up),
                               of_expert(layer.down), x);
        for (size_t c = 0; c < sum.size(); c++) sum[c] += share * said[c];
    }
    return sum;
}

// Logits of every position of one sequence. `ropes` are the model's tables.
inline std::vector<std::vector<double>>
twin_logits(const LoadedModel& model, const RopeTables& ropes, const std::vector<int32_t>& tokens) {
    const ModelConfig& config = model.config;
    double epsilon = double(config.norm_epsilon);
    auto normed = [&](const std::vector<double>& x, const float* weight) {
        return weight == nullptr ? x : twin_norm(x, weight, epsilon);
    };
    auto add = [&](std::vector<double>& x, const std::vector<double>& branch) {
        for (size_t c = 0; c < x.size(); c++) x[c] += double(config.residual_scale) * branch[c];
    };
    std::vector<History> histories(static_cast<size_t>(config.layers));
    std::vector<std::vector<double>> result;
    for (size_t position = 0; position < tokens.size(); position++) {
        std::vector<float> embedded(static_cast<size_t>(config.hidden));
        unpack_row(model.weights.embedding, tokens[position], embedded.data());
        std::vector<double> x(embedded.begin(), embedded.end());
        for (double& value : x) value *= double(config.embedding_scale);
        for (size_t l = 0; l < histories.size(); l++) {
            const LayerWeights& layer = model.weights.layers[l];
            bool windowed = config.has_two_ropes() && config.has_window(static_cast<int32_t>(l));
            histories[l].push_back(twin_projections(config, layer, normed(x, layer.attention_norm),
                                                    static_cast<int32_t>(position),
                                                    windowed ? ropes.window : ropes.full));
            auto attended =
                twin_product(layer.attention_output,
                             twin_attention(config, l, histories[l].back(), histories[l]));
            add(x, normed(attended, layer.attention_post_norm));
            auto forwarded = twin_feed_forward(config, layer, normed(x, layer.feed_forward_norm));
            add(x, normed(forwarded, layer.feed_forward_post_norm));
        }
        auto logits =
            twin_product(model.weights.head, twin_norm(x, model.weights.final_norm, epsilon));
        for (double& logit : logits)
            logit = twin_cap(logit * double(config.logit_scale), config.logit_soft_cap);
        result.push_back(logits);
    }
    return result;
}

inline std::vector<std::vector<int32_t>> random_tokens(int32_t sequences, int32_t length) {
    Random random(5);
    std::vector<std::vector<int32_t>> tokens(static_cast<size_t>(sequences));
    for (auto& sequence : tokens)
        for (int32_t i = 0; i < length; i++) sequence.push_back(random.below(101));
    return tokens;
}

inline RopeTables ropes_of(const TinyLlama& tiny, const ModelConfig& config) {
    std::vector<std::byte> bytes = tiny_file(tiny);
    Gguf file;
    RopeTables tables;
    CHECK(Gguf::parse(bytes, &file).ok() && make_rope_tables(file, config, &tables).ok());
    return tables;
}

inline double worst_error(const std::vector<Logits>& logits,
                          const std::vector<std::vector<double>>& twin) {
    double worst = 0.0;
    for (size_t p = 0; p < twin.size(); p++) {
        double largest = 0.0;
        double error = 0.0;
        for (size_t i = 0; i < twin[p].size(); i++) {
            largest = std::max(largest, std::fabs(twin[p][i]));
            double difference = std::fabs(double(logits[p][i]) - twin[p][i]);
            error = difference <= error ? error : difference; // a NaN stays
        }
        worst = error / largest <= worst ? worst : error / largest;
    }
    return worst;
}

inline bool same_bits(const Logits& a, const Logits& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

inline bool same_bits(const std::vector<Logits>& a, const std::vector<Logits>& b) {
    if (a.size() != b.size()) return false;
    for (size_t i = 0; i < a.size(); i++)
        if (!same_bits(a[i], b[i])) return false;
    return true;
}

} // namespace sublimate::test

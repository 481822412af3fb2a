// Reading hyper-parameters. Every key that changes what the model computes is either understood or
// refused.
#include "config.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace sublimate {

namespace {

constexpr const char* SUPPORTED_ARCHITECTURES =
    "supported is llama (SmolLM2, Llama 2 and 3, Mistral, TinyLlama)";
constexpr double ROPE_FACTOR_MAX = 1024.0;
constexpr int32_t HEAD_DIM_MULTIPLE = 16;

Status missing(const char* key) {
    return Status::error(std::string("the file has no key '") + key + "'");
}

Status read_required(const Gguf& file, const char* key, int64_t maximum, int32_t* result) {
    if (file.find(key) == nullptr) return missing(key);
    int64_t value = 0;
    RETURN_IF_ERROR(file.integer(key, 1, maximum, &value));
    *result = static_cast<int32_t>(value);
    return Status::success();
}

Status read_optional(const Gguf& file, const char* key, int64_t maximum, int32_t* result) {
    return file.find(key) == nullptr ? Status::success()
                                     : read_required(file, key, maximum, result);
}

Status read_sizes(const Gguf& file, ModelConfig* config) {
    using namespace limits;
    RETURN_IF_ERROR(read_required(file, "llama.block_count", LAYERS_MAX, &config->layers));
    RETURN_IF_ERROR(read_required(file, "llama.embedding_length", HIDDEN_MAX, &config->hidden));
    RETURN_IF_ERROR(
        read_required(file, "llama.feed_forward_length", HIDDEN_MAX, &config->feed_forward));
    RETURN_IF_ERROR(read_required(file, "llama.attention.head_count", HEADS_MAX, &config->heads));
    config->kv_heads = config->heads;
    RETURN_IF_ERROR(
        read_optional(file, "llama.attention.head_count_kv", HEADS_MAX, &config->kv_heads));
    if (config->heads % config->kv_heads != 0)
        return Status::error(std::to_string(config->heads) + " heads cannot share " +
                             std::to_string(config->kv_heads) + " KV heads");
    config->head_dim = config->hidden / config->heads;
    RETURN_IF_ERROR(
        read_optional(file, "llama.attention.key_length", HEAD_DIM_MAX, &config->head_dim));
    int32_t value_length = config->head_dim;
    RETURN_IF_ERROR(
        read_optional(file, "llama.attention.value_length", HEAD_DIM_MAX, &value_length));
    if (value_length != config->head_dim)
        return Status::error("keys and values of different length are not supported");
    if (config->head_dim < HEAD_DIM_MULTIPLE || config->head_dim > HEAD_DIM_MAX ||
        config->head_dim % HEAD_DIM_MULTIPLE != 0)
        return Status::error("a head dimension of " + std::to_string(config->head_dim) +
                             " is not supported (multiples of 16 up to " +
                             std::to_string(HEAD_DIM_MAX) + " are)");
    const char* epsilon_key = "llama.attention.layer_norm_rms_epsilon";
    if (file.find(epsilon_key) == nullptr) return missing(epsilon_key);
    double epsilon = 0.0;
    RETURN_IF_ERROR(file.number(epsilon_key, &epsilon));
    if (epsilon < 0.0 || epsilon > 1.0)
        return Status::error(std::string("key '") + epsilon_key + "' is out of range");
    config->norm_epsilon = static_cast<float>(epsilon);
    int64_t experts = 0;
    RETURN_IF_ERROR(file.integer("llama.expert_count", 0, INT32_MAX, &experts));
    if (experts > 0) return Status::error("mixtures of experts are not supported");
    return Status::success();
}

Status read_rope(const Gguf& file, ModelConfig* config) {
    RopeConfig& rope = config->rope;
    rope.dimension = config->head_dim;
    RETURN_IF_ERROR(
        read_optional(file, "llama.rope.dimension_count", config->head_dim, &rope.dimension));
    if (rope.dimension % 2 != 0) return Status::error("llama.rope.dimension_count is odd");
    RETURN_IF_ERROR(file.number("llama.rope.freq_base", &rope.base));
    if (!(rope.base > 1.0)) return Status::error("llama.rope.freq_base must be above 1");
    std::string_view scaling = "none";
    RETURN_IF_ERROR(file.string("llama.rope.scaling.type", &scaling));
    RETURN_IF_ERROR(file.number("llama.rope.scaling.factor", &rope.factor));
    double old_linear_factor = 1.0; // the key that older files have in place of scaling.type
    RETURN_IF_ERROR(file.number("llama.rope.scale_linear", &old_linear_factor));
    if (scaling == "linear") {
        rope.scaling = RopeScaling::linear;
    } else if (scaling == "yarn") {
        rope.scaling = RopeScaling::yarn;
    } else if (scaling != "none") {
        return Status::error("rope scaling '" + std::string(scaling) +
                             "' is not supported (none, linear, yarn and Llama 3's are)");
    } else if (file.tensor("rope_freqs.weight") != nullptr) {
        rope.scaling = RopeScaling::llama3;
    } else if (old_linear_factor != 1.0) {
        rope.scaling = RopeScaling::linear;
        rope.factor = old_linear_factor;
    }
    if (!(rope.factor >= 1.0 && rope.factor <= ROPE_FACTOR_MAX)) {
        if (rope.scaling == RopeScaling::linear || rope.scaling == RopeScaling::yarn)
            return Status::error("llama.rope.scaling.factor must be between 1 and 1024");
        rope.factor = 1.0;
    }
    int32_t original = config->trained_context_length;
    RETURN_IF_ERROR(
        read_optional(file, "llama.rope.scaling.original_context_length", INT32_MAX, &original));
    rope.original_context = original;
    RETURN_IF_ERROR(file.number("llama.rope.scaling.attn_factor", &rope.attention_factor));
    RETURN_IF_ERROR(file.number("llama.rope.scaling.yarn_beta_fast", &rope.beta_fast));
    RETURN_IF_ERROR(file.number("llama.rope.scaling.yarn_beta_slow", &rope.beta_slow));
    if (!(rope.attention_factor > 0.0) || !(rope.beta_slow > 0.0) ||
        !(rope.beta_fast >= rope.beta_slow))
        return Status::error("the file's yarn settings are out of range");
    return Status::success();
}

// Applies --context-length and --rope-scaling. A context beyond what the weights were trained for
// needs a scaling that was asked for: silently wrong text is worse than a message.
Status apply_overrides(const ConfigOverrides& overrides, ModelConfig* config) {
    RopeConfig& rope = config->rope;
    int32_t trained = config->trained_context_length;
    int32_t wanted = overrides.context_length;
    if (wanted < 0 || wanted > limits::CONTEXT_TOKENS_MAX)
        return Status::error("a context length of " + std::to_string(wanted) + " is outside 1 to " +
                             std::to_string(limits::CONTEXT_TOKENS_MAX));
    double factor = overrides.rope_factor;
    if (factor != 0.0 && !(factor >= 1.0 && factor <= ROPE_FACTOR_MAX))
        return Status::error("the rope factor must be between 1 and 1024");
    const std::string& scaling = overrides.rope_scaling;
    if (scaling.empty()) {
        if (factor != 0.0)
            return Status::error("a rope factor needs a rope scaling (linear or yarn)");
        if (wanted > trained)
            return Status::error("a context of " + std::to_string(wanted) +
                                 " tokens is beyond the " + std::to_string(trained) +
                                 " that the model was trained for; ask for rope scaling yarn");
    } else if (scaling == "none") {
        rope.scaling = RopeScaling::none;
        rope.factor = 1.0;
    } else if (scaling == "linear" || scaling == "yarn") {
        rope.scaling = scaling == "linear" ? RopeScaling::linear : RopeScaling::yarn;
        rope.factor = factor != 0.0 ? factor : std::max(1.0, double(wanted) / double(trained));
        rope.original_context = trained;
        rope.attention_factor = 1.0;
    } else {
        return Status::error("rope scaling '" + scaling + "' is not one of none, linear, yarn");
    }
    double scaled = double(trained) * (scaling.empty() ? 1.0 : rope.factor);
    int32_t offered =
        static_cast<int32_t>(std::min<double>(scaled, double(limits::CONTEXT_TOKENS_MAX)));
    config->context_length = wanted > 0 ? wanted : offered;
    return Status::success();
}

// A sliding window shorter than the context changes what a row sees. Within the window the model is
// exact, so the context is limited to it.
Status apply_sliding_window(const Gguf& file, const ConfigOverrides& overrides,
                            ModelConfig* config) {
    int64_t window = 0;
    RETURN_IF_ERROR(file.integer("llama.attention.sliding_window", 0, INT32_MAX, &window));
    if (window == 0 || window >= config->context_length) return Status::success();
    if (overrides.context_length > window)
        return Status::error("the model attends to a sliding window of " + std::to_string(window) +
                             " tokens; longer contexts than that are "
                             "not supported");
    config->context_length = static_cast<int32_t>(window);
    return Status::success();
}

Status check_vocabulary(const Gguf& file, ModelConfig* config) {
    const GgufTensor* embedding = file.tensor("token_embd.weight");
    if (embedding == nullptr) return Status::error("the file has no tensor 'token_embd.weight'");
    if (embedding->rows() > limits::VOCABULARY_MAX)
        return Status::error("a vocabulary of " + std::to_string(embedding->rows()) +
                             " tokens is not supported");
    config->vocabulary = static_cast<int32_t>(embedding->rows());
    const GgufValue* tokens = file.find("tokenizer.ggml.tokens");
    if (tokens != nullptr && tokens->count > embedding->rows())
        return Status::error("the vocabulary has " + std::to_string(tokens->count) +
                             " tokens but the embedding only " + std::to_string(embedding->rows()) +
                             " rows");
    config->tied_embeddings = file.tensor("output.weight") == nullptr;
    for (const GgufTensor& tensor : file.tensors()) {
        // Within the file's size, so the sum cannot wrap: an element takes at least half a byte.
        config->parameters += static_cast<int64_t>(tensor.columns() * tensor.rows());
    }
    return Status::success();
}

} // namespace

const char* rope_scaling_name(RopeScaling scaling) {
    switch (scaling) {
    case RopeScaling::none:
        return "none";
    case RopeScaling::linear:
        return "linear";
    case RopeScaling::yarn:
        return "yarn";
    case RopeScaling::llama3:
        return "llama3";
    }
    return "unknown";
}

Status read_config(const Gguf& file, const ConfigOverrides& overrides, ModelConfig* config) {
    std::string_view architecture;
    RETURN_IF_ERROR(file.string("general.architecture", &architecture));
    if (architecture != "llama")
        return Status::error("architecture '" + std::string(architecture) + "' is not supported; " +
                             SUPPORTED_ARCHITECTURES);
    ModelConfig fresh;
    fresh.architecture = architecture;
    RETURN_IF_ERROR(read_sizes(file, &fresh));
    RETURN_IF_ERROR(
        read_required(file, "llama.context_length", INT32_MAX, &fresh.trained_context_length));
    RETURN_IF_ERROR(read_rope(file, &fresh));
    RETURN_IF_ERROR(apply_overrides(overrides, &fresh));
    RETURN_IF_ERROR(apply_sliding_window(file, overrides, &fresh));
    RETURN_IF_ERROR(check_vocabulary(file, &fresh));
    *config = fresh;
    return Status::success();
}

namespace {

// The channel pair that turns `rotations` times over the original context (the paper's equation
// 17).
double correction_dimension(const RopeConfig& rope, double rotations) {
    return rope.dimension * std::log(rope.original_context / (rotations * 2.0 * std::numbers::pi)) /
           (2.0 * std::log(rope.base));
}

// Fast pairs keep their frequency, slow ones are interpolated, those between are mixed along a
// ramp.
void apply_yarn(const RopeConfig& rope, std::vector<double>* frequencies, float* magnitude) {
    double low = std::floor(correction_dimension(rope, rope.beta_fast));
    double high = std::ceil(correction_dimension(rope, rope.beta_slow));
    low = std::max(low, 0.0);
    high = std::min(high, double(rope.dimension - 1));
    if (low == high) high += 0.001; // as the paper's own code avoids the division by zero
    for (size_t i = 0; i < frequencies->size(); i++) {
        double ramp = std::clamp((double(i) - low) / (high - low), 0.0, 1.0);
        double frequency = (*frequencies)[i];
        (*frequencies)[i] = frequency / rope.factor * ramp + frequency * (1.0 - ramp);
    }
    double attention = rope.factor <= 1.0 ? 1.0 : 0.1 * std::log(rope.factor) + 1.0;
    *magnitude = static_cast<float>(attention * rope.attention_factor);
}

} // namespace

Status make_rope_table(const Gguf& file, const RopeConfig& rope, RopeTable* table) {
    size_t pairs = static_cast<size_t>(rope.dimension / 2);
    std::vector<double> frequencies(pairs);
    for (size_t i = 0; i < pairs; i++)
        frequencies[i] = std::pow(rope.base, -2.0 * double(i) / double(rope.dimension));
    table->magnitude = 1.0f;
    if (rope.scaling == RopeScaling::linear)
        for (double& frequency : frequencies) frequency /= rope.factor;
    if (rope.scaling == RopeScaling::yarn) apply_yarn(rope, &frequencies, &table->magnitude);
    if (rope.scaling == RopeScaling::llama3) {
        const GgufTensor* divisors = file.tensor("rope_freqs.weight");
        if (divisors == nullptr || divisors->type != TensorType::f32 || divisors->rows() != 1 ||
            divisors->columns() != pairs)
            return Status::error("tensor 'rope_freqs.weight' must hold " + std::to_string(pairs) +
                                 " F32 values");
        for (size_t i = 0; i < pairs; i++) {
            double divisor = gguf_number(ValueType::f32, divisors->data.data() + i * sizeof(float));
            if (!(divisor > 0.0) || !std::isfinite(divisor))
                return Status::error("tensor 'rope_freqs.weight' holds a divisor that is not "
                                     "positive");
            frequencies[i] /= divisor;
        }
    }
    table->inverse_frequencies.assign(frequencies.begin(), frequencies.end());
    for (float frequency : table->inverse_frequencies)
        if (!std::isfinite(frequency) || !std::isfinite(table->magnitude))
            return Status::error("the file's rope settings give no finite frequencies");
    return Status::success();
}

} // namespace sublimate

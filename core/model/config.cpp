// Reading hyper-parameters. Every key that changes what the model computes is either understood or
// refused.
#include "config.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "../cpu/ops.h"

namespace sublimate {

namespace {

constexpr double ROPE_FACTOR_MAX = 1024.0;
constexpr const char* LONG_FACTORS = "rope_factors_long.weight";
constexpr const char* SHORT_FACTORS = "rope_factors_short.weight";
constexpr const char* LLAMA3_FACTORS = "rope_freqs.weight";
constexpr int32_t HEAD_DIM_MULTIPLE = 16;
constexpr float FACTOR_MAX = 1e6f;

// Keys of a file that begin with the name of its architecture, as the file spells it.
class Keys {
public:
    Keys(const Gguf& file, std::string_view architecture)
        : file(file), prefix_(std::string(architecture) + ".") {}

    std::string named(const char* name) const { return prefix_ + name; }
    bool has(const char* name) const { return file.find(named(name)) != nullptr; }
    Status missing(const char* name) const {
        return Status::error("the file has no key '" + named(name) + "'");
    }
    Status required(const char* name, int64_t maximum, int32_t* result) const {
        return has(name) ? optional(name, 1, maximum, result) : missing(name);
    }
    Status optional(const char* name, int64_t minimum, int64_t maximum, int32_t* result) const {
        int64_t value = *result;
        RETURN_IF_ERROR(file.integer(named(name), minimum, maximum, &value));
        *result = static_cast<int32_t>(value);
        return Status::success();
    }
    Status number(const char* name, double* result) const {
        return file.number(named(name), result);
    }
    // A factor above zero.
    Status factor(const char* name, float* result) const {
        double value = *result;
        RETURN_IF_ERROR(number(name, &value));
        if (!(value > 0.0) || value > double(FACTOR_MAX))
            return Status::error("key '" + named(name) + "' is out of range");
        *result = static_cast<float>(value);
        return Status::success();
    }

    const Gguf& file;

private:
    std::string prefix_;
};

Status read_sizes(const Keys& keys, ModelConfig* config) {
    using namespace limits;
    RETURN_IF_ERROR(keys.required("block_count", LAYERS_MAX, &config->layers));
    RETURN_IF_ERROR(keys.required("embedding_length", HIDDEN_MAX, &config->hidden));
    RETURN_IF_ERROR(keys.required("feed_forward_length", HIDDEN_MAX, &config->feed_forward));
    RETURN_IF_ERROR(keys.required("attention.head_count", HEADS_MAX, &config->heads));
    config->kv_heads = config->heads;
    RETURN_IF_ERROR(keys.optional("attention.head_count_kv", 1, HEADS_MAX, &config->kv_heads));
    if (config->heads % config->kv_heads != 0)
        return Status::error(std::to_string(config->heads) + " heads cannot share " +
                             std::to_string(config->kv_heads) + " KV heads");
    config->head_dim = config->hidden / config->heads;
    RETURN_IF_ERROR(keys.optional("attention.key_length", 1, HEAD_DIM_MAX, &config->head_dim));
    int32_t value_length = config->head_dim;
    RETURN_IF_ERROR(keys.optional("attention.value_length", 1, HEAD_DIM_MAX, &value_length));
    if (value_length != config->head_dim)
        return Status::error("keys and values of different length are not supported");
    if (config->head_dim < HEAD_DIM_MULTIPLE || config->head_dim > HEAD_DIM_MAX ||
        config->head_dim % HEAD_DIM_MULTIPLE != 0)
        return Status::error("a head dimension of " + std::to_string(config->head_dim) +
                             " is not supported (multiples of 16 up to " +
                             std::to_string(HEAD_DIM_MAX) + " are)");
    const char* epsilon_key = "attention.layer_norm_rms_epsilon";
    double epsilon = config->architecture->norm_epsilon;
    if (!keys.has(epsilon_key) && epsilon == 0.0) return keys.missing(epsilon_key);
    RETURN_IF_ERROR(keys.number(epsilon_key, &epsilon));
    if (epsilon < 0.0 || epsilon > 1.0)
        return Status::error("key '" + keys.named(epsilon_key) + "' is out of range");
    config->norm_epsilon = static_cast<float>(epsilon);
    return Status::success();
}

// A key that has to be absent or zero.
Status refused_beyond(const Keys& keys, const char* name, int64_t maximum) {
    int32_t value = 0;
    RETURN_IF_ERROR(keys.optional(name, 0, INT32_MAX, &value));
    if (value <= maximum) return Status::success();
    return Status::error("mixtures of experts with the key '" + keys.named(name) +
                         "' = " + std::to_string(value) + " are not supported");
}

// Each row takes the `expert_used_count` feed-forwards of the highest softmax, as in qwen3moe.
Status read_experts(const Keys& keys, ModelConfig* config) {
    if (!config->architecture->has_experts) return refused_beyond(keys, "expert_count", 0);
    RETURN_IF_ERROR(keys.required("expert_count", limits::EXPERTS_MAX, &config->experts));
    int32_t used_max = std::min(config->experts, limits::EXPERTS_USED_MAX);
    RETURN_IF_ERROR(keys.required("expert_used_count", used_max, &config->experts_used));
    // Older files tell the columns of all that a row uses, together.
    config->feed_forward /= config->experts_used;
    RETURN_IF_ERROR(
        keys.optional("expert_feed_forward_length", 1, limits::HIDDEN_MAX, &config->feed_forward));
    if (config->feed_forward < 1 || config->feed_forward % cpu::PANEL_ROWS != 0 ||
        config->hidden % cpu::PANEL_ROWS != 0)
        return Status::error("experts of " + std::to_string(config->hidden) + " x " +
                             std::to_string(config->feed_forward) +
                             " weights are not supported (multiples of 16 are)");
    RETURN_IF_ERROR(
        keys.file.boolean(keys.named("expert_weights_norm"), &config->experts_renormalised));
    constexpr int64_t SOFTMAX = 1;
    RETURN_IF_ERROR(refused_beyond(keys, "expert_gating_func", SOFTMAX));
    RETURN_IF_ERROR(refused_beyond(keys, "expert_shared_count", 0));
    RETURN_IF_ERROR(refused_beyond(keys, "expert_group_count", 1));
    double scale = 1.0;
    RETURN_IF_ERROR(keys.number("expert_weights_scale", &scale));
    if (scale == 0.0 || scale == 1.0) return Status::success();
    return Status::error("mixtures of experts with a scale of their weights are not supported");
}

// How positions are stretched: none, linear, yarn or longrope, whatever the file calls it. Llama
// 3's way is no word but a tensor.
Status read_scaling(const Keys& keys, std::string_view* scaling) {
    *scaling = "none";
    RETURN_IF_ERROR(keys.file.string(keys.named("rope.scaling.type"), scaling));
    if (scaling->empty() || *scaling == "default") *scaling = "none";
    if (*scaling == "su") *scaling = "longrope"; // its name before the paper
    const bool has_long = keys.file.tensor(LONG_FACTORS) != nullptr;
    const bool has_llama3 = keys.file.tensor(LLAMA3_FACTORS) != nullptr;
    if ((*scaling == "llama3" && !has_llama3) || (*scaling == "longrope" && !has_long))
        return Status::error("rope scaling " + printable(*scaling) +
                             " needs a tensor of factors, which the file does not have");
    const bool by_word = *scaling == "linear" || *scaling == "yarn";
    if (int{by_word} + int{has_long} + int{has_llama3} > 1)
        return Status::error("the file scales its rope in more than one way (rope scaling " +
                             printable(*scaling) + ", tensors of factors), which is not supported");
    if (*scaling == "llama3") *scaling = "none";
    if (*scaling != "none" && *scaling != "linear" && *scaling != "yarn" && *scaling != "longrope")
        return Status::error("rope scaling " + printable(*scaling) +
                             " is not supported (none, linear, yarn, longrope and Llama 3's are)");
    double extrapolated = 1.0; // of yarn; below zero: as usual, which is all
    RETURN_IF_ERROR(keys.number("rope.scaling.yarn_ext_factor", &extrapolated));
    if (extrapolated < 0.0 || extrapolated == 1.0 || *scaling != "yarn") return Status::success();
    return Status::error("yarn with the key '" + keys.named("rope.scaling.yarn_ext_factor") +
                         "' other than 1 is not supported");
}

Status read_rope(const Keys& keys, ModelConfig* config) {
    RopeConfig& rope = config->rope;
    rope.dimension = config->head_dim;
    RETURN_IF_ERROR(keys.optional("rope.dimension_count", 1, config->head_dim, &rope.dimension));
    if (rope.dimension % 2 != 0) return Status::error("the rope dimension is odd");
    RETURN_IF_ERROR(keys.number("rope.global.freq_base", &rope.base)); // some call it so
    RETURN_IF_ERROR(keys.number("rope.freq_base", &rope.base));
    if (!(rope.base > 1.0)) return Status::error("the rope base must be above 1");
    std::string_view scaling;
    RETURN_IF_ERROR(read_scaling(keys, &scaling));
    RETURN_IF_ERROR(keys.number("rope.scaling.factor", &rope.factor));
    double old_linear_factor = 1.0; // the key that older files have in place of scaling.type
    RETURN_IF_ERROR(keys.number("rope.scale_linear", &old_linear_factor));
    if (scaling == "linear") {
        rope.scaling = RopeScaling::linear;
    } else if (scaling == "yarn") {
        rope.scaling = RopeScaling::yarn;
    } else if (keys.file.tensor(LONG_FACTORS) != nullptr) {
        rope.scaling = RopeScaling::longrope;
    } else if (keys.file.tensor(LLAMA3_FACTORS) != nullptr) {
        rope.scaling = RopeScaling::llama3;
    } else if (old_linear_factor != 1.0) {
        rope.scaling = RopeScaling::linear;
        rope.factor = old_linear_factor;
    }
    if (!(rope.factor >= 1.0 && rope.factor <= ROPE_FACTOR_MAX)) {
        if (rope.scaling == RopeScaling::linear || rope.scaling == RopeScaling::yarn)
            return Status::error("the rope scaling factor must be between 1 and 1024");
        rope.factor = 1.0;
    }
    int32_t original = config->trained_context_length;
    RETURN_IF_ERROR(keys.optional("rope.scaling.original_context_length", 1, INT32_MAX, &original));
    rope.original_context = original;
    RETURN_IF_ERROR(keys.number("rope.scaling.attn_factor", &rope.attention_factor));
    RETURN_IF_ERROR(keys.number("rope.scaling.yarn_attn_factor", &rope.attention_factor));
    RETURN_IF_ERROR(keys.number("rope.scaling.yarn_beta_fast", &rope.beta_fast));
    RETURN_IF_ERROR(keys.number("rope.scaling.yarn_beta_slow", &rope.beta_slow));
    if (!(rope.attention_factor > 0.0) || !(rope.beta_slow > 0.0) ||
        !(rope.beta_fast >= rope.beta_slow))
        return Status::error("the file's rope settings are out of range");
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
    rope.is_long = config->context_length > rope.original_context;
    return Status::success();
}

// Models of these sizes scale scores by the share of a head in the hidden channels, and their files
// do not say so (the papers' query_pre_attn_scalar).
bool scores_by_hidden(const ModelConfig& config) {
    constexpr int32_t GEMMA2_27B_LAYERS = 46;
    constexpr int32_t GEMMA3_27B_LAYERS = 62;
    const std::string_view name = config.architecture->name;
    return (name == "gemma2" && config.layers == GEMMA2_27B_LAYERS) ||
           (name == "gemma3" && config.layers == GEMMA3_27B_LAYERS);
}

Status read_scales(const Keys& keys, ModelConfig* config) {
    const Architecture& architecture = *config->architecture;
    int32_t per_head =
        scores_by_hidden(*config) ? config->hidden / config->heads : config->head_dim;
    config->attention_scale = 1.0f / std::sqrt(static_cast<float>(per_head));
    if (architecture.embedding_times_root)
        config->embedding_scale = std::sqrt(static_cast<float>(config->hidden));
    RETURN_IF_ERROR(keys.factor("attention.scale", &config->attention_scale));
    if (architecture.has_scales) {
        float divisor = 1.0f; // of logits, which the key calls their scale
        RETURN_IF_ERROR(keys.factor("embedding_scale", &config->embedding_scale));
        RETURN_IF_ERROR(keys.factor("residual_scale", &config->residual_scale));
        RETURN_IF_ERROR(keys.factor("logit_scale", &divisor));
        config->logit_scale = 1.0f / divisor;
    }
    if (architecture.has_soft_caps) {
        constexpr float ATTENTION_CAP = 50.0f; // of the paper, for files without the keys
        constexpr float LOGIT_CAP = 30.0f;
        config->attention_soft_cap = ATTENTION_CAP;
        config->logit_soft_cap = LOGIT_CAP;
        RETURN_IF_ERROR(keys.factor("attn_logit_softcapping", &config->attention_soft_cap));
        RETURN_IF_ERROR(keys.factor("final_logit_softcapping", &config->logit_soft_cap));
    }
    return Status::success();
}

// What files of another format do otherwise than GGUF files of the same architecture.
Status read_layout(const Gguf& file, ModelConfig* config) {
    config->rotates_halves = config->architecture->rotates_halves;
    config->full_attention_every = config->architecture->full_attention_every;
    RETURN_IF_ERROR(file.boolean("sublimate.rotates_halves", &config->rotates_halves));
    int64_t every = config->full_attention_every;
    RETURN_IF_ERROR(
        file.integer("sublimate.full_attention_every", 0, limits::LAYERS_MAX + 1, &every));
    config->full_attention_every = static_cast<int32_t>(every);
    double offset = 0.0;
    RETURN_IF_ERROR(file.number("sublimate.norm_offset", &offset));
    config->norm_offset = static_cast<float>(offset);
    return Status::success();
}

// Where a file says which layers have the window, it has to be those of the architecture: by the
// period of the layers without, or by one flag for each layer.
Status check_window_pattern(const Keys& keys, const ModelConfig& config) {
    const std::string key = keys.named("attention.sliding_window_pattern");
    const GgufValue* value = keys.file.find(key);
    if (value == nullptr || config.window == 0) return Status::success();
    bool agrees = true;
    if (value->is_array && value->type == ValueType::boolean) {
        agrees = value->count >= static_cast<uint64_t>(config.layers);
        for (int32_t i = 0; agrees && i < config.layers; i++)
            agrees =
                (value->payload[static_cast<size_t>(i)] != std::byte{0}) == config.has_window(i);
    } else {
        int64_t every = 0;
        RETURN_IF_ERROR(keys.file.integer(key, 0, INT32_MAX, &every));
        agrees = every == config.full_attention_every;
    }
    if (agrees) return Status::success();
    return Status::error("key '" + key + "' names other layers than a " +
                         config.architecture->name + " model has with a window");
}

// Layers with a window have a rope of their own where the architecture says so: without scaling.
Status read_window(const Keys& keys, ModelConfig* config) {
    RETURN_IF_ERROR(keys.optional("attention.sliding_window", 0, INT32_MAX, &config->window));
    RETURN_IF_ERROR(check_window_pattern(keys, *config));
    // All see everything; but what rotates otherwise in layers with a window still does.
    if (config->window >= config->context_length &&
        config->architecture->window_rotation_base == 0.0)
        config->window = 0;
    config->window_rope = config->rope;
    if (!config->has_two_ropes()) return Status::success();
    config->window_rope = {};
    config->window_rope.dimension = config->rope.dimension;
    config->window_rope.base = config->architecture->window_rotation_base;
    for (const char* name : {"rope.local.freq_base", "rope.freq_base_swa"})
        RETURN_IF_ERROR(keys.number(name, &config->window_rope.base));
    if (!(config->window_rope.base > 1.0)) return Status::error("the rope base must be above 1");
    return Status::success();
}

// What else than a model a file may be.
Status check_kind(const Gguf& file) {
    std::string_view kind = "model";
    RETURN_IF_ERROR(file.string("general.type", &kind));
    if (kind == "adapter")
        return Status::error("it is an adapter (LoRA), which needs the model that it changes");
    if (kind == "mmproj")
        return Status::error("it is the part of a model that sees images; name the file of the "
                             "part that writes text");
    if (kind == "imatrix")
        return Status::error("it says what weights matter to a quantiser, and has none itself");
    return Status::success();
}

Status check_vocabulary(const Gguf& file, ModelConfig* config) {
    const GgufTensor* embedding = file.tensor("token_embd.weight");
    if (embedding == nullptr) return Status::error("the file has no tensor 'token_embd.weight'");
    if (embedding->rows() < 2 || embedding->rows() > limits::VOCABULARY_MAX)
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
        // Of a type that nobody knows the shape may be anything. An element of the others takes at
        // least an eighth of a byte of the file, which was looked at when that was parsed, so the
        // sum cannot wrap.
        if (is_supported(tensor.type))
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
    case RopeScaling::longrope:
        return "longrope";
    }
    return "unknown";
}

Status read_config(const Gguf& file, const ConfigOverrides& overrides, ModelConfig* config) {
    std::string_view architecture;
    RETURN_IF_ERROR(check_kind(file));
    RETURN_IF_ERROR(file.string("general.architecture", &architecture));
    if (architecture.empty()) return Status::error("the file has no key 'general.architecture'");
    ModelConfig fresh;
    fresh.architecture = find_architecture(architecture);
    if (fresh.architecture == nullptr)
        return Status::error("architecture " + printable(architecture) +
                             " is not supported; supported are " + supported_architectures());
    const Keys keys(file, architecture);
    RETURN_IF_ERROR(read_layout(file, &fresh));
    RETURN_IF_ERROR(read_sizes(keys, &fresh));
    RETURN_IF_ERROR(read_experts(keys, &fresh));
    RETURN_IF_ERROR(keys.required("context_length", INT32_MAX, &fresh.trained_context_length));
    RETURN_IF_ERROR(read_rope(keys, &fresh));
    RETURN_IF_ERROR(apply_overrides(overrides, &fresh));
    RETURN_IF_ERROR(read_window(keys, &fresh));
    RETURN_IF_ERROR(read_scales(keys, &fresh));
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

// By what a tensor says, a divisor for each frequency.
Status divide(const Gguf& file, const char* name, std::vector<double>* frequencies) {
    const GgufTensor* divisors = file.tensor(name);
    // In a packed file a tensor may have a shape and no data.
    if (divisors == nullptr || divisors->type != TensorType::f32 || divisors->rows() != 1 ||
        divisors->columns() != frequencies->size() ||
        divisors->data.size() != frequencies->size() * sizeof(float))
        return Status::error("tensor '" + std::string(name) + "' must hold " +
                             std::to_string(frequencies->size()) + " F32 values");
    for (size_t i = 0; i < frequencies->size(); i++) {
        double divisor = gguf_number(ValueType::f32, divisors->data.data() + i * sizeof(float));
        if (!(divisor > 0.0) || !std::isfinite(divisor))
            return Status::error("tensor '" + std::string(name) +
                                 "' holds a divisor that is not positive");
        (*frequencies)[i] /= divisor;
    }
    return Status::success();
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
    if (rope.scaling == RopeScaling::llama3)
        RETURN_IF_ERROR(divide(file, LLAMA3_FACTORS, &frequencies));
    if (rope.scaling == RopeScaling::longrope) {
        const char* factors = rope.is_long ? LONG_FACTORS : SHORT_FACTORS;
        RETURN_IF_ERROR(divide(file, factors, &frequencies));
        table->magnitude = static_cast<float>(rope.attention_factor);
    }
    table->inverse_frequencies.assign(frequencies.begin(), frequencies.end());
    for (float frequency : table->inverse_frequencies)
        if (!std::isfinite(frequency) || !std::isfinite(table->magnitude))
            return Status::error("the file's rope settings give no finite frequencies");
    return Status::success();
}

Status make_rope_tables(const Gguf& file, const ModelConfig& config, RopeTables* tables) {
    RETURN_IF_ERROR(make_rope_table(file, config.rope, &tables->full));
    return make_rope_table(file, config.window_rope, &tables->window);
}

bool is_rope_tensor(std::string_view name) {
    return name == LLAMA3_FACTORS || name == LONG_FACTORS || name == SHORT_FACTORS;
}

} // namespace sublimate

// Model configuration: sizes, contexts and rotary embeddings from a file's keys, and every
// combination that must be refused.
#include <cmath>
#include <string>

#include "core/model/config.h"
#include "test.h"
#include "tiny_llama.h"

namespace {

using namespace sublimate;
using namespace sublimate::test;

struct Outcome {
    std::string error;
    ModelConfig config;
    RopeTable rope;
};

Outcome read(const TinyLlama& tiny, const ConfigOverrides& overrides = {}) {
    std::vector<std::byte> bytes = tiny_file(tiny);
    Gguf file;
    Outcome outcome;
    outcome.error = Gguf::parse(bytes, &file).message;
    if (outcome.error.empty())
        outcome.error = read_config(file, overrides, &outcome.config).message;
    if (outcome.error.empty())
        outcome.error = make_rope_table(file, outcome.config.rope, &outcome.rope).message;
    return outcome;
}

Outcome with(const std::function<void(GgufBytes&)>& extra, const ConfigOverrides& overrides = {}) {
    TinyLlama tiny;
    tiny.extra = extra;
    return read(tiny, overrides);
}

bool mentions(const Outcome& outcome, const char* part) {
    if (outcome.error.find(part) != std::string::npos) return true;
    std::printf("the message is '%s', wanted '%s'\n", outcome.error.c_str(), part);
    return false;
}

void scaling(GgufBytes& file, const char* type, float factor) {
    file.text("llama.rope.scaling.type", type);
    file.value("llama.rope.scaling.factor", ValueType::f32, factor);
}

} // namespace

TEST(plain_model) {
    Outcome outcome = read({});
    EXPECT_EQ(outcome.error, "");
    const ModelConfig& config = outcome.config;
    EXPECT_EQ(config.vocabulary, 101);
    EXPECT_EQ(config.context_length, 256);
    EXPECT_EQ(config.group_heads(), 2);
    EXPECT(config.tied_embeddings && config.rope.scaling == RopeScaling::none);
    EXPECT_EQ(outcome.rope.inverse_frequencies.size(), 8u);
    for (size_t i = 0; i < 8; i++)
        EXPECT_NEAR(outcome.rope.inverse_frequencies[i], std::pow(10000.0, -double(i) / 8.0), 1e-7);
    EXPECT_EQ(outcome.rope.magnitude, 1.0f);
}

// A shape is all that is known of such a tensor.
TEST(parameters_are_those_of_types_that_are_known) {
    TinyLlama tiny;
    const int64_t known = read(tiny).config.parameters;
    tiny.extra = [](GgufBytes& file) {
        for (const char* name : {"one", "other", "third"})
            file.tensor({name, static_cast<TensorType>(999), {uint64_t{1} << 62}, {}});
    };
    std::vector<std::byte> bytes = tiny_file(tiny);
    Gguf file;
    ModelConfig config;
    EXPECT_EQ(Gguf::parse(bytes, &file, TensorTypes::any).message, "");
    EXPECT_EQ(read_config(file, {}, &config).message, "");
    EXPECT(known > 0 && config.parameters == known);
}

TEST(wrong_sizes_are_refused) {
    TinyLlama heads;
    heads.kv_heads = 3;
    EXPECT(mentions(read(heads), "4 heads cannot share 3 KV heads"));
    TinyLlama odd;
    odd.head_dim = 24;
    EXPECT(mentions(read(odd), "head dimension of 24"));
    TinyLlama none;
    none.layers = 0;
    EXPECT(mentions(read(none), "'llama.block_count'"));
    EXPECT(mentions(with([](GgufBytes& file) {
                        file.value("llama.expert_count", ValueType::u32, uint32_t{8});
                    }),
                    "the key 'llama.expert_count' = 8 are not supported"));
    EXPECT(mentions(with([](GgufBytes& file) {
                        file.value("llama.rope.dimension_count", ValueType::u32, uint32_t{15});
                    }),
                    "is odd"));
}

TinyLlama with_expert_key(const char* key, uint32_t value) {
    TinyLlama tiny;
    tiny.architecture = "qwen3moe";
    tiny.extra = [=](GgufBytes& file) {
        file.value(std::string("qwen3moe.") + key, ValueType::u32, value);
    };
    return tiny;
}

TEST(experts_are_those_of_the_file) {
    TinyLlama tiny;
    tiny.architecture = "qwen3moe";
    Outcome outcome = read(tiny);
    EXPECT_EQ(outcome.config.experts, 6);
    EXPECT_EQ(outcome.config.experts_used, 3);
    EXPECT_EQ(outcome.config.feed_forward, 96);
    EXPECT(outcome.config.experts_renormalised);
    tiny.extra = [](GgufBytes& file) {
        file.value("qwen3moe.expert_weights_norm", ValueType::boolean, uint8_t{0});
    };
    EXPECT(!read(tiny).config.experts_renormalised);
    tiny.experts_used = 7;
    EXPECT(mentions(read(tiny), "'qwen3moe.expert_used_count'"));
    tiny.experts_used = 2;
    tiny.type = TensorType::f16;
    tiny.feed_forward = 40;
    EXPECT(mentions(read(tiny), "experts of 64 x 40"));
    EXPECT(
        mentions(read(with_expert_key("expert_gating_func", 2)), "'qwen3moe.expert_gating_func'"));
    EXPECT(mentions(read(with_expert_key("expert_shared_count", 1)), "expert_shared_count' = 1"));
    EXPECT(mentions(read(with_expert_key("expert_group_count", 4)), "expert_group_count' = 4"));
    EXPECT(read(with_expert_key("expert_gating_func", 1)).config.experts == 6);
}

TEST(other_architectures_are_refused_with_what_is_supported) {
    GgufBytes file;
    file.text("general.architecture", "mamba");
    std::vector<std::byte> bytes = file.bytes();
    Gguf parsed;
    EXPECT(Gguf::parse(bytes, &parsed).ok());
    ModelConfig config;
    std::string message = read_config(parsed, {}, &config).message;
    EXPECT(message.find("'mamba' is not supported; supported are llama (") != std::string::npos);
    EXPECT(message.find("gemma3 (Gemma 3)") != std::string::npos);
}

TEST(what_else_a_file_may_be_or_call_itself) {
    for (const char* kind : {"adapter", "mmproj", "imatrix"})
        EXPECT(!with([&](GgufBytes& file) { file.text("general.type", kind); }).error.empty());
    EXPECT_EQ(with([](GgufBytes& file) { file.text("general.type", "model"); }).error, "");
    std::vector<std::byte> nothing = GgufBytes().bytes();
    Gguf parsed;
    EXPECT(Gguf::parse(nothing, &parsed).ok());
    ModelConfig config;
    EXPECT_EQ(read_config(parsed, {}, &config).message,
              "the file has no key 'general.architecture'");
    GgufBytes alien;
    alien.text("general.architecture", std::string("a\n\x1b[31m") + std::string(55, 'x'));
    std::vector<std::byte> bytes = alien.bytes();
    EXPECT(Gguf::parse(bytes, &parsed).ok());
    std::string message = read_config(parsed, {}, &config).message;
    EXPECT(message.find("architecture 'a??[31mxxx") == 0);
    EXPECT(find_architecture("qwen2vl") == find_architecture("qwen2"));
    EXPECT(find_architecture("qwen9") == nullptr);
}

TEST(spellings_of_rotations_windows_and_norms) {
    for (const char* plain : {"none", "default", ""}) {
        Outcome outcome = with([&](GgufBytes& file) { scaling(file, plain, 4.0f); });
        EXPECT(outcome.error.empty() && outcome.config.rope.scaling == RopeScaling::none);
    }
    EXPECT(mentions(with([](GgufBytes& file) { scaling(file, "llama3", 8.0f); }),
                    "'llama3' needs a tensor of factors"));
    EXPECT(mentions(with([](GgufBytes& file) { scaling(file, "su", 8.0f); }),
                    "'longrope' needs a tensor of factors"));
    EXPECT(mentions(with([](GgufBytes& file) {
                        scaling(file, "yarn", 4.0f);
                        file.value("llama.rope.scaling.yarn_ext_factor", ValueType::f32, 0.5f);
                    }),
                    "yarn_ext_factor' other than 1"));
    Outcome outcome = with([](GgufBytes& file) {
        scaling(file, "yarn", 4.0f);
        file.value("llama.rope.scaling.yarn_ext_factor", ValueType::f32, -1.0f);
        file.value("llama.rope.scaling.yarn_attn_factor", ValueType::f32, 0.5f);
    });
    EXPECT_EQ(outcome.config.rope.attention_factor, 0.5);
    TinyLlama gemma;
    gemma.architecture = "gemma3";
    gemma.layers = 6;
    gemma.window = 45;
    auto pattern = [&](const std::vector<uint8_t>& flags) {
        gemma.extra = [=](GgufBytes& file) {
            file.numbers<uint8_t>("gemma3.attention.sliding_window_pattern", ValueType::boolean,
                                  flags);
        };
        return read(gemma);
    };
    EXPECT_EQ(pattern({1, 1, 1, 1, 1, 0}).error, "");
    EXPECT(mentions(pattern({1, 1, 1, 0, 1, 1}), "names other layers"));
    EXPECT(mentions(pattern({1, 1, 1}), "names other layers"));
    gemma.extra = [](GgufBytes& file) {
        file.value("gemma3.attention.sliding_window_pattern", ValueType::u32, uint32_t{6});
        file.value("gemma3.rope.local.freq_base", ValueType::f32, 12345.0f);
    };
    EXPECT_EQ(read(gemma).config.window_rope.base, 12345.0);
    gemma.extra = [](GgufBytes& file) {
        file.value("gemma3.attention.sliding_window_pattern", ValueType::u32, uint32_t{4});
    };
    EXPECT(mentions(read(gemma), "names other layers"));
}

TEST(scales_are_those_of_the_file_or_of_the_architecture) {
    TinyLlama granite;
    granite.architecture = "granite";
    ModelConfig config = read(granite).config;
    EXPECT_EQ(config.embedding_scale, 3.0f);
    EXPECT_EQ(config.residual_scale, 0.5f);
    EXPECT_EQ(config.attention_scale, 0.125f);
    EXPECT_EQ(config.logit_scale, 0.25f);
    granite.extra = [](GgufBytes& file) {
        file.value("granite.logit_scale", ValueType::f32, -1.0f);
    };
    EXPECT(!read(granite).error.empty());
    TinyLlama gemma;
    gemma.architecture = "gemma2";
    config = read(gemma).config;
    EXPECT_EQ(config.embedding_scale, 8.0f);
    EXPECT_EQ(config.attention_soft_cap, 2.0f);
    EXPECT_EQ(config.logit_soft_cap, 5.0f);
    EXPECT_EQ(config.attention_scale, 0.25f);
    gemma.layers = 46; // the size whose scores are scaled by hidden / heads
    gemma.hidden = 256;
    EXPECT_EQ(read(gemma).config.attention_scale, 0.125f);
}

TEST(context_beyond_training_needs_scaling) {
    EXPECT_EQ(read({}, {128, "", 0.0}).config.context_length, 128);
    EXPECT(mentions(read({}, {512, "", 0.0}), "ask for rope scaling yarn"));
    EXPECT_EQ(read({}, {512, "none", 0.0}).config.context_length, 512);
    Outcome yarn = read({}, {512, "yarn", 0.0});
    EXPECT_EQ(yarn.error, "");
    EXPECT_NEAR(yarn.config.rope.factor, 2.0, 1e-9);
    EXPECT_NEAR(yarn.config.rope.original_context, 256.0, 1e-9);
    EXPECT_EQ(read({}, {0, "linear", 4.0}).config.context_length, 1024);
    EXPECT(mentions(read({}, {0, "cubic", 0.0}), "not one of none, linear, yarn"));
    EXPECT(mentions(read({}, {0, "", 2.0}), "needs a rope scaling"));
    EXPECT(mentions(read({}, {0, "yarn", 0.5}), "between 1 and 1024"));
    EXPECT(mentions(read({}, {limits::CONTEXT_TOKENS_MAX + 1, "yarn", 0.0}), "outside 1 to"));
}

TEST(windows) {
    TinyLlama tiny;
    tiny.window = 100;
    ModelConfig all = read(tiny).config;
    EXPECT_EQ(all.context_length, 256);
    EXPECT(all.window == 100 && all.has_window(0) && all.has_window(1) && !all.has_two_ropes());
    EXPECT_EQ(read(tiny, {100, "", 0.0}).config.window, 0); // no row ever sees less
    tiny.architecture = "gemma2";
    ModelConfig every_other = read(tiny).config;
    EXPECT(every_other.has_window(0) && !every_other.has_window(1) && every_other.has_window(2));
    tiny.architecture = "gemma3";
    tiny.extra = [](GgufBytes& file) {
        file.value("gemma3.rope.freq_base", ValueType::f32, 1e6f);
        file.text("gemma3.rope.scaling.type", "linear");
        file.value("gemma3.rope.scaling.factor", ValueType::f32, 8.0f);
    };
    ModelConfig gemma = read(tiny).config;
    EXPECT(gemma.has_window(4) && !gemma.has_window(5) && gemma.has_two_ropes());
    EXPECT_EQ(gemma.rope.base, 1e6);
    EXPECT_EQ(gemma.window_rope.base, 1e4);
    EXPECT(gemma.window_rope.scaling == RopeScaling::none);
    // Such layers rotate otherwise even where the window is no bound.
    ModelConfig brief = read(tiny, {100, "", 0.0}).config;
    EXPECT(brief.has_two_ropes() && brief.window == 100 && !brief.has_window(5));
}

TEST(files_that_are_no_gguf_say_how_they_differ) {
    TinyLlama tiny;
    tiny.window = 100;
    EXPECT(!read(tiny).config.rotates_halves && read(tiny).config.norm_offset == 0.0f);
    tiny.extra = [](GgufBytes& file) {
        file.value("sublimate.rotates_halves", ValueType::boolean, true);
        file.value("sublimate.norm_offset", ValueType::f32, 1.0f);
        file.value("sublimate.full_attention_every", ValueType::u32, uint32_t{2});
        file.value("llama.attention.scale", ValueType::f32, 0.25f);
    };
    ModelConfig config = read(tiny).config;
    EXPECT(config.rotates_halves && config.norm_offset == 1.0f && config.attention_scale == 0.25f);
    EXPECT(config.has_window(0) && !config.has_window(1));
    tiny.extra = [](GgufBytes& file) { file.text("sublimate.rotates_halves", "yes"); };
    EXPECT(mentions(read(tiny), "must be a bool"));
}

TEST(long_contexts_have_factors_of_their_own) {
    TinyLlama tiny;
    tiny.architecture = "phi3";
    auto factors = [](GgufBytes& file) {
        Random random(1);
        for (const char* name : {"rope_factors_long.weight", "rope_factors_short.weight"}) {
            TensorSpec spec = random_tensor(random, name, TensorType::f32, 8, 0);
            float factor = name[13] == 'l' ? 4.0f : 2.0f;
            for (size_t i = 0; i < 8; i++)
                std::memcpy(spec.data.data() + 4 * i, &factor, sizeof factor);
            file.tensor(std::move(spec));
        }
        file.value("phi3.rope.scaling.original_context_length", ValueType::u32, uint32_t{64});
        file.value("phi3.rope.scaling.attn_factor", ValueType::f32, 1.25f);
    };
    tiny.extra = factors;
    Outcome beyond = read(tiny);
    EXPECT_EQ(beyond.error, "");
    EXPECT_NEAR(beyond.rope.inverse_frequencies[0], 0.25, 1e-7);
    EXPECT_EQ(beyond.rope.magnitude, 1.25f);
    EXPECT_NEAR(read(tiny, {64, "", 0.0}).rope.inverse_frequencies[0], 0.5, 1e-7);
}

TEST(linear_scaling_divides_every_frequency) {
    Outcome outcome = with([](GgufBytes& file) { scaling(file, "linear", 4.0f); });
    EXPECT_NEAR(outcome.rope.inverse_frequencies[0], 0.25, 1e-7);
    EXPECT_NEAR(outcome.rope.inverse_frequencies[4], 0.25e-2, 1e-8);
    EXPECT(
        mentions(with([](GgufBytes& file) { scaling(file, "linear", 0.0f); }), "factor must be"));
    EXPECT(mentions(with([](GgufBytes& file) { scaling(file, "dynamic", 2.0f); }),
                    "'dynamic' is not supported"));
}

// Figures of transformers' _compute_yarn_parameters for the same settings.
TEST(yarn_keeps_fast_pairs_and_interpolates_slow_ones) {
    Outcome outcome = with([](GgufBytes& file) {
        scaling(file, "yarn", 4.0f);
        file.value("llama.rope.scaling.original_context_length", ValueType::u32, uint32_t{64});
    });
    EXPECT_EQ(outcome.error, "");
    EXPECT_NEAR(outcome.rope.inverse_frequencies[0], 1.0, 1e-7);
    EXPECT_NEAR(outcome.rope.inverse_frequencies[7], std::pow(10000.0, -7.0 / 8.0) / 4.0, 1e-8);
    EXPECT_NEAR(outcome.rope.magnitude, 0.1 * std::log(4.0) + 1.0, 1e-6);
    for (size_t i = 1; i < 8; i++) {
        double plain = std::pow(10000.0, -double(i) / 8.0);
        EXPECT(outcome.rope.inverse_frequencies[i] <= plain * 1.000001);
        EXPECT(outcome.rope.inverse_frequencies[i] >= plain / 4.0 * 0.999999);
    }
}

TEST(llama3_divisors_come_from_the_file) {
    auto divisors = [](float value, uint64_t count) {
        return [=](GgufBytes& file) {
            std::vector<std::byte> data(count * sizeof(float));
            for (uint64_t i = 0; i < count; i++)
                std::memcpy(data.data() + i * sizeof(float), &value, sizeof value);
            file.tensor({"rope_freqs.weight", TensorType::f32, {count}, data});
        };
    };
    Outcome outcome = with(divisors(8.0f, 8));
    EXPECT(outcome.config.rope.scaling == RopeScaling::llama3);
    EXPECT_NEAR(outcome.rope.inverse_frequencies[0], 0.125, 1e-7);
    for (const char* word : {"linear", "yarn"})
        EXPECT(mentions(with([&](GgufBytes& file) {
                            scaling(file, word, 4.0f);
                            divisors(8.0f, 8)(file);
                        }),
                        "scales its rope in more than one way"));
    EXPECT(mentions(with([&](GgufBytes& file) {
                        scaling(file, "longrope", 4.0f);
                        divisors(8.0f, 8)(file);
                    }),
                    "'longrope' needs a tensor of factors"));
    EXPECT(mentions(with(divisors(8.0f, 7)), "must hold 8 F32 values"));
    EXPECT(mentions(with(divisors(0.0f, 8)), "not positive"));
    EXPECT(mentions(with(divisors(1e-44f, 8)), "no finite frequencies"));
}

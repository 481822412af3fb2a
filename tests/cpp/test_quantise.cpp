// Weights rounded while they are packed: group by group against a plain twin, bit for bit; what the
// fit gains; what is left as it is and what is refused.
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "core/cpu/numbers.h"
#include "core/model/quantise.h"
#include "test.h"
#include "tiny_llama.h"

namespace {

using namespace sublimate;
using namespace sublimate::test;

constexpr size_t N = 32;
using Group = std::array<float, N>;

float as_half(float value) {
    return cpu::half_to_float(cpu::float_to_half(value));
}

// d and m that stay, and the values, one weight at a time.
struct Twin {
    float scale = 0, minimum = 0;
    int32_t values[N] = {};
    double error = INFINITY;
};

void round_to(const Group& weights, float scale, float minimum, int32_t* values) {
    float inverse = scale > 0 ? 1.0f / scale : 0.0f;
    for (size_t i = 0; i < N; i++)
        values[i] = std::clamp(
            static_cast<int32_t>(std::floor((weights[i] - minimum) * inverse + 0.5f)), 0, 15);
}

// As the kernels' tests do: weights i, i + 4, i + 8, .. in one sum, then two and two.
template <class Term>
float in_lanes(Term&& term) {
    float lanes[4] = {};
    for (size_t i = 0; i < N; i++) lanes[i % 4] += term(i);
    return (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]);
}

Twin twin_int8(const Group& weights) {
    Twin best;
    float largest = 0;
    for (float weight : weights) largest = std::max(largest, std::fabs(weight));
    float least = INFINITY;
    for (int32_t above : {0, 1}) {
        Twin twin;
        int32_t half = cpu::float_to_half(largest / 127.0f) + above;
        twin.scale = cpu::half_to_float(static_cast<uint16_t>(half));
        if (std::isinf(twin.scale)) continue;
        float inverse = twin.scale == 0 ? 0 : 1.0f / twin.scale;
        for (size_t i = 0; i < N; i++) {
            float value = std::clamp(weights[i] * inverse, -127.0f, 127.0f);
            twin.values[i] = static_cast<int32_t>(std::floor(value + 128.5f));
        }
        float error = in_lanes([&](size_t i) {
            float off = weights[i] - twin.scale * static_cast<float>(twin.values[i] - 128);
            return off * off;
        });
        if (error < least) {
            least = error;
            best = twin;
        }
    }
    return best;
}

Twin twin_int4(const Group& weights) {
    Twin best;
    float low = *std::min_element(weights.begin(), weights.end());
    float high = *std::max_element(weights.begin(), weights.end());
    float least = INFINITY;
    for (float steps = 14.0f; steps <= 16.0f; steps += 0.25f) {
        Twin twin;
        float scale = (high - low) / steps, minimum = low;
        int32_t first[N];
        round_to(weights, scale, minimum, first);
        int32_t sum = 0, squares = 0;
        for (int32_t value : first) {
            sum += value;
            squares += value * value;
        }
        if (32 * squares > sum * sum) {
            auto determinant = static_cast<float>(32 * squares - sum * sum);
            float w = in_lanes([&](size_t i) { return weights[i]; });
            float wu =
                in_lanes([&](size_t i) { return weights[i] * static_cast<float>(first[i]); });
            scale = (32 * wu - w * static_cast<float>(sum)) / determinant;
            minimum =
                (static_cast<float>(squares) * w - static_cast<float>(sum) * wu) / determinant;
        }
        twin.scale = as_half(scale);
        twin.minimum = as_half(minimum);
        round_to(weights, twin.scale, twin.minimum, twin.values);
        float error = in_lanes([&](size_t i) {
            float u = static_cast<float>(twin.values[i]);
            float off = weights[i] - (twin.scale * u + twin.minimum);
            return off * off;
        });
        if (error < least) {
            least = error;
            best = twin;
        }
    }
    best.error = double(least);
    return best;
}

double error_of(const Group& weights, const QuantisedGroup& group, int32_t offset) {
    double sum = 0;
    for (size_t i = 0; i < N; i++) {
        double weight = double(cpu::half_to_float(group.scale)) * (group.values[i] - offset) +
                        double(cpu::half_to_float(group.minimum));
        sum += (weight - double(weights[i])) * (weight - double(weights[i]));
    }
    return sum;
}

// Of the shapes that trained weights have, and some that they have not.
Group random_group(Random& random, int32_t kind) {
    Group weights;
    float spread = std::exp(random.between(-9.0f, 2.0f));
    for (float& weight : weights) {
        float sum = 0; // about normal
        for (int32_t i = 0; i < 4; i++) sum += random.between(-1.0f, 1.0f);
        weight = spread * sum;
        if (kind == 1) weight += 3.0f * spread;
        if (kind == 2) weight = random.below(2) == 0 ? spread : -spread;
        if (kind == 3 && random.below(3) != 0) weight = 0.0f;
    }
    if (kind == 4) weights[static_cast<size_t>(random.below(32))] = 40.0f * spread;
    return weights;
}

GgufTensor as_tensor(const TensorSpec& spec, uint64_t columns, uint64_t rows) {
    GgufTensor tensor = {};
    tensor.name = spec.name;
    tensor.type = spec.type;
    tensor.dimension_count = 2;
    tensor.dimensions = {columns, rows, 1, 1};
    tensor.data = spec.data;
    return tensor;
}

std::string load_error(const TinyLlama& tiny, const LoadOptions& options) {
    std::shared_ptr<LoadedModel> model;
    return load_tiny(tiny, options, &model).message;
}

bool mentions(const std::string& message, const char* part) {
    if (message.find(part) != std::string::npos) return true;
    std::printf("the message is '%s', wanted '%s'\n", message.c_str(), part);
    return false;
}

TinyLlama of_type(TensorType type) {
    TinyLlama tiny;
    tiny.type = tiny.value_type = type;
    return tiny;
}

} // namespace

TEST(halves_round_to_the_nearest) {
    int32_t wrong = 0;
    for (uint32_t half = 0; half < 0x7c00; half++) {
        float value = cpu::half_to_float(static_cast<uint16_t>(half));
        float next =
            half == 0x7bff ? 65536.0f : cpu::half_to_float(static_cast<uint16_t>(half + 1));
        float middle = value + (next - value) / 2; // exact in fp32
        uint32_t even = half % 2 == 0 ? half : half + 1;
        wrong += cpu::float_to_half(value) != half;
        wrong += cpu::float_to_half(-value) != (half | 0x8000u);
        wrong += cpu::float_to_half(middle) != even;
        wrong += cpu::float_to_half(std::nextafter(middle, 0.0f)) != half;
        wrong += cpu::float_to_half(std::nextafter(middle, 1e9f)) != half + 1;
    }
    EXPECT_EQ(wrong, 0);
    EXPECT(cpu::float_to_half(INFINITY) == 0x7c00 && cpu::float_to_half(-1e30f) == 0xfc00);
    EXPECT((cpu::float_to_half(NAN) & 0x7fffu) > 0x7c00);
}

TEST(groups_are_those_of_the_twin) {
    Random random(5);
    int32_t wrong = 0;
    for (int32_t round = 0; round < 3000; round++) {
        const Group weights = random_group(random, round % 5);
        QuantisedGroup eight, four;
        EXPECT(quantise_int8(weights.data(), &eight) && quantise_int4(weights.data(), &four));
        Twin twin = twin_int8(weights);
        wrong += eight.scale != cpu::float_to_half(twin.scale) || eight.minimum != 0;
        for (size_t i = 0; i < N; i++) wrong += eight.values[i] != twin.values[i];
        twin = twin_int4(weights);
        wrong += four.scale != cpu::float_to_half(twin.scale);
        wrong += four.minimum != cpu::float_to_half(twin.minimum);
        for (size_t i = 0; i < N; i++) wrong += four.values[i] != twin.values[i];
        double error = error_of(weights, four, 0);
        EXPECT(std::fabs(error - twin.error) <= 1e-3 * twin.error + 1e-12);
    }
    EXPECT_EQ(wrong, 0);
}

TEST(a_weight_is_off_by_half_a_step_at_most) {
    Random random(6);
    for (int32_t round = 0; round < 500; round++) {
        const Group weights = random_group(random, round % 5);
        QuantisedGroup group;
        EXPECT(quantise_int8(weights.data(), &group));
        float scale = cpu::half_to_float(group.scale);
        for (size_t i = 0; i < N; i++) {
            float off = weights[i] - scale * static_cast<float>(group.values[i] - 128);
            // The scale is a half: the largest weight is off by its rounding too.
            float step = std::max(scale * 0x1p-11f, 0x1p-25f);
            EXPECT(std::fabs(off) <= scale * 0.5001f + 127.0f * step * 1.001f);
        }
    }
}

// What the candidates are for: less error than the weights' own range would give.
TEST(the_fit_gains) {
    Random random(7);
    double fitted = 0, plain = 0;
    for (int32_t round = 0; round < 2000; round++) {
        const Group weights = random_group(random, 0);
        QuantisedGroup group, range = {};
        EXPECT(quantise_int4(weights.data(), &group));
        float low = *std::min_element(weights.begin(), weights.end());
        float high = *std::max_element(weights.begin(), weights.end());
        range.scale = cpu::float_to_half((high - low) / 15.0f);
        range.minimum = cpu::float_to_half(low);
        int32_t values[N];
        round_to(weights, cpu::half_to_float(range.scale), cpu::half_to_float(range.minimum),
                 values);
        for (size_t i = 0; i < N; i++) range.values[i] = static_cast<uint8_t>(values[i]);
        double size = 0;
        for (float weight : weights) size += double(weight) * double(weight);
        fitted += error_of(weights, group, 0) / size;
        plain += error_of(weights, range, 0) / size;
    }
    std::printf("int4: error %.5f of the squared weights, %.5f by their range\n", fitted / 2000,
                plain / 2000);
    EXPECT(fitted < 0.9 * plain);
}

TEST(groups_that_are_hard) {
    QuantisedGroup group;
    auto filled = [](float value) {
        Group weights;
        weights.fill(value);
        return weights;
    };
    for (float value : {0.0f, 1.0f, -0.375f, 1e-7f, 1e-12f}) {
        Group weights = filled(value);
        EXPECT(quantise_int8(weights.data(), &group));
        EXPECT(error_of(weights, group, 128) <= 32 * std::pow(double(value) * 0.004 + 3e-8, 2));
        EXPECT(quantise_int4(weights.data(), &group));
        EXPECT(error_of(weights, group, 0) <= 32 * std::pow(double(value) * 0.0005 + 3e-8, 2));
    }
    for (float value : {NAN, INFINITY, -INFINITY, 1e30f}) {
        Group weights = filled(0.5f);
        weights[31] = value;
        EXPECT(!quantise_int8(weights.data(), &group));
        EXPECT(!quantise_int4(weights.data(), &group));
    }
    Group large = filled(0.0f);
    large[3] = 60000.0f;
    large[4] = -60000.0f;
    EXPECT(quantise_int8(large.data(), &group) && quantise_int4(large.data(), &group));
    EXPECT(error_of(large, group, 0) < 2e-2 * 2 * 60000.0 * 60000.0);
}

TEST(panels_hold_the_groups_of_each_row) {
    Random random(8);
    constexpr int32_t COLUMNS = 96;
    for (TensorType type : {TensorType::f32, TensorType::f16, TensorType::bf16})
        for (int32_t rows : {1, 16, 37})
            for (Quantise quantise : {Quantise::int8, Quantise::int4}) {
                TensorSpec spec = random_tensor(random, "t", type, COLUMNS, rows);
                GgufTensor tensor = as_tensor(spec, COLUMNS, static_cast<uint64_t>(rows));
                cpu::PackedMatrix shape = quantised_shape(tensor, quantise);
                cpu::testing::Aligned memory(shape.panels * shape.panel_bytes);
                std::memset(memory.data(), 0, static_cast<size_t>(memory.size()));
                for (int32_t p = 0; p < shape.panels; p++)
                    EXPECT(quantise_panels(tensor, shape, p, p + 1,
                                           memory.data() + p * shape.panel_bytes, {}));
                shape.data = memory.data();
                float in_file[COLUMNS], packed[COLUMNS];
                int32_t wrong = 0;
                for (int32_t r = 0; r < rows; r++) {
                    tensor_row(tensor, static_cast<uint64_t>(r), in_file);
                    unpack_row(shape, r, packed);
                    for (int32_t g = 0; g < COLUMNS / 32; g++) {
                        QuantisedGroup group;
                        bool eight = quantise == Quantise::int8;
                        const float* weights = in_file + g * 32;
                        EXPECT(eight ? quantise_int8(weights, &group)
                                     : quantise_int4(weights, &group));
                        for (int32_t i = 0; i < 32; i++) {
                            float u = static_cast<float>(group.values[i] - (eight ? 128 : 0));
                            float weight = cpu::half_to_float(group.scale) * u +
                                           cpu::half_to_float(group.minimum);
                            wrong += packed[g * 32 + i] != weight;
                        }
                    }
                }
                EXPECT_EQ(wrong, 0);
            }
}

TEST(what_is_quantised_and_how) {
    auto of = [](const char* name, TensorType type, uint64_t columns, Quantise asked) {
        GgufTensor tensor = {};
        tensor.name = name;
        tensor.type = type;
        tensor.dimensions = {columns, 64, 1, 1};
        return quantises(tensor, asked);
    };
    const char* query = "blk.0.attn_q.weight";
    EXPECT(of(query, TensorType::bf16, 64, Quantise::int4) == Quantise::int4);
    EXPECT(of(query, TensorType::f32, 64, Quantise::int8) == Quantise::int8);
    EXPECT(of(query, TensorType::f32, 64, Quantise::none) == Quantise::none);
    EXPECT(of(query, TensorType::f16, 48, Quantise::int4) == Quantise::none);
    EXPECT(of("token_embd.weight", TensorType::f16, 64, Quantise::int4) == Quantise::int8);
    EXPECT(of("output.weight", TensorType::f16, 64, Quantise::int4) == Quantise::int8);
    EXPECT(of("blk.0.ffn_gate_inp.weight", TensorType::f32, 64, Quantise::int4) == Quantise::none);
    std::shared_ptr<LoadedModel> model;
    LoadOptions options;
    options.quantise = Quantise::int4;
    EXPECT_EQ(load_tiny(of_type(TensorType::bf16), options, &model).message, std::string());
    EXPECT(model->quantise == Quantise::int4);
    EXPECT(model->weights.embedding.kind == cpu::WeightKind::u8);
    EXPECT(model->weights.layers[0].down.kind == cpu::WeightKind::u4);
    EXPECT_EQ(model->weights.layers[1].query_key_value.part_count, 1);
}

TEST(bits_do_not_depend_on_the_threads) {
    LoadOptions options;
    options.quantise = Quantise::int4;
    std::shared_ptr<LoadedModel> one, three;
    options.threads = 1;
    EXPECT(load_tiny(of_type(TensorType::bf16), options, &one).ok());
    options.threads = 3;
    EXPECT(load_tiny(of_type(TensorType::bf16), options, &three).ok());
    EXPECT(one->weights.bytes == three->weights.bytes &&
           std::memcmp(one->weights.data, three->weights.data,
                       static_cast<size_t>(one->weights.bytes)) == 0);
}

TEST(what_makes_no_sense_is_refused) {
    LoadOptions options;
    options.quantise = Quantise::int8;
    EXPECT(mentions(load_error({}, options), "quantised already (tensor 'token_embd.weight' is "
                                             "Q4_1): leave --quantize out"));
    TinyLlama mixed = of_type(TensorType::bf16);
    mixed.value_type = TensorType::q8_0;
    EXPECT(mentions(load_error(mixed, options), "'blk.0.attn_v.weight' is Q8_0"));
    options.exact = true;
    EXPECT(mentions(load_error(of_type(TensorType::bf16), options), "leave it or --quantize out"));
    options.exact = false;
    TinyLlama infinite = of_type(TensorType::f32);
    infinite.tied = false;
    infinite.without = "output";
    infinite.extra = [](GgufBytes& file) {
        Random random(1);
        TensorSpec spec = random_tensor(random, "output.weight", TensorType::f32, 64, 101);
        const float weight = INFINITY;
        std::memcpy(spec.data.data() + 4000, &weight, sizeof weight);
        file.tensor(std::move(spec));
    };
    EXPECT(mentions(load_error(infinite, options),
                    "'output.weight' has weights that no scale of 16 bits fits"));
    Quantise quantise;
    EXPECT(quantise_from_name("int4", &quantise) && quantise == Quantise::int4);
    EXPECT(quantise_from_name("", &quantise) && quantise == Quantise::none);
    EXPECT(!quantise_from_name("int3", &quantise));
}

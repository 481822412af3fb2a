// Row primitives (norm, quantise, rope, swiglu, geglu, add) and sampler primitives on every
// instruction set against `ref`: equal bits over odd lengths and numbers that hurt.
#include "ops_testing.h"

namespace sublimate::cpu::testing {
namespace {

constexpr int32_t GUARD = 16; // numbers behind every output that must stay as they were
constexpr float UNTOUCHED = 12345.0f;

void check_norm(Random& random, int32_t columns) {
    const auto x = random.floats(columns, -3.0f, 3.0f);
    const auto weight = random.floats(columns, -2.0f, 2.0f);
    std::vector<float> expected(static_cast<size_t>(columns + GUARD), UNTOUCHED);
    ops_for(Isa::ref).rms_norm(x.data(), weight.data(), 1e-5f, columns, expected.data());
    for (const Ops* ops : other_isas()) {
        std::vector<float> out(static_cast<size_t>(columns + GUARD), UNTOUCHED);
        ops->rms_norm(x.data(), weight.data(), 1e-5f, columns, out.data());
        compare_bits(std::string(ops->name) + " rms_norm " + std::to_string(columns),
                     expected.data(), out.data(), columns + GUARD);
    }
}

// One group each of: plain numbers, zeros, subnormals, huge, infinite, NaN, ties.
std::vector<float> awkward_groups(Random& random) {
    std::vector<float> x = random.floats(7 * GROUP_COLUMNS, -3.0f, 3.0f);
    for (int32_t i = 0; i < GROUP_COLUMNS; ++i) {
        const auto at = static_cast<size_t>(i);
        x[1 * GROUP_COLUMNS + at] = i % 2 == 0 ? 0.0f : -0.0f;
        x[2 * GROUP_COLUMNS + at] *= 1e-40f;
        x[3 * GROUP_COLUMNS + at] *= 1e38f;
        x[6 * GROUP_COLUMNS + at] = static_cast<float>(i - 16) + 0.5f;
    }
    x[4 * GROUP_COLUMNS + 3] = -HUGE_VALF;
    x[5 * GROUP_COLUMNS + 9] = std::nanf("");
    x[6 * GROUP_COLUMNS] = 127.0f;
    return x;
}

void check_halves(Random& random, int32_t columns) {
    std::vector<int8_t> values(static_cast<size_t>(columns));
    for (int8_t& value : values) value = static_cast<int8_t>(random.below(256) - 128);
    std::vector<int32_t> expected(static_cast<size_t>(columns / 16));
    ops_for(Isa::ref).add_halves(values.data(), columns, expected.data());
    for (const Ops* ops : other_isas()) {
        std::vector<int32_t> sums(expected.size() + GUARD, 99);
        ops->add_halves(values.data(), columns, sums.data());
        compare_bits(std::string(ops->name) + " add_halves", expected.data(), sums.data(),
                     static_cast<int64_t>(expected.size()));
        if (sums[expected.size()] != 99) fail(std::string(ops->name) + " add_halves overran");
    }
}

void check_quantise(const std::vector<float>& x) {
    const auto columns = static_cast<int32_t>(x.size());
    const size_t groups = x.size() / GROUP_COLUMNS;
    std::vector<int8_t> values(x.size());
    std::vector<float> scales(groups);
    std::vector<int32_t> sums(groups);
    ops_for(Isa::ref).quantise(x.data(), columns, values.data(), scales.data(), sums.data());
    for (const Ops* ops : other_isas()) {
        std::vector<int8_t> values_out(x.size() + GUARD, 99);
        std::vector<float> scales_out(groups + GUARD, UNTOUCHED);
        std::vector<int32_t> sums_out(groups + GUARD, 99);
        ops->quantise(x.data(), columns, values_out.data(), scales_out.data(), sums_out.data());
        const std::string name = std::string(ops->name) + " quantise";
        compare_bits(name + " values", values.data(), values_out.data(), columns);
        compare_bits(name + " sums", sums.data(), sums_out.data(), static_cast<int64_t>(groups));
        for (size_t g = 0; g < groups; ++g) { // any NaN will do
            if (std::isnan(scales[g]) && std::isnan(scales_out[g])) continue;
            compare_bits(name + " scale", &scales[g], &scales_out[g], 1);
        }
        if (values_out[x.size()] != 99 || scales_out[groups] != UNTOUCHED) fail(name + " overran");
    }
}

void check_to_bf16(Random& random, int32_t count) {
    auto x = random.floats(count, -3.0f, 3.0f);
    x[0] = HUGE_VALF;
    x[x.size() / 2] = std::nanf("");
    x[x.size() - 1] = 1.00390625f; // a tie
    for (const Ops* ops : other_isas()) {
        std::vector<uint16_t> out(x.size() + GUARD, 99);
        ops->to_bf16(x.data(), count, out.data());
        const std::string name = std::string(ops->name) + " to_bf16";
        for (size_t i = 0; i < x.size(); ++i) {
            const uint16_t expected = float_to_bf16(x[i]);
            compare_bits(name, &expected, &out[i], 1);
        }
        if (out[x.size()] != 99) fail(name + " overran");
    }
}

void check_rope(Random& random, int32_t heads, int32_t head_dim, int32_t rope_dim) {
    const auto x = random.floats(heads * head_dim, -3.0f, 3.0f);
    const auto cos_sin = random.floats(rope_dim, -1.0f, 1.0f);
    auto expected = x;
    ops_for(Isa::ref).rope(expected.data(), cos_sin.data(), heads, head_dim, rope_dim);
    for (const Ops* ops : other_isas()) {
        auto out = x;
        ops->rope(out.data(), cos_sin.data(), heads, head_dim, rope_dim);
        compare_bits(std::string(ops->name) + " rope " + std::to_string(rope_dim), expected.data(),
                     out.data(), heads * head_dim);
    }
}

void check_hadamard(Random& random, int32_t heads, int32_t head_dim) {
    const auto x = random.floats(heads * head_dim, -3.0f, 3.0f);
    auto expected = x;
    ops_for(Isa::ref).hadamard(expected.data(), heads, head_dim);
    for (const Ops* ops : other_isas()) {
        auto out = x;
        ops->hadamard(out.data(), heads, head_dim);
        compare_bits(std::string(ops->name) + " hadamard " + std::to_string(head_dim),
                     expected.data(), out.data(), heads * head_dim);
    }
    // Twice is once back, and lengths stay.
    double before = 0.0, after = 0.0;
    for (size_t i = 0; i < x.size(); ++i) {
        before += double(x[i]) * double(x[i]);
        after += double(expected[i]) * double(expected[i]);
    }
    ops_for(Isa::ref).hadamard(expected.data(), heads, head_dim);
    for (size_t i = 0; i < x.size(); ++i)
        if (std::abs(expected[i] - x[i]) > 1e-5f) fail("hadamard is its own inverse");
    if (std::abs(before - after) > 1e-5 * before) fail("hadamard keeps lengths");
}

void check_elementwise(Random& random, int32_t count) {
    auto gate = random.floats(count, -30.0f, 30.0f);
    const auto up = random.floats(count, -3.0f, 3.0f);
    gate[0] = -200.0f;
    gate[gate.size() / 2] = 200.0f;
    std::vector<float> expected(static_cast<size_t>(count + GUARD), UNTOUCHED);
    ops_for(Isa::ref).swiglu(gate.data(), up.data(), count, expected.data());
    std::vector<float> gelu(static_cast<size_t>(count + GUARD), UNTOUCHED);
    ops_for(Isa::ref).geglu(gate.data(), up.data(), count, gelu.data());
    auto expected_sum = gate;
    ops_for(Isa::ref).add(expected_sum.data(), up.data(), count);
    for (int32_t i = 0; i < count; ++i) {
        const auto at = static_cast<size_t>(i);
        const double silu = gate[at] / (1.0 + std::exp(-static_cast<double>(gate[at])));
        const auto truth = static_cast<float>(silu * up[at]);
        compare_near("ref swiglu against double", &truth, &expected[at], 1, 1e-6f);
        const double g = gate[at];
        const double inner = std::sqrt(2.0 / M_PI) * (g + 0.044715 * g * g * g);
        const auto tanh_form = static_cast<float>(0.5 * g * (1.0 + std::tanh(inner)) * up[at]);
        compare_near("ref geglu against double", &tanh_form, &gelu[at], 1, 2e-6f);
    }
    for (const Ops* ops : other_isas()) {
        std::vector<float> out(static_cast<size_t>(count + GUARD), UNTOUCHED);
        ops->swiglu(gate.data(), up.data(), count, out.data());
        const std::string name = ops->name;
        compare_bits(name + " swiglu", expected.data(), out.data(), count + GUARD);
        ops->geglu(gate.data(), up.data(), count, out.data());
        compare_bits(name + " geglu", gelu.data(), out.data(), count + GUARD);
        auto sum = gate;
        ops->add(sum.data(), up.data(), count);
        compare_bits(name + " add", expected_sum.data(), sum.data(), count);
        const float kept = gate[0];
        gate[0] = std::nanf("");
        ops->swiglu(gate.data(), up.data(), count, out.data());
        if (!std::isnan(out[0])) fail(name + " swiglu lost a NaN");
        ops->geglu(gate.data(), up.data(), count, out.data());
        if (!std::isnan(out[0])) fail(name + " geglu lost a NaN");
        gate[0] = kept;
    }
}

// ---- sampler ----------------------------------------------------------------------------------

std::vector<float> awkward_logits(Random& random, int32_t count) {
    auto logits = random.floats(count, -12.0f, 12.0f);
    for (float& logit : logits) {
        if (random.below(9) == 0) logit = -HUGE_VALF;
        if (random.below(9) == 0) logit = std::floor(logit); // ties
    }
    return logits;
}

void check_sampler(Random& random, int32_t count) {
    const auto logits = awkward_logits(random, count);
    const Ops& ref = ops_for(Isa::ref);
    const float maximum = ref.max_value(logits.data(), count);
    const float inverse_temperature = random.between(0.3f, 4.0f);
    const float floor = random.below(2) == 0 ? -HUGE_VALF : random.between(-12.0f, 12.0f);
    const uint64_t seed = random.bits();
    const int32_t position = random.below(100000);
    const int32_t best = ref.argmax(logits.data(), count);
    const float sum = ref.sum_exp(logits.data(), count, maximum, inverse_temperature);
    const int32_t drawn =
        ref.gumbel_argmax(logits.data(), count, inverse_temperature, floor, seed, position);
    for (const Ops* ops : other_isas()) {
        const std::string name = std::string(ops->name) + " count " + std::to_string(count);
        const int32_t best_out = ops->argmax(logits.data(), count);
        const float maximum_out = ops->max_value(logits.data(), count);
        compare_bits(name + " argmax", &best, &best_out, 1);
        compare_bits(name + " max_value", &maximum, &maximum_out, 1);
        if (maximum > -HUGE_VALF) {
            const float sum_out = ops->sum_exp(logits.data(), count, maximum, inverse_temperature);
            compare_bits(name + " sum_exp", &sum, &sum_out, 1);
        }
        const int32_t drawn_out =
            ops->gumbel_argmax(logits.data(), count, inverse_temperature, floor, seed, position);
        compare_bits(name + " gumbel_argmax", &drawn, &drawn_out, 1);
    }
}

void check_finite(Random& random, int32_t count) {
    constexpr uint32_t BAD[] = {0x7f800000, 0xff800000, 0x7fc00000, 0xffffffff};
    auto logits = random.floats(count, -1e38f, 1e38f);
    auto tables = other_isas();
    tables.push_back(&ops_for(Isa::ref));
    for (const Ops* ops : tables) {
        const std::string name = std::string(ops->name) + " all_finite";
        if (!ops->all_finite(logits.data(), count)) fail(name + ": all are finite");
        for (uint32_t bits : BAD) {
            const auto at = static_cast<size_t>(random.below(count));
            const float kept = logits[at];
            std::memcpy(&logits[at], &bits, sizeof(bits));
            if (ops->all_finite(logits.data(), count)) fail(name + ": one is not");
            logits[at] = kept;
        }
    }
}

// Gumbel noise over flat logits draws every token equally often: a check of the draw itself, not of
// a twin.
void check_draws() {
    constexpr int32_t COUNT = 100;
    constexpr int32_t DRAWS = 20000;
    const std::vector<float> logits(COUNT, 1.0f);
    for (const Ops* ops : other_isas()) {
        int32_t seen[COUNT] = {};
        for (int32_t i = 0; i < DRAWS; ++i) {
            seen[ops->gumbel_argmax(logits.data(), COUNT, 1.0f, -HUGE_VALF, 42, i)]++;
        }
        double statistic = 0.0;
        for (int32_t count : seen) statistic += (count - 200.0) * (count - 200.0) / 200.0;
        // Chi-square with 99 degrees of freedom: above 160 less than once in 10,000.
        if (statistic > 160.0) fail(std::string(ops->name) + " draws are not even");
    }
}

// Logits spread as a language model's, from one that leads by far to nearly flat: which runs are
// left out differs from draw to draw, and the outcome is the twin's, which leaves out none.
void check_many_draws(Random& random) {
    constexpr int32_t COUNT = 4000;
    constexpr int32_t DRAWS = 40;
    const Ops& ref = ops_for(Isa::ref);
    for (float spread : {0.01f, 1.0f, 4.0f, 30.0f}) {
        for (float inverse_temperature : {0.05f, 1.0f, 20.0f, 1e5f}) {
            const auto logits = random.floats(COUNT, -spread, spread);
            for (int32_t position = 0; position < DRAWS; position++) {
                const int32_t drawn = ref.gumbel_argmax(logits.data(), COUNT, inverse_temperature,
                                                        -HUGE_VALF, 77, position);
                for (const Ops* ops : other_isas()) {
                    const int32_t out = ops->gumbel_argmax(
                        logits.data(), COUNT, inverse_temperature, -HUGE_VALF, 77, position);
                    compare_bits(std::string(ops->name) + " many draws", &drawn, &out, 1);
                }
            }
        }
    }
}

void check_dispatch() {
    for (Isa isa : {Isa::ref, Isa::portable, Isa::avx2, Isa::avx512, Isa::amx}) {
        Isa found = Isa::ref;
        if (!isa_from_name(isa_name(isa), &found) || found != isa) fail("isa names");
        if (isa_runs(isa) && ops_for(isa).isa != isa) fail("a table knows itself");
    }
    Isa untouched = Isa::avx2;
    if (isa_from_name("sse9", &untouched) || untouched != Isa::avx2) fail("unknown isa name");
    setenv("SUBLIMATE_ISA", "portable", 1);
    if (best_isa() != Isa::portable) fail("SUBLIMATE_ISA chooses");
    unsetenv("SUBLIMATE_ISA");
    if (best_isa() == Isa::ref) fail("ref is never the best");
}

} // namespace
} // namespace sublimate::cpu::testing

int main() {
    using namespace sublimate::cpu;
    using namespace sublimate::cpu::testing;
    Random random(7);
    for (int32_t columns : {1, 2, 15, 16, 17, 32, 100, 576, 1536}) check_norm(random, columns);
    check_quantise(awkward_groups(random));
    for (int32_t columns : {32, 64, 96, 1024}) check_halves(random, columns);
    for (int32_t groups : {1, 3, 18, 48}) {
        check_quantise(random.floats(groups * GROUP_COLUMNS, -5.0f, 5.0f));
    }
    for (int32_t count : {3, 16, 31, 576}) check_to_bf16(random, count);
    for (int32_t dim : {16, 64, 80, 256}) check_rope(random, 3, dim, dim);
    check_rope(random, 2, 64, 22);
    for (int32_t dim : {16, 48, 64, 80, 96, 128, 256}) check_hadamard(random, 3, dim);
    for (int32_t count : {1, 5, 16, 31, 576, 1536}) check_elementwise(random, count);
    for (int32_t count : {1, 2, 15, 16, 17, 63, 64, 65, 100, 129, 1000, 4099}) {
        for (int32_t round = 0; round < 8; ++round) check_sampler(random, count);
        check_finite(random, count);
    }
    check_draws();
    check_many_draws(random);
    check_dispatch();
    return finish("test_ops_rows");
}

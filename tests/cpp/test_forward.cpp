// The model step: against its twin in double precision, and the promise that a row's bits do not
// depend on its company, on chunks, on threads or on who wrote its pages.
#include <algorithm>
#include <string>
#include <vector>

#include "core/cpu/allocations.h"
#include "core/cpu/numbers.h"
#include "forward_twin.h"
#include "test.h"

namespace {

using namespace sublimate;
using namespace sublimate::test;

constexpr double EXACT_BAR = 1e-4;   // of the largest logit
constexpr double DEFAULT_BAR = 5e-2; // two random layers with int8 activations and bf16 pages

std::shared_ptr<LoadedModel> load(const TinyLlama& tiny, LoadOptions options = {}) {
    std::shared_ptr<LoadedModel> model;
    if (options.kv_bytes == 0) options.kv_bytes = 8 << 20;
    Status status = load_tiny(tiny, options, &model);
    CHECK_BECAUSE(status.ok(), status.message.c_str());
    return model;
}

// Rows of whole blocks of 256, types mixed within a layer.
TinyLlama k_model(TensorType type) {
    TinyLlama tiny;
    tiny.hidden = 256;
    tiny.feed_forward = 512;
    tiny.head_dim = 64;
    tiny.type = type;
    tiny.value_type = type == TensorType::q4_k ? TensorType::q6_k : TensorType::q5_1;
    return tiny;
}

// All that a change of shape, type or instruction set can touch.
std::vector<TinyLlama> shapes() {
    std::vector<TinyLlama> all(8);
    for (size_t i = 0; i < 6; i++)
        all[i].type = all[i].value_type =
            std::vector<TensorType>{TensorType::f32,  TensorType::f16,  TensorType::bf16,
                                    TensorType::q8_0, TensorType::q4_0, TensorType::q4_1}[i];
    all[1].kv_heads = 4; // no sharing
    all[2].kv_heads = 1;
    all[3].head_dim = 48; // whole groups only with an even number of heads
    all[3].kv_heads = 4;
    all[4].tied = false;
    all[5].hidden = 96;
    all[5].feed_forward = 160;
    all[6].value_type = TensorType::q8_0; // not fused
    all[6].heads = 6;
    all[7].type = TensorType::f16; // feed-forward columns that are no whole panels
    all[7].value_type = TensorType::f16;
    all[7].feed_forward = 88 + 5;
    for (TensorType type : {TensorType::q2_k, TensorType::iq4_xs, TensorType::q3_k,
                            TensorType::q4_k, TensorType::q5_k, TensorType::q6_k})
        all.push_back(k_model(type));
    all.emplace_back();
    all.back().type = TensorType::iq4_nl;
    all.back().value_type = TensorType::mxfp4;
    return all;
}

TinyLlama expert_model() {
    TinyLlama tiny;
    tiny.architecture = "qwen3moe";
    tiny.experts = 40; // three panels of the router, the last one not full
    tiny.experts_used = 4;
    tiny.type = tiny.value_type = TensorType::q4_0;
    return tiny;
}

// One of each architecture, with a window that ends within a page where there is one.
std::vector<TinyLlama> families() {
    std::vector<TinyLlama> all;
    for (const Architecture& architecture : ARCHITECTURES) {
        all.emplace_back();
        all.back().architecture = architecture.name;
        all.back().layers = std::max(2, architecture.full_attention_every);
        all.back().window = 37;
        all.back().type = all.back().value_type = TensorType::q8_0;
    }
    return all;
}

std::vector<TinyLlama> shapes_and_families() {
    std::vector<TinyLlama> all = shapes();
    for (const TinyLlama& tiny : families()) all.push_back(tiny);
    return all;
}

} // namespace

TEST(exact_mode_equals_the_twin) {
    for (const TinyLlama& tiny : shapes_and_families()) {
        LoadOptions options;
        options.exact = true;
        auto model = load(tiny, options);
        auto tokens = random_tokens(1, 70);
        Driver driver(*model, tokens);
        auto twin = twin_logits(*model, ropes_of(tiny, model->config), tokens[0]);
        double error = worst_error(driver.alone(0, 70), twin);
        EXPECT_NEAR(error, 0.0, EXACT_BAR);
    }
}

TEST(default_mode_is_near_the_twin) {
    for (const TinyLlama& tiny : shapes_and_families()) {
        auto model = load(tiny);
        auto tokens = random_tokens(1, 70);
        Driver driver(*model, tokens);
        auto twin = twin_logits(*model, ropes_of(tiny, model->config), tokens[0]);
        double error = worst_error(driver.alone(0, 70), twin);
        EXPECT_NEAR(error, 0.0, DEFAULT_BAR);
    }
}

TEST(yarn_equals_the_twin) {
    TinyLlama tiny;
    tiny.extra = [](GgufBytes& file) {
        file.text("llama.rope.scaling.type", "yarn");
        file.value("llama.rope.scaling.factor", ValueType::f32, 4.0f);
        file.value("llama.rope.scaling.original_context_length", ValueType::u32, uint32_t{64});
        file.value("llama.rope.dimension_count", ValueType::u32, uint32_t{12});
    };
    LoadOptions options;
    options.exact = true;
    auto model = load(tiny, options);
    auto tokens = random_tokens(1, 100);
    Driver driver(*model, tokens);
    auto twin = twin_logits(*model, ropes_of(tiny, model->config), tokens[0]);
    EXPECT_NEAR(worst_error(driver.alone(0, 100), twin), 0.0, EXACT_BAR);
}

void check_chunks(const TinyLlama& tiny, const std::vector<int32_t>& chunks) {
    auto model = load(tiny);
    auto tokens = random_tokens(1, 90);
    std::vector<Logits> whole = Driver(*model, tokens).alone(0, 90);
    for (int32_t chunk : chunks) EXPECT(same_bits(Driver(*model, tokens).alone(0, chunk), whole));
}

TEST(chunks_do_not_change_bits) {
    for (const TinyLlama& tiny : shapes()) check_chunks(tiny, {1, 2, 5, 17, 32, 64});
    for (const TinyLlama& tiny : families()) check_chunks(tiny, {17});
}

LoadOptions int8_pages() {
    LoadOptions options;
    options.kv_type = cpu::KvType::int8;
    return options;
}

// With a window, a soft cap and heads that end within a line as well.
TEST(int8_pages_are_near_the_twin_and_chunks_do_not_change_bits) {
    std::vector<TinyLlama> all(3);
    all[1].architecture = "gemma2";
    all[1].window = 37;
    all[1].type = all[1].value_type = TensorType::q8_0;
    all[2].head_dim = 48;
    for (const TinyLlama& tiny : all) {
        auto model = load(tiny, int8_pages());
        EXPECT(model->model->kv().layout.type == cpu::KvType::int8);
        auto tokens = random_tokens(1, 70);
        auto twin = twin_logits(*model, ropes_of(tiny, model->config), tokens[0]);
        std::vector<Logits> whole = Driver(*model, tokens).alone(0, 70);
        EXPECT_NEAR(worst_error(whole, twin), 0.0, DEFAULT_BAR);
        for (int32_t chunk : {1, 17, 64})
            EXPECT(same_bits(Driver(*model, tokens).alone(0, chunk), whole));
        EXPECT(!same_bits(Driver(*load(tiny), tokens).alone(0, 70), whole));
    }
}

void check_company(const TinyLlama& tiny, const LoadOptions& options = {}) {
    constexpr int32_t SEQUENCES = 32;
    constexpr int32_t LENGTH = 40;
    for (Arithmetic arithmetic : {Arithmetic::prompt, Arithmetic::generated}) {
        auto model = load(tiny, options);
        auto tokens = random_tokens(SEQUENCES, LENGTH);
        std::vector<std::vector<Logits>> alone;
        {
            Driver driver(*model, tokens);
            for (int32_t s = 0; s < SEQUENCES; s++)
                alone.push_back(driver.alone(s, LENGTH, arithmetic));
        }
        Driver together(*model, tokens);
        for (int32_t position = 0; position < LENGTH; position++) {
            std::vector<Part> parts;
            for (int32_t s = 0; s < SEQUENCES; s++) parts.push_back({s, position, 1, arithmetic});
            // The order of the rows is nobody's business either.
            std::rotate(parts.begin(), parts.begin() + position % SEQUENCES, parts.end());
            auto rows = together.step(parts);
            for (size_t i = 0; i < parts.size(); i++)
                EXPECT(same_bits(
                    rows[i],
                    alone[static_cast<size_t>(parts[i].sequence)][static_cast<size_t>(position)]));
        }
    }
}

TEST(company_does_not_change_bits) {
    check_company({});
    check_company(k_model(TensorType::q4_k));
    check_company(k_model(TensorType::q6_k));
    check_company(expert_model());
    check_company({}, int8_pages());
}

TEST(decoding_beside_a_prompt_does_not_change_bits) {
    auto model = load({});
    auto tokens = random_tokens(3, 64);
    std::vector<Logits> first = Driver(*model, tokens).alone(0, 64);
    std::vector<Logits> second = Driver(*model, tokens).alone(1, 64);
    std::vector<Logits> decoding;
    {
        Driver driver(*model, tokens);
        decoding = driver.alone(2, 1, Arithmetic::generated);
    }
    Driver mixed(*model, tokens);
    for (int32_t position = 0; position < 8; position++) {
        auto rows = mixed.step(
            {{0, position * 8, 8}, {2, position, 1, Arithmetic::generated}, {1, position * 8, 8}});
        for (size_t i = 0; i < 8; i++) {
            EXPECT(same_bits(rows[i], first[static_cast<size_t>(position) * 8 + i]));
            EXPECT(same_bits(rows[9 + i], second[static_cast<size_t>(position) * 8 + i]));
        }
        EXPECT(same_bits(rows[8], decoding[static_cast<size_t>(position)]));
    }
}

TEST(shared_prefix_pages_do_not_change_bits) {
    auto model = load({});
    auto tokens = random_tokens(2, 80);
    tokens[1] = tokens[0];
    std::vector<Logits> whole = Driver(*model, tokens).alone(0, 80);
    Driver driver(*model, tokens);
    driver.alone(0, 80);
    driver.share_page(1, 0, 0);
    driver.share_page(1, 1, 0);
    auto tail = driver.step({{1, 64, 16}});
    for (size_t i = 0; i < 16; i++) EXPECT(same_bits(tail[i], whole[64 + i]));
}

// Where both arithmetics are one function, pages that decoding wrote are pages that a prompt would
// have written.
TEST(pages_of_decoding_equal_pages_of_a_prompt) {
    auto model = load({});
    if (!model->model->same_arithmetic()) return;
    auto tokens = random_tokens(1, 50);
    std::vector<Logits> prompt = Driver(*model, tokens).alone(0, 50);
    EXPECT(same_bits(Driver(*model, tokens).alone(0, 1, Arithmetic::generated), prompt));
}

// As on tiles: the prompt has a matmul of its own, which reads quantised weights' rows as bf16.
void wide_matmul(const cpu::PackedMatrix& matrix, const cpu::Activations& x, int32_t row_begin,
                 int32_t row_end, int32_t panel_begin, int32_t panel_end, float* out,
                 int64_t out_stride) {
    std::vector<float> weights(static_cast<size_t>(matrix.columns));
    int32_t end = std::min(panel_end * cpu::PANEL_ROWS, matrix.rows);
    for (int32_t output = panel_begin * cpu::PANEL_ROWS; output < end; output++) {
        unpack_row(matrix, output, weights.data());
        for (int32_t row = row_begin; row < row_end; row++) {
            double sum = 0.0;
            for (int32_t c = 0; c < matrix.columns; c++) {
                int64_t at = int64_t{row} * x.columns + c;
                bool quantised = cpu::is_quantised(matrix.kind);
                float value = quantised ? cpu::bf16_to_float(x.bf16[at]) : x.f32[at];
                sum += double(weights[static_cast<size_t>(c)]) * double(value);
            }
            out[row * out_stride + output] = static_cast<float>(sum);
        }
    }
}

void check_two_arithmetics(const TinyLlama& tiny) {
    auto model = load(tiny);
    cpu::Ops ops = model->model->ops();
    ops.matmul_prompt = wide_matmul;
    Status status =
        cpu::CpuModel::create(model->config, model->weights, ropes_of(tiny, model->config), ops,
                              cpu::KvType::bf16, 8 << 20, *model->pool, &model->model);
    CHECK(status.ok() && !model->model->same_arithmetic());
    auto tokens = random_tokens(2, 80);
    auto twin = twin_logits(*model, ropes_of(tiny, model->config), tokens[0]);
    std::vector<Logits> prompt = Driver(*model, tokens).alone(0, 80);
    std::vector<Logits> decoding = Driver(*model, tokens).alone(1, 1, Arithmetic::generated);
    EXPECT_NEAR(worst_error(prompt, twin), 0.0, DEFAULT_BAR);
    Driver mixed(*model, tokens);
    for (int32_t i = 0; i < 8; i++) {
        size_t at = static_cast<size_t>(i);
        Part generated = {1, i, 1, Arithmetic::generated};
        Part rows = {0, i * 10, 10};
        auto logits = i % 2 == 0 ? mixed.step({generated, rows}) : mixed.step({rows, generated});
        EXPECT(same_bits(logits[i % 2 == 0 ? 0 : 10], decoding[at]));
        for (size_t r = 0; r < 10; r++)
            EXPECT(same_bits(logits[r + (i % 2 == 0 ? 1 : 0)], prompt[at * 10 + r]));
    }
}

TEST(two_arithmetics_keep_their_bits_in_one_step) {
    check_two_arithmetics({});
    check_two_arithmetics(expert_model());
}

void check_threads(const TinyLlama& tiny, const std::vector<int32_t>& counts) {
    auto tokens = random_tokens(1, 90);
    std::vector<Logits> wanted;
    for (int32_t threads : counts) {
        LoadOptions options;
        options.threads = threads;
        auto model = load(tiny, options);
        auto logits = Driver(*model, tokens).alone(0, 45);
        if (wanted.empty()) wanted = logits;
        EXPECT(same_bits(logits, wanted));
    }
}

TEST(threads_do_not_change_bits) {
    check_threads({}, {1, 2, 3, 5});
    check_threads(expert_model(), {1, 3});
}

void check_instruction_sets(const TinyLlama& tiny, LoadOptions options = {}) {
    auto tokens = random_tokens(1, 60);
    std::vector<Logits> wanted;
    for (const char* name : {"ref", "avx2", "avx512"}) { // portable's attention rounds otherwise
        cpu::Isa isa;
        CHECK(cpu::isa_from_name(name, &isa));
        if (!cpu::isa_runs(isa)) continue;
        options.isa = name;
        auto model = load(tiny, options);
        auto logits = Driver(*model, tokens).alone(0, 60);
        if (wanted.empty()) wanted = logits;
        EXPECT(same_bits(logits, wanted));
    }
}

// Steps of both phases by every variant that a load may choose, changed between steps.
TEST(variants_do_not_change_bits) {
    auto tokens = random_tokens(1, 90);
    LoadOptions options;
    options.threads = 4;
    auto model = load({}, options);
    cpu::CpuModel& compute = *model->model;
    EXPECT_EQ(compute.candidates().threads.size(), 1u); // four were asked for
    compute.set_candidates({cpu::thread_counts(4), cpu::equal_ops(compute.ops().isa)});
    std::vector<cpu::Variant> variants;
    for (int32_t threads : compute.candidates().threads)
        for (const cpu::Ops* ops : compute.candidates().ops) variants.push_back({ops, threads});
    std::vector<Logits> wanted = Driver(*model, tokens).alone(0, 45);
    auto set = [&compute](const cpu::Variant& variant) {
        for (cpu::Phase phase : {cpu::Phase::few_rows, cpu::Phase::many_rows})
            compute.set_choice(phase, {variant, {}});
    };
    for (const cpu::Variant& variant : variants) {
        set(variant);
        for (int32_t chunk : {45, 3})
            EXPECT(same_bits(Driver(*model, tokens).alone(0, chunk), wanted));
    }
    Driver driver(*model, tokens);
    for (int32_t position = 0; position < 90; position += 9) {
        set(variants[static_cast<size_t>(position / 9) % variants.size()]);
        auto rows = driver.step({{0, position, 9}});
        for (size_t i = 0; i < 9; i++)
            EXPECT(same_bits(rows[i], wanted[static_cast<size_t>(position) + i]));
    }
}

TEST(instruction_sets_agree) {
    check_instruction_sets({});
    for (TensorType type : {TensorType::q4_k, TensorType::q5_k, TensorType::q6_k})
        check_instruction_sets(k_model(type));
    check_instruction_sets(expert_model());
    check_instruction_sets({}, int8_pages());
}

void check_allocations(const TinyLlama& tiny) {
    auto model = load(tiny);
    auto tokens = random_tokens(1, 90);
    std::vector<int32_t> positions(90), table = {0, 1, 2};
    for (int32_t i = 0; i < 90; i++) positions[static_cast<size_t>(i)] = i;
    int64_t before = cpu::heap_allocations();
    cpu::watch_allocations(true);
    int64_t watched = 0;
    for (int32_t rows : {90, 1, 4, 32}) {
        Segment segment = {0, 0, rows, 0, rows, Arithmetic::prompt, 0, 0, 0};
        int32_t last = rows - 1;
        Step step = {rows,     1,     1,           3, tokens[0].data(), positions.data(),
                     &segment, &last, table.data()};
        model->model->forward(step);
        model->model->for_rows(8, [](int32_t) {});
    }
    watched = cpu::heap_allocations() - before;
    ::operator delete(::operator new(1)); // the hook works
    cpu::watch_allocations(false);
    EXPECT_EQ(watched, 0);
    EXPECT(cpu::heap_allocations() > before);
}

TEST(steps_allocate_nothing) {
    check_allocations({});
    check_allocations(expert_model());
}

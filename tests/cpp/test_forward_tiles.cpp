// The model step as AMX runs it, on any machine: the table's tile kernels over tiles that are plain
// arrays. The promises of test_forward.cpp, where prompt and generated rows have arithmetics of
// their own.
#include "core/cpu/lanes_portable.inl.h"

#include "core/cpu/attention_tiles.inl.h"
#include "core/cpu/matmul_tiles.inl.h"
#include "core/cpu/matmul_tiles_int8.inl.h"

#include "software_tiles.h"

#include "forward_twin.h"
#include "test.h"

namespace {

using namespace sublimate;
using namespace sublimate::test;
using cpu::testing::SoftwareInt8Tiles;
using cpu::testing::SoftwareTiles;

constexpr double DEFAULT_BAR = 5e-2; // as in test_forward.cpp
constexpr int32_t MANY_ROWS = 16; // from here on generated rows take tiles, as in core/cpu/amx.cpp

void generated_matmul(const cpu::PackedMatrix& matrix, const cpu::Activations& x, int32_t row_begin,
                      int32_t row_end, int32_t panel_begin, int32_t panel_end, float* out,
                      int64_t out_stride) {
    bool tiles = row_end - row_begin >= MANY_ROWS && cpu::has_int8_tiles(matrix.kind);
    auto* matmul =
        tiles ? cpu::matmul_tiles_int8<SoftwareInt8Tiles> : cpu::ops_for(cpu::Isa::portable).matmul;
    matmul(matrix, x, row_begin, row_end, panel_begin, panel_end, out, out_stride);
}

void prompt_matmul(const cpu::PackedMatrix& matrix, const cpu::Activations& x, int32_t row_begin,
                   int32_t row_end, int32_t panel_begin, int32_t panel_end, float* out,
                   int64_t out_stride) {
    auto* matmul = cpu::is_quantised(matrix.kind) ? cpu::matmul_tiles<SoftwareTiles>
                                                  : cpu::ops_for(cpu::Isa::portable).matmul;
    matmul(matrix, x, row_begin, row_end, panel_begin, panel_end, out, out_stride);
}

// The best table that runs here, with tiles where AMX has them; models refer to it.
const cpu::Ops& tiles_table() {
    static const cpu::Ops table = [] {
        cpu::Ops ops = cpu::ops_for(cpu::best_isa());
        ops.matmul = generated_matmul;
        ops.matmul_prompt = prompt_matmul;
        ops.attention_prompt = cpu::attention_tiles<SoftwareTiles>;
        return ops;
    }();
    return table;
}

std::shared_ptr<LoadedModel> load(const TinyLlama& tiny, bool batch_invariant = true) {
    std::shared_ptr<LoadedModel> model;
    LoadOptions options;
    options.kv_bytes = 8 << 20;
    Status status = load_tiny(tiny, options, &model);
    CHECK_BECAUSE(status.ok(), status.message.c_str());
    status = cpu::CpuModel::create(model->config, model->weights, ropes_of(tiny, model->config),
                                   tiles_table(), cpu::KvType::bf16, options.kv_bytes, *model->pool,
                                   &model->model);
    CHECK(status.ok() && !model->model->same_arithmetic());
    model->model->set_batch_invariant(batch_invariant);
    return model;
}

std::vector<TinyLlama> shapes() {
    std::vector<TinyLlama> all(4);
    all[0].type = all[0].value_type = TensorType::q4_1;
    all[1].type = TensorType::q8_0;
    all[1].value_type = TensorType::f16; // not on tiles
    all[1].head_dim = 48;
    all[1].kv_heads = 4;
    all[2].type = TensorType::q4_k;
    all[2].value_type = TensorType::q6_k;
    all[2].hidden = 256;
    all[2].feed_forward = 512;
    all[2].head_dim = 64;
    all[3].architecture = "qwen3moe";
    all[3].type = all[3].value_type = TensorType::q4_0;
    return all;
}

std::vector<Part> first_rows(int32_t count) {
    std::vector<Part> parts;
    for (int32_t s = 0; s < count; s++) parts.push_back({s, 0, 1, Arithmetic::generated});
    return parts;
}

} // namespace

TEST(tiles_are_near_the_twin) {
    for (const TinyLlama& tiny : shapes()) {
        auto model = load(tiny);
        auto tokens = random_tokens(1, 40);
        auto twin = twin_logits(*model, ropes_of(tiny, model->config), tokens[0]);
        EXPECT_NEAR(worst_error(Driver(*model, tokens).alone(0, 40), twin), 0.0, DEFAULT_BAR);
    }
}

TEST(chunks_do_not_change_bits_on_tiles) {
    for (const TinyLlama& tiny : shapes()) {
        auto model = load(tiny);
        auto tokens = random_tokens(1, 40);
        std::vector<Logits> whole = Driver(*model, tokens).alone(0, 40);
        for (int32_t chunk : {9, 33}) // few: plain arrays are slow tiles
            EXPECT(same_bits(Driver(*model, tokens).alone(0, chunk), whole));
    }
}

TEST(a_batch_on_tiles_does_not_change_bits) {
    constexpr int32_t SEQUENCES = 20;
    constexpr int32_t LENGTH = 10;
    for (const TinyLlama& tiny : shapes()) {
        auto model = load(tiny);
        auto tokens = random_tokens(SEQUENCES, LENGTH);
        std::vector<std::vector<Logits>> alone;
        for (int32_t s = 0; s < SEQUENCES; s++)
            alone.push_back(Driver(*model, tokens).alone(s, 1, Arithmetic::generated));
        Driver together(*model, tokens);
        for (int32_t position = 0; position < LENGTH; position++) {
            std::vector<Part> parts;
            for (int32_t s = 0; s < SEQUENCES; s++)
                parts.push_back({s, position, 1, Arithmetic::generated});
            auto rows = together.step(parts);
            for (size_t s = 0; s < rows.size(); s++)
                EXPECT(same_bits(rows[s], alone[s][static_cast<size_t>(position)]));
        }
    }
}

// At the first position attention hands on the value as it is, so that only the products tell which
// arithmetic a row had.
TEST(without_batch_invariance_large_batches_take_the_prompts_products) {
    auto tokens = random_tokens(MANY_ROWS, 1);
    for (bool invariant : {true, false}) {
        auto model = load(shapes()[0], invariant);
        auto generated = Driver(*model, tokens).alone(0, 1, Arithmetic::generated);
        auto prompt = Driver(*model, tokens).alone(0, 1);
        EXPECT(!same_bits(generated, prompt));
        auto few = Driver(*model, tokens).step(first_rows(MANY_ROWS - 1));
        auto many = Driver(*model, tokens).step(first_rows(MANY_ROWS));
        EXPECT(same_bits(few[0], generated[0]));
        EXPECT(same_bits(many[0], invariant ? generated[0] : prompt[0]));
    }
}

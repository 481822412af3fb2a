// Packing weights: what comes out of panels is what the file says, bit for bit; what is missing, of
// the wrong shape or unknown is refused.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "core/cpu/numbers.h"
#include "core/cpu/probe.h"
#include "core/model/pack.h"
#include "test.h"
#include "tiny_llama.h"

namespace {

using namespace sublimate;
using namespace sublimate::test;

constexpr TensorType TYPES[] = {
    TensorType::f32,    TensorType::f16,   TensorType::bf16, TensorType::q8_0,
    TensorType::q4_0,   TensorType::q4_1,  TensorType::q5_0, TensorType::q5_1,
    TensorType::q4_k,   TensorType::q5_k,  TensorType::q6_k, TensorType::q3_k,
    TensorType::iq4_nl, TensorType::mxfp4, TensorType::q2_k, TensorType::iq4_xs};

uint16_t half_at(const TensorSpec& spec, size_t at) {
    uint16_t half;
    std::memcpy(&half, spec.data.data() + at, sizeof half);
    return half;
}

int32_t byte_at(const std::byte* at) {
    return static_cast<int32_t>(*at);
}

// Column i of a block of 256 of Q4_K or Q5_K: twelve bytes hold eight scales and minima of six
// bits.
float twin_k_weight(TensorType type, const std::byte* block, int32_t i) {
    auto half = [&](size_t at) {
        uint16_t bits;
        std::memcpy(&bits, block + at, sizeof bits);
        return cpu::half_to_float(bits);
    };
    const std::byte* packed = block + 4;
    int32_t g = i / 32;
    int32_t scale = byte_at(packed + g % 4) & 63;
    int32_t minimum = byte_at(packed + 4 + g % 4) & 63;
    if (g >= 4) {
        scale = byte_at(packed + 4 + g) % 16 + byte_at(packed + g - 4) / 64 * 16;
        minimum = byte_at(packed + 4 + g) / 16 + byte_at(packed + g) / 64 * 16;
    }
    bool fifth = type == TensorType::q5_k;
    const std::byte* nibbles = packed + 12 + (fifth ? 32 : 0);
    int32_t both = byte_at(nibbles + g / 2 * 32 + i % 32);
    int32_t value = g % 2 == 0 ? both % 16 : both / 16;
    if (fifth) value += (byte_at(packed + 12 + i % 32) >> g & 1) * 16;
    return half(0) * static_cast<float>(scale) * static_cast<float>(value) -
           half(2) * static_cast<float>(minimum);
}

// The same for Q6_K: 128 bytes of nibbles, 64 of bit pairs, 16 scales, d.
float twin_q6_k_weight(const std::byte* block, int32_t i) {
    int32_t within = i % 128;
    int32_t both = byte_at(block + i / 128 * 64 + within % 64);
    int32_t value = within < 64 ? both % 16 : both / 16;
    int32_t pairs = byte_at(block + 128 + i / 128 * 32 + within % 32);
    value += (pairs >> within / 32 * 2 & 3) * 16;
    auto scale = static_cast<int8_t>(block[192 + i / 16]);
    uint16_t bits;
    std::memcpy(&bits, block + 208, sizeof bits);
    return cpu::half_to_float(bits) * static_cast<float>(scale) * static_cast<float>(value - 32);
}

// Q3_K: 32 bytes with a high bit of each of eight columns, 64 of low bit pairs, 12 of scales, d.
float twin_q3_k_weight(const std::byte* block, int32_t i) {
    int32_t low = byte_at(block + 32 + i / 128 * 32 + i % 32) >> i % 128 / 32 * 2 & 3;
    int32_t high = byte_at(block + i % 32) >> i / 32 & 1;
    const std::byte* packed = block + 96;
    int32_t s = i / 16;
    int32_t scale = s < 8 ? byte_at(packed + s) % 16 : byte_at(packed + s - 8) / 16;
    scale += (byte_at(packed + 8 + s % 4) >> s / 4 * 2 & 3) * 16;
    uint16_t bits;
    std::memcpy(&bits, block + 108, sizeof bits);
    return cpu::half_to_float(bits) * static_cast<float>(scale - 32) *
           static_cast<float>(low + 4 * high - 4);
}

// Q2_K: 16 bytes of scale and minimum, 64 of bit pairs, d, dmin.
float twin_q2_k_weight(const std::byte* block, int32_t i) {
    int32_t value = byte_at(block + 16 + i / 128 * 32 + i % 32) >> i % 128 / 32 * 2 & 3;
    int32_t both = byte_at(block + i / 16);
    uint16_t halves[2];
    std::memcpy(halves, block + 80, sizeof halves);
    float scale = cpu::half_to_float(halves[0]) * static_cast<float>(both % 16);
    float minimum = cpu::half_to_float(halves[1]) * static_cast<float>(both / 16);
    return scale * static_cast<float>(value) - minimum;
}

constexpr float NON_LINEAR[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                  1,    13,   25,  38,  53,  69,  89,  113};

// IQ4_XS: d, eight pairs of bits and eight nibbles of scales, then 16 bytes of each 32 columns.
float twin_iq4_xs_weight(const std::byte* block, int32_t i) {
    int32_t g = i / 32;
    int32_t scale = byte_at(block + 4 + g / 2) >> g % 2 * 4 & 15;
    scale += (byte_at(block + 2 + g / 4) >> g % 4 * 2 & 3) * 16;
    int32_t both = byte_at(block + 8 + g * 16 + i % 16);
    uint16_t bits;
    std::memcpy(&bits, block, sizeof bits);
    return cpu::half_to_float(bits) * static_cast<float>(scale - 32) *
           NON_LINEAR[i % 32 < 16 ? both % 16 : both / 16];
}

// Four bits that stand for a value of a table: IQ4_NL (a half before them), MXFP4 (a power of two).
float twin_table_weight(TensorType type, const std::byte* block, int32_t i) {
    static constexpr float E2M1[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    bool halves = type == TensorType::iq4_nl;
    int32_t both = byte_at(block + (halves ? 2 : 1) + i % 16);
    int32_t four = i < 16 ? both % 16 : both / 16;
    if (!halves)
        return std::ldexp(E2M1[four % 8] * (four < 8 ? 1.0f : -1.0f), byte_at(block) - 127);
    uint16_t bits;
    std::memcpy(&bits, block, sizeof bits);
    return cpu::half_to_float(bits) * NON_LINEAR[four];
}

// Weight (row, column) straight from the file's bytes, as the format's description reads.
float twin_weight(const TensorSpec& spec, int32_t columns, int32_t row, int32_t column) {
    size_t element = static_cast<size_t>(row * columns + column);
    size_t block = element / 32;
    size_t i = element % 32;
    if (spec.type == TensorType::f32) {
        float value;
        std::memcpy(&value, spec.data.data() + element * 4, sizeof value);
        return value;
    }
    if (spec.type == TensorType::f16) return cpu::half_to_float(half_at(spec, element * 2));
    if (spec.type == TensorType::bf16) return cpu::bf16_to_float(half_at(spec, element * 2));
    if (spec.type == TensorType::q8_0) {
        float scale = cpu::half_to_float(half_at(spec, block * 34));
        return scale * static_cast<float>(static_cast<int8_t>(spec.data[block * 34 + 2 + i]));
    }
    int32_t k_column = static_cast<int32_t>(element % 256);
    const std::byte* data = spec.data.data();
    if (spec.type == TensorType::q4_k)
        return twin_k_weight(spec.type, data + element / 256 * 144, k_column);
    if (spec.type == TensorType::q5_k)
        return twin_k_weight(spec.type, data + element / 256 * 176, k_column);
    if (spec.type == TensorType::q6_k)
        return twin_q6_k_weight(data + element / 256 * 210, k_column);
    if (spec.type == TensorType::q3_k)
        return twin_q3_k_weight(data + element / 256 * 110, k_column);
    if (spec.type == TensorType::q2_k) return twin_q2_k_weight(data + element / 256 * 84, k_column);
    if (spec.type == TensorType::iq4_xs)
        return twin_iq4_xs_weight(data + element / 256 * 136, k_column);
    if (spec.type == TensorType::iq4_nl || spec.type == TensorType::mxfp4)
        return twin_table_weight(spec.type,
                                 data + block * (spec.type == TensorType::mxfp4 ? 17 : 18),
                                 static_cast<int32_t>(i));
    bool affine = spec.type == TensorType::q4_1 || spec.type == TensorType::q5_1;
    bool fifth = spec.type == TensorType::q5_0 || spec.type == TensorType::q5_1;
    size_t header = affine ? 4 : 2;
    size_t begin = block * (header + (fifth ? 20 : 16));
    int32_t both = byte_at(data + begin + header + (fifth ? 4 : 0) + i % 16);
    int32_t value = i < 16 ? both & 15 : both >> 4;
    if (fifth) value += (byte_at(data + begin + header + i / 8) >> i % 8 & 1) * 16;
    float scale = cpu::half_to_float(half_at(spec, begin));
    if (!affine) return scale * static_cast<float>(value - (fifth ? 16 : 8));
    return scale * static_cast<float>(value) + cpu::half_to_float(half_at(spec, begin + 2));
}

GgufTensor as_tensor(const TensorSpec& spec, int32_t columns, int32_t rows) {
    GgufTensor tensor = {};
    tensor.name = spec.name;
    tensor.type = spec.type;
    tensor.dimension_count = 2;
    tensor.dimensions = {static_cast<uint64_t>(columns), static_cast<uint64_t>(rows), 1, 1};
    tensor.data = spec.data;
    return tensor;
}

struct Packed {
    cpu::testing::Aligned memory;
    cpu::PackedMatrix matrix;
};

Packed pack(const GgufTensor& tensor, bool exact) {
    cpu::PackedMatrix matrix = packed_shape(tensor, exact);
    Packed packed = {cpu::testing::Aligned(matrix.panels * matrix.panel_bytes), matrix};
    std::memset(packed.memory.data(), 0, static_cast<size_t>(matrix.panels * matrix.panel_bytes));
    pack_panels(tensor, matrix, 0, matrix.panels, packed.memory.data());
    packed.matrix.data = packed.memory.data();
    return packed;
}

std::string load_error(const TinyLlama& tiny, const LoadOptions& options = {}) {
    std::shared_ptr<LoadedModel> model;
    return load_tiny(tiny, options, &model).message;
}

bool mentions(const std::string& message, const char* part) {
    if (message.find(part) != std::string::npos) return true;
    std::printf("the message is '%s', wanted '%s'\n", message.c_str(), part);
    return false;
}

} // namespace

TEST(rows_come_out_as_they_went_in) {
    Random random(7);
    for (TensorType type : TYPES)
        for (int32_t rows : {1, 15, 16, 17, 48})
            for (bool exact : {false, true}) {
                const int32_t columns = is_k_type(type) ? 768 : 96;
                TensorSpec spec = random_tensor(random, "t", type, columns, rows);
                Packed packed = pack(as_tensor(spec, columns, rows), exact);
                EXPECT_EQ(packed.matrix.panels, (rows + 15) / 16);
                std::vector<float> row(static_cast<size_t>(columns));
                int32_t wrong = 0;
                for (int32_t r = 0; r < rows; r++) {
                    unpack_row(packed.matrix, r, row.data());
                    for (int32_t c = 0; c < columns; c++)
                        wrong += row[static_cast<size_t>(c)] != twin_weight(spec, columns, r, c);
                }
                EXPECT_EQ(wrong, 0);
            }
}

// The kernels read panels on their own: a unit vector picks each weight out through them.
TEST(kernels_see_the_same_weights) {
    Random random(8);
    constexpr int32_t ROWS = 21;
    for (TensorType type : TYPES) {
        const int32_t columns = is_k_type(type) ? 512 : 64;
        const auto count = static_cast<size_t>(columns);
        TensorSpec spec = random_tensor(random, "t", type, columns, ROWS);
        Packed packed = pack(as_tensor(spec, columns, ROWS), false);
        for (int32_t column : {0, 1, 15, 16, 31, 32, 63, columns - 1}) {
            std::vector<float> x(count), out(32, -1.0f);
            x[static_cast<size_t>(column)] = 127.0f; // exact in int8 with a scale of 1
            std::vector<int8_t> values(count);
            std::vector<float> scales(count / 32);
            std::vector<int32_t> sums(count / 32);
            const cpu::Ops& ops = cpu::ops_for(cpu::Isa::ref);
            ops.quantise(x.data(), columns, values.data(), scales.data(), sums.data());
            ops.matmul(packed.matrix,
                       {x.data(), values.data(), scales.data(), sums.data(), columns}, 0, 1, 0,
                       packed.matrix.panels, out.data(), ROWS);
            for (int32_t r = 0; r < ROWS; r++) {
                float wanted = 127.0f * twin_weight(spec, columns, r, column);
                EXPECT_NEAR(out[static_cast<size_t>(r)], wanted, 1e-5f * std::fabs(wanted));
            }
            EXPECT_EQ(out[ROWS], -1.0f);
        }
    }
}

// A power of two that no half holds: such a tensor is kept in fp32, and says the same.
TEST(scales_out_of_the_range_of_a_half) {
    Random random(9);
    for (int32_t exponent : {0, 103, 144, 255}) {
        TensorSpec spec = random_tensor(random, "t", TensorType::mxfp4, 96, 5);
        spec.data[17] = static_cast<std::byte>(exponent);
        GgufTensor tensor = as_tensor(spec, 96, 5);
        EXPECT(packed_shape(tensor, false).kind == cpu::WeightKind::f32);
        Packed packed = pack(tensor, false);
        float row[96];
        unpack_row(packed.matrix, 0, row);
        for (int32_t c = 0; c < 96; c++) EXPECT_EQ(row[c], twin_weight(spec, 96, 0, c));
    }
    for (int32_t exponent : {104, 113, 114, 143}) {
        TensorSpec spec = random_tensor(random, "t", TensorType::mxfp4, 96, 5);
        spec.data[17] = static_cast<std::byte>(exponent);
        GgufTensor tensor = as_tensor(spec, 96, 5);
        EXPECT(packed_shape(tensor, false).kind == cpu::WeightKind::m4);
        Packed packed = pack(tensor, false);
        float row[96];
        unpack_row(packed.matrix, 0, row);
        for (int32_t c = 0; c < 96; c++) EXPECT_EQ(row[c], twin_weight(spec, 96, 0, c));
    }
}

TEST(projections_of_one_kind_are_fused) {
    std::shared_ptr<LoadedModel> model;
    EXPECT(load_tiny({}, {}, &model).ok());
    const FusedProjection& fused = model->weights.layers[1].query_key_value;
    EXPECT_EQ(fused.part_count, 1);
    EXPECT_EQ(fused.parts[0].rows, 64 + 32 + 32);
    TinyLlama mixed;
    mixed.value_type = TensorType::q8_0;
    EXPECT(load_tiny(mixed, {}, &model).ok());
    const FusedProjection& parts = model->weights.layers[0].query_key_value;
    EXPECT_EQ(parts.part_count, 2);
    EXPECT_EQ(parts.first_output[1], 96);
    EXPECT(parts.parts[1].kind == cpu::WeightKind::u8);
    EXPECT(model->weights.head.data == model->weights.embedding.data);
    // As in files that mix types: the K types differ in kind, so that only equal ones are joined.
    TinyLlama k_types;
    k_types.hidden = 256;
    k_types.head_dim = 64;
    k_types.feed_forward = 512;
    k_types.type = TensorType::q4_k;
    k_types.value_type = TensorType::q6_k;
    EXPECT(load_tiny(k_types, {}, &model).ok());
    const FusedProjection& mixed_k = model->weights.layers[1].query_key_value;
    EXPECT_EQ(mixed_k.part_count, 2);
    EXPECT(mixed_k.parts[0].kind == cpu::WeightKind::k4 && mixed_k.parts[0].rows == 256 + 128);
    EXPECT(mixed_k.parts[1].kind == cpu::WeightKind::k6 && mixed_k.parts[1].rows == 128);
}

TEST(progress_rises_to_one) {
    std::vector<float> seen;
    LoadOptions options;
    options.progress = [&](float fraction) { seen.push_back(fraction); };
    std::shared_ptr<LoadedModel> model;
    EXPECT(load_tiny({}, options, &model).ok());
    EXPECT(seen.size() > 10 && seen.back() == 1.0f);
    for (size_t i = 1; i < seen.size(); i++) EXPECT(seen[i] >= seen[i - 1]);
}

TEST(tensors_must_be_there_and_fit) {
    TinyLlama missing;
    missing.without = "blk.1.ffn_up";
    EXPECT(mentions(load_error(missing), "no tensor 'blk.1.ffn_up.weight'"));
    TinyLlama embedding;
    embedding.without = "token_embd";
    EXPECT(mentions(load_error(embedding), "no tensor 'token_embd.weight'"));
    TinyLlama bias;
    bias.extra = [](GgufBytes& file) {
        Random random(1);
        file.tensor(random_tensor(random, "blk.0.attn_q.bias", TensorType::f32, 64, 0));
    };
    EXPECT(mentions(load_error(bias), "'blk.0.attn_q.bias' is not part of"));
    TinyLlama head;
    head.extra = [](GgufBytes& file) {
        Random random(1);
        file.tensor(random_tensor(random, "output.weight", TensorType::f32, 64, 100));
    };
    EXPECT(mentions(load_error(head), "'output.weight' is 64 x 100, expected 64 x 101"));
}

// Of a context so long that a quarter of the memory does not hold it 128 times.
TEST(engines_share_the_memory_for_pages) {
    TinyLlama tiny;
    tiny.context = limits::CONTEXT_TOKENS_MAX;
    tiny.layers = 8;
    TemporaryFile file(tiny_file(tiny));
    int64_t page_bytes = 0;
    for (int32_t engines : {16, 64}) {
        LoadOptions options;
        options.threads = 1;
        options.engines = engines;
        std::shared_ptr<LoadedModel> model;
        EXPECT(load_model(file.path(), options, &model).ok());
        page_bytes = cpu::KvArena::page_bytes(model->config, cpu::KvType::bf16);
        int64_t one = limits::PAGES_PER_SEQUENCE_MAX * page_bytes;
        int64_t share = cpu::memory_bytes() / 4 / engines;
        EXPECT_EQ(model->model->kv_pages(), std::min(128 * one, std::max(share, one)) / page_bytes);
    }
}

// The same memory holds nearly twice the tokens; of longer heads more nearly.
TEST(int8_pages_take_half_the_memory) {
    for (const auto& [head_dim, least] :
         std::vector<std::pair<int32_t, double>>{{64, 1.87}, {128, 1.93}}) {
        TinyLlama tiny;
        tiny.head_dim = head_dim;
        int32_t pages[2] = {};
        for (bool int8 : {false, true}) {
            LoadOptions options;
            options.kv_bytes = 8 << 20;
            if (int8) options.kv_type = cpu::KvType::int8;
            std::shared_ptr<LoadedModel> model;
            EXPECT(load_tiny(tiny, options, &model).ok());
            pages[int8 ? 1 : 0] = model->model->kv_pages();
        }
        EXPECT(double(pages[1]) / pages[0] >= least && pages[1] < 2 * pages[0]);
    }
}

TEST(load_options_are_checked) {
    LoadOptions isa;
    isa.isa = "mmx";
    EXPECT(mentions(load_error({}, isa), "is no instruction set"));
    LoadOptions threads;
    threads.threads = limits::COMPUTE_THREADS_MAX + 1;
    EXPECT(mentions(load_error({}, threads), "threads are outside"));
    LoadOptions kv;
    kv.kv_bytes = 1;
    EXPECT(mentions(load_error({}, kv), "not even one page"));
    LoadOptions nobody;
    nobody.engines = 0;
    EXPECT(mentions(load_error({}, nobody), "one engine at least"));
    LoadOptions both;
    both.exact = true;
    both.kv_type = cpu::KvType::int8;
    EXPECT(mentions(load_error({}, both), "leave out --kv int8"));
}

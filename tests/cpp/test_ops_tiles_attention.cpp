// The prompt's attention on tiles, on any machine: the same template as core/cpu/amx.cpp, over
// tiles that are plain arrays, against a plain twin of the documented order, bit for bit, and
// against `ref`'s attention as far as bf16 goes. What must not be read as a number is NaN.
#include "core/cpu/lanes_portable.inl.h"

#include "core/cpu/attention_tiles.inl.h"

#include "ops_testing.h"
#include "software_tiles.h"

namespace sublimate::cpu {
namespace {

using namespace testing;

constexpr int32_t PAGE = limits::PAGE_TOKENS;
constexpr int32_t PAGES_MAX = 16;
constexpr float NEAR = 3e-2f; // queries and weights have 8 bits, values lie in [-2, 2]

struct Shape {
    int32_t head_dim;
    int32_t kv_heads;
    int32_t group_heads;
    int32_t context; // positions, the last row's included
    int32_t rows;    // the last ones
};

std::string describe(const Shape& s) {
    return "attention tiles dim " + std::to_string(s.head_dim) + " heads " +
           std::to_string(s.kv_heads) + "x" + std::to_string(s.group_heads) + " context " +
           std::to_string(s.context) + " rows " + std::to_string(s.rows);
}

// Positions [0, context) are written; every other number of the arena stays NaN.
struct Cache {
    KvLayout layout;
    Aligned pages;
    std::vector<int32_t> table;

    Cache(const Shape& s, Random& random)
        : layout{KvType::bf16, s.kv_heads, s.head_dim, int64_t{4} * s.head_dim * PAGE},
          pages(PAGES_MAX * s.kv_heads * layout.head_bytes) {
        for (int32_t p = 0; p < PAGES_MAX; ++p) table.push_back((p * 3 + 1) % PAGES_MAX);
        for (int32_t position = 0; position < s.context; ++position) {
            write(position, random.floats(s.kv_heads * s.head_dim, -2.0f, 2.0f),
                  random.floats(s.kv_heads * s.head_dim, -2.0f, 2.0f));
        }
    }
    void write(int32_t position, const std::vector<float>& key, const std::vector<float>& value) {
        ops_for(Isa::ref).kv_append(key.data(), value.data(), layout, pages.data(),
                                    table[static_cast<size_t>(position / PAGE)], position % PAGE);
    }
    const uint16_t* page(int32_t index, int32_t kv_head) const {
        const int64_t head = int64_t{table[static_cast<size_t>(index)]} * layout.kv_heads + kv_head;
        return reinterpret_cast<const uint16_t*>(pages.data() + head * layout.head_bytes);
    }
};

// ---- the twin ---------------------------------------------------------------------------------

float exp_twin(float x) {
    return x == x ? exp_polynomial(x) : x;
}

// What one tile operation adds: the even and the odd of 32 products, each a chain.
template <class Product>
float tile_step(float sum, int32_t count, Product&& product) {
    float chains[2] = {0.0f, 0.0f};
    for (int32_t i = 0; i < count; ++i) chains[i % 2] = flushed(product(i, chains[i % 2]));
    return flushed(flushed(sum) + flushed(chains[0] + chains[1]));
}

float fused(uint16_t a, uint16_t b, float sum) {
    return std::fma(flushed(bf16_to_float(a)), flushed(bf16_to_float(b)), sum);
}

struct TwinState {
    float maximum = -INFINITY;
    float sums[LANES] = {};
    std::vector<float> out;
};

void twin_span(const Cache& cache, int32_t kv_head, const std::vector<uint16_t>& query,
               int32_t first_token, int32_t visible, TwinState& state) {
    const int32_t head_dim = cache.layout.head_dim;
    float scores[128];
    float maximum = state.maximum;
    for (int32_t t = 0; t < visible; ++t) {
        const uint16_t* keys = cache.page((first_token + t) / PAGE, kv_head);
        scores[t] = 0.0f;
        for (int32_t first = 0; first < head_dim; first += 32) {
            scores[t] =
                tile_step(scores[t], std::min(32, head_dim - first), [&](int32_t i, float sum) {
                    const int32_t c = first + i;
                    return fused(query[static_cast<size_t>(c)], keys[c * PAGE + t % PAGE], sum);
                });
        }
        if (scores[t] > maximum) maximum = scores[t];
    }
    const float factor = exp_twin(state.maximum - maximum);
    float weights[128] = {};
    for (int32_t t = 0; t < visible; ++t) weights[t] = exp_twin(scores[t] - maximum);
    for (int32_t j = 0; j < LANES; ++j) {
        float sum = 0.0f;
        for (int32_t p = 0; p < 4; ++p) {
            sum += weights[p * PAGE + 2 * j] + weights[p * PAGE + 2 * j + 1];
        }
        state.sums[j] = std::fma(state.sums[j], factor, sum);
    }
    for (int32_t c = 0; c < head_dim; ++c) {
        float sum = state.out[static_cast<size_t>(c)] * factor;
        for (int32_t first = 0; first < visible; first += PAGE) {
            const uint16_t* values =
                cache.page((first_token + first) / PAGE, kv_head) + head_dim * PAGE;
            sum = tile_step(sum, std::min(PAGE, visible - first), [&](int32_t i, float chain) {
                return fused(float_to_bf16(weights[first + i]), values[i * head_dim + c], chain);
            });
        }
        state.out[static_cast<size_t>(c)] = sum;
    }
    state.maximum = maximum;
}

void twin_head(const Cache& cache, const float* query, int32_t kv_head, int32_t tokens, float scale,
               float* out) {
    const int32_t head_dim = cache.layout.head_dim;
    std::vector<uint16_t> rounded;
    for (int32_t c = 0; c < head_dim; ++c) rounded.push_back(float_to_bf16(query[c] * scale));
    TwinState state;
    state.out.resize(static_cast<size_t>(head_dim));
    for (int32_t first = 0; first < tokens; first += 128) {
        twin_span(cache, kv_head, rounded, first, std::min(128, tokens - first), state);
    }
    for (int32_t half = LANES / 2; half > 0; half /= 2) {
        for (int32_t i = 0; i < half; ++i) state.sums[i] += state.sums[i + half];
    }
    const float inverse = 1.0f / state.sums[0];
    for (int32_t c = 0; c < head_dim; ++c) {
        out[c] = state.out[static_cast<size_t>(c)] * inverse + 0.0f;
    }
}

// ---- comparisons ------------------------------------------------------------------------------

constexpr float SCALE = 0.17f;

int64_t stride_of(const Shape& s) {
    return int64_t{s.kv_heads} * s.group_heads * s.head_dim;
}

using Attention = void (*)(const AttentionCall& call, const KvLayout& layout);

// The last rows in pieces of `step`.
std::vector<float> attend(Attention attention, const Shape& s, const Cache& cache, int32_t step,
                          const std::vector<float>& query) {
    const int64_t stride = stride_of(s);
    std::vector<float> out(static_cast<size_t>(s.rows * stride), std::nanf(""));
    for (int32_t row = 0; row < s.rows; row += step) {
        for (int32_t head = 0; head < s.kv_heads; ++head) {
            attention({query.data() + row * stride, stride, out.data() + row * stride, stride,
                       std::min(step, s.rows - row), s.context - s.rows + row, head * s.group_heads,
                       s.group_heads, head, cache.pages.data(), cache.table.data(), SCALE},
                      cache.layout);
        }
    }
    return out;
}

std::vector<float> twin(const Shape& s, const Cache& cache, const std::vector<float>& query) {
    std::vector<float> out(query.size());
    for (int32_t row = 0; row < s.rows; ++row) {
        for (int32_t head = 0; head < s.kv_heads * s.group_heads; ++head) {
            const int64_t at = row * stride_of(s) + int64_t{head} * s.head_dim;
            twin_head(cache, query.data() + at, head / s.group_heads, s.context - s.rows + row + 1,
                      SCALE, out.data() + at);
        }
    }
    return out;
}

void check_shape(const Shape& s, uint64_t seed) {
    Random random(seed);
    const Cache cache(s, random);
    const auto query = random.floats(s.rows * stride_of(s), -2.0f, 2.0f);
    const auto count = static_cast<int64_t>(query.size());
    const auto expected = twin(s, cache, query);
    const auto exact = attend(ops_for(Isa::ref).attention, s, cache, s.rows, query);
    compare_near(describe(s) + " against ref", exact.data(), expected.data(), count, NEAR);
    const Attention tiles = attention_tiles<SoftwareTiles>;
    const auto whole = attend(tiles, s, cache, s.rows, query);
    compare_bits(describe(s), expected.data(), whole.data(), count);
    const auto pieces = attend(tiles, s, cache, 1 + random.below(9), query);
    compare_bits(describe(s) + " in pieces", expected.data(), pieces.data(), count);
    if (!isa_runs(Isa::amx)) return;
    const auto hardware = attend(ops_for(Isa::amx).attention_prompt, s, cache, s.rows, query);
    compare_bits(describe(s) + " in hardware", expected.data(), hardware.data(), count);
}

void check_all_shapes() {
    uint64_t seed = 1;
    for (int32_t head_dim = 16; head_dim <= 256; head_dim += 16) {
        check_shape({head_dim, 2, 3, 70, 5}, seed++);
    }
    for (int32_t context : {1, 2, 31, 32, 33, 127, 128, 129, 160, 257, 300, 400}) {
        const int32_t rows = std::min(context, 1 + static_cast<int32_t>(seed % 17));
        check_shape({seed % 2 == 0 ? 64 : 80, 1, 1 + static_cast<int32_t>(seed % 5), context, rows},
                    seed);
        seed++;
    }
    check_shape({64, 2, 3, 140, 140}, seed++); // several blocks and passes of a call
    check_shape({16, 1, 150, 40, 3}, seed++);  // more heads than a pass holds
}

// A value that is no number reaches the rows that see it and no others.
void check_broken_rows() {
    const Shape s = {64, 1, 3, 50, 20};
    Random random(77);
    Cache cache(s, random);
    const auto query = random.floats(s.rows * stride_of(s), -2.0f, 2.0f);
    const auto expected = twin(s, cache, query);
    constexpr int32_t BROKEN = 44;
    const auto channels = static_cast<size_t>(s.head_dim);
    cache.write(BROKEN, std::vector<float>(channels, 1.0f),
                std::vector<float>(channels, std::nanf("")));
    const auto actual = attend(attention_tiles<SoftwareTiles>, s, cache, s.rows, query);
    const int64_t sound = (BROKEN - (s.context - s.rows)) * stride_of(s);
    compare_bits("rows before a broken one", expected.data(), actual.data(), sound);
    for (auto i = static_cast<size_t>(sound); i < actual.size(); ++i) {
        if (!std::isnan(actual[i])) fail("a broken row vanished");
    }
}

} // namespace
} // namespace sublimate::cpu

int main() {
    sublimate::cpu::check_all_shapes();
    sublimate::cpu::check_broken_rows();
    return sublimate::cpu::testing::finish("test_ops_tiles_attention");
}

// Attention and KV writes on every instruction set against `ref`, over head sizes, odd positions
// and chunkings. Everything that must not be read is NaN: lanes past a row's position, pages of
// others, the tail of the arena.
#include "ops_testing.h"

namespace sublimate::cpu::testing {
namespace {

constexpr float NEAR = 1e-5f; // portable rounds attention's products before it adds them
constexpr int32_t PAGES_MAX = 8;

struct Shape {
    KvType type;
    int32_t head_dim;
    int32_t kv_heads;
    int32_t group_heads;
    int32_t context; // positions, the last row's included
    int32_t window = 0;
    float soft_cap = 0.0f;
};

std::string describe(const Ops& ops, const Shape& s) {
    return std::string(ops.name) + " attention " + kv_type_name(s.type) + " dim " +
           std::to_string(s.head_dim) + " heads " + std::to_string(s.kv_heads) + "x" +
           std::to_string(s.group_heads) + " context " + std::to_string(s.context) + " window " +
           std::to_string(s.window) + " cap " + std::to_string(s.soft_cap);
}

struct Cache {
    KvLayout layout;
    Aligned pages;
    std::vector<int32_t> table;
};

KvLayout layout_of(const Shape& s) {
    return {s.type, s.kv_heads, s.head_dim, kv_head_bytes(s.type, s.head_dim)};
}

// Positions [0, context) are written; every other number of the arena stays NaN.
Cache filled_cache(const Ops& ops, const Shape& s, uint64_t seed) {
    Random random(seed);
    const KvLayout layout = layout_of(s);
    Cache cache{layout, Aligned(PAGES_MAX * s.kv_heads * layout.head_bytes), {}};
    for (int32_t p = 0; p < PAGES_MAX; ++p) cache.table.push_back((p * 3 + 1) % PAGES_MAX);
    for (int32_t position = 0; position < s.context; ++position) {
        const auto key = random.floats(s.kv_heads * s.head_dim, -2.0f, 2.0f);
        const auto value = random.floats(s.kv_heads * s.head_dim, -2.0f, 2.0f);
        const auto page = static_cast<size_t>(position / limits::PAGE_TOKENS);
        ops.kv_append(key.data(), value.data(), layout, cache.pages.data(), cache.table[page],
                      position % limits::PAGE_TOKENS);
    }
    return cache;
}

// Rows [context - rows, context) in pieces of `step` rows.
std::vector<float> attend(const Ops& ops, const Shape& s, const Cache& cache, int32_t rows,
                          int32_t step, const std::vector<float>& query) {
    const int64_t stride = int64_t{s.kv_heads} * s.group_heads * s.head_dim;
    std::vector<float> out(static_cast<size_t>(rows * stride), std::nanf(""));
    for (int32_t row = 0; row < rows; row += step) {
        for (int32_t head = 0; head < s.kv_heads; ++head) {
            const int32_t count = std::min(step, rows - row);
            AttentionCall call = {query.data() + row * stride,
                                  stride,
                                  out.data() + row * stride,
                                  stride,
                                  count,
                                  s.context - rows + row,
                                  head * s.group_heads,
                                  s.group_heads,
                                  head,
                                  cache.pages.data(),
                                  cache.table.data(),
                                  0.17f};
            call.window = s.window;
            call.soft_cap = s.soft_cap;
            ops.attention(call, cache.layout);
        }
    }
    return out;
}

void check_shape(const Shape& s, int32_t rows, uint64_t seed) {
    const Ops& ref = ops_for(Isa::ref);
    const Cache expected_cache = filled_cache(ref, s, seed);
    Random random(seed + 1);
    const int64_t stride = int64_t{s.kv_heads} * s.group_heads * s.head_dim;
    const auto query = random.floats(rows * stride, -2.0f, 2.0f);
    const auto expected = attend(ref, s, expected_cache, rows, rows, query);
    for (float value : expected) {
        if (!std::isfinite(value)) fail("ref read what it must not");
    }
    for (const Ops* ops : other_isas()) {
        const std::string name = describe(*ops, s) + " rows " + std::to_string(rows);
        const Cache cache = filled_cache(*ops, s, seed);
        compare_bits(name + " kv_append",
                     reinterpret_cast<const unsigned char*>(expected_cache.pages.data()),
                     reinterpret_cast<const unsigned char*>(cache.pages.data()),
                     cache.pages.size());
        const auto whole = attend(*ops, s, cache, rows, rows, query);
        const auto pieces = attend(*ops, s, cache, rows, 1 + random.below(3), query);
        const auto count = static_cast<int64_t>(whole.size());
        if (ops->isa == Isa::portable) {
            compare_near(name, expected.data(), whole.data(), count, NEAR);
        } else {
            compare_bits(name, expected.data(), whole.data(), count);
        }
        compare_bits(name + " in pieces", whole.data(), pieces.data(), count);
    }
}

// int8 pages against f32 pages of the numbers that they stand for: only the order of operations is
// another one, so that few bits differ.
void check_int8_numbers(uint64_t seed) {
    const Ops& ref = ops_for(Isa::ref);
    const Shape s{KvType::int8, 48, 2, 3, 70};
    Shape plain = s;
    plain.type = KvType::f32;
    const Cache cache = filled_cache(ref, s, seed);
    Cache numbers = filled_cache(ref, plain, seed);
    const int32_t count = s.head_dim * limits::PAGE_TOKENS;
    for (int32_t head = 0; head < PAGES_MAX * s.kv_heads; ++head) {
        const std::byte* from = cache.pages.data() + head * cache.layout.head_bytes;
        auto* to =
            reinterpret_cast<float*>(numbers.pages.data() + head * numbers.layout.head_bytes);
        float scales[2 * limits::PAGE_TOKENS];
        std::memcpy(scales, from + 2 * count, sizeof(scales));
        for (int32_t i = 0; i < 2 * count; ++i) {
            const int32_t key_token = i % limits::PAGE_TOKENS;
            const int32_t value_token = (i - count) / s.head_dim + limits::PAGE_TOKENS;
            if (!std::isfinite(scales[i < count ? key_token : value_token])) continue;
            const auto integer = static_cast<int8_t>(from[i]);
            const float number = scales[i < count ? key_token : value_token] * float(integer);
            if (!(std::fabs(to[i] - number) <= 2.0f / 254.0f * 1.001f)) // of numbers up to 2
                fail("int8 number " + std::to_string(number) + " for " + std::to_string(to[i]));
            to[i] = number;
        }
    }
    Random random(seed + 1);
    const auto query = random.floats(5 * 6 * s.head_dim, -2.0f, 2.0f);
    const auto expected = attend(ref, plain, numbers, 5, 5, query);
    const auto actual = attend(ref, s, cache, 5, 5, query);
    compare_near("int8 numbers", expected.data(), actual.data(),
                 static_cast<int64_t>(actual.size()), NEAR);
}

// What a window hides is as if it had never been written: the same bits over other numbers there.
void check_hidden_pages(KvType type, uint64_t seed) {
    const Shape s{type, 32, 1, 2, 100, 20};
    Random random(seed);
    const auto query = random.floats(2 * 32, -2.0f, 2.0f);
    auto tables = other_isas();
    tables.push_back(&ops_for(Isa::ref));
    for (const Ops* ops : tables) {
        Cache cache = filled_cache(*ops, s, seed);
        const auto before = attend(*ops, s, cache, 1, 1, query);
        const auto other = random.floats(32, -9.0f, 9.0f);
        for (int32_t position = 0; position < s.context - s.window; ++position) {
            const auto page = static_cast<size_t>(position / limits::PAGE_TOKENS);
            ops->kv_append(other.data(), other.data(), cache.layout, cache.pages.data(),
                           cache.table[page], position % limits::PAGE_TOKENS);
        }
        const auto after = attend(*ops, s, cache, 1, 1, query);
        compare_bits(describe(*ops, s) + " hidden", before.data(), after.data(),
                     static_cast<int64_t>(after.size()));
    }
}

void check_all_shapes() {
    uint64_t seed = 1;
    for (KvType type : {KvType::bf16, KvType::f32, KvType::int8}) {
        for (int32_t head_dim = 16; head_dim <= 256; head_dim += 16) {
            check_shape({type, head_dim, 2, 3, 70}, 5, seed++);
        }
        for (int32_t context = 1; context <= 100; ++context) {
            const int32_t rows = std::min(context, 1 + static_cast<int32_t>(seed % 17));
            const int32_t group = 1 + static_cast<int32_t>(seed % 5);
            check_shape({type, seed % 2 == 0 ? 64 : 80, 1, group, context}, rows, seed);
            seed++;
        }
        check_shape({type, 64, 3, 3, 130}, 130, seed++);
        for (int32_t window : {1, 2, 31, 32, 33, 64, 65, 129, 130, 500})
            check_shape({type, 48, 2, 3, 130, window}, 60, seed++);
        check_shape({type, 64, 1, 4, 100, 0, 2.5f}, 40, seed++);
        check_shape({type, 64, 1, 4, 100, 40, 0.5f}, 40, seed++);
        check_hidden_pages(type, seed++);
    }
}

// Rounding of single numbers to bf16: ties, the largest, infinities, subnormals, NaN.
void check_rounding() {
    constexpr uint32_t BITS[] = {0x00000000, 0x80000000, 0x3f808000, 0x3f818000,
                                 0x3f808001, 0x7f7fffff, 0x7f800000, 0xff800000,
                                 0x00000001, 0x00008000, 0x7f800001, 0xffffffff,
                                 0x3f800000, 0xbf807fff, 0x00018000, 0x40490fdb};
    constexpr uint16_t EXPECTED[] = {0x0000, 0x8000, 0x3f80, 0x3f82, 0x3f81, 0x7f80,
                                     0x7f80, 0xff80, 0x0000, 0x0000, 0x7fc0, 0xffff,
                                     0x3f80, 0xbf80, 0x0002, 0x4049};
    const Shape s{KvType::bf16, 16, 1, 1, 1};
    const KvLayout layout = layout_of(s);
    float numbers[16];
    std::memcpy(numbers, BITS, sizeof(numbers));
    auto tables = other_isas();
    tables.push_back(&ops_for(Isa::ref));
    for (const Ops* ops : tables) {
        Aligned page(layout.head_bytes);
        ops->kv_append(numbers, numbers, layout, page.data(), 0, 7);
        const auto* keys = reinterpret_cast<const uint16_t*>(page.data());
        uint16_t key[16];
        for (int32_t c = 0; c < 16; ++c) key[c] = keys[c * limits::PAGE_TOKENS + 7];
        const uint16_t* value = keys + 16 * limits::PAGE_TOKENS + 7 * 16;
        compare_bits(std::string(ops->name) + " bf16 key", EXPECTED, key, 16);
        compare_bits(std::string(ops->name) + " bf16 value", EXPECTED, value, 16);
    }
}

// A head of zeros, one with a number that is none, and one with both extremes.
void check_int8_scales() {
    const KvLayout layout = layout_of({KvType::int8, 16, 3, 1, 1});
    float key[48] = {};
    key[16 + 3] = std::nanf("");
    for (int32_t c = 0; c < 16; ++c) key[32 + c] = c % 2 == 0 ? 254.0f : -254.0f;
    key[32] = 127.0f; // half a step: to even
    auto tables = other_isas();
    tables.push_back(&ops_for(Isa::ref));
    for (const Ops* ops : tables) {
        const std::string name = std::string(ops->name) + " int8 ";
        Aligned page(3 * layout.head_bytes);
        ops->kv_append(key, key, layout, page.data(), 0, 7);
        float scales[3];
        for (int32_t head = 0; head < 3; ++head) {
            const std::byte* at = page.data() + head * layout.head_bytes;
            std::memcpy(scales + head, at + 2 * 16 * limits::PAGE_TOKENS + 7 * 4, 4);
        }
        const float expected[] = {0.0f, 2.0f};
        compare_bits(name + "zero", expected, scales, 1);
        if (!std::isnan(scales[1])) fail(name + "a lost number is not noticed");
        compare_bits(name + "scale", expected + 1, scales + 2, 1);
        const auto* last = reinterpret_cast<const int8_t*>(page.data() + 2 * layout.head_bytes);
        const int8_t integers[] = {64, -127, 127, -127};
        for (int32_t c = 0; c < 4; ++c)
            compare_bits(name + "key", integers + c, last + c * limits::PAGE_TOKENS + 7, 1);
        compare_bits(name + "value", integers, last + 16 * limits::PAGE_TOKENS + 7 * 16, 4);
    }
}

} // namespace
} // namespace sublimate::cpu::testing

int main() {
    using namespace sublimate::cpu::testing;
    check_rounding();
    check_int8_scales();
    check_int8_numbers(3);
    check_all_shapes();
    return finish("test_ops_attention");
}

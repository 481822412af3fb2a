// What the tests of the compute primitives share: seeded data, packed matrices, and comparison of
// every instruction set that runs here with `ref`, bit for bit.
//
// defines: Random, failures, compare_bits, compare_near, other_isas, Matrix, random_matrix,
// QuantisedRows,
//          finish
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <sys/mman.h>
#include <vector>

#include "core/cpu/numbers.h"
#include "core/cpu/ops.h"

namespace sublimate::cpu::testing {

// SplitMix64 (Steele et al. 2014): the same data on every machine.
class Random {
public:
    explicit Random(uint64_t seed) : state_(seed) {}

    uint64_t bits() {
        state_ += 0x9E3779B97F4A7C15u;
        uint64_t z = state_;
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
        return z ^ (z >> 31);
    }
    int32_t below(int32_t bound) {
        return static_cast<int32_t>(bits() % static_cast<uint64_t>(bound));
    }
    float between(float low, float high) {
        return low + (high - low) * (static_cast<float>(bits() >> 40) * 0x1p-24f);
    }
    std::vector<float> floats(int64_t count, float low, float high) {
        std::vector<float> values(static_cast<size_t>(count));
        for (float& value : values) value = between(low, high);
        return values;
    }

private:
    uint64_t state_;
};

inline int32_t& failures() {
    static int32_t count = 0;
    return count;
}

inline void fail(const std::string& what) {
    constexpr int32_t SHOWN_MAX = 40;
    if (++failures() <= SHOWN_MAX) std::fprintf(stderr, "FAILED %s\n", what.c_str());
}

template <class T>
bool compare_bits(const std::string& what, const T* expected, const T* actual, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
        if (std::memcmp(expected + i, actual + i, sizeof(T)) == 0) continue;
        fail(what + ": element " + std::to_string(i) + " of " + std::to_string(count) + ": " +
             std::to_string(expected[i]) + " expected, " + std::to_string(actual[i]));
        return false;
    }
    return true;
}

// |expected - actual| <= tolerance * (1 + |expected|), and a NaN is never near.
inline bool compare_near(const std::string& what, const float* expected, const float* actual,
                         int64_t count, float tolerance) {
    for (int64_t i = 0; i < count; ++i) {
        const float difference = std::fabs(expected[i] - actual[i]);
        if (difference <= tolerance * (1.0f + std::fabs(expected[i]))) continue;
        fail(what + ": element " + std::to_string(i) + ": " + std::to_string(expected[i]) +
             " expected, " + std::to_string(actual[i]));
        return false;
    }
    return true;
}

inline std::vector<const Ops*> other_isas() {
    std::vector<const Ops*> tables;
    for (Isa isa : {Isa::portable, Isa::avx2, Isa::avx512, Isa::amx}) {
        if (isa_runs(isa)) tables.push_back(&ops_for(isa));
    }
    return tables;
}

// Bytes filled with 0xff (a NaN in every float format); large ones on huge pages, as the model's
// weights are.
class Aligned {
public:
    static constexpr int64_t HUGE_BYTES = int64_t{1} << 21;

    explicit Aligned(int64_t bytes)
        : size_((bytes + 63) / 64 * 64),
          data_(static_cast<std::byte*>(std::aligned_alloc(bytes >= HUGE_BYTES ? HUGE_BYTES : 64,
                                                           static_cast<size_t>(size_)))) {
        if (bytes >= HUGE_BYTES) madvise(data_, static_cast<size_t>(size_), MADV_HUGEPAGE);
        std::memset(data_, 0xff, static_cast<size_t>(size_));
    }
    Aligned(Aligned&& other) noexcept : size_(other.size_), data_(other.data_) {
        other.data_ = nullptr;
    }
    Aligned(const Aligned&) = delete;
    Aligned& operator=(const Aligned&) = delete;
    Aligned& operator=(Aligned&&) = delete;
    ~Aligned() { std::free(data_); }

    std::byte* data() const { return data_; }
    int64_t size() const { return size_; }

private:
    int64_t size_;
    std::byte* data_;
};

struct Matrix {
    PackedMatrix packed;
    Aligned bytes;
};

inline uint16_t random_half(Random& random) {
    // Magnitudes of 2^-12 .. 2^-3, either sign, and now and then a zero or a subnormal.
    const int32_t kind = random.below(64);
    const auto mantissa = static_cast<uint16_t>(random.below(1024));
    const auto sign = static_cast<uint16_t>(random.below(2) << 15);
    if (kind == 0) return sign;
    if (kind == 1) return static_cast<uint16_t>(sign | mantissa);
    return static_cast<uint16_t>(sign | (3 + random.below(10)) << 10 | mantissa);
}

inline void fill_floats(Random& random, WeightKind kind, std::byte* panel, int64_t numbers) {
    for (int64_t i = 0; i < numbers; ++i) {
        const float value = random.between(-0.5f, 0.5f);
        uint32_t bits;
        std::memcpy(&bits, &value, sizeof(bits));
        auto short_bits = static_cast<uint16_t>(bits >> 16);
        if (kind == WeightKind::f16) short_bits = random_half(random);
        if (kind == WeightKind::f32) {
            std::memcpy(panel + 4 * i, &bits, 4);
        } else {
            std::memcpy(panel + 2 * i, &short_bits, 2);
        }
    }
}

// Super-groups of any bytes, with halves of a size that keeps sums in range.
inline void fill_super_groups(Random& random, WeightKind kind, int32_t columns, std::byte* panel) {
    const SuperLayout layout = super_layout(kind);
    for (int32_t s = 0; s < columns / SUPER_COLUMNS; ++s, panel += layout.bytes) {
        for (int64_t i = 0; i < layout.super_scales; ++i) {
            const int32_t pick = random.below(8);
            int32_t byte = pick == 0 ? 255 : (pick == 1 ? 0 : random.below(256));
            if (pick == 2 && i >= layout.scales) byte = 128; // the most negative scale of k6, kn4
            if (kind == WeightKind::k3 && i >= layout.scales) byte = (byte & 63) - 32; // six bits
            panel[i] = static_cast<std::byte>(byte);
        }
        for (int32_t i = 0; i < (has_small_minima(kind) ? 2 : 1) * PANEL_ROWS; ++i) {
            const uint16_t half = random_half(random);
            std::memcpy(panel + layout.super_scales + 2 * i, &half, 2);
        }
    }
}

// Lanes past `rows` hold numbers too: they must not reach the output.
inline Matrix random_matrix(Random& random, WeightKind kind, int32_t rows, int32_t columns,
                            bool affine) {
    const bool quantised = is_quantised(kind);
    const bool super = is_k_kind(kind);
    const int32_t panels = (rows + PANEL_ROWS - 1) / PANEL_ROWS;
    const int64_t panel_bytes = panel_bytes_for(kind, columns, affine);
    Matrix matrix{{kind, rows, columns, panels, 0, affine, panel_bytes, nullptr},
                  Aligned(panel_bytes * panels)};
    matrix.packed.data = matrix.bytes.data();
    if (quantised && !super && !affine) matrix.packed.offset = kind == WeightKind::u4 ? 8 : 128;
    for (int32_t p = 0; p < panels; ++p) {
        std::byte* panel = matrix.bytes.data() + p * panel_bytes;
        if (super) {
            fill_super_groups(random, kind, columns, panel);
            continue;
        }
        if (!quantised) {
            fill_floats(random, kind, panel, int64_t{columns} * PANEL_ROWS);
            continue;
        }
        const int64_t weights = columns / GROUP_COLUMNS * group_bytes_of(kind);
        for (int64_t i = 0; i < weights; ++i) {
            // Extremes more often than chance: they are what saturates.
            const int32_t pick = random.below(8);
            const int32_t byte = pick == 0 ? 255 : (pick == 1 ? 0 : random.below(256));
            panel[i] = static_cast<std::byte>(byte);
        }
        const int64_t halves = columns / GROUP_COLUMNS * PANEL_ROWS * (affine ? 2 : 1);
        for (int64_t i = 0; i < halves; ++i) {
            const uint16_t half = random_half(random);
            std::memcpy(panel + weights + 2 * i, &half, 2);
        }
    }
    return matrix;
}

struct QuantisedRows {
    std::vector<float> f32;
    std::vector<int8_t> values;
    std::vector<float> scales;
    std::vector<int32_t> sums;
    std::vector<int32_t> half_sums;
    std::vector<uint16_t> bf16;
    Activations activations;
};

inline QuantisedRows random_rows(Random& random, int32_t rows, int32_t columns) {
    QuantisedRows x;
    const auto count = int64_t{rows} * columns;
    x.f32 = random.floats(count, -3.0f, 3.0f);
    x.values.resize(static_cast<size_t>(count));
    x.scales.resize(static_cast<size_t>(count / GROUP_COLUMNS + 1));
    x.sums.resize(static_cast<size_t>(count / GROUP_COLUMNS + 1));
    for (int64_t g = 0; g < count / GROUP_COLUMNS; ++g) {
        int32_t sum = 0;
        const int32_t shape = random.below(6); // all extremes of one sign, now and then
        for (int64_t i = g * GROUP_COLUMNS; i < (g + 1) * GROUP_COLUMNS; ++i) {
            int32_t value = random.below(255) - 127;
            if (shape == 0) value = 127;
            if (shape == 1) value = -127;
            x.values[static_cast<size_t>(i)] = static_cast<int8_t>(value);
            sum += value;
        }
        x.sums[static_cast<size_t>(g)] = sum;
        x.scales[static_cast<size_t>(g)] = random.between(0.0f, 0.1f);
    }
    for (float value : x.f32) x.bf16.push_back(float_to_bf16(value));
    if (columns % GROUP_COLUMNS == 0) {
        x.half_sums.resize(static_cast<size_t>(2 * count / GROUP_COLUMNS));
        ops_for(Isa::ref).add_halves(x.values.data(), static_cast<int32_t>(count),
                                     x.half_sums.data());
    }
    x.activations = {x.f32.data(), x.values.data(), x.scales.data(),   x.sums.data(),
                     columns,      x.bf16.data(),   x.half_sums.data()};
    return x;
}

inline int32_t finish(const char* name) {
    if (failures() == 0) std::printf("%s: passed\n", name);
    if (failures() != 0) std::fprintf(stderr, "%s: %d failures\n", name, failures());
    return failures() == 0 ? 0 : 1;
}

} // namespace sublimate::cpu::testing

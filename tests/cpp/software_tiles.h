// Tile registers as plain arrays, with the documented semantics of the tile instructions (Intel SDM
// volume 2): what the kernels of core/cpu/amx.cpp run over on a machine without AMX. The including
// file chooses the lanes.
//
// defines: flushed, SoftwareTiles, SoftwareInt8Tiles
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/cpu/tiles.inl.h"

namespace sublimate::cpu::testing {

// TDPBF16PS takes and leaves no subnormals.
inline float flushed(float x) {
    return std::fabs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x;
}

// TDPBF16PS: two chains of fp32 fused multiply-adds, over even and odd columns, then their sum.
class SoftwareTiles {
public:
    static void buffers_written() {}

    static LanesBits bf16_pairs(Lanes a, Lanes b) {
        float even[LANES];
        float odd[LANES];
        uint16_t words[2 * LANES];
        store(even, a);
        store(odd, b);
        for (int32_t i = 0; i < LANES; ++i) {
            words[2 * i] = float_to_bf16(even[i]);
            words[2 * i + 1] = float_to_bf16(odd[i]);
        }
        return load_bits(words);
    }
    static void store_bf16(uint16_t* to, Lanes a) {
        float numbers[LANES];
        store(numbers, a);
        for (int32_t i = 0; i < LANES; ++i) to[i] = float_to_bf16(numbers[i]);
    }

    void clear_sums() { std::memset(sums_, 0, sizeof(sums_)); }
    void load_sums(const float* from, int64_t stride) {
        for (int32_t r = 0; r < TILE_BLOCK; ++r) {
            std::memcpy(sums_[r], from + r * stride, sizeof(sums_[r]));
        }
    }
    void store_sums(float* to, int64_t stride) const {
        for (int32_t r = 0; r < TILE_BLOCK; ++r) {
            std::memcpy(to + r * stride, sums_[r], sizeof(sums_[r]));
        }
    }
    void load_rows(const uint16_t* rows, int64_t stride) {
        for (int32_t r = 0; r < TILE_BLOCK; ++r) {
            for (int32_t k = 0; k < GROUP_COLUMNS; ++k) {
                rows_[r][k] = flushed(bf16_to_float(rows[r * stride + k]));
            }
        }
    }
    void stream_rows(const uint16_t* rows, int64_t stride) { load_rows(rows, stride); }
    void load_weights(const uint16_t* first, const uint16_t* second) {
        finite_ = true;
        for (int32_t n = 0; n < TILE_BLOCK; ++n) {
            const uint16_t* tile = n < TILE_ROWS ? first : second;
            for (int32_t k = 0; k < GROUP_COLUMNS; ++k) {
                const uint16_t weight = tile[k / 2 * 32 + n % TILE_ROWS * 2 + k % 2];
                weights_[n][k] = flushed(bf16_to_float(weight));
                finite_ &= std::isfinite(weights_[n][k]);
            }
        }
    }
    void multiply() {
        for (int32_t r = 0; r < TILE_BLOCK; ++r) {
            const bool adds_nothing = finite_ && std::all_of(rows_[r], rows_[r] + GROUP_COLUMNS,
                                                             [](float x) { return x == 0.0f; });
            for (int32_t n = 0; n < TILE_BLOCK; ++n) {
                const float product = adds_nothing ? 0.0f : dot(rows_[r], weights_[n]);
                sums_[r][n] = flushed(flushed(sums_[r][n]) + product);
            }
        }
    }

private:
    static float dot(const float* row, const float* weights) {
        float even = 0.0f;
        float odd = 0.0f;
        for (int32_t k = 0; k < GROUP_COLUMNS; k += 2) {
            even = flushed(std::fma(row[k], weights[k], even));
            odd = flushed(std::fma(row[k + 1], weights[k + 1], odd));
        }
        return flushed(even + odd);
    }

    float sums_[TILE_BLOCK][TILE_BLOCK];
    // What the tiles hold, as numbers.
    float rows_[TILE_BLOCK][GROUP_COLUMNS];
    float weights_[TILE_BLOCK][GROUP_COLUMNS]; // (output, column)
    bool finite_;                              // every weight is: then a row of zeros adds nothing
};

// TDPBSUD at half depth: signed bytes of 32 columns times unsigned ones, exact sums.
class SoftwareInt8Tiles {
public:
    static void buffers_written() {}

    static void group_sums(const int8_t* rows, int64_t stride, int32_t row_tiles,
                           const std::byte* first, const std::byte* second, int32_t* sums) {
        for (int32_t r = 0; r < row_tiles * TILE_ROWS; ++r) {
            for (int32_t n = 0; n < TILE_BLOCK; ++n) {
                const std::byte* weights = n < TILE_ROWS ? first : second;
                int32_t sum = 0;
                for (int32_t k = 0; k < GROUP_COLUMNS; ++k) {
                    const std::byte u = weights[k / 4 * TILE_ROW_BYTES + n % TILE_ROWS * 4 + k % 4];
                    sum += rows[r * stride + k] * static_cast<int32_t>(u);
                }
                sums[r * TILE_BLOCK + n] = sum;
            }
        }
    }
};

} // namespace sublimate::cpu::testing

// AMX: prompts, and generated rows in batches; everything else of its table is AVX-512's (see
// dispatch.cpp).
//
// defines: amx_matmul, amx_matmul_prompt, amx_attention_prompt
#include "lanes_avx512.inl.h"

#include "attention_tiles.inl.h"
#include "matmul_tiles.inl.h"
#include "matmul_tiles_int8.inl.h"

namespace sublimate::cpu {
namespace {

// From so many rows on, int8 tiles. A tile operation takes as long for one row as for sixteen, and
// sixteen outputs x 32 columns cost VNNI eight instructions a row: below about sixteen rows the
// tiles and the way of their sums through memory cost more than they save.
constexpr int32_t INT8_TILE_ROWS_MIN = 16;

// gcc 12's tile loads do not tell the compiler that they read memory.
INLINE void memory_written() {
    __asm__ volatile("" ::: "memory");
}

// Bytes of a row and rows of each of the eight tile registers: 0 to 3 sums (row tile 0 x panel 0, 0
// x 1, 1 x 0, 1 x 1), 4 and 5 rows, 6 and 7 weights.
struct TileShapes {
    uint16_t row_bytes[3]; // of sums, rows, weights
    uint8_t rows[3];
};
constexpr TileShapes BF16_SHAPES = {{64, 64, 64}, {16, 16, 16}};
constexpr TileShapes INT8_SHAPES = {{64, 32, 64}, {16, 16, 8}}; // half of the depth

// Holds the thread's tile registers in one configuration and releases them at its end: a thread
// whose registers are in their initial state is switched faster and sleeps deeper.
class TileConfiguration {
public:
    explicit TileConfiguration(const TileShapes& shapes) {
        alignas(64) Palette palette = {};
        palette.number = 1;
        for (int32_t i = 0; i < TILES; ++i) {
            const int32_t role = i < 4 ? 0 : (i < 6 ? 1 : 2);
            palette.row_bytes[i] = shapes.row_bytes[role];
            palette.rows[i] = shapes.rows[role];
        }
        // gcc 12 would otherwise drop the stores above: the instruction does not say that it reads
        // them.
        __asm__ volatile("" : : "r"(&palette) : "memory");
        _tile_loadconfig(&palette);
    }
    ~TileConfiguration() { _tile_release(); }
    TileConfiguration(const TileConfiguration&) = delete;
    TileConfiguration& operator=(const TileConfiguration&) = delete;

private:
    static constexpr int32_t TILES = 8;

    struct Palette { // Intel SDM volume 1, 18.2: palette 1
        uint8_t number;
        uint8_t start_row;
        uint8_t reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    };
    static_assert(sizeof(Palette) == 64);
};

class HardwareTiles {
public:
    INLINE static void buffers_written() { memory_written(); }

    // Word 2i is a[i], word 2i + 1 is b[i].
    INLINE static LanesBits bf16_pairs(Lanes a, Lanes b) {
        const auto packed = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(b.part[0], a.part[0]));
        return {reinterpret_cast<PartBits>(_mm512_permutexvar_epi16(interleaved_words(), packed))};
    }
    INLINE static void store_bf16(uint16_t* to, Lanes a) {
        const auto words = reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(a.part[0]));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), words);
    }

    INLINE void clear_sums() {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    INLINE void load_sums(const float* from, int64_t stride) {
        buffers_written();
        const int64_t bytes = stride * 4;
        _tile_loadd(0, from, bytes);
        _tile_loadd(1, from + TILE_ROWS, bytes);
        _tile_loadd(2, from + TILE_ROWS * stride, bytes);
        _tile_loadd(3, from + TILE_ROWS * stride + TILE_ROWS, bytes);
    }
    INLINE void store_sums(float* to, int64_t stride) {
        const int64_t bytes = stride * 4;
        _tile_stored(0, to, bytes);
        _tile_stored(1, to + TILE_ROWS, bytes);
        _tile_stored(2, to + TILE_ROWS * stride, bytes);
        _tile_stored(3, to + TILE_ROWS * stride + TILE_ROWS, bytes);
        buffers_written();
    }
    INLINE void load_rows(const uint16_t* rows, int64_t stride) {
        _tile_loadd(4, rows, stride * 2);
        _tile_loadd(5, rows + TILE_ROWS * stride, stride * 2);
    }
    // For rows that pass by: what they meet stays in the first-level cache instead.
    INLINE void stream_rows(const uint16_t* rows, int64_t stride) {
        _tile_stream_loadd(4, rows, stride * 2);
        _tile_stream_loadd(5, rows + TILE_ROWS * stride, stride * 2);
    }
    INLINE void load_weights(const uint16_t* first, const uint16_t* second) {
        _tile_loadd(6, first, TILE_ROW_BYTES);
        _tile_loadd(7, second, TILE_ROW_BYTES);
    }
    INLINE void multiply() {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }

private:
    INLINE static __m512i interleaved_words() {
        alignas(64) static constexpr uint16_t WORDS[32] = {
            0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
            8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
        return _mm512_load_si512(WORDS);
    }

    TileConfiguration configuration_{BF16_SHAPES};
};

class HardwareInt8Tiles {
public:
    INLINE static void buffers_written() { memory_written(); }

    // Sums of one group: rows (16 * row_tiles, stride), weights of two panels, sums (row, 32).
    INLINE static void group_sums(const int8_t* rows, int64_t stride, int32_t row_tiles,
                                  const std::byte* first, const std::byte* second, int32_t* sums) {
        constexpr int64_t SUM_BYTES = TILE_BLOCK * 4;
        _tile_loadd(6, first, TILE_ROW_BYTES);
        _tile_loadd(7, second, TILE_ROW_BYTES);
        for (int32_t i = 0; i < row_tiles; ++i) {
            _tile_loadd(4, rows + i * TILE_ROWS * stride, stride);
            _tile_zero(0);
            _tile_zero(1);
            _tile_dpbsud(0, 4, 6);
            _tile_dpbsud(1, 4, 7);
            _tile_stored(0, sums + i * TILE_ROWS * TILE_BLOCK, SUM_BYTES);
            _tile_stored(1, sums + i * TILE_ROWS * TILE_BLOCK + TILE_ROWS, SUM_BYTES);
        }
        memory_written();
    }

private:
    TileConfiguration configuration_{INT8_SHAPES};
};

} // namespace

void amx_matmul(const PackedMatrix& matrix, const Activations& x, int32_t row_begin,
                int32_t row_end, int32_t panel_begin, int32_t panel_end, float* out,
                int64_t out_stride) {
    const bool tiles = row_end - row_begin >= INT8_TILE_ROWS_MIN && has_int8_tiles(matrix.kind);
    auto* matmul = tiles ? matmul_tiles_int8<HardwareInt8Tiles> : AVX512_OPS.matmul;
    matmul(matrix, x, row_begin, row_end, panel_begin, panel_end, out, out_stride);
}

void amx_matmul_prompt(const PackedMatrix& matrix, const Activations& x, int32_t row_begin,
                       int32_t row_end, int32_t panel_begin, int32_t panel_end, float* out,
                       int64_t out_stride) {
    auto* matmul = is_quantised(matrix.kind) ? matmul_tiles<HardwareTiles> : AVX512_OPS.matmul;
    matmul(matrix, x, row_begin, row_end, panel_begin, panel_end, out, out_stride);
}

void amx_attention_prompt(const AttentionCall& call, const KvLayout& layout) {
    auto* attention =
        layout.type == KvType::bf16 ? attention_tiles<HardwareTiles> : AVX512_OPS.attention;
    attention(call, layout);
}

} // namespace sublimate::cpu

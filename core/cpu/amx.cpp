// AMX for prompts; everything else of its table is AVX-512's (see dispatch.cpp).
//
// defines: amx_matmul_prompt
#include "lanes_avx512.inl.h"

#include "matmul_tiles.inl.h"

namespace sublimate::cpu {
namespace {

// The eight tile registers: 0 to 3 sums (row tile 0 x panel 0, 0 x 1, 1 x 0, 1 x 1), 4 and 5 rows,
// 6 and 7 weights.
class HardwareTiles {
public:
    HardwareTiles() {
        // Tile state belongs to a thread and survives until it ends.
        static thread_local bool configured = false;
        if (!configured) configure();
        configured = true;
    }

    // gcc 12's tile loads do not tell the compiler that they read memory.
    INLINE static void buffers_written() { __asm__ volatile("" ::: "memory"); }

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
    static constexpr int32_t TILES = 8;

    struct Configuration { // Intel SDM volume 1, 18.2: palette 1
        uint8_t palette;
        uint8_t start_row;
        uint8_t reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    };
    static_assert(sizeof(Configuration) == 64);

    static void configure() {
        alignas(64) Configuration configuration = {};
        configuration.palette = 1;
        for (int32_t i = 0; i < TILES; ++i) {
            configuration.row_bytes[i] = TILE_ROW_BYTES;
            configuration.rows[i] = TILE_ROWS;
        }
        // gcc 12 would otherwise drop the stores above: the instruction does not say that it reads
        // them.
        __asm__ volatile("" : : "r"(&configuration) : "memory");
        _tile_loadconfig(&configuration);
    }

    INLINE static __m512i interleaved_words() {
        alignas(64) static constexpr uint16_t WORDS[32] = {
            0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
            8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
        return _mm512_load_si512(WORDS);
    }
};

} // namespace

void amx_matmul_prompt(const PackedMatrix& matrix, const Activations& x, int32_t row_begin,
                       int32_t row_end, int32_t panel_begin, int32_t panel_end, float* out,
                       int64_t out_stride) {
    auto* matmul = is_quantised(matrix.kind) ? matmul_tiles<HardwareTiles> : AVX512_OPS.matmul;
    matmul(matrix, x, row_begin, row_end, panel_begin, panel_end, out, out_stride);
}

} // namespace sublimate::cpu

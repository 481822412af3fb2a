// Multiplying tiles of 16 rows of 64 bytes: four sums, as a 2 x 2 block of a matrix product.
//
// defines: AMX_LIMITS
#include "intrinsics.h"

#include "limit_kernels.h"

namespace sublimate::cpu {

namespace {

constexpr int32_t TILES = 8;
constexpr int32_t TILE_ROWS = 16;
constexpr int32_t TILE_ROW_BYTES = 64;
constexpr int32_t TILE_BYTES = TILE_ROWS * TILE_ROW_BYTES;
constexpr int32_t PRODUCTS = 4; // per round
constexpr int64_t OPS_BF16 = int64_t{PRODUCTS} * TILE_ROWS * TILE_ROWS * (TILE_ROW_BYTES / 2) * 2;
constexpr int64_t OPS_INT8 = int64_t{PRODUCTS} * TILE_ROWS * TILE_ROWS * TILE_ROW_BYTES * 2;
constexpr int32_t LOADED_TILES = 16; // 16 KB: half of a first cache
static_assert(LOADED_TILES % 4 == 0, "a round loads four");

struct Configuration { // Intel SDM volume 1, 18.2: palette 1
    uint8_t palette;
    uint8_t start_row;
    uint8_t reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};
static_assert(sizeof(Configuration) == TILE_ROW_BYTES);

// Tile state belongs to a thread and other kernels of it have the same shape, so that it is left
// as it is.
void configure() {
    alignas(64) Configuration configuration = {};
    configuration.palette = 1;
    for (int32_t i = 0; i < TILES; i++) {
        configuration.row_bytes[i] = TILE_ROW_BYTES;
        configuration.rows[i] = TILE_ROWS;
    }
    // gcc 12 would otherwise drop the stores above: the instruction does not say that it reads
    // them.
    __asm__ volatile("" : : "r"(&configuration) : "memory");
    _tile_loadconfig(&configuration);
}

void begin() {
    configure();
    alignas(64) static constexpr std::byte ZERO[TILE_BYTES] = {};
    _tile_loadd(4, ZERO, TILE_ROW_BYTES);
    _tile_loadd(5, ZERO, TILE_ROW_BYTES);
    _tile_loadd(6, ZERO, TILE_ROW_BYTES);
    _tile_loadd(7, ZERO, TILE_ROW_BYTES);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
}

int64_t bf16(int64_t rounds) {
    begin();
    for (int64_t i = 0; i < rounds; i++) {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    return rounds * OPS_BF16;
}

int64_t bf16_loads(int64_t rounds) {
    begin();
    alignas(64) static constexpr std::byte OPERANDS[LOADED_TILES * TILE_BYTES] = {};
    for (int64_t i = 0; i < rounds; i++) {
        const std::byte* from = OPERANDS + i % (LOADED_TILES / 4) * 4 * TILE_BYTES;
        _tile_loadd(4, from, TILE_ROW_BYTES);
        _tile_loadd(6, from + TILE_BYTES, TILE_ROW_BYTES);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, from + 2 * TILE_BYTES, TILE_ROW_BYTES);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, from + 3 * TILE_BYTES, TILE_ROW_BYTES);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    return rounds * OPS_BF16;
}

int64_t int8(int64_t rounds) {
    begin();
    for (int64_t i = 0; i < rounds; i++) {
        _tile_dpbssd(0, 4, 6);
        _tile_dpbssd(1, 4, 7);
        _tile_dpbssd(2, 5, 6);
        _tile_dpbssd(3, 5, 7);
    }
    return rounds * OPS_INT8;
}

} // namespace

constinit const TileKernels AMX_LIMITS = {.bf16 = bf16, .bf16_loads = bf16_loads, .int8 = int8};

} // namespace sublimate::cpu

// The shape of a tile register and of the register block that every tile kernel works in: two tiles
// of rows times two tiles of weights make 32 x 32 sums.
//
// The kernels are written against a `Machine`, the tile registers with their instructions: the
// hardware (amx.cpp), or a plain emulation that the tests run anywhere. A machine configures its
// registers when it is made and releases them when it goes.
//
// defines: TILE_ROWS, TILE_WORDS, TILE_ROW_BYTES, BLOCK_TILES, TILE_BLOCK
#pragma once

#include "lanes.inl.h"
#include "tables.h"

namespace sublimate::cpu {
namespace {

constexpr int32_t TILE_ROWS = 16;
constexpr int32_t TILE_WORDS = 512; // 16 x 32 bf16
constexpr int32_t TILE_ROW_BYTES = 64;
constexpr int32_t BLOCK_TILES = 2; // tiles side by side and tiles on top of each other
constexpr int32_t TILE_BLOCK = BLOCK_TILES * TILE_ROWS;

static_assert(TILE_ROWS == PANEL_ROWS, "a panel is one tile wide");
static_assert(TILE_WORDS == PANEL_ROWS * GROUP_COLUMNS, "a group is one tile deep");
static_assert(TILE_ROWS == LANES, "a tile row of sums is one register");

} // namespace
} // namespace sublimate::cpu

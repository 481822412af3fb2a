// The prompt's matrix product on AMX: quantised weights become bf16 tiles, activations are bf16,
// and every output is summed in fp32 over its full depth, one tile of 32 columns after the other in
// ascending order. No output depends on which rows or panels share a call: a tile row is one row of
// activations.
//
//   weight = bf16(fma(scale, float(u - offset), minimum)), K kinds with d * s for the scale, to
//   nearest even; per tile: even and odd columns are two chains of fused multiply-adds from zero,
//   subnormals count as zero; acc = acc + (even + odd) (TDPBF16PS, Intel SDM volume 2)
//
// A panel's tiles are made once for all rows of a block and stay in the cache; the rows pass by.
//
// defines: matmul_tiles
#pragma once

#include "k_panels.inl.h"
#include "matmul_check.inl.h"
#include "tiles.inl.h"

namespace sublimate::cpu {
namespace {

constexpr int32_t TILE_GROUPS_MAX = 24; // groups of a column chunk: two panels take 48 KB
constexpr int32_t TILE_ROWS_MAX = 128;  // rows of a row block: their chunk takes 192 KB
constexpr int32_t TILE_STRIDE = TILE_GROUPS_MAX * GROUP_COLUMNS;

static_assert(TILE_ROWS_MAX % TILE_BLOCK == 0);

// What one thread needs while it runs, on its stack.
struct TileBuffers {
    alignas(64) uint16_t weights[BLOCK_TILES][TILE_GROUPS_MAX * TILE_WORDS];
    alignas(64) uint16_t rows[TILE_BLOCK * TILE_STRIDE]; // of a block that is not whole
    alignas(64) float sums[TILE_BLOCK * TILE_BLOCK];     // likewise
};

struct TileCall {
    const PackedMatrix& matrix;
    const Activations& x;
    float* out;
    int64_t out_stride;
    int32_t row_begin; // of the row block
    int32_t row_count;
    int32_t first_group; // of the column chunk
    int32_t groups;

    const uint16_t* rows() const {
        return x.bf16 + int64_t{row_begin} * x.columns + int64_t{first_group} * GROUP_COLUMNS;
    }
};

// Two columns of 16 outputs from a register of four columns each: bits [shift, shift + width) of
// every byte pair.
template <class Machine>
INLINE void store_column_pair(LanesBits four, int32_t shift, uint32_t mask, uint32_t offset,
                              Lanes scale, Lanes minimum, uint16_t* to) {
    const LanesBits bits = splat_bits(mask);
    const LanesBits even = (shift_right(four, shift) & bits) - splat_bits(offset);
    const LanesBits odd = (shift_right(four, shift + 8) & bits) - splat_bits(offset);
    store_bits(to, Machine::bf16_pairs(fma(scale, floats_from_signed(even), minimum),
                                       fma(scale, floats_from_signed(odd), minimum)));
}

// One group of a panel as a tile: row k holds columns 2k and 2k + 1 of 16 outputs.
template <class Machine>
INLINE void decode_tile(const PackedMatrix& matrix, const std::byte* group, Lanes scale,
                        Lanes minimum, uint16_t* to) {
    const auto offset = static_cast<uint32_t>(matrix.offset);
    if (matrix.kind != WeightKind::u4) {
        for (int32_t c = 0; c < 8; ++c) {
            const LanesBits four = byte_chunk(matrix.kind, group, c);
            uint16_t* at = to + 2 * c * 32;
            store_column_pair<Machine>(four, 0, 255, offset, scale, minimum, at);
            store_column_pair<Machine>(four, 16, 255, offset, scale, minimum, at + 32);
        }
        return;
    }
    for (int32_t c = 0; c < 4; ++c) {
        const LanesBits four = load_bits(group + c * 64);
        uint16_t* low = to + 2 * c * 32;
        uint16_t* high = low + 8 * 32;
        store_column_pair<Machine>(four, 0, 15, offset, scale, minimum, low);
        store_column_pair<Machine>(four, 16, 15, offset, scale, minimum, low + 32);
        store_column_pair<Machine>(four, 4, 15, offset, scale, minimum, high);
        store_column_pair<Machine>(four, 20, 15, offset, scale, minimum, high + 32);
    }
}

// The same for a K kind, whose halves may have scales of their own.
template <class Machine, class Kind>
INLINE void decode_super_panel(const TileCall& call, const std::byte* base, uint16_t* to) {
    SuperSource<Kind> source = {base, base, {}, {}};
    for (int32_t i = 0; i < call.groups; ++i, to += TILE_WORDS) {
        const int32_t g = (call.first_group + i) % SUPER_GROUPS;
        source.enter((call.first_group + i) / SUPER_GROUPS);
        for (int32_t c = 0; c < CHUNKS; ++c) {
            Lanes scale = source.scale(g);
            Lanes minimum = splat(0.0f);
            if constexpr (Kind::HALVES == 2) {
                scale = scale * source.half_scale(g, c / HALF_CHUNKS);
                if (Kind::OFFSET == 0) minimum = source.half_minimum(g, c / HALF_CHUNKS);
            } else if constexpr (Kind::OFFSET == 0) {
                minimum = source.minimum(g);
            }
            const LanesBits four = source.chunk(g, c);
            uint16_t* at = to + 2 * c * 32;
            store_column_pair<Machine>(four, 0, 255, Kind::OFFSET, scale, minimum, at);
            store_column_pair<Machine>(four, 16, 255, Kind::OFFSET, scale, minimum, at + 32);
        }
    }
}

template <class Machine>
INLINE void decode_panel(const TileCall& call, int32_t panel, uint16_t* to) {
    const PackedMatrix& matrix = call.matrix;
    const std::byte* base = matrix.data + panel * matrix.panel_bytes;
    if (matrix.kind == WeightKind::k2) return decode_super_panel<Machine, K2>(call, base, to);
    if (matrix.kind == WeightKind::k4) return decode_super_panel<Machine, K4>(call, base, to);
    if (matrix.kind == WeightKind::kn4) return decode_super_panel<Machine, Kn4>(call, base, to);
    if (matrix.kind == WeightKind::k5) return decode_super_panel<Machine, K5>(call, base, to);
    if (matrix.kind == WeightKind::k6) return decode_super_panel<Machine, K6>(call, base, to);
    if (matrix.kind == WeightKind::k3) return decode_super_panel<Machine, K3>(call, base, to);
    const int64_t all_groups = matrix.columns / GROUP_COLUMNS;
    const int64_t group_bytes = group_bytes_of(matrix.kind);
    const auto* scales = reinterpret_cast<const uint16_t*>(base + all_groups * group_bytes);
    const uint16_t* minima = scales + all_groups * PANEL_ROWS;
    for (int32_t g = 0; g < call.groups; ++g) {
        const int64_t group = call.first_group + g;
        const Lanes scale = load_half(scales + group * PANEL_ROWS);
        const Lanes minimum = matrix.affine ? load_half(minima + group * PANEL_ROWS) : splat(0.0f);
        decode_tile<Machine>(matrix, base + group * group_bytes, scale, minimum,
                             to + int64_t{g} * TILE_WORDS);
    }
}

// The last rows of a block, and zeros that fill up their tiles.
INLINE void copy_rows(const TileCall& call, uint16_t* to) {
    const int32_t first = call.row_count / TILE_BLOCK * TILE_BLOCK;
    for (int32_t r = first; r < first + TILE_BLOCK; ++r, to += TILE_STRIDE) {
        const uint16_t* from = call.rows() + int64_t{r} * call.x.columns;
        for (int32_t c = 0; c < call.groups * GROUP_COLUMNS; c += GROUP_COLUMNS) {
            store_bits(to + c, r < call.row_count ? load_bits(from + c) : splat_bits(0));
        }
    }
}

// Copies between `sums` and what exists of a block of outputs.
INLINE void copy_outputs(const TileCall& call, int32_t row, int32_t panel, int32_t panel_end,
                         float* sums, bool to_out) {
    for (int32_t r = 0; r < TILE_BLOCK && row + r < call.row_count; ++r) {
        float* out = call.out + (call.row_begin + row + r) * call.out_stride;
        for (int32_t p = 0; p < BLOCK_TILES && panel + p < panel_end; ++p) {
            float* mine = sums + r * TILE_BLOCK + p * TILE_ROWS;
            float* theirs = out + int64_t{panel + p} * PANEL_ROWS;
            const int32_t left = call.matrix.rows - (panel + p) * PANEL_ROWS;
            const int32_t lanes = left < LANES ? left : LANES;
            if (to_out) store_first(theirs, load(mine), lanes);
            if (!to_out) store(mine, load_first(theirs, lanes));
        }
    }
}

// 32 rows x 2 panels over the column chunk.
template <class Machine>
INLINE void tile_block(Machine& machine, const TileCall& call, TileBuffers& buffers, int32_t row,
                       int32_t panel, int32_t panel_end) {
    const bool whole = row + TILE_BLOCK <= call.row_count && panel + BLOCK_TILES <= panel_end &&
                       (panel + BLOCK_TILES) * PANEL_ROWS <= call.matrix.rows;
    float* sums =
        whole ? call.out + (call.row_begin + row) * call.out_stride + int64_t{panel} * PANEL_ROWS
              : buffers.sums;
    const int64_t stride = whole ? call.out_stride : TILE_BLOCK;
    if (call.first_group == 0) {
        machine.clear_sums();
    } else {
        if (!whole) copy_outputs(call, row, panel, panel_end, sums, false);
        machine.load_sums(sums, stride);
    }
    const bool whole_rows = row + TILE_BLOCK <= call.row_count;
    const uint16_t* rows = whole_rows ? call.rows() + int64_t{row} * call.x.columns : buffers.rows;
    const int64_t row_stride = whole_rows ? call.x.columns : TILE_STRIDE;
    for (int32_t g = 0; g < call.groups; ++g) {
        machine.stream_rows(rows + int64_t{g} * GROUP_COLUMNS, row_stride);
        machine.load_weights(buffers.weights[0] + int64_t{g} * TILE_WORDS,
                             buffers.weights[1] + int64_t{g} * TILE_WORDS);
        machine.multiply();
    }
    machine.store_sums(sums, stride);
    if (!whole) copy_outputs(call, row, panel, panel_end, sums, true);
}

template <class Machine>
void tile_chunk(Machine& machine, const TileCall& call, TileBuffers& buffers, int32_t panel_begin,
                int32_t panel_end) {
    if (call.row_count % TILE_BLOCK != 0) copy_rows(call, buffers.rows);
    for (int32_t panel = panel_begin; panel < panel_end; panel += BLOCK_TILES) {
        for (int32_t p = 0; p < BLOCK_TILES; ++p) {
            // Beside an odd last panel stands the same one again; its sums go nowhere.
            const int32_t existing = panel + p < panel_end ? panel + p : panel;
            decode_panel<Machine>(call, existing, buffers.weights[p]);
        }
        Machine::buffers_written();
        for (int32_t row = 0; row < call.row_count; row += TILE_BLOCK) {
            tile_block(machine, call, buffers, row, panel, panel_end);
        }
    }
}

template <class Machine>
void matmul_tiles(const PackedMatrix& matrix, const Activations& x, int32_t row_begin,
                  int32_t row_end, int32_t panel_begin, int32_t panel_end, float* out,
                  int64_t out_stride) {
    check_product(matrix, x, row_begin, row_end, panel_begin, panel_end);
    Machine machine;
    TileBuffers buffers;
    const int32_t all_groups = matrix.columns / GROUP_COLUMNS;
    for (int32_t row = row_begin; row < row_end; row += TILE_ROWS_MAX) {
        const int32_t rows = row_end - row < TILE_ROWS_MAX ? row_end - row : TILE_ROWS_MAX;
        for (int32_t group = 0; group < all_groups; group += TILE_GROUPS_MAX) {
            const int32_t left = all_groups - group;
            const int32_t groups = left < TILE_GROUPS_MAX ? left : TILE_GROUPS_MAX;
            const TileCall call{matrix, x, out, out_stride, row, rows, group, groups};
            tile_chunk(machine, call, buffers, panel_begin, panel_end);
        }
    }
}

} // namespace
} // namespace sublimate::cpu

// The generated rows' matrix product on tiles, for batches: exact int32 sums of one group of 32
// columns (half of a tile's depth) for 32 rows x 2 panels at once, then the rescale of
// matmul_quantised.inl.h in its order. So the bits are those of every other instruction set.
//
// Weights become bytes once per chunk of groups, in the order in which a tile takes them (a panel's
// chunk of four columns is a tile row), and serve all rows. Sums of a few groups lie in the first-
// level cache between the two units.
//
// defines: has_int8_tiles, matmul_tiles_int8
#pragma once

#include "k_panels.inl.h"
#include "matmul_check.inl.h"
#include "tiles.inl.h"

namespace sublimate::cpu {
namespace {

constexpr int32_t INT8_GROUPS_MAX = 16; // of a chunk: two panels take 20 KB
constexpr int32_t INT8_SUM_GROUPS = 4;  // summed between two rescales: 16 KB
constexpr int32_t INT8_RESCALE_ROWS = 4;
constexpr int64_t INT8_GROUP_BYTES = 512; // of 16 outputs x 32 columns
constexpr int64_t INT8_ROW_BYTES = INT8_GROUPS_MAX * GROUP_COLUMNS;

static_assert(INT8_GROUPS_MAX % INT8_SUM_GROUPS == 0);
static_assert(TILE_ROWS % INT8_RESCALE_ROWS == 0);

// Of a kind with two scales in a group the sums would be a quarter of a tile deep.
constexpr bool has_int8_tiles(WeightKind kind) {
    return is_quantised(kind) && !has_half_scales(kind);
}

// A chunk of a panel's groups.
struct Int8Panel {
    const std::byte* groups; // decoded, or as they lie in the panel
    alignas(64) std::byte decoded[INT8_GROUPS_MAX * INT8_GROUP_BYTES];
    alignas(64) float scales[INT8_GROUPS_MAX * PANEL_ROWS];
    alignas(64) float minima[INT8_GROUPS_MAX * PANEL_ROWS];
};

// What one thread needs while it runs, on its stack.
struct Int8Buffers {
    Int8Panel panels[BLOCK_TILES];
    alignas(64) int32_t sums[INT8_SUM_GROUPS][TILE_BLOCK][TILE_BLOCK];
    alignas(64) float acc[TILE_BLOCK][TILE_BLOCK];
    alignas(64) float scales[TILE_BLOCK][INT8_GROUPS_MAX];
    alignas(64) float scaled_sums[TILE_BLOCK][INT8_GROUPS_MAX]; // affine: scale * float(sum)
    alignas(64) int32_t offsets[TILE_BLOCK][INT8_GROUPS_MAX];   // symmetric: -offset * sum
    alignas(64) int8_t rows[TILE_BLOCK * INT8_ROW_BYTES];       // of a block that is not whole
};

// A block of rows and panels, and a chunk of groups.
struct Int8Call {
    const PackedMatrix& matrix;
    const Activations& x;
    float* out;
    int64_t out_stride;
    int32_t panel; // first of the block
    int32_t panels;
    int32_t first_group; // of the chunk
    int32_t groups;
    int32_t row; // first of the block
    int32_t rows;

    float* outputs(int32_t r, int32_t p) const {
        return out + (row + r) * out_stride + int64_t{panel + p} * PANEL_ROWS;
    }
    int32_t lanes(int32_t p) const {
        const int32_t left = matrix.rows - (panel + p) * PANEL_ROWS;
        return left < LANES ? left : LANES;
    }
};

INLINE Lanes load_outputs(const float* from, int32_t lanes) {
    return lanes == LANES ? load(from) : load_first(from, lanes);
}
INLINE void store_outputs(float* to, Lanes value, int32_t lanes) {
    if (lanes == LANES) store(to, value);
    if (lanes < LANES) store_first(to, value, lanes);
}

constexpr bool adds_minimum(const PackedMatrix& matrix) {
    return matrix.affine || has_small_minima(matrix.kind);
}

template <class Kind>
INLINE void decode_int8_supers(const Int8Call& call, const std::byte* base, Int8Panel& to) {
    SuperSource<Kind> source = {base, base, {}, {}};
    for (int32_t i = 0; i < call.groups; ++i) {
        const int32_t g = (call.first_group + i) % SUPER_GROUPS;
        source.enter((call.first_group + i) / SUPER_GROUPS);
        for (int32_t c = 0; c < CHUNKS; ++c) {
            store_bits(to.decoded + i * INT8_GROUP_BYTES + c * CHUNK_BYTES, source.chunk(g, c));
        }
        store(to.scales + i * PANEL_ROWS, source.scale(g));
        if constexpr (Kind::OFFSET == 0) store(to.minima + i * PANEL_ROWS, source.minimum(g));
    }
    to.groups = to.decoded;
}

// Fetches the same part of the panel that a later block reads in this one's place. Past the last
// panel it asks for memory that nobody reads, which is harmless.
INLINE void fetch_ahead(const Int8Call& call, int32_t panel) {
    const int64_t all_groups = call.matrix.columns / GROUP_COLUMNS;
    const int64_t bytes = call.matrix.panel_bytes;
    const std::byte* next = call.matrix.data + (panel + BLOCK_TILES) * bytes;
    const int64_t end = bytes * (call.first_group + call.groups) / all_groups;
    for (int64_t at = bytes * call.first_group / all_groups; at < end;
         at += limits::CACHE_LINE_BYTES) {
        __builtin_prefetch(next + at);
    }
}

INLINE void decode_int8_panel(const Int8Call& call, int32_t panel, Int8Panel& to) {
    const PackedMatrix& matrix = call.matrix;
    const std::byte* base = matrix.data + panel * matrix.panel_bytes;
    if (matrix.kind == WeightKind::k4) return decode_int8_supers<K4>(call, base, to);
    if (matrix.kind == WeightKind::k5) return decode_int8_supers<K5>(call, base, to);
    if (matrix.kind == WeightKind::kn4) return decode_int8_supers<Kn4>(call, base, to);
    const bool nibbles = matrix.kind != WeightKind::u8;
    const int64_t group_bytes = group_bytes_of(matrix.kind);
    const int64_t all_groups = matrix.columns / GROUP_COLUMNS;
    const auto* scales = reinterpret_cast<const uint16_t*>(base + all_groups * group_bytes);
    const uint16_t* minima = scales + all_groups * PANEL_ROWS;
    to.groups = nibbles ? to.decoded : base + call.first_group * group_bytes;
    for (int32_t i = 0; i < call.groups; ++i) {
        const int64_t group = call.first_group + i;
        store(to.scales + i * PANEL_ROWS, load_half(scales + group * PANEL_ROWS));
        if (matrix.affine) {
            store(to.minima + i * PANEL_ROWS, load_half(minima + group * PANEL_ROWS));
        }
        for (int32_t c = 0; nibbles && c < CHUNKS; ++c) {
            store_bits(to.decoded + i * INT8_GROUP_BYTES + c * CHUNK_BYTES,
                       byte_chunk(matrix.kind, base + group * group_bytes, c));
        }
    }
}

// The activations' side of the rescale; rows that fill up a step of it are zero.
INLINE void prepare_int8_rows(const Int8Call& call, Int8Buffers& buffers) {
    const int64_t all_groups = call.matrix.columns / GROUP_COLUMNS;
    const bool table = call.matrix.kind == WeightKind::kn4;
    const int32_t offset = table ? TABLE_OFFSET : call.matrix.offset;
    for (int32_t r = 0; r < call.rows || r % INT8_RESCALE_ROWS != 0; ++r) {
        const bool exists = r < call.rows;
        const int64_t at = int64_t{call.row + r} * all_groups + call.first_group;
        for (int32_t g = 0; g < call.groups; ++g) {
            const float scale = exists ? call.x.scales[at + g] : 0.0f;
            const int32_t sum = exists ? call.x.sums[at + g] : 0;
            buffers.scales[r][g] = scale;
            buffers.scaled_sums[r][g] = scale * static_cast<float>(sum);
            buffers.offsets[r][g] = -offset * sum;
        }
    }
}

// Where the block's activations lie: in place, or behind them rows of zeros.
struct Int8Rows {
    const int8_t* first;
    int64_t stride;
};
INLINE Int8Rows int8_rows(const Int8Call& call, Int8Buffers& buffers) {
    const int8_t* values = call.x.values + int64_t{call.row} * call.x.columns +
                           int64_t{call.first_group} * GROUP_COLUMNS;
    if (call.rows == TILE_BLOCK) return {values, call.x.columns};
    for (int32_t r = 0; r < TILE_BLOCK; ++r) {
        int8_t* to = buffers.rows + r * INT8_ROW_BYTES;
        for (int32_t c = 0; c < call.groups * GROUP_COLUMNS; ++c) {
            to[c] = r < call.rows ? values[int64_t{r} * call.x.columns + c] : int8_t{0};
        }
    }
    return {buffers.rows, INT8_ROW_BYTES};
}

// Adds `count` groups from `first` of the chunk, whose sums lie in the buffer, to INT8_RESCALE_ROWS
// rows.
template <bool AFFINE>
INLINE void rescale_rows(Int8Buffers& buffers, int32_t row, int32_t first, int32_t count) {
    Lanes acc[INT8_RESCALE_ROWS][BLOCK_TILES];
    for (int32_t r = 0; r < INT8_RESCALE_ROWS; ++r) {
        for (int32_t p = 0; p < BLOCK_TILES; ++p) {
            acc[r][p] = load(buffers.acc[row + r] + p * TILE_ROWS);
        }
    }
    for (int32_t g = 0; g < count; ++g) {
        for (int32_t p = 0; p < BLOCK_TILES; ++p) {
            const Int8Panel& panel = buffers.panels[p];
            const Lanes scale = load(panel.scales + (first + g) * PANEL_ROWS);
            const Lanes minimum =
                AFFINE ? load(panel.minima + (first + g) * PANEL_ROWS) : splat(0.0f);
            for (int32_t r = 0; r < INT8_RESCALE_ROWS; ++r) {
                const int32_t i = row + r;
                LanesBits sum = load_bits(buffers.sums[g][i] + p * TILE_ROWS);
                if (!AFFINE) {
                    const int32_t offset = buffers.offsets[i][first + g];
                    sum = sum + splat_bits(static_cast<uint32_t>(offset));
                }
                const Lanes both = scale * splat(buffers.scales[i][first + g]);
                acc[r][p] = fma(floats_from_signed(sum), both, acc[r][p]);
                if (!AFFINE) continue;
                acc[r][p] = fma(minimum, splat(buffers.scaled_sums[i][first + g]), acc[r][p]);
            }
        }
    }
    for (int32_t r = 0; r < INT8_RESCALE_ROWS; ++r) {
        for (int32_t p = 0; p < BLOCK_TILES; ++p) {
            store(buffers.acc[row + r] + p * TILE_ROWS, acc[r][p]);
        }
    }
}

// 32 rows x 2 panels over the chunk of groups; between chunks the accumulators rest in `out`.
template <class Machine>
INLINE void int8_block(Machine& machine, const Int8Call& call, Int8Buffers& buffers) {
    const bool affine = adds_minimum(call.matrix);
    const int32_t row_tiles = call.rows <= TILE_ROWS ? 1 : BLOCK_TILES;
    for (int32_t r = 0; r < TILE_BLOCK; ++r) {
        for (int32_t p = 0; p < BLOCK_TILES; ++p) {
            const bool begun = call.first_group > 0 && r < call.rows && p < call.panels;
            store(buffers.acc[r] + p * TILE_ROWS,
                  begun ? load_outputs(call.outputs(r, p), call.lanes(p)) : splat(0.0f));
        }
    }
    prepare_int8_rows(call, buffers);
    const Int8Rows rows = int8_rows(call, buffers);
    Machine::buffers_written();
    for (int32_t first = 0; first < call.groups; first += INT8_SUM_GROUPS) {
        const int32_t left = call.groups - first;
        const int32_t count = left < INT8_SUM_GROUPS ? left : INT8_SUM_GROUPS;
        for (int32_t g = 0; g < count; ++g) {
            const int64_t at = (first + g) * INT8_GROUP_BYTES;
            machine.group_sums(rows.first + int64_t{first + g} * GROUP_COLUMNS, rows.stride,
                               row_tiles, buffers.panels[0].groups + at,
                               buffers.panels[1].groups + at, buffers.sums[g][0]);
        }
        for (int32_t r = 0; r < call.rows; r += INT8_RESCALE_ROWS) {
            if (affine) rescale_rows<true>(buffers, r, first, count);
            if (!affine) rescale_rows<false>(buffers, r, first, count);
        }
    }
    for (int32_t r = 0; r < call.rows; ++r) {
        for (int32_t p = 0; p < call.panels; ++p) {
            store_outputs(call.outputs(r, p), load(buffers.acc[r] + p * TILE_ROWS), call.lanes(p));
        }
    }
}

template <class Machine>
void matmul_tiles_int8(const PackedMatrix& matrix, const Activations& x, int32_t row_begin,
                       int32_t row_end, int32_t panel_begin, int32_t panel_end, float* out,
                       int64_t out_stride) {
    KERNEL_CHECK(has_int8_tiles(matrix.kind), "a kind that has one scale in a group");
    check_product(matrix, x, row_begin, row_end, panel_begin, panel_end);
    Machine machine;
    Int8Buffers buffers;
    const int32_t all_groups = matrix.columns / GROUP_COLUMNS;
    Int8Call call{matrix, x, out, out_stride, 0, 0, 0, 0, 0, 0};
    for (call.panel = panel_begin; call.panel < panel_end; call.panel += BLOCK_TILES) {
        call.panels = panel_end - call.panel < BLOCK_TILES ? 1 : BLOCK_TILES;
        for (call.first_group = 0; call.first_group < all_groups;
             call.first_group += INT8_GROUPS_MAX) {
            const int32_t left = all_groups - call.first_group;
            call.groups = left < INT8_GROUPS_MAX ? left : INT8_GROUPS_MAX;
            for (int32_t p = 0; p < BLOCK_TILES; ++p) {
                // Beside an odd last panel stands the same one again; its sums go nowhere.
                decode_int8_panel(call, call.panel + (p < call.panels ? p : 0), buffers.panels[p]);
                fetch_ahead(call, call.panel + p);
            }
            for (call.row = row_begin; call.row < row_end; call.row += TILE_BLOCK) {
                const int32_t rest = row_end - call.row;
                call.rows = rest < TILE_BLOCK ? rest : TILE_BLOCK;
                int8_block(machine, call, buffers);
            }
        }
    }
}

} // namespace
} // namespace sublimate::cpu

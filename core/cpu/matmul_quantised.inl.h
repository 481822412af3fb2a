// Quantised matrix products, the part that every instruction set shares: which rows and panels run
// together and where a panel's groups come from. The including header defines `Dot`, the exact
// int32 sums of one group.
//
// Order of one output, the same everywhere:
//   for each group of 32 columns:
//     sum  = exact int32 of (u - offset) * x                    (offset = 0 where affine)
//     acc  = fma(float(sum), scale_w * scale_x, acc)            (the product of scales is rounded
//     first) acc  = fma(minimum_w, scale_x * float(sum of x), acc)     (affine only; likewise)
//
// Few rows read a panel once, straight from memory. Many rows decode a panel's groups into a buffer
// that stays in the first-level cache, CHUNK_GROUPS at a time; between chunks the accumulators rest
// in `out`, exactly.
//
// defines: matmul_quantised
#pragma once

#include "lanes.inl.h"
#include "matmul_float.inl.h"

namespace sublimate::cpu {
namespace {

constexpr int32_t CHUNK_GROUPS = 24;     // 30 KB of two decoded panels
constexpr int64_t PREFETCH_BYTES = 6144; // ahead of a direct read

static_assert(group_bytes_of(WeightKind::u4) * 2 == PANEL_ROWS * GROUP_COLUMNS);
static_assert(group_bytes_of(WeightKind::u8) == PANEL_ROWS * GROUP_COLUMNS);

// Where a panel's pieces lie.
struct PanelView {
    const std::byte* groups;
    const uint16_t* scales; // (group, 16) half
    const uint16_t* minima; // (group, 16) half, affine only
};
INLINE PanelView panel_view(const PackedMatrix& matrix, int32_t panel) {
    const int64_t groups = matrix.columns / GROUP_COLUMNS;
    const int64_t bytes = groups * group_bytes_of(matrix.kind);
    const std::byte* base = matrix.data + panel * matrix.panel_bytes;
    const auto* scales = reinterpret_cast<const uint16_t*>(base + bytes);
    return {base, scales, scales + groups * PANEL_ROWS};
}

// Lines to fetch ahead, a few per group.
struct Ahead {
    const std::byte* at;
    int32_t lines_per_group;

    INLINE void fetch() {
        for (int32_t i = 0; i < lines_per_group; ++i) {
            __builtin_prefetch(at + i * limits::CACHE_LINE_BYTES);
        }
        at += lines_per_group * limits::CACHE_LINE_BYTES;
    }
};

// A chunk of groups of a panel as it lies in the file.
template <class GroupKind>
struct DirectSource {
    static constexpr bool MANY_ROWS = false;
    PanelView view;

    INLINE const std::byte* group(int32_t g) const { return view.groups + g * GroupKind::BYTES; }
    INLINE Lanes scale(int32_t g) const { return load_half(view.scales + g * PANEL_ROWS); }
    INLINE Lanes minimum(int32_t g) const { return load_half(view.minima + g * PANEL_ROWS); }
};

// The same, decoded: whatever Dot likes best, and the scales as floats.
template <class Decoded>
struct DecodedPanel {
    alignas(64) std::byte groups[CHUNK_GROUPS * Decoded::BYTES];
    alignas(64) float scales[CHUNK_GROUPS * PANEL_ROWS];
    alignas(64) float minima[CHUNK_GROUPS * PANEL_ROWS];
};
template <class Decoded>
struct DecodedSource {
    static constexpr bool MANY_ROWS = true; // another block of rows is likely to follow
    const DecodedPanel<Decoded>* panel;

    INLINE const std::byte* group(int32_t g) const { return panel->groups + g * Decoded::BYTES; }
    INLINE Lanes scale(int32_t g) const { return load(panel->scales + g * PANEL_ROWS); }
    INLINE Lanes minimum(int32_t g) const { return load(panel->minima + g * PANEL_ROWS); }
};

// One chunk of a block of rows: pointers at its first group and what each group adds on the
// activations' side.
template <int32_t ROWS>
struct RowChunk {
    const int8_t* values[ROWS];
    int64_t next_block; // groups from a row to its counterpart in the next block of rows
    const float* scales[ROWS];
    alignas(64) float scaled_sums[ROWS][CHUNK_GROUPS]; // affine: scale * float(sum)
    alignas(64) int32_t offsets[ROWS][CHUNK_GROUPS];   // symmetric: -offset * sum
};

template <int32_t ROWS, bool AFFINE>
INLINE void prepare_rows(RowChunk<ROWS>& chunk, const Activations& x, int32_t offset, int32_t row,
                         int32_t first_group, int32_t count) {
    const int64_t groups = x.columns / GROUP_COLUMNS;
    chunk.next_block = groups * ROWS;
    for (int32_t r = 0; r < ROWS; ++r) {
        const int64_t at = (int64_t{row} + r) * groups + first_group;
        chunk.values[r] = x.values + at * GROUP_COLUMNS;
        chunk.scales[r] = x.scales + at;
        const int32_t* sums = x.sums + at;
        for (int32_t g = 0; g < count; ++g) {
            if (AFFINE) chunk.scaled_sums[r][g] = chunk.scales[r][g] * static_cast<float>(sums[g]);
            if (!AFFINE) chunk.offsets[r][g] = -offset * sums[g];
        }
    }
}

template <class GroupKind, bool AFFINE, int32_t ROWS, int32_t PANELS, class Source>
INLINE void run_chunk(Lanes (&acc)[ROWS][PANELS], const Source (&source)[PANELS],
                      const RowChunk<ROWS>& rows, int32_t first_group, int32_t count,
                      Ahead& ahead) {
    for (int32_t g = 0; g < count; ++g) {
        const std::byte* weights[PANELS];
        for (int32_t p = 0; p < PANELS; ++p) weights[p] = source[p].group(first_group + g);
        ahead.fetch();
        for (int32_t r = 0; Source::MANY_ROWS && r < ROWS; ++r)
            __builtin_prefetch(rows.values[r] + (int64_t{g} + rows.next_block) * GROUP_COLUMNS);
        LanesBits sums[ROWS][PANELS];
        for (int32_t r = 0; r < ROWS; ++r) {
            const int32_t offset = AFFINE ? 0 : rows.offsets[r][g];
            for (LanesBits& sum : sums[r]) sum = splat_bits(static_cast<uint32_t>(offset));
        }
        Dot::template run<GroupKind, ROWS, PANELS>(weights, rows.values, g, sums);
        for (int32_t p = 0; p < PANELS; ++p) {
            const Lanes scale = source[p].scale(first_group + g);
            for (int32_t r = 0; r < ROWS; ++r) {
                const Lanes both = scale * splat(rows.scales[r][g]);
                acc[r][p] = fma(floats_from_signed(sums[r][p]), both, acc[r][p]);
            }
            if (!AFFINE) continue;
            const Lanes minimum = source[p].minimum(first_group + g);
            for (int32_t r = 0; r < ROWS; ++r) {
                acc[r][p] = fma(minimum, splat(rows.scaled_sums[r][g]), acc[r][p]);
            }
        }
    }
}

struct MatmulCall {
    const PackedMatrix& matrix;
    const Activations& x;
    float* out;
    int64_t out_stride;

    INLINE float* outputs(int32_t row, int32_t panel) const {
        return out + row * out_stride + int64_t{panel} * PANEL_ROWS;
    }
};

// Rows in blocks of at most Dot::ROWS, as equal as can be: a short last block would leave the
// multipliers waiting for their own sums.
struct RowBlocks {
    int32_t row; // the next block's first
    int32_t end;
    int32_t left; // blocks

    INLINE RowBlocks(int32_t row_begin, int32_t row_end, int32_t rows_max = Dot::ROWS)
        : row(row_begin), end(row_end), left((row_end - row_begin + rows_max - 1) / rows_max) {}
    INLINE int32_t take() {
        const int32_t rows = (end - row + left - 1) / left;
        row += rows;
        --left;
        return rows;
    }
};

// ---- few rows ---------------------------------------------------------------------------------

template <class GroupKind, bool AFFINE, int32_t ROWS, int32_t PANELS>
INLINE void direct_block(const MatmulCall& call, int32_t row, int32_t panel, Ahead& ahead) {
    DirectSource<GroupKind> source[PANELS];
    for (int32_t p = 0; p < PANELS; ++p) source[p] = {panel_view(call.matrix, panel + p)};
    Lanes acc[ROWS][PANELS];
    for (auto& lanes : acc) {
        for (Lanes& lane : lanes) lane = splat(0.0f);
    }
    const int32_t groups = call.matrix.columns / GROUP_COLUMNS;
    for (int32_t first = 0; first < groups; first += CHUNK_GROUPS) {
        const int32_t count = groups - first < CHUNK_GROUPS ? groups - first : CHUNK_GROUPS;
        RowChunk<ROWS> rows;
        prepare_rows<ROWS, AFFINE>(rows, call.x, call.matrix.offset, row, first, count);
        run_chunk<GroupKind, AFFINE, ROWS, PANELS>(acc, source, rows, first, count, ahead);
    }
    for (int32_t r = 0; r < ROWS; ++r) {
        for (int32_t p = 0; p < PANELS; ++p) {
            store_outputs(call.outputs(row + r, panel + p), acc[r][p],
                          panel_outputs(call.matrix, panel + p));
        }
    }
}

template <class GroupKind, bool AFFINE, int32_t ROWS, int32_t PANELS>
INLINE void direct_rows(const MatmulCall& call, int32_t row, int32_t rows, int32_t panel,
                        Ahead& ahead) {
    if (rows == ROWS) {
        direct_block<GroupKind, AFFINE, ROWS, PANELS>(call, row, panel, ahead);
    } else if constexpr (ROWS > 1) {
        direct_rows<GroupKind, AFFINE, ROWS - 1, PANELS>(call, row, rows, panel, ahead);
    }
}

// Every block of rows reads the panels again, from the first-level cache, and decodes them again.
// One block fetches a little ahead of itself; several share the fetching of the next panels.
template <class GroupKind, bool AFFINE, int32_t PANELS>
void direct_panels(const MatmulCall& call, int32_t row_begin, int32_t row_end, int32_t panel) {
    const int64_t bytes = call.matrix.panel_bytes * PANELS;
    const int64_t lines = bytes / limits::CACHE_LINE_BYTES;
    const int64_t blocks = (row_end - row_begin + Dot::ROWS - 1) / Dot::ROWS;
    const int64_t visits = blocks * (call.matrix.columns / GROUP_COLUMNS);
    const int64_t distance = blocks == 1 ? PREFETCH_BYTES : bytes;
    Ahead ahead = {call.matrix.data + panel * call.matrix.panel_bytes + distance,
                   static_cast<int32_t>((lines + visits - 1) / visits)};
    for (RowBlocks rows_left(row_begin, row_end); rows_left.left > 0;) {
        const int32_t row = rows_left.row;
        direct_rows<GroupKind, AFFINE, Dot::ROWS, PANELS>(call, row, rows_left.take(), panel,
                                                          ahead);
    }
}

// ---- many rows --------------------------------------------------------------------------------

template <class GroupKind, bool AFFINE, class Decoded>
INLINE void decode_chunk(const PanelView& view, int32_t first, int32_t count,
                         DecodedPanel<Decoded>& to) {
    for (int32_t g = 0; g < count; ++g) {
        Dot::template decode<GroupKind>(view.groups + (first + g) * GroupKind::BYTES,
                                        to.groups + g * Decoded::BYTES);
        const int64_t from = (int64_t{first} + g) * PANEL_ROWS;
        store(to.scales + g * PANEL_ROWS, load_half(view.scales + from));
        if (AFFINE) store(to.minima + g * PANEL_ROWS, load_half(view.minima + from));
    }
}

template <class Decoded, bool AFFINE, int32_t ROWS, int32_t PANELS>
INLINE void decoded_block(const MatmulCall& call, const DecodedPanel<Decoded>* panels, int32_t row,
                          int32_t panel, int32_t first, int32_t count, Ahead& ahead) {
    DecodedSource<Decoded> source[PANELS];
    for (int32_t p = 0; p < PANELS; ++p) source[p] = {panels + p};
    Lanes acc[ROWS][PANELS];
    for (int32_t r = 0; r < ROWS; ++r) {
        for (int32_t p = 0; p < PANELS; ++p) {
            const int32_t outputs = panel_outputs(call.matrix, panel + p);
            const float* from = call.outputs(row + r, panel + p);
            acc[r][p] = splat(0.0f);
            if (first > 0) acc[r][p] = outputs == LANES ? load(from) : load_first(from, outputs);
        }
    }
    RowChunk<ROWS> rows;
    prepare_rows<ROWS, AFFINE>(rows, call.x, call.matrix.offset, row, first, count);
    run_chunk<Decoded, AFFINE, ROWS, PANELS>(acc, source, rows, 0, count, ahead);
    for (int32_t r = 0; r < ROWS; ++r) {
        for (int32_t p = 0; p < PANELS; ++p) {
            store_outputs(call.outputs(row + r, panel + p), acc[r][p],
                          panel_outputs(call.matrix, panel + p));
        }
    }
}

template <class Decoded, bool AFFINE, int32_t ROWS, int32_t PANELS>
INLINE void decoded_rows(const MatmulCall& call, const DecodedPanel<Decoded>* panels, int32_t row,
                         int32_t rows, int32_t panel, int32_t first, int32_t count, Ahead& ahead) {
    if (rows == ROWS) {
        decoded_block<Decoded, AFFINE, ROWS, PANELS>(call, panels, row, panel, first, count, ahead);
    } else if constexpr (ROWS > 1) {
        decoded_rows<Decoded, AFFINE, ROWS - 1, PANELS>(call, panels, row, rows, panel, first,
                                                        count, ahead);
    }
}

template <class GroupKind, bool AFFINE, int32_t PANELS>
void decoded_panels(const MatmulCall& call, int32_t row_begin, int32_t row_end, int32_t panel) {
    using Decoded = typename Dot::template DecodedOf<GroupKind>;
    DecodedPanel<Decoded> panels[PANELS];
    const int32_t groups = call.matrix.columns / GROUP_COLUMNS;
    const int64_t lines = call.matrix.panel_bytes * PANELS / limits::CACHE_LINE_BYTES;
    const int64_t visits = int64_t{groups} * ((row_end - row_begin + Dot::ROWS - 1) / Dot::ROWS);
    Ahead ahead = {call.matrix.data + (panel + PANELS) * call.matrix.panel_bytes,
                   static_cast<int32_t>((lines + visits - 1) / visits)};
    for (int32_t first = 0; first < groups; first += CHUNK_GROUPS) {
        const int32_t count = groups - first < CHUNK_GROUPS ? groups - first : CHUNK_GROUPS;
        for (int32_t p = 0; p < PANELS; ++p) {
            decode_chunk<GroupKind, AFFINE>(panel_view(call.matrix, panel + p), first, count,
                                            panels[p]);
        }
        for (RowBlocks rows_left(row_begin, row_end); rows_left.left > 0;) {
            const int32_t row = rows_left.row;
            decoded_rows<Decoded, AFFINE, Dot::ROWS, PANELS>(call, panels, row, rows_left.take(),
                                                             panel, first, count, ahead);
        }
    }
}

template <class GroupKind, bool AFFINE, int32_t PANELS>
INLINE void multiply_panels(const MatmulCall& call, int32_t row_begin, int32_t row_end,
                            int32_t panel) {
    if (row_end - row_begin <= Dot::ROWS_DIRECT) {
        direct_panels<GroupKind, AFFINE, PANELS>(call, row_begin, row_end, panel);
    } else {
        decoded_panels<GroupKind, AFFINE, PANELS>(call, row_begin, row_end, panel);
    }
}

template <class GroupKind, bool AFFINE>
void matmul_quantised(const MatmulCall& call, int32_t row_begin, int32_t row_end,
                      int32_t panel_begin, int32_t panel_end) {
    int32_t panel = panel_begin;
    for (; panel + Dot::PANELS <= panel_end; panel += Dot::PANELS) {
        multiply_panels<GroupKind, AFFINE, Dot::PANELS>(call, row_begin, row_end, panel);
    }
    if constexpr (Dot::PANELS > 1) {
        for (; panel < panel_end; ++panel) {
            multiply_panels<GroupKind, AFFINE, 1>(call, row_begin, row_end, panel);
        }
    }
}

} // namespace
} // namespace sublimate::cpu

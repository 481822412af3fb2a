// Matrix products of the K kinds: the arithmetic of matmul_quantised.inl.h with scales in two
// stages. A super-group of 8 groups has two halves for all of them and small integers for each, so
// that a group's scale is their exact product.
//
//   k4, k5   as affine: acc = fma(float(sum of u * x), (d * s) * scale_x, acc), then
//            acc = fma(-(dmin * m), scale_x * float(sum of x), acc)
//   kn4      acc = fma(float(sum of value * x), (d * s) * scale_x, acc)
//   k6       a group is two halves of 16 columns, each with its own s:
//            acc = fma(float(s0 * sum0 + s1 * sum1), d * scale_x, acc), sums of (u - 32) * x; 16 *
//            32 * 127 * 128 * 2 < 2^24, so that fp32 holds products and sums of these integers
//   k3       as k6, with u - 4
//   k2       as k6 with sums of u * x, then for each half
//            acc = fma(-(dmin * m), scale_x * float(sum of its x), acc)
//
// Few rows read a panel straight from memory, many decode a chunk of it first, as there; of k2 and
// k3 to bytes that are scale times weight, which have the same sums without a scale for each half.
//
// defines: matmul_k
#pragma once

#include "k_panels.inl.h"
#include "matmul_quantised.inl.h"

#include <type_traits>

namespace sublimate::cpu {
namespace {

constexpr int32_t K_CHUNK_SUPERS_MAX = 3;
constexpr int32_t K_CHUNK_GROUPS_MAX = K_CHUNK_SUPERS_MAX * SUPER_GROUPS;
// Of a chunk: two decoded panels are 31 KB, or 23 KB where halves have scales of their own.
template <class Kind>
constexpr int32_t K_CHUNK_SUPERS = Kind::HALVES == 2 ? 2 : K_CHUNK_SUPERS_MAX;
template <class Kind>
constexpr int32_t K_CHUNK_GROUPS = K_CHUNK_SUPERS<Kind> * SUPER_GROUPS;
constexpr int32_t K_SUPERS_AHEAD = 2; // fetched ahead of a direct read, in each panel

// Rows of a block: a half's sums and what the other half gave need registers of their own.
template <class Kind>
constexpr int32_t K_ROWS = Kind::HALVES == 2 && Dot::ROWS > 4 ? 4 : Dot::ROWS;

// What many rows are multiplied with.
template <class Kind>
using Decoded = std::conditional_t<Kind::IS_SMALL && Dot::MULTIPLIES_BYTES, Products<Kind>, Kind>;
template <class Kind>
constexpr bool AS_PRODUCTS = !std::is_same_v<Decoded<Kind>, Kind>;

// ---- decoded ----------------------------------------------------------------------------------

// Kinds of nibbles, whose groups Dot sums by itself, and what such a group is for it.
template <class Kind>
constexpr bool WHOLE_GROUPS = Kind::BITS == 4;
template <class Kind>
using GroupOf = std::conditional_t<std::is_void_v<typename Kind::Table>, typename Dot::Nibbles,
                                   typename Dot::template Places<typename Kind::Table>>;

// A chunk of super-groups, decoded: nibbles to whatever Dot likes best, other weights to a byte
// each; the scales as floats.
template <class Kind>
struct DecodedSupers {
    using Whole = typename Dot::template DecodedOf<GroupOf<Kind>>;
    static constexpr int64_t BYTES =
        WHOLE_GROUPS<Kind> ? Whole::BYTES : int64_t{CHUNKS} * CHUNK_BYTES;
    static constexpr int32_t HALF_SCALES =
        Kind::HALVES == 2 ? 2 * K_CHUNK_GROUPS<Kind> * PANEL_ROWS : 1;
    static constexpr int32_t MINIMA =
        Kind::MINIMA > 0 ? Kind::MINIMA * K_CHUNK_GROUPS<Kind> * PANEL_ROWS : 1;

    alignas(64) std::byte groups[K_CHUNK_GROUPS<Kind> * BYTES];
    alignas(64) float scales[K_CHUNK_GROUPS<Kind> * PANEL_ROWS];
    alignas(64) float half_scales[HALF_SCALES];
    alignas(64) float minima[MINIMA]; // of groups, or of halves
};
template <class Kind>
struct DecodedSuperSource {
    static constexpr bool DECODED = true;

    const DecodedSupers<Kind>* supers;
    int32_t first; // group of the super-group

    INLINE void enter(int32_t index) { first = index * SUPER_GROUPS; }
    INLINE const std::byte* group(int32_t g) const {
        return supers->groups + (first + g) * DecodedSupers<Kind>::BYTES;
    }
    INLINE LanesBits chunk(int32_t g, int32_t c) const {
        return load_bits(group(g) + c * CHUNK_BYTES);
    }
    INLINE Lanes scale(int32_t g) const { return load(supers->scales + (first + g) * PANEL_ROWS); }
    INLINE Lanes minimum(int32_t g) const {
        return load(supers->minima + (first + g) * PANEL_ROWS);
    }
    INLINE Lanes half_scale(int32_t g, int32_t half) const {
        return load(supers->half_scales + (2 * (first + g) + half) * PANEL_ROWS);
    }
    INLINE Lanes half_minimum(int32_t g, int32_t half) const {
        return load(supers->minima + (2 * (first + g) + half) * PANEL_ROWS);
    }
};

template <class Kind>
INLINE void decode_supers(const std::byte* panel, int32_t first, int32_t count,
                          DecodedSupers<Decoded<Kind>>& to) {
    using Form = Decoded<Kind>;
    SuperSource<Kind> source = {panel, panel, {}, {}};
    for (int32_t s = 0; s < count; ++s) {
        source.enter(first + s);
        for (int32_t g = 0; g < SUPER_GROUPS; ++g) {
            const int32_t at = s * SUPER_GROUPS + g;
            std::byte* bytes = to.groups + at * DecodedSupers<Form>::BYTES;
            if constexpr (WHOLE_GROUPS<Kind>) {
                Dot::template decode<GroupOf<Kind>>(source.group(g), bytes);
            } else {
                for (int32_t c = 0; c < CHUNKS; ++c) {
                    LanesBits four;
                    if constexpr (AS_PRODUCTS<Kind>) {
                        four = source.product(g, c);
                    } else {
                        four = source.chunk(g, c);
                    }
                    store_bits(bytes + c * CHUNK_BYTES, four);
                }
            }
            store(to.scales + at * PANEL_ROWS, source.scale(g));
            if constexpr (Kind::MINIMA == 1) {
                store(to.minima + at * PANEL_ROWS, source.minimum(g));
            }
            for (int32_t h = 0; Kind::HALVES == 2 && h < 2; ++h) {
                const int32_t half_at = (2 * at + h) * PANEL_ROWS;
                if constexpr (Form::HALVES == 2) {
                    store(to.half_scales + half_at, source.half_scale(g, h));
                }
                if constexpr (Kind::MINIMA == 2) {
                    store(to.minima + half_at, source.half_minimum(g, h));
                }
            }
        }
    }
}

// ---- the activations' side --------------------------------------------------------------------

template <class Kind, int32_t ROWS>
struct SuperRows {
    const int8_t* values[ROWS];
    const float* scales[ROWS];
    // Per minimum: scale * float(sum); else per scale: -offset * sum.
    alignas(64) float scaled_sums[ROWS][K_CHUNK_GROUPS<Kind>][Kind::MINIMA > 0 ? Kind::MINIMA : 1];
    alignas(64) int32_t offsets[ROWS][K_CHUNK_GROUPS<Kind>][Kind::HALVES];
};

// Sums of a row's groups, or of their halves, from a group on.
template <int32_t HALVES>
INLINE const int32_t* sums_of(const Activations& x, int64_t first_group, int32_t count,
                              int32_t (&own)[2 * K_CHUNK_GROUPS_MAX]) {
    if (HALVES == 1) return x.sums + first_group;
    if (x.half_sums != nullptr) return x.half_sums + 2 * first_group;
    const int8_t* values = x.values + first_group * GROUP_COLUMNS;
    for (int32_t i = 0; i < 2 * count; i += 4) {
        store_sums_of_16(own + i, values + i * (GROUP_COLUMNS / 2));
    }
    return own;
}

template <class Kind, int32_t ROWS>
INLINE void prepare_super_rows(SuperRows<Kind, ROWS>& chunk, const Activations& x, int32_t row,
                               int32_t first_group, int32_t count) {
    constexpr int32_t SUMS = Kind::MINIMA > 0 ? Kind::MINIMA : Kind::HALVES; // of a group
    const int64_t groups = x.columns / GROUP_COLUMNS;
    alignas(64) int32_t own[2 * K_CHUNK_GROUPS_MAX];
    for (int32_t r = 0; r < ROWS; ++r) {
        const int64_t at = (int64_t{row} + r) * groups + first_group;
        chunk.values[r] = x.values + at * GROUP_COLUMNS;
        chunk.scales[r] = x.scales + at;
        const int32_t* sums = sums_of<SUMS>(x, at, count, own);
        if constexpr (Kind::MINIMA == 0) {
            int32_t* offsets = chunk.offsets[r][0];
            for (int32_t i = 0; i < SUMS * count; ++i) offsets[i] = -Kind::OFFSET * sums[i];
        } else {
            for (int32_t g = 0; g < count; ++g) {
                const float scale = chunk.scales[r][g];
                for (int32_t i = 0; i < SUMS; ++i) {
                    chunk.scaled_sums[r][g][i] = scale * static_cast<float>(sums[SUMS * g + i]);
                }
            }
        }
    }
}

// ---- one group, one block ---------------------------------------------------------------------

// Sums of chunks [begin, end) on top of what is there.
template <int32_t ROWS, int32_t PANELS, class Source>
INLINE void add_chunks(const Source (&source)[PANELS], const int8_t* const (&x)[ROWS], int32_t g,
                       int32_t at, int32_t begin, int32_t end, LanesBits (&sums)[ROWS][PANELS]) {
    for (int32_t c = begin; c < end; ++c) {
        LanesBits weights[PANELS];
        for (int32_t p = 0; p < PANELS; ++p) weights[p] = source[p].chunk(g, c);
        Dot::template add_four<ROWS, PANELS>(weights, x, at * GROUP_COLUMNS + c * 4, sums);
    }
}

// g: the group within the super-group; at: within the chunk of rows.
template <class Kind, int32_t ROWS, int32_t PANELS, class Source>
INLINE void run_whole_group(Lanes (&acc)[ROWS][PANELS], const Source (&source)[PANELS],
                            const SuperRows<Kind, ROWS>& rows, int32_t g, int32_t at) {
    LanesBits sums[ROWS][PANELS];
    for (int32_t r = 0; r < ROWS; ++r) {
        const int32_t offset = Kind::OFFSET == 0 ? 0 : rows.offsets[r][at][0];
        for (LanesBits& sum : sums[r]) sum = splat_bits(static_cast<uint32_t>(offset));
    }
    if constexpr (WHOLE_GROUPS<Kind>) {
        const std::byte* groups[PANELS];
        for (int32_t p = 0; p < PANELS; ++p) groups[p] = source[p].group(g);
        using Whole = typename Dot::template DecodedOf<GroupOf<Kind>>;
        using Group = std::conditional_t<Source::DECODED, Whole, GroupOf<Kind>>;
        Dot::template run<Group, ROWS, PANELS>(groups, rows.values, at, sums);
    } else {
        add_chunks(source, rows.values, g, at, 0, CHUNKS, sums);
    }
    for (int32_t p = 0; p < PANELS; ++p) {
        const Lanes scale = source[p].scale(g);
        for (int32_t r = 0; r < ROWS; ++r) {
            const Lanes both = scale * splat(rows.scales[r][at]);
            acc[r][p] = fma(floats_from_signed(sums[r][p]), both, acc[r][p]);
        }
        for (int32_t i = 0; i < Kind::MINIMA; ++i) {
            const Lanes minimum =
                Kind::MINIMA == 2 ? source[p].half_minimum(g, i) : source[p].minimum(g);
            for (int32_t r = 0; r < ROWS; ++r) {
                acc[r][p] = fma(minimum, splat(rows.scaled_sums[r][at][i]), acc[r][p]);
            }
        }
    }
}

template <class Kind, int32_t ROWS, int32_t PANELS, class Source>
INLINE void run_halves_group(Lanes (&acc)[ROWS][PANELS], const Source (&source)[PANELS],
                             const SuperRows<Kind, ROWS>& rows, int32_t g, int32_t at) {
    Lanes scaled[ROWS][PANELS];
    for (int32_t h = 0; h < Kind::HALVES; ++h) {
        LanesBits sums[ROWS][PANELS];
        for (int32_t r = 0; r < ROWS; ++r) {
            for (int32_t p = 0; p < PANELS; ++p) {
                const int32_t offset = Kind::OFFSET == 0 ? 0 : rows.offsets[r][at][h];
                sums[r][p] = splat_bits(static_cast<uint32_t>(offset));
            }
        }
        add_chunks(source, rows.values, g, at, h * HALF_CHUNKS, (h + 1) * HALF_CHUNKS, sums);
        for (int32_t p = 0; p < PANELS; ++p) {
            const Lanes scale = source[p].half_scale(g, h);
            for (int32_t r = 0; r < ROWS; ++r) {
                const Lanes sum = floats_from_signed(sums[r][p]);
                scaled[r][p] = h == 0 ? sum * scale : fma(sum, scale, scaled[r][p]);
            }
        }
    }
    for (int32_t p = 0; p < PANELS; ++p) {
        const Lanes scale = source[p].scale(g);
        for (int32_t r = 0; r < ROWS; ++r) {
            acc[r][p] = fma(scaled[r][p], scale * splat(rows.scales[r][at]), acc[r][p]);
        }
        for (int32_t h = 0; h < Kind::MINIMA; ++h) {
            const Lanes minimum = source[p].half_minimum(g, h);
            for (int32_t r = 0; r < ROWS; ++r) {
                acc[r][p] = fma(minimum, splat(rows.scaled_sums[r][at][h]), acc[r][p]);
            }
        }
    }
}

// Lines to fetch ahead, a few per group of each panel.
template <int32_t PANELS>
struct PanelsAhead {
    const std::byte* at[PANELS];
    int32_t lines_per_group;

    INLINE void fetch() {
        for (int32_t p = 0; p < PANELS; ++p) {
            for (int32_t i = 0; i < lines_per_group; ++i) {
                __builtin_prefetch(at[p] + i * limits::CACHE_LINE_BYTES);
            }
            at[p] += lines_per_group * limits::CACHE_LINE_BYTES;
        }
    }
};

// One super-group of each panel, `index` of the source; its first group is `at` of the chunk of
// rows.
template <class Kind, int32_t ROWS, int32_t PANELS, class Source>
INLINE void run_super(Lanes (&acc)[ROWS][PANELS], Source (&source)[PANELS],
                      const SuperRows<Kind, ROWS>& rows, int32_t index, int32_t at,
                      PanelsAhead<PANELS>& ahead) {
    for (int32_t p = 0; p < PANELS; ++p) source[p].enter(index);
    for (int32_t g = 0; g < SUPER_GROUPS; ++g) {
        ahead.fetch();
        if constexpr (Kind::HALVES == 1) {
            run_whole_group(acc, source, rows, g, at + g);
        } else {
            run_halves_group(acc, source, rows, g, at + g);
        }
    }
}

template <int32_t ROWS, int32_t PANELS>
INLINE void store_block(const MatmulCall& call, int32_t row, int32_t panel,
                        const Lanes (&acc)[ROWS][PANELS]) {
    for (int32_t r = 0; r < ROWS; ++r) {
        for (int32_t p = 0; p < PANELS; ++p) {
            store_outputs(call.outputs(row + r, panel + p), acc[r][p],
                          panel_outputs(call.matrix, panel + p));
        }
    }
}

template <class Kind>
INLINE int32_t supers_of_chunk(const MatmulCall& call, int32_t first) {
    const int32_t left = call.matrix.columns / SUPER_COLUMNS - first;
    return left < K_CHUNK_SUPERS<Kind> ? left : K_CHUNK_SUPERS<Kind>;
}

// ---- few rows ---------------------------------------------------------------------------------

// Where the super-group `index` of these panels lies; past their end, of the panels after them.
template <class Kind, int32_t PANELS>
INLINE void aim(PanelsAhead<PANELS>& ahead, const MatmulCall& call, int32_t panel, int32_t index) {
    const int32_t supers = call.matrix.columns / SUPER_COLUMNS;
    const int64_t skipped = index < supers ? 0 : (PANELS - 1) * call.matrix.panel_bytes;
    for (int32_t p = 0; p < PANELS; ++p) {
        ahead.at[p] = call.matrix.data + (panel + p) * call.matrix.panel_bytes + skipped +
                      index * Kind::LAYOUT.bytes;
    }
}

template <class Kind, int32_t ROWS, int32_t PANELS>
INLINE void direct_super_block(const MatmulCall& call, int32_t row, int32_t panel) {
    constexpr int64_t LINES = Kind::LAYOUT.bytes / limits::CACHE_LINE_BYTES;
    SuperSource<Kind> source[PANELS];
    for (int32_t p = 0; p < PANELS; ++p) {
        source[p].base = call.matrix.data + (panel + p) * call.matrix.panel_bytes;
    }
    Lanes acc[ROWS][PANELS];
    for (auto& lanes : acc) {
        for (Lanes& lane : lanes) lane = splat(0.0f);
    }
    const int32_t supers = call.matrix.columns / SUPER_COLUMNS;
    PanelsAhead<PANELS> ahead;
    ahead.lines_per_group = static_cast<int32_t>((LINES + SUPER_GROUPS - 1) / SUPER_GROUPS);
    for (int32_t first = 0; first < supers; first += K_CHUNK_SUPERS<Kind>) {
        const int32_t count = supers_of_chunk<Kind>(call, first);
        SuperRows<Kind, ROWS> rows;
        prepare_super_rows(rows, call.x, row, first * SUPER_GROUPS, count * SUPER_GROUPS);
        for (int32_t s = 0; s < count; ++s) {
            aim<Kind>(ahead, call, panel, first + s + K_SUPERS_AHEAD);
            run_super(acc, source, rows, first + s, s * SUPER_GROUPS, ahead);
        }
    }
    store_block(call, row, panel, acc);
}

template <class Kind, int32_t ROWS, int32_t PANELS>
INLINE void direct_super_rows(const MatmulCall& call, int32_t row, int32_t rows, int32_t panel) {
    if (rows == ROWS) {
        direct_super_block<Kind, ROWS, PANELS>(call, row, panel);
    } else if constexpr (ROWS > 1) {
        direct_super_rows<Kind, ROWS - 1, PANELS>(call, row, rows, panel);
    }
}

template <class Kind, int32_t PANELS>
void direct_super_panels(const MatmulCall& call, int32_t row_begin, int32_t row_end,
                         int32_t panel) {
    for (RowBlocks blocks(row_begin, row_end, K_ROWS<Kind>); blocks.left > 0;) {
        const int32_t row = blocks.row;
        direct_super_rows<Kind, K_ROWS<Kind>, PANELS>(call, row, blocks.take(), panel);
    }
}

// ---- many rows --------------------------------------------------------------------------------

template <class Kind, int32_t ROWS, int32_t PANELS>
INLINE void decoded_super_block(const MatmulCall& call, const DecodedSupers<Decoded<Kind>>* panels,
                                int32_t row, int32_t panel, int32_t first, int32_t count,
                                PanelsAhead<PANELS>& ahead) {
    using Form = Decoded<Kind>;
    DecodedSuperSource<Form> source[PANELS];
    for (int32_t p = 0; p < PANELS; ++p) source[p] = {panels + p, 0};
    Lanes acc[ROWS][PANELS];
    for (int32_t r = 0; r < ROWS; ++r) {
        for (int32_t p = 0; p < PANELS; ++p) {
            const int32_t outputs = panel_outputs(call.matrix, panel + p);
            const float* from = call.outputs(row + r, panel + p);
            acc[r][p] = splat(0.0f);
            if (first > 0) acc[r][p] = outputs == LANES ? load(from) : load_first(from, outputs);
        }
    }
    SuperRows<Form, ROWS> rows;
    prepare_super_rows(rows, call.x, row, first * SUPER_GROUPS, count * SUPER_GROUPS);
    for (int32_t s = 0; s < count; ++s) {
        run_super(acc, source, rows, s, s * SUPER_GROUPS, ahead);
    }
    store_block(call, row, panel, acc);
}

template <class Kind, int32_t ROWS, int32_t PANELS>
INLINE void decoded_super_rows(const MatmulCall& call, const DecodedSupers<Decoded<Kind>>* panels,
                               int32_t row, int32_t rows, int32_t panel, int32_t first,
                               int32_t count, PanelsAhead<PANELS>& ahead) {
    if (rows == ROWS) {
        decoded_super_block<Kind, ROWS, PANELS>(call, panels, row, panel, first, count, ahead);
    } else if constexpr (ROWS > 1) {
        decoded_super_rows<Kind, ROWS - 1, PANELS>(call, panels, row, rows, panel, first, count,
                                                   ahead);
    }
}

// The blocks of rows share the fetching of the next chunk.
template <class Kind, int32_t PANELS>
void decoded_super_panels(const MatmulCall& call, int32_t row_begin, int32_t row_end,
                          int32_t panel) {
    DecodedSupers<Decoded<Kind>> panels[PANELS];
    constexpr int32_t ROWS = K_ROWS<Decoded<Kind>>;
    const int32_t supers = call.matrix.columns / SUPER_COLUMNS;
    const int32_t blocks = (row_end - row_begin + ROWS - 1) / ROWS;
    constexpr int64_t LINES = Kind::LAYOUT.bytes / limits::CACHE_LINE_BYTES;
    PanelsAhead<PANELS> ahead;
    const int32_t visits = blocks * SUPER_GROUPS; // of a super-group's length
    ahead.lines_per_group = static_cast<int32_t>((LINES + visits - 1) / visits);
    for (int32_t first = 0; first < supers; first += K_CHUNK_SUPERS<Decoded<Kind>>) {
        const int32_t count = supers_of_chunk<Decoded<Kind>>(call, first);
        for (int32_t p = 0; p < PANELS; ++p) {
            decode_supers<Kind>(call.matrix.data + (panel + p) * call.matrix.panel_bytes, first,
                                count, panels[p]);
        }
        aim<Kind>(ahead, call, panel, first + count);
        for (RowBlocks rows(row_begin, row_end, ROWS); rows.left > 0;) {
            const int32_t row = rows.row;
            decoded_super_rows<Kind, ROWS, PANELS>(call, panels, row, rows.take(), panel, first,
                                                   count, ahead);
        }
    }
}

template <class Kind, int32_t PANELS>
INLINE void multiply_super_panels(const MatmulCall& call, int32_t row_begin, int32_t row_end,
                                  int32_t panel) {
    if (row_end - row_begin <= Dot::ROWS_DIRECT) {
        direct_super_panels<Kind, PANELS>(call, row_begin, row_end, panel);
    } else {
        decoded_super_panels<Kind, PANELS>(call, row_begin, row_end, panel);
    }
}

template <class Kind>
void matmul_k(const MatmulCall& call, int32_t row_begin, int32_t row_end, int32_t panel_begin,
              int32_t panel_end) {
    KERNEL_CHECK(call.matrix.columns % SUPER_COLUMNS == 0, "whole super-groups");
    int32_t panel = panel_begin;
    for (; panel + Dot::PANELS <= panel_end; panel += Dot::PANELS) {
        multiply_super_panels<Kind, Dot::PANELS>(call, row_begin, row_end, panel);
    }
    if constexpr (Dot::PANELS > 1) {
        for (; panel < panel_end; ++panel) {
            multiply_super_panels<Kind, 1>(call, row_begin, row_end, panel);
        }
    }
}

} // namespace
} // namespace sublimate::cpu

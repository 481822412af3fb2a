// The compute primitives of the CPU path. Every instruction set fills one table of the same
// signatures; `ref` is the slow twin that the tests compare the others with. A result never depends
// on how many rows or panels a call covers: each output element is one fixed sequence of operations
// over its own inputs.
//
// EQUAL BITS. ref, portable, avx2 and avx512 return the same bits from every primitive but one:
// portable's attention rounds products before it adds them. amx equals avx512 but for the prompt's
// arithmetic: matmul_prompt of quantised weights and attention_prompt of bf16 pages. fma(a, b, c)
// below is rounded once; every other operation by itself.
//   reduction   16 partial sums, element i in lane i % 16; then lane += lane + 8, + 4, + 2, + 1
//   exp         exp_polynomial of loop/gumbel.h, but a NaN stays a NaN
//   attention   per row and head: q = query * scale; per page in order: score = fma over channels
//               ascending; m' = max(m, scores); f = exp(m - m'); w = exp(score - m');
//               l[j] = fma(l[j], f, w[2j] + w[2j+1]) in 16 lanes (other pages than bf16: w[j] +
//               w[j+16]); o = o * f, then fma over tokens ascending; at the end o * (1 / reduction
//               of l). int8 pages: a score is multiplied by its key's scale, and the w that meets a
//               value by that one's
//
// defines: WeightKind, LAST_KIND, SuperLayout, PackedMatrix, Activations, LowRankCall, KvLayout,
// AttentionCall, Ops, ops_for, best_isa, asked_isa, equal_ops
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "../limits.h"

namespace sublimate::cpu {

// ---- weights ----------------------------------------------------------------------------------
// A matrix (rows = outputs, columns = inputs) lies in panels of 16 output rows, each panel
// contiguous, in the order of execution. Quantised panels hold groups of 32 columns;
// w = d * (u - offset) + m.
//
// Panels of the K kinds hold super-groups of 8 groups, each whole: the weights, the small scales,
// then two halves for all of them. Per group 4 chunks of nibbles as in u4; k5 and k6 have the bits
// above in planes of 64 B that follow: byte 4*r+j holds the ones of u[r][4c+j], c = 0 .. 7.
//   k4, k5   w = (d * s) * u - dmin * m: products of half and byte, exact, so that m of the formula
//            above is -(dmin * m)
//   k6       w = (d * s) * (u - 32): s is signed and stands for 16 columns
//   k3       w = (d * s) * (u - 4): s is from -32 to 31 and stands for 16 columns
//   k2       w = (d * s) * u - dmin * m: s and m stand for 16 columns
//   kn4      w = (d * s) * value: s is signed
// In kinds with a table four bits are a place in it (numbers.h has both); w = d * value.
enum class WeightKind : int32_t {
    f32 = 0,  // panel: [column][16] float
    f16 = 1,  // panel: [column][16] half
    bf16 = 2, // panel: [column][16] bfloat16
    // panel: per group 4 chunks x 64 B, chunk c byte 4*r+j: low nibble = u[r][4c+j], high nibble =
    // u[r][16+4c+j]; after all groups: [group][16] half d; if affine [group][16] half m
    u4 = 3,
    // panel: per group 8 chunks x 64 B, chunk c byte 4*r+j = u[r][4c+j]; then d (and m) as for u4
    u8 = 4,
    // super-group: [8 groups] 4 chunks; [8][16] uint8 s; [8][16] uint8 m; [16] half d; [16] half
    // dmin
    k4 = 5,
    // super-group: [8 groups] 4 chunks and a plane, bit c the fifth of chunk c; then as k4
    k5 = 6,
    // super-group: [8 groups] 4 chunks and two planes, bits 2(c % 4) .. + 1 of plane c / 4 those of
    // chunk c; [8][2][16] int8 s; [16] half d; 32 bytes unused
    k6 = 7,
    n4 = 8, // as u4, u a place in NON_LINEAR_VALUES
    m4 = 9, // as u4, u a place in TWICE_FP4_VALUES
    // super-group: [8 groups] 4 chunks as of n4; [8][16] int8 s; [16] half d; 32 bytes unused
    kn4 = 10,
    // super-group: [8 groups] 2 chunks, bits 2c .. + 1 of chunk k byte 4*r+j = u[r][16k+4c+j]; 4
    // chunks, chunk k byte 4*r+j = s | m << 4 of output r, columns 16 * (4k+j) .. + 15; [16] half
    // d; [16] half dmin
    k2 = 11,
    // super-group: [8 groups] 2 chunks as of k2 and a plane, bit c the third of chunk c; [8][2][16]
    // int8 s; [16] half d; 32 bytes unused
    k3 = 12,
};
constexpr WeightKind LAST_KIND = WeightKind::k3;

constexpr int32_t PANEL_ROWS = 16;
constexpr int32_t GROUP_COLUMNS = 32;
constexpr int32_t SUPER_GROUPS = 8; // of the K kinds
constexpr int32_t SUPER_COLUMNS = SUPER_GROUPS * GROUP_COLUMNS;
constexpr int32_t K3_OFFSET = 4;
constexpr int32_t K6_OFFSET = 32;
constexpr int32_t TABLE_OFFSET = 128; // makes a table's values unsigned

// Where a K kind's pieces lie in a super-group.
struct SuperLayout {
    int64_t group_bytes;  // chunks and planes of a group
    int64_t scales;       // offset of s
    int64_t minima;       // offset of m; k3, k6: there are none
    int64_t super_scales; // offset of d, after it dmin
    int64_t bytes;        // multiple of 64
};
constexpr SuperLayout K4_LAYOUT = {256, 2048, 2176, 2304, 2368};
constexpr SuperLayout K5_LAYOUT = {320, 2560, 2688, 2816, 2880};
constexpr SuperLayout K6_LAYOUT = {384, 3072, 0, 3328, 3392};
constexpr SuperLayout KN4_LAYOUT = {256, 2048, 0, 2176, 2240};
constexpr SuperLayout K2_LAYOUT = {128, 1024, 1024, 1280, 1344};
constexpr SuperLayout K3_LAYOUT = {192, 1536, 0, 1792, 1856};

static_assert(K4_LAYOUT.group_bytes * 2 == PANEL_ROWS * GROUP_COLUMNS, "four bits a weight");
static_assert(K5_LAYOUT.group_bytes * 8 == 5 * PANEL_ROWS * GROUP_COLUMNS, "five");
static_assert(K6_LAYOUT.group_bytes * 8 == 6 * PANEL_ROWS * GROUP_COLUMNS, "six");
static_assert(K4_LAYOUT.scales == SUPER_GROUPS * K4_LAYOUT.group_bytes);
static_assert(K5_LAYOUT.scales == SUPER_GROUPS * K5_LAYOUT.group_bytes);
static_assert(K6_LAYOUT.scales == SUPER_GROUPS * K6_LAYOUT.group_bytes);
static_assert(K4_LAYOUT.minima == K4_LAYOUT.scales + SUPER_GROUPS * PANEL_ROWS);
static_assert(K5_LAYOUT.minima == K5_LAYOUT.scales + SUPER_GROUPS * PANEL_ROWS);
static_assert(K6_LAYOUT.super_scales == K6_LAYOUT.scales + 2 * SUPER_GROUPS * PANEL_ROWS);
static_assert(KN4_LAYOUT.scales == SUPER_GROUPS * KN4_LAYOUT.group_bytes);
static_assert(KN4_LAYOUT.super_scales == KN4_LAYOUT.scales + SUPER_GROUPS * PANEL_ROWS);
static_assert(K2_LAYOUT.scales == SUPER_GROUPS * K2_LAYOUT.group_bytes);
static_assert(K2_LAYOUT.super_scales == K2_LAYOUT.scales + 2 * SUPER_GROUPS * PANEL_ROWS);
static_assert(K3_LAYOUT.scales == SUPER_GROUPS * K3_LAYOUT.group_bytes);
static_assert(K3_LAYOUT.super_scales == K3_LAYOUT.scales + 2 * SUPER_GROUPS * PANEL_ROWS);
static_assert(K3_LAYOUT.bytes % 64 == 0);
static_assert(KN4_LAYOUT.bytes % 64 == 0 && K2_LAYOUT.bytes % 64 == 0);
static_assert(K4_LAYOUT.bytes % 64 == 0 && K5_LAYOUT.bytes % 64 == 0 && K6_LAYOUT.bytes % 64 == 0);

struct PackedMatrix {
    WeightKind kind;
    int32_t rows;          // outputs; rows past it in the last panel are zero
    int32_t columns;       // inputs; quantised kinds need columns % 32 == 0, K kinds % 256 == 0
    int32_t panels;        // ceil(rows / 16)
    int32_t offset;        // not affine: 8 (Q4_0), 16 (Q5_0), 128 (Q8_0, n4, m4); else 0
    bool affine;           // m present (Q4_1, Q5_1); K kinds: false, the kind says it
    int64_t panel_bytes;   // multiple of 64
    const std::byte* data; // (panel, panel_bytes), 64-byte aligned
};

// Bytes of 16 outputs x 32 columns in a kind with scales behind all groups.
constexpr int64_t group_bytes_of(WeightKind kind) {
    return kind == WeightKind::u8 ? 512 : 256;
}

// Bytes of one panel for a kind; the packer, the kernels and the tests use this one function.
constexpr int64_t panel_bytes_for(WeightKind kind, int32_t columns, bool affine) {
    int64_t bytes = 0;
    switch (kind) {
    case WeightKind::f32:
        bytes = int64_t{columns} * PANEL_ROWS * 4;
        break;
    case WeightKind::f16:
    case WeightKind::bf16:
        bytes = int64_t{columns} * PANEL_ROWS * 2;
        break;
    case WeightKind::u4:
    case WeightKind::n4:
    case WeightKind::m4:
    case WeightKind::u8:
        bytes = int64_t{columns} / GROUP_COLUMNS * (group_bytes_of(kind) + (affine ? 64 : 32));
        break;
    case WeightKind::k4:
        bytes = int64_t{columns} / SUPER_COLUMNS * K4_LAYOUT.bytes;
        break;
    case WeightKind::k5:
        bytes = int64_t{columns} / SUPER_COLUMNS * K5_LAYOUT.bytes;
        break;
    case WeightKind::k6:
        bytes = int64_t{columns} / SUPER_COLUMNS * K6_LAYOUT.bytes;
        break;
    case WeightKind::kn4:
        bytes = int64_t{columns} / SUPER_COLUMNS * KN4_LAYOUT.bytes;
        break;
    case WeightKind::k2:
        bytes = int64_t{columns} / SUPER_COLUMNS * K2_LAYOUT.bytes;
        break;
    case WeightKind::k3:
        bytes = int64_t{columns} / SUPER_COLUMNS * K3_LAYOUT.bytes;
        break;
    }
    return (bytes + 63) / 64 * 64;
}

constexpr bool is_quantised(WeightKind kind) {
    return kind >= WeightKind::u4;
}
constexpr bool is_table_kind(WeightKind kind) { // with scales behind all groups
    return kind == WeightKind::n4 || kind == WeightKind::m4;
}
constexpr bool is_k_kind(WeightKind kind) {
    return kind >= WeightKind::k4 && !is_table_kind(kind);
}
// Two scales in a group.
constexpr bool has_half_scales(WeightKind kind) {
    return kind == WeightKind::k6 || kind == WeightKind::k3 || kind == WeightKind::k2;
}
// A K kind with a minimum beside each scale.
constexpr bool has_small_minima(WeightKind kind) {
    return kind == WeightKind::k4 || kind == WeightKind::k5 || kind == WeightKind::k2;
}
constexpr SuperLayout super_layout(WeightKind kind) {
    switch (kind) {
    case WeightKind::k4:
        return K4_LAYOUT;
    case WeightKind::k5:
        return K5_LAYOUT;
    case WeightKind::kn4:
        return KN4_LAYOUT;
    case WeightKind::k2:
        return K2_LAYOUT;
    case WeightKind::k3:
        return K3_LAYOUT;
    default:
        return K6_LAYOUT;
    }
}

// ---- activations ------------------------------------------------------------------------------
// Rows prepared once per norm and read by every matmul that consumes it. f32 kinds read `f32`,
// quantised kinds int8 values with a scale per 32 columns: x ~ scale * value, sum = sum of the 32
// values; matmul_prompt on tiles reads `bf16`.
struct Activations {
    const float* f32;     // (row, columns)
    const int8_t* values; // (row, columns)
    const float* scales;  // (row, columns / 32)
    const int32_t* sums;  // (row, columns / 32)
    int32_t columns;
    const uint16_t* bf16 = nullptr; // (row, columns)
    // (row, columns / 16): sums of half as many values, for kinds with two scales in a group. Where
    // they are missing, every panel adds them up anew.
    const int32_t* half_sums = nullptr;
};

// ---- low-rank adapters ------------------------------------------------------------------------
// One of the two thin products of an adapter, for rows that share it.
struct LowRankCall {
    PackedMatrix matrix; // f32, f16 or bf16
    const float* x;      // (row, x_stride): the first `columns` of a row are read
    int64_t x_stride;
    int32_t rows;
    float* out; // (row, out_stride): the first `matrix.rows` of a row are written
    int64_t out_stride;
    float factor;
    bool adds; // to what is in `out`; else it is not read
};

// ---- KV ---------------------------------------------------------------------------------------
enum class KvType : int32_t { bf16 = 0, f32 = 1, int8 = 2 };

constexpr const char* kv_type_name(KvType type) {
    return type == KvType::bf16 ? "bf16" : (type == KvType::f32 ? "f32" : "int8");
}

// One layer's pages: page p, head h at base + (p * kv_heads + h) * head_bytes: keys transposed
// [channel][PAGE_TOKENS], then values [PAGE_TOKENS][channel]. int8: number ~ scale * int8, as by
// quantise over a token's whole head; [PAGE_TOKENS] float scales of keys, as many of values follow.
struct KvLayout {
    KvType type;
    int32_t kv_heads;
    int32_t head_dim;   // multiple of 16
    int64_t head_bytes; // kv_head_bytes
};

constexpr int64_t kv_head_bytes(KvType type, int32_t head_dim) {
    const int64_t element = type == KvType::bf16 ? 2 : (type == KvType::f32 ? 4 : 1);
    const int64_t scale = type == KvType::int8 ? 4 : 0;
    return 2 * limits::PAGE_TOKENS * (element * head_dim + scale);
}
static_assert(kv_head_bytes(KvType::int8, 16) % 64 == 0, "pages of whole cache lines");

// Attention of consecutive query rows of one sequence for all query heads that share one KV head.
// Row i sits at position first_position + i and sees positions [0, first_position + i], walked in
// blocks fixed by absolute position (one page each), so that the bits do not depend on how a prompt
// was cut into chunks. Lanes past a row's position are never read as numbers: they may hold NaN.
struct AttentionCall {
    const float*
        query; // (row, query_stride) roped; the group's heads start at query_head * head_dim
    int64_t query_stride;
    float* out; // (row, out_stride) same head order
    int64_t out_stride;
    int32_t row_count;
    int32_t first_position;
    int32_t query_head;  // first query head of the group
    int32_t group_heads; // query heads per KV head
    int32_t kv_head;
    const std::byte* pages;    // the layer's base
    const int32_t* page_table; // of the sequence
    float scale;               // of scores, mostly 1 / sqrt(head_dim)
    int32_t window = 0;        // positions a row sees, its own included; 0: all
    float soft_cap = 0.0f;     // c: a score s becomes c - 2c / (exp(min(s * (2 / c), 80)) + 1),
                               // which is c * tanh(s / c); 0: it stays
    const std::byte* next = nullptr; // a head's page that this thread reads next
};

// ---- the table --------------------------------------------------------------------------------
enum class Isa : int32_t { ref = 0, portable = 1, avx2 = 2, avx512 = 3, amx = 4 };

struct Ops {
    const char* name;
    Isa isa;
    // out[c] = (x[c] * r) * weight[c], r = 1 / sqrt(reduction of fma(x, x) / columns + epsilon).
    void (*rms_norm)(const float* x, const float* weight, float epsilon, int32_t columns,
                     float* out);
    // Per 32 columns: scale = max|x| / 127, value = round-to-nearest-even(x * (1 / scale)); one
    // row. A scale below the smallest normal float is 0; if it is infinite or a NaN the values are
    // 0, so that the outcome is a NaN and gets noticed.
    void (*quantise)(const float* x, int32_t columns, int8_t* values, float* scales, int32_t* sums);
    // Of each 16 values; columns: a multiple of 32.
    void (*add_halves)(const int8_t* values, int32_t columns, int32_t* half_sums);
    // To nearest, ties to even; a NaN stays one.
    void (*to_bf16)(const float* x, int32_t count, uint16_t* out);
    // out[row * out_stride + panel * 16 + lane] for rows [row_begin, row_end) and panels
    // [panel_begin, panel_end); lanes past matrix.rows are not written. Groups in column order:
    //   acc = fma(float(exact int32 sum of (u - offset) * value), d * scale, acc), then if affine
    //   acc = fma(m, scale * float(sum), acc). k4, k5, kn4: likewise, with d * s for d. k6, k3, k2:
    //   the sum is s0 * (that of the first 16 columns) + s1 * (that of the others), below 2^24, so
    //   that fp32 holds every partial sum exactly; k2 has its minimum for the first 16 columns,
    //   then for the others. Tables: u - offset is the value. Float kinds: acc = fma(w, x, acc) in
    //   column order.
    void (*matmul)(const PackedMatrix& matrix, const Activations& x, int32_t row_begin,
                   int32_t row_end, int32_t panel_begin, int32_t panel_end, float* out,
                   int64_t out_stride);
    // The prompt's arithmetic. Where no separate one exists this is the same function as matmul,
    // and pages that decoding wrote equal pages that a prompt wrote. On AMX (quantised kinds): bf16
    // tiles over the full depth, see matmul_tiles.inl.h. Where it is separate it reads bf16
    // activations of quantised kinds.
    void (*matmul_prompt)(const PackedMatrix& matrix, const Activations& x, int32_t row_begin,
                          int32_t row_end, int32_t panel_begin, int32_t panel_end, float* out,
                          int64_t out_stride);
    // out[row, o] = fma(sum, factor, adds ? out[row, o] : 0). Column c is in partial sum c % 4,
    // each p = fma(w, x, p) in column order; sum = (p0 + p1) + (p2 + p3).
    void (*low_rank)(const LowRankCall& call);
    // Rotates adjacent pairs (2i, 2i+1) of `heads` heads in place; cos_sin: (rope_dim / 2) pairs
    // (cos, sin). even = fma(x0, cos, -(x1 * sin)), odd = fma(x1, cos, x0 * sin).
    void (*rope)(float* x, const float* cos_sin, int32_t heads, int32_t head_dim, int32_t rope_dim);
    // Multiplies each of `heads` heads by a Hadamard matrix, in place. A head falls into blocks of
    // powers of two, the largest that fits first: in each (a, b) becomes (a + b, a - b) for
    // neighbours at distance 1, 2, 4, ..., then x * (1 / sqrt(block)). It keeps scalar products and
    // spreads what stands out in one channel over all of them: queries and keys of int8 pages are
    // rotated so.
    void (*hadamard)(float* x, int32_t heads, int32_t head_dim);
    // Writes one position's key and value (kv_heads * head_dim each) into its page lane; bf16
    // rounds to nearest, ties to even; int8 as quantise does.
    void (*kv_append)(const float* key, const float* value, const KvLayout& layout,
                      std::byte* pages, int32_t page, int32_t lane);
    void (*attention)(const AttentionCall& call, const KvLayout& layout);
    // The prompt's, as matmul_prompt, without windows and caps. On AMX (bf16 pages): bf16 tiles,
    // see attention_tiles.inl.h.
    void (*attention_prompt)(const AttentionCall& call, const KvLayout& layout);
    // out[i] = (g / (1 + exp(min(-g, 80)))) * up[i]
    void (*swiglu)(const float* gate, const float* up, int32_t count, float* out);
    // The same with the tanh form of GELU for the gate's function:
    // out[i] = (g / (1 + exp(min(k * fma(g * g * g, 0.044715, g), 80)))) * up[i], k = -2 sqrt(2 /
    // pi)
    void (*geglu)(const float* gate, const float* up, int32_t count, float* out);
    // x[i] += y[i]
    void (*add)(float* x, const float* y, int32_t count);
    // Sampler primitives; their twins are in loop/sampler_ops.h.
    // Lowest index of the maximum; a NaN never wins, and without any number above -infinity it is
    // 0.
    int32_t (*argmax)(const float* logits, int32_t count);
    float (*max_value)(const float* logits, int32_t count);
    float (*sum_exp)(const float* logits, int32_t count, float maximum, float inverse_temperature);
    bool (*all_finite)(const float* logits, int32_t count);
    // Arg-max over i of fma(logits[i], inverse_temperature, gumbel(seed, position, i)), skipping
    // logits[i] < floor; -1 where nothing is above -infinity.
    int32_t (*gumbel_argmax)(const float* logits, int32_t count, float inverse_temperature,
                             float floor, uint64_t seed, int32_t position);
};

// The table of an instruction set. Aborts if this machine cannot run it: ask isa_runs first.
const Ops& ops_for(Isa isa);
bool isa_runs(Isa isa);
// The widest that runs here. SUBLIMATE_ISA overrides it by name; a name that is unknown or does
// not run here changes nothing, so a caller that has to refuse it compares it with isa_name.
Isa best_isa();
bool asked_isa(Isa* isa); // whether SUBLIMATE_ISA does, and to what
// Tables that run here and return the bits of ops_for(isa) from every primitive, that one first;
// the others may be faster on some machine. All read the same packed weights.
//   avx512   and avx2
//   amx      and itself without int8 tiles; its prompt's arithmetic has no twin of equal bits
std::vector<const Ops*> equal_ops(Isa isa);
const char* isa_name(Isa isa);
bool isa_from_name(const char* name, Isa* isa);

} // namespace sublimate::cpu

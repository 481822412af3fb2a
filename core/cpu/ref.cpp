// The slow twins: every primitive written once, plainly, in the order that defines its bits. The
// vector tables are compared with this one. Nothing here is tuned and nothing here should be.
//
// defines: REF_OPS
#include "../check.h"
#include "../loop/sampler_ops.h"
#include "numbers.h"
#include "tables.h"

#include <bit>
#include <cmath>

namespace sublimate::cpu {
namespace {

constexpr int32_t LANES = 16; // partial sums of every reduction
constexpr float QUANTISED_MAX = 127.0f;
constexpr float SMALLEST_NORMAL = 0x1p-126f;
constexpr float SILU_EXPONENT_MAX = 80.0f;
constexpr float GELU_CUBE = 0.044715f;
constexpr float GELU_EXPONENT = -1.5957691216057308f; // -2 sqrt(2 / pi)
constexpr float LOWEST_SCORE = -0x1.fffffep127f;      // before any score
constexpr int32_t HEAD_DIM_MAX = 256;

// Lane l holds the sum of elements l, l + 16, ...; halves are added until one is left.
float sum_lanes(float (&lanes)[LANES]) {
    for (int32_t half = LANES / 2; half > 0; half /= 2) {
        for (int32_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
    }
    return lanes[0];
}

// To the nearest integer, ties to even, for |x| < 2^22.
float round_to_even(float x) {
    return (x + EXP_ROUND_MAGIC) - EXP_ROUND_MAGIC;
}

// The sampler's exponential, except that a NaN stays a NaN: it has to reach the logits to be
// noticed.
float exp_float(float x) {
    return x == x ? exp_polynomial(x) : x;
}

void rms_norm(const float* x, const float* weight, float epsilon, int32_t columns, float* out) {
    float lanes[LANES] = {};
    for (int32_t c = 0; c < columns; ++c) {
        lanes[c % LANES] = std::fma(x[c], x[c], lanes[c % LANES]);
    }
    const float mean = sum_lanes(lanes) / static_cast<float>(columns);
    const float inverse = 1.0f / std::sqrt(mean + epsilon);
    for (int32_t c = 0; c < columns; ++c) out[c] = (x[c] * inverse) * weight[c];
}

// Returns the scale of all `count` numbers.
float quantise_together(const float* x, int32_t count, int8_t* values) {
    // As integers, so that a NaN is the largest and reaches the scale instead of being lost.
    uint32_t largest_bits = 0;
    for (int32_t i = 0; i < count; ++i) {
        const uint32_t bits = __builtin_bit_cast(uint32_t, x[i]) & 0x7fffffffu;
        if (bits > largest_bits) largest_bits = bits;
    }
    const float scale = __builtin_bit_cast(float, largest_bits) / QUANTISED_MAX;
    const bool usable = scale >= SMALLEST_NORMAL && scale < __builtin_inff();
    const float inverse = usable ? 1.0f / scale : 0.0f;
    for (int32_t i = 0; i < count; ++i) {
        const float rounded = usable ? round_to_even(x[i] * inverse) : 0.0f;
        values[i] = static_cast<int8_t>(rounded);
    }
    return scale < SMALLEST_NORMAL ? 0.0f : scale;
}

void quantise(const float* x, int32_t columns, int8_t* values, float* scales, int32_t* sums) {
    CHECK(columns % GROUP_COLUMNS == 0);
    for (int32_t group = 0; group < columns / GROUP_COLUMNS; ++group) {
        const int32_t first = group * GROUP_COLUMNS;
        scales[group] = quantise_together(x + first, GROUP_COLUMNS, values + first);
        sums[group] = 0;
        for (int32_t i = 0; i < GROUP_COLUMNS; ++i) sums[group] += values[first + i];
    }
}

void add_halves(const int8_t* values, int32_t columns, int32_t* half_sums) {
    CHECK(columns % GROUP_COLUMNS == 0);
    std::fill_n(half_sums, columns / (GROUP_COLUMNS / 2), 0);
    for (int32_t i = 0; i < columns; ++i) half_sums[i / (GROUP_COLUMNS / 2)] += values[i];
}

void to_bf16(const float* x, int32_t count, uint16_t* out) {
    for (int32_t i = 0; i < count; ++i) out[i] = float_to_bf16(x[i]);
}

// ---- matmul -----------------------------------------------------------------------------------

struct Panel {
    const PackedMatrix& matrix;
    const std::byte* data;

    uint32_t byte(int64_t at) const { return static_cast<uint32_t>(data[at]); }
    uint16_t word(int64_t at) const {
        return static_cast<uint16_t>(byte(2 * at) | byte(2 * at + 1) << 8);
    }
    int32_t groups() const { return matrix.columns / GROUP_COLUMNS; }
    int64_t group_bytes() const { return group_bytes_of(matrix.kind); }
    uint32_t nibble(int64_t group_at, int32_t lane, int32_t i) const {
        const uint32_t both = byte(group_at + i % 16 / 4 * 64 + 4 * lane + i % 4);
        return i < 16 ? both & 15u : both >> 4;
    }

    uint32_t quantised(int32_t group, int32_t lane, int32_t i) const {
        if (matrix.kind == WeightKind::u8) {
            return byte(group * group_bytes() + i / 4 * 64 + 4 * lane + i % 4);
        }
        const uint32_t place = nibble(group * group_bytes(), lane, i);
        if (matrix.kind == WeightKind::u4) return place;
        const bool fp4 = matrix.kind == WeightKind::m4;
        const int8_t value = (fp4 ? TWICE_FP4_VALUES : NON_LINEAR_VALUES)[place];
        return static_cast<uint32_t>(value + TABLE_OFFSET);
    }
    float scale(int32_t group, int32_t lane) const {
        const int64_t first = groups() * group_bytes() / 2;
        return half_to_float(word(first + group * PANEL_ROWS + lane));
    }
    float minimum(int32_t group, int32_t lane) const {
        const int64_t first = groups() * (group_bytes() / 2 + PANEL_ROWS);
        return half_to_float(word(first + group * PANEL_ROWS + lane));
    }
    float weight(int32_t column, int32_t lane) const {
        const int64_t at = int64_t{column} * PANEL_ROWS + lane;
        if (matrix.kind == WeightKind::f16) return half_to_float(word(at));
        if (matrix.kind == WeightKind::bf16) return bf16_to_float(word(at));
        const uint32_t bits = word(2 * at) | static_cast<uint32_t>(word(2 * at + 1)) << 16;
        return __builtin_bit_cast(float, bits);
    }
};

float dot_quantised(const Panel& panel, const Activations& x, int32_t row, int32_t lane) {
    float result = 0.0f;
    for (int32_t group = 0; group < panel.groups(); ++group) {
        const int64_t at = int64_t{row} * panel.groups() + group;
        int32_t sum = -panel.matrix.offset * x.sums[at];
        for (int32_t i = 0; i < GROUP_COLUMNS; ++i) {
            const int64_t column = int64_t{row} * x.columns + group * GROUP_COLUMNS + i;
            sum += static_cast<int32_t>(panel.quantised(group, lane, i)) * x.values[column];
        }
        const float scale = panel.scale(group, lane) * x.scales[at];
        result = std::fma(static_cast<float>(sum), scale, result);
        if (panel.matrix.affine) {
            const float scaled_sum = x.scales[at] * static_cast<float>(x.sums[at]);
            result = std::fma(panel.minimum(group, lane), scaled_sum, result);
        }
    }
    return result;
}

// A panel of a K kind.
struct SuperPanel {
    const Panel& panel;
    const WeightKind kind = panel.matrix.kind;
    const SuperLayout layout = super_layout(kind);

    int64_t super_at(int32_t group) const { return group / SUPER_GROUPS * layout.bytes; }
    uint32_t bits(int32_t group, int32_t lane, int32_t i) const {
        const int64_t at = super_at(group) + group % SUPER_GROUPS * layout.group_bytes;
        const int32_t chunk = i / 4;
        const int64_t four = at + chunk / 4 * 64 + 4 * lane + i % 4;
        if (kind == WeightKind::k2) return panel.byte(four) >> 2 * (chunk % 4) & 3u;
        if (kind == WeightKind::k3) {
            const int64_t third = at + K2_LAYOUT.group_bytes + 4 * lane + i % 4;
            return (panel.byte(four) >> 2 * (chunk % 4) & 3u) | (panel.byte(third) >> chunk & 1u)
                                                                    << 2;
        }
        const uint32_t low = panel.nibble(at, lane, i);
        const int64_t plane = at + K4_LAYOUT.group_bytes + 4 * lane + i % 4;
        if (kind == WeightKind::k5) return low | (panel.byte(plane) >> chunk & 1u) << 4;
        if (kind != WeightKind::k6) return low;
        return low | (panel.byte(plane + chunk / 4 * 64) >> 2 * (chunk % 4) & 3u) << 4;
    }
    int32_t value(int32_t group, int32_t lane, int32_t i) const {
        const uint32_t u = bits(group, lane, i);
        if (kind == WeightKind::kn4) return NON_LINEAR_VALUES[u];
        const int32_t offset = kind == WeightKind::k3 ? K3_OFFSET : 0;
        return static_cast<int32_t>(u) - (kind == WeightKind::k6 ? K6_OFFSET : offset);
    }
    // d, or dmin in the second place.
    float super_scale(int32_t group, int32_t lane, int32_t place) const {
        const int64_t at = super_at(group) + layout.super_scales + 2 * (place * PANEL_ROWS + lane);
        return half_to_float(panel.word(at / 2));
    }
    float scale(int32_t group, int32_t lane) const {
        const int64_t at = super_at(group) + layout.scales + group % SUPER_GROUPS * PANEL_ROWS;
        const uint32_t byte = panel.byte(at + lane);
        const float small = kind == WeightKind::kn4 ? static_cast<float>(static_cast<int8_t>(byte))
                                                    : static_cast<float>(byte);
        return super_scale(group, lane, 0) * small;
    }
    float minimum(int32_t group, int32_t lane) const {
        const int64_t at = super_at(group) + layout.minima + group % SUPER_GROUPS * PANEL_ROWS;
        return -(super_scale(group, lane, 1) * static_cast<float>(panel.byte(at + lane)));
    }
    // k2: scale and minimum of 16 columns.
    uint32_t small_pair(int32_t group, int32_t lane, int32_t half) const {
        const int32_t i = group % SUPER_GROUPS * 2 + half;
        return panel.byte(super_at(group) + layout.scales + i / 4 * 64 + 4 * lane + i % 4);
    }
    float half_minimum(int32_t group, int32_t lane, int32_t half) const {
        return -(super_scale(group, lane, 1) *
                 static_cast<float>(small_pair(group, lane, half) >> 4));
    }
    int32_t half_scale(int32_t group, int32_t lane, int32_t half) const {
        if (kind == WeightKind::k2)
            return static_cast<int32_t>(small_pair(group, lane, half) & 15u);
        const int64_t at =
            super_at(group) + layout.scales + (group % SUPER_GROUPS * 2 + half) * PANEL_ROWS;
        return static_cast<int8_t>(panel.byte(at + lane));
    }
};

float dot_super(const Panel& whole, const Activations& x, int32_t row, int32_t lane) {
    const SuperPanel panel{whole};
    const bool halves = has_half_scales(panel.kind);
    float result = 0.0f;
    for (int32_t group = 0; group < whole.groups(); ++group) {
        const int64_t at = int64_t{row} * whole.groups() + group;
        int32_t sum = 0;
        int32_t half_sums[2] = {}; // of the activations
        for (int32_t i = 0; i < GROUP_COLUMNS; ++i) {
            int32_t weight = panel.value(group, lane, i);
            if (halves) weight *= panel.half_scale(group, lane, i / 16);
            sum += weight * x.values[at * GROUP_COLUMNS + i];
            half_sums[i / 16] += x.values[at * GROUP_COLUMNS + i];
        }
        const float d = halves ? panel.super_scale(group, lane, 0) : panel.scale(group, lane);
        result = std::fma(static_cast<float>(sum), d * x.scales[at], result);
        if (!has_small_minima(panel.kind)) continue;
        if (!halves) {
            const float scaled_sum = x.scales[at] * static_cast<float>(x.sums[at]);
            result = std::fma(panel.minimum(group, lane), scaled_sum, result);
        }
        for (int32_t h = 0; halves && h < 2; ++h) {
            const float scaled_sum = x.scales[at] * static_cast<float>(half_sums[h]);
            result = std::fma(panel.half_minimum(group, lane, h), scaled_sum, result);
        }
    }
    return result;
}

float dot_float(const Panel& panel, const Activations& x, int32_t row, int32_t lane) {
    float result = 0.0f;
    for (int32_t column = 0; column < x.columns; ++column) {
        const float value = x.f32[int64_t{row} * x.columns + column];
        result = std::fma(panel.weight(column, lane), value, result);
    }
    return result;
}

void matmul(const PackedMatrix& matrix, const Activations& x, int32_t row_begin, int32_t row_end,
            int32_t panel_begin, int32_t panel_end, float* out, int64_t out_stride) {
    CHECK(matrix.columns == x.columns);
    CHECK(panel_begin >= 0 && panel_end <= matrix.panels);
    CHECK(matrix.panel_bytes >= panel_bytes_for(matrix.kind, matrix.columns, matrix.affine));
    auto* dot = is_k_kind(matrix.kind)      ? dot_super
                : is_quantised(matrix.kind) ? dot_quantised
                                            : dot_float;
    for (int32_t panel_index = panel_begin; panel_index < panel_end; ++panel_index) {
        const Panel panel{matrix, matrix.data + panel_index * matrix.panel_bytes};
        for (int32_t row = row_begin; row < row_end; ++row) {
            for (int32_t lane = 0; lane < PANEL_ROWS; ++lane) {
                const int32_t output = panel_index * PANEL_ROWS + lane;
                if (output >= matrix.rows) break;
                out[row * out_stride + output] = dot(panel, x, row, lane);
            }
        }
    }
}

void low_rank(const LowRankCall& call) {
    CHECK(!is_quantised(call.matrix.kind) && call.matrix.columns <= call.x_stride);
    for (int32_t row = 0; row < call.rows; ++row) {
        for (int32_t output = 0; output < call.matrix.rows; ++output) {
            const int32_t index = output / PANEL_ROWS;
            const Panel panel{call.matrix, call.matrix.data + index * call.matrix.panel_bytes};
            float sums[4] = {};
            for (int32_t column = 0; column < call.matrix.columns; ++column) {
                const float weight = panel.weight(column, output % PANEL_ROWS);
                const float value = call.x[row * call.x_stride + column];
                sums[column % 4] = std::fma(weight, value, sums[column % 4]);
            }
            float* to = call.out + row * call.out_stride + output;
            const float sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
            *to = std::fma(sum, call.factor, call.adds ? *to : 0.0f);
        }
    }
}

// ---- rope, KV ---------------------------------------------------------------------------------

void rope(float* x, const float* cos_sin, int32_t heads, int32_t head_dim, int32_t rope_dim) {
    for (int32_t head = 0; head < heads; ++head) {
        for (int32_t i = 0; i < rope_dim; i += 2) {
            float* pair = x + int64_t{head} * head_dim + i;
            const float cosine = cos_sin[i];
            const float sine = cos_sin[i + 1];
            const float even = pair[0];
            const float odd = pair[1];
            pair[0] = std::fma(even, cosine, -(odd * sine));
            pair[1] = std::fma(odd, cosine, even * sine);
        }
    }
}

void hadamard(float* x, int32_t heads, int32_t head_dim) {
    for (int32_t head = 0; head < heads; ++head) {
        float* row = x + int64_t{head} * head_dim;
        for (int32_t done = 0, block = 0; done < head_dim; done += block) {
            block = static_cast<int32_t>(std::bit_floor(static_cast<uint32_t>(head_dim - done)));
            for (int32_t half = 1; half < block; half *= 2) {
                for (int32_t i = 0; i < block; ++i) {
                    if ((i & half) != 0) continue;
                    float* low = row + done + i;
                    const float sum = low[0] + low[half];
                    low[half] = low[0] - low[half];
                    low[0] = sum;
                }
            }
            for (int32_t i = 0; i < block; ++i) row[done + i] *= hadamard_scale(block);
        }
    }
}

template <class Element>
void append(const float* key, const float* value, const KvLayout& layout, std::byte* pages,
            int32_t page, int32_t lane, Element (*convert)(float)) {
    for (int32_t head = 0; head < layout.kv_heads; ++head) {
        const int64_t head_index = int64_t{page} * layout.kv_heads + head;
        auto* keys = reinterpret_cast<Element*>(pages + head_index * layout.head_bytes);
        Element* values = keys + int64_t{layout.head_dim} * limits::PAGE_TOKENS;
        for (int32_t c = 0; c < layout.head_dim; ++c) {
            const int64_t from = int64_t{head} * layout.head_dim + c;
            keys[c * limits::PAGE_TOKENS + lane] = convert(key[from]);
            values[lane * layout.head_dim + c] = convert(value[from]);
        }
    }
}

void append_int8(const float* key, const float* value, const KvLayout& layout, std::byte* pages,
                 int32_t page, int32_t lane) {
    constexpr int32_t TOKENS = limits::PAGE_TOKENS;
    for (int32_t head = 0; head < layout.kv_heads; ++head) {
        const int64_t head_index = int64_t{page} * layout.kv_heads + head;
        const int64_t from = int64_t{head} * layout.head_dim;
        auto* keys = reinterpret_cast<int8_t*>(pages + head_index * layout.head_bytes);
        int8_t* values = keys + int64_t{layout.head_dim} * TOKENS;
        auto* scales = reinterpret_cast<float*>(values + int64_t{layout.head_dim} * TOKENS);
        int8_t quantised[HEAD_DIM_MAX];
        scales[lane] = quantise_together(key + from, layout.head_dim, quantised);
        for (int32_t c = 0; c < layout.head_dim; ++c) keys[c * TOKENS + lane] = quantised[c];
        scales[TOKENS + lane] =
            quantise_together(value + from, layout.head_dim, values + lane * layout.head_dim);
    }
}

void kv_append(const float* key, const float* value, const KvLayout& layout, std::byte* pages,
               int32_t page, int32_t lane) {
    CHECK(lane >= 0 && lane < limits::PAGE_TOKENS && layout.head_dim <= HEAD_DIM_MAX);
    if (layout.type == KvType::bf16) {
        append<uint16_t>(key, value, layout, pages, page, lane, float_to_bf16);
    } else if (layout.type == KvType::int8) {
        append_int8(key, value, layout, pages, page, lane);
    } else {
        append<float>(key, value, layout, pages, page, lane, +[](float x) { return x; });
    }
}

// ---- attention --------------------------------------------------------------------------------

// State of one query head of one row: the running maximum, 16 partial sums of the weights, and the
// output.
struct Softmax {
    float maximum = LOWEST_SCORE;
    float sums[LANES] = {};
    float out[HEAD_DIM_MAX] = {};
};

template <class Element>
float kv_number(Element element) {
    if constexpr (sizeof(Element) == 2) return bf16_to_float(element);
    return static_cast<float>(element);
}

// What stands for one in the pages: of keys, then of values.
template <class Element>
float kv_scale(const Element* keys, int32_t head_dim, int32_t index) {
    if constexpr (sizeof(Element) != 1) return 1.0f;
    const auto* scales =
        reinterpret_cast<const float*>(keys + int64_t{2} * head_dim * limits::PAGE_TOKENS);
    return scales[index];
}

float capped(float score, float cap) {
    const float x = score * (2.0f / cap);
    const float e = exp_float(x > SILU_EXPONENT_MAX ? SILU_EXPONENT_MAX : x);
    return cap - 2.0f * cap / (e + 1.0f);
}

template <class Element>
void attend_page(const AttentionCall& call, const float* query, const Element* keys,
                 int32_t head_dim, int32_t hidden, int32_t valid, Softmax& state) {
    constexpr int32_t TOKENS = limits::PAGE_TOKENS;
    const Element* values = keys + int64_t{head_dim} * TOKENS;
    float weights[TOKENS] = {};
    float maximum = state.maximum;
    for (int32_t k = 0; k < valid; ++k) {
        float score = 0.0f;
        for (int32_t c = 0; c < head_dim; ++c) {
            score = std::fma(query[c], kv_number(keys[c * TOKENS + k]), score);
        }
        score *= kv_scale(keys, head_dim, k);
        if (call.soft_cap > 0.0f) score = capped(score, call.soft_cap);
        if (k < hidden) score = MINUS_INFINITY;
        weights[k] = score;
        if (score > maximum) maximum = score;
    }
    const float factor = exp_float(state.maximum - maximum);
    state.maximum = maximum;
    for (int32_t k = 0; k < valid; ++k) weights[k] = exp_float(weights[k] - maximum);
    for (int32_t i = 0; i < LANES; ++i) {
        // Two lanes meet as they do in registers: a bf16 line splits into even and odd tokens.
        const int32_t first = sizeof(Element) == 2 ? 2 * i : i;
        const int32_t second = sizeof(Element) == 2 ? 2 * i + 1 : i + LANES;
        state.sums[i] = std::fma(state.sums[i], factor, weights[first] + weights[second]);
    }
    for (int32_t c = 0; c < head_dim; ++c) {
        float sum = state.out[c] * factor;
        for (int32_t k = 0; k < valid; ++k) {
            const float weight = weights[k] * kv_scale(keys, head_dim, TOKENS + k);
            sum = std::fma(weight, kv_number(values[k * head_dim + c]), sum);
        }
        state.out[c] = sum;
    }
}

template <class Element>
void attend_head(const AttentionCall& call, const KvLayout& layout, int32_t row, int32_t head) {
    const int32_t head_dim = layout.head_dim;
    const int64_t first_channel = int64_t{call.query_head + head} * head_dim;
    float query[HEAD_DIM_MAX];
    for (int32_t c = 0; c < head_dim; ++c) {
        query[c] = call.query[row * call.query_stride + first_channel + c] * call.scale;
    }
    Softmax state;
    const int32_t tokens = call.first_position + row + 1;
    const bool sees_all = call.window == 0 || tokens <= call.window;
    const int32_t lowest = sees_all ? 0 : tokens - call.window;
    for (int32_t first = lowest / limits::PAGE_TOKENS * limits::PAGE_TOKENS; first < tokens;
         first += limits::PAGE_TOKENS) {
        const int32_t left = tokens - first;
        const int32_t hidden = lowest > first ? lowest - first : 0;
        const int32_t page = call.page_table[first / limits::PAGE_TOKENS];
        const int64_t head_index = int64_t{page} * layout.kv_heads + call.kv_head;
        attend_page(call, query,
                    reinterpret_cast<const Element*>(call.pages + head_index * layout.head_bytes),
                    head_dim, hidden, left < limits::PAGE_TOKENS ? left : limits::PAGE_TOKENS,
                    state);
    }
    const float inverse = 1.0f / sum_lanes(state.sums);
    for (int32_t c = 0; c < head_dim; ++c) {
        call.out[row * call.out_stride + first_channel + c] = state.out[c] * inverse;
    }
}

void attention(const AttentionCall& call, const KvLayout& layout) {
    CHECK(layout.head_dim > 0 && layout.head_dim <= HEAD_DIM_MAX && layout.head_dim % LANES == 0);
    for (int32_t row = 0; row < call.row_count; ++row) {
        for (int32_t head = 0; head < call.group_heads; ++head) {
            if (layout.type == KvType::bf16) {
                attend_head<uint16_t>(call, layout, row, head);
            } else if (layout.type == KvType::int8) {
                attend_head<int8_t>(call, layout, row, head);
            } else {
                attend_head<float>(call, layout, row, head);
            }
        }
    }
}

// ---- elementwise, sampler ---------------------------------------------------------------------

void swiglu(const float* gate, const float* up, int32_t count, float* out) {
    for (int32_t i = 0; i < count; ++i) {
        // The exponential stops at 80: the result is zero to any accuracy long before.
        const float negated = -gate[i] > SILU_EXPONENT_MAX ? SILU_EXPONENT_MAX : -gate[i];
        out[i] = (gate[i] / (1.0f + exp_float(negated))) * up[i];
    }
}

void geglu(const float* gate, const float* up, int32_t count, float* out) {
    for (int32_t i = 0; i < count; ++i) {
        const float g = gate[i];
        const float inner = std::fma(g * g * g, GELU_CUBE, g) * GELU_EXPONENT;
        const float negated = inner > SILU_EXPONENT_MAX ? SILU_EXPONENT_MAX : inner;
        out[i] = (g / (1.0f + exp_float(negated))) * up[i];
    }
}

void add(float* x, const float* y, int32_t count) {
    for (int32_t i = 0; i < count; ++i) x[i] += y[i];
}

} // namespace

constinit const Ops REF_OPS = {
    .name = "ref",
    .isa = Isa::ref,
    .rms_norm = rms_norm,
    .quantise = quantise,
    .add_halves = add_halves,
    .to_bf16 = to_bf16,
    .matmul = matmul,
    .matmul_prompt = matmul,
    .low_rank = low_rank,
    .rope = rope,
    .hadamard = hadamard,
    .kv_append = kv_append,
    .attention = attention,
    .attention_prompt = attention,
    .swiglu = swiglu,
    .geglu = geglu,
    .add = add,
    .argmax = argmax,
    .max_value = max_value,
    .sum_exp = sum_exp,
    .all_finite = all_finite,
    .gumbel_argmax = gumbel_argmax,
};

} // namespace sublimate::cpu

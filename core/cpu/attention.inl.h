// Attention over paged keys and values with an online softmax (Milakov and Gimelshein 2018), one rescale per
// page. A query vector is one head of one row; VECTORS of them share every load of a page. What one vector
// computes does not depend on the others: its own running maximum, sums and output, pages in order of position,
// channels and tokens in ascending order inside a page.
//
// A bf16 line of 32 numbers splits into its even and its odd numbers (a shift and a mask), an f32 line into its
// halves: the `first` and `second` lanes below.
//
// defines: attention
#pragma once

#include "lanes.inl.h"
#include "tables.h"

namespace sublimate::cpu {
namespace {

constexpr int32_t HEAD_DIM_MAX = 256;
constexpr int32_t TOKENS = limits::PAGE_TOKENS;
constexpr int32_t LINE = 2 * LANES;      // numbers of one step over channels or tokens
constexpr int32_t PAGES_AHEAD = 2;       // distance of the software prefetch
constexpr uint32_t UPPER_HALF = 0xffff0000u;
static_assert(TOKENS == LINE);

struct LinePair {
    Lanes first;
    Lanes second;
};

INLINE LinePair load_line(const uint16_t* from) {
    const LanesBits bits = load_bits(from);
    return {floats_of(shift_left(bits, 16)), floats_of(bits & splat_bits(UPPER_HALF))};
}
INLINE LinePair load_line(const float* from) { return {load(from), load(from + LANES)}; }

// Half a line, 16 numbers, where a head's channels end in the middle.
INLINE LinePair load_half_line(const uint16_t* from) {
    const LanesBits bits = load_bits_half(from);
    return {floats_of(shift_left(bits, 16)), floats_of(bits & splat_bits(UPPER_HALF))};
}
INLINE LinePair load_half_line(const float* from) { return {load(from), splat(0.0f)}; }

// Where number i of a line stands among (first, second).
template <class Element>
INLINE int32_t slot_of(int32_t i) {
    return sizeof(Element) == sizeof(float) ? i : (i & 1) * LANES + (i >> 1);
}
template <class Element>
INLINE LanesBits line_numbers(int32_t second) {
    const LanesBits lanes = lane_numbers();
    if (sizeof(Element) == sizeof(float)) {
        return lanes + splat_bits(static_cast<uint32_t>(second * LANES));
    }
    return lanes + lanes + splat_bits(static_cast<uint32_t>(second));
}

template <int32_t VECTORS>
struct Block {
    alignas(64) float query[VECTORS][HEAD_DIM_MAX];  // roped and scaled
    alignas(64) float out[VECTORS][HEAD_DIM_MAX];    // per line: first, second
    alignas(64) float weights[VECTORS][TOKENS];      // of the current page: first, second
    alignas(64) float factors[LANES];                // rescale of what earlier pages left, per vector
    alignas(64) float maxima[LANES];
    Lanes sums[VECTORS];
    int32_t tokens[VECTORS];                         // positions a vector sees, in all
    int32_t valid[VECTORS];                          // of the current page
};

// Turns one vector's scores into a running maximum; masked lanes never count.
template <class Element, int32_t VECTORS>
INLINE void mask_scores(Block<VECTORS>& block, int32_t v, LinePair& scores, float* maxima) {
    if (block.valid[v] < TOKENS) {
        const LanesBits limit = splat_bits(static_cast<uint32_t>(block.valid[v]));
        const Lanes never = splat(NEGATIVE_INFINITY);
        scores.first = select(greater_bits(limit, line_numbers<Element>(0)), scores.first, never);
        scores.second =
            select(greater_bits(limit, line_numbers<Element>(1)), scores.second, never);
    }
    const float page_maximum = max_lanes(greatest(scores.first, scores.second));
    maxima[v] = page_maximum > block.maxima[v] ? page_maximum : block.maxima[v];
}

template <class Element, int32_t VECTORS>
INLINE void page_weights(Block<VECTORS>& block, const Element* keys, const Element* ahead,
                         int32_t head_dim) {
    LinePair scores[VECTORS];
    for (int32_t v = 0; v < VECTORS; ++v) scores[v] = {splat(0.0f), splat(0.0f)};
    for (int32_t c = 0; c < head_dim; ++c) {
        __builtin_prefetch(ahead + int64_t{c} * TOKENS);
        const LinePair key = load_line(keys + int64_t{c} * TOKENS);
        for (int32_t v = 0; v < VECTORS; ++v) {
            const Lanes query = splat(block.query[v][c]);
            scores[v].first = multiply_add(query, key.first, scores[v].first);
            scores[v].second = multiply_add(query, key.second, scores[v].second);
        }
    }
    alignas(64) float maxima[LANES] = {};
    for (int32_t v = 0; v < VECTORS; ++v) mask_scores<Element>(block, v, scores[v], maxima);
    store(block.factors, exp_lanes(load(block.maxima) - load(maxima)));
    store(block.maxima, load(maxima));
    for (int32_t v = 0; v < VECTORS; ++v) {
        const Lanes maximum = splat(maxima[v]);
        const Lanes first = exp_lanes(scores[v].first - maximum);
        const Lanes second = exp_lanes(scores[v].second - maximum);
        store(block.weights[v], first);
        store(block.weights[v] + LANES, second);
        block.sums[v] = fma(block.sums[v], splat(block.factors[v]), first + second);
    }
}

// Adds the page's weighted values to one line of channels. Tokens that every vector sees share their loads; the
// few behind them are taken only by the vectors that see them.
template <class Element, int32_t VECTORS, bool HALF>
INLINE void page_values(Block<VECTORS>& block, const Element* values, const Element* ahead,
                        int32_t head_dim, int32_t channel) {
    LinePair sums[VECTORS];
    int32_t least = TOKENS;
    int32_t most = 0;
    for (int32_t v = 0; v < VECTORS; ++v) {
        const Lanes factor = splat(block.factors[v]);
        sums[v].first = load(block.out[v] + channel) * factor;
        sums[v].second = load(block.out[v] + channel + LANES) * factor;
        least = block.valid[v] < least ? block.valid[v] : least;
        most = block.valid[v] > most ? block.valid[v] : most;
    }
    const auto load_values = [&](int32_t k) {
        const Element* line = values + int64_t{k} * head_dim + channel;
        if constexpr (HALF) return load_half_line(line);
        if constexpr (!HALF) return load_line(line);
    };
    const auto take = [&](int32_t v, int32_t k, const LinePair& value) {
        const Lanes weight = splat(block.weights[v][slot_of<Element>(k)]);
        sums[v].first = multiply_add(weight, value.first, sums[v].first);
        sums[v].second = multiply_add(weight, value.second, sums[v].second);
    };
    for (int32_t k = 0; k < least; ++k) {
        __builtin_prefetch(ahead + int64_t{k} * head_dim + channel);
        const LinePair value = load_values(k);
        for (int32_t v = 0; v < VECTORS; ++v) take(v, k, value);
    }
    for (int32_t k = least; k < most; ++k) {
        const LinePair value = load_values(k);
        for (int32_t v = 0; v < VECTORS; ++v) {
            if (k < block.valid[v]) take(v, k, value);
        }
    }
    for (int32_t v = 0; v < VECTORS; ++v) {
        store(block.out[v] + channel, sums[v].first);
        store(block.out[v] + channel + LANES, sums[v].second);
    }
}

template <int32_t VECTORS>
INLINE void start_block(Block<VECTORS>& block, const AttentionCall& call, int32_t head_dim,
                        int32_t first_vector) {
    store(block.maxima, splat(NEGATIVE_INFINITY));
    for (int32_t v = 0; v < VECTORS; ++v) {
        const int32_t row = (first_vector + v) / call.group_heads;
        const int32_t head = call.query_head + (first_vector + v) % call.group_heads;
        const float* query = call.query + row * call.query_stride + int64_t{head} * head_dim;
        for (int32_t c = 0; c < head_dim; c += LANES) {
            store(block.query[v] + c, load(query + c) * splat(call.scale));
        }
        for (int32_t c = 0; c < head_dim; c += LINE) {  // whole lines: half of the last may be unused
            store(block.out[v] + c, splat(0.0f));
            store(block.out[v] + c + LANES, splat(0.0f));
        }
        block.sums[v] = splat(0.0f);
        block.tokens[v] = call.first_position + row + 1;
    }
}

template <class Element, int32_t VECTORS>
INLINE void finish_block(Block<VECTORS>& block, const AttentionCall& call, int32_t head_dim,
                         int32_t first_vector) {
    for (int32_t v = 0; v < VECTORS; ++v) {
        const int32_t row = (first_vector + v) / call.group_heads;
        const int32_t head = call.query_head + (first_vector + v) % call.group_heads;
        float* out = call.out + row * call.out_stride + int64_t{head} * head_dim;
        const float inverse = 1.0f / sum_lanes(block.sums[v]);
        for (int32_t c = 0; c < head_dim; ++c) {
            const int32_t line = c & ~(LINE - 1);
            out[c] = block.out[v][line + slot_of<Element>(c - line)] * inverse;
        }
    }
}

template <class Element, int32_t VECTORS>
void attend_block(const AttentionCall& call, const KvLayout& layout, int32_t first_vector) {
    const int32_t head_dim = layout.head_dim;
    Block<VECTORS> block;
    start_block(block, call, head_dim, first_vector);
    const auto page_at = [&](int32_t index) {
        const int64_t head = int64_t{call.page_table[index]} * layout.kv_heads + call.kv_head;
        return reinterpret_cast<const Element*>(call.pages + head * layout.head_bytes);
    };
    const int32_t last_page = (block.tokens[VECTORS - 1] - 1) / TOKENS;
    for (int32_t page = 0; page <= last_page; ++page) {
        for (int32_t v = 0; v < VECTORS; ++v) {
            const int32_t left = block.tokens[v] - page * TOKENS;
            block.valid[v] = left < 0 ? 0 : (left > TOKENS ? TOKENS : left);
        }
        const Element* keys = page_at(page);
        const Element* ahead =
            page_at(page + PAGES_AHEAD < last_page ? page + PAGES_AHEAD : last_page);
        const int64_t page_keys = int64_t{head_dim} * TOKENS;
        page_weights(block, keys, ahead, head_dim);
        int32_t channel = 0;
        for (; channel + LINE <= head_dim; channel += LINE) {
            page_values<Element, VECTORS, false>(block, keys + page_keys, ahead + page_keys,
                                                 head_dim, channel);
        }
        if (channel < head_dim) {
            page_values<Element, VECTORS, true>(block, keys + page_keys, ahead + page_keys,
                                                head_dim, channel);
        }
    }
    finish_block<Element>(block, call, head_dim, first_vector);
}

// The last vectors of a call, fewer than a full block.
template <class Element, int32_t VECTORS>
void attend_rest(const AttentionCall& call, const KvLayout& layout, int32_t first, int32_t count) {
    if (count == VECTORS) {
        attend_block<Element, VECTORS>(call, layout, first);
    } else if constexpr (VECTORS > 1) {
        attend_rest<Element, VECTORS - 1>(call, layout, first, count);
    }
}

template <class Element>
void attend_all(const AttentionCall& call, const KvLayout& layout) {
    const int32_t vectors = call.row_count * call.group_heads;
    int32_t first = 0;
    for (; first + BLOCK_VECTORS <= vectors; first += BLOCK_VECTORS) {
        attend_block<Element, BLOCK_VECTORS>(call, layout, first);
    }
    attend_rest<Element, BLOCK_VECTORS>(call, layout, first, vectors - first);
}

void attention(const AttentionCall& call, const KvLayout& layout) {
    if (layout.head_dim <= 0 || layout.head_dim > HEAD_DIM_MAX || layout.head_dim % LANES != 0) {
        misuse("a head has 16, 32, ... 256 channels");
    }
    if (layout.type == KvType::bf16) {
        attend_all<uint16_t>(call, layout);
    } else {
        attend_all<float>(call, layout);
    }
}

}  // namespace
}  // namespace sublimate::cpu

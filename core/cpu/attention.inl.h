// Attention over paged keys and values with an online softmax (Milakov and Gimelshein 2018), one
// rescale per page. A query vector is one head of one row; VECTORS of them share every load of a
// page. What one vector computes does not depend on the others: its own running maximum, sums and
// output, pages in order of position, channels and tokens in ascending order inside a page.
//
// A bf16 line of 32 numbers splits into its even and its odd numbers (a shift and a mask), an f32
// or int8 line into its halves: the `first` and `second` lanes below. int8 numbers are summed as
// they are; their scale, one per token, meets the score, and the weight before it meets the value.
//
// defines: attention
#pragma once

#include "lanes.inl.h"
#include "tables.h"

namespace sublimate::cpu {
namespace {

constexpr int32_t HEAD_DIM_MAX = 256;
constexpr int32_t TOKENS = limits::PAGE_TOKENS;
constexpr int32_t LINE = 2 * LANES; // numbers of one step over channels or tokens
constexpr int32_t PAGES_AHEAD = 2;  // distance of the software prefetch
constexpr uint32_t UPPER_HALF = 0xffff0000u;
constexpr float CAP_EXPONENT_MAX = 80.0f;
constexpr float LOWEST_SCORE = -0x1.fffffep127f; // before any score
static_assert(TOKENS == LINE);
static_assert(HEAD_DIM_MAX % LINE == 0, "a head of any size ends within its buffer");
static_assert(BLOCK_VECTORS <= LANES, "the maxima of a block are one register");
static_assert(BLOCK_VECTORS % 2 == 0, "what a block leaves is halves and less");

struct LinePair {
    Lanes first;
    Lanes second;
};

INLINE LinePair load_line(const uint16_t* from) {
    const LanesBits bits = load_bits(from);
    return {floats_of(shift_left(bits, 16)), floats_of(bits & splat_bits(UPPER_HALF))};
}
INLINE LinePair load_line(const float* from) {
    return {load(from), load(from + LANES)};
}
INLINE LinePair load_line(const int8_t* from) {
    const auto* bytes = reinterpret_cast<const std::byte*>(from);
    return {load_int8(bytes), load_int8(bytes + LANES)};
}

// Half a line, 16 numbers, where a head's channels end in the middle.
INLINE LinePair load_half_line(const uint16_t* from) {
    const LanesBits bits = load_bits_half(from);
    return {floats_of(shift_left(bits, 16)), floats_of(bits & splat_bits(UPPER_HALF))};
}
INLINE LinePair load_half_line(const float* from) {
    return {load(from), splat(0.0f)};
}
INLINE LinePair load_half_line(const int8_t* from) {
    return {load_int8(reinterpret_cast<const std::byte*>(from)), splat(0.0f)};
}

// Where number i of a line stands among (first, second).
template <class Element>
constexpr bool SPLITS = sizeof(Element) == sizeof(uint16_t); // into even and odd numbers

template <class Element>
INLINE int32_t slot_of(int32_t i) {
    return SPLITS<Element> ? (i & 1) * LANES + (i >> 1) : i;
}
template <class Element>
INLINE LanesBits line_numbers(int32_t second) {
    const LanesBits lanes = lane_numbers();
    if (!SPLITS<Element>) {
        return lanes + splat_bits(static_cast<uint32_t>(second * LANES));
    }
    return lanes + lanes + splat_bits(static_cast<uint32_t>(second));
}

// How many pages' scores, and how many lines of values, are summed side by side: few vectors have
// too few chains of additions of their own to keep the multipliers busy.
constexpr int32_t side_by_side(int32_t vectors) {
    const int32_t fits = SUMS_MAX / (2 * vectors);
    return fits >= 4 ? 4 : (fits >= 2 ? 2 : 1);
}

template <int32_t VECTORS>
struct Block {
    static constexpr int32_t PAGES = side_by_side(VECTORS);
    alignas(64) float query[VECTORS][HEAD_DIM_MAX];   // roped and scaled
    alignas(64) float out[VECTORS][HEAD_DIM_MAX];     // per line: first, second
    alignas(64) float scores[PAGES][VECTORS][TOKENS]; // first, second; then the softmax's weights
    alignas(64) float maxima[PAGES + 1][LANES];       // per vector: before the pages, after each
    alignas(64) float factors[PAGES][LANES];          // rescale of what earlier pages left
    Lanes sums[VECTORS];
    int32_t tokens[VECTORS];       // one past the last position that a vector sees
    int32_t first[VECTORS];        // the first one
    int32_t valid[PAGES][VECTORS]; // of each page
};

// Scores of PAGES pages; the same channel of every page in turn.
template <class Element, int32_t VECTORS>
INLINE void page_scores(Block<VECTORS>& block, const Element* const (&keys)[Block<VECTORS>::PAGES],
                        const Element* const (&ahead)[Block<VECTORS>::PAGES], int32_t head_dim) {
    constexpr int32_t PAGES = Block<VECTORS>::PAGES;
    LinePair scores[PAGES][VECTORS];
    for (auto& page : scores) {
        for (LinePair& score : page) score = {splat(0.0f), splat(0.0f)};
    }
    for (int32_t c = 0; c < head_dim; ++c) {
        LinePair key[PAGES];
        for (int32_t p = 0; p < PAGES; ++p) {
            __builtin_prefetch(ahead[p] + int64_t{c} * TOKENS);
            key[p] = load_line(keys[p] + int64_t{c} * TOKENS);
        }
        for (int32_t v = 0; v < VECTORS; ++v) {
            const Lanes query = splat(block.query[v][c]);
            for (int32_t p = 0; p < PAGES; ++p) {
                LinePair& score = scores[p][v];
                score.first = multiply_add(query, key[p].first, score.first);
                score.second = multiply_add(query, key[p].second, score.second);
            }
        }
    }
    for (int32_t p = 0; p < PAGES; ++p) {
        for (int32_t v = 0; v < VECTORS; ++v) {
            store(block.scores[p][v], scores[p][v].first);
            store(block.scores[p][v] + LANES, scores[p][v].second);
        }
    }
}

// Of int8 pages: scores, or weights, times the scales of the tokens' keys, or values.
template <int32_t VECTORS>
INLINE void scale_pages(Block<VECTORS>& block, const int8_t* const (&keys)[Block<VECTORS>::PAGES],
                        int32_t head_dim, bool of_values) {
    for (int32_t p = 0; p < Block<VECTORS>::PAGES; ++p) {
        const auto* scales =
            reinterpret_cast<const float*>(keys[p] + int64_t{2} * head_dim * TOKENS);
        if (of_values) scales += TOKENS;
        const LinePair scale = load_line(scales);
        for (float* line : block.scores[p]) {
            store(line, load(line) * scale.first);
            store(line + LANES, load(line + LANES) * scale.second);
        }
    }
}

// The pages' scores within (-cap, cap), in place.
template <int32_t VECTORS>
INLINE void cap_scores(Block<VECTORS>& block, float cap) {
    const Lanes most = splat(CAP_EXPONENT_MAX);
    const Lanes factor = splat(2.0f / cap);
    for (auto& page : block.scores) {
        for (float* scores : page) {
            for (int32_t i = 0; i < TOKENS; i += LANES) {
                const Lanes x = load(scores + i) * factor;
                const Lanes e = exp_lanes(select(greater(x, most), most, x));
                store(scores + i, splat(cap) - splat(2.0f * cap) / (e + splat(1.0f)));
            }
        }
    }
}

// Lanes before the first visible token and past the last one never count, whatever was read there.
// Returns the maximum of the others.
template <class Element>
INLINE float mask_scores(float* scores, int32_t hidden, int32_t valid) {
    LinePair r = {load(scores), load(scores + LANES)};
    if (hidden > 0) {
        const LanesBits limit = splat_bits(static_cast<uint32_t>(hidden));
        const Lanes never = splat(NEGATIVE_INFINITY);
        r.first = select(greater_bits(limit, line_numbers<Element>(0)), never, r.first);
        r.second = select(greater_bits(limit, line_numbers<Element>(1)), never, r.second);
        store(scores, r.first);
        store(scores + LANES, r.second);
    }
    if (valid < TOKENS) {
        const LanesBits limit = splat_bits(static_cast<uint32_t>(valid));
        const Lanes never = splat(NEGATIVE_INFINITY);
        r.first = select(greater_bits(limit, line_numbers<Element>(0)), r.first, never);
        r.second = select(greater_bits(limit, line_numbers<Element>(1)), r.second, never);
        store(scores, r.first);
        store(scores + LANES, r.second);
    }
    return max_lanes(greatest(r.first, r.second));
}

// Turns the pages' scores into weights, in place, and moves the running maxima and sums, page by
// page in order. Step by step over all pages, because the exponentials of one page alone are a
// chain that nothing hides.
template <class Element, int32_t VECTORS>
INLINE void page_softmax(Block<VECTORS>& block, int32_t first_token) {
    constexpr int32_t PAGES = Block<VECTORS>::PAGES;
    for (int32_t p = 0; p < PAGES; ++p) {
        for (int32_t v = 0; v < VECTORS; ++v) {
            const int32_t left = block.tokens[v] - first_token - p * TOKENS;
            const int32_t valid = left < 0 ? 0 : (left > TOKENS ? TOKENS : left);
            const int32_t before_first = block.first[v] - first_token - p * TOKENS;
            const int32_t hidden = before_first < 0 ? 0 : before_first;
            const float maximum = mask_scores<Element>(block.scores[p][v], hidden, valid);
            const float before = block.maxima[p][v];
            block.maxima[p + 1][v] = maximum > before ? maximum : before;
            block.valid[p][v] = valid;
        }
    }
    for (int32_t p = 0; p < PAGES; ++p) {
        const Lanes change = load(block.maxima[p]) - load(block.maxima[p + 1]);
        store(block.factors[p], exp_lanes(change));
        for (int32_t v = 0; v < VECTORS; ++v) {
            float* scores = block.scores[p][v];
            const Lanes maximum = splat(block.maxima[p + 1][v]);
            const Lanes first = exp_lanes(load(scores) - maximum);
            const Lanes second = exp_lanes(load(scores + LANES) - maximum);
            store(scores, first);
            store(scores + LANES, second);
            block.sums[v] = fma(block.sums[v], splat(block.factors[p][v]), first + second);
        }
    }
    store(block.maxima[0], load(block.maxima[PAGES]));
}

template <class Element>
struct PageValues {
    const float* weights; // (vector, token slot)
    const float* factors; // (vector)
    const int32_t* valid; // (vector)
    const Element* values;
    const Element* ahead;
    int32_t head_dim;
};

// Adds the page's weighted values to LINES lines of channels. Tokens that every vector sees share
// their loads; the few behind them are taken only by the vectors that see them.
template <class Element, int32_t VECTORS, int32_t LINES, bool HALF>
INLINE void page_values(Block<VECTORS>& block, const PageValues<Element>& page, int32_t channel) {
    LinePair sums[VECTORS][LINES];
    int32_t least = TOKENS;
    int32_t most = 0;
    for (int32_t v = 0; v < VECTORS; ++v) {
        const Lanes factor = splat(page.factors[v]);
        for (int32_t i = 0; i < LINES; ++i) {
            const float* out = block.out[v] + channel + i * LINE;
            sums[v][i] = {load(out) * factor, load(out + LANES) * factor};
        }
        least = page.valid[v] < least ? page.valid[v] : least;
        most = page.valid[v] > most ? page.valid[v] : most;
    }
    const auto load_values = [&](int32_t k, LinePair(&value)[LINES]) {
        const Element* line = page.values + int64_t{k} * page.head_dim + channel;
        for (int32_t i = 0; i < LINES; ++i) {
            if constexpr (HALF) value[i] = load_half_line(line + i * LINE);
            if constexpr (!HALF) value[i] = load_line(line + i * LINE);
        }
    };
    const auto take = [&](int32_t v, int32_t k, const LinePair(&value)[LINES]) {
        const Lanes weight = splat(page.weights[v * TOKENS + slot_of<Element>(k)]);
        for (int32_t i = 0; i < LINES; ++i) {
            sums[v][i].first = multiply_add(weight, value[i].first, sums[v][i].first);
            sums[v][i].second = multiply_add(weight, value[i].second, sums[v][i].second);
        }
    };
    LinePair value[LINES];
    for (int32_t k = 0; k < least; ++k) {
        for (int32_t i = 0; i < LINES; ++i) {
            __builtin_prefetch(page.ahead + int64_t{k} * page.head_dim + channel + i * LINE);
        }
        load_values(k, value);
        for (int32_t v = 0; v < VECTORS; ++v) take(v, k, value);
    }
    for (int32_t k = least; k < most; ++k) {
        load_values(k, value);
        for (int32_t v = 0; v < VECTORS; ++v) {
            if (k < page.valid[v]) take(v, k, value);
        }
    }
    for (int32_t v = 0; v < VECTORS; ++v) {
        for (int32_t i = 0; i < LINES; ++i) {
            float* out = block.out[v] + channel + i * LINE;
            store(out, sums[v][i].first);
            store(out + LANES, sums[v][i].second);
        }
    }
}

// All channels: as many lines at once as fit, then fewer, then half a line.
template <class Element, int32_t VECTORS>
INLINE void all_values(Block<VECTORS>& block, const PageValues<Element>& page) {
    constexpr int32_t MOST = side_by_side(VECTORS);
    int32_t channel = 0;
    if constexpr (MOST == 4) {
        for (; channel + 4 * LINE <= page.head_dim; channel += 4 * LINE) {
            page_values<Element, VECTORS, 4, false>(block, page, channel);
        }
    }
    if constexpr (MOST >= 2) {
        for (; channel + 2 * LINE <= page.head_dim; channel += 2 * LINE) {
            page_values<Element, VECTORS, 2, false>(block, page, channel);
        }
    }
    for (; channel + LINE <= page.head_dim; channel += LINE) {
        page_values<Element, VECTORS, 1, false>(block, page, channel);
    }
    if (channel < page.head_dim) page_values<Element, VECTORS, 1, true>(block, page, channel);
}

template <int32_t VECTORS>
INLINE void start_block(Block<VECTORS>& block, const AttentionCall& call, int32_t head_dim,
                        int32_t first_vector) {
    // A number, so that a page of which a vector sees nothing has a difference to it.
    for (auto& maxima : block.maxima) store(maxima, splat(LOWEST_SCORE));
    for (int32_t v = 0; v < VECTORS; ++v) {
        const int32_t row = (first_vector + v) / call.group_heads;
        const int32_t head = call.query_head + (first_vector + v) % call.group_heads;
        const float* query = call.query + row * call.query_stride + int64_t{head} * head_dim;
        for (int32_t c = 0; c < head_dim; c += LANES) {
            store(block.query[v] + c, load(query + c) * splat(call.scale));
        }
        for (int32_t c = 0; c < head_dim;
             c += LINE) { // whole lines: half of the last may be unused
            store(block.out[v] + c, splat(0.0f));
            store(block.out[v] + c + LANES, splat(0.0f));
        }
        block.sums[v] = splat(0.0f);
        block.tokens[v] = call.first_position + row + 1;
        const bool sees_all = call.window == 0 || block.tokens[v] <= call.window;
        block.first[v] = sees_all ? 0 : block.tokens[v] - call.window;
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
    constexpr int32_t PAGES = Block<VECTORS>::PAGES;
    const int32_t head_dim = layout.head_dim;
    Block<VECTORS> block;
    start_block(block, call, head_dim, first_vector);
    const int32_t last_page = (block.tokens[VECTORS - 1] - 1) / TOKENS;
    const auto page_at = [&](int32_t index) { // past the last: what comes next, or the last again
        if (index > last_page && call.next != nullptr)
            return reinterpret_cast<const Element*>(call.next);
        const int64_t page = call.page_table[index < last_page ? index : last_page];
        return reinterpret_cast<const Element*>(
            call.pages + (page * layout.kv_heads + call.kv_head) * layout.head_bytes);
    };
    const int64_t page_keys = int64_t{head_dim} * TOKENS;
    // Rows ascend: what the first vector does not see, none does.
    for (int32_t page = block.first[0] / TOKENS; page <= last_page; page += PAGES) {
        const Element* keys[PAGES];
        const Element* ahead[PAGES];
        for (int32_t p = 0; p < PAGES; ++p) {
            keys[p] = page_at(page + p <= last_page ? page + p : last_page);
            ahead[p] = page_at(page + p + (PAGES > PAGES_AHEAD ? PAGES : PAGES_AHEAD));
        }
        constexpr bool SCALED = sizeof(Element) == sizeof(int8_t);
        page_scores(block, keys, ahead, head_dim);
        if constexpr (SCALED) scale_pages(block, keys, head_dim, false);
        if (call.soft_cap > 0.0f) cap_scores(block, call.soft_cap);
        page_softmax<Element>(block, page * TOKENS);
        if constexpr (SCALED) scale_pages(block, keys, head_dim, true);
        for (int32_t p = 0; p < PAGES && page + p <= last_page; ++p) {
            all_values<Element>(block, {block.scores[p][0], block.factors[p], block.valid[p],
                                        keys[p] + page_keys, ahead[p] + page_keys, head_dim});
        }
    }
    finish_block<Element>(block, call, head_dim, first_vector);
}

// The last vectors of a call, fewer than a full block: four at once, then what is left. Fewer sizes
// than there could be, because each is some kilobytes of code.
template <class Element, int32_t VECTORS>
void attend_rest(const AttentionCall& call, const KvLayout& layout, int32_t first, int32_t count) {
    if (count >= VECTORS) {
        attend_block<Element, VECTORS>(call, layout, first);
        first += VECTORS;
        count -= VECTORS;
    }
    if constexpr (VECTORS > 1) {
        if (count > 0) attend_rest<Element, VECTORS - 1>(call, layout, first, count);
    }
}

template <class Element>
void attend_all(const AttentionCall& call, const KvLayout& layout) {
    const int32_t vectors = call.row_count * call.group_heads;
    int32_t first = 0;
    for (; first + BLOCK_VECTORS <= vectors; first += BLOCK_VECTORS) {
        attend_block<Element, BLOCK_VECTORS>(call, layout, first);
    }
    attend_rest<Element, BLOCK_VECTORS / 2>(call, layout, first, vectors - first);
}

void attention(const AttentionCall& call, const KvLayout& layout) {
    KERNEL_CHECK(layout.head_dim > 0 && layout.head_dim <= HEAD_DIM_MAX &&
                     layout.head_dim % LANES == 0,
                 "a head has 16, 32, ... 256 channels");
    KERNEL_CHECK(call.first_position >= 0 && call.row_count >= 0, "positions count from 0");
    KERNEL_CHECK(call.window >= 0 && call.soft_cap >= 0.0f, "neither is negative");
    KERNEL_CHECK(call.group_heads >= 1 && call.kv_head < layout.kv_heads, "heads that exist");
    if (layout.type == KvType::bf16) {
        attend_all<uint16_t>(call, layout);
    } else if (layout.type == KvType::int8) {
        attend_all<int8_t>(call, layout);
    } else {
        attend_all<float>(call, layout);
    }
}

} // namespace
} // namespace sublimate::cpu

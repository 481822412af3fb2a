// The prompt's attention on tiles: 32 query vectors (heads of rows that share a KV head) at once,
// both products in bf16 with fp32 sums, an online softmax between them. Keys and values become
// tiles once and serve all vectors of the call.
//
// Spans of 4 pages, fixed by absolute position, are rescaled together. A tile row is one vector, so
// that no vector's bits depend on the others or on how a prompt was cut. Order, per vector:
//   q = bf16(query * scale)
//   per span of 128 tokens in order:
//     score = for each 32 channels in order: score + (even + odd), two chains of fused
//             multiply-adds over the even and the odd channels (TDPBF16PS, Intel SDM volume 2:
//             subnormals count as zero on both sides)
//     m' = max(m, scores); f = exp(m - m'); w = exp(score - m')
//     s[j] = sum over the span's pages in order of (w[2j] + w[2j+1]), 16 lanes; l = fma(l, f, s)
//     o = o * f; per page in order: o + (even + odd) as above, over tokens, of bf16(w) and values
//   out = o * (1 / reduction of l) + 0, so that no zero is negative
//
// A page's words of two channels (for values: two tokens) interleave without a shuffle if one tile
// takes the even tokens (channels) and the other the odd ones.
//
// defines: attention_tiles
#pragma once

#include "tiles.inl.h"

namespace sublimate::cpu {
namespace {

constexpr int32_t TILE_HEAD_DIM_MAX = 256;
constexpr int32_t TILE_VECTORS_MAX = 128; // of a pass: their queries and sums stay in L2
constexpr int32_t SPAN_PAGES = 4;
constexpr int32_t SPAN_TOKENS = SPAN_PAGES * limits::PAGE_TOKENS;
constexpr int32_t STEP_CHANNELS = 32; // of one tile operation
constexpr uint32_t LOW_WORD = 0x0000ffffu;
constexpr uint32_t HIGH_WORD = 0xffff0000u;

static_assert(limits::PAGE_TOKENS == TILE_BLOCK, "a page's scores are one register block");
static_assert(limits::PAGE_TOKENS == 2 * TILE_ROWS, "a page's values are one tile deep");
static_assert(TILE_VECTORS_MAX % TILE_BLOCK == 0);

// One page's keys or values of one head: per 32 channels the even and the odd tile.
struct PageTiles {
    alignas(64) uint16_t words[TILE_HEAD_DIM_MAX / STEP_CHANNELS][BLOCK_TILES][TILE_WORDS];
};

// What one thread needs while it runs, on its stack.
struct AttentionBuffers {
    alignas(64) uint16_t query[TILE_VECTORS_MAX * TILE_HEAD_DIM_MAX]; // (vector, channel) bf16
    alignas(64) float out[TILE_VECTORS_MAX * TILE_HEAD_DIM_MAX];      // likewise; even, then odd
    PageTiles keys[SPAN_PAGES];
    PageTiles values[SPAN_PAGES];
    alignas(64) float scores[TILE_BLOCK * SPAN_TOKENS];     // (vector, page, even and odd tokens)
    alignas(64) uint16_t weights[TILE_BLOCK * SPAN_TOKENS]; // (vector, token) bf16
    alignas(64) float maxima[TILE_VECTORS_MAX];
    alignas(64) float before[TILE_BLOCK];
    alignas(64) float factors[TILE_BLOCK];
    Lanes sums[TILE_VECTORS_MAX];
};

// Rows of a call that run together.
struct Pass {
    const AttentionCall& call;
    const KvLayout& layout;
    int32_t first_row;
    int32_t rows;
    int32_t first_head; // of the call's
    int32_t heads;

    int32_t vectors() const { return rows * heads; }
    int32_t steps() const { return (layout.head_dim + STEP_CHANNELS - 1) / STEP_CHANNELS; }
    int32_t stride() const { return steps() * STEP_CHANNELS; }
    int32_t row_of(int32_t vector) const { return first_row + vector / heads; }
    int32_t tokens(int32_t vector) const { return call.first_position + row_of(vector) + 1; }
    int64_t channel_of(int32_t vector) const {
        return int64_t{call.query_head + first_head + vector % heads} * layout.head_dim;
    }
    const uint16_t* page(int32_t index) const {
        const int64_t head = int64_t{call.page_table[index]} * layout.kv_heads + call.kv_head;
        return reinterpret_cast<const uint16_t*>(call.pages + head * layout.head_bytes);
    }
};

struct Interleaved {
    LanesBits even;
    LanesBits odd;
};
// (first, second) of the words at even places, and of those at odd places.
INLINE Interleaved interleave(LanesBits first, LanesBits second) {
    return {(first & splat_bits(LOW_WORD)) | shift_left(second, 16),
            shift_right(first, 16) | (second & splat_bits(HIGH_WORD))};
}

// Row k of a tile holds channels 2k and 2k + 1; channels past the head's last are zero.
INLINE void pack_keys(const uint16_t* keys, int32_t head_dim, PageTiles& to) {
    for (int32_t c = 0; c < head_dim || c % STEP_CHANNELS != 0; c += 2) {
        Interleaved pair = {splat_bits(0), splat_bits(0)};
        if (c < head_dim) {
            const uint16_t* line = keys + int64_t{c} * limits::PAGE_TOKENS;
            pair = interleave(load_bits(line), load_bits(line + limits::PAGE_TOKENS));
        }
        auto& tiles = to.words[c / STEP_CHANNELS];
        const int32_t at = c % STEP_CHANNELS * TILE_ROWS;
        store_bits(tiles[0] + at, pair.even);
        store_bits(tiles[1] + at, pair.odd);
    }
}

// Row k of a tile holds tokens 2k and 2k + 1; tokens past the known ones are zero: a weight of zero
// does not make a NaN vanish.
INLINE void pack_values(const uint16_t* values, int32_t head_dim, int32_t known, PageTiles& to) {
    const auto line = [&](int32_t token, int32_t channel) {
        const uint16_t* from = values + int64_t{token} * head_dim + channel;
        if (token >= known) return splat_bits(0);
        return channel + STEP_CHANNELS <= head_dim ? load_bits(from) : load_bits_half(from);
    };
    for (int32_t token = 0; token < limits::PAGE_TOKENS; token += 2) {
        for (int32_t c = 0; c < head_dim; c += STEP_CHANNELS) {
            const Interleaved pair = interleave(line(token, c), line(token + 1, c));
            auto& tiles = to.words[c / STEP_CHANNELS];
            store_bits(tiles[0] + token * TILE_ROWS, pair.even);
            store_bits(tiles[1] + token * TILE_ROWS, pair.odd);
        }
    }
}

INLINE bool finite(const PageTiles& tiles, int32_t steps) {
    constexpr uint32_t EXPONENT = 0x7f800000u;
    LanesBits bad = splat_bits(0);
    const uint16_t* words = tiles.words[0][0];
    for (int32_t i = 0; i < steps * BLOCK_TILES * TILE_WORDS; i += 2 * LANES) {
        const LanesBits two = load_bits(words + i);
        const LanesBits high = two & splat_bits(EXPONENT);
        const LanesBits low = shift_left(two, 16) & splat_bits(EXPONENT);
        bad = bad | greater_bits(high, splat_bits(EXPONENT - 1));
        bad = bad | greater_bits(low, splat_bits(EXPONENT - 1));
    }
    return max_lanes_bits(bad) == 0;
}

// Queries as bf16 and nothing summed yet; vectors and channels that fill up a block are zero.
template <class Machine>
INLINE void start_pass(const Pass& pass, AttentionBuffers& buffers) {
    const int32_t stride = pass.stride();
    const int32_t whole = (pass.vectors() + TILE_BLOCK - 1) / TILE_BLOCK * TILE_BLOCK;
    for (int32_t v = 0; v < whole; ++v) {
        const bool exists = v < pass.vectors();
        const float* query = pass.call.query;
        if (exists) query += pass.row_of(v) * pass.call.query_stride + pass.channel_of(v);
        for (int32_t c = 0; c < stride; c += LANES) {
            const bool inside = exists && c < pass.layout.head_dim;
            Machine::store_bf16(buffers.query + v * stride + c,
                                inside ? load(query + c) * splat(pass.call.scale) : splat(0.0f));
            store(buffers.out + v * stride + c, splat(0.0f));
        }
        buffers.maxima[v] = NEGATIVE_INFINITY;
        buffers.sums[v] = splat(0.0f);
    }
}

// Whether every value that is some row's future is a number: if not, the rows cannot share tiles.
INLINE bool pack_span(const Pass& pass, int32_t first_page, int32_t pages,
                      AttentionBuffers& buffers) {
    const int32_t head_dim = pass.layout.head_dim;
    const int32_t all_tokens = pass.tokens(pass.vectors() - 1);
    for (int32_t p = 0; p < pages; ++p) {
        const uint16_t* keys = pass.page(first_page + p);
        const int32_t first_token = (first_page + p) * limits::PAGE_TOKENS;
        const int32_t left = all_tokens - first_token;
        const int32_t known = left < limits::PAGE_TOKENS ? left : limits::PAGE_TOKENS;
        pack_keys(keys, head_dim, buffers.keys[p]);
        pack_values(keys + int64_t{head_dim} * limits::PAGE_TOKENS, head_dim, known,
                    buffers.values[p]);
        const bool shared = first_token + known > pass.tokens(0);
        if (shared && !finite(buffers.values[p], pass.steps())) return false;
    }
    return true;
}

// What happens to 32 vectors in one span.
struct SpanBlock {
    const Pass& pass;
    AttentionBuffers& buffers;
    int32_t first; // vector
    int32_t count;
    int32_t first_token;
    int32_t pages; // that some vector sees
};

template <class Machine>
INLINE void span_scores(Machine& machine, const SpanBlock& block) {
    const int32_t stride = block.pass.stride();
    const uint16_t* query = block.buffers.query + int64_t{block.first} * stride;
    for (int32_t p = 0; p < block.pages; ++p) {
        machine.clear_sums();
        for (int32_t step = 0; step < block.pass.steps(); ++step) {
            const auto& tiles = block.buffers.keys[p].words[step];
            machine.load_rows(query + step * STEP_CHANNELS, stride);
            machine.load_weights(tiles[0], tiles[1]);
            machine.multiply();
        }
        machine.store_sums(block.buffers.scores + p * limits::PAGE_TOKENS, SPAN_TOKENS);
    }
}

// Scores of tokens that the vector does not see become -infinity, whatever they were; moves the
// maximum.
INLINE void mask_span(const SpanBlock& block, int32_t i) {
    float* scores = block.buffers.scores + i * SPAN_TOKENS;
    const int32_t tokens = block.pass.tokens(block.first + i) - block.first_token;
    const LanesBits limit = splat_bits(static_cast<uint32_t>(tokens < 0 ? 0 : tokens));
    Lanes best = splat(NEGATIVE_INFINITY);
    for (int32_t p = 0; p < block.pages; ++p) {
        for (int32_t odd = 0; odd < 2; ++odd) {
            float* at = scores + p * limits::PAGE_TOKENS + odd * LANES;
            Lanes score = load(at);
            if (tokens < (p + 1) * limits::PAGE_TOKENS) {
                const auto first = static_cast<uint32_t>(p * limits::PAGE_TOKENS + odd);
                const LanesBits token = lane_numbers() + lane_numbers() + splat_bits(first);
                score = select(greater_bits(limit, token), score, splat(NEGATIVE_INFINITY));
                store(at, score);
            }
            best = greatest(score, best);
        }
    }
    float& maximum = block.buffers.maxima[block.first + i];
    const float candidate = max_lanes(best);
    block.buffers.before[i] = maximum;
    maximum = candidate > maximum ? candidate : maximum;
}

// Scores to weights; moves the sums and rescales what earlier spans left.
template <class Machine>
INLINE void span_softmax(const SpanBlock& block) {
    AttentionBuffers& buffers = block.buffers;
    for (int32_t i = 0; i < block.count; ++i) mask_span(block, i);
    for (int32_t i = 0; i < block.count; i += LANES) {
        const Lanes change = load(buffers.before + i) - load(buffers.maxima + block.first + i);
        store(buffers.factors + i, exp_lanes(change));
    }
    for (int32_t i = 0; i < block.count; ++i) {
        const float* scores = buffers.scores + i * SPAN_TOKENS;
        const Lanes maximum = splat(buffers.maxima[block.first + i]);
        Lanes sum = splat(0.0f);
        for (int32_t p = 0; p < block.pages; ++p) {
            const float* at = scores + p * limits::PAGE_TOKENS;
            const Lanes even = exp_lanes(load(at) - maximum);
            const Lanes odd = exp_lanes(load(at + LANES) - maximum);
            sum = sum + (even + odd);
            store_bits(buffers.weights + i * SPAN_TOKENS + p * limits::PAGE_TOKENS,
                       Machine::bf16_pairs(even, odd));
        }
        const float factor = buffers.factors[i];
        Lanes& sums = buffers.sums[block.first + i];
        sums = fma(sums, splat(factor), sum);
        if (factor == 1.0f) continue;
        float* out = buffers.out + int64_t{block.first + i} * block.pass.stride();
        for (int32_t c = 0; c < block.pass.stride(); c += LANES) {
            store(out + c, load(out + c) * splat(factor));
        }
    }
}

template <class Machine>
INLINE void span_values(Machine& machine, const SpanBlock& block) {
    const int32_t stride = block.pass.stride();
    for (int32_t step = 0; step < block.pass.steps(); ++step) {
        float* out = block.buffers.out + int64_t{block.first} * stride + step * STEP_CHANNELS;
        machine.load_sums(out, stride);
        for (int32_t p = 0; p < block.pages; ++p) {
            const auto& tiles = block.buffers.values[p].words[step];
            machine.load_rows(block.buffers.weights + p * limits::PAGE_TOKENS, SPAN_TOKENS);
            machine.load_weights(tiles[0], tiles[1]);
            machine.multiply();
        }
        machine.store_sums(out, stride);
    }
}

INLINE void finish_pass(const Pass& pass, const AttentionBuffers& buffers) {
    for (int32_t v = 0; v < pass.vectors(); ++v) {
        const float* from = buffers.out + int64_t{v} * pass.stride();
        float* to = pass.call.out + pass.row_of(v) * pass.call.out_stride + pass.channel_of(v);
        const float inverse = 1.0f / sum_lanes(buffers.sums[v]);
        for (int32_t c = 0; c < pass.layout.head_dim; c += STEP_CHANNELS) {
            const int32_t left = pass.layout.head_dim - c;
            const int32_t pairs = (left < STEP_CHANNELS ? left : STEP_CHANNELS) / 2;
            for (int32_t i = 0; i < pairs; ++i) {
                to[c + 2 * i] = from[c + i] * inverse + 0.0f;
                to[c + 2 * i + 1] = from[c + LANES + i] * inverse + 0.0f;
            }
        }
    }
}

// False if the rows cannot share tiles; nothing was written then.
template <class Machine>
bool attend_pass(Machine& machine, const Pass& pass, AttentionBuffers& buffers) {
    start_pass<Machine>(pass, buffers);
    const int32_t all_pages =
        (pass.tokens(pass.vectors() - 1) + limits::PAGE_TOKENS - 1) / limits::PAGE_TOKENS;
    for (int32_t page = 0; page < all_pages; page += SPAN_PAGES) {
        const int32_t left = all_pages - page;
        const int32_t pages = left < SPAN_PAGES ? left : SPAN_PAGES;
        if (!pack_span(pass, page, pages, buffers)) return false;
        Machine::buffers_written();
        const int32_t first_token = page * limits::PAGE_TOKENS;
        for (int32_t first = 0; first < pass.vectors(); first += TILE_BLOCK) {
            const int32_t rest = pass.vectors() - first;
            const int32_t count = rest < TILE_BLOCK ? rest : TILE_BLOCK;
            const int32_t seen = pass.tokens(first + count - 1) - first_token;
            if (seen <= 0) continue;
            const int32_t seen_pages = (seen + limits::PAGE_TOKENS - 1) / limits::PAGE_TOKENS;
            const SpanBlock block{pass,  buffers,     first,
                                  count, first_token, seen_pages < pages ? seen_pages : pages};
            span_scores(machine, block);
            span_softmax<Machine>(block);
            Machine::buffers_written();
            span_values(machine, block);
        }
    }
    finish_pass(pass, buffers);
    return true;
}

template <class Machine>
void attention_tiles(const AttentionCall& call, const KvLayout& layout) {
    KERNEL_CHECK(layout.head_dim > 0 && layout.head_dim <= TILE_HEAD_DIM_MAX &&
                     layout.head_dim % LANES == 0,
                 "a head has 16, 32, ... 256 channels");
    KERNEL_CHECK(layout.type == KvType::bf16, "tiles hold bf16");
    KERNEL_CHECK(call.first_position >= 0 && call.row_count >= 0, "positions count from 0");
    KERNEL_CHECK(call.group_heads >= 1 && call.kv_head < layout.kv_heads, "heads that exist");
    Machine machine;
    AttentionBuffers buffers;
    for (int32_t head = 0; head < call.group_heads; head += TILE_VECTORS_MAX) {
        const int32_t left = call.group_heads - head;
        const int32_t heads = left < TILE_VECTORS_MAX ? left : TILE_VECTORS_MAX;
        const int32_t rows_max = TILE_VECTORS_MAX / heads;
        for (int32_t row = 0; row < call.row_count; row += rows_max) {
            const int32_t rest = call.row_count - row;
            const int32_t rows = rest < rows_max ? rest : rows_max;
            if (attend_pass(machine, {call, layout, row, rows, head, heads}, buffers)) continue;
            for (int32_t i = 0; i < rows; ++i) {
                attend_pass(machine, {call, layout, row + i, 1, head, heads}, buffers);
            }
        }
    }
}

} // namespace
} // namespace sublimate::cpu

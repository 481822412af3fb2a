// The primitives that are one pass over a row, written once over sixteen lanes: each instruction
// set's object includes this after its own lanes header. ref.cpp is the twin of every function
// here.
//
// defines: rms_norm, quantise, add_halves, to_bf16, rope, kv_append, swiglu, geglu, add, argmax,
// max_value, sum_exp, all_finite,
//          gumbel_argmax
#pragma once

#include "lanes.inl.h"
#include "numbers.h"
#include "tables.h"

namespace sublimate::cpu {
namespace {

constexpr float QUANTISED_MAX = 127.0f;
constexpr float SMALLEST_NORMAL = 0x1p-126f;
constexpr float SILU_EXPONENT_MAX = 80.0f;
constexpr float GELU_CUBE = 0.044715f;
constexpr float GELU_EXPONENT = -1.5957691216057308f; // -2 sqrt(2 / pi)
constexpr uint32_t MAGNITUDE_BITS = 0x7fffffffu;
constexpr uint32_t SIGN_BIT = 0x80000000u;
constexpr uint32_t EXPONENT_BITS = 0x7f800000u;
static_assert(GROUP_COLUMNS == 2 * LANES, "quantise takes a group as two values");
constexpr int32_t NOISE_RUN = 64; // consecutive ids whose noise one Philox call of 16 lanes yields

// Calls body(lanes, first, count) over [0, count): full runs of 16, then the tail with zeros behind
// it.
template <class Body>
INLINE void for_lanes(int32_t count, Body&& body) {
    int32_t i = 0;
    for (; i + LANES <= count; i += LANES) body(i, LANES);
    if (i < count) body(i, count - i);
}
INLINE Lanes load_run(const float* from, int32_t count) {
    return count == LANES ? load(from) : load_first(from, count);
}
INLINE void store_run(float* to, Lanes value, int32_t count) {
    if (count == LANES) {
        store(to, value);
    } else {
        store_first(to, value, count);
    }
}

void rms_norm(const float* x, const float* weight, float epsilon, int32_t columns, float* out) {
    Lanes sums = splat(0.0f);
    for_lanes(columns, [&](int32_t i, int32_t count) {
        const Lanes value = load_run(x + i, count);
        sums = fma(value, value, sums);
    });
    const float mean = sum_lanes(sums) / static_cast<float>(columns);
    const Lanes inverse = splat(1.0f / __builtin_sqrtf(mean + epsilon));
    for_lanes(columns, [&](int32_t i, int32_t count) {
        const Lanes scaled = load_run(x + i, count) * inverse;
        store_run(out + i, scaled * load_run(weight + i, count), count);
    });
}

void quantise(const float* x, int32_t columns, int8_t* values, float* scales, int32_t* sums) {
    KERNEL_CHECK(columns % GROUP_COLUMNS == 0, "a row to quantise is whole groups of 32");
    const Lanes magic = splat(EXP_ROUND_MAGIC);
    const LanesBits magnitude = splat_bits(MAGNITUDE_BITS);
    for (int32_t group = 0; group < columns / GROUP_COLUMNS; ++group) {
        const Lanes low = load(x + int64_t{group} * GROUP_COLUMNS);
        const Lanes high = load(x + int64_t{group} * GROUP_COLUMNS + LANES);
        // As integers, so that a NaN is the largest and reaches the scale instead of being lost.
        const LanesBits low_bits = bits_of(low) & magnitude;
        const LanesBits high_bits = bits_of(high) & magnitude;
        const uint32_t largest =
            max_lanes_bits(select_bits(greater_bits(low_bits, high_bits), low_bits, high_bits));
        const float scale = __builtin_bit_cast(float, largest) / QUANTISED_MAX;
        const bool usable = scale >= SMALLEST_NORMAL && scale < __builtin_inff();
        const Lanes inverse = splat(1.0f / scale);
        LanesBits mask = splat_bits(usable ? ~0u : 0u); // also clears what x / 0 or a NaN left
        const Lanes low_value = floats_of(mask & bits_of((low * inverse + magic) - magic));
        const Lanes high_value = floats_of(mask & bits_of((high * inverse + magic) - magic));
        int8_t* to = values + int64_t{group} * GROUP_COLUMNS;
        const LanesBits sum = store_int8(to, low_value) + store_int8(to + LANES, high_value);
        scales[group] = scale < SMALLEST_NORMAL ? 0.0f : scale;
        sums[group] = sum_lanes_signed(sum);
    }
}

void add_halves(const int8_t* values, int32_t columns, int32_t* half_sums) {
    KERNEL_CHECK(columns % GROUP_COLUMNS == 0, "whole groups of 32");
    constexpr int32_t AT_ONCE = 64;
    int32_t i = 0;
    for (; i + AT_ONCE <= columns; i += AT_ONCE) store_sums_of_16(half_sums + i / 16, values + i);
    if (i == columns) return;
    int8_t last[AT_ONCE] = {}; // half of it is there
    int32_t sums[AT_ONCE / 16];
    __builtin_memcpy(last, values + i, GROUP_COLUMNS);
    store_sums_of_16(sums, last);
    __builtin_memcpy(half_sums + i / 16, sums, 2 * sizeof(int32_t));
}

// Left to the compiler: the numbers are few and the words have no lanes type.
void to_bf16(const float* x, int32_t count, uint16_t* out) {
    for (int32_t i = 0; i < count; ++i) out[i] = float_to_bf16(x[i]);
}

// Even lanes: x0 * cos - x1 * sin; odd lanes: x1 * cos + x0 * sin; the second product is rounded
// first.
INLINE Lanes rotate(Lanes x, Lanes cos_sin) {
    Lanes cosine, sine, swapped;
    for (int32_t i = 0; i < PARTS; ++i) {
        cosine.part[i] = part_even(cos_sin.part[i]);
        sine.part[i] = part_odd(cos_sin.part[i]);
        swapped.part[i] = part_swap(x.part[i]);
    }
    const LanesBits odd = lane_numbers() & splat_bits(1);
    const LanesBits negate_even = shift_left(odd, 31) ^ splat_bits(SIGN_BIT);
    return fma(x, cosine, floats_of(bits_of(swapped * sine) ^ negate_even));
}

void rope(float* x, const float* cos_sin, int32_t heads, int32_t head_dim, int32_t rope_dim) {
    KERNEL_CHECK(rope_dim % 2 == 0 && rope_dim <= head_dim, "pairs within a head are rotated");
    for (int32_t head = 0; head < heads; ++head) {
        float* row = x + int64_t{head} * head_dim;
        for_lanes(rope_dim, [&](int32_t i, int32_t count) {
            store_run(row + i, rotate(load_run(row + i, count), load_run(cos_sin + i, count)),
                      count);
        });
    }
}

void hadamard(float* x, int32_t heads, int32_t head_dim) {
    const float* end = x + int64_t{heads} * head_dim;
    for (int32_t block = 0, left = 0; x < end; x += block) {
        if (left == 0) left = head_dim;
        for (block = 1; 2 * block <= left;) block *= 2;
        left -= block;
        for (int32_t half = 1; half < block; half *= 2) {
            for (int32_t first = 0; first < block; first += 2 * half) {
                for (int32_t i = first; i < first + half; ++i) {
                    const float a = x[i];
                    const float b = x[i + half];
                    x[i] = a + b;
                    x[i + half] = a - b;
                }
            }
        }
        const float scale = hadamard_scale(block);
        for (int32_t i = 0; i < block; ++i) x[i] *= scale;
    }
}

template <class Element>
INLINE Element kv_element(float value) {
    if constexpr (sizeof(Element) == sizeof(float)) return value;
    if constexpr (sizeof(Element) != sizeof(float)) return float_to_bf16(value);
}

// One key is one lane of every channel's line: single stores, a cache line apart.
template <class Element>
INLINE void append_head(const float* key, const float* value, Element* keys, int32_t head_dim,
                        int32_t lane) {
    Element* values = keys + int64_t{head_dim} * limits::PAGE_TOKENS;
    for (int32_t c = 0; c < head_dim; ++c) {
        keys[int64_t{c} * limits::PAGE_TOKENS + lane] = kv_element<Element>(key[c]);
    }
    for (int32_t c = 0; c < head_dim; ++c) {
        values[int64_t{lane} * head_dim + c] = kv_element<Element>(value[c]);
    }
}

// As quantise, over a whole head; returns the scale.
INLINE float quantise_head(const float* x, int32_t head_dim, int8_t* values) {
    LanesBits largest = splat_bits(0);
    for (int32_t c = 0; c < head_dim; c += LANES) {
        const LanesBits bits = bits_of(load(x + c)) & splat_bits(MAGNITUDE_BITS);
        largest = select_bits(greater_bits(bits, largest), bits, largest);
    }
    const float scale = __builtin_bit_cast(float, max_lanes_bits(largest)) / QUANTISED_MAX;
    const bool usable = scale >= SMALLEST_NORMAL && scale < __builtin_inff();
    const Lanes inverse = splat(1.0f / scale);
    const Lanes magic = splat(EXP_ROUND_MAGIC);
    const LanesBits mask = splat_bits(usable ? ~0u : 0u);
    for (int32_t c = 0; c < head_dim; c += LANES) {
        const Lanes rounded = (load(x + c) * inverse + magic) - magic;
        store_int8(values + c, floats_of(mask & bits_of(rounded)));
    }
    return scale < SMALLEST_NORMAL ? 0.0f : scale;
}

INLINE void append_head_int8(const float* key, const float* value, int8_t* keys, int32_t head_dim,
                             int32_t lane) {
    int8_t* values = keys + int64_t{head_dim} * limits::PAGE_TOKENS;
    auto* scales = reinterpret_cast<float*>(values + int64_t{head_dim} * limits::PAGE_TOKENS);
    int8_t quantised[limits::HEAD_DIM_MAX];
    scales[lane] = quantise_head(key, head_dim, quantised);
    for (int32_t c = 0; c < head_dim; ++c) {
        keys[int64_t{c} * limits::PAGE_TOKENS + lane] = quantised[c];
    }
    scales[limits::PAGE_TOKENS + lane] =
        quantise_head(value, head_dim, values + int64_t{lane} * head_dim);
}

void kv_append(const float* key, const float* value, const KvLayout& layout, std::byte* pages,
               int32_t page, int32_t lane) {
    KERNEL_CHECK(layout.head_dim <= limits::HEAD_DIM_MAX && layout.head_dim % LANES == 0,
                 "a head has 16, 32, ... 256 channels");
    KERNEL_CHECK(lane >= 0 && lane < limits::PAGE_TOKENS, "a page has 32 lanes");
    KERNEL_CHECK(page >= 0, "a page that exists");
    for (int32_t head = 0; head < layout.kv_heads; ++head) {
        const int64_t head_index = int64_t{page} * layout.kv_heads + head;
        std::byte* base = pages + head_index * layout.head_bytes;
        const int64_t from = int64_t{head} * layout.head_dim;
        if (layout.type == KvType::bf16) {
            append_head(key + from, value + from, reinterpret_cast<uint16_t*>(base),
                        layout.head_dim, lane);
        } else if (layout.type == KvType::int8) {
            append_head_int8(key + from, value + from, reinterpret_cast<int8_t*>(base),
                             layout.head_dim, lane);
        } else {
            append_head(key + from, value + from, reinterpret_cast<float*>(base), layout.head_dim,
                        lane);
        }
    }
}

void swiglu(const float* gate, const float* up, int32_t count, float* out) {
    const Lanes most = splat(SILU_EXPONENT_MAX);
    for_lanes(count, [&](int32_t i, int32_t n) {
        const Lanes g = load_run(gate + i, n);
        const Lanes negated = floats_of(bits_of(g) ^ splat_bits(SIGN_BIT));
        const Lanes e = exp_lanes(select(greater(negated, most), most, negated));
        store_run(out + i, (g / (splat(1.0f) + e)) * load_run(up + i, n), n);
    });
}

void geglu(const float* gate, const float* up, int32_t count, float* out) {
    const Lanes most = splat(SILU_EXPONENT_MAX);
    for_lanes(count, [&](int32_t i, int32_t n) {
        const Lanes g = load_run(gate + i, n);
        const Lanes inner = fma(g * g * g, splat(GELU_CUBE), g) * splat(GELU_EXPONENT);
        const Lanes e = exp_lanes(select(greater(inner, most), most, inner));
        store_run(out + i, (g / (splat(1.0f) + e)) * load_run(up + i, n), n);
    });
}

void add(float* x, const float* y, int32_t count) {
    for_lanes(count, [&](int32_t i, int32_t n) {
        store_run(x + i, load_run(x + i, n) + load_run(y + i, n), n);
    });
}

// ---- sampler ----------------------------------------------------------------------------------

// The best score of each lane so far and the index it stood at; the lowest index wins a tie.
struct Best {
    Lanes score = splat(NEGATIVE_INFINITY);
    LanesBits index = splat_bits(0);

    INLINE void offer(Lanes candidate, LanesBits at) {
        take(greater(candidate, score), candidate, at);
    }
    // Likewise, where indices do not ascend.
    INLINE void offer_in_any_order(Lanes candidate, LanesBits at) {
        const LanesBits tie = at_least(candidate, score) & at_least(score, candidate);
        take(greater(candidate, score) | (tie & greater_bits(index, at)), candidate, at);
    }
    INLINE void take(LanesBits better, Lanes candidate, LanesBits at) {
        score = select(better, candidate, score);
        index = select_bits(better, at, index);
    }

    int32_t lowest_index(float* winner) const {
        float scores[LANES];
        uint32_t indices[LANES];
        store(scores, score);
        store_bits(indices, index);
        int32_t best = 0;
        for (int32_t i = 1; i < LANES; ++i) {
            const bool tie = scores[i] == scores[best] && indices[i] < indices[best];
            if (scores[i] > scores[best] || tie) best = i;
        }
        *winner = scores[best];
        return static_cast<int32_t>(indices[best]);
    }
};

// Lanes past the end become -infinity, which nothing can lose to.
INLINE Lanes load_logits(const float* from, int32_t count) {
    if (count == LANES) return load(from);
    const LanesBits inside = greater_bits(splat_bits(static_cast<uint32_t>(count)), lane_numbers());
    return select(inside, load_first(from, count), splat(NEGATIVE_INFINITY));
}

// A NaN is never greater, so it is never chosen; without any number above -infinity the answer is
// 0.
int32_t argmax(const float* logits, int32_t count) {
    Best best;
    for_lanes(count, [&](int32_t i, int32_t n) {
        best.offer(load_logits(logits + i, n),
                   lane_numbers() + splat_bits(static_cast<uint32_t>(i)));
    });
    float winner = 0.0f;
    return best.lowest_index(&winner);
}

float max_value(const float* logits, int32_t count) {
    Lanes best = splat(NEGATIVE_INFINITY);
    for_lanes(count,
              [&](int32_t i, int32_t n) { best = greatest(load_logits(logits + i, n), best); });
    return max_lanes(best);
}

float sum_exp(const float* logits, int32_t count, float maximum, float inverse_temperature) {
    Lanes sums = splat(0.0f);
    for_lanes(count, [&](int32_t i, int32_t n) {
        const Lanes x = (load_logits(logits + i, n) - splat(maximum)) * splat(inverse_temperature);
        const Lanes e = exp_lanes(x);
        // Unlike attention's, the sampler's exponential turns a NaN into zero.
        sums = sums + floats_of(bits_of(e) & at_least(x, splat(EXP_ARGUMENT_MIN)));
    });
    return sum_lanes(sums);
}

bool all_finite(const float* logits, int32_t count) {
    LanesBits bad = splat_bits(0);
    const LanesBits exponent = splat_bits(EXPONENT_BITS);
    for_lanes(count, [&](int32_t i, int32_t n) {
        const LanesBits bits = bits_of(load_run(logits + i, n)) & exponent;
        bad = bad | greater_bits(bits, splat_bits(EXPONENT_BITS - 1));
    });
    return max_lanes_bits(bad) == 0;
}

struct WideProduct {
    LanesBits high;
    LanesBits low;
};

INLINE WideProduct multiply_wide(LanesBits a, uint32_t factor) {
    WideProduct r;
    for (int32_t i = 0; i < PARTS; ++i) {
        const PartWide lanes = reinterpret_cast<PartWide>(a.part[i]);
        const PartWide even = part_multiply(lanes, factor);
        const PartWide odd = part_multiply(lanes >> 32, factor);
        const PartWide low_mask = PartWide{} + 0xffffffffu;
        r.low.part[i] = reinterpret_cast<PartBits>((even & low_mask) | (odd << 32));
        r.high.part[i] = reinterpret_cast<PartBits>((even >> 32) | (odd & ~low_mask));
    }
    return r;
}

struct NoiseBlock {
    LanesBits word[4];
};

// Philox4x32-10 in every lane: word w, lane i belongs to id first + 16 w + i (see loop/gumbel.h).
INLINE NoiseBlock noise_bits(uint64_t seed, int32_t position, int32_t first) {
    const uint32_t block = static_cast<uint32_t>(first) / NOISE_RUN * LANES;
    NoiseBlock c = {{lane_numbers() + splat_bits(block),
                     splat_bits(static_cast<uint32_t>(position)), splat_bits(0), splat_bits(0)}};
    uint32_t key_0 = static_cast<uint32_t>(seed);
    uint32_t key_1 = static_cast<uint32_t>(seed >> 32);
    for (int32_t round = 0; round < PHILOX_ROUNDS; ++round) {
        const WideProduct a = multiply_wide(c.word[0], PHILOX_MULTIPLIER_0);
        const WideProduct b = multiply_wide(c.word[2], PHILOX_MULTIPLIER_1);
        c = {{b.high ^ c.word[1] ^ splat_bits(key_0), b.low, a.high ^ c.word[3] ^ splat_bits(key_1),
              a.low}};
        key_0 += PHILOX_WEYL_0;
        key_1 += PHILOX_WEYL_1;
    }
    return c;
}

INLINE Lanes gumbel_lanes(LanesBits bits) {
    const Lanes whole = floats_from_signed(shift_right(bits, 9));
    const Lanes uniform = (whole + splat(0.5f)) * splat(UNIFORM_SCALE);
    const LanesBits sign = splat_bits(SIGN_BIT);
    const Lanes inner = floats_of(bits_of(log_lanes(uniform)) ^ sign);
    return floats_of(bits_of(log_lanes(inner)) ^ sign);
}

// The four words of a run of 64 ids; what is past the end or below the floor is -infinity.
struct LogitRun {
    Lanes word[NOISE_RUN / LANES];

    INLINE LogitRun(const float* logits, int32_t count, int32_t first, float floor) {
        for (int32_t w = 0; w < NOISE_RUN / LANES; ++w) {
            const int32_t left = count - first - w * LANES;
            const int32_t n = left < 0 ? 0 : (left < LANES ? left : LANES);
            const Lanes logit = load_logits(logits + first + (n == 0 ? 0 : w * LANES), n);
            word[w] = select(greater(splat(floor), logit), splat(NEGATIVE_INFINITY), logit);
        }
    }
};

// The uniform numbers that give noise above n / NOISE_STEPS, as the 23 bits they are made of, less
// some that rounding may have moved.
constexpr int32_t NOISE_STEPS = 4;
constexpr float NOISE_MARGIN = 0.01f; // far above the error of the logarithms
constexpr float SCORE_MARGIN = 1e-6f; // of a score, far above its rounding
struct NoiseTable {
    static constexpr int32_t ENTRIES = static_cast<int32_t>(GUMBEL_NOISE_MAX) * NOISE_STEPS;
    uint32_t least[ENTRIES];

    NoiseTable() {
        for (int32_t n = 0; n < ENTRIES; ++n) {
            const double noise = static_cast<double>(n) / NOISE_STEPS;
            const double bits = __builtin_exp(-__builtin_exp(-noise)) / double{UNIFORM_SCALE};
            least[n] = bits < 2.0 ? 0 : static_cast<uint32_t>(bits) - 2;
        }
    }
    // No id whose bits are below has noise of `gap` or more.
    INLINE uint32_t least_bits(float gap) const {
        const float steps = gap * static_cast<float>(NOISE_STEPS);
        if (!(steps >= 1.0f)) return 0;
        const auto n = static_cast<int32_t>(steps);
        return least[n < ENTRIES ? n : ENTRIES - 1];
    }
};

// A run of ids is left out where no logit could win with the largest noise there is, and its
// logarithms where none could with the noise it has. The run of the largest logit comes first: it
// is as good as certain to set a bound that rules most others out.
int32_t gumbel_argmax(const float* logits, int32_t count, float inverse_temperature, float floor,
                      uint64_t seed, int32_t position) {
    static_assert(NOISE_RUN == 4 * LANES, "one Philox block has four words");
    static const NoiseTable table;
    if (count <= 0) return -1;
    Best best;
    float leader = NEGATIVE_INFINITY;
    int32_t winner = -1;
    const Lanes inverse = splat(inverse_temperature);
    const auto visit = [&](int32_t first) {
        const LogitRun logit(logits, count, first, floor);
        Lanes most = logit.word[0];
        for (const Lanes& word : logit.word) most = greatest(word, most);
        const float largest = max_lanes(most);
        if (!(largest > NEGATIVE_INFINITY)) return;
        const float margin = NOISE_MARGIN + SCORE_MARGIN * __builtin_fabsf(leader);
        const float gap = leader - largest * inverse_temperature - margin;
        if (gap > GUMBEL_NOISE_MAX) return;
        const NoiseBlock noise = noise_bits(seed, position, first);
        const uint32_t least = table.least_bits(gap);
        LanesBits possible = splat_bits(least == 0 ? ~0u : 0u);
        for (int32_t w = 0; least > 0 && w < NOISE_RUN / LANES; ++w) {
            possible =
                possible | greater_bits(shift_right(noise.word[w], 9), splat_bits(least - 1));
        }
        if (max_lanes_bits(possible) == 0) return;
        for (int32_t w = 0; w < NOISE_RUN / LANES; ++w) {
            const Lanes score = fma(logit.word[w], inverse, gumbel_lanes(noise.word[w]));
            best.offer_in_any_order(
                score, lane_numbers() + splat_bits(static_cast<uint32_t>(first + w * LANES)));
        }
        winner = best.lowest_index(&leader);
    };
    const int32_t likely = argmax(logits, count) / NOISE_RUN * NOISE_RUN;
    visit(likely);
    for (int32_t first = 0; first < count; first += NOISE_RUN) {
        if (first != likely) visit(first);
    }
    return leader > NEGATIVE_INFINITY ? winner : -1;
}

} // namespace
} // namespace sublimate::cpu

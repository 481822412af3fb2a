// Sixteen lanes of float or uint32 as one value, on top of whatever register an instruction set
// has. The including header (lanes_portable, lanes_avx2, lanes_avx512) defines Part, PartBits,
// PARTS and a few operations first; all the rest is written once, with the compiler's vector
// operators.
//
// Everything lies in an unnamed namespace: the same names exist once per object, compiled for its
// instruction set, and must never be merged by the linker.
//
// defines: Lanes, LanesBits, splat, load, store, load_first, store_first, fma, greater, select,
// sum_lanes,
//          exp_lanes, log_lanes
#pragma once

#include "../loop/gumbel.h"

#include <cstddef>
#include <cstdint>

namespace sublimate::cpu {
namespace {

constexpr int32_t LANES = 16;
constexpr int32_t PART_LANES = LANES / PARTS;
constexpr float NEGATIVE_INFINITY = -__builtin_inff();
constexpr int32_t MANTISSA_BITS = 23;
constexpr uint32_t EXPONENT_BIAS = 127;

static_assert(sizeof(Part) * PARTS == LANES * sizeof(float));
static_assert(sizeof(PartBits) == sizeof(Part) && sizeof(PartSigned) == sizeof(Part));

struct Lanes {
    Part part[PARTS];
};
struct LanesBits {
    PartBits part[PARTS];
};

INLINE Lanes splat(float value) {
    Lanes r;
    for (int32_t i = 0; i < PARTS; ++i) r.part[i] = part_splat(value);
    return r;
}
INLINE LanesBits splat_bits(uint32_t value) {
    LanesBits r;
    for (int32_t i = 0; i < PARTS; ++i) r.part[i] = PartBits{} + value;
    return r;
}

// Part by part: a copy of the whole goes through memory in pieces that do not match its parts.
INLINE Lanes load(const float* from) {
    Lanes r;
    for (int32_t i = 0; i < PARTS; ++i) {
        __builtin_memcpy(&r.part[i], from + i * PART_LANES, sizeof(Part));
    }
    return r;
}
INLINE LanesBits load_bits(const void* from) {
    LanesBits r;
    for (int32_t i = 0; i < PARTS; ++i) {
        const auto* part = static_cast<const std::byte*>(from) + i * sizeof(Part);
        __builtin_memcpy(&r.part[i], part, sizeof(Part));
    }
    return r;
}
INLINE void store(float* to, Lanes value) {
    for (int32_t i = 0; i < PARTS; ++i) {
        __builtin_memcpy(to + i * PART_LANES, &value.part[i], sizeof(Part));
    }
}
INLINE void store_bits(void* to, LanesBits value) {
    for (int32_t i = 0; i < PARTS; ++i) {
        auto* part = static_cast<std::byte*>(to) + i * sizeof(Part);
        __builtin_memcpy(part, &value.part[i], sizeof(Part));
    }
}

// The first `count` lanes, zero in the others.
INLINE Lanes load_first(const float* from, int32_t count) {
    float lanes[LANES] = {};
    for (int32_t i = 0; i < count; ++i) lanes[i] = from[i];
    return load(lanes);
}
INLINE void store_first(float* to, Lanes value, int32_t count) {
    float lanes[LANES];
    store(lanes, value);
    for (int32_t i = 0; i < count; ++i) to[i] = lanes[i];
}

#define SUBLIMATE_LANES_OPERATOR(type, op)                                                         \
    INLINE type operator op(type a, type b) {                                                      \
        for (int32_t i = 0; i < PARTS; ++i) a.part[i] = a.part[i] op b.part[i];                    \
        return a;                                                                                  \
    }
SUBLIMATE_LANES_OPERATOR(Lanes, +)
SUBLIMATE_LANES_OPERATOR(Lanes, -)
SUBLIMATE_LANES_OPERATOR(Lanes, *)
SUBLIMATE_LANES_OPERATOR(Lanes, /)
SUBLIMATE_LANES_OPERATOR(LanesBits, +)
SUBLIMATE_LANES_OPERATOR(LanesBits, -)
SUBLIMATE_LANES_OPERATOR(LanesBits, &)
SUBLIMATE_LANES_OPERATOR(LanesBits, |)
SUBLIMATE_LANES_OPERATOR(LanesBits, ^)
#undef SUBLIMATE_LANES_OPERATOR

INLINE LanesBits shift_left(LanesBits a, int32_t bits) {
    for (int32_t i = 0; i < PARTS; ++i) a.part[i] = a.part[i] << bits;
    return a;
}

INLINE LanesBits shift_right(LanesBits a, int32_t bits) {
    for (int32_t i = 0; i < PARTS; ++i) a.part[i] = a.part[i] >> bits;
    return a;
}
INLINE LanesBits shift_right_signed(LanesBits a, int32_t bits) {
    for (int32_t i = 0; i < PARTS; ++i) {
        a.part[i] = reinterpret_cast<PartBits>(reinterpret_cast<PartSigned>(a.part[i]) >> bits);
    }
    return a;
}

// a * b + c, rounded once.
INLINE Lanes fma(Lanes a, Lanes b, Lanes c) {
    for (int32_t i = 0; i < PARTS; ++i) c.part[i] = fma_part(a.part[i], b.part[i], c.part[i]);
    return c;
}

INLINE LanesBits bits_of(Lanes a) {
    LanesBits r;
    for (int32_t i = 0; i < PARTS; ++i) r.part[i] = reinterpret_cast<PartBits>(a.part[i]);
    return r;
}
INLINE Lanes floats_of(LanesBits a) {
    Lanes r;
    for (int32_t i = 0; i < PARTS; ++i) r.part[i] = reinterpret_cast<Part>(a.part[i]);
    return r;
}

// All ones in the lanes where a > b; a NaN is never greater.
INLINE LanesBits greater(Lanes a, Lanes b) {
    LanesBits r;
    for (int32_t i = 0; i < PARTS; ++i) {
        r.part[i] = reinterpret_cast<PartBits>(a.part[i] > b.part[i]);
    }
    return r;
}
INLINE LanesBits at_least(Lanes a, Lanes b) {
    LanesBits r;
    for (int32_t i = 0; i < PARTS; ++i) {
        r.part[i] = reinterpret_cast<PartBits>(a.part[i] >= b.part[i]);
    }
    return r;
}
// greater for integers below 2^31.
INLINE LanesBits greater_bits(LanesBits a, LanesBits b) {
    LanesBits r;
    for (int32_t i = 0; i < PARTS; ++i) {
        r.part[i] = reinterpret_cast<PartBits>(reinterpret_cast<PartSigned>(a.part[i]) >
                                               reinterpret_cast<PartSigned>(b.part[i]));
    }
    return r;
}
INLINE LanesBits select_bits(LanesBits mask, LanesBits yes, LanesBits no) {
    for (int32_t i = 0; i < PARTS; ++i) {
        no.part[i] = (mask.part[i] & yes.part[i]) | (~mask.part[i] & no.part[i]);
    }
    return no;
}
INLINE Lanes select(LanesBits mask, Lanes yes, Lanes no) {
    return floats_of(select_bits(mask, bits_of(yes), bits_of(no)));
}
INLINE Lanes greatest(Lanes a, Lanes b) {
    return select(greater(a, b), a, b);
}

// Signed lanes as float; exact below 2^24.
INLINE Lanes floats_from_signed(LanesBits a) {
    Lanes r;
    for (int32_t i = 0; i < PARTS; ++i) {
        r.part[i] = __builtin_convertvector(reinterpret_cast<PartSigned>(a.part[i]), Part);
    }
    return r;
}

// Lanes 0, 1, 2, ... 15.
INLINE LanesBits lane_numbers() {
    alignas(64) constexpr uint32_t NUMBERS[LANES] = {0, 1, 2,  3,  4,  5,  6,  7,
                                                     8, 9, 10, 11, 12, 13, 14, 15};
    return load_bits(NUMBERS);
}

// Halves are added until one lane is left: the order of every reduction.
INLINE float sum_lanes(Lanes value) {
    float lanes[LANES];
    store(lanes, value);
    for (int32_t half = LANES / 2; half > 0; half /= 2) {
        for (int32_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
    }
    return lanes[0];
}

// exp_polynomial of loop/gumbel.h in every lane, the same operations in the same order; but a NaN
// stays a NaN. It scales by a multiplication, which is exact, so that a NaN survives it.
INLINE Lanes exp_lanes(Lanes x) {
    const LanesBits vanishes = greater(splat(EXP_ARGUMENT_MIN), x);
    const Lanes shifted = fma(x, splat(LOG2_E), splat(EXP_ROUND_MAGIC));
    const Lanes n = shifted - splat(EXP_ROUND_MAGIC);
    Lanes f = fma(n, splat(-LN2_HIGH), x);
    f = fma(n, splat(-LN2_LOW), f);
    const Lanes z = f * f;
    Lanes p = splat(1.9875691500e-4f);
    p = fma(p, f, splat(1.3981999507e-3f));
    p = fma(p, f, splat(8.3334519073e-3f));
    p = fma(p, f, splat(4.1665795894e-2f));
    p = fma(p, f, splat(1.6666665459e-1f));
    p = fma(p, f, splat(5.0000001201e-1f));
    const Lanes r = fma(p, z, f) + splat(1.0f);
    // `shifted` holds n in its low bits: n + 127 becomes an exponent without a conversion.
    const uint32_t bias = __builtin_bit_cast(uint32_t, EXP_ROUND_MAGIC) - EXPONENT_BIAS;
    const LanesBits power = shift_left(bits_of(shifted) - splat_bits(bias), MANTISSA_BITS);
    return floats_of(select_bits(vanishes, splat_bits(0), bits_of(r * floats_of(power))));
}

// log_polynomial of loop/gumbel.h in every lane.
INLINE Lanes log_lanes(Lanes x) {
    const LanesBits bits = bits_of(x);
    const LanesBits exponent =
        shift_right_signed(bits - splat_bits(LOG_SQRT_HALF_BITS), MANTISSA_BITS);
    const Lanes e = floats_from_signed(exponent);
    const Lanes f = floats_of(bits - shift_left(exponent, MANTISSA_BITS)) - splat(1.0f);
    const Lanes z = f * f;
    Lanes p = splat(7.0376836292e-2f);
    p = fma(p, f, splat(-1.1514610310e-1f));
    p = fma(p, f, splat(1.1676998740e-1f));
    p = fma(p, f, splat(-1.2420140846e-1f));
    p = fma(p, f, splat(1.4249322787e-1f));
    p = fma(p, f, splat(-1.6668057665e-1f));
    p = fma(p, f, splat(2.0000714765e-1f));
    p = fma(p, f, splat(-2.4999993993e-1f));
    p = fma(p, f, splat(3.3333331174e-1f));
    Lanes r = (p * f) * z;
    r = fma(e, splat(LN2_LOW), r);
    r = fma(splat(-0.5f), z, r);
    r = f + r;
    return fma(e, splat(LN2_HIGH), r);
}

} // namespace
} // namespace sublimate::cpu

// Number formats and the exponential, one scalar at a time: the slow twins define their bits with
// these, and the vector code repeats the same operations in the same order.
//
// Everything here has internal linkage on purpose. A header that objects of several instruction
// sets include must not define a function that the linker could merge across them.
//
// defines: half_to_float, bf16_to_float, float_to_bf16, EXP_*, round_to_even, exp_float
#pragma once

#include <cmath>
#include <cstdint>

namespace sublimate::cpu {

// IEEE 754 binary16, every value exact in binary32.
[[maybe_unused]] static inline float half_to_float(uint16_t half) {
    const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
    const uint32_t exponent = (half >> 10) & 0x1fu;
    const uint32_t mantissa = half & 0x3ffu;
    if (exponent == 0) { // zero or subnormal: mantissa * 2^-24
        const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
        return sign != 0 ? -magnitude : magnitude;
    }
    const uint32_t rebased = exponent == 0x1fu ? 0xffu : exponent + 112;
    return __builtin_bit_cast(float, sign | rebased << 23 | mantissa << 13);
}

[[maybe_unused]] static inline float bf16_to_float(uint16_t value) {
    return __builtin_bit_cast(float, static_cast<uint32_t>(value) << 16);
}

// Round to nearest, ties to even; a NaN stays a NaN and becomes quiet; subnormals are kept.
[[maybe_unused]] static inline uint16_t float_to_bf16(float value) {
    const uint32_t bits = __builtin_bit_cast(uint32_t, value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>(bits >> 16 | 0x40u);
    return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

// ---- exponential
// ----------------------------------------------------------------------------------------- exp(x)
// = 2^n * p(r), n = round(x / ln 2), r = x - n ln 2 in two parts (Cody and Waite 1980), p of degree
// 6 (Taylor; |r| <= 0.347 leaves 2e-7 relative). Below EXP_LOWEST the result is zero, above
// EXP_HIGHEST it is exp(EXP_HIGHEST): no subnormal and no infinity can come out; a NaN stays a NaN.
constexpr float EXP_LOWEST = -86.5f;
constexpr float EXP_HIGHEST = 88.0f;
constexpr float EXP_LOG2_E = 1.44269504088896341f;
constexpr float EXP_LN2_HIGH = 0.693359375f; // 9 bits, so that n * it is exact
constexpr float EXP_LN2_LOW = -2.12194440e-4f;
constexpr float EXP_ROUND = 12582912.0f; // 1.5 * 2^23: adding it rounds to an integer, ties to even
constexpr int32_t EXP_POLYNOMIAL_TERMS = 7;
constexpr float EXP_POLYNOMIAL[EXP_POLYNOMIAL_TERMS] = {// highest power first
                                                        1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6,
                                                        0.5f,       1.0f,       1.0f};

// To the nearest integer, ties to even, for |x| < 2^22.
[[maybe_unused]] static inline float round_to_even(float x) {
    return (x + EXP_ROUND) - EXP_ROUND;
}

[[maybe_unused]] static inline float exp_float(float x) {
    if (x < EXP_LOWEST) return 0.0f;
    const float clamped = EXP_HIGHEST < x ? EXP_HIGHEST : x;
    const float n = round_to_even(clamped * EXP_LOG2_E);
    float r = __builtin_fmaf(n, -EXP_LN2_HIGH, clamped);
    r = __builtin_fmaf(n, -EXP_LN2_LOW, r);
    float p = EXP_POLYNOMIAL[0];
    for (int32_t i = 1; i < EXP_POLYNOMIAL_TERMS; ++i) p = __builtin_fmaf(p, r, EXP_POLYNOMIAL[i]);
    if (!(x == x)) return x;
    const uint32_t exponent = static_cast<uint32_t>(static_cast<int32_t>(n) + 127) << 23;
    return p * __builtin_bit_cast(float, exponent);
}

} // namespace sublimate::cpu

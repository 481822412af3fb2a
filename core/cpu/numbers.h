// Number formats and the exponential, one scalar at a time: the slow twins define their bits with
// these, and the vector code repeats the same operations in the same order.
//
// Everything here has internal linkage on purpose. A header that objects of several instruction
// sets include must not define a function that the linker could merge across them.
//
// defines: hadamard_scale, half_to_float, float_to_half, bf16_to_float, float_to_bf16,
// NON_LINEAR_VALUES, TWICE_FP4_VALUES
#pragma once

#include <cstdint>

namespace sublimate::cpu {

// What four bits stand for in IQ4_NL and IQ4_XS (ggml, src/ggml-common.h: kvalues_iq4nl) and in
// MXFP4 (OCP Microscaling Formats 1.0, FP4 E2M1: twice its numbers, so that they are whole).
constexpr int8_t NON_LINEAR_VALUES[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                          1,    13,   25,  38,  53,  69,  89,  113};
constexpr int8_t TWICE_FP4_VALUES[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// 1 / sqrt(block) of a power of two.
[[maybe_unused]] static inline float hadamard_scale(int32_t block) {
    constexpr float SQRT_HALF = 0.70710678f;
    float scale = block & 0x55555555 ? 1.0f : SQRT_HALF;
    for (; block > 2; block /= 4) scale *= 0.5f;
    return scale;
}

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

// Round to nearest, ties to even; what is too large becomes infinite, a NaN stays one.
[[maybe_unused]] static inline uint16_t float_to_half(float value) {
    const uint32_t bits = __builtin_bit_cast(uint32_t, value);
    const uint32_t sign = bits >> 16 & 0x8000u;
    const uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
    if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u); // 65520 and more
    if (magnitude < 0x38800000u) { // below 2^-14: steps of 2^-24, which are those of floats at 0.5
        const float shifted = __builtin_bit_cast(float, magnitude) + 0.5f;
        return static_cast<uint16_t>(sign | (__builtin_bit_cast(uint32_t, shifted) - 0x3f000000u));
    }
    const uint32_t rebased = magnitude - (112u << 23);
    return static_cast<uint16_t>(sign | (rebased + 0xfffu + (rebased >> 13 & 1u)) >> 13);
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

} // namespace sublimate::cpu

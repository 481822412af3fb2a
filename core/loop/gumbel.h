// The fixed arithmetic of sampling: Philox4x32-10, a polynomial logarithm and exponential, and
// Gumbel noise that is a function of (seed, position, token id) alone. Whoever samples a row with
// the same seed at the same position draws the same noise, whatever shares its batch and whatever
// the machine.
//
// EQUAL BITS. The SIMD variants in core/cpu must return the bits of the functions below. They do
// when each lane runs the operations in the order written here, because
//   - fp32 multiply, add, subtract and fused multiply-add are correctly rounded everywhere;
//   - every multiply whose result would be added is written as an explicit fused multiply-add, so
//   that no
//     compiler can contract anything further (no -ffp-contract flag is needed; -ffast-math is
//     forbidden);
//   - no result depends on the number of lanes: sum_exp has a fixed count of 16 partial sums.
// An arg-max may skip whatever cannot win: noise is at most GUMBEL_NOISE_MAX.
//
// Sources: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011) for Philox;
// Cephes (Moshier) logf and expf for the minimax coefficients.
//
// defines: float_bits, bits_float, fused_multiply_add, philox, noise_counter, noise_word,
//          log_polynomial, exp_polynomial, gumbel_from_bits, gumbel_noise
#pragma once

#include <cstdint>
#include <cstring>

#include "../check.h"

namespace sublimate {

SUBLIMATE_HD inline uint32_t float_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

SUBLIMATE_HD inline float bits_float(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

SUBLIMATE_HD inline float fused_multiply_add(float a, float b, float c) {
#if defined(__CUDA_ARCH__)
    return __fmaf_rn(a, b, c);
#else
    return __builtin_fmaf(a, b, c);
#endif
}

// ---- Philox4x32-10 ------------------------------------------------------------------------------
constexpr uint32_t PHILOX_MULTIPLIER_0 = 0xD2511F53u;
constexpr uint32_t PHILOX_MULTIPLIER_1 = 0xCD9E8D57u;
constexpr uint32_t PHILOX_WEYL_0 = 0x9E3779B9u;
constexpr uint32_t PHILOX_WEYL_1 = 0xBB67AE85u;
constexpr int32_t PHILOX_ROUNDS = 10;

static_assert(sizeof(float) == sizeof(uint32_t));

struct PhiloxBlock {
    uint32_t word[4];
};

// One round: (c0, c1, c2, c3) -> (hi(M1 c2) ^ c1 ^ k0, lo(M1 c2), hi(M0 c0) ^ c3 ^ k1, lo(M0 c0)),
// then both key words advance by the Weyl constants.
SUBLIMATE_HD inline PhiloxBlock philox(PhiloxBlock counter, uint32_t key_0, uint32_t key_1) {
    PhiloxBlock c = counter;
    for (int32_t round = 0; round < PHILOX_ROUNDS; round++) {
        uint64_t product_0 = uint64_t{PHILOX_MULTIPLIER_0} * c.word[0];
        uint64_t product_1 = uint64_t{PHILOX_MULTIPLIER_1} * c.word[2];
        c = {{static_cast<uint32_t>(product_1 >> 32) ^ c.word[1] ^ key_0,
              static_cast<uint32_t>(product_1),
              static_cast<uint32_t>(product_0 >> 32) ^ c.word[3] ^ key_1,
              static_cast<uint32_t>(product_0)}};
        key_0 += PHILOX_WEYL_0;
        key_1 += PHILOX_WEYL_1;
    }
    return c;
}

// One Philox block serves four token ids. In a run of 64 consecutive ids, lane i of 16 computes the
// block of ids (i, 16 + i, 32 + i, 48 + i): 16 SIMD lanes yield four vectors of 16 consecutive ids.
//   counter = (16 * (id / 64) + id % 16, position, 0, 0), key = (seed low, seed high),
//   word    = (id / 16) % 4
SUBLIMATE_HD inline PhiloxBlock noise_counter(int32_t position, int32_t id) {
    auto token = static_cast<uint32_t>(id);
    return {{((token >> 6) << 4) | (token & 15u), static_cast<uint32_t>(position), 0u, 0u}};
}

SUBLIMATE_HD inline int32_t noise_word(int32_t id) {
    return (id >> 4) & 3;
}

// ---- log ----------------------------------------------------------------------------------------
constexpr int32_t LOG_SQRT_HALF_BITS = 0x3F3504F3; // float bits of sqrt(0.5)
constexpr float LN2_HIGH = 0.693359375f;   // exact in 10 bits, so that n * LN2_HIGH is exact
constexpr float LN2_LOW = -2.12194440e-4f; // ln 2 = LN2_HIGH + LN2_LOW

// Natural logarithm of a positive normal float; error below 1 ulp or so. Operations, in order:
//   e = (bits(x) - bits(sqrt 0.5)) >> 23 (arithmetic);  m = float(bits(x) - (e << 23));  f = m - 1
//   z = f * f;  p = Horner by fma in f over LOG_0 .. LOG_8;  p = p * f;  r = p * z
//   r = fma(e, LN2_LOW, r);  r = fma(-0.5, z, r);  r = f + r;  r = fma(e, LN2_HIGH, r)
SUBLIMATE_HD inline float log_polynomial(float x) {
    auto bits = static_cast<int32_t>(float_bits(x));
    int32_t exponent = (bits - LOG_SQRT_HALF_BITS) >> 23;
    float e = static_cast<float>(exponent);
    float f =
        bits_float(static_cast<uint32_t>(bits) - (static_cast<uint32_t>(exponent) << 23)) - 1.0f;
    float z = f * f;
    float p = 7.0376836292e-2f;                      // LOG_0
    p = fused_multiply_add(p, f, -1.1514610310e-1f); // LOG_1
    p = fused_multiply_add(p, f, 1.1676998740e-1f);  // LOG_2
    p = fused_multiply_add(p, f, -1.2420140846e-1f); // LOG_3
    p = fused_multiply_add(p, f, 1.4249322787e-1f);  // LOG_4
    p = fused_multiply_add(p, f, -1.6668057665e-1f); // LOG_5
    p = fused_multiply_add(p, f, 2.0000714765e-1f);  // LOG_6
    p = fused_multiply_add(p, f, -2.4999993993e-1f); // LOG_7
    p = fused_multiply_add(p, f, 3.3333331174e-1f);  // LOG_8
    p = p * f;
    float r = p * z;
    r = fused_multiply_add(e, LN2_LOW, r);
    r = fused_multiply_add(-0.5f, z, r);
    r = f + r;
    return fused_multiply_add(e, LN2_HIGH, r);
}

// ---- exp ----------------------------------------------------------------------------------------
constexpr float EXP_ARGUMENT_MIN = -87.0f;     // below: 0, so that no result is subnormal
constexpr float EXP_ROUND_MAGIC = 12582912.0f; // 1.5 * 2^23: adding it rounds to an integer
constexpr float LOG2_E = 1.44269504088896341f;

// exp(x) for x <= 0 (and up to 80). x < EXP_ARGUMENT_MIN gives 0. Operations, in order:
//   t = fma(x, LOG2_E, EXP_ROUND_MAGIC);  n = t - EXP_ROUND_MAGIC
//   f = fma(n, -LN2_HIGH, x);  f = fma(n, -LN2_LOW, f);  z = f * f
//   p = Horner by fma in f over EXP_0 .. EXP_5;  r = fma(p, z, f);  r = r + 1
//   result = float(bits(r) + (int(n) << 23))
SUBLIMATE_HD inline float exp_polynomial(float x) {
    if (!(x >= EXP_ARGUMENT_MIN)) return 0.0f;
    float t = fused_multiply_add(x, LOG2_E, EXP_ROUND_MAGIC);
    float n = t - EXP_ROUND_MAGIC;
    float f = fused_multiply_add(n, -LN2_HIGH, x);
    f = fused_multiply_add(n, -LN2_LOW, f);
    float z = f * f;
    float p = 1.9875691500e-4f;                     // EXP_0
    p = fused_multiply_add(p, f, 1.3981999507e-3f); // EXP_1
    p = fused_multiply_add(p, f, 8.3334519073e-3f); // EXP_2
    p = fused_multiply_add(p, f, 4.1665795894e-2f); // EXP_3
    p = fused_multiply_add(p, f, 1.6666665459e-1f); // EXP_4
    p = fused_multiply_add(p, f, 5.0000001201e-1f); // EXP_5
    float r = fused_multiply_add(p, z, f);
    r = r + 1.0f;
    return bits_float(float_bits(r) + (static_cast<uint32_t>(static_cast<int32_t>(n)) << 23));
}

// ---- Gumbel noise -------------------------------------------------------------------------------
constexpr float UNIFORM_SCALE = 1.0f / 8388608.0f; // 2^-23
constexpr float GUMBEL_NOISE_MAX = 16.64f;         // -log(-log(1 - 2^-24)) = 16.6355
constexpr float GUMBEL_NOISE_MIN = -2.82f;         // -log(-log(2^-24)) = -2.8115

// u = (float(bits >> 9) + 0.5) * 2^-23, exact and inside (0, 1); noise = -log(-log(u)).
SUBLIMATE_HD inline float gumbel_from_bits(uint32_t bits) {
    float u = (static_cast<float>(static_cast<int32_t>(bits >> 9)) + 0.5f) * UNIFORM_SCALE;
    return -log_polynomial(-log_polynomial(u));
}

SUBLIMATE_HD inline float gumbel_noise(uint64_t seed, int32_t position, int32_t id) {
    PhiloxBlock block = philox(noise_counter(position, id), static_cast<uint32_t>(seed),
                               static_cast<uint32_t>(seed >> 32));
    return gumbel_from_bits(block.word[noise_word(id)]);
}

} // namespace sublimate

// Reading and multiplying with 512-bit registers, and the dot products of VNNI.
//
// defines: AVX512_LIMITS
#include "intrinsics.h"

#include "limit_kernels.h"

namespace sublimate::cpu {

namespace {

constexpr int32_t SUMS = 12; // more than latency times throughput of any core so far
constexpr int32_t LANES = 16;
constexpr int32_t BYTES_PER_LANE = 4;

uint64_t read(const std::byte* data, int64_t bytes, int64_t ahead_bytes) {
    __m512i sums[4] = {};
    constexpr int64_t LINE_BYTES = sizeof(__m512i);
    static_assert(sizeof sums == READ_BLOCK_BYTES);
    for (int64_t at = 0; at < bytes; at += READ_BLOCK_BYTES) {
        const std::byte* from = data + at;
        for (int32_t i = 0; i < 4; i++) {
            if (ahead_bytes > 0) _mm_prefetch(from + ahead_bytes + i * LINE_BYTES, _MM_HINT_T0);
            sums[i] = _mm512_xor_si512(sums[i], _mm512_load_si512(from + i * LINE_BYTES));
        }
    }
    const __m512i all =
        _mm512_xor_si512(_mm512_xor_si512(sums[0], sums[1]), _mm512_xor_si512(sums[2], sums[3]));
    return static_cast<uint64_t>(_mm512_reduce_add_epi64(all));
}

int64_t fma_f32(int64_t rounds) {
    __m512 sums[SUMS] = {};
    __m512 a = _mm512_set1_ps(0.5f);
    __asm__ volatile("" : "+v"(a)); // unknown to the compiler
    for (int64_t i = 0; i < rounds; i++) {
#pragma GCC unroll 12
        for (int32_t s = 0; s < SUMS; s++) {
            sums[s] = _mm512_fmadd_ps(a, a, sums[s]);
            __asm__ volatile("" : "+v"(sums[s]));
        }
    }
    return rounds * SUMS * LANES * 2;
}

int64_t dot_int8(int64_t rounds) {
    __m512i sums[SUMS] = {};
    __m512i a = _mm512_set1_epi8(1);
    __asm__ volatile("" : "+v"(a));
    for (int64_t i = 0; i < rounds; i++) {
#pragma GCC unroll 12
        for (int32_t s = 0; s < SUMS; s++) {
            sums[s] = _mm512_dpbusd_epi32(sums[s], a, a);
            __asm__ volatile("" : "+v"(sums[s]));
        }
    }
    return rounds * SUMS * LANES * BYTES_PER_LANE * 2;
}

} // namespace

constinit const LimitKernels AVX512_LIMITS = {
    .read = read, .fma_f32 = fma_f32, .dot_int8 = dot_int8};

} // namespace sublimate::cpu

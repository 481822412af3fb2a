// Reading and multiplying with 256-bit registers.
//
// defines: AVX2_LIMITS
#include "intrinsics.h"

#include "limit_kernels.h"

namespace sublimate::cpu {

namespace {

constexpr int32_t SUMS = 12; // more than latency times throughput of any core so far
constexpr int32_t LANES = 8;

uint64_t read(const std::byte* data, int64_t bytes, int64_t ahead_bytes) {
    __m256i sums[4] = {};
    constexpr int64_t STEP_BYTES = sizeof sums;
    static_assert(READ_BLOCK_BYTES % STEP_BYTES == 0);
    for (int64_t at = 0; at < bytes; at += STEP_BYTES) {
        const auto* from = reinterpret_cast<const __m256i*>(data + at);
        if (ahead_bytes > 0) {
            _mm_prefetch(data + at + ahead_bytes, _MM_HINT_T0);
            _mm_prefetch(data + at + ahead_bytes + 64, _MM_HINT_T0);
        }
        for (int32_t i = 0; i < 4; i++)
            sums[i] = _mm256_xor_si256(sums[i], _mm256_load_si256(from + i));
    }
    const __m256i all =
        _mm256_xor_si256(_mm256_xor_si256(sums[0], sums[1]), _mm256_xor_si256(sums[2], sums[3]));
    return static_cast<uint64_t>(_mm256_extract_epi64(all, 0) ^ _mm256_extract_epi64(all, 1) ^
                                 _mm256_extract_epi64(all, 2) ^ _mm256_extract_epi64(all, 3));
}

int64_t fma_f32(int64_t rounds) {
    __m256 sums[SUMS] = {};
    __m256 a = _mm256_set1_ps(0.5f);
    __asm__ volatile("" : "+x"(a)); // unknown to the compiler
    for (int64_t i = 0; i < rounds; i++) {
#pragma GCC unroll 12
        for (int32_t s = 0; s < SUMS; s++) {
            sums[s] = _mm256_fmadd_ps(a, a, sums[s]);
            __asm__ volatile("" : "+x"(sums[s]));
        }
    }
    return rounds * SUMS * LANES * 2;
}

} // namespace

constinit const LimitKernels AVX2_LIMITS = {.read = read, .fma_f32 = fma_f32, .dot_int8 = nullptr};

} // namespace sublimate::cpu

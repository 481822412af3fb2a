// The baseline's loops, and the choice.
#include "limit_kernels.h"

namespace sublimate::cpu {

namespace {

constexpr int32_t WORDS = READ_BLOCK_BYTES / sizeof(uint64_t);
constexpr int64_t LINE_BYTES = 64;
static_assert(READ_BLOCK_BYTES % LINE_BYTES == 0);

uint64_t read(const std::byte* data, int64_t bytes, int64_t ahead_bytes) {
    uint64_t sums[WORDS] = {};
    for (int64_t at = 0; at < bytes; at += READ_BLOCK_BYTES) {
        const auto* words = reinterpret_cast<const uint64_t*>(data + at);
        if (ahead_bytes > 0) {
            for (int64_t line = 0; line < READ_BLOCK_BYTES; line += LINE_BYTES)
                __builtin_prefetch(data + at + ahead_bytes + line);
        }
        for (int32_t i = 0; i < WORDS; i++) sums[i] ^= words[i];
    }
    uint64_t sum = 0;
    for (uint64_t one : sums) sum ^= one;
    return sum;
}

} // namespace

constinit const LimitKernels PORTABLE_LIMITS = {
    .read = read, .fma_f32 = nullptr, .dot_int8 = nullptr};

const LimitKernels& limit_kernels(Isa isa) {
    if (isa >= Isa::avx512 && isa_runs(Isa::avx512)) return AVX512_LIMITS;
    if (isa >= Isa::avx2 && isa_runs(Isa::avx2)) return AVX2_LIMITS;
    return PORTABLE_LIMITS;
}

const TileKernels* tile_kernels() {
    return isa_runs(Isa::amx) ? &AMX_LIMITS : nullptr;
}

} // namespace sublimate::cpu

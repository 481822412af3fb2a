// See limits_probe.h. The loops are in cpu/limit_kernels.h.
#include "limits_probe.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <utility>

#include "../check.h"
#include "../cpu/limit_kernels.h"
#include "../cpu/threads.h"
#include "../model/memory.h"
#include "stopwatch.h"

namespace sublimate {

namespace {

constexpr int32_t ROUNDS = 7;
constexpr int64_t READ_BYTES_MIN = int64_t{1} << 29; // per round
static_assert(READ_BYTES_MIN % cpu::READ_BLOCK_BYTES == 0);
constexpr int64_t AHEADS_BYTES[] = {0, 4096}; // software prefetch pays on some machines
constexpr int64_t PILOT_ROUNDS = 20'000;
constexpr double ROUND_NS = 20e6;

// Of [data, data + bytes), as the kernel tells it; 0 where it does not.
double huge_pages_share(const std::byte* data, int64_t bytes) {
    std::ifstream maps("/proc/self/smaps");
    std::string line;
    bool inside = false;
    int64_t huge_bytes = 0;
    auto wanted = reinterpret_cast<uintptr_t>(data);
    while (std::getline(maps, line)) {
        uintptr_t begin = 0;
        uintptr_t end = 0;
        int64_t kib = 0;
        if (std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR " ", &begin, &end) == 2)
            inside = begin < wanted + static_cast<uintptr_t>(bytes) && end > wanted;
        else if (inside && std::sscanf(line.c_str(), "AnonHugePages: %" SCNd64, &kib) == 1)
            huge_bytes += kib << 10;
    }
    return std::min(1.0, static_cast<double>(huge_bytes) / static_cast<double>(bytes));
}

ReadRate read_rate(const cpu::LimitKernels& kernels, int32_t threads, int64_t working_set_bytes) {
    CHECK(threads > 0 && working_set_bytes >= 0);
    int64_t part = working_set_bytes / threads / cpu::READ_BLOCK_BYTES * cpu::READ_BLOCK_BYTES;
    ReadRate rate = {part * threads, threads, 0, 0};
    AnonymousMemory memory;
    if (part == 0 || !AnonymousMemory::map(part * threads, "a measurement", &memory).ok())
        return rate;
    CHECK_BECAUSE(reinterpret_cast<uintptr_t>(memory.data()) % limits::LINE_PAIR_BYTES == 0,
                  "the loops load whole registers");
    cpu::ThreadPool pool(threads);
    pool.run([&](int32_t thread) { std::memset(memory.data() + thread * part, 1, size_t(part)); });
    rate.huge_pages_share = huge_pages_share(memory.data(), part * threads);
    int64_t passes = std::max<int64_t>(1, READ_BYTES_MIN / (part * threads));
    for (int64_t ahead : AHEADS_BYTES) {
        double ns = best_ns(ROUNDS, [&] {
            pool.run([&](int32_t thread) {
                uint64_t sum = 0;
                for (int64_t pass = 0; pass < passes; pass++)
                    sum ^= kernels.read(memory.data() + thread * part, part, ahead);
                __asm__ volatile("" : : "r"(sum));
            });
        });
        double bytes = static_cast<double>(part) * threads * static_cast<double>(passes);
        rate.bytes_per_s = std::max(rate.bytes_per_s, bytes / ns * NS_PER_S);
    }
    return rate;
}

using Loop = int64_t (*)(int64_t rounds);

double ops_per_s(Loop loop, int32_t threads) {
    if (loop == nullptr) return 0;
    cpu::ThreadPool pool(threads);
    int64_t begin = monotonic_ns();
    loop(PILOT_ROUNDS);
    auto pilot_ns = static_cast<double>(std::max<int64_t>(1, monotonic_ns() - begin));
    auto rounds = static_cast<int64_t>(PILOT_ROUNDS * std::max(1.0, ROUND_NS / pilot_ns));
    std::vector<int64_t> ops(static_cast<size_t>(threads));
    double ns = best_ns(ROUNDS, [&] {
        pool.run([&](int32_t thread) { ops[static_cast<size_t>(thread)] = loop(rounds); });
    });
    CHECK_BECAUSE(ops[0] > 0, "a loop that counts no operation");
    return static_cast<double>(ops[0]) * threads / ns * NS_PER_S;
}

} // namespace

MachineLimits measure_limits(cpu::Isa isa, int32_t threads, std::span<const int64_t> working_sets) {
    CHECK(threads > 0);
    const cpu::LimitKernels& kernels = cpu::limit_kernels(isa);
    const cpu::TileKernels* tiles = isa >= cpu::Isa::amx ? cpu::tile_kernels() : nullptr;
    MachineLimits limits;
    limits.isa = &kernels == &cpu::AVX512_LIMITS ? "avx512"
                 : &kernels == &cpu::AVX2_LIMITS ? "avx2"
                                                 : "portable";
    std::vector<int32_t> counts = {1};
    if (threads > 1) counts.push_back(threads);
    for (int64_t bytes : working_sets) {
        for (int32_t count : counts) limits.reads.push_back(read_rate(kernels, count, bytes));
    }
    const std::pair<const char*, Loop> loops[] = {
        {"fma_f32", kernels.fma_f32},
        {"dot_int8", kernels.dot_int8},
        {"tile_bf16", tiles ? tiles->bf16 : nullptr},
        {"tile_bf16_loads", tiles ? tiles->bf16_loads : nullptr},
        {"tile_int8", tiles ? tiles->int8 : nullptr},
    };
    for (const auto& [name, loop] : loops) {
        for (int32_t count : counts)
            limits.computes.push_back({name, count, ops_per_s(loop, count)});
    }
    return limits;
}

} // namespace sublimate

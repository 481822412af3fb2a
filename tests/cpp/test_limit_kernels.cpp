// The loops that measure a machine, held to what no machine can do: instructions in a cycle.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/cpu/limit_kernels.h"
#include "core/engine/stopwatch.h"
#include "test.h"

namespace {

using namespace sublimate;
using namespace sublimate::cpu;

constexpr int32_t WINDOWS = 300; // of some 20 µs each: some of them are undisturbed
constexpr int64_t ROUNDS = 2000;
constexpr double MULTIPLICATION_CYCLES = 3; // one waits for the next, on every x86-64 so far
constexpr double PORTS_MAX = 2;             // for vector products, on every x86-64 so far
constexpr double LOAD_BYTES_MAX = 128;      // in a cycle: two loads of 64 or three of 32
constexpr double TILE_CYCLES = 16;          // Intel's optimisation manual, 20.5.5
constexpr double TOLERANCE = 1.1;

// The least time of either, in turn, so that both meet the same clock.
struct Times {
    double cycle_ns = 1e18;
    double work_ns = 1e18;
};

template <class Work>
Times measure(Work&& work) {
    Times times;
    uint64_t value = 3;
    for (int32_t window = 0; window < WINDOWS; window++) {
        double ns = best_ns(1, [&] {
            for (int64_t i = 0; i < ROUNDS; i++) {
                for (int32_t j = 0; j < 8; j++) __asm__ volatile("imul %0, %0" : "+r"(value));
            }
        });
        times.cycle_ns = std::min(times.cycle_ns, ns / (ROUNDS * 8 * MULTIPLICATION_CYCLES));
        times.work_ns = std::min(times.work_ns, best_ns(1, work));
    }
    return times;
}

// Operations that a loop counts for each cycle.
double ops_per_cycle(int64_t (*loop)(int64_t)) {
    int64_t ops = 0;
    Times times = measure([&] { ops = loop(ROUNDS); });
    return static_cast<double>(ops) / times.work_ns * times.cycle_ns;
}

void expect_possible(int64_t (*loop)(int64_t), double ops_per_cycle_max) {
    if (loop == nullptr) return;
    double found = ops_per_cycle(loop);
    EXPECT(found > 0);
    if (found > TOLERANCE * ops_per_cycle_max)
        std::fprintf(stderr, "%.1f operations in a cycle, of %.1f\n", found, ops_per_cycle_max);
    EXPECT(found <= TOLERANCE * ops_per_cycle_max);
}

} // namespace

TEST(f56_products_are_no_faster_than_their_ports) {
    for (Isa isa : {Isa::avx2, Isa::avx512}) {
        if (!isa_runs(isa)) continue;
        double lanes = isa == Isa::avx2 ? 8 : 16;
        expect_possible(limit_kernels(isa).fma_f32, PORTS_MAX * lanes * 2);
        expect_possible(limit_kernels(isa).dot_int8, PORTS_MAX * lanes * 4 * 2);
    }
}

TEST(f56_tiles_are_no_faster_than_their_unit) {
    const TileKernels* tiles = tile_kernels();
    if (tiles == nullptr) return;
    double products = 16 * 16 * 32 * 2 / TILE_CYCLES;
    expect_possible(tiles->bf16, products);
    expect_possible(tiles->bf16_loads, products);
    expect_possible(tiles->int8, 2 * products);
}

TEST(f56_reads_are_no_faster_than_the_first_cache) {
    constexpr int64_t BYTES = 16 << 10;
    alignas(64) static std::byte data[BYTES];
    std::fill(std::begin(data), std::end(data), std::byte{1});
    for (Isa isa : {Isa::portable, Isa::avx2, Isa::avx512}) {
        if (!isa_runs(isa)) continue;
        const LimitKernels& kernels = limit_kernels(isa);
        uint64_t sum = 0;
        Times times = measure([&] {
            for (int32_t i = 0; i < 32; i++) sum += kernels.read(data, BYTES, 0);
        });
        __asm__ volatile("" : : "r"(sum));
        EXPECT(32.0 * BYTES / times.work_ns * times.cycle_ns <= TOLERANCE * LOAD_BYTES_MAX);
    }
}

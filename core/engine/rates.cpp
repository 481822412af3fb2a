// Two short measurements at load; see rates.h.
#include "rates.h"

#include <algorithm>
#include <vector>

#include "stopwatch.h"

namespace sublimate {

namespace {

constexpr int32_t ROUNDS = 3;
constexpr int32_t HOT_ROWS = 64;
constexpr int32_t HOT_CALLS = 32;
constexpr int64_t READ_PIECE_BYTES = 1 << 20;

uint64_t read_words(const uint64_t* words, int64_t count) {
    uint64_t sum[4] = {};
    for (int64_t i = 0; i + 4 <= count; i += 4)
        for (int64_t lane = 0; lane < 4; lane++) sum[lane] ^= words[i + lane];
    return sum[0] ^ sum[1] ^ sum[2] ^ sum[3];
}

double read_rate(LoadedModel& model) {
    const auto* base = reinterpret_cast<const uint64_t*>(model.weights.data);
    int64_t bytes = model.weights.bytes;
    auto pieces = static_cast<int32_t>(bytes / READ_PIECE_BYTES);
    if (pieces == 0) return 0;
    std::vector<uint64_t> sums(static_cast<size_t>(pieces));
    constexpr int64_t piece_words = READ_PIECE_BYTES / 8;
    double ns = best_ns(ROUNDS, [&] {
        model.pool->parallel_for(pieces, [&](int32_t i) {
            sums[static_cast<size_t>(i)] = read_words(base + i * piece_words, piece_words);
        });
    });
    return static_cast<double>(pieces) * READ_PIECE_BYTES / ns * NS_PER_S;
}

double compute_rate(LoadedModel& model) {
    const cpu::PackedMatrix& matrix = model.weights.layers[0].down;
    auto columns = static_cast<size_t>(matrix.columns);
    size_t groups = columns / cpu::GROUP_COLUMNS;
    std::vector<float> values(HOT_ROWS * columns, 1.0f);
    std::vector<int8_t> quantised(HOT_ROWS * columns, 1);
    std::vector<float> scales(HOT_ROWS * groups, 1.0f);
    std::vector<int32_t> sums(HOT_ROWS * groups, cpu::GROUP_COLUMNS);
    int32_t threads = model.pool->size();
    std::vector<float> out(static_cast<size_t>(threads) * HOT_ROWS * cpu::PANEL_ROWS);
    cpu::Activations x = {};
    x.f32 = values.data();
    x.values = quantised.data();
    x.scales = scales.data();
    x.sums = sums.data();
    x.columns = matrix.columns;
    double ns = best_ns(ROUNDS, [&] {
        model.pool->parallel_for(threads, [&](int32_t thread) {
            float* mine = out.data() + int64_t{thread} * HOT_ROWS * cpu::PANEL_ROWS;
            for (int32_t i = 0; i < HOT_CALLS; i++)
                model.model->ops().matmul(matrix, x, 0, HOT_ROWS, 0, 1, mine, cpu::PANEL_ROWS);
        });
    });
    double multiply_adds =
        double{HOT_ROWS} * HOT_CALLS * threads * cpu::PANEL_ROWS * matrix.columns;
    return multiply_adds / ns * NS_PER_S;
}

} // namespace

RooflineRates measure_rates(LoadedModel& model) {
    return {read_rate(model), compute_rate(model)};
}

} // namespace sublimate

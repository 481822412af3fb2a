// The thin products of adapters on every instruction set against `ref`: equal bits over odd shapes,
// for any number of rows; what lies behind a row's width is neither read nor written.
#include "ops_testing.h"

namespace sublimate::cpu::testing {
namespace {

constexpr float UNTOUCHED = 12345.0f;
constexpr int32_t GUARD = 5; // numbers behind each row, of x and of out

struct Shape {
    WeightKind kind;
    int32_t outputs;
    int32_t columns;
    int32_t rows;
    bool adds;
};

std::string describe(const Ops& ops, const Shape& s) {
    return std::string(ops.name) + " low_rank kind " + std::to_string(static_cast<int>(s.kind)) +
           " " + std::to_string(s.outputs) + "x" + std::to_string(s.columns) + " rows " +
           std::to_string(s.rows) + (s.adds ? " adds" : "");
}

// x: (rows, columns + GUARD), before: (rows, outputs + GUARD).
std::vector<float> product(const Ops& ops, const Matrix& matrix, const std::vector<float>& x,
                           const std::vector<float>& before, const Shape& shape, int32_t row_step) {
    std::vector<float> out = before;
    const int64_t x_stride = shape.columns + GUARD;
    const int64_t out_stride = shape.outputs + GUARD;
    for (int32_t row = 0; row < shape.rows; row += row_step) {
        const int32_t rows = std::min(row_step, shape.rows - row);
        ops.low_rank({matrix.packed, x.data() + row * x_stride, x_stride, rows,
                      out.data() + row * out_stride, out_stride, 0.37f, shape.adds});
    }
    return out;
}

void check_shape(const Shape& shape, uint64_t seed) {
    Random random(seed);
    const Matrix matrix = random_matrix(random, shape.kind, shape.outputs, shape.columns, false);
    std::vector<float> x = random.floats(int64_t{shape.rows} * (shape.columns + GUARD), -3, 3);
    std::vector<float> before(static_cast<size_t>(shape.rows * (shape.outputs + GUARD)), UNTOUCHED);
    for (int32_t row = 0; row < shape.rows; ++row) {
        for (int32_t i = 0; i < GUARD; ++i)
            x[static_cast<size_t>((row + 1) * (shape.columns + GUARD) - 1 - i)] = std::nanf("");
        for (int32_t i = 0; shape.adds && i < shape.outputs; ++i)
            before[static_cast<size_t>(row * (shape.outputs + GUARD) + i)] =
                random.between(-1.0f, 1.0f);
    }
    const auto count = static_cast<int64_t>(before.size());
    const auto expected = product(ops_for(Isa::ref), matrix, x, before, shape, shape.rows);
    for (const Ops* ops : other_isas()) {
        const std::string name = describe(*ops, shape);
        for (int32_t row_step : {shape.rows, 1, 1 + random.below(5)})
            compare_bits(name, expected.data(),
                         product(*ops, matrix, x, before, shape, row_step).data(), count);
    }
    // Against double precision, where the order of sums does not matter.
    double worst = 0.0;
    for (int32_t row = 0; row < shape.rows; ++row) {
        for (int32_t output = 0; output < shape.outputs; ++output) {
            const Matrix& m = matrix;
            double sum = 0.0;
            for (int32_t c = 0; c < shape.columns; ++c) {
                const std::byte* panel =
                    m.bytes.data() + output / PANEL_ROWS * m.packed.panel_bytes;
                const int64_t at = int64_t{c} * PANEL_ROWS + output % PANEL_ROWS;
                float weight = 0.0f;
                uint16_t half = 0;
                if (shape.kind == WeightKind::f32)
                    std::memcpy(&weight, panel + 4 * at, 4);
                else
                    std::memcpy(&half, panel + 2 * at, 2);
                if (shape.kind == WeightKind::f16) weight = half_to_float(half);
                if (shape.kind == WeightKind::bf16) weight = bf16_to_float(half);
                sum += double(weight) *
                       double(x[static_cast<size_t>(row * (shape.columns + GUARD) + c)]);
            }
            const auto at = static_cast<size_t>(row * (shape.outputs + GUARD) + output);
            const double wanted = double(0.37f) * sum + (shape.adds ? double(before[at]) : 0.0);
            worst = std::max(worst, std::fabs(wanted - double(expected[at])));
        }
    }
    if (!(worst < 1e-3)) fail(describe(ops_for(Isa::ref), shape) + " is not the product");
}

} // namespace
} // namespace sublimate::cpu::testing

int main() {
    using namespace sublimate::cpu;
    using namespace sublimate::cpu::testing;
    uint64_t seed = 1;
    for (WeightKind kind : {WeightKind::f32, WeightKind::f16, WeightKind::bf16})
        for (int32_t outputs : {1, 8, 16, 17, 48, 100})
            for (int32_t columns : {1, 2, 3, 4, 5, 8, 15, 16, 64, 577})
                for (int32_t rows : {1, 3, 4, 5, 9})
                    check_shape({kind, outputs, columns, rows, seed % 2 == 0}, seed), seed++;
    return finish("test_ops_low_rank");
}

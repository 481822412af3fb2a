// Matrix products of every kind on every instruction set against `ref`: equal bits over odd shapes,
// whatever the block of rows and panels; lanes past the last output stay as they were.
#include "ops_testing.h"

namespace sublimate::cpu::testing {
namespace {

constexpr float UNTOUCHED = 12345.0f;

struct Shape {
    WeightKind kind;
    bool affine;
    int32_t outputs;
    int32_t columns;
    int32_t rows;
};

std::string describe(const Ops& ops, const Shape& s) {
    return std::string(ops.name) + " matmul kind " + std::to_string(static_cast<int>(s.kind)) +
           (s.affine ? " affine " : " symmetric ") + std::to_string(s.outputs) + "x" +
           std::to_string(s.columns) + " rows " + std::to_string(s.rows);
}

std::vector<float> product(const Ops& ops, const Matrix& matrix, const QuantisedRows& x,
                           const Shape& shape, int32_t row_step, int32_t panel_step) {
    const int64_t stride = shape.outputs + 3;
    std::vector<float> out(static_cast<size_t>(shape.rows * stride), UNTOUCHED);
    for (int32_t row = 0; row < shape.rows; row += row_step) {
        for (int32_t panel = 0; panel < matrix.packed.panels; panel += panel_step) {
            const int32_t row_end = std::min(row + row_step, shape.rows);
            const int32_t panel_end = std::min(panel + panel_step, matrix.packed.panels);
            ops.matmul(matrix.packed, x.activations, row, row_end, panel, panel_end, out.data(),
                       stride);
        }
    }
    return out;
}

void check_shape(const Shape& shape, uint64_t seed) {
    Random random(seed);
    const Matrix matrix =
        random_matrix(random, shape.kind, shape.outputs, shape.columns, shape.affine);
    const QuantisedRows x = random_rows(random, shape.rows, shape.columns);
    const auto expected =
        product(ops_for(Isa::ref), matrix, x, shape, shape.rows, matrix.packed.panels);
    for (const Ops* ops : other_isas()) {
        const std::string name = describe(*ops, shape);
        const auto whole = product(*ops, matrix, x, shape, shape.rows, matrix.packed.panels);
        compare_bits(name, expected.data(), whole.data(), static_cast<int64_t>(whole.size()));
        const auto pieces =
            product(*ops, matrix, x, shape, 1 + random.below(7), 1 + random.below(3));
        compare_bits(name + " in pieces", expected.data(), pieces.data(),
                     static_cast<int64_t>(pieces.size()));
    }
}

void check_all_shapes() {
    constexpr int32_t ROWS[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 33};
    constexpr int32_t OUTPUTS[] = {1, 15, 16, 17, 40, 48, 100};
    constexpr int32_t QUANTISED_COLUMNS[] = {32, 64, 96, 576, 800, 1536};
    constexpr int32_t K_COLUMNS[] = {256, 512, 768, 1024, 1792};
    constexpr int32_t FLOAT_COLUMNS[] = {1, 7, 32, 100};
    uint64_t seed = 1;
    for (WeightKind kind : {WeightKind::u4, WeightKind::u8}) {
        for (bool affine : {false, true}) {
            for (int32_t rows : ROWS) {
                const int32_t outputs = OUTPUTS[seed % 7];
                for (int32_t columns : QUANTISED_COLUMNS) {
                    if (columns > 100 && rows > 9 && rows < 33) continue;
                    check_shape({kind, affine, outputs, columns, rows}, seed++);
                }
            }
        }
    }
    for (WeightKind kind : {WeightKind::n4, WeightKind::m4}) {
        for (int32_t rows : ROWS) {
            for (int32_t columns : QUANTISED_COLUMNS) {
                if (columns > 100 && rows > 5 && rows < 33) continue;
                check_shape({kind, false, OUTPUTS[seed % 7], columns, rows}, seed);
                seed++;
            }
        }
    }
    for (WeightKind kind : {WeightKind::k2, WeightKind::k3, WeightKind::k4, WeightKind::kn4,
                            WeightKind::k5, WeightKind::k6}) {
        for (int32_t rows : ROWS) {
            for (int32_t columns : K_COLUMNS) {
                if (columns > 300 && rows > 9 && rows < 33) continue;
                check_shape({kind, false, OUTPUTS[seed % 7], columns, rows}, seed);
                seed++;
            }
        }
    }
    for (WeightKind kind : {WeightKind::f32, WeightKind::f16, WeightKind::bf16}) {
        for (int32_t rows : ROWS) {
            for (int32_t columns : FLOAT_COLUMNS) {
                check_shape({kind, false, OUTPUTS[seed % 7], columns, rows}, seed++);
            }
        }
    }
}

// A NaN or an infinity in the input must reach every output it touches: that is how a broken row is
// noticed.
void check_numbers_that_are_not() {
    Random random(99);
    for (const Shape& shape :
         {Shape{WeightKind::u4, true, 16, 64, 1}, Shape{WeightKind::k4, false, 16, 256, 1},
          Shape{WeightKind::k6, false, 16, 256, 1}, Shape{WeightKind::n4, false, 16, 64, 1},
          Shape{WeightKind::kn4, false, 16, 256, 1}, Shape{WeightKind::k2, false, 16, 256, 1},
          Shape{WeightKind::k3, false, 16, 256, 1}}) {
        const Matrix matrix = random_matrix(random, shape.kind, 16, shape.columns, shape.affine);
        QuantisedRows x = random_rows(random, 1, shape.columns);
        x.scales[1] = std::nanf("");
        for (const Ops* ops : other_isas()) {
            for (float value : product(*ops, matrix, x, shape, 1, 1)) {
                if (value != UNTOUCHED && !std::isnan(value)) fail(describe(*ops, shape) + " NaN");
            }
        }
    }
}

// Sums of halves that are missing are added up; they are read where they are.
void check_missing_half_sums() {
    Random random(7);
    for (WeightKind kind : {WeightKind::k2, WeightKind::k3, WeightKind::k6}) {
        const Shape shape{kind, false, 41, 1024, 17};
        const Matrix matrix = random_matrix(random, kind, shape.outputs, shape.columns, false);
        QuantisedRows x = random_rows(random, shape.rows, shape.columns);
        for (const Ops* ops : other_isas()) {
            for (int32_t step : {1, 17}) { // straight from memory, and decoded
                const auto with = product(*ops, matrix, x, shape, step, 3);
                QuantisedRows others = x;
                others.activations.half_sums = nullptr;
                const auto without = product(*ops, matrix, others, shape, step, 3);
                compare_bits(describe(*ops, shape) + " without half sums", with.data(),
                             without.data(), static_cast<int64_t>(with.size()));
                std::vector<int32_t> wrong(x.half_sums.size(), 1000);
                others.activations.half_sums = wrong.data();
                if (step > 1) continue; // decoded, k2 and k3 may do without some
                if (product(*ops, matrix, others, shape, step, 3) == with) {
                    fail(describe(*ops, shape) + " half sums were not read");
                }
            }
        }
    }
}

} // namespace
} // namespace sublimate::cpu::testing

int main() {
    using namespace sublimate::cpu::testing;
    check_all_shapes();
    check_numbers_that_are_not();
    check_missing_half_sums();
    return finish("test_ops_matmul");
}

// Generated rows on int8 tiles, on any machine: the same template as core/cpu/amx.cpp, over tiles
// that are plain arrays, against `ref`, bit for bit.
#include "core/cpu/lanes_portable.inl.h"

#include "core/cpu/matmul_tiles_int8.inl.h"

#include "ops_testing.h"
#include "software_tiles.h"

namespace sublimate::cpu {
namespace {

using namespace testing;

constexpr float UNTOUCHED = 12345.0f;

struct Shape {
    WeightKind kind;
    bool affine;
    int32_t outputs;
    int32_t columns;
    int32_t rows;
};

void check_shape(const Shape& s, uint64_t seed) {
    Random random(seed);
    const Matrix matrix = random_matrix(random, s.kind, s.outputs, s.columns, s.affine);
    const QuantisedRows x = random_rows(random, s.rows, s.columns);
    const int64_t stride = s.outputs + 5;
    const auto count = s.rows * stride;
    const int32_t panels = matrix.packed.panels;
    std::vector<float> expected(static_cast<size_t>(count), UNTOUCHED);
    std::vector<float> whole = expected;
    std::vector<float> pieces = expected;
    ops_for(Isa::ref).matmul(matrix.packed, x.activations, 0, s.rows, 0, panels, expected.data(),
                             stride);
    matmul_tiles_int8<SoftwareInt8Tiles>(matrix.packed, x.activations, 0, s.rows, 0, panels,
                                         whole.data(), stride);
    const std::string name = "int8 tiles kind " + std::to_string(static_cast<int>(s.kind)) +
                             (s.affine ? " affine " : " symmetric ") + std::to_string(s.outputs) +
                             "x" + std::to_string(s.columns) + " rows " + std::to_string(s.rows);
    compare_bits(name, expected.data(), whole.data(), count);
    const int32_t row_step = 1 + random.below(40);
    const int32_t panel_step = 1 + random.below(3);
    for (int32_t row = 0; row < s.rows; row += row_step) {
        for (int32_t panel = 0; panel < panels; panel += panel_step) {
            matmul_tiles_int8<SoftwareInt8Tiles>(
                matrix.packed, x.activations, row, std::min(row + row_step, s.rows), panel,
                std::min(panel + panel_step, panels), pieces.data(), stride);
        }
    }
    compare_bits(name + " in pieces", expected.data(), pieces.data(), count);
}

// A NaN in one row's scales reaches its outputs and no other row's.
void check_not_a_number() {
    Random random(7);
    const Matrix matrix = random_matrix(random, WeightKind::u4, 32, 64, true);
    QuantisedRows x = random_rows(random, 20, 64);
    x.scales[2 * 3 + 1] = std::nanf(""); // row 3
    std::vector<float> out(20 * 32, UNTOUCHED);
    matmul_tiles_int8<SoftwareInt8Tiles>(matrix.packed, x.activations, 0, 20, 0, 2, out.data(), 32);
    for (int32_t i = 0; i < 20 * 32; ++i) {
        if (std::isnan(out[static_cast<size_t>(i)]) != (i / 32 == 3)) fail("int8 tiles NaN");
    }
}

void check_all_shapes() {
    uint64_t seed = 1;
    for (WeightKind kind : {WeightKind::u4, WeightKind::u8}) {
        for (bool affine : {false, true}) {
            for (int32_t rows : {1, 5, 16, 17, 32, 33, 70}) {
                check_shape({kind, affine, 32, 64, rows}, seed++);
                check_shape({kind, affine, 41, 96, rows}, seed++);
            }
            check_shape({kind, affine, 48, 800, 33}, seed++); // more than one chunk of columns
            check_shape({kind, affine, 15, 1568, 64}, seed++);
        }
    }
    for (WeightKind kind : {WeightKind::n4, WeightKind::m4}) {
        for (int32_t rows : {1, 17, 33}) check_shape({kind, false, 41, 96, rows}, seed++);
        check_shape({kind, false, 48, 800, 33}, seed++);
    }
    for (WeightKind kind : {WeightKind::k4, WeightKind::kn4, WeightKind::k5}) {
        for (int32_t rows : {1, 16, 17, 32, 70}) check_shape({kind, false, 41, 256, rows}, seed++);
        check_shape({kind, false, 48, 1024, 33}, seed++);
    }
}

// Where this machine has AMX, its table must take the same way to the same bits.
void check_hardware() {
    if (!isa_runs(Isa::amx)) return;
    Random random(5);
    for (WeightKind kind : {WeightKind::u4, WeightKind::u8, WeightKind::n4, WeightKind::k4,
                            WeightKind::kn4, WeightKind::k6, WeightKind::k3, WeightKind::k2}) {
        const Matrix matrix = random_matrix(random, kind, 100, 1024, false);
        const QuantisedRows x = random_rows(random, 77, 1024);
        for (int32_t rows : {15, 16, 77}) {
            std::vector<float> expected(77 * 100, UNTOUCHED);
            std::vector<float> actual = expected;
            ops_for(Isa::avx512)
                .matmul(matrix.packed, x.activations, 0, rows, 0, 7, expected.data(), 100);
            ops_for(Isa::amx).matmul(matrix.packed, x.activations, 0, rows, 0, 7, actual.data(),
                                     100);
            compare_bits("hardware int8 tiles", expected.data(), actual.data(), 77 * 100);
        }
    }
}

} // namespace
} // namespace sublimate::cpu

int main() {
    sublimate::cpu::check_all_shapes();
    sublimate::cpu::check_not_a_number();
    sublimate::cpu::check_hardware();
    return sublimate::cpu::testing::finish("test_ops_tiles_int8");
}

// The prompt's matrix product on tiles, on any machine: the same template as core/cpu/amx.cpp, over
// tiles that are plain arrays. Compared with a sum in double over the same bf16 numbers.
#include "core/cpu/lanes_portable.inl.h"

#include "core/cpu/matmul_tiles.inl.h"

#include "ops_testing.h"
#include "software_tiles.h"

namespace sublimate::cpu {
namespace {

using namespace testing;

constexpr float UNTOUCHED = 12345.0f;
constexpr float NEAR = 2e-6f; // of the sum of magnitudes: fp32 sums of some hundred terms

struct Shape {
    WeightKind kind;
    bool affine;
    int32_t outputs;
    int32_t columns;
    int32_t rows;
};

float rounded(float weight) {
    return bf16_to_float(float_to_bf16(weight));
}

// A weight of k2: two bits, and a byte of scale and minimum for each 16 columns.
float two_bit_weight_at(const std::byte* super, int32_t lane, int32_t column) {
    const auto byte_at = [super](int32_t at) { return static_cast<int32_t>(super[at]); };
    const int32_t i = column % 32;
    const int32_t four = byte_at(column / 32 * 128 + i / 16 * 64 + 4 * lane + i % 4);
    const int32_t both = byte_at(1024 + column / 64 * 64 + 4 * lane + column / 16 % 4);
    const auto* halves = reinterpret_cast<const uint16_t*>(super + 1280);
    const float scale = half_to_float(halves[lane]) * static_cast<float>(both % 16);
    const float minimum = half_to_float(halves[16 + lane]) * static_cast<float>(both / 16);
    return rounded(std::fma(scale, static_cast<float>(four >> i % 16 / 4 * 2 & 3), -minimum));
}

// A weight of a K kind as ops.h describes it: the bits above the nibble, then the scales.
float super_weight_at(const PackedMatrix& m, int32_t output, int32_t column) {
    const SuperLayout layout = super_layout(m.kind);
    const std::byte* super =
        m.data + output / PANEL_ROWS * m.panel_bytes + column / SUPER_COLUMNS * layout.bytes;
    const int32_t lane = output % PANEL_ROWS;
    if (m.kind == WeightKind::k2) return two_bit_weight_at(super, lane, column % SUPER_COLUMNS);
    const int32_t group = column % SUPER_COLUMNS / GROUP_COLUMNS;
    const int32_t i = column % GROUP_COLUMNS;
    const std::byte* bytes = super + group * layout.group_bytes;
    const auto byte_at = [](const std::byte* at) { return static_cast<int32_t>(*at); };
    const int32_t both = byte_at(bytes + i % 16 / 4 * 64 + 4 * lane + i % 4);
    int32_t u = i < 16 ? both & 15 : both >> 4;
    if (m.kind == WeightKind::k3) {
        const int32_t low = byte_at(bytes + i / 16 * 64 + 4 * lane + i % 4) >> i % 16 / 4 * 2 & 3;
        u = low + (byte_at(bytes + 128 + 4 * lane + i % 4) >> i / 4 & 1) * 4;
    }
    const std::byte* planes = bytes + 256 + 4 * lane + i % 4;
    if (m.kind == WeightKind::k5) u += (byte_at(planes) >> i / 4 & 1) * 16;
    if (m.kind == WeightKind::k6) u += (byte_at(planes + i / 16 * 64) >> i % 16 / 4 * 2 & 3) * 16;
    const auto* halves = reinterpret_cast<const uint16_t*>(super + layout.super_scales);
    const float d = half_to_float(halves[lane]);
    if (m.kind == WeightKind::k6 || m.kind == WeightKind::k3) {
        const int32_t offset = m.kind == WeightKind::k6 ? 32 : 4;
        const auto s = static_cast<int8_t>(
            byte_at(super + layout.scales + (2 * group + i / 16) * PANEL_ROWS + lane));
        return rounded(d * static_cast<float>(s) * static_cast<float>(u - offset));
    }
    if (m.kind == WeightKind::kn4) {
        const auto s =
            static_cast<int8_t>(byte_at(super + layout.scales + group * PANEL_ROWS + lane));
        return rounded(d * static_cast<float>(s) * static_cast<float>(NON_LINEAR_VALUES[u]));
    }
    const auto s = static_cast<float>(byte_at(super + layout.scales + group * PANEL_ROWS + lane));
    const auto small =
        static_cast<float>(byte_at(super + layout.minima + group * PANEL_ROWS + lane));
    const float minimum = half_to_float(halves[PANEL_ROWS + lane]) * small;
    return rounded(std::fma(d * s, static_cast<float>(u), -minimum));
}

// The weight as the format defines it, read from the panel by hand.
float weight_at(const PackedMatrix& m, int32_t output, int32_t column) {
    if (is_k_kind(m.kind)) return super_weight_at(m, output, column);
    const std::byte* panel = m.data + output / PANEL_ROWS * m.panel_bytes;
    const int32_t lane = output % PANEL_ROWS;
    const int32_t group = column / GROUP_COLUMNS;
    const int32_t i = column % GROUP_COLUMNS;
    const bool nibbles = m.kind != WeightKind::u8;
    const int32_t low = nibbles ? i % 16 : i;
    const int64_t bytes = nibbles ? 256 : 512;
    const auto byte =
        static_cast<int32_t>(panel[group * bytes + low / 4 * 64 + 4 * lane + low % 4]);
    const int32_t u = nibbles ? (i < 16 ? byte & 15 : byte >> 4) : byte;
    const int64_t groups = m.columns / GROUP_COLUMNS;
    const auto* halves = reinterpret_cast<const uint16_t*>(panel + groups * bytes);
    const float scale = half_to_float(halves[group * PANEL_ROWS + lane]);
    const float minimum =
        m.affine ? half_to_float(halves[(groups + group) * PANEL_ROWS + lane]) : 0.0f;
    if (m.kind == WeightKind::n4) return rounded(scale * static_cast<float>(NON_LINEAR_VALUES[u]));
    if (m.kind == WeightKind::m4) return rounded(scale * static_cast<float>(TWICE_FP4_VALUES[u]));
    return rounded(std::fma(scale, static_cast<float>(u - m.offset), minimum));
}

void compare_with_double(const std::string& name, const Matrix& matrix, const QuantisedRows& x,
                         const Shape& s, const std::vector<float>& out, int64_t stride) {
    for (int32_t row = 0; row < s.rows; ++row) {
        for (int32_t output = 0; output < s.outputs; ++output) {
            double sum = 0.0;
            double magnitude = 0.0;
            for (int32_t c = 0; c < s.columns; ++c) {
                const uint16_t value = x.bf16[static_cast<size_t>(row * s.columns + c)];
                const double product =
                    static_cast<double>(weight_at(matrix.packed, output, c)) * bf16_to_float(value);
                sum += product;
                magnitude += std::fabs(product);
            }
            const float actual = out[static_cast<size_t>(row * stride + output)];
            if (std::fabs(sum - actual) <= NEAR * magnitude) continue;
            fail(name + " row " + std::to_string(row) + " output " + std::to_string(output));
        }
        for (int64_t beyond = s.outputs; beyond < stride; ++beyond) {
            if (out[static_cast<size_t>(row * stride + beyond)] != UNTOUCHED) {
                fail(name + " wrote past the outputs");
            }
        }
    }
}

void check_shape(const Shape& s, uint64_t seed) {
    Random random(seed);
    const Matrix matrix = random_matrix(random, s.kind, s.outputs, s.columns, s.affine);
    const QuantisedRows x = random_rows(random, s.rows, s.columns);
    const int64_t stride = s.outputs + 5;
    std::vector<float> out(static_cast<size_t>(s.rows * stride), UNTOUCHED);
    const int32_t panels = matrix.packed.panels;
    matmul_tiles<SoftwareTiles>(matrix.packed, x.activations, 0, s.rows, 0, panels, out.data(),
                                stride);
    const std::string name = "tiles kind " + std::to_string(static_cast<int>(s.kind)) +
                             (s.affine ? " affine " : " symmetric ") + std::to_string(s.outputs) +
                             "x" + std::to_string(s.columns) + " rows " + std::to_string(s.rows);
    compare_with_double(name, matrix, x, s, out, stride);
    std::vector<float> pieces(out.size(), UNTOUCHED);
    const int32_t row_step = 1 + random.below(40);
    const int32_t panel_step = 1 + random.below(3);
    for (int32_t row = 0; row < s.rows; row += row_step) {
        for (int32_t panel = 0; panel < panels; panel += panel_step) {
            matmul_tiles<SoftwareTiles>(
                matrix.packed, x.activations, row, std::min(row + row_step, s.rows), panel,
                std::min(panel + panel_step, panels), pieces.data(), stride);
        }
    }
    compare_bits(name + " in pieces", out.data(), pieces.data(), static_cast<int64_t>(out.size()));
}

// Where this machine has AMX, the hardware and the emulation must agree to the bit.
void check_hardware() {
    if (!isa_runs(Isa::amx)) return;
    Random random(5);
    for (WeightKind kind :
         {WeightKind::u4, WeightKind::n4, WeightKind::m4, WeightKind::k2, WeightKind::k3,
          WeightKind::k4, WeightKind::kn4, WeightKind::k5, WeightKind::k6}) {
        const bool affine = kind == WeightKind::u4;
        const Matrix matrix = random_matrix(random, kind, 100, 1024, affine);
        const QuantisedRows x = random_rows(random, 77, 1024);
        std::vector<float> expected(77 * 100);
        std::vector<float> actual(77 * 100);
        matmul_tiles<SoftwareTiles>(matrix.packed, x.activations, 0, 77, 0, 7, expected.data(),
                                    100);
        ops_for(Isa::amx).matmul_prompt(matrix.packed, x.activations, 0, 77, 0, 7, actual.data(),
                                        100);
        compare_bits("hardware tiles", expected.data(), actual.data(), 77 * 100);
    }
}

void check_all_shapes() {
    uint64_t seed = 1;
    for (WeightKind kind : {WeightKind::k2, WeightKind::k3, WeightKind::k4, WeightKind::kn4,
                            WeightKind::k5, WeightKind::k6}) {
        for (int32_t rows : {1, 17, 32, 130}) check_shape({kind, false, 41, 256, rows}, seed++);
        check_shape({kind, false, 48, 1024, 33}, seed++); // more than one chunk of columns
    }
    for (WeightKind kind : {WeightKind::n4, WeightKind::m4}) {
        for (int32_t rows : {1, 33}) check_shape({kind, false, 41, 96, rows}, seed++);
        check_shape({kind, false, 48, 800, 33}, seed++);
    }
    for (WeightKind kind : {WeightKind::u4, WeightKind::u8}) {
        for (bool affine : {false, true}) {
            for (int32_t rows : {1, 16, 17, 32, 33, 130}) {
                check_shape({kind, affine, 32, 64, rows}, seed++);
                check_shape({kind, affine, 41, 96, rows}, seed++);
            }
            check_shape({kind, affine, 48, 800, 33}, seed++); // more than one chunk of columns
            check_shape({kind, affine, 15, 1568, 64}, seed++);
        }
    }
}

} // namespace
} // namespace sublimate::cpu

int main() {
    sublimate::cpu::check_all_shapes();
    sublimate::cpu::check_hardware();
    return sublimate::cpu::testing::finish("test_ops_tiles");
}

// Rounding groups of weights, and laying them into panels as pack.cpp does.
#include "quantise.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "../check.h"
#include "../cpu/numbers.h"

namespace sublimate {

namespace {

using cpu::GROUP_COLUMNS;
using cpu::PANEL_ROWS;
using cpu::WeightKind;

constexpr int32_t INT8_OFFSET = 128;
constexpr float INT8_MAX_VALUE = 127.0f;
constexpr int32_t INT4_MAX_VALUE = 15;
constexpr float HALF_MAX = 65504.0f;
constexpr int32_t CHUNK_BYTES = 64; // as in pack.cpp: one word of each of the 16 rows
constexpr int32_t WORD_BYTES = 4;
// How many steps the weights' own range has; 15 would be rounding without a fit.
constexpr float FIT_STEPS_MIN = 14.0f;
constexpr float FIT_STEPS_BETWEEN = 0.25f;

// Of the values 0 to 15. A loop of its own for each thing: those are vectors to a compiler.
struct Rounded {
    std::array<int32_t, GROUP_COLUMNS> values;

    Rounded(const float* weights, float minimum, float inverse) : values() {
        for (size_t i = 0; i < GROUP_COLUMNS; i++) {
            float scaled = (weights[i] - minimum) * inverse + 0.5f;
            scaled = std::min(std::max(scaled, 0.0f), static_cast<float>(INT4_MAX_VALUE));
            values[i] = static_cast<int32_t>(scaled);
        }
    }
};

// Squared, in four sums, each of every fourth weight: the order is part of the result.
float error_of(const float* weights, const std::array<int32_t, GROUP_COLUMNS>& values, float scale,
               float minimum) {
    float sums[4] = {};
    for (size_t i = 0; i < GROUP_COLUMNS; i += 4)
        for (size_t lane = 0; lane < 4; lane++) {
            float off =
                weights[i + lane] - (scale * static_cast<float>(values[i + lane]) + minimum);
            sums[lane] += off * off;
        }
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

struct Line {
    float scale, minimum;
};

// Least squares of w = scale * u + minimum; as it was where all u are one.
Line fit(const float* weights, const Rounded& rounded, Line line) {
    int32_t sum = 0, squares = 0;
    float weight_sums[4] = {}, product_sums[4] = {};
    for (size_t i = 0; i < GROUP_COLUMNS; i += 4)
        for (size_t lane = 0; lane < 4; lane++) {
            int32_t value = rounded.values[i + lane];
            sum += value;
            squares += value * value;
            weight_sums[lane] += weights[i + lane];
            product_sums[lane] += weights[i + lane] * static_cast<float>(value);
        }
    float weight_sum = (weight_sums[0] + weight_sums[1]) + (weight_sums[2] + weight_sums[3]);
    float product_sum = (product_sums[0] + product_sums[1]) + (product_sums[2] + product_sums[3]);
    int32_t determinant = GROUP_COLUMNS * squares - sum * sum;
    if (determinant <= 0) return line;
    auto s = static_cast<float>(sum);
    auto over = static_cast<float>(determinant);
    return {(GROUP_COLUMNS * product_sum - weight_sum * s) / over,
            (static_cast<float>(squares) * weight_sum - s * product_sum) / over};
}

bool is_half(float value) {
    return std::fabs(value) <= HALF_MAX; // which no NaN is
}

} // namespace

const char* quantise_name(Quantise quantise) {
    switch (quantise) {
    case Quantise::none:
        return "";
    case Quantise::int8:
        return "int8";
    case Quantise::int4:
        return "int4";
    }
    return nullptr;
}

bool quantise_from_name(std::string_view name, Quantise* quantise) {
    for (Quantise each : {Quantise::none, Quantise::int8, Quantise::int4})
        if (name == quantise_name(each)) {
            *quantise = each;
            return true;
        }
    return false;
}

bool is_float_type(TensorType type) {
    return type == TensorType::f32 || type == TensorType::f16 || type == TensorType::bf16;
}

Status check_quantises(const Gguf& file, Quantise asked) {
    if (asked == Quantise::none) return Status::success();
    for (const GgufTensor& tensor : file.tensors())
        if (!is_float_type(tensor.type))
            return Status::error("the file is quantised already (tensor '" +
                                 std::string(tensor.name) + "' is " +
                                 tensor_type_name(tensor.type) +
                                 "): leave --quantize out, or use a file in F32, F16 or BF16");
    return Status::success();
}

Quantise quantises(const GgufTensor& tensor, Quantise asked) {
    const std::string_view name = tensor.name;
    if (!is_float_type(tensor.type) || tensor.columns() % GROUP_COLUMNS != 0 ||
        name.ends_with("ffn_gate_inp.weight"))
        return Quantise::none;
    bool of_tokens = name == "token_embd.weight" || name == "output.weight";
    return of_tokens && asked == Quantise::int4 ? Quantise::int8 : asked;
}

cpu::PackedMatrix quantised_shape(const GgufTensor& tensor, Quantise quantise) {
    CHECK(quantise != Quantise::none && tensor.columns() % GROUP_COLUMNS == 0);
    bool bytes = quantise == Quantise::int8;
    return shape_of_kind(bytes ? WeightKind::u8 : WeightKind::u4,
                         static_cast<int32_t>(tensor.rows()),
                         static_cast<int32_t>(tensor.columns()), bytes ? INT8_OFFSET : 0, !bytes);
}

bool quantise_int8(const float* weights, QuantisedGroup* group) {
    float largest = 0.0f;
    bool finite = true;
    for (int32_t i = 0; i < GROUP_COLUMNS; i++) {
        largest = std::max(largest, std::fabs(weights[i]));
        finite = finite && std::isfinite(weights[i]);
    }
    if (!finite || !is_half(largest / INT8_MAX_VALUE)) return false;
    // The nearest half cuts the largest weight off where it lies below: then the next one may lose
    // less, above all of small weights, whose halves are far apart.
    const uint16_t nearest = cpu::float_to_half(largest / INT8_MAX_VALUE);
    float least = INFINITY;
    for (uint16_t scale_half : {nearest, static_cast<uint16_t>(nearest + 1)}) {
        float scale = cpu::half_to_float(scale_half);
        if (!is_half(scale)) continue;
        float inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
        std::array<int32_t, GROUP_COLUMNS> values;
        for (size_t i = 0; i < GROUP_COLUMNS; i++) {
            float value = weights[i] * inverse;
            value = std::min(std::max(value, -INT8_MAX_VALUE), INT8_MAX_VALUE);
            // From below zero too, a half is rounded up.
            values[i] = static_cast<int32_t>(value + (INT8_OFFSET + 0.5f)) - INT8_OFFSET;
        }
        float error = error_of(weights, values, scale, 0.0f);
        if (!(error < least)) continue;
        least = error;
        group->scale = scale_half;
        for (size_t i = 0; i < GROUP_COLUMNS; i++)
            group->values[i] = static_cast<uint8_t>(values[i] + INT8_OFFSET);
    }
    group->minimum = 0;
    return std::isfinite(least);
}

bool quantise_int4(const float* weights, QuantisedGroup* group) {
    float low = weights[0], high = weights[0];
    bool finite = true;
    for (int32_t i = 0; i < GROUP_COLUMNS; i++) {
        low = std::min(low, weights[i]);
        high = std::max(high, weights[i]);
        finite = finite && std::isfinite(weights[i]);
    }
    if (!finite || !is_half(low) || !is_half((high - low) / FIT_STEPS_MIN)) return false;
    float least = INFINITY;
    for (int32_t candidate = 0; candidate < FIT_CANDIDATES; candidate++) {
        float steps = FIT_STEPS_MIN + FIT_STEPS_BETWEEN * static_cast<float>(candidate);
        Line line = {(high - low) / steps, low};
        Rounded rounded(weights, low, line.scale > 0.0f ? 1.0f / line.scale : 0.0f);
        line = fit(weights, rounded, line);
        if (!is_half(line.scale) || !is_half(line.minimum)) continue;
        uint16_t scale_half = cpu::float_to_half(line.scale);
        uint16_t minimum_half = cpu::float_to_half(line.minimum);
        line = {cpu::half_to_float(scale_half), cpu::half_to_float(minimum_half)};
        Rounded final(weights, line.minimum, line.scale > 0.0f ? 1.0f / line.scale : 0.0f);
        float error = error_of(weights, final.values, line.scale, line.minimum);
        if (!(error < least)) continue;
        least = error;
        group->scale = scale_half;
        group->minimum = minimum_half;
        for (size_t i = 0; i < GROUP_COLUMNS; i++)
            group->values[i] = static_cast<uint8_t>(final.values[i]);
    }
    return std::isfinite(least);
}

bool quantise_panels(const GgufTensor& tensor, const cpu::PackedMatrix& shape, int32_t panel_begin,
                     int32_t panel_end, std::byte* data, const RowOrder& order) {
    CHECK(panel_begin >= 0 && panel_end <= shape.panels && shape.columns % GROUP_COLUMNS == 0);
    CHECK(shape.kind == WeightKind::u8 || (shape.kind == WeightKind::u4 && shape.affine));
    const bool bytes = shape.kind == WeightKind::u8;
    const int32_t chunks = bytes ? 8 : 4;
    const int32_t groups = shape.columns / GROUP_COLUMNS;
    std::vector<float> row(static_cast<size_t>(shape.columns));
    for (int32_t r = panel_begin * PANEL_ROWS; r < std::min(panel_end * PANEL_ROWS, shape.rows);
         r++) {
        tensor_row(tensor, static_cast<uint64_t>(order(r)), row.data());
        std::byte* panel = data + (r / PANEL_ROWS - panel_begin) * shape.panel_bytes;
        std::byte* scales = panel + int64_t{groups} * chunks * CHUNK_BYTES;
        std::byte* minima = scales + int64_t{groups} * PANEL_ROWS * 2;
        const int32_t lane = r % PANEL_ROWS;
        for (int32_t g = 0; g < groups; g++) {
            QuantisedGroup group;
            const float* weights = row.data() + int64_t{g} * GROUP_COLUMNS;
            if (!(bytes ? quantise_int8(weights, &group) : quantise_int4(weights, &group)))
                return false;
            if (!bytes) // the second half of the columns lies above the first
                for (int32_t i = 0; i < GROUP_COLUMNS / 2; i++)
                    group.values[i] = static_cast<uint8_t>(
                        group.values[i] | group.values[i + GROUP_COLUMNS / 2] << 4);
            std::byte* chunk = panel + int64_t{g} * chunks * CHUNK_BYTES + lane * WORD_BYTES;
            for (int32_t c = 0; c < chunks; c++)
                std::memcpy(chunk + c * CHUNK_BYTES, group.values + c * WORD_BYTES, WORD_BYTES);
            int64_t at = (int64_t{g} * PANEL_ROWS + lane) * 2;
            std::memcpy(scales + at, &group.scale, sizeof group.scale);
            if (!bytes) std::memcpy(minima + at, &group.minimum, sizeof group.minimum);
        }
    }
    return true;
}

} // namespace sublimate

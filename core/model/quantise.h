// Weights of 16 and 32 bits as integers of 8 or 4, a scale for each 32 of a row, while they are
// packed. The panels are those of the files' own types, so the kernels are too.
//
//   int8   w = d * (u - 128), as Q8_0: d takes the largest weight to 127, or is the
//          next half above, whichever has the least squared error
//   int4   w = d * u + m, u in [0, 15], as Q4_1. For each of FIT_CANDIDATES ranges somewhat wider
//          and narrower than the weights' own they are rounded, d and m are fitted to what came
//          out by least squares, and the weights are rounded anew; the one with the least squared
//          error stays
//
// Embeddings and head are int8 with int4 too: what a token is, and which one is likeliest, is told
// apart by less than the layers' weights are (docs/convert.md has what it costs). What chooses
// experts stays as it is, as do matrices whose rows are no whole groups of 32.
//
// defines: QuantisedGroup, quantise_name, quantise_from_name, is_float_type, check_quantises,
// quantises, quantised_shape, quantise_int8, quantise_int4, quantise_panels
#pragma once

#include <cstdint>
#include <string_view>

#include "pack.h"

namespace sublimate {

constexpr int32_t FIT_CANDIDATES = 9;

// 32 weights: halves as they lie in panels.
struct QuantisedGroup {
    uint16_t scale;   // d
    uint16_t minimum; // m; int8: 0
    uint8_t values[cpu::GROUP_COLUMNS];
};

const char* quantise_name(Quantise quantise); // "" for none; null: no such thing
bool quantise_from_name(std::string_view name, Quantise* quantise);

// F32, F16 and BF16.
bool is_float_type(TensorType type);

// That there is something to quantise, and nothing that is already.
Status check_quantises(const Gguf& file, Quantise asked);

// As what a tensor of float type is packed if `asked` is asked for.
Quantise quantises(const GgufTensor& tensor, Quantise asked);

// The packed form, without data.
cpu::PackedMatrix quantised_shape(const GgufTensor& tensor, Quantise quantise);

// weights: (32). False where one is not finite or no half can be the scale.
bool quantise_int8(const float* weights, QuantisedGroup* group);
bool quantise_int4(const float* weights, QuantisedGroup* group);

// As pack_panels. False: some group cannot be quantised, and what lies at `data` is of no use.
bool quantise_panels(const GgufTensor& tensor, const cpu::PackedMatrix& shape, int32_t panel_begin,
                     int32_t panel_end, std::byte* data, const RowOrder& order);

} // namespace sublimate

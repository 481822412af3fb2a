// The seam between the loop and whatever computes: one Step in, logits out. The CPU model, the CUDA
// model, the scripted engine and the simulator's hash model all implement the same concept, so the
// same loop drives them.
#pragma once

#include <cstdint>

#include "../limits.h"

namespace sublimate {

// Two arithmetics, each with the same bits for any number of rows (see ARCHITECTURE, "Bits").
enum class Arithmetic : int32_t { prompt = 0, generated = 1 };

// Consecutive positions of one sequence that a step computes.
struct Segment {
    int32_t sequence;       // row of Step::page_tables
    int32_t first_row;      // first row of the step that belongs to it
    int32_t row_count;      // >= 1
    int32_t first_position; // absolute position of first_row
    int32_t prompt_length;  // of the request; positions >= it are generated
    Arithmetic arithmetic;
    int32_t adapter;
    int32_t tenant_low;
    int32_t tenant_high;
};

struct Step {
    int32_t row_count;          // <= STEP_ROWS_MAX
    int32_t segment_count;      // <= SEQUENCES_MAX
    int32_t logit_row_count;    // <= LOGIT_ROWS_MAX
    int32_t page_table_stride;  // int32 entries per sequence
    const int32_t* tokens;      // (row) each in [0, vocabulary)
    const int32_t* positions;   // (row)
    const Segment* segments;    // (segment) in row order
    const int32_t* logit_rows;  // (logit_row) ascending rows whose logits are wanted
    const int32_t* page_tables; // (sequence, page_table_stride) page ids; positions < end mapped
};

// concept Model:
//   int32_t vocabulary() const;
//   // Writes KV of every row into its page, then returns logits (logit_row, vocabulary), valid
//   // until the next call. Rows never share statistics. No allocation.
//   const float* forward(const Step& step);
//   // Calls body(i) for i in [0, count), in any order, possibly on several threads; returns when
//   // all are done.
//   template <class Body> void for_rows(int32_t count, Body&& body);
//   // Optional; of the last step, for people: bit 0 is the model's Phase, bit 1 that generated
//   rows
//   // took the prompt's arithmetic.
//   int32_t kernels() const;
//   // Vector primitives the sampler uses; a twin of each is in loop/sampler_ops.h.
//   const SamplerOps& sampler_ops() const;

} // namespace sublimate

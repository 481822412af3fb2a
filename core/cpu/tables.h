// The tables of the instruction sets, for the dispatcher alone: everyone else asks ops_for. They
// are constants, so that reading one runs no code of its object.
#pragma once

#include "ops.h"

namespace sublimate::cpu {

extern const Ops REF_OPS;
extern const Ops PORTABLE_OPS;
extern const Ops AVX2_OPS;
extern const Ops AVX512_OPS;

// What AMX computes on tiles. The dispatcher joins them with AVX512_OPS to a table.
void amx_matmul(const PackedMatrix& matrix, const Activations& x, int32_t row_begin,
                int32_t row_end, int32_t panel_begin, int32_t panel_end, float* out,
                int64_t out_stride);
void amx_matmul_prompt(const PackedMatrix& matrix, const Activations& x, int32_t row_begin,
                       int32_t row_end, int32_t panel_begin, int32_t panel_end, float* out,
                       int64_t out_stride);
void amx_attention_prompt(const AttentionCall& call, const KvLayout& layout);

// A failed CHECK inside a kernel. Defined in the dispatcher's baseline object: an inline function
// would also be compiled for the kernel's instruction set, and the linker keeps any one of the
// copies.
[[noreturn]] void misuse(const char* why);

} // namespace sublimate::cpu

// CHECK for code that is compiled once per instruction set.
#define KERNEL_CHECK(condition, why) (__builtin_expect(!(condition), 0) ? misuse(why) : void())

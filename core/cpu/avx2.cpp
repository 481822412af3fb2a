// AVX2 with FMA and F16C: the table of x86-64 machines since 2013 that lack AVX-512.
//
// defines: AVX2_OPS
#include "lanes_avx2.inl.h"

#include "dot_avx2.inl.h"

#include "attention.inl.h"
#include "kernels.inl.h"
#include "low_rank.inl.h"
#include "matmul.inl.h"

namespace sublimate::cpu {

constinit const Ops AVX2_OPS = {
    .name = "avx2",
    .isa = Isa::avx2,
    .rms_norm = rms_norm,
    .quantise = quantise,
    .add_halves = add_halves,
    .to_bf16 = to_bf16,
    .matmul = matmul,
    .matmul_prompt = matmul,
    .low_rank = low_rank,
    .rope = rope,
    .hadamard = hadamard,
    .kv_append = kv_append,
    .attention = attention,
    .attention_prompt = attention,
    .swiglu = swiglu,
    .geglu = geglu,
    .add = add,
    .argmax = argmax,
    .max_value = max_value,
    .sum_exp = sum_exp,
    .all_finite = all_finite,
    .gumbel_argmax = gumbel_argmax,
};

} // namespace sublimate::cpu

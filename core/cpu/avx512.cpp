// AVX-512 with VNNI: the table of machines since Ice Lake and Zen 4.
//
// defines: AVX512_OPS
#include "lanes_avx512.inl.h"

#include "dot_avx512.inl.h"

#include "attention.inl.h"
#include "kernels.inl.h"
#include "low_rank.inl.h"
#include "matmul.inl.h"

namespace sublimate::cpu {

constinit const Ops AVX512_OPS = {
    .name = "avx512",
    .isa = Isa::avx512,
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

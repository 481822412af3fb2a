// The baseline: the tuned table without intrinsics, for any 64-bit machine.
//
// defines: PORTABLE_OPS
#include "lanes_portable.inl.h"

#include "dot_portable.inl.h"

#include "attention.inl.h"
#include "kernels.inl.h"
#include "low_rank.inl.h"
#include "matmul.inl.h"

namespace sublimate::cpu {

constinit const Ops PORTABLE_OPS = {
    .name = "portable",
    .isa = Isa::portable,
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

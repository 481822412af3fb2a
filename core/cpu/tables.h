// The tables of the instruction sets, for the dispatcher alone: everyone else asks ops_for. They
// are constants, so that reading one runs no code of its object.
#pragma once

#include "ops.h"

namespace sublimate::cpu {

extern const Ops REF_OPS;
extern const Ops PORTABLE_OPS;
extern const Ops AVX2_OPS;
extern const Ops AVX512_OPS;
extern const Ops AMX_OPS;

// A failed CHECK inside a kernel. Defined in the dispatcher's baseline object: an inline function would also be
// compiled for the kernel's instruction set, and the linker keeps any one of the copies.
[[noreturn]] void misuse(const char* why);

} // namespace sublimate::cpu

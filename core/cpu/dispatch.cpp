// Chooses the instruction set: what the CPU has (CPUID), what the operating system saves on a
// context switch (XGETBV), and for AMX what the kernel lets this process use. Sources: Intel SDM
// volume 1, chapters 13.3, 14.3, 15.2 and 18; Linux, Documentation/arch/x86/xstate.rst.
//
// defines: ops_for, isa_runs, best_isa, asked_isa, equal_ops, isa_name, isa_from_name
#include "../check.h"
#include "tables.h"

#include <cpuid.h>
#include <cstdlib>
#include <cstring>
#include <sys/syscall.h>
#include <unistd.h>

namespace sublimate::cpu {
namespace {

constexpr Isa ALL_ISAS[] = {Isa::ref, Isa::portable, Isa::avx2, Isa::avx512, Isa::amx};

// Bits of CPUID leaf 1 (ecx), leaf 7.0 (ebx, ecx, edx) and leaf 7.1 (eax).
constexpr uint32_t LEAF1_ECX_AVX2 =
    1u << 12 | 1u << 27 | 1u << 28 | 1u << 29; // fma, osxsave, avx, f16c
constexpr uint32_t LEAF7_EBX_AVX2 = 1u << 5;
constexpr uint32_t LEAF7_EBX_AVX512 = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31; // f, dq, bw, vl
constexpr uint32_t LEAF7_ECX_AVX512 = 1u << 11;                                  // vnni
constexpr uint32_t LEAF71_EAX_AVX512 = 1u << 5;                                  // bf16
constexpr uint32_t LEAF7_EDX_AMX = 1u << 22 | 1u << 24 | 1u << 25;               // bf16, tile, int8

// State components the operating system saves (XCR0).
constexpr uint32_t XCR0_AVX = 1u << 1 | 1u << 2;
constexpr uint32_t XCR0_AVX512 = XCR0_AVX | 1u << 5 | 1u << 6 | 1u << 7;
constexpr uint32_t XCR0_AMX = XCR0_AVX512 | 1u << 17 | 1u << 18;

constexpr long ARCH_REQ_XCOMP_PERM = 0x1023;
constexpr long XFEATURE_TILE_DATA = 18;

struct Registers {
    uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};

Registers cpuid(uint32_t leaf, uint32_t subleaf) {
    Registers r;
    if (__get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx) == 0) return Registers{};
    return r;
}

bool has(uint32_t value, uint32_t bits) {
    return (value & bits) == bits;
}

uint32_t saved_state() {
    uint32_t low = 0;
    uint32_t high = 0;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

// The kernel allocates the 8 KiB of tile state of a thread only for a process that asked once.
bool tiles_allowed() {
    static const bool allowed =
        syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_TILE_DATA) == 0;
    return allowed;
}

bool detect(Isa isa) {
    if (isa == Isa::ref || isa == Isa::portable) return true;
    const Registers leaf1 = cpuid(1, 0);
    const Registers leaf7 = cpuid(7, 0);
    if (!has(leaf1.ecx, LEAF1_ECX_AVX2) || !has(leaf7.ebx, LEAF7_EBX_AVX2)) return false;
    const uint32_t state = saved_state(); // osxsave was among the bits, so that xgetbv exists
    if (!has(state, XCR0_AVX)) return false;
    if (isa == Isa::avx2) return true;
    const bool avx512 = has(leaf7.ebx, LEAF7_EBX_AVX512) && has(leaf7.ecx, LEAF7_ECX_AVX512) &&
                        has(cpuid(7, 1).eax, LEAF71_EAX_AVX512) && has(state, XCR0_AVX512);
    if (isa == Isa::avx512) return avx512;
    return avx512 && has(leaf7.edx, LEAF7_EDX_AMX) && has(state, XCR0_AMX) && tiles_allowed();
}

const Ops& amx_table() {
    static const Ops ops = [] {
        Ops joined = AVX512_OPS;
        joined.name = "amx";
        joined.isa = Isa::amx;
        joined.matmul = amx_matmul;
        joined.matmul_prompt = amx_matmul_prompt;
        joined.attention_prompt = amx_attention_prompt;
        return joined;
    }();
    return ops;
}

// Batches of generated rows on VNNI, whose exact sums are those of the int8 tiles.
const Ops& amx_prompt_table() {
    static const Ops ops = [] {
        Ops joined = amx_table();
        joined.name = "amx for prompts, avx512";
        joined.matmul = AVX512_OPS.matmul;
        return joined;
    }();
    return ops;
}

const Ops* table(Isa isa) {
    switch (isa) {
    case Isa::ref:
        return &REF_OPS;
    case Isa::portable:
        return &PORTABLE_OPS;
    case Isa::avx2:
        return &AVX2_OPS;
    case Isa::avx512:
        return &AVX512_OPS;
    case Isa::amx:
        return &amx_table();
    }
    return nullptr;
}

} // namespace

void misuse(const char* why) {
    check_failed(__FILE__, __LINE__, "a kernel's arguments", why);
}

bool isa_runs(Isa isa) {
    return table(isa) != nullptr && detect(isa);
}

const Ops& ops_for(Isa isa) {
    CHECK_BECAUSE(isa_runs(isa), "this machine lacks the instruction set; ask isa_runs first");
    return *table(isa);
}

bool asked_isa(Isa* isa) {
    const char* wanted = std::getenv("SUBLIMATE_ISA");
    return wanted != nullptr && isa_from_name(wanted, isa) && isa_runs(*isa);
}

Isa best_isa() {
    Isa best = Isa::ref;
    if (asked_isa(&best)) return best;
    best = Isa::ref;
    for (Isa isa : ALL_ISAS) {
        if (isa_runs(isa)) best = isa;
    }
    return best;
}

std::vector<const Ops*> equal_ops(Isa isa) {
    std::vector<const Ops*> equal = {&ops_for(isa)};
    if (isa == Isa::avx512) equal.push_back(&AVX2_OPS);
    if (isa == Isa::amx) equal.push_back(&amx_prompt_table());
    return equal;
}

const char* isa_name(Isa isa) {
    switch (isa) {
    case Isa::ref:
        return "ref";
    case Isa::portable:
        return "portable";
    case Isa::avx2:
        return "avx2";
    case Isa::avx512:
        return "avx512";
    case Isa::amx:
        return "amx";
    }
    return "unknown";
}

bool isa_from_name(const char* name, Isa* isa) {
    for (Isa candidate : ALL_ISAS) {
        if (std::strcmp(name, isa_name(candidate)) == 0) {
            *isa = candidate;
            return true;
        }
    }
    return false;
}

} // namespace sublimate::cpu

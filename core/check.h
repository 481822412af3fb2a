// The project's one assertion. A CHECK that fails is a bug in this program, never a client's fault:
// it prints where and why and aborts, in release builds too. A client's or the world's fault is a
// Status value instead.
#pragma once

#include <cstdio>
#include <cstdlib>

#if defined(__CUDACC__)
#define SUBLIMATE_HD __host__ __device__
#else
#define SUBLIMATE_HD
#endif

namespace sublimate {

// A copy of a constant array for use inside a function that also compiles for a device: device code
// cannot read a host constant array by a run-time index, but a local constant it can.
//   constexpr auto words = constant_table(limits::SLOT_WORDS);  ... words.at[i] ...
template <class T, int N>
struct ConstantTable {
    T at[N];
};

template <class T, int N>
SUBLIMATE_HD constexpr ConstantTable<T, N> constant_table(const T (&values)[N]) {
    ConstantTable<T, N> table = {};
    for (int i = 0; i < N; i++) table.at[i] = values[i];
    return table;
}

// Cold and out of line, so that a CHECK costs one compare and one never-taken branch.
[[noreturn]] inline SUBLIMATE_HD void check_failed(const char* file, int line, const char* text,
                                                   const char* why) {
#if defined(__CUDA_ARCH__)
    printf("CHECK failed at %s:%d: %s (%s)\n", file, line, text, why);
    __trap();
#else
    std::fprintf(stderr, "CHECK failed at %s:%d: %s (%s)\n", file, line, text, why);
    std::fflush(stderr);
    std::abort();
#endif
}

} // namespace sublimate

#define CHECK(condition)                                                                           \
    (static_cast<bool>(condition)                                                                  \
         ? static_cast<void>(0)                                                                    \
         : ::sublimate::check_failed(__FILE__, __LINE__, #condition, "invariant"))
#define CHECK_BECAUSE(condition, why)                                                              \
    (static_cast<bool>(condition)                                                                  \
         ? static_cast<void>(0)                                                                    \
         : ::sublimate::check_failed(__FILE__, __LINE__, #condition, why))

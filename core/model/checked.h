// The one place where numbers from a file are added and multiplied. Each function returns false
// instead of wrapping, and the result is unusable without looking at that.
//
// defines: checked_add, checked_multiply, checked_align
#pragma once

#include <cstdint>

namespace sublimate {

[[nodiscard]] inline bool checked_add(uint64_t a, uint64_t b, uint64_t* sum) {
    return !__builtin_add_overflow(a, b, sum);
}

[[nodiscard]] inline bool checked_multiply(uint64_t a, uint64_t b, uint64_t* product) {
    return !__builtin_mul_overflow(a, b, product);
}

// Rounds up to a multiple of `alignment`, a power of two (the caller has checked that).
[[nodiscard]] inline bool checked_align(uint64_t value, uint64_t alignment, uint64_t* aligned) {
    uint64_t sum = 0;
    if (!checked_add(value, alignment - 1, &sum)) return false;
    *aligned = sum & ~(alignment - 1);
    return true;
}

} // namespace sublimate

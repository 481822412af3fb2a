// What the C++ tests share: an expectation that reports and counts, so that a program shows all its
// failures.
//
// defines: EXPECT, EXPECT_EQUAL, test_result, Random
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <iostream>

namespace sublimate::test {

inline std::atomic<int> failures = 0;

inline void expect(bool condition, const char* text, const char* file, int line) {
    if (condition) return;
    failures++;
    std::printf("%s:%d: expected %s\n", file, line, text);
}

template <class A, class B>
void expect_equal(const A& actual, const B& wanted, const char* text, const char* file, int line) {
    if (actual == wanted) return;
    failures++;
    std::cout << file << ":" << line << ": " << text << " is " << actual << ", wanted " << wanted
              << std::endl;
}

// The exit code of the program.
inline int test_result() {
    std::printf("%s, %d failures\n", failures == 0 ? "passed" : "FAILED", failures.load());
    return failures == 0 ? 0 : 1;
}

// SplitMix64 (Steele, Lea, Flood, OOPSLA 2014): small, seeded, the same everywhere.
class Random {
public:
    explicit Random(uint64_t seed) : state_(seed) {}
    uint64_t next() {
        uint64_t z = (state_ += 0x9E3779B97F4A7C15);
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
        return z ^ (z >> 31);
    }
    // In [0, bound).
    int32_t below(int32_t bound) {
        return static_cast<int32_t>(next() % static_cast<uint64_t>(bound));
    }

private:
    uint64_t state_;
};

} // namespace sublimate::test

#define EXPECT(condition) ::sublimate::test::expect((condition), #condition, __FILE__, __LINE__)
#define EXPECT_EQUAL(actual, wanted)                                                               \
    ::sublimate::test::expect_equal((actual), (wanted), #actual, __FILE__, __LINE__)

// A small test harness: TEST registers, the main below runs all tests or those whose name contains
// an argument, EXPECT reports and goes on. Exit code 1 on a failure; the last line counts.
//
// defines: TEST, EXPECT, EXPECT_EQ, EXPECT_NEAR, main
#pragma once

#include <cmath>
#include <cstdio>
#include <cstring>
#include <sstream>
#include <vector>

namespace sublimate::test {

struct Case {
    const char* name;
    void (*body)();
};

inline std::vector<Case>& cases() {
    static std::vector<Case> all;
    return all;
}

inline int failures = 0; // of the running test

inline bool add(const char* name, void (*body)()) {
    cases().push_back({name, body});
    return true;
}

inline void fail(const char* file, int line, const std::string& what) {
    failures++;
    std::printf("%s:%d: %s\n", file, line, what.c_str());
}

template <class A, class B>
void expect_equal(const A& a, const B& b, const char* text, const char* file, int line) {
    if (a == b) return;
    std::ostringstream what;
    what << text << ": " << a << " is not " << b;
    fail(file, line, what.str());
}

inline int run(int count, char** names) {
    int passed = 0;
    int failed = 0;
    for (const Case& test : cases()) {
        bool wanted = count < 2;
        for (int i = 1; i < count; i++) wanted |= std::strstr(test.name, names[i]) != nullptr;
        if (!wanted) continue;
        failures = 0;
        test.body();
        (failures == 0 ? passed : failed)++;
        if (failures > 0) std::printf("FAILED %s\n", test.name);
    }
    std::printf("%d passed, %d failed\n", passed, failed);
    return failed > 0 || passed == 0 ? 1 : 0;
}

} // namespace sublimate::test

#define TEST(name)                                                                                 \
    static void test_##name();                                                                     \
    [[maybe_unused]] static const bool added_##name = ::sublimate::test::add(#name, test_##name);  \
    static void test_##name()

#define EXPECT(condition)                                                                          \
    ((condition) ? static_cast<void>(0)                                                            \
                 : ::sublimate::test::fail(__FILE__, __LINE__, "expected " #condition))
#define EXPECT_EQ(a, b) ::sublimate::test::expect_equal((a), (b), #a " == " #b, __FILE__, __LINE__)
#define EXPECT_NEAR(a, b, most)                                                                    \
    (std::fabs((a) - (b)) <= (most)                                                                \
         ? static_cast<void>(0)                                                                    \
         : ::sublimate::test::fail(__FILE__, __LINE__,                                             \
                                   "expected " #a " near " #b + (": " + std::to_string(a)) +       \
                                       " and " + std::to_string(b)))

int main(int count, char** names) {
    return sublimate::test::run(count, names);
}

// The fuzzer that must fail: a planted fault behind four byte comparisons. When a run of this
// target finds nothing, the fuzzing set-up is broken and the silence of the other targets means
// nothing.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    if (size >= 4 && data[0] == 'S' && data[1] == 'U' && data[2] == 'B' && data[3] == 'L')
        std::abort();
    return 0;
}

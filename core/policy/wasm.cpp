// The decision function as a WebAssembly module: memory, decide, policy_digest and where the
// caller's own memory begins (__heap_base). core/policy/wasm.sh builds it; clients/policy has the
// result and its caller in JavaScript. No other program has this file.
#include "decide.h"

using sublimate::Border;
using sublimate::Decision;
using sublimate::DecisionInput;

// All three in the caller's memory; borders may be of no length.
extern "C" __attribute__((export_name("decide"))) void
decide(const DecisionInput* in, const Border* borders, int32_t border_count, Decision* out) {
    *out = sublimate::decide(*in, borders, border_count);
}

// 64 characters and a null.
extern "C" __attribute__((export_name("policy_digest"))) const char* policy_digest() {
    return sublimate::LAYER_POLICY_DIGEST;
}

// A freestanding compiler still calls these two for whole structs.
extern "C" void* memcpy(void* to, const void* from, __SIZE_TYPE__ bytes) {
    auto* out = static_cast<volatile char*>(to);
    for (__SIZE_TYPE__ i = 0; i < bytes; i++) out[i] = static_cast<const char*>(from)[i];
    return to;
}

extern "C" void* memset(void* to, int value, __SIZE_TYPE__ bytes) {
    auto* out = static_cast<volatile char*>(to);
    for (__SIZE_TYPE__ i = 0; i < bytes; i++) out[i] = static_cast<char>(value);
    return to;
}

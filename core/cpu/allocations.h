// A test hook: counts heap allocations on threads that must not make any once the model is loaded.
//
// defines: watch_allocations, heap_allocations
#pragma once

#include <cstdint>

namespace sublimate::cpu {

// Whether allocations of the calling thread are counted from now on.
void watch_allocations(bool watched);

// Allocations by operator new on watched threads since the process started.
int64_t heap_allocations();

} // namespace sublimate::cpu

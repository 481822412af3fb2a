// Replaces the global operator new and delete of whatever this is linked into, so that counting
// needs no change to the code that is watched. Costs one thread-local test per allocation.
#include "allocations.h"

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace {

thread_local bool watched_thread = false;
std::atomic<int64_t> allocations{0};

void* try_allocate(std::size_t bytes, std::size_t alignment) {
    if (watched_thread) allocations.fetch_add(1, std::memory_order_relaxed);
    if (bytes == 0) bytes = 1;
    void* memory = nullptr;
    if (alignment <= alignof(max_align_t)) {
        memory = std::malloc(bytes);
    } else if (posix_memalign(&memory, alignment, bytes) != 0) {
        memory = nullptr;
    }
    return memory;
}

void* allocate(std::size_t bytes, std::size_t alignment) {
    void* memory = try_allocate(bytes, alignment);
    if (memory == nullptr) throw std::bad_alloc();
    return memory;
}

} // namespace

namespace sublimate::cpu {

void watch_allocations(bool watched) {
    watched_thread = watched;
}

int64_t heap_allocations() {
    return allocations.load(std::memory_order_relaxed);
}

} // namespace sublimate::cpu

// All forms, so that none is left to a sanitizer's or another library's version and meets a foreign
// pair.
void* operator new(std::size_t bytes) {
    return allocate(bytes, 0);
}
void* operator new[](std::size_t bytes) {
    return allocate(bytes, 0);
}
void* operator new(std::size_t bytes, std::align_val_t alignment) {
    return allocate(bytes, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t bytes, std::align_val_t alignment) {
    return allocate(bytes, static_cast<std::size_t>(alignment));
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
    return try_allocate(bytes, 0);
}
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept {
    return try_allocate(bytes, 0);
}
void* operator new(std::size_t bytes, std::align_val_t alignment, const std::nothrow_t&) noexcept {
    return try_allocate(bytes, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t bytes, std::align_val_t alignment,
                     const std::nothrow_t&) noexcept {
    return try_allocate(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept {
    std::free(memory);
}
void operator delete[](void* memory) noexcept {
    std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
    std::free(memory);
}
void operator delete[](void* memory, std::size_t) noexcept {
    std::free(memory);
}
void operator delete(void* memory, std::align_val_t) noexcept {
    std::free(memory);
}
void operator delete[](void* memory, std::align_val_t) noexcept {
    std::free(memory);
}
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
    std::free(memory);
}
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept {
    std::free(memory);
}
void operator delete(void* memory, const std::nothrow_t&) noexcept {
    std::free(memory);
}
void operator delete[](void* memory, const std::nothrow_t&) noexcept {
    std::free(memory);
}

// A map of the kernel as the server sees it: by its descriptor, through system calls.
//
// defines: KernelMap
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace sublimate {

// Owns no descriptor. Errors are negative errnos; a missing element is -ENOENT.
class KernelMap {
public:
    KernelMap(int fd, int32_t key_bytes, int32_t value_bytes);

    int32_t key_bytes() const { return key_bytes_; }
    int32_t value_bytes() const { return value_bytes_; }

    int lookup(std::span<const uint8_t> key, std::span<uint8_t> value) const;
    int update(std::span<const uint8_t> key, std::span<const uint8_t> value) const;
    int remove(std::span<const uint8_t> key) const;

    // All elements, one behind the other in either vector: each once that stays meanwhile. Returns
    // how many, or a negative errno. A LRU's order of use is not touched.
    int64_t read(std::vector<uint8_t>& keys, std::vector<uint8_t>& values) const;

    // Removes all, and returns how many, or a negative errno.
    int64_t clear() const;

private:
    int fd_;
    int32_t key_bytes_;
    int32_t value_bytes_;
};

} // namespace sublimate

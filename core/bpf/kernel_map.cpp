// Reads a map in batches: one call per element would be a walk of its buckets each.
//
// defines: KernelMap
#include "kernel_map.h"

#include <cerrno>

#include "../check.h"
#include "system_call.h"

namespace sublimate {

namespace {

// Elements of one call. A bucket of a hash map must fit (else -ENOSPC), so it grows when it does
// not.
constexpr uint32_t BATCH_ELEMENTS = 4096;
constexpr uint32_t BATCH_ELEMENTS_MAX = 1 << 20;
constexpr uint64_t ANY = 0; // flags: create or replace
static_assert(BATCH_ELEMENTS < BATCH_ELEMENTS_MAX);

} // namespace

KernelMap::KernelMap(int fd, int32_t key_bytes, int32_t value_bytes)
    : fd_(fd), key_bytes_(key_bytes), value_bytes_(value_bytes) {
    CHECK(fd >= 0);
    CHECK(key_bytes > 0 && value_bytes > 0);
}

int KernelMap::lookup(std::span<const uint8_t> key, std::span<uint8_t> value) const {
    CHECK(std::ssize(key) == key_bytes_ && std::ssize(value) == value_bytes_);
    return bpf_lookup_element(fd_, key.data(), value.data());
}

int KernelMap::update(std::span<const uint8_t> key, std::span<const uint8_t> value) const {
    CHECK(std::ssize(key) == key_bytes_ && std::ssize(value) == value_bytes_);
    return bpf_update_element(fd_, key.data(), value.data(), ANY);
}

int KernelMap::remove(std::span<const uint8_t> key) const {
    CHECK(std::ssize(key) == key_bytes_);
    return bpf_delete_element(fd_, key.data());
}

int64_t KernelMap::read(std::vector<uint8_t>& keys, std::vector<uint8_t>& values) const {
    uint64_t at = 0; // where the next batch starts: the kernel's own word
    uint32_t batch = BATCH_ELEMENTS;
    size_t count = 0;
    int result = 0;
    do {
        keys.resize((count + batch) * key_bytes_);
        values.resize((count + batch) * value_bytes_);
        uint32_t came = batch;
        result = bpf_lookup_batch(fd_, count == 0, &at, keys.data() + count * key_bytes_,
                                  values.data() + count * value_bytes_, &came);
        if (result == -ENOSPC && batch < BATCH_ELEMENTS_MAX) {
            batch *= 2;
            result = 0;
            continue;
        }
        if (result < 0 && result != -ENOENT) return result;
        CHECK(came <= batch);
        CHECK((count + came) * key_bytes_ <= keys.size());
        count += came;
    } while (result == 0);
    keys.resize(count * key_bytes_);
    values.resize(count * value_bytes_);
    return static_cast<int64_t>(count);
}

int64_t KernelMap::clear() const {
    std::vector<uint8_t> keys;
    std::vector<uint8_t> values;
    int64_t count = read(keys, values);
    CHECK(count < 0 || std::ssize(keys) == count * key_bytes_);
    for (int64_t i = 0; i < count; i++) {
        int error = bpf_delete_element(fd_, keys.data() + i * key_bytes_);
        if (error < 0 && error != -ENOENT) return error; // what is gone meanwhile is gone
    }
    return count;
}

} // namespace sublimate

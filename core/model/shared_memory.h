// Memory that several processes can map: a memfd that its maker fills and then seals, so that from
// there on nobody, the maker included, can write or resize it. In huge pages where the kernel gives
// them: MADV_COLLAPSE (Linux 6.1) does so whatever
// /sys/kernel/mm/transparent_hugepage/shmem_enabled says, unless it says "deny".
//
// defines: SharedMemory, one_memory_node
#pragma once

#include <cstddef>
#include <cstdint>

#include "status.h"

namespace sublimate {

class SharedMemory {
public:
    SharedMemory() = default;
    ~SharedMemory();
    SharedMemory(SharedMemory&& other) noexcept;
    SharedMemory& operator=(SharedMemory&& other) noexcept;

    // Zeroed, writable. `purpose` names the memory in the error.
    static Status create(int64_t bytes, const char* purpose, SharedMemory* memory);

    // Ends all writing. The bytes stay where they are.
    Status seal();

    // What another process has sealed, for reading. Duplicates the descriptor.
    static Status attach(int fd, SharedMemory* memory);

    std::byte* data() const { return data_; } // null: there is none
    int64_t size() const { return static_cast<int64_t>(size_bytes_); }
    int fd() const { return fd_; } // -1: there is none
    bool huge_pages() const { return huge_pages_; }

private:
    bool map(int protection, int kind);

    std::byte* data_ = nullptr;
    size_t size_bytes_ = 0;
    int fd_ = -1;
    bool huge_pages_ = false;
    bool sealed_ = false;
};

// All memory is equally near to all cores.
bool one_memory_node();

} // namespace sublimate

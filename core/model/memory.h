// Memory taken from the kernel once, at load: a read-only file, or zeroed anonymous pages that
// become real when they are first touched (so the touching thread decides where they lie).
//
// defines: HUGE_PAGE_BYTES, reserve_aligned, FileIdentity, FilePart, FileMapping, AnonymousMemory
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "status.h"

namespace sublimate {

constexpr size_t HUGE_PAGE_BYTES = size_t{2} << 20;

// Addresses for whole huge pages, from where they can be mapped as such; null: there are none.
void* reserve_aligned(size_t bytes);

// Which file, and which content of it as far as its times tell. No padding: compared byte by byte.
struct FileIdentity {
    uint64_t device = 0;
    uint64_t inode = 0;
    int64_t size_bytes = 0;
    int64_t modified_ns = 0;
    int64_t changed_ns = 0; // also by what sets the time of modification
};

// A file that had this length when somebody looked at what lies where in it.
struct FilePart {
    std::string path;
    int64_t size_bytes = 0;
};

class FileMapping {
public:
    FileMapping() = default;
    ~FileMapping();
    FileMapping(FileMapping&& other) noexcept;
    FileMapping& operator=(FileMapping&& other) noexcept;

    // Regular files only. An empty file is an error, since it cannot be mapped. What lies at a
    // multiple of a huge page in the file does so in memory.
    static Status open(const std::string& path, FileMapping* mapping);
    // As if they were one file: a copy of `front`, then each file, all from a page border on. The
    // identity is a digest of all theirs and of `front`.
    static Status join(std::span<const std::byte> front, const std::vector<FilePart>& files,
                       FileMapping* mapping);
    std::span<const std::byte> bytes() const { return {data_, size_bytes_}; }
    // The first `bytes` of them are a copy from now on, of an opened file: what was checked there
    // stays as it was, and to read it is no SIGBUS, whatever becomes of the file. A further call
    // copies more. Error: they are not there any more, or cannot be read.
    Status copy_front(uint64_t bytes);
    void close_file(); // nothing more is to be copied
    const FileIdentity& identity() const { return identity_; }
    // That a part will be read, all of it and often: read ahead, in huge pages where the file
    // system has them.
    void expect_reads(std::span<const std::byte> part) const;

private:
    const std::byte* data_ = nullptr;
    size_t size_bytes_ = 0;
    size_t mapped_bytes_ = 0; // with the addresses behind it
    size_t copied_bytes_ = 0; // whole pages, or all of it
    int descriptor_ = -1;     // while something may be copied
    FileIdentity identity_;
};

class AnonymousMemory {
public:
    AnonymousMemory() = default;
    ~AnonymousMemory();
    AnonymousMemory(AnonymousMemory&& other) noexcept;
    AnonymousMemory& operator=(AnonymousMemory&& other) noexcept;

    // Asks for huge pages; works without them. `purpose` names the memory in the error.
    static Status map(int64_t bytes, const char* purpose, AnonymousMemory* memory);
    std::byte* data() const { return data_; }
    int64_t size() const { return static_cast<int64_t>(size_bytes_); }

private:
    std::byte* data_ = nullptr;
    size_t size_bytes_ = 0;
};

} // namespace sublimate

// Wrappers of mmap that own what they map.
#include "memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace sublimate {

namespace {

constexpr size_t HUGE_PAGE_BYTES = size_t{2} << 20;

std::string with_reason(const std::string& what) {
    return what + ": " + std::strerror(errno);
}

int64_t nanoseconds(const timespec& time) {
    return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

FileIdentity identity_of(const struct stat& details) {
    return {details.st_dev, details.st_ino, details.st_size, nanoseconds(details.st_mtim),
            nanoseconds(details.st_ctim)};
}

} // namespace

FileMapping::~FileMapping() {
    if (data_ != nullptr) munmap(const_cast<std::byte*>(data_), size_bytes_);
}

FileMapping::FileMapping(FileMapping&& other) noexcept {
    *this = std::move(other);
}

FileMapping& FileMapping::operator=(FileMapping&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_bytes_, other.size_bytes_);
    std::swap(identity_, other.identity_);
    return *this;
}

Status FileMapping::open(const std::string& path, FileMapping* mapping) {
    int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) return Status::error(with_reason("cannot open " + path));
    struct stat details = {};
    Status status;
    if (fstat(descriptor, &details) != 0) {
        status = Status::error(with_reason("cannot read " + path));
    } else if (!S_ISREG(details.st_mode)) {
        status = Status::error(path + " is not a regular file");
    } else if (details.st_size <= 0) {
        status = Status::error(path + " is empty");
    } else {
        size_t size = static_cast<size_t>(details.st_size);
        void* data = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, descriptor, 0);
        if (data == MAP_FAILED) {
            status = Status::error(with_reason("cannot map " + path));
        } else {
            FileMapping fresh;
            fresh.data_ = static_cast<const std::byte*>(data);
            fresh.size_bytes_ = size;
            fresh.identity_ = identity_of(details);
            *mapping = std::move(fresh);
        }
    }
    close(descriptor);
    return status;
}

AnonymousMemory::~AnonymousMemory() {
    if (data_ != nullptr) munmap(data_, size_bytes_);
}

AnonymousMemory::AnonymousMemory(AnonymousMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_bytes_(std::exchange(other.size_bytes_, 0)) {
}

AnonymousMemory& AnonymousMemory::operator=(AnonymousMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_bytes_, other.size_bytes_);
    return *this;
}

Status AnonymousMemory::map(int64_t bytes, const char* purpose, AnonymousMemory* memory) {
    // Whole huge pages, so that the last part is backed by one as well.
    size_t size = static_cast<size_t>(bytes) / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES + HUGE_PAGE_BYTES;
    void* data = bytes < 0 ? MAP_FAILED
                           : mmap(nullptr, size, PROT_READ | PROT_WRITE,
                                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED)
        return Status::error(
            with_reason("cannot get " + std::to_string(bytes) + " bytes for " + purpose));
    // Refusal only costs speed, so the answer does not matter.
    static_cast<void>(madvise(data, size, MADV_HUGEPAGE));
    AnonymousMemory fresh;
    fresh.data_ = static_cast<std::byte*>(data);
    fresh.size_bytes_ = size;
    *memory = std::move(fresh);
    return Status::success();
}

} // namespace sublimate

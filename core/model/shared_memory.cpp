// SharedMemory: memfd, seals, mappings, huge pages.
#include "shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>
#include <utility>

#include "../check.h"
#include "../retry.h"
#include "memory.h"

namespace sublimate {

namespace {

// What older headers lack.
constexpr int COLLAPSE = 25;       // MADV_COLLAPSE
constexpr int FUTURE_WRITE = 0x10; // F_SEAL_FUTURE_WRITE
constexpr int SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | FUTURE_WRITE | F_SEAL_SEAL;
// How what nobody writes is mapped: none of its pages is ever copied, and unlike a shared mapping a
// private one is allowed over sealed memory before Linux 6.7 too.
constexpr int READERS = MAP_PRIVATE;

Status refused(const std::string& what) {
    return Status::error(what + ": " + std::strerror(errno));
}

} // namespace

SharedMemory::~SharedMemory() {
    if (data_ != nullptr) munmap(data_, size_bytes_);
    if (fd_ >= 0) close(fd_);
}

SharedMemory::SharedMemory(SharedMemory&& other) noexcept {
    *this = std::move(other);
}

SharedMemory& SharedMemory::operator=(SharedMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_bytes_, other.size_bytes_);
    std::swap(fd_, other.fd_);
    std::swap(huge_pages_, other.huge_pages_);
    std::swap(sealed_, other.sealed_);
    return *this;
}

// Over what is mapped already, if anything: in one step, and at the same place.
bool SharedMemory::map(int protection, int kind) {
    CHECK(fd_ >= 0 && size_bytes_ > 0 && size_bytes_ % HUGE_PAGE_BYTES == 0);
    void* place = data_ != nullptr ? data_ : reserve_aligned(size_bytes_);
    if (place == nullptr) return false;
    data_ = static_cast<std::byte*>(place); // to be unmapped, whatever comes
    return mmap(place, size_bytes_, protection, kind | MAP_FIXED, fd_, 0) != MAP_FAILED;
}

Status SharedMemory::create(int64_t bytes, const char* purpose, SharedMemory* memory) {
    CHECK(bytes > 0);
    SharedMemory fresh;
    fresh.size_bytes_ =
        (static_cast<size_t>(bytes) + HUGE_PAGE_BYTES - 1) / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
    fresh.fd_ = memfd_create("sublimate-weights", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    auto size = [&] { return ftruncate(fresh.fd_, static_cast<off_t>(fresh.size_bytes_)); };
    if (fresh.fd_ < 0 || retried(size) != 0 || !fresh.map(PROT_READ | PROT_WRITE, MAP_SHARED))
        return refused("cannot get " + std::to_string(bytes) + " shared bytes for " + purpose);
    // A huge page is made of what is there, so there must be something of each; the rest of it is
    // zeroed at once and not a small page at a time.
    for (size_t at = 0; at < fresh.size_bytes_; at += HUGE_PAGE_BYTES)
        fresh.data_[at] = std::byte{0};
    fresh.huge_pages_ = madvise(fresh.data_, fresh.size_bytes_, COLLAPSE) == 0;
    *memory = std::move(fresh);
    return Status::success();
}

Status SharedMemory::seal() {
    CHECK(data_ != nullptr && !sealed_);
    // The kernel refuses the seal while there is a mapping that could be made writable.
    if (!map(PROT_READ, READERS) || fcntl(fd_, F_ADD_SEALS, SEALS) != 0)
        return refused("cannot seal shared memory");
    sealed_ = true;
    return Status::success();
}

Status SharedMemory::attach(int fd, SharedMemory* memory) {
    SharedMemory fresh;
    fresh.fd_ = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (fresh.fd_ < 0) return refused("cannot open shared memory");
    int seals = fcntl(fresh.fd_, F_GET_SEALS);
    constexpr int NEEDED = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;
    if (seals < 0 || (seals & NEEDED) != NEEDED)
        return Status::error("shared memory is not sealed: somebody could still change it");
    struct stat about = {};
    if (fstat(fresh.fd_, &about) != 0) return refused("cannot open shared memory");
    fresh.size_bytes_ = static_cast<size_t>(about.st_size);
    if (about.st_size <= 0 || fresh.size_bytes_ % HUGE_PAGE_BYTES != 0)
        return Status::error("shared memory has a size that was not given to it here");
    if (!fresh.map(PROT_READ, READERS)) return refused("cannot map shared memory");
    // Where it lies in huge pages already, this only says so.
    fresh.huge_pages_ = madvise(fresh.data_, fresh.size_bytes_, COLLAPSE) == 0;
    fresh.sealed_ = true;
    *memory = std::move(fresh);
    return Status::success();
}

bool one_memory_node() {
    std::ifstream file("/sys/devices/system/node/has_memory"); // a list like "0-1,4"
    std::string nodes;
    return !(file >> nodes) || nodes.find_first_of("-,") == std::string::npos;
}

} // namespace sublimate

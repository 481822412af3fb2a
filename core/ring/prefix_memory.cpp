// PrefixMemory: memfd, seals and mappings.
#include "prefix_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <utility>

#include "../retry.h"

namespace sublimate {

namespace {

constexpr int FUTURE_WRITE = 0x10; // F_SEAL_FUTURE_WRITE (Linux 5.1), which some headers lack
constexpr int SEALS = F_SEAL_SHRINK | F_SEAL_GROW | FUTURE_WRITE | F_SEAL_SEAL;

} // namespace

PrefixMemory::PrefixMemory(PrefixMemory&& other) noexcept {
    *this = std::move(other);
}

PrefixMemory& PrefixMemory::operator=(PrefixMemory&& other) noexcept {
    std::swap(fd_, other.fd_);
    std::swap(base_, other.base_);
    std::swap(bytes_, other.bytes_);
    std::swap(view_, other.view_);
    return *this;
}

PrefixMemory::~PrefixMemory() {
    if (base_ != nullptr) munmap(base_, static_cast<size_t>(bytes_));
}

bool PrefixMemory::map(int64_t bytes, int protection) {
    CHECK(base_ == nullptr && bytes > 0);
    void* base = mmap(nullptr, static_cast<size_t>(bytes), protection, MAP_SHARED, fd_.get(), 0);
    if (base == MAP_FAILED) return false;
    base_ = base;
    bytes_ = bytes;
    return true;
}

const char* PrefixMemory::create(int32_t entries, PrefixMemory& memory) {
    constexpr const char* REFUSED = "the kernel gave no shared memory for the prefix table";
    int64_t bytes = prefix_layout_bytes(entries);
    PrefixMemory made;
    made.fd_ = Descriptor(memfd_create("sublimate-prefixes", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    auto size = [&] { return ftruncate(made.fd_.get(), bytes); };
    if (!made.fd_.open() || retried(size) != 0 || !made.map(bytes, PROT_READ | PROT_WRITE))
        return REFUSED;
    made.view_ = prefix_view(made.base_, entries);
    prefix_format(made.view_);
    // The mapping above stays as it is; there will be no other one that can write.
    if (fcntl(made.fd_.get(), F_ADD_SEALS, SEALS) != 0) return REFUSED;
    memory = std::move(made);
    return nullptr;
}

const char* PrefixMemory::attach(int fd, PrefixMemory& memory) {
    PrefixMemory made;
    made.fd_ = Descriptor(fcntl(fd, F_DUPFD_CLOEXEC, 0));
    if (!made.fd_.open()) return "the descriptor of the prefix table is closed";
    int seals = fcntl(made.fd_.get(), F_GET_SEALS);
    constexpr int NEEDED = F_SEAL_SHRINK | F_SEAL_GROW; // else its pages may vanish under a reader
    if (seals < 0 || (seals & NEEDED) != NEEDED)
        return "the memory of the prefix table is not sealed against resizing";
    struct stat about{};
    if (fstat(made.fd_.get(), &about) != 0 ||
        about.st_size < prefix_layout_bytes(limits::PREFIX_ENTRIES_MIN) ||
        about.st_size > prefix_layout_bytes(limits::PREFIX_ENTRIES_MAX))
        return "the size of the prefix table is that of none";
    if (!made.map(about.st_size, PROT_READ)) return "the kernel did not map the prefix table";
    const auto* control = static_cast<const PrefixControl*>(made.base_);
    if (load_acquire(&control->magic) != PREFIX_MAGIC ||
        load_acquire(&control->version) != PREFIX_VERSION)
        return "the memory is no prefix table of this version";
    uint64_t entries = load_acquire(&control->entries);
    if (!prefix_entries_legal(entries) ||
        prefix_layout_bytes(static_cast<int32_t>(entries)) != about.st_size)
        return "the size of the prefix table does not fit its entries";
    made.view_ = prefix_view(made.base_, static_cast<int32_t>(entries));
    memory = std::move(made);
    return nullptr;
}

} // namespace sublimate

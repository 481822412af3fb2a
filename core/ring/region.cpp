// Region: memfd, seals, mapping and bells.
#include "region.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../retry.h"

namespace sublimate {

namespace {

constexpr int REGION_SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

Descriptor duplicate(int fd) {
    return Descriptor(fcntl(fd, F_DUPFD_CLOEXEC, 0));
}

// A bell that blocks would hang the side that rings or clears it.
bool never_blocks(int fd) {
    int flags = fcntl(fd, F_GETFL);
    return flags >= 0 && (flags & O_NONBLOCK) != 0;
}

// The words of a mapped region agree with each other and with the size of the file that holds them.
RegionStatus inspect(const void* base, int64_t file_bytes, int32_t& vocabulary) {
    const auto* control = static_cast<const RegionControl*>(base);
    if (load_acquire(&control->magic) != REGION_MAGIC) return RegionStatus::not_a_region;
    if (load_acquire(&control->version) != REGION_VERSION) return RegionStatus::wrong_version;
    uint32_t claimed = load_acquire(&control->vocabulary);
    if (claimed == 0 || claimed > uint32_t{limits::VOCABULARY_MAX})
        return RegionStatus::bad_vocabulary;
    vocabulary = static_cast<int32_t>(claimed);
    RegionLayout at = region_layout(vocabulary);
    if (at.total_bytes != file_bytes) return RegionStatus::wrong_size;
    bool fits =
        load_acquire(&control->total_bytes) == static_cast<uint64_t>(at.total_bytes) &&
        load_acquire(&control->mask_words) == static_cast<uint32_t>(align_up(vocabulary, 32) / 32);
    return fits ? RegionStatus::ok : RegionStatus::not_a_region;
}

} // namespace

const char* region_status_text(RegionStatus status) {
    switch (status) {
    case RegionStatus::ok:
        return "ok";
    case RegionStatus::bad_vocabulary:
        return "the vocabulary size of the region is out of range";
    case RegionStatus::no_memory:
        return "the kernel gave no shared memory for the region";
    case RegionStatus::bad_descriptor:
        return "a descriptor of the region is closed or would block";
    case RegionStatus::not_sealed:
        return "the memory of the region is not sealed against resizing";
    case RegionStatus::wrong_size:
        return "the size of the region does not fit its vocabulary";
    case RegionStatus::not_a_region:
        return "the memory is not a region";
    case RegionStatus::wrong_version:
        return "the region was made by another version";
    }
    return "unknown region status";
}

Descriptor::~Descriptor() {
    if (fd_ >= 0) close(fd_);
}

Region::Region(Region&& other) noexcept {
    *this = std::move(other);
}

Region& Region::operator=(Region&& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(bells_, other.bells_);
    std::swap(base_, other.base_);
    std::swap(bytes_, other.bytes_);
    std::swap(view_, other.view_);
    return *this;
}

Region::~Region() {
    if (base_ != nullptr) munmap(base_, static_cast<size_t>(bytes_));
}

RegionStatus Region::map(int64_t bytes, int32_t vocabulary) {
    void* base = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED,
                      memory_.get(), 0);
    if (base == MAP_FAILED) return RegionStatus::no_memory;
    base_ = base;
    bytes_ = bytes;
    view_ = region_view(base, vocabulary);
    return RegionStatus::ok;
}

RegionStatus Region::create(int32_t vocabulary, Region& region) {
    if (vocabulary < 1 || vocabulary > limits::VOCABULARY_MAX) return RegionStatus::bad_vocabulary;
    int64_t bytes = region_layout(vocabulary).total_bytes;
    Region made;
    made.memory_ = Descriptor(memfd_create("sublimate-region", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    auto size = [&] { return ftruncate(made.memory_.get(), bytes); };
    if (!made.memory_.open() || retried(size) != 0 ||
        fcntl(made.memory_.get(), F_ADD_SEALS, REGION_SEALS) != 0)
        return RegionStatus::no_memory;
    for (Descriptor& bell : made.bells_) {
        bell = Descriptor(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
        if (!bell.open()) return RegionStatus::no_memory;
    }
    if (RegionStatus status = made.map(bytes, vocabulary); status != RegionStatus::ok)
        return status;
    region_format(made.view_);
    region = std::move(made);
    return RegionStatus::ok;
}

RegionStatus Region::attach(const RegionDescriptors& descriptors, Region& region) {
    Region made;
    made.memory_ = duplicate(descriptors.memory);
    made.bells_[0] = duplicate(descriptors.submission_bell);
    made.bells_[1] = duplicate(descriptors.token_bell);
    if (!made.memory_.open()) return RegionStatus::bad_descriptor;
    for (const Descriptor& bell : made.bells_)
        if (!bell.open() || !never_blocks(bell.get())) return RegionStatus::bad_descriptor;

    // Seals first: only a sealed file keeps the size that is checked next. No seals at all: not a
    // memfd.
    int seals = fcntl(made.memory_.get(), F_GET_SEALS);
    if (seals < 0 || (seals & REGION_SEALS) != REGION_SEALS) return RegionStatus::not_sealed;
    struct stat about{};
    if (fstat(made.memory_.get(), &about) != 0) return RegionStatus::bad_descriptor;
    // The bound keeps the mapping of a hostile file small; both ends of it are a real region's
    // sizes.
    if (about.st_size < region_layout(1).total_bytes ||
        about.st_size > region_layout(limits::VOCABULARY_MAX).total_bytes)
        return RegionStatus::wrong_size;

    if (RegionStatus status = made.map(about.st_size, 1); status != RegionStatus::ok) return status;
    int32_t vocabulary = 0;
    if (RegionStatus status = inspect(made.base_, about.st_size, vocabulary);
        status != RegionStatus::ok)
        return status;
    made.view_ = region_view(made.base_, vocabulary);
    region = std::move(made);
    return RegionStatus::ok;
}

void Region::ring_bell(Bell bell) const {
    const uint64_t one = 1;
    // EAGAIN means that the counter is full: the bell is rung already.
    static_cast<void>(retried([&] { return write(bell_fd(bell), &one, sizeof one); }));
}

void Region::clear_bell(Bell bell) const {
    uint64_t count = 0;
    // EAGAIN means that nobody rang since.
    static_cast<void>(retried([&] { return read(bell_fd(bell), &count, sizeof count); }));
}

} // namespace sublimate

// Wrappers of mmap that own what they map.
#include "memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "../check.h"
#include "../loop/page_hash.h"
#include "../retry.h"
#include "checked.h"

namespace sublimate {

namespace {

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

// Opens a regular file and looks at it. The descriptor is the caller's, also of a failure: -1 if
// there is none. A pipe does not make us wait.
Status open_regular(const std::string& path, int* descriptor, struct stat* details) {
    // A file system in user space or over a network may take its time, so a signal may come.
    *descriptor = retried([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK); });
    if (*descriptor < 0) return Status::error(with_reason("cannot open " + path));
    if (fstat(*descriptor, details) != 0) return Status::error(with_reason("cannot read " + path));
    if (!S_ISREG(details->st_mode)) return Status::error(path + " is not a regular file");
    if (details->st_size <= 0) return Status::error(path + " is empty");
    return Status::success();
}

uint64_t digest_of(std::span<const std::byte> bytes) {
    uint64_t digest = bytes.size();
    for (size_t at = 0; at < bytes.size(); at += sizeof digest) {
        uint64_t word = 0;
        std::memcpy(&word, bytes.data() + at, std::min(sizeof word, bytes.size() - at));
        digest = mix_hash(digest ^ word);
    }
    return digest;
}

// One of several files: what tells it from another, mixed into what was before it.
void add_identity(const FileIdentity& part, FileIdentity* all) {
    auto mix = [](auto* into, auto word) {
        *into = static_cast<std::remove_reference_t<decltype(*into)>>(
            mix_hash(static_cast<uint64_t>(*into) ^ static_cast<uint64_t>(word)));
    };
    mix(&all->device, part.device);
    mix(&all->inode, part.inode);
    mix(&all->size_bytes, part.size_bytes);
    mix(&all->modified_ns, part.modified_ns);
    mix(&all->changed_ns, part.changed_ns);
}

size_t whole_huge_pages(size_t bytes) {
    return (bytes + HUGE_PAGE_BYTES - 1) / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
}

} // namespace

void* reserve_aligned(size_t bytes) {
    bytes = whole_huge_pages(bytes);
    void* found = mmap(nullptr, bytes + HUGE_PAGE_BYTES, PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (found == MAP_FAILED) return nullptr;
    auto begin = reinterpret_cast<uintptr_t>(found);
    uintptr_t aligned = (begin + HUGE_PAGE_BYTES - 1) / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
    if (aligned > begin) munmap(found, aligned - begin);
    size_t behind = begin + HUGE_PAGE_BYTES - aligned;
    auto* at = reinterpret_cast<std::byte*>(aligned);
    if (behind > 0) munmap(at + bytes, behind);
    return at;
}

FileMapping::~FileMapping() {
    if (data_ != nullptr) munmap(const_cast<std::byte*>(data_), mapped_bytes_);
    close_file();
}

FileMapping::FileMapping(FileMapping&& other) noexcept {
    *this = std::move(other);
}

FileMapping& FileMapping::operator=(FileMapping&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_bytes_, other.size_bytes_);
    std::swap(mapped_bytes_, other.mapped_bytes_);
    std::swap(copied_bytes_, other.copied_bytes_);
    std::swap(descriptor_, other.descriptor_);
    std::swap(identity_, other.identity_);
    return *this;
}

Status FileMapping::open(const std::string& path, FileMapping* mapping) {
    int descriptor = -1;
    struct stat details = {};
    Status status = open_regular(path, &descriptor, &details);
    if (status.ok()) {
        size_t size = static_cast<size_t>(details.st_size);
        void* place = reserve_aligned(size);
        void* data = place == nullptr
                         ? MAP_FAILED
                         : mmap(place, size, PROT_READ, MAP_PRIVATE | MAP_FIXED, descriptor, 0);
        if (data == MAP_FAILED) {
            status = Status::error(with_reason("cannot map " + path));
            if (place != nullptr) munmap(place, whole_huge_pages(size));
        } else {
            FileMapping fresh;
            fresh.data_ = static_cast<const std::byte*>(data);
            fresh.size_bytes_ = size;
            fresh.mapped_bytes_ = whole_huge_pages(size);
            fresh.identity_ = identity_of(details);
            fresh.descriptor_ = std::exchange(descriptor, -1);
            *mapping = std::move(fresh);
        }
    }
    if (descriptor >= 0) close(descriptor);
    return status;
}

void FileMapping::close_file() {
    if (descriptor_ >= 0) close(std::exchange(descriptor_, -1));
}

Status FileMapping::copy_front(uint64_t bytes) {
    CHECK(bytes <= size_bytes_ && (descriptor_ >= 0 || bytes <= copied_bytes_));
    if (bytes <= copied_bytes_) return Status::success();
    const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
    const size_t end = std::min(size_bytes_, (bytes + page - 1) / page * page);
    auto* at = const_cast<std::byte*>(data_) + copied_bytes_;
    if (mmap(at, end - copied_bytes_, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED)
        return Status::error(with_reason("cannot get memory for its header"));
    while (copied_bytes_ < end) {
        const ssize_t got = retried([&] {
            return pread(descriptor_, const_cast<std::byte*>(data_) + copied_bytes_,
                         end - copied_bytes_, static_cast<off_t>(copied_bytes_));
        });
        if (got < 0) return Status::error(with_reason("it cannot be read"));
        if (got == 0) return Status::error("it has become shorter while it was read");
        copied_bytes_ += static_cast<size_t>(got);
    }
    return Status::success();
}

Status FileMapping::join(std::span<const std::byte> front, const std::vector<FilePart>& files,
                         FileMapping* mapping) {
    CHECK(!front.empty());
    const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
    std::vector<uint64_t> places;
    uint64_t end = 0;
    if (!checked_align(front.size(), page, &end)) return Status::error("the files are too long");
    for (const FilePart& file : files) {
        places.push_back(end);
        if (file.size_bytes <= 0) return Status::error(file.path + " is empty");
        if (!checked_add(end, static_cast<uint64_t>(file.size_bytes), &end) ||
            !checked_align(end, page, &end))
            return Status::error("the files are too long");
    }
    void* region = mmap(nullptr, end, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (region == MAP_FAILED)
        return Status::error(with_reason("cannot map " + std::to_string(end) + " bytes of files"));
    FileMapping fresh; // unmaps all of it, whatever of it is a file by then
    fresh.data_ = static_cast<const std::byte*>(region);
    fresh.size_bytes_ = fresh.mapped_bytes_ = end;
    std::memcpy(region, front.data(), front.size());
    fresh.identity_.inode = digest_of(front);
    for (size_t i = 0; i < files.size(); i++) {
        int descriptor = -1;
        struct stat details = {};
        Status status = open_regular(files[i].path, &descriptor, &details);
        if (status.ok() && details.st_size != files[i].size_bytes)
            status = Status::error(files[i].path + " has changed since its header was read");
        if (status.ok() &&
            mmap(static_cast<std::byte*>(region) + places[i], static_cast<size_t>(details.st_size),
                 PROT_READ, MAP_PRIVATE | MAP_FIXED, descriptor, 0) == MAP_FAILED)
            status = Status::error(with_reason("cannot map " + files[i].path));
        if (descriptor >= 0) close(descriptor);
        RETURN_IF_ERROR(status);
        add_identity(identity_of(details), &fresh.identity_);
    }
    *mapping = std::move(fresh);
    return Status::success();
}

void FileMapping::expect_reads(std::span<const std::byte> part) const {
    CHECK(part.data() >= data_ && part.data() + part.size() <= data_ + size_bytes_);
    auto* begin = const_cast<std::byte*>(part.data());
    // Refusal only costs speed, so the answer does not matter.
    static_cast<void>(madvise(begin, part.size(), MADV_HUGEPAGE));
    static_cast<void>(madvise(begin, part.size(), MADV_WILLNEED));
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
    void* data = bytes < 0 ? nullptr : reserve_aligned(size);
    if (data == nullptr || mprotect(data, size, PROT_READ | PROT_WRITE) != 0) {
        std::string reason =
            with_reason("cannot get " + std::to_string(bytes) + " bytes for " + purpose);
        if (data != nullptr) munmap(data, size);
        return Status::error(std::move(reason));
    }
    // Refusal only costs speed, so the answer does not matter.
    static_cast<void>(madvise(data, size, MADV_HUGEPAGE));
    AnonymousMemory fresh;
    fresh.data_ = static_cast<std::byte*>(data);
    fresh.size_bytes_ = size;
    *memory = std::move(fresh);
    return Status::success();
}

} // namespace sublimate

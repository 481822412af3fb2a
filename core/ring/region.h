// Host side of the shared memory between one edge and one engine: a sealed memfd, mapped, and two
// eventfds as bells. The descriptors travel by SCM_RIGHTS; what arrives is checked before any word
// of it is trusted.
//
// defines: RegionStatus, region_status_text, Bell, Descriptor, RegionDescriptors, Region,
//          sleep_announce, sleep_end, sleep_announced
#pragma once

#include <cstdint>
#include <utility>

#include "ring.h"

namespace sublimate {

enum class RegionStatus : int32_t {
    ok = 0,
    bad_vocabulary, // not in [1, VOCABULARY_MAX]
    no_memory,      // memfd, its size, its seals or its mapping were refused by the kernel
    bad_descriptor, // not open, or a bell that would block
    not_sealed,     // the other side could still resize the memory under us
    wrong_size,     // the file's size is not what its vocabulary implies
    not_a_region,   // magic or redundant words do not fit
    wrong_version,
};

// For a person; static storage.
const char* region_status_text(RegionStatus status);

// submission: rung by the edge, waited on by the engine. token: the other way round.
enum class Bell : int32_t { submission = 0, token = 1 };

// Owns one file descriptor.
class Descriptor {
public:
    Descriptor() = default;
    explicit Descriptor(int fd) : fd_(fd) {}
    Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
    Descriptor& operator=(Descriptor&& other) noexcept {
        std::swap(fd_, other.fd_);
        return *this;
    }
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(const Descriptor&) = delete;
    ~Descriptor();

    int get() const { return fd_; }
    bool open() const { return fd_ >= 0; }

private:
    int fd_ = -1;
};

struct RegionDescriptors {
    int memory = -1;
    int submission_bell = -1;
    int token_bell = -1;
};

// Owns mapping and descriptors. Both sides of an in-process server may use one Region; view() is
// then copied.
class Region {
public:
    Region() = default;
    Region(Region&& other) noexcept;
    Region& operator=(Region&& other) noexcept;
    Region(const Region&) = delete;
    Region& operator=(const Region&) = delete;
    ~Region();

    // New zeroed memory, sealed against any change of size, formatted for a vocabulary, and two
    // bells (non-blocking, close-on-exec). `region` is written only when the result is ok.
    static RegionStatus create(int32_t vocabulary, Region& region);

    // Maps what create made, possibly in another process. Duplicates the descriptors: the caller
    // still owns and closes its own. `region` is written only when the result is ok.
    static RegionStatus attach(const RegionDescriptors& descriptors, Region& region);

    const RegionView& view() const { return view_; }
    RegionDescriptors descriptors() const {
        return {memory_.get(), bells_[0].get(), bells_[1].get()};
    }
    int bell_fd(Bell bell) const { return bells_[static_cast<int>(bell)].get(); }

    // Makes the bell's descriptor readable. Never blocks; ringing twice is the same as once.
    void ring_bell(Bell bell) const;
    // Makes it unreadable again. Call it before looking at the rings, never after.
    void clear_bell(Bell bell) const;

private:
    RegionStatus map(int64_t bytes, int32_t vocabulary);

    Descriptor memory_;
    Descriptor bells_[2];
    void* base_ = nullptr;
    int64_t bytes_ = 0;
    RegionView view_;
};

// The sleep protocol, for either side (`sleeping` is edge_sleeping or engine_sleeping of
// RegionControl). A sleeper announces itself, then looks once more at everything that could wake
// it, and only then waits on its bell. The other side publishes, then looks at the word and rings.
// Both pairs are sequentially consistent, so at least one of the two sees the other.
inline void sleep_announce(uint32_t* sleeping) {
    store_sequential(sleeping, uint32_t{1});
}
inline void sleep_end(uint32_t* sleeping) {
    store_release(sleeping, uint32_t{0});
}
inline bool sleep_announced(const uint32_t* sleeping) {
    return load_sequential(sleeping) != 0;
}

} // namespace sublimate

// Makes memory real ahead of its first use. A huge page is zeroed when it is first touched, 0.2 ms
// a page, and 5 ms in a virtual machine whose host has to find the memory as well. The KV cache of
// all layers reaches its next pages in the same step, so 30 layers make that a pause that every
// running stream sees. A thread takes it off them while the model rests: the kernel does not stop
// in the middle of a page for anybody who needs the core.
//
// defines: PopulateAhead
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <thread>

#include "../cpu/threads.h"

namespace sublimate::cpu {

class PopulateAhead {
public:
    static constexpr int64_t CHUNK_BYTES = int64_t{2} << 20; // of a stripe, populated at a time

    // `stripes` pieces of stripe_bytes each, one behind the other from base; all are used from
    // their beginning on, at the same pace. Populated beyond what was reached is as much as was
    // reached, but at least ahead_bytes_min and at most ahead_bytes_max, of all stripes together.
    // The memory outlives this object.
    PopulateAhead(std::byte* base, int64_t stripe_bytes, int32_t stripes, int64_t ahead_bytes_min,
                  int64_t ahead_bytes_max);
    ~PopulateAhead();
    PopulateAhead(const PopulateAhead&) = delete;
    PopulateAhead& operator=(const PopulateAhead&) = delete;

    // Every stripe is now used up to so many bytes. From one thread; costs a comparison, once per
    // chunk a system call. What was not populated in time is touched by whoever needs it.
    void reached(int64_t bytes) {
        uses_.store(uses_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
        if (bytes > told_bytes_) tell(bytes);
    }
    // Of each stripe, from its beginning. All of it where the kernel cannot do it (before Linux
    // 5.14) or has no memory left: then nothing is populated any more.
    int64_t populated_bytes() const { return populated_bytes_.load(std::memory_order_acquire); }

private:
    void tell(int64_t bytes);
    void work();
    bool populate(int64_t begin, int64_t end); // of every stripe
    void rest_while_used();

    std::byte* const base_;
    const int64_t stripe_bytes_;
    const int32_t stripes_;
    const int64_t ahead_bytes_min_; // of a stripe, as the next
    const int64_t ahead_bytes_max_;
    int64_t told_bytes_ = 0; // the caller's: up to here nobody needs to be told
    uint64_t seen_uses_ = 0; // the thread's
    std::atomic<uint64_t> uses_{0};
    std::atomic<int64_t> reached_bytes_{0};
    std::atomic<int64_t> populated_bytes_{0};
    std::atomic<bool> stopping_{false};
    WaitWord news_; // advances when one of the above did
    std::thread thread_;
};

} // namespace sublimate::cpu

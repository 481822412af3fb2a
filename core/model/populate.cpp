// The thread that populates, and how it is told.
#include "populate.h"

#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "../check.h"

namespace sublimate::cpu {

namespace {

constexpr int POPULATE_WRITE = 23;             // MADV_POPULATE_WRITE, which older headers lack
constexpr std::chrono::milliseconds REST(100); // longer than most steps

int64_t whole_chunks(int64_t bytes) {
    return std::max<int64_t>(1, bytes / PopulateAhead::CHUNK_BYTES) * PopulateAhead::CHUNK_BYTES;
}

} // namespace

PopulateAhead::PopulateAhead(std::byte* base, int64_t stripe_bytes, int32_t stripes,
                             int64_t ahead_bytes_min, int64_t ahead_bytes_max)
    : base_(base), stripe_bytes_(stripe_bytes), stripes_(stripes),
      ahead_bytes_min_(whole_chunks(ahead_bytes_min / std::max(stripes, 1))),
      ahead_bytes_max_(whole_chunks(ahead_bytes_max / std::max(stripes, 1))) {
    CHECK(base != nullptr && stripe_bytes > 0 && stripes > 0);
    CHECK(ahead_bytes_min > 0 && ahead_bytes_max >= ahead_bytes_min);
    thread_ = std::thread([this] { work(); });
}

PopulateAhead::~PopulateAhead() {
    stopping_.store(true, std::memory_order_release);
    news_.advance();
    thread_.join();
}

void PopulateAhead::tell(int64_t bytes) {
    CHECK(bytes <= stripe_bytes_);
    told_bytes_ = bytes + CHUNK_BYTES;
    reached_bytes_.store(bytes, std::memory_order_release);
    news_.advance();
}

void PopulateAhead::rest_while_used() {
    while (!stopping_.load(std::memory_order_acquire)) {
        uint64_t uses = uses_.load(std::memory_order_relaxed);
        if (uses == seen_uses_) return;
        seen_uses_ = uses;
        std::this_thread::sleep_for(REST);
    }
}

bool PopulateAhead::populate(int64_t begin, int64_t end) {
    CHECK(begin >= 0 && begin < end && end <= stripe_bytes_);
    const auto small_page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    for (int32_t stripe = 0; stripe < stripes_; stripe++) {
        rest_while_used();
        auto from = reinterpret_cast<uintptr_t>(base_ + stripe * stripe_bytes_ + begin);
        auto to = from + static_cast<uintptr_t>(end - begin);
        from = from / small_page * small_page; // the first page may be in use: it only stays so
        if (madvise(reinterpret_cast<void*>(from), to - from, POPULATE_WRITE) != 0) return false;
        if (stopping_.load(std::memory_order_acquire)) return true;
    }
    return true;
}

void PopulateAhead::work() {
    pthread_setname_np(pthread_self(), "populate");
    // A compute thread that wakes takes the core back at once. Refused in some sandboxes, where the
    // thread then competes.
    sched_param none = {};
    static_cast<void>(sched_setscheduler(0, SCHED_IDLE, &none));
    int64_t done = 0;
    while (!stopping_.load(std::memory_order_acquire)) {
        uint32_t seen = news_.value();
        int64_t reached = reached_bytes_.load(std::memory_order_acquire);
        int64_t ahead = std::clamp(reached, ahead_bytes_min_, ahead_bytes_max_);
        int64_t goal = std::min(stripe_bytes_, reached + ahead);
        if (done >= goal) {
            if (done == stripe_bytes_) return;
            news_.wait_while(seen, 0);
            continue;
        }
        int64_t end = std::min(goal, done + CHUNK_BYTES);
        done = populate(done, end) ? end : stripe_bytes_;
        populated_bytes_.store(done, std::memory_order_release);
    }
}

} // namespace sublimate::cpu

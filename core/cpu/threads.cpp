// Waiting and the helpers' loop.
#include "threads.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <cstdio>

#include "../check.h"
#include "allocations.h"

namespace sublimate::cpu {

namespace {

void pause_briefly() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

uint32_t* address_of(std::atomic<uint32_t>& word) {
    static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t));
    return reinterpret_cast<uint32_t*>(&word);
}

constexpr uint64_t TURN_NS = 100'000; // the shortest that the kernel grants

// Version 0 of the kernel's struct; libc has none.
struct SchedulingAttributes {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime, deadline, period; // runtime: of a turn, for the normal policy
};

// Errors are of no consequence: older kernels refuse a turn of one's own, sandboxes everything.
void ask_for_short_turns() {
    SchedulingAttributes now = {};
    if (syscall(SYS_sched_getattr, 0, &now, sizeof now, 0) != 0 || now.policy != SCHED_OTHER)
        return;
    now.size = sizeof now;
    now.runtime = TURN_NS;
    syscall(SYS_sched_setattr, 0, &now, 0);
}

// The index-th of the cores in `allowed`.
cpu_set_t one_core(const cpu_set_t& allowed, int32_t index) {
    CHECK(index >= 0 && index < CPU_COUNT(&allowed));
    cpu_set_t one;
    CPU_ZERO(&one);
    for (int32_t core = 0; core < CPU_SETSIZE; core++) {
        if (!CPU_ISSET(core, &allowed) || index-- > 0) continue;
        CPU_SET(core, &one);
        break;
    }
    return one;
}

// The second number of "run_ns wait_ns turns"; -1: not to be had.
int64_t thread_waited_ns() {
    FILE* file = fopen("/proc/thread-self/schedstat", "re");
    if (file == nullptr) return -1;
    unsigned long long ran = 0;
    unsigned long long waited = 0;
    int read = fscanf(file, "%llu %llu", &ran, &waited);
    fclose(file);
    return read == 2 ? static_cast<int64_t>(waited) : -1;
}

} // namespace

void WaitWord::wait_while(uint32_t old, int32_t spins) {
    for (int32_t i = 0; i < spins; i++) {
        if (value_.load(std::memory_order_acquire) != old) return;
        pause_briefly();
    }
    // Announced before the value is read again, and advance() writes the value before it reads the
    // announcement: both orders are sequentially consistent, so one of the two sees the other.
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    while (value_.load(std::memory_order_seq_cst) == old) {
        syscall(SYS_futex, address_of(value_), FUTEX_WAIT_PRIVATE, old, nullptr, nullptr, 0);
    }
    sleepers_.fetch_sub(1, std::memory_order_relaxed);
}

void WaitWord::advance() {
    value_.fetch_add(1, std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_seq_cst) > 0)
        syscall(SYS_futex, address_of(value_), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

ThreadPool::ThreadPool(int32_t threads) : threads_(threads), active_(threads) {
    CHECK(threads >= 1 && threads <= limits::COMPUTE_THREADS_MAX);
    counters_ = std::make_unique<Counter[]>(2 * static_cast<size_t>(threads));
    banks_ = std::make_unique<Bank[]>(static_cast<size_t>(threads));
    jobs_ = std::make_unique<WaitWord[]>(static_cast<size_t>(threads));
    try {
        for (int32_t thread = 1; thread < threads; thread++)
            helpers_.emplace_back([this, thread] { work(thread); });
    } catch (...) {
        end_helpers(); // those that did begin: nobody else would
        throw;
    }
}

ThreadPool::~ThreadPool() {
    end_helpers();
}

void ThreadPool::end_helpers() {
    stopping_ = true;
    for (int32_t thread = 1; thread < threads_; thread++) jobs_[thread].advance();
    for (std::thread& helper : helpers_) helper.join();
    helpers_.clear();
}

void ThreadPool::place() {
    cpu_set_t allowed;
    bool whole = sched_getaffinity(0, sizeof allowed, &allowed) == 0 &&
                 CPU_COUNT(&allowed) == threads_ && threads_ > 1;
    run([&](int32_t thread) {
        ask_for_short_turns();
        if (!whole) return;
        cpu_set_t own = one_core(allowed, thread);
        sched_setaffinity(0, sizeof own, &own);
    });
}

void ThreadPool::activate(int32_t threads) {
    CHECK(threads >= 1 && threads <= threads_);
    active_ = threads;
    // A thread that sat out some jobs did not change banks in them.
    for (int32_t thread = 0; thread < threads_; thread++) {
        banks_[thread].bank = 0;
        for (int32_t bank : {0, 1}) counter(bank, thread).store(0, std::memory_order_relaxed);
    }
}

int64_t ThreadPool::waited_ns() {
    std::atomic<int64_t> sum{0};
    std::atomic<bool> known{true};
    run(threads_, [&](int32_t) {
        int64_t waited = thread_waited_ns();
        if (waited < 0) known.store(false, std::memory_order_relaxed);
        sum.fetch_add(waited, std::memory_order_relaxed);
    });
    return known.load(std::memory_order_relaxed) ? sum.load(std::memory_order_relaxed) : -1;
}

void ThreadPool::start(Entry entry, void* context) {
    entry_ = entry;
    context_ = context;
    for (int32_t thread = 1; thread < active_; thread++) jobs_[thread].advance();
}

void ThreadPool::work(int32_t thread) {
    pthread_setname_np(pthread_self(), "compute");
    watch_allocations(true);
    // A helper sees every job of its own: the next is announced only after finish(), which needs
    // it.
    for (uint32_t seen = 0;; seen++) {
        jobs_[thread].wait_while(seen, limits::SPIN_ROUNDS);
        if (stopping_) return;
        entry_(context_, thread);
        finish();
    }
}

} // namespace sublimate::cpu

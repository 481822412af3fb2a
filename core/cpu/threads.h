// The compute threads of one engine: the loop's own thread and a few helpers that do what it does.
// Work is handed out by atomic counters, own range first and then what others have left, since a
// virtual core may run at half speed for a while. Waiting spins for a bounded time and then sleeps
// in a futex: an idle engine uses no CPU, and a thread that waits for a preempted one lets it run.
//
// defines: WaitWord, Barrier, ThreadPool
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

#include "../limits.h"

namespace sublimate::cpu {

// A counter that threads wait on. One writer at a time.
class alignas(limits::LINE_PAIR_BYTES) WaitWord {
public:
    uint32_t value() const { return value_.load(std::memory_order_acquire); }
    // Returns once the value differs from `old`; sleeps after `spins` looks at it.
    void wait_while(uint32_t old, int32_t spins);
    void advance(); // adds one and wakes all waiters

private:
    std::atomic<uint32_t> value_{0};
    std::atomic<int32_t> sleepers_{0};
};

// Sense-reversing barrier: the generation number is the sense.
class Barrier {
public:
    // The last of `threads` to arrive runs `completion` before any leaves. All pass equal
    // `threads`.
    template <class Completion>
    void arrive(int32_t threads, Completion&& completion) {
        uint32_t generation = generation_.value();
        if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == threads) {
            completion();
            arrived_.store(0, std::memory_order_relaxed);
            generation_.advance();
        } else {
            generation_.wait_while(generation, limits::BARRIER_SPIN_ROUNDS);
        }
    }

private:
    alignas(limits::LINE_PAIR_BYTES) std::atomic<int32_t> arrived_{0};
    WaitWord generation_;
};

class ThreadPool {
public:
    // `threads` includes the caller of run: threads - 1 helpers are started.
    explicit ThreadPool(int32_t threads);
    ~ThreadPool();
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    int32_t size() const { return threads_; }

    // Called by the thread that will call run for as long as it lives: where there is a thread for
    // every core that this process may use, each stays on one of its own. Two threads that share a
    // core while another process has the other one would wait for each other at every barrier.
    // Asks the scheduler for short turns as well (sched_setattr(2), Linux 6.12): a thread that a
    // barrier releases then runs at once and not after the turn of whoever is there. Changes no
    // priority.
    void place();

    // Time in which the threads could run and had no core, together, since they began
    // (/proc/thread-self/schedstat); -1 where the kernel does not tell.
    int64_t waited_ns();

    // Runs body(thread) once on each of the first `threads`, of which the caller is one; returns
    // when all are done. The others sleep on. One caller at a time; does not nest.
    template <class Body>
    void run(int32_t threads, Body&& body) {
        if (threads != active_) activate(threads);
        if (threads == 1) {
            body(0);
            return;
        }
        using Callable = std::remove_reference_t<Body>;
        start([](void* context, int32_t thread) { (*static_cast<Callable*>(context))(thread); },
              const_cast<void*>(static_cast<const void*>(&body)));
        body(0);
        finish();
    }
    template <class Body>
    void run(Body&& body) {
        run(threads_, body);
    }

    // Inside run, called by each of its threads with equal arguments: calls body(i) for i in [0,
    // count), each once, on some thread. A barrier (or the end of run) must follow before the next
    // call.
    template <class Body>
    void share(int32_t thread, int32_t count, Body&& body) {
        int32_t bank = banks_[thread].bank;
        // The other bank is out of use: the barrier since its last use has been passed by all.
        counter(1 - bank, thread).store(0, std::memory_order_relaxed);
        int32_t threads = active_;
        for (int32_t turn = 0; turn < threads; turn++) {
            int32_t victim = thread + turn < threads ? thread + turn : thread + turn - threads;
            int32_t begin = static_cast<int32_t>(int64_t{count} * victim / threads);
            int32_t end = static_cast<int32_t>(int64_t{count} * (victim + 1) / threads);
            std::atomic<int32_t>& next = counter(bank, victim);
            while (true) {
                int32_t item = begin + next.fetch_add(1, std::memory_order_relaxed);
                if (item >= end) break;
                body(item);
            }
        }
        banks_[thread].bank = 1 - bank;
    }

    // Inside run: waits for all of its threads. The last to arrive runs `completion`.
    template <class Completion>
    void barrier(Completion&& completion) {
        if (active_ == 1)
            completion();
        else
            barrier_.arrive(active_, completion);
    }
    void barrier() {
        barrier([] {});
    }

    // From outside run: body(i) for i in [0, count) on the first `threads`.
    template <class Body>
    void parallel_for(int32_t threads, int32_t count, Body&& body) {
        if (count == 1) {
            body(0);
            return;
        }
        run(threads, [&](int32_t thread) { share(thread, count, body); });
    }
    template <class Body>
    void parallel_for(int32_t count, Body&& body) {
        parallel_for(threads_, count, body);
    }

private:
    struct alignas(limits::LINE_PAIR_BYTES) Counter {
        std::atomic<int32_t> next{0};
    };
    struct alignas(limits::LINE_PAIR_BYTES) Bank {
        int32_t bank = 0; // counters that the thread's next share uses
    };
    using Entry = void (*)(void* context, int32_t thread);

    void activate(int32_t threads);
    void start(Entry entry, void* context);
    void finish() {
        barrier_.arrive(active_, [] {});
    }
    void work(int32_t thread);
    void end_helpers();
    std::atomic<int32_t>& counter(int32_t bank, int32_t thread) {
        return counters_[bank * threads_ + thread].next;
    }

    const int32_t threads_;
    std::unique_ptr<Counter[]> counters_; // (2, threads)
    std::unique_ptr<Bank[]> banks_;       // (threads)
    // (threads) A helper's word advances when a job for it, or the end, is announced; it has one of
    // its own so that a job that does without it does not wake it. The first is not used.
    std::unique_ptr<WaitWord[]> jobs_;
    Barrier barrier_;
    int32_t active_; // threads of the job; like what follows written before a job is announced
    Entry entry_ = nullptr;
    void* context_ = nullptr;
    bool stopping_ = false;
    std::vector<std::thread> helpers_;
};

} // namespace sublimate::cpu

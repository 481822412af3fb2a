// The compute threads: every item exactly once, phases in order, no CPU while idle.
#include <atomic>
#include <chrono>
#include <ctime>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "core/cpu/threads.h"
#include "test.h"

namespace {

using namespace sublimate::cpu;

double process_cpu_seconds() {
    timespec time = {};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

} // namespace

TEST(every_item_once) {
    for (int32_t threads : {1, 2, 3, 7}) {
        ThreadPool pool(threads);
        for (int32_t count : {0, 1, 2, 5, 16, 1000}) {
            std::vector<std::atomic<int32_t>> calls(static_cast<size_t>(count));
            pool.parallel_for(count, [&](int32_t i) { calls[static_cast<size_t>(i)]++; });
            for (const auto& call : calls) EXPECT_EQ(call.load(), 1);
        }
    }
}

// Many short phases, each of which needs all of the one before.
TEST(phases_see_the_phase_before) {
    constexpr int32_t PHASES = 300;
    constexpr int32_t ITEMS = 23;
    for (int32_t threads : {1, 2, 4}) {
        ThreadPool pool(threads);
        std::vector<int64_t> values(ITEMS, 1), sums(ITEMS);
        pool.run([&](int32_t thread) {
            for (int32_t phase = 0; phase < PHASES; phase++) {
                pool.share(thread, ITEMS, [&](int32_t i) {
                    int64_t all = std::accumulate(values.begin(), values.end(), int64_t{0});
                    sums[static_cast<size_t>(i)] = all % 1000 + i;
                });
                pool.barrier();
                pool.share(thread, ITEMS, [&](int32_t i) {
                    values[static_cast<size_t>(i)] = sums[static_cast<size_t>(i)];
                });
                pool.barrier();
            }
        });
        std::vector<int64_t> wanted(ITEMS, 1);
        for (int32_t phase = 0; phase < PHASES; phase++) {
            int64_t all = std::accumulate(wanted.begin(), wanted.end(), int64_t{0});
            for (int32_t i = 0; i < ITEMS; i++) wanted[static_cast<size_t>(i)] = all % 1000 + i;
        }
        EXPECT(values == wanted);
    }
}

TEST(completion_runs_once_before_anyone_leaves) {
    ThreadPool pool(3);
    int32_t completions = 0;
    std::atomic<int32_t> wrong = 0;
    pool.run([&](int32_t) {
        for (int32_t i = 1; i <= 200; i++) {
            pool.barrier([&] { completions++; });
            if (completions != i) wrong++;
            pool.barrier();
        }
    });
    EXPECT_EQ(completions, 200);
    EXPECT_EQ(wrong.load(), 0);
}

// A slow thread's items are done by the others.
TEST(work_is_taken_over) {
    ThreadPool pool(2);
    std::atomic<int32_t> by_thread[2] = {};
    pool.run([&](int32_t thread) {
        if (thread == 0) std::this_thread::sleep_for(std::chrono::milliseconds(50));
        pool.share(thread, 100, [&](int32_t) { by_thread[thread]++; });
    });
    EXPECT_EQ(by_thread[0] + by_thread[1], 100);
    EXPECT(by_thread[1] > 50);
}

// Jobs on some of the threads, in turn with jobs on others: each runs on its threads alone and
// every item is done once.
TEST(some_of_the_threads) {
    ThreadPool pool(5);
    std::mt19937 random(3);
    for (int32_t job = 0; job < 2000; job++) {
        auto threads = static_cast<int32_t>(1 + random() % 5);
        auto count = static_cast<int32_t>(random() % 40);
        std::atomic<int32_t> ran[5] = {}, wrong = 0;
        std::vector<std::atomic<int32_t>> calls(static_cast<size_t>(count));
        int32_t phases = job % 3;
        pool.run(threads, [&](int32_t thread) {
            ran[thread]++;
            for (int32_t phase = 1; phase <= phases; phase++) {
                pool.share(thread, count, [&](int32_t i) { calls[static_cast<size_t>(i)]++; });
                pool.barrier();
                for (const auto& each : calls) wrong += each.load() != phase;
                pool.barrier();
            }
        });
        for (int32_t thread = 0; thread < 5; thread++)
            EXPECT_EQ(ran[thread].load(), thread < threads ? 1 : 0);
        EXPECT_EQ(wrong.load(), 0);
        pool.parallel_for(threads, count, [&](int32_t i) { calls[static_cast<size_t>(i)]++; });
        for (const auto& each : calls) EXPECT_EQ(each.load(), phases + 1);
    }
}

// A thread that jobs do without sleeps through them.
TEST(threads_that_are_not_needed_sleep) {
    ThreadPool pool(4);
    pool.run([](int32_t) {});
    std::this_thread::sleep_for(std::chrono::milliseconds(50)); // past the bounded spin
    double before = process_cpu_seconds();
    for (int32_t i = 0; i < 100; i++) {
        pool.run(1, [](int32_t) { std::this_thread::sleep_for(std::chrono::milliseconds(2)); });
    }
    EXPECT(process_cpu_seconds() - before < 0.02);
}

TEST(idle_threads_sleep) {
    ThreadPool pool(4);
    pool.parallel_for(100, [](int32_t) {});
    std::this_thread::sleep_for(std::chrono::milliseconds(50)); // past the bounded spin
    double before = process_cpu_seconds();
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    EXPECT(process_cpu_seconds() - before < 0.005);
}

TEST(pools_start_and_end) {
    for (int32_t i = 0; i < 50; i++) {
        ThreadPool pool(1 + i % 4);
        if (i % 2 == 0) pool.parallel_for(3, [](int32_t) {});
    }
}

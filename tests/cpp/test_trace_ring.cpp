// The trace ring: a reader beside a writer that overtakes it (made for ThreadSanitizer), and what
// the loop tells of single requests.
#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "../../core/ring/region.h"
#include "../../core/ring/trace_ring.h"
#include "expect.h"
#include "loop_bench.h"

namespace sublimate::test {

constexpr int32_t VOCABULARY = 100;
constexpr uint64_t RECORDS = 400000; // many times around
constexpr int32_t READ_MAX = 1000;

// ---- one writer, one reader ------------------------------------------------------------------
// A record whose every word follows from its number, so that a torn one shows.
static TraceRecord numbered(uint64_t number) {
    TraceRecord record = {static_cast<int64_t>(number), TraceKind::part, 0, 0, {}};
    record.slot = static_cast<int32_t>(number * 31 % 1000);
    record.generation = static_cast<int32_t>(number);
    for (int32_t i = 0; i < TRACE_ARGUMENTS; i++)
        record.arguments[i] = static_cast<int32_t>(number * static_cast<uint64_t>(i + 7));
    return record;
}

static bool whole(const TraceRecord& record, uint64_t number) {
    TraceRecord wanted = numbered(number);
    return std::memcmp(&record, &wanted, sizeof wanted) == 0;
}

// pause: what the reader does between two reads, so that the writer laps it.
static void race(bool pause) {
    Region region;
    EXPECT(Region::create(VOCABULARY, region) == RegionStatus::ok);
    RegionView view = region.view();
    std::thread writer([&region] {
        RegionView own = region.view();
        for (uint64_t i = 0; i < RECORDS; i++) trace_write(own, i, numbered(i));
    });
    std::vector<TraceRecord> records(READ_MAX);
    uint64_t next = 0;
    uint64_t missed = 0;
    uint64_t seen = 0;
    while (next < RECORDS && failures == 0) {
        uint64_t lost = 0;
        int32_t count = trace_read(view, next, lost, records.data(), READ_MAX);
        missed += lost;
        uint64_t first = next - static_cast<uint64_t>(count);
        for (int32_t i = 0; i < count; i++)
            EXPECT(whole(records[static_cast<size_t>(i)], first + static_cast<uint64_t>(i)));
        seen += static_cast<uint64_t>(count);
        EXPECT_EQUAL(seen + missed, next);
        if (pause || count == 0) std::this_thread::yield();
        if (pause) {
            uint64_t target = load_acquire(&view.control->trace_head) + limits::TRACE_RECORDS;
            target = target < RECORDS ? target : RECORDS;
            while (load_acquire(&view.control->trace_head) < target) std::this_thread::yield();
        }
    }
    writer.join();
    EXPECT_EQUAL(seen + missed, RECORDS);
    EXPECT(seen > 0);
    if (pause) EXPECT(missed > 0);
    std::printf("%s: %llu seen, %llu missed\n", pause ? "slow reader" : "reader",
                static_cast<unsigned long long>(seen), static_cast<unsigned long long>(missed));
}

static void test_the_reader_counts_what_it_missed() {
    Region region;
    EXPECT(Region::create(VOCABULARY, region) == RegionStatus::ok);
    RegionView view = region.view();
    std::vector<TraceRecord> records(limits::TRACE_RECORDS);
    uint64_t next = 0;
    uint64_t missed = 0;
    EXPECT_EQUAL(trace_read(view, next, missed, records.data(), 10), 0);
    constexpr uint64_t MANY = limits::TRACE_RECORDS + 100;
    for (uint64_t i = 0; i < MANY; i++) trace_write(view, i, numbered(i));
    // One place less than the ring has: the writer may be about to use it.
    EXPECT_EQUAL(trace_read(view, next, missed, records.data(), limits::TRACE_RECORDS),
                 limits::TRACE_RECORDS - 1);
    EXPECT_EQUAL(missed, uint64_t{101});
    EXPECT(whole(records[0], 101) && next == MANY);
    next = MANY + 5; // of a loop that has counted further, and broke
    EXPECT_EQUAL(trace_read(view, next, missed, records.data(), 10), 0);
    EXPECT_EQUAL(next, MANY);
}

// ---- what the loop tells ---------------------------------------------------------------------
struct Told {
    explicit Told(LoopBench& bench_in) : bench(bench_in), records(limits::TRACE_RECORDS) {
        trace_follow(bench.views[0], INT64_MAX);
    }

    // Of one request (or slot -1, the loop) since the last call, as "name:argument,argument".
    std::string read(int32_t slot, int32_t arguments = 1) {
        uint64_t missed = 0;
        int32_t count =
            trace_read(bench.views[0], next, missed, records.data(), limits::TRACE_RECORDS);
        std::string text;
        for (int32_t i = 0; i < count; i++) {
            const TraceRecord& record = records[static_cast<size_t>(i)];
            if (record.slot != slot) continue;
            text += (text.empty() ? "" : " ");
            text += TRACE_EVENTS[static_cast<int32_t>(record.kind)].name;
            for (int32_t a = 0; a < arguments; a++)
                text += (a == 0 ? ":" : ",") + std::to_string(record.arguments[a]);
        }
        return text;
    }

    LoopBench& bench;
    std::vector<TraceRecord> records;
    uint64_t next = 0;
};

static void test_following_ends_with_its_time() {
    Region region;
    EXPECT(Region::create(VOCABULARY, region) == RegionStatus::ok);
    RegionView view = region.view();
    EXPECT(!trace_followed(view, 0));
    trace_follow(view, 1000);
    EXPECT(trace_followed(view, 0) && trace_followed(view, 999));
    EXPECT(!trace_followed(view, 1000) && !trace_followed(view, 1001));
}

static void test_off_touches_no_memory() {
    LoopBench bench;
    std::vector<uint64_t> before(bench.views[0].trace,
                                 bench.views[0].trace + limits::TRACE_RECORD_WORDS * 64);
    bench.submit(LoopBench::header(8), LoopBench::prompt(70));
    bench.finish();
    EXPECT_EQUAL(bench.views[0].control->trace_head, uint64_t{0});
    EXPECT(std::memcmp(before.data(), bench.views[0].trace, before.size() * 8) == 0);
    // Followed until a time that has passed: the same.
    trace_follow(bench.views[0], bench.clock.time_ns);
    bench.submit(LoopBench::header(2), LoopBench::prompt(3));
    bench.finish();
    EXPECT_EQUAL(bench.views[0].control->trace_head, uint64_t{0});
}

static void test_a_request_from_taken_to_finished() {
    LoopBench bench;
    Told told(bench);
    Slots::Lease first = bench.submit(LoopBench::header(2), LoopBench::prompt(70));
    bench.finish();
    EXPECT_EQUAL(told.read(first.slot), "taken:70 admitted:0 part:0 part:1 finished:2");
    // The same again: two of two whole blocks are there, and nobody runs with them.
    Slots::Lease again = bench.submit(LoopBench::header(2), LoopBench::prompt(70));
    bench.iterate();
    EXPECT_EQUAL(told.read(again.slot, 3), "taken:70,2,1 admitted:2,0,2 part:2,6,64");
    // While it runs, somebody finds its blocks.
    Slots::Lease third = bench.submit(LoopBench::header(1), LoopBench::prompt(70));
    bench.finish();
    EXPECT_EQUAL(told.read(third.slot, 3),
                 "taken:70,1,1 admitted:2,2,2 part:3,6,64 finished:2,0,1");
}

static void test_steps_are_told_to_all() {
    LoopBench bench(small_config(), 2);
    Told told(bench);
    bench.submit(LoopBench::header(1), LoopBench::prompt(5), 1); // another edge's request
    bench.finish();
    // step, rows, requests, prompt rows; nothing else of the other edge.
    EXPECT_EQUAL(told.read(-1, 4), "step:0,5,1,5");
    EXPECT_EQUAL(told.read(0), "");
}

static void test_why_a_request_waits() {
    LoopConfig config = small_config();
    config.sequences_max = 2;
    config.pages = 6;
    LoopBench bench(config);
    Told told(bench);
    bench.submit(LoopBench::header(60), LoopBench::prompt(100, 1)); // five pages of six
    Slots::Lease second = bench.submit(LoopBench::header(60), LoopBench::prompt(20, 2));
    Slots::Lease third = bench.submit(LoopBench::header(1), LoopBench::prompt(3, 3));
    bench.iterate();
    bench.iterate(); // nothing has changed: nothing is told
    EXPECT_EQUAL(told.read(second.slot, 2).substr(0, 26), "taken:20,60 waiting:2,3");
    bench.finish();
    std::string later = told.read(third.slot);
    EXPECT(later.find("waiting:3") != std::string::npos || later.find("admitted") == 0);
}

static void test_refusals_and_cancels() {
    LoopBench bench;
    Told told(bench);
    RequestHeader bad = LoopBench::header(1);
    bad.top_k = -1;
    Slots::Lease refused = bench.submit(bad, LoopBench::prompt(4));
    Slots::Lease cancelled = bench.submit(LoopBench::header(100), LoopBench::prompt(4));
    bench.iterate();
    cancel_request(bench.views[0], cancelled.slot, cancelled.generation);
    bench.iterate();
    std::string text = told.read(cancelled.slot);
    EXPECT(text.find("cancelled:3 finished:3") != std::string::npos);
    told.next = 0;
    EXPECT_EQUAL(told.read(refused.slot), "refused:3");
}

} // namespace sublimate::test

int main() {
    using namespace sublimate::test;
    race(false);
    race(true);
    test_the_reader_counts_what_it_missed();
    test_following_ends_with_its_time();
    test_off_touches_no_memory();
    test_a_request_from_taken_to_finished();
    test_steps_are_told_to_all();
    test_why_a_request_waits();
    test_refusals_and_cancels();
    return test_result();
}

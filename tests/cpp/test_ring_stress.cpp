// Two threads on one region: an edge that submits, cancels and sleeps, and a loop that answers and
// sleeps. Made for ThreadSanitizer; in any build a lost wake-up, a lost row or a mixed-up word
// fails it.
#include <atomic>
#include <cstring>
#include <poll.h>
#include <thread>
#include <vector>

#include "../../core/text/edge_client.h"
#include "expect.h"

namespace sublimate::test {

constexpr int32_t VOCABULARY = 1000;
constexpr int32_t REQUESTS = 30000;
constexpr int32_t IN_FLIGHT_MAX = 64;
constexpr int LITMUS_ROUNDS = 60000;
constexpr int LITMUS_OFFSETS = 1999;  // delays of the announcement, so that the two moments meet
constexpr int SLEEPS_MIN = 50;        // fewer, and the wake-ups were hardly tried
constexpr int WAKE_UP_MS_MAX = 20000; // whoever waits longer has missed a bell

static std::atomic<int> sleeps[2]; // per Bell: how often its waiter slept

static void wait_for_bell(const Region& region, Bell bell) {
    pollfd waited{region.bell_fd(bell), POLLIN, 0};
    sleeps[static_cast<int>(bell)]++;
    EXPECT_EQUAL(poll(&waited, 1, WAKE_UP_MS_MAX), 1);
}

// ---- the loop ----------------------------------------------------------------------------------
class Loop {
public:
    Loop(Region& region, std::atomic<bool>& stop)
        : region_(region), view_(region.view()), stop_(stop) {}

    void run() {
        while (!stop_.load(std::memory_order_acquire)) {
            take();
            if (!running_.empty()) {
                step();
            } else {
                sleep();
            }
        }
    }

private:
    struct Running {
        int32_t slot, generation, left, sum;
    };

    // The sum over the prompt shows whether the record arrived whole.
    void take() {
        for (int32_t slot = submission_pop(view_); slot >= 0; slot = submission_pop(view_)) {
            RequestHeader header;
            const int32_t* words = view_.slot_memory(slot);
            std::memcpy(&header, words, sizeof header);
            int32_t sum = 0;
            for (int32_t i = 0; i < header.prompt_length; i++)
                sum += words[REQUEST_HEADER_WORDS + i];
            running_.push_back({slot, header.generation, header.token_budget, sum});
            add({slot, header.generation, ROW_ADMITTED, 0, 0, 0, 1, 0});
        }
    }

    void step() {
        for (size_t i = running_.size(); i-- > 0;) {
            Running& request = running_[i];
            TokenRow row{request.slot, request.generation, ROW_TOKEN, 0, 0, 0, 0, 0};
            row.token = request.sum % VOCABULARY;
            bool cancelled = cancel_requested(view_, request.slot, request.generation);
            if (cancelled) row.flags = 0;
            if (cancelled || --request.left == 0) {
                row.flags |= ROW_FINISHED;
                row.reason = static_cast<int32_t>(cancelled ? FinishReason::cancelled
                                                            : FinishReason::budget);
                request = running_.back();
                running_.pop_back();
            }
            add(row);
        }
        publish();
    }

    void add(const TokenRow& row) {
        if (record_.empty()) record_.resize(limits::STEP_HEADER_WORDS);
        size_t at = record_.size();
        record_.resize(at + limits::TOKEN_ROW_WORDS);
        std::memcpy(record_.data() + at, &row, sizeof row);
        record_[1]++;
    }

    void publish() {
        auto words = static_cast<int32_t>(record_.size());
        record_[0] = words;
        while (token_room_words(view_) < words) std::this_thread::yield();
        token_push(view_, record_.data(), words);
        record_.clear();
        if (sleep_announced(&view_.control->edge_sleeping)) region_.ring_bell(Bell::token);
    }

    void sleep() {
        sleep_announce(&view_.control->engine_sleeping);
        if (!submission_pending(view_) && !stop_.load(std::memory_order_acquire))
            wait_for_bell(region_, Bell::submission);
        sleep_end(&view_.control->engine_sleeping);
        region_.clear_bell(Bell::submission);
    }

    Region& region_;
    RegionView view_;
    std::atomic<bool>& stop_;
    std::vector<Running> running_;
    std::vector<int32_t> record_;
};

// ---- the edge ----------------------------------------------------------------------------------
struct Wanted {
    int32_t slot = 0, generation = 0, budget = 0, token = 0, seen = 0;
    bool finished = false;
};

static Wanted submit(EdgeClient& client, Random& random, int32_t key) {
    int32_t prompt = 1 + random.below(300);
    EdgeClient::Lease lease = client.acquire(request_words(prompt, 0, false));
    EXPECT(lease.slot >= 0);
    Wanted wanted{lease.slot, lease.generation, 1 + random.below(8), 0, 0, false};
    int32_t sum = 0;
    for (int32_t i = 0; i < prompt; i++) {
        int32_t token = random.below(VOCABULARY);
        lease.words[static_cast<size_t>(REQUEST_HEADER_WORDS + i)] = token;
        sum += token;
    }
    wanted.token = sum % VOCABULARY;
    RequestHeader header;
    std::memcpy(&header, lease.words.data(), sizeof header);
    header.prompt_length = prompt;
    header.token_budget = wanted.budget;
    header.logprobs = -1;
    std::memcpy(lease.words.data(), &header, sizeof header);
    StreamRequest request;
    request.key = key;
    request.format = StreamFormat::raw;
    EXPECT(client.submit(lease.slot, lease.generation, request) == ClientStatus::ok);
    return wanted;
}

static void apply(const StreamEvent& event, Wanted& wanted) {
    EXPECT(!wanted.finished);
    for (int32_t token : event.token_ids) EXPECT_EQUAL(token, wanted.token);
    wanted.seen += static_cast<int32_t>(event.token_ids.size());
    wanted.finished = event.finished;
    if (event.reason == StopReason::max_tokens) EXPECT_EQUAL(wanted.seen, wanted.budget);
}

static void run_edge(Region& region) {
    EdgeClient client(region, nullptr);
    Random random(5);
    std::vector<Wanted> all;
    std::vector<StreamEvent> events;
    int32_t finished = 0;
    while (finished < REQUESTS && failures == 0) {
        // Bursts, so that both sides often run dry and sleep.
        int32_t burst = client.in_flight() == 0 ? 1 + random.below(IN_FLIGHT_MAX) : random.below(2);
        for (; burst > 0 && static_cast<int32_t>(all.size()) < REQUESTS; burst--)
            if (client.in_flight() < IN_FLIGHT_MAX)
                all.push_back(submit(client, random, static_cast<int32_t>(all.size())));
        if (random.below(3) == 0) {
            auto any = static_cast<size_t>(random.below(static_cast<int32_t>(all.size())));
            client.cancel(all[any].slot, all[any].generation);
        }
        EXPECT(client.poll(events));
        for (const StreamEvent& event : events) {
            apply(event, all[static_cast<size_t>(event.key)]);
            finished += event.finished;
        }
        if (events.empty() && client.in_flight() > 0 && client.sleep_prepare()) {
            wait_for_bell(region, Bell::token);
            client.clear_bell();
        }
    }
    EXPECT_EQUAL(client.slots_in_use(), 0);
    EXPECT_EQUAL(client.stale_rows(), int64_t{0});
}

static void test_two_threads() {
    Region region;
    EXPECT(Region::create(VOCABULARY, region) == RegionStatus::ok);
    std::atomic<bool> stop{false};
    std::thread loop([&] { Loop(region, stop).run(); });
    run_edge(region);
    stop.store(true, std::memory_order_release);
    region.ring_bell(Bell::submission);
    loop.join();
    std::printf("edge slept %d times, loop %d times\n", sleeps[1].load(), sleeps[0].load());
    EXPECT(sleeps[0] > SLEEPS_MIN && sleeps[1] > SLEEPS_MIN);
}

// ---- the heart of the sleep protocol -----------------------------------------------------------
// Publish-then-look against announce-then-look, both at the same moment, over and over: at least
// one side must see the other, or a sleeper would never be woken. Plain release and acquire fail
// this within some thousand rounds.
static void wait_for_round(const std::atomic<int>& round, int wanted) {
    for (int spins = 0; round.load(std::memory_order_acquire) != wanted; spins++)
        if (spins > limits::SPIN_ROUNDS) std::this_thread::yield();
}

static void test_announce_and_publish_never_miss_each_other() {
    Region region;
    EXPECT(Region::create(VOCABULARY, region) == RegionStatus::ok);
    RegionView view = region.view();
    std::atomic<int> start{0};
    std::atomic<int> done{0};
    bool announcement_seen = false;
    std::thread publisher([&] {
        RegionView own = region.view();
        int32_t record[limits::STEP_HEADER_WORDS] = {limits::STEP_HEADER_WORDS};
        for (int round = 1; round <= LITMUS_ROUNDS; round++) {
            wait_for_round(start, round);
            token_push(own, record, limits::STEP_HEADER_WORDS);
            announcement_seen = sleep_announced(&own.control->edge_sleeping);
            done.store(round, std::memory_order_release);
        }
    });
    int missed = 0;
    std::vector<int32_t> record(TOKEN_RECORD_WORDS_MAX);
    for (int round = 1; round <= LITMUS_ROUNDS; round++) {
        start.store(round, std::memory_order_release);
        for (volatile int delay = round % LITMUS_OFFSETS; delay > 0;) delay = delay - 1;
        sleep_announce(&view.control->edge_sleeping);
        bool record_seen = tokens_pending(view);
        wait_for_round(done, round);
        missed += !record_seen && !announcement_seen;
        sleep_end(&view.control->edge_sleeping);
        EXPECT_EQUAL(token_pop(view, record.data(), TOKEN_RECORD_WORDS_MAX),
                     limits::STEP_HEADER_WORDS);
    }
    publisher.join();
    EXPECT_EQUAL(missed, 0);
}

} // namespace sublimate::test

int main() {
    sublimate::test::test_announce_and_publish_never_miss_each_other();
    sublimate::test::test_two_threads();
    return sublimate::test::test_result();
}

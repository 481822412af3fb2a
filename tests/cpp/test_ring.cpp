// Regions, rings, slots and the edge client in one thread: wrap-around, refusals, damage, and a
// random run of an edge against a loop that both know what must come.
#include <cstring>
#include <fcntl.h>
#include <string>
#include <unistd.h>
#include <unordered_map>
#include <vector>

#include "../../core/text/edge_client.h"
#include "expect.h"

namespace sublimate::test {

constexpr int32_t VOCABULARY = 100;

static Region make_region(int32_t vocabulary = VOCABULARY) {
    Region region;
    EXPECT(Region::create(vocabulary, region) == RegionStatus::ok);
    return region;
}

// One step record with rows that carry no pairs.
static std::vector<int32_t> record_of(const std::vector<TokenRow>& rows) {
    StepRecord header{};
    header.row_count = static_cast<int32_t>(rows.size());
    header.words = limits::STEP_HEADER_WORDS + header.row_count * limits::TOKEN_ROW_WORDS;
    header.time_ns_low = 7;
    std::vector<int32_t> record(static_cast<size_t>(header.words));
    std::memcpy(record.data(), &header, sizeof header);
    if (!rows.empty())
        std::memcpy(record.data() + limits::STEP_HEADER_WORDS, rows.data(),
                    rows.size() * sizeof(TokenRow));
    return record;
}

static void push(RegionView& view, const std::vector<TokenRow>& rows) {
    std::vector<int32_t> record = record_of(rows);
    token_push(view, record.data(), static_cast<int32_t>(record.size()));
}

// ---- region ------------------------------------------------------------------------------------
static void test_region_moves_and_attaches() {
    Region region = make_region();
    region.view().control->submission_tail = 5;
    Region moved = std::move(region);
    EXPECT(!region.view().attached() && moved.view().attached());
    Region other;
    EXPECT(Region::attach(moved.descriptors(), other) == RegionStatus::ok);
    EXPECT_EQUAL(other.view().control->submission_tail, uint64_t{5});
    EXPECT_EQUAL(other.view().vocabulary, VOCABULARY);
    EXPECT(other.bell_fd(Bell::token) != moved.bell_fd(Bell::token));
    moved.ring_bell(Bell::token);
    moved.ring_bell(Bell::token);
    uint64_t count = 0;
    EXPECT(read(other.bell_fd(Bell::token), &count, sizeof count) == sizeof count && count == 2);
    other.clear_bell(Bell::token); // nothing to clear: must not block
    EXPECT(read(moved.bell_fd(Bell::submission), &count, sizeof count) < 0);
}

static void test_region_refuses() {
    Region region = make_region();
    Region other;
    RegionDescriptors fds = region.descriptors();
    EXPECT(Region::create(0, other) == RegionStatus::bad_vocabulary);
    EXPECT(Region::create(limits::VOCABULARY_MAX + 1, other) == RegionStatus::bad_vocabulary);
    EXPECT(Region::attach({-1, fds.submission_bell, fds.token_bell}, other) ==
           RegionStatus::bad_descriptor);
    EXPECT(Region::attach({fds.token_bell, fds.submission_bell, fds.token_bell}, other) ==
           RegionStatus::not_sealed);
    region.view().control->vocabulary = limits::VOCABULARY_MAX;
    EXPECT(Region::attach(fds, other) == RegionStatus::wrong_size);
    region.view().control->version++;
    EXPECT(Region::attach(fds, other) == RegionStatus::wrong_version);
    EXPECT(!other.view().attached());
    for (int32_t status = 0; status <= static_cast<int32_t>(RegionStatus::wrong_version); status++)
        EXPECT(std::strlen(region_status_text(static_cast<RegionStatus>(status))) > 1);
}

// ---- rings -------------------------------------------------------------------------------------
static void test_submission_ring_wraps_and_fills() {
    Region region = make_region();
    RegionView view = region.view();
    view.control->submission_head = view.control->submission_tail = UINT64_MAX - 100;
    for (int round = 0; round < 3; round++) {
        for (int32_t i = 0; i < limits::SUBMISSION_RING_ENTRIES; i++)
            EXPECT(submission_push(view, i % limits::SLOTS_MAX));
        EXPECT(!submission_push(view, 0));
        EXPECT(submission_pending(view));
        for (int32_t i = 0; i < limits::SUBMISSION_RING_ENTRIES; i++)
            EXPECT_EQUAL(submission_pop(view), i % limits::SLOTS_MAX);
        EXPECT_EQUAL(submission_pop(view), -1);
    }
    for (int32_t hostile : {limits::SLOTS_MAX, INT32_MAX, INT32_MIN, -1}) {
        EXPECT(submission_push(view, hostile)); // an entry, whatever it says: never "empty"
        EXPECT_EQUAL(submission_pop(view), limits::SLOTS_MAX);
    }
    view.control->submission_tail += uint64_t{limits::SUBMISSION_RING_ENTRIES} + 1;
    EXPECT_EQUAL(submission_pop(view), -1);
}

// Records of changing length around the ring several times; each arrives as it was sent.
static void test_token_ring_wraps() {
    Region region = make_region();
    RegionView view = region.view();
    view.control->token_head = view.control->token_tail = UINT64_MAX - 12345;
    std::vector<int32_t> got(TOKEN_RECORD_WORDS_MAX);
    Random random(3);
    int64_t words = 0;
    int32_t sent = 0;
    int32_t received = 0;
    auto record_number = [](int32_t number) {
        auto count = static_cast<size_t>(8 + number * 37 % 4096);
        std::vector<int32_t> record(count, number);
        record[0] = static_cast<int32_t>(count);
        return record;
    };
    while (words < int64_t{limits::TOKEN_RING_WORDS} * 5) {
        std::vector<int32_t> record = record_number(sent);
        auto count = static_cast<int32_t>(record.size());
        if (random.below(2) == 0 && token_room_words(view) >= count) {
            token_push(view, record.data(), count);
            words += count;
            sent++;
        } else if (received < sent) {
            int32_t size = token_pop(view, got.data(), TOKEN_RECORD_WORDS_MAX);
            std::vector<int32_t> wanted = record_number(received++);
            EXPECT(size == static_cast<int32_t>(wanted.size()) &&
                   std::equal(wanted.begin(), wanted.end(), got.begin()));
        }
    }
    view.control->token_head = view.control->token_tail + 1; // damaged: more consumed than made
    EXPECT_EQUAL(token_room_words(view), int64_t{0});
    EXPECT_EQUAL(token_pop(view, got.data(), TOKEN_RECORD_WORDS_MAX), -1);
}

static void test_a_record_is_pushed_whole_or_not_at_all() {
    Region region = make_region();
    RegionView view = region.view();
    std::vector<int32_t> record(20, 20);
    for (int32_t room : {0, 1, 19, 20}) {
        view.control->token_head = 1000;
        view.control->token_tail = 1000 + static_cast<uint64_t>(limits::TOKEN_RING_WORDS - room);
        uint64_t tail = view.control->token_tail;
        EXPECT_EQUAL(token_try_push(view, record.data(), 20), room == 20);
        EXPECT_EQUAL(view.control->token_tail, tail + (room == 20 ? 20u : 0u));
    }
    EXPECT(!token_try_push(view, record.data(), 0));
    for (uint64_t beyond : {1, 5, limits::TOKEN_RING_WORDS, 3 * limits::TOKEN_RING_WORDS}) {
        // A damaged head: that much more is unread than there is.
        view.control->token_head = view.control->token_tail - limits::TOKEN_RING_WORDS - beyond;
        EXPECT_EQUAL(token_room_words(view), int64_t{0});
        EXPECT(!token_try_push(view, record.data(), 20));
    }
}

// What a broken engine could leave: the first word of a record is its length, and nothing of what
// lies behind it may be read before that is checked.
static void test_records_of_a_wrong_length_are_refused() {
    constexpr int32_t THERE = 40, CAPACITY = 30;
    struct Case {
        int32_t words;
        int32_t wanted;
    };
    for (Case one : {Case{limits::STEP_HEADER_WORDS, limits::STEP_HEADER_WORDS},
                     {CAPACITY, CAPACITY},
                     {CAPACITY + 1, -1},
                     {limits::STEP_HEADER_WORDS - 1, -1},
                     {1, -1},
                     {0, -1},
                     {-5, -1},
                     {INT32_MAX, -1}}) {
        Region region = make_region();
        RegionView view = region.view();
        view.tokens[0] = one.words;
        view.control->token_tail = THERE;
        std::vector<int32_t> got(CAPACITY);
        EXPECT_EQUAL(token_pop(view, got.data(), CAPACITY), one.wanted);
        EXPECT_EQUAL(view.control->token_head,
                     static_cast<uint64_t>(one.wanted < 0 ? 0 : one.wanted));
    }
    Region region = make_region();
    RegionView view = region.view();
    view.tokens[0] = THERE;
    view.control->token_tail = THERE - 1;
    std::vector<int32_t> got(2 * THERE);
    EXPECT_EQUAL(token_pop(view, got.data(), 2 * THERE), -1);
}

static void test_slots_of_every_class_come_back_to_it() {
    Slots slots;
    int32_t first = 0;
    for (int32_t c = 0; c < limits::SLOT_CLASSES; c++) {
        int32_t words = limits::SLOT_WORDS[c];
        for (int32_t round = 0; round < 2; round++) {
            std::vector<Slots::Lease> leases;
            for (int32_t i = 0; i < limits::SLOT_COUNTS[c]; i++)
                leases.push_back(slots.acquire(words));
            for (const Slots::Lease& lease : leases) {
                EXPECT(lease.slot >= first && lease.slot < first + limits::SLOT_COUNTS[c]);
                EXPECT_EQUAL(lease.generation, round + 1);
                slots.release(lease.slot, lease.generation);
            }
        }
        first += limits::SLOT_COUNTS[c];
    }
    EXPECT_EQUAL(slots.in_use(), 0);
}

static void test_slots_reuse_with_new_generations() {
    Slots slots;
    std::vector<Slots::Lease> leases;
    for (int32_t i = 0; i < limits::SLOTS_MAX; i++) leases.push_back(slots.acquire(1));
    EXPECT_EQUAL(slots.acquire(1).slot, -1);
    for (int32_t i = 0; i < limits::SLOTS_MAX; i++) {
        EXPECT_EQUAL(leases[static_cast<size_t>(i)].slot, i);
        EXPECT_EQUAL(leases[static_cast<size_t>(i)].generation, 1);
    }
    slots.release(300, 1);
    EXPECT(!slots.holds(300, 1) && slots.holds(301, 1) && !slots.holds(301, 2));
    Slots::Lease again = slots.acquire(4096);
    EXPECT_EQUAL(again.slot, 300);
    EXPECT_EQUAL(again.generation, 2);
    EXPECT_EQUAL(slots.acquire(int64_t{1} << 40).slot, -1);
    EXPECT(!slots.holds(-1, 1) && !slots.holds(limits::SLOTS_MAX, 1));
}

// ---- edge and loop -----------------------------------------------------------------------------
// A loop that answers each request with tokens it derives from the slot's record.
class EchoLoop {
public:
    explicit EchoLoop(const Region& region) : view_(region.view()) {}

    // One step: takes what is new, honours cancels, gives every running request one token.
    void step(Random& random) {
        std::vector<TokenRow> rows;
        for (int32_t slot = submission_pop(view_); slot >= 0; slot = submission_pop(view_)) {
            RequestHeader header;
            std::memcpy(&header, view_.slot_memory(slot), sizeof header);
            running_.push_back({slot, header.generation, header.token_budget});
            rows.push_back({slot, header.generation, ROW_ADMITTED, 0, 0, 0, 1, 0});
        }
        for (size_t i = running_.size(); i-- > 0;) {
            Running& request = running_[i];
            TokenRow row{request.slot, request.generation, ROW_TOKEN, 0, 0, 0, 0, 0};
            row.token = token_of(request.left);
            auto end = FinishReason::none;
            if (cancel_requested(view_, request.slot, request.generation)) {
                end = FinishReason::cancelled;
                row.flags = 0;
            } else if (--request.left == 0) {
                end = FinishReason::budget;
            } else if (random.below(40) == 0) {
                end = FinishReason::failed;
                row.flags = 0;
            }
            row.reason = static_cast<int32_t>(end);
            if (end != FinishReason::none) row.flags |= ROW_FINISHED;
            rows.push_back(row);
            if (end != FinishReason::none) running_.erase(running_.begin() + static_cast<long>(i));
        }
        if (!rows.empty()) push(view_, rows);
    }

    static int32_t token_of(int32_t left) { return left % VOCABULARY; }
    bool idle() const { return running_.empty() && !submission_pending(view_); }

private:
    struct Running {
        int32_t slot, generation, left;
    };
    RegionView view_;
    std::vector<Running> running_;
};

struct Expected {
    int32_t slot = 0, generation = 0, budget = 0;
    std::vector<int32_t> ids;
    bool finished = false;
};

static void check_event(const StreamEvent& event, Expected& expected) {
    EXPECT(!expected.finished);
    for (int32_t id : event.token_ids) {
        EXPECT_EQUAL(
            id, EchoLoop::token_of(expected.budget - static_cast<int32_t>(expected.ids.size())));
        expected.ids.push_back(id);
    }
    EXPECT_EQUAL(event.output_tokens, static_cast<int32_t>(expected.ids.size()));
    expected.finished = event.finished;
    if (event.reason == StopReason::max_tokens)
        EXPECT_EQUAL(static_cast<int32_t>(expected.ids.size()), expected.budget);
}

static void test_random_run() {
    Region region = make_region();
    EdgeClient client(region, nullptr);
    EchoLoop loop(region);
    Random random(4);
    std::unordered_map<int64_t, Expected> all;
    std::vector<StreamEvent> events;
    int64_t finished = 0;
    for (int32_t step = 0; step < 20000 || !loop.idle() || client.in_flight() > 0; step++) {
        if (step < 20000 && random.below(3) == 0) {
            EdgeClient::Lease lease = client.acquire(REQUEST_HEADER_WORDS + random.below(2000));
            if (lease.slot >= 0) {
                RequestHeader header;
                std::memcpy(&header, lease.words.data(), sizeof header);
                header.prompt_length = 1;
                header.token_budget = 1 + random.below(30);
                header.logprobs = -1;
                std::memcpy(lease.words.data(), &header, sizeof header);
                StreamRequest request;
                request.key = step;
                request.format = StreamFormat::raw;
                EXPECT(client.submit(lease.slot, lease.generation, request) == ClientStatus::ok);
                all[step] = {lease.slot, lease.generation, header.token_budget, {}, false};
            }
        }
        if (random.below(2) == 0) loop.step(random);
        if (random.below(5) == 0 && !all.empty()) { // late ones too
            const Expected& some = all.begin()->second;
            client.cancel(some.slot, some.generation);
        }
        if (random.below(4) != 0) continue;
        EXPECT(client.poll(events));
        for (const StreamEvent& event : events) {
            check_event(event, all[event.key]);
            finished += event.finished;
        }
        if (failures > 9) return;
    }
    EXPECT_EQUAL(finished, static_cast<int64_t>(all.size()));
    EXPECT(finished > 5000);
    EXPECT_EQUAL(client.slots_in_use(), 0);
    EXPECT_EQUAL(client.stale_rows(), int64_t{0});
}

// An engine that writes without end keeps the edge for one ring's worth of words per poll, no
// longer.
static void test_poll_is_bounded() {
    Region region = make_region();
    RegionView view = region.view();
    EdgeClient client(region, nullptr);
    std::vector<int32_t> record = record_of({});
    while (token_room_words(view) >= static_cast<int64_t>(record.size()))
        token_push(view, record.data(), static_cast<int32_t>(record.size()));
    std::vector<StreamEvent> events;
    EXPECT(client.poll(events) && events.empty());
    EXPECT(!tokens_pending(view));
    EXPECT(client.sleep_prepare());
}

} // namespace sublimate::test

int main() {
    using namespace sublimate::test;
    test_region_moves_and_attaches();
    test_region_refuses();
    test_submission_ring_wraps_and_fills();
    test_token_ring_wraps();
    test_a_record_is_pushed_whole_or_not_at_all();
    test_records_of_a_wrong_length_are_refused();
    test_slots_of_every_class_come_back_to_it();
    test_slots_reuse_with_new_generations();
    test_random_run();
    test_poll_is_bounded();
    return test_result();
}

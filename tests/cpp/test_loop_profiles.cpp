// What the execution profiles are for, on a virtual clock: each profile's own figure beats the
// other two's. The model costs time as a small machine does: a decode pass reads all weights,
// prompt rows cost arithmetic. The same comparison on the real model is the bench's; this one keeps
// the default policy honest.
#include "../../core/loop/loop.h"
#include "test.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <vector>

namespace sublimate {
namespace {

constexpr int64_t MILLISECOND = 1'000'000;
constexpr int32_t VOCABULARY = 32;
constexpr int32_t CLIENTS = 32;
constexpr int32_t PROMPT = 140;
constexpr int32_t BUDGET = 64;
constexpr int32_t LONG_PROMPT = 8000;

struct Clock {
    int64_t now_ns() const { return time_ns; }
    int64_t time_ns = 1;
};

// Emits token 1 always; takes 1.9 ms + 0.57 ms a decode row, and 2 ms + 0.22 ms a prompt row.
class CostModel {
public:
    explicit CostModel(Clock& clock) : clock_(clock), logits_(limits::LOGIT_ROWS_MAX * VOCABULARY) {
        for (size_t i = 1; i < logits_.size(); i += VOCABULARY) logits_[i] = 1.0f;
    }
    int32_t vocabulary() const { return VOCABULARY; }
    const SamplerOps& sampler_ops() const { return scalar_sampler_ops(); }
    template <class Body>
    void for_rows(int32_t count, Body&& body) {
        for (int32_t i = 0; i < count; i++) body(i);
    }
    const float* forward(const Step& step) {
        int32_t decode = 0;
        int32_t prompt = 0;
        for (int32_t i = 0; i < step.segment_count; i++) {
            const Segment& s = step.segments[i];
            (s.arithmetic == Arithmetic::generated ? decode : prompt) += s.row_count;
        }
        if (decode > 0) clock_.time_ns += 19 * MILLISECOND / 10 + decode * 57 * MILLISECOND / 100;
        if (prompt > 0) clock_.time_ns += 2 * MILLISECOND + prompt * 22 * MILLISECOND / 100;
        return logits_.data();
    }

private:
    Clock& clock_;
    std::vector<float> logits_;
};

// One request as a client sees it.
struct Seen {
    int64_t submitted_ns = 0;
    int64_t first_ns = 0;
    int64_t last_ns = 0;
    int64_t gap_max_ns = 0;
    bool finished = false;
    bool is_long = false;
};

class Server {
public:
    explicit Server(Profile profile) : profile_(profile), model_(clock_) {
        config_.vocabulary = VOCABULARY;
        config_.context_tokens = LONG_PROMPT + 200;
        config_.pages = 10000;
        auto aligned = [](int64_t bytes) {
            return std::aligned_alloc(4096, static_cast<size_t>(align_up(bytes, 4096)));
        };
        block_ = aligned(loop_memory_bytes(config_));
        region_ = aligned(region_layout(VOCABULARY).total_bytes);
        memset(region_, 0, static_cast<size_t>(region_layout(VOCABULARY).slots));
        view_ = region_view(region_, VOCABULARY);
        region_format(view_);
        loop_ = std::make_unique<Loop<CostModel, Clock>>(config_, loop_memory(config_, block_),
                                                         model_, clock_);
        loop_->attach(0, view_);
    }
    ~Server() {
        loop_.reset();
        std::free(block_);
        std::free(region_);
    }
    Server(const Server&) = delete;
    Server& operator=(const Server&) = delete;

    void submit(int32_t prompt, int32_t budget) {
        RequestHeader h = {};
        h.version = REQUEST_VERSION;
        h.profile = static_cast<int32_t>(profile_);
        h.prompt_length = prompt;
        h.token_budget = budget;
        h.top_p_bits = h.repetition_penalty_bits = static_cast<int32_t>(float_bits(1.0f));
        h.logprobs = h.mask_slot = h.trigger_slot = -1;
        h.flags = FLAG_NO_CACHE;
        Slots::Lease lease = slots_.acquire(request_words(prompt, 0, false));
        h.slot = lease.slot;
        h.generation = lease.generation;
        int32_t* words = view_.slot_memory(lease.slot);
        memcpy(words, &h, sizeof h);
        for (int32_t i = 0; i < prompt; i++) words[REQUEST_HEADER_WORDS + i] = i % VOCABULARY;
        CHECK(submission_push(view_, lease.slot));
        by_slot_[lease.slot] = static_cast<int32_t>(seen.size());
        // A request arrives in the middle of a step, not at its border.
        seen.push_back({clock_.time_ns - step_ns_ / 2, 0, 0, 0, false, prompt == LONG_PROMPT});
    }

    // One step; returns how many requests ended.
    int32_t step() {
        int64_t before_ns = clock_.time_ns;
        if (!loop_->run_once()) clock_.time_ns += MILLISECOND;
        step_ns_ = clock_.time_ns - before_ns;
        int32_t ended = 0;
        std::vector<int32_t> record(TOKEN_RECORD_WORDS_MAX);
        while (token_pop(view_, record.data(), TOKEN_RECORD_WORDS_MAX) > 0) {
            for (int32_t i = 0; i < record[1]; i++) {
                TokenRow row;
                memcpy(&row,
                       record.data() + limits::STEP_HEADER_WORDS + i * limits::TOKEN_ROW_WORDS,
                       sizeof row);
                ended += note(row);
            }
        }
        return ended;
    }

    int64_t now_ns() const { return clock_.time_ns; }
    std::vector<Seen> seen;
    int64_t tokens = 0;

private:
    int32_t note(const TokenRow& row) {
        Seen& request = seen[static_cast<size_t>(by_slot_[row.slot])];
        if ((row.flags & ROW_TOKEN) != 0) {
            tokens++;
            if (request.first_ns == 0) request.first_ns = clock_.time_ns;
            if (request.last_ns > 0)
                request.gap_max_ns = std::max(request.gap_max_ns, clock_.time_ns - request.last_ns);
            request.last_ns = clock_.time_ns;
        }
        if ((row.flags & ROW_FINISHED) == 0) return 0;
        request.finished = true;
        slots_.release(row.slot, row.generation);
        return 1;
    }

    Profile profile_;
    LoopConfig config_;
    Clock clock_;
    CostModel model_;
    Slots slots_;
    RegionView view_;
    void* block_ = nullptr;
    void* region_ = nullptr;
    std::unique_ptr<Loop<CostModel, Clock>> loop_;
    int64_t step_ns_ = 0; // of the last step
    int32_t by_slot_[limits::SLOTS_MAX] = {};
};

constexpr Profile PROFILES[] = {Profile::low_latency, Profile::high_throughput,
                                Profile::long_context};

// Median time to the first token of requests that arrive, one every 100 ms or so, while `load`
// others decode.
double first_token_ms(Profile profile, int32_t load) {
    Server server(profile);
    for (int32_t i = 0; i < load; i++) server.submit(PROMPT, 2000);
    for (int32_t i = 0; i < 400; i++) server.step(); // the load decodes
    std::vector<double> times;
    for (int32_t round = 0; round < 40; round++) {
        size_t mine = server.seen.size();
        server.submit(PROMPT, 1);
        while (!server.seen[mine].finished) server.step();
        times.push_back(
            static_cast<double>(server.seen[mine].first_ns - server.seen[mine].submitted_ns) /
            MILLISECOND);
        for (int64_t until = server.now_ns() + 100 * MILLISECOND; server.now_ns() < until;)
            server.step();
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
}

// The same among clients that ask again as soon as they are answered.
double busy_first_token_ms(Profile profile, int32_t clients) {
    Server server(profile);
    for (int32_t i = 0; i < clients; i++) server.submit(PROMPT, 16 + i * 3);
    for (int32_t answered = 0; answered < 6 * clients;) {
        int32_t ended = server.step();
        answered += ended;
        for (int32_t i = 0; i < ended; i++) server.submit(PROMPT, BUDGET);
    }
    std::vector<double> times;
    for (size_t i = static_cast<size_t>(clients); i < server.seen.size(); i++) {
        const Seen& request = server.seen[i];
        if (request.first_ns > 0)
            times.push_back(static_cast<double>(request.first_ns - request.submitted_ns) /
                            MILLISECOND);
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
}

// Tokens per second of clients that ask again as soon as they are answered.
double tokens_per_second(Profile profile, int32_t clients) {
    Server server(profile);
    for (int32_t i = 0; i < clients; i++) server.submit(PROMPT, BUDGET);
    for (int32_t answered = 0; answered < 6 * clients;) {
        int32_t ended = server.step();
        answered += ended;
        for (int32_t i = 0; i < ended; i++) server.submit(PROMPT, BUDGET);
    }
    return static_cast<double>(server.tokens) * 1e9 / static_cast<double>(server.now_ns());
}

// Largest gap between two tokens of some streams while a long prompt is computed.
double largest_gap_ms(Profile profile, int32_t streams) {
    Server server(profile);
    for (int32_t i = 0; i < streams; i++) server.submit(PROMPT, 2000);
    for (int32_t i = 0; i < 200; i++) server.step();
    for (Seen& stream : server.seen) stream.gap_max_ns = 0;
    size_t at = server.seen.size();
    server.submit(LONG_PROMPT, 1);
    while (!server.seen[at].finished) server.step();
    int64_t worst = 0;
    for (const Seen& stream : server.seen)
        if (!stream.is_long) worst = std::max(worst, stream.gap_max_ns);
    return static_cast<double>(worst) / MILLISECOND;
}

void show(const char* name, const double (&figures)[3]) {
    std::printf("%-44s low-latency %.1f, high-throughput %.1f, long-context %.1f\n", name,
                figures[0], figures[1], figures[2]);
}

TEST(low_latency_has_the_first_first_token) {
    for (int32_t load : {8, 24, 64}) {
        double ms[3];
        for (int32_t p = 0; p < 3; p++) ms[p] = first_token_ms(PROFILES[p], load);
        show(("first token, ms, load " + std::to_string(load)).c_str(), ms);
        EXPECT(ms[0] < ms[1] && ms[0] < ms[2]);
    }
    for (int32_t clients : {8, CLIENTS}) {
        double ms[3];
        for (int32_t p = 0; p < 3; p++) ms[p] = busy_first_token_ms(PROFILES[p], clients);
        show(("first token, ms, clients " + std::to_string(clients)).c_str(), ms);
        EXPECT(ms[0] < ms[1] && ms[0] < ms[2]);
    }
}

TEST(high_throughput_has_the_most_tokens) {
    for (int32_t clients : {CLIENTS, 128}) {
        double rate[3];
        for (int32_t p = 0; p < 3; p++) rate[p] = tokens_per_second(PROFILES[p], clients);
        show(("tokens per second, clients " + std::to_string(clients)).c_str(), rate);
        EXPECT(rate[1] > rate[0] && rate[1] > rate[2]);
    }
}

TEST(long_context_has_the_smallest_gap_beside_a_long_prompt) {
    for (int32_t streams : {1, 4, 16}) {
        double ms[3];
        for (int32_t p = 0; p < 3; p++) ms[p] = largest_gap_ms(PROFILES[p], streams);
        show(("largest gap, ms, streams " + std::to_string(streams)).c_str(), ms);
        EXPECT(ms[2] < ms[0] && ms[2] < ms[1]);
    }
}

} // namespace
} // namespace sublimate

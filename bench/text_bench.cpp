// Times the native share of a streamed token: 32 streams from token ids to SSE bytes, first the
// text path alone, then the whole edge client with a token ring that a stand-in for the loop fills.
// Prints nanoseconds per token, the median and the best of many rounds.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "../core/text/text.h"

namespace sublimate {
namespace {

constexpr int32_t STREAMS = 32;
constexpr int32_t STEPS = 64; // tokens per stream and round
constexpr int32_t ROUNDS = 400;

using Clock = std::chrono::steady_clock;

// Token lengths and kinds of an ordinary answer: words, punctuation, line ends, some code points
// cut in two.
Vocabulary make_vocabulary() {
    Vocabulary vocabulary;
    const char* words[] = {" the",    " model", "ing",      ",",           ".\n",     " \"",
                           " answer", "\xC3",   "\xA9",     " of",         " tokens", " 2",
                           "\n\n",    " and",   " because", "\xE4\xBD\xA0"};
    for (const char* word : words) (void)vocabulary.add(word);
    return vocabulary;
}

int32_t token_at(int32_t stream, int32_t step) {
    return (stream * 5 + step) % 16;
}

void report(const char* name, std::vector<double>& ns, size_t bytes) {
    std::sort(ns.begin(), ns.end());
    std::printf("%-28s median %6.1f ns/token, best %6.1f, %zu bytes out\n", name, ns[ns.size() / 2],
                ns.front(), bytes);
}

double ns_per_token(Clock::time_point start, int32_t tokens) {
    std::chrono::duration<double, std::nano> spent = Clock::now() - start;
    return spent.count() / tokens;
}

void bench_streams(const char* name, const std::vector<std::string>& stops) {
    Vocabulary vocabulary = make_vocabulary();
    std::vector<TextStream> streams(STREAMS);
    std::vector<double> ns;
    size_t bytes = 0;
    for (int32_t round = 0; round < ROUNDS; round++) {
        for (TextStream& stream : streams) {
            TextSettings settings{StreamFormat::sse, stops, "msg_0123456789abcdef", "model", 100};
            if (stream.start(settings, &vocabulary) != StopStatus::ok) return;
            stream.admit(0);
        }
        auto start = Clock::now();
        for (int32_t step = 0; step < STEPS; step++) {
            for (int32_t i = 0; i < STREAMS; i++) {
                TextStream& stream = streams[static_cast<size_t>(i)];
                if (step > 0) stream.begin();
                (void)stream.push(token_at(i, step));
                bytes += stream.collect().size();
            }
        }
        ns.push_back(ns_per_token(start, STREAMS * STEPS));
    }
    report(name, ns, bytes);
}

// One record of the loop: a row for every stream.
void push_step(RegionView& view, const std::vector<EdgeClient::Lease>& leases, int32_t step) {
    constexpr int32_t WORDS = limits::STEP_HEADER_WORDS + STREAMS * limits::TOKEN_ROW_WORDS;
    int32_t record[WORDS] = {WORDS, STREAMS};
    for (int32_t i = 0; i < STREAMS; i++) {
        const EdgeClient::Lease& lease = leases[static_cast<size_t>(i)];
        TokenRow row{lease.slot, lease.generation, ROW_TOKEN, token_at(i, step), 0, 0, 0, 0};
        if (step < 0) row.flags = ROW_ADMITTED, row.token = 0;
        if (step + 1 == STEPS) {
            row.flags |= ROW_FINISHED;
            row.reason = static_cast<int32_t>(FinishReason::budget);
        }
        std::memcpy(record + limits::STEP_HEADER_WORDS + i * limits::TOKEN_ROW_WORDS, &row,
                    sizeof row);
    }
    token_push(view, record, WORDS);
}

EdgeClient::Lease submit(EdgeClient& client, int32_t key) {
    EdgeClient::Lease lease = client.acquire(request_words(1, 0, false));
    RequestHeader header;
    std::memcpy(&header, lease.words.data(), sizeof header);
    header.prompt_length = 1;
    header.token_budget = STEPS;
    header.logprobs = -1;
    std::memcpy(lease.words.data(), &header, sizeof header);
    StreamRequest request;
    request.key = key;
    request.message_id = "msg_0123456789abcdef";
    request.model = "model";
    CHECK(client.submit(lease.slot, lease.generation, request) == ClientStatus::ok);
    return lease;
}

void bench_client() {
    Region region;
    CHECK(Region::create(16, region) == RegionStatus::ok);
    RegionView view = region.view();
    Vocabulary vocabulary = make_vocabulary();
    EdgeClient client(region, &vocabulary);
    std::vector<StreamEvent> events;
    std::vector<double> ns;
    size_t bytes = 0;
    for (int32_t round = 0; round < ROUNDS; round++) {
        std::vector<EdgeClient::Lease> leases;
        for (int32_t i = 0; i < STREAMS; i++) leases.push_back(submit(client, i));
        while (submission_pop(view) >= 0) {
        }
        push_step(view, leases, -1);
        CHECK(client.poll(events));
        double spent = 0;
        for (int32_t step = 0; step < STEPS; step++) {
            push_step(view, leases, step);
            auto start = Clock::now();
            CHECK(client.poll(events));
            for (const StreamEvent& event : events) bytes += event.data.size();
            spent += ns_per_token(start, STREAMS * STEPS);
        }
        ns.push_back(spent);
        CHECK(client.in_flight() == 0);
    }
    report("edge client, ring to SSE", ns, bytes);
}

} // namespace
} // namespace sublimate

int main() {
    sublimate::bench_streams("text path", {});
    sublimate::bench_streams("text path, 4 stop strings",
                             {"\n\nHuman:", "<|im_end|>", " because of", "STOP"});
    sublimate::bench_client();
    return 0;
}

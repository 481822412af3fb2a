// Times the native share of a streamed token: 32 streams from token ids to bytes, first the
// text path alone, then the whole edge client with a token ring that a stand-in for the loop fills.
// Prints nanoseconds per token, the median and the best of many rounds.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <memory>
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

// The tools and thinking of a Hermes model whose calls are constrained.
BlockFormat hermes(BlockKind begins_in) {
    BlockFormat format;
    for (int i = 0; i < STREAMS; i++) format.tool_names.push_back("tool_" + std::to_string(i));
    format.openings = {"<tool_call>"};
    format.closing = "</tool_call>";
    format.thinking_opening = "<think>";
    format.thinking_closing = "</think>";
    format.eager = true;
    format.begins_in = begins_in;
    return format;
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

// Tokens that may stand inside of a JSON string.
int32_t string_token_at(int32_t stream, int32_t step) {
    constexpr int32_t TOKENS[] = {0, 1, 2, 3, 6, 7, 8, 9, 10, 11, 13, 14, 15};
    return TOKENS[(stream * 5 + step) % std::size(TOKENS)];
}

// first: a token of every answer before those that are timed.
void bench_streams(const char* name, const std::vector<std::string>& stops,
                   const std::shared_ptr<const BlockFormat>& blocks = nullptr,
                   const char* first = "", StreamFormat form = StreamFormat::sse) {
    Vocabulary vocabulary = make_vocabulary();
    int32_t first_token = vocabulary.size();
    (void)vocabulary.add(first);
    std::vector<TextStream> streams(STREAMS);
    std::vector<double> ns;
    size_t bytes = 0;
    for (int32_t round = 0; round < ROUNDS; round++) {
        for (TextStream& stream : streams) {
            TextSettings settings{form, stops, "msg_0123456789abcdef", "model", 100};
            settings.blocks = blocks;
            if (stream.start(settings, &vocabulary) != StopStatus::ok) return;
            stream.admit(0);
            if (*first != '\0') (void)stream.push(first_token);
        }
        auto start = Clock::now();
        for (int32_t step = 0; step < STEPS; step++) {
            for (int32_t i = 0; i < STREAMS; i++) {
                TextStream& stream = streams[static_cast<size_t>(i)];
                if (step > 0) stream.begin();
                (void)stream.push(blocks ? string_token_at(i, step) : token_at(i, step));
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
    sublimate::bench_streams("text path, frames", {}, nullptr, "", sublimate::StreamFormat::frames);
    sublimate::bench_streams("text path, 4 stop strings",
                             {"\n\nHuman:", "<|im_end|>", " because of", "STOP"});
    using sublimate::BlockKind;
    auto format = [](BlockKind kind) {
        return std::make_shared<sublimate::BlockFormat>(sublimate::hermes(kind));
    };
    sublimate::bench_streams("blocks: text", {}, format(BlockKind::none));
    sublimate::bench_streams("blocks: thinking", {}, format(BlockKind::thinking));
    sublimate::bench_streams("blocks: arguments", {}, format(BlockKind::none),
                             "<tool_call>{\"name\": \"tool_9\", \"arguments\": {\"text\": \"");
    sublimate::bench_client();
    return 0;
}

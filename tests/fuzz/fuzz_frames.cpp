// Fuzz target of the frame writer: any tokens, stop strings and polls of an answer with thinking
// and calls. What its frames say is, poll by poll and byte by byte, what the same answer says in
// server-sent events.
//
// Input: bits (1: blocks, 2: eager, 4: the thinking is omitted, 8: the answer fails, 16: stop
// string "b", 32: chunked); a byte of cached tokens; then per token a byte: below 32 that of
// PIECES; else low 3 bits a length, bit 7 a poll before it, and that many bytes.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "../../core/text/text.h"
#include "../cpp/frame_twin.h"

namespace sublimate::test {

constexpr size_t INPUT_BYTES_MAX = 4096;
constexpr uint8_t BLOCKS = 1, EAGER = 2, OMITTED = 4, FAILS = 8, STOPS = 16, CHUNKED = 32;
constexpr uint8_t POLL_BIT = 0x80, LENGTH_MASK = 7, PIECES_END = 32;
const char* const PIECES[] = {"<think>",
                              "</think>",
                              "<tool_call>",
                              "</tool_call>",
                              "{\"name\": \"get\", \"arguments\": {\"a\": \"",
                              "\"}}",
                              "\xF0\x9F\x98\xB8",
                              "\n"};

static void require(bool condition, const char* what) {
    if (condition) return;
    std::printf("frames differ from server-sent events: %s\n", what);
    std::abort();
}

static std::shared_ptr<const BlockFormat> format(uint8_t bits) {
    if ((bits & BLOCKS) == 0) return nullptr;
    BlockFormat format;
    format.tool_names = {"get"};
    format.openings = {"<tool_call>"};
    format.closing = "</tool_call>";
    format.thinking_opening = "<think>";
    format.thinking_closing = "</think>";
    format.eager = (bits & EAGER) != 0;
    format.omit_thinking = (bits & OMITTED) != 0;
    require(check_format(format) == BlockStatus::ok, "a good format refused");
    return std::make_shared<BlockFormat>(format);
}

// Without the size line and the end of a chunk.
static std::string_view inside(std::string_view data, bool chunked) {
    if (!chunked || data.empty()) return data;
    data.remove_prefix(data.find("\r\n") + 2);
    data.remove_suffix(2);
    return data;
}

static void compare(TextStream& sse, TextStream& frames, bool chunked) {
    std::string wanted(inside(sse.collect(), chunked));
    require(sse_of_frames_slow(inside(frames.collect(), chunked)) == wanted, "a poll");
    sse.begin();
    frames.begin();
}

static void run(const uint8_t* data, size_t size) {
    std::string_view rest(reinterpret_cast<const char*>(data), std::min(size, INPUT_BYTES_MAX));
    auto byte = [&rest] {
        auto value = rest.empty() ? uint8_t{0} : static_cast<uint8_t>(rest[0]);
        rest.remove_prefix(rest.empty() ? 0 : 1);
        return value;
    };
    uint8_t bits = byte();
    bool chunked = (bits & CHUNKED) != 0;
    std::vector<std::string> stops;
    if ((bits & STOPS) != 0) stops.emplace_back("b");
    TextSettings settings{StreamFormat::sse, stops, "msg_1", "model", 300, chunked};
    settings.blocks = format(bits);
    Vocabulary vocabulary;
    static TextStream sse, frames; // the same for all inputs: nothing of one may reach the next
    require(sse.start(settings, &vocabulary) == StopStatus::ok, "good stop strings refused");
    settings.format = StreamFormat::frames;
    require(frames.start(settings, &vocabulary) == StopStatus::ok, "good stop strings refused");
    uint8_t cached = byte();
    sse.admit(cached);
    frames.admit(cached);
    bool running = true;
    while (running && !rest.empty()) {
        uint8_t control = byte();
        if ((control & POLL_BIT) != 0) compare(sse, frames, chunked);
        std::string token;
        if (control < PIECES_END) token = PIECES[control % std::size(PIECES)];
        if (control >= PIECES_END)
            for (int left = control & LENGTH_MASK; left > 0; left--)
                token += static_cast<char>(byte());
        (void)vocabulary.add(token);
        running = sse.push(vocabulary.size() - 1);
        require(frames.push(vocabulary.size() - 1) == running, "when it ends");
    }
    StopReason reason = (bits & FAILS) != 0 ? StopReason::failed : StopReason::end_turn;
    sse.finish(reason);
    frames.finish(reason);
    compare(sse, frames, chunked);
}

} // namespace sublimate::test

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    sublimate::test::run(data, size);
    return 0;
}

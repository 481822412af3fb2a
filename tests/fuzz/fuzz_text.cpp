// Fuzz target of the text path: any tokens, any stop strings, any polls. The frames must follow the
// grammar, their text must be what the slow twin shows, and after each poll neither more nor less.
//
// Input: byte count of stop strings, then per string a length and its bytes; then per token a byte
// (low 3 bits length, bit 7 poll before it) and its bytes.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "../../core/text/text.h"
#include "../cpp/text_twin.h"

namespace sublimate::test {

constexpr size_t INPUT_BYTES_MAX = 400; // the twin's time grows with the cube
constexpr uint8_t POLL_BIT = 0x80;
constexpr uint8_t LENGTH_MASK = 7;

static void require(bool condition, const char* what) {
    if (condition) return;
    std::printf("the text path differs from its twin: %s\n", what);
    std::abort();
}

class Reader {
public:
    Reader(const uint8_t* data, size_t size)
        : rest_(reinterpret_cast<const char*>(data), std::min(size, INPUT_BYTES_MAX)) {}
    bool empty() const { return rest_.empty(); }
    uint8_t byte() {
        if (rest_.empty()) return 0;
        auto value = static_cast<uint8_t>(rest_[0]);
        rest_.remove_prefix(1);
        return value;
    }
    std::string bytes(size_t count) {
        std::string taken(rest_.substr(0, count));
        rest_.remove_prefix(taken.size());
        return taken;
    }

private:
    std::string_view rest_;
};

static bool skip(std::string_view& text, std::string_view prefix) {
    if (!text.starts_with(prefix)) return false;
    text.remove_prefix(prefix.size());
    return true;
}

// Takes one poll's frames apart; returns the text that they add.
static std::string text_of(std::string_view frames, bool& block_open, bool& ended) {
    constexpr std::string_view DELTA =
        "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,"
        "\"delta\":{\"type\":\"text_delta\",\"text\":\"";
    constexpr std::string_view START = "event: content_block_start\n";
    std::string text;
    auto rest_of_frame = [&](std::string_view until) {
        size_t end = frames.find(until);
        require(end != std::string_view::npos, "an unfinished frame");
        std::string_view body = frames.substr(0, end);
        frames.remove_prefix(end + until.size());
        return body;
    };
    if (skip(frames, START)) {
        require(!block_open, "a second block");
        block_open = true;
        rest_of_frame("\n\n");
    }
    if (skip(frames, DELTA)) {
        require(block_open, "a delta outside its block");
        text = json_unescape_slow(rest_of_frame("\"}}\n\n"));
        require(!text.empty() && text != MALFORMED, "an empty or malformed delta");
    }
    if (frames.empty()) return text;
    if (skip(frames, "event: content_block_stop\n")) {
        require(block_open, "a stop without a block");
        block_open = false;
        rest_of_frame("\n\n");
    }
    require(!block_open && skip(frames, "event: message_delta\n"), "the end of the message");
    rest_of_frame("\n\n");
    require(skip(frames, "event: message_stop\n"), "the end of the stream");
    rest_of_frame("\n\n");
    require(frames.empty(), "frames after the end");
    ended = true;
    return text;
}

static void run(Reader input) {
    std::vector<std::string> stops;
    for (int count = input.byte() % (limits::STOP_STRINGS_MAX + 1); count > 0; count--) {
        std::string stop = decode_slow(input.bytes(1 + (input.byte() & LENGTH_MASK)), true);
        if (!stop.empty()) stops.push_back(stop);
    }
    static TextStream stream; // one for all inputs: nothing of one may reach the next
    Vocabulary vocabulary;
    TextSettings settings{StreamFormat::sse, stops, "id", "model", 1};
    require(stream.start(settings, &vocabulary) == StopStatus::ok, "good stop strings refused");
    stream.admit(0);
    std::string shown;
    std::vector<std::string> tokens;
    bool block_open = false;
    bool ended = false;
    bool running = true;
    stream.begin(); // drops message_start, which does not depend on the input
    while (running && !input.empty()) {
        uint8_t control = input.byte();
        if ((control & POLL_BIT) != 0) {
            shown += text_of(stream.collect(), block_open, ended);
            require(shown == answer_slow(tokens, stops, false).text, "the text of a poll");
            stream.begin();
        }
        tokens.push_back(input.bytes(control & LENGTH_MASK));
        (void)vocabulary.add(tokens.back());
        running = stream.push(vocabulary.size() - 1);
    }
    stream.finish(StopReason::max_tokens);
    shown += text_of(stream.collect(), block_open, ended);
    Answer wanted = answer_slow(tokens, stops, true);
    require(ended && shown == wanted.text, "the whole text");
    require(stream.stop_index() == wanted.stop_index, "the stop string");
    require(stream.usage().output_tokens == wanted.output_tokens, "the billed tokens");
}

} // namespace sublimate::test

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    sublimate::test::run(sublimate::test::Reader(data, size));
    return 0;
}

// Fuzz target of the text path: any tokens, any stop strings, any polls. The frames must follow the
// grammar, their text must be what the slow twin shows, and after each poll neither more nor less.
// With a block format: any cutting of a text gives the same blocks, and arguments are JSON.
//
// Input, if it begins with a byte of 0xF0 and more: bits of the format; lengths and bytes of its
// four markers, none of them empty; then tokens as below. Else: byte count of stop strings, then
// per string a length and its bytes; then per token a byte (low 3 bits length, bit 7 poll before
// it) and its bytes.
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

static std::string marker(Reader& input, const char* otherwise) {
    std::string text = decode_slow(input.bytes(input.byte() & LENGTH_MASK), true);
    std::erase_if(text, [](char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; });
    return text.empty() ? otherwise : text;
}

static std::shared_ptr<const BlockFormat> format(Reader& input) {
    constexpr uint8_t NAMED = 1, BARE = 2, EAGER = 4, TEXT = 8, THINKING = 16;
    uint8_t bits = input.byte();
    BlockFormat format;
    format.tool_names = {"a", "get"};
    format.openings = {marker(input, "<tool_call>")};
    format.closing = marker(input, "</tool_call>");
    format.thinking_opening = marker(input, "<think>");
    format.thinking_closing = marker(input, "</think>");
    if ((bits & NAMED) != 0) format.name_end = "[ARGS]", format.id_opening = "[CALL_ID]";
    format.bare = (bits & BARE) != 0 && (bits & NAMED) == 0;
    format.eager = (bits & EAGER) != 0;
    if ((bits & TEXT) != 0) format.begins_in = BlockKind::text;
    if ((bits & THINKING) != 0) format.begins_in = BlockKind::thinking;
    require(check_format(format) == BlockStatus::ok, "a good format refused");
    return std::make_shared<BlockFormat>(format);
}

static void fold(TextStream& stream, std::vector<FoldedBlock>& blocks) {
    require(stream.collect().empty(), "frames beside pieces");
    require(fold_slow(stream.pieces(), blocks), "the order of pieces");
    stream.begin();
}

static void run_blocks(Reader input) {
    static TextStream stream;
    TextSettings settings{StreamFormat::blocks, {}, "msg_1", "model", 1};
    settings.blocks = format(input);
    Vocabulary vocabulary;
    std::vector<FoldedBlock> cut, whole;
    std::string text;
    require(stream.start(settings, &vocabulary) == StopStatus::ok, "no stop strings refused");
    stream.admit(0);
    while (!input.empty()) {
        uint8_t control = input.byte();
        if ((control & POLL_BIT) != 0) fold(stream, cut);
        std::string token = input.bytes(control & LENGTH_MASK);
        text += token;
        (void)vocabulary.add(token);
        stream.push(vocabulary.size() - 1);
    }
    stream.finish(StopReason::max_tokens);
    fold(stream, cut);
    // The same text as one token.
    require(stream.start(settings, &vocabulary) == StopStatus::ok, "no stop strings refused");
    stream.admit(0);
    (void)vocabulary.add(text);
    stream.push(vocabulary.size() - 1);
    stream.finish(StopReason::max_tokens);
    fold(stream, whole);
    require(cut == whole, "blocks that depend on the cutting");
    for (const FoldedBlock& block : cut) {
        require(block.ended && !block.text.empty(), "a block without end or content");
        if (block.kind == StreamPiece::Kind::tool_start)
            require(json_object_slow(block.text), "arguments that are no JSON object");
    }
}

} // namespace sublimate::test

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    using sublimate::test::Reader;
    constexpr uint8_t BLOCKS = 0xF0;
    if (size > 0 && data[0] >= BLOCKS)
        sublimate::test::run_blocks(Reader(data + 1, size - 1));
    else
        sublimate::test::run(Reader(data, size));
    return 0;
}

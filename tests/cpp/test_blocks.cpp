// Blocks in C++: JSON against its slow reader, and calls through the splitter at every cut. The
// splitter's whole behaviour is compared with its Python twin in tests/unit/test_blocks.py.
#include <cstdlib>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "../../core/text/text.h"
#include "expect.h"
#include "text_twin.h"

static long heap_allocations = 0;

// One of the pair inlined without the other is a false mismatched-new-delete of GCC 12.
[[gnu::noinline]] void* operator new(size_t size) {
    heap_allocations++;
    if (void* memory = std::malloc(size)) return memory;
    throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
    std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept {
    std::free(memory);
}

namespace sublimate::test {

using Kind = BlockPart::Kind;
using Strings = std::vector<std::string>;

// Feeds the text; what the scanner took of it.
static size_t scan(JsonScanner& scanner, std::string_view text) {
    size_t taken = 0;
    while (taken < text.size() && scanner.feed(text[taken])) taken++;
    return taken;
}

// At every place of a text that the scanner takes: what is safe can be closed to an object.
static void expect_closable(std::string_view text) {
    JsonScanner scanner;
    for (char byte : text) {
        if (!scanner.feed(byte)) return;
        std::string closed(text.substr(0, static_cast<size_t>(scanner.safe_bytes())));
        scanner.close(closed);
        EXPECT(json_object_slow(closed));
    }
}

static void test_scanner_equals_its_twin() {
    constexpr std::string_view pieces[] = {
        "{",     "}",     "[",   "]",   ",", ":",       "\"a\"",    "\"",   "1",       "-",
        "0.5",   "1e",    "e+2", "tru", "e", "true",    "null",     "fals", "\\u00e9", "\\ud83d",
        "\\ude", "\\uD8", "\\n", "\\",  "/", "\"b\": ", "{\"a\": ", "[1, ", " ",       "\x01",
    };
    Random random(7);
    for (int round = 0; round < 40000; round++) {
        std::string text = "{";
        for (uint64_t n = random.next() % 9; n > 0; n--)
            text += pieces[random.next() % std::size(pieces)];
        JsonScanner scanner;
        bool whole = scan(scanner, text) == text.size();
        EXPECT_EQUAL(whole && scanner.state() == JsonScanner::State::done, json_object_slow(text));
        expect_closable(text);
    }
}

static void test_scanner_on_one_object() {
    std::string text = R"({"a": [1, -0.5e+10, {"b": null}], "c": "x\u00e9\ud83d\ude38\\", "": {}})";
    expect_closable(text);
    JsonScanner scanner;
    EXPECT_EQUAL(scan(scanner, text), text.size());
    EXPECT(scanner.state() == JsonScanner::State::done && scanner.depth() == 0);
    EXPECT_EQUAL(scanner.safe_bytes(), static_cast<int64_t>(text.size()));
    EXPECT(!scanner.feed(' '));
    // Where half of something would be shown, the scanner waits.
    for (auto [part, safe] : {std::pair{R"({"a": "x\)", 8},
                              {R"({"a": "x\ud83d)", 8},
                              {R"({"a": 12)", 1},
                              {R"({"a": 12,)", 8},
                              {R"({"a": tru)", 1},
                              {R"({"a)", 1}}) {
        scanner.reset();
        EXPECT_EQUAL(scan(scanner, part), std::string_view(part).size());
        EXPECT_EQUAL(scanner.safe_bytes(), int64_t{safe});
    }
}

static void test_scanner_depth_is_bounded() {
    std::string text = "{\"a\":" + std::string(limits::CALL_DEPTH_MAX - 1, '[');
    JsonScanner scanner;
    EXPECT_EQUAL(scan(scanner, text), text.size());
    EXPECT_EQUAL(scanner.depth(), limits::CALL_DEPTH_MAX);
    EXPECT(!scanner.feed('['));
    std::string closed = text;
    scanner.close(closed);
    EXPECT(json_object_slow(closed));
}

static BlockFormat hermes(bool eager) {
    BlockFormat format;
    format.tool_names = {"get"};
    format.openings = {"<tool_call>"};
    format.closing = "</tool_call>";
    format.thinking_opening = "<think>";
    format.thinking_closing = "</think>";
    format.eager = eager;
    return format;
}

static std::string shown(BlockSplitter& splitter, std::string_view text, size_t step) {
    std::string result;
    auto add = [&result](std::span<const BlockPart> parts) {
        for (const BlockPart& part : parts) {
            bool ends = part.kind == Kind::end || part.kind == Kind::cut;
            EXPECT(ends == part.text.empty());
            if (part.kind == Kind::call) result += "@";
            if (part.kind == Kind::cut) result += "/";
            result += ends ? "|" : std::string(part.text);
        }
    };
    for (size_t at = 0; at < text.size(); at += step) add(splitter.feed(text.substr(at, step)));
    add(splitter.finish());
    return result;
}

static void test_splitter_by_any_step() {
    constexpr std::string_view text =
        "<think>\nhm\n</think>\n\nSo:\n<tool_call>\n{\"name\": \"get\", \"arguments\": {\"a\": "
        "1}}\n"
        "</tool_call>\n<tool_call>\n{\"name\": \"none\"}\n</tool_call>";
    constexpr std::string_view wanted = "hm|So:|@get{\"a\": 1}|<tool_call>\n{\"name\": \"none\"}\n"
                                        "</tool_call>|";
    for (bool eager : {false, true}) {
        BlockFormat format = hermes(eager);
        for (size_t step = 1; step <= text.size(); step++) {
            BlockSplitter splitter;
            splitter.start(&format);
            EXPECT_EQUAL(shown(splitter, text, step), wanted);
        }
    }
}

static void test_formats_that_cannot_be_read() {
    EXPECT(check_format({}) == BlockStatus::ok);
    EXPECT(check_format(hermes(true)) == BlockStatus::ok);
    auto with = [](auto change) {
        BlockFormat format = hermes(false);
        change(format);
        return check_format(format);
    };
    EXPECT(with([](BlockFormat& f) { f.openings = {""}; }) == BlockStatus::bad_marker);
    EXPECT(with([](BlockFormat& f) { f.closing = " x"; }) == BlockStatus::bad_marker);
    EXPECT(with([](BlockFormat& f) { f.name_end = "a["; }) == BlockStatus::bad_marker);
    EXPECT(with([](BlockFormat& f) { f.thinking_closing = ""; }) == BlockStatus::bad_marker);
    EXPECT(with([](BlockFormat& f) { f.tool_names = {"a b"}; }) == BlockStatus::bad_name);
    EXPECT(with([](BlockFormat& f) { f.name_key = "arguments"; }) == BlockStatus::bad_name);
}

constexpr std::string_view CALL =
    "<tool_call>\n{\"name\": \"get\", \"arguments\": {\"a\": 1}}\n</tool_call>";

// An answer as a surface is told it, blocks ended by |, and why it ended.
static std::string told(const std::vector<std::string>& tokens, const Strings& stops,
                        const Strings& turn_ends, StreamFormat format,
                        StopReason end = StopReason::end_turn) {
    Vocabulary vocabulary;
    for (const std::string& token : tokens) EXPECT(vocabulary.add(token) == VocabularyStatus::ok);
    TextStream stream;
    TextSettings settings{format, stops, "msg_0123456789", "model", 1};
    settings.turn_ends = turn_ends;
    settings.blocks = std::make_shared<BlockFormat>(hermes(false));
    EXPECT(stream.start(settings, &vocabulary) == StopStatus::ok);
    stream.admit(0);
    std::string result;
    auto add = [&] {
        stream.collect();
        for (const StreamPiece& piece : stream.pieces()) {
            bool stop = piece.kind == StreamPiece::Kind::stop;
            if (piece.kind == StreamPiece::Kind::tool_start) result += "@";
            result += stop ? "|" : std::string(piece.text);
        }
    };
    for (int32_t token = 0; token < vocabulary.size(); token++) {
        if (!stream.push(token)) break;
        if (format == StreamFormat::blocks) add();
        if (format == StreamFormat::blocks) stream.begin();
    }
    stream.finish(end);
    add();
    return result + " " + stop_reason_name(stream.reason());
}

struct Told {
    Strings tokens;
    Strings stops;
    Strings turn_ends;
    std::string wanted;
};

// Stop strings, ends of turns and cut characters, each before, between and behind calls.
static void test_ends_of_answers_with_calls() {
    const std::string call(CALL);
    const std::string cut = "\xF0\x9F";
    const std::string replaced = "\xEF\xBF\xBD";
    const std::vector<Told> all = {
        {{"So ST", "OP", call}, {"STOP"}, {}, "So | stop_sequence"},
        {{"So ", call, "ST", "OP"}, {"STOP"}, {}, "So|@get{\"a\": 1}| stop_sequence"},
        // A stop string lies within one block.
        {{"So ST", call, "OP"}, {"STOP"}, {}, "So ST|@get{\"a\": 1}|OP| tool_use"},
        {{"So ST", call, "STOP"}, {"STOP"}, {}, "So ST|@get{\"a\": 1}| stop_sequence"},
        {{"<think>ST</think>OP"}, {"STOP"}, {}, "ST|OP| end_turn"},
        {{call}, {"get", "arguments"}, {}, "@get{\"a\": 1}| tool_use"},
        // The template's end of a turn is told as what the turn was.
        {{"So\nUser:", "x"}, {}, {"\nUser:"}, "So| end_turn"},
        {{"So ", call, " x\nUser:", "y"}, {}, {"\nUser:"}, "So|@get{\"a\": 1}|x| tool_use"},
        {{call, " x STOP\nUser:"}, {"STOP"}, {"\nUser:"}, "@get{\"a\": 1}|x | stop_sequence"},
        {{"So <tool_call>\n{\"name\": \"ge"}, {}, {}, "So <tool_call>\n{\"name\": \"ge| end_turn"},
        // A character that was cut is told at the end, and is text to stop strings.
        {{"So " + cut}, {}, {}, "So " + replaced + "| end_turn"},
        {{call, "So " + cut}, {}, {}, "@get{\"a\": 1}|So " + replaced + "| tool_use"},
        {{"So " + cut}, {" " + replaced}, {}, "So| stop_sequence"},
        {{call, "So " + cut}, {" " + replaced}, {}, "@get{\"a\": 1}|So| stop_sequence"},
        {{"<think>hm" + cut}, {}, {}, "hm" + replaced + "| end_turn"},
    };
    for (const Told& one : all)
        for (StreamFormat format : {StreamFormat::blocks, StreamFormat::text})
            EXPECT_EQUAL(told(one.tokens, one.stops, one.turn_ends, format), one.wanted);
    EXPECT_EQUAL(told({"So " + cut}, {}, {}, StreamFormat::text, StopReason::max_tokens),
                 "So " + replaced + "| max_tokens");
    EXPECT_EQUAL(told({call}, {}, {}, StreamFormat::blocks, StopReason::max_tokens),
                 "@get{\"a\": 1}| max_tokens");
    EXPECT_EQUAL(tool_id("msg_a-b_1", 3), "toolu_ab103");
    EXPECT_EQUAL(tool_id("x", 12), "toolu_x12");
    EXPECT_EQUAL(tool_id("", 123), "toolu_123");
}

// What is a call, what is thinking, and what is text though it looks like either.
static void test_what_is_no_block_is_text() {
    auto call = [](const std::string& json) { return "<tool_call>\n" + json + "\n</tool_call>"; };
    const std::string one = R"({"name": "get", "arguments": {"a": 1}})";
    const std::string two = R"({"name": "get", "arguments": {"b": [2]}})";
    const std::vector<Told> all = {
        {{call("[" + one + ", " + two + "]")}, {}, {}, R"(@get{"a": 1}|@get{"b": [2]}| tool_use)"},
        {{call(one) + "\n\n" + call(two) + "\n after"},
         {},
         {},
         R"(@get{"a": 1}|@get{"b": [2]}|after| tool_use)"},
        {{"So <think>x</think>"}, {}, {}, "So <think>x</think>| end_turn"},
        {{"<think>x</think> so <think>y"}, {}, {}, "x|so <think>y| end_turn"},
    };
    for (const Told& each : all)
        for (StreamFormat format : {StreamFormat::blocks, StreamFormat::text})
            EXPECT_EQUAL(told(each.tokens, each.stops, each.turn_ends, format), each.wanted);
    for (const char* json : {R"({"name": "none", "arguments": {}})",
                             R"({"name": "get", "name": "get", "arguments": {}})",
                             R"({"name": "get", "arguments": {"a": 01}})",
                             R"({"name": "get", "arguments": {"a": -01.5}})",
                             R"({"name": "get", "arguments": [1]})", R"({"name": 1})"}) {
        std::string text = call(json);
        EXPECT_EQUAL(told({text}, {}, {}, StreamFormat::blocks), text + "| end_turn");
    }
}

// Each block of a stream of events has the next number.
static void test_blocks_are_numbered() {
    Vocabulary vocabulary;
    std::string text = "<think>a</think>b" + std::string(CALL) + "c";
    EXPECT(vocabulary.add(text) == VocabularyStatus::ok);
    TextStream stream;
    TextSettings settings{StreamFormat::sse, {}, "msg_0123456789", "model", 1};
    settings.blocks = std::make_shared<BlockFormat>(hermes(false));
    EXPECT(stream.start(settings, &vocabulary) == StopStatus::ok);
    stream.admit(0);
    EXPECT(stream.push(0));
    stream.finish(StopReason::end_turn);
    std::string frames(stream.collect());
    std::string numbers;
    std::string_view mark = "content_block_stop\",\"index\":";
    for (size_t at = frames.find(mark); at != std::string::npos; at = frames.find(mark, at + 1))
        numbers += frames[at + mark.size()];
    EXPECT_EQUAL(numbers, "0123");
}

static void test_omitted_thinking_is_not_shown() {
    Vocabulary vocabulary;
    for (const char* token : {"<think>secret ", "words</think>", "So"})
        EXPECT(vocabulary.add(token) == VocabularyStatus::ok);
    for (StreamFormat format : {StreamFormat::sse, StreamFormat::blocks, StreamFormat::text}) {
        auto blocks = std::make_shared<BlockFormat>(hermes(false));
        blocks->omit_thinking = true;
        TextStream stream;
        TextSettings settings{format, {}, "msg_0123456789", "model", 1};
        settings.blocks = blocks;
        EXPECT(stream.start(settings, &vocabulary) == StopStatus::ok);
        stream.admit(0);
        for (int32_t token = 0; token < vocabulary.size(); token++) EXPECT(stream.push(token));
        stream.finish(StopReason::end_turn);
        std::string shown(stream.collect());
        for (const StreamPiece& piece : stream.pieces()) shown += piece.text;
        EXPECT(shown.find("So") != std::string::npos);
        EXPECT(shown.find("secret") == std::string::npos);
        EXPECT(shown.find("words") == std::string::npos);
        EXPECT_EQUAL(stream.usage().thinking_tokens, 2);
    }
}

// Text, thinking and arguments of a stream that has warmed up cost no allocation per token.
static void test_blocks_cost_no_allocation_per_token(StreamFormat format) {
    Vocabulary vocabulary;
    for (const char* token : {"<think>", " hm", "</think>", "Well, ", "<tool_call>",
                              "{\"name\": \"get\", \"arguments\": {\"a\": \"", " word", "\"}}"})
        EXPECT(vocabulary.add(token) == VocabularyStatus::ok);
    TextStream stream;
    TextSettings settings{format, {}, "msg_0123456789", "model", 1};
    settings.blocks = std::make_shared<BlockFormat>(hermes(true));
    int64_t allocations = 0;
    for (int round = 0; round < 3; round++) {
        EXPECT(stream.start(settings, &vocabulary) == StopStatus::ok);
        stream.admit(0);
        for (int32_t token = 0; token < vocabulary.size(); token++) {
            int64_t before = heap_allocations;
            int32_t repeated = token == 1 || token == 3 || token == 6 ? 200 : 1;
            for (int32_t i = 0; i < repeated; i++) {
                if (token + i > 0) stream.begin();
                EXPECT(stream.push(token));
                EXPECT(token != 6 || !stream.collect().empty());
            }
            // A call's beginning makes its id, the end of thinking its signature.
            if (round > 0 && repeated > 1) allocations += heap_allocations - before;
        }
        stream.begin();
        stream.finish(StopReason::end_turn);
        EXPECT(stream.reason() == StopReason::tool_use);
        EXPECT_EQUAL(stream.usage().thinking_tokens, 202);
        std::string_view end = stream.collect();
        EXPECT(end.ends_with("{\"type\":\"message_stop\"}\n\n") ||
               (format == StreamFormat::frames && end.ends_with(std::string_view("\x32\0", 2))));
    }
    EXPECT_EQUAL(allocations, 0);
}

static void test_signature_of_known_text() {
    // RFC 4231, test case 2.
    Signer signer("Jefe");
    std::string signature;
    signer.begin();
    signer.update("what do ya want ");
    signer.update("for nothing?");
    signer.finish(signature);
    EXPECT_EQUAL(signature, "W9zBRr9gdU5qBCQmCJV1x1oAPwidJzmDnexYuWTsOEM=");
}

// Of keys and texts around the borders of a block, by another implementation of HMAC.
static void test_signatures_around_block_borders() {
    struct Signed {
        size_t bytes;
        std::string_view wanted;
    };
    auto sign = [](const std::string& key, const std::string& text) {
        Signer signer(key);
        std::string signature;
        signer.begin();
        signer.update(text);
        signer.finish(signature);
        return signature;
    };
    for (Signed text : {Signed{0, "kjWYym1krypdunnc0CGooP5cX1V1Ga2q8K1TLUUG3TA="},
                        {1, "cf7GwRzo5WgzJsCz2abkW+4ROzKrwrj7HejiwS9geyw="},
                        {55, "KQ0vt+td+2CKAGutqaCQqbbQNwKzIaWTdSFLJOD44mU="},
                        {56, "zKiyN2dfJAV3pWMybNs8TcyAJYY9S94vgLeRrkhxV90="},
                        {57, "rStgqJz2i3NjilQo1MUIpFZWN+q1/cpDmzE+dlPSEV0="},
                        {63, "1aLMT1JJ1HO08JHJVFb3qJOzcp0gYxfDmNksClD03gA="},
                        {64, "IhP+RZf7Ipl9qSDonaTlRbF6ibcpJh1wjXWDOvFJ/lM="},
                        {65, "dT1kYssx0xr1eDdXwL3KWqi/HN5KQTrr9YFPgX4+1Co="},
                        {119, "ybUvOO7IwcjciHJaR/GQy0VM1VaqxhfDHadSQt/I/uQ="},
                        {120, "E+oYf4lqqNwW146ubII2nC+/TJDEnRXI7LM/VB98L5I="},
                        {128, "J/6koR/JxsybjgxYAz/FdfaIWyw9ZWn32fuePtsad2Y="},
                        {1000, "GVJPy7wgdorf8KjwzGp5w8Ns8Uvf+9ffE76SdrtKnxU="}})
        EXPECT_EQUAL(sign("Jefe", std::string(text.bytes, 'a')), text.wanted);
    for (Signed key : {Signed{63, "yQ2D54xk7hb+Lu+j6Kg0150dPQ6kg/jZkIMjtxTH8TQ="},
                       {64, "BBS7HYwMRVbNsgKHJ7FmEK43exoZS22x+FPUKX8jKbw="},
                       {65, "W2lYASPj1+eIt+g1KsN6Mke5EcXsCDcUe3QQmmOC0/U="},
                       {100, "WWSlxYtzaACReo6FzwOJLpq4qZehUXWx2HYRliSptpk="},
                       {131, "H+NGv3SFwxpkyj3rMm8qTdYk5KELfL3h5EzW3PEGWhU="},
                       {200, "AhP6VqTSb6wJrunvKm+vHzjfzg08QjjWOYG4r11iKLo="}})
        EXPECT_EQUAL(sign(std::string(key.bytes, 'k'), "text"), key.wanted);
}

} // namespace sublimate::test

int main() {
    using namespace sublimate::test;
    using sublimate::StreamFormat;
    test_scanner_equals_its_twin();
    test_scanner_on_one_object();
    test_scanner_depth_is_bounded();
    test_splitter_by_any_step();
    test_formats_that_cannot_be_read();
    test_ends_of_answers_with_calls();
    test_what_is_no_block_is_text();
    test_blocks_are_numbered();
    test_omitted_thinking_is_not_shown();
    test_signatures_around_block_borders();
    test_blocks_cost_no_allocation_per_token(StreamFormat::sse);
    test_blocks_cost_no_allocation_per_token(StreamFormat::frames);
    test_signature_of_known_text();
    return test_result();
}

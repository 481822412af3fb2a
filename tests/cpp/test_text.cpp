// The text path in C++: each part against its slow twin, the limits, and no allocation per token.
#include <cstdlib>
#include <new>
#include <string>
#include <vector>

#include "../../core/text/text.h"
#include "expect.h"
#include "frame_twin.h"
#include "text_twin.h"

static long allocations = 0;

// One of the pair inlined without the other is a false mismatched-new-delete of GCC 12.
[[gnu::noinline]] void* operator new(size_t bytes) {
    allocations++;
    void* memory = std::malloc(bytes);
    if (memory == nullptr) std::abort();
    return memory;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
    std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept {
    std::free(memory);
}

namespace sublimate::test {

using Strings = std::vector<std::string>;

// Every byte string of up to three bytes over the classes that the decoder tells apart, cut
// everywhere.
static void test_utf8_equals_its_twin() {
    const std::string classes =
        "a\x7F\x80\x8F\x90\x9F\xA0\xBF\xC0\xC1\xC2\xDF\xE0\xE1\xEC\xED\xEE\xEF"
        "\xF0\xF1\xF3\xF4\xF5\xFF";
    size_t count = classes.size();
    for (size_t n = 0; n < count * count * count * count; n++) {
        std::string bytes;
        for (size_t rest = n, i = 0; i < 4; i++, rest /= count) bytes += classes[rest % count];
        Utf8Assembler assembler;
        std::string text;
        for (size_t i = 0; i < bytes.size(); i++) {
            assembler.append(std::string_view(bytes).substr(i, 1), text);
            if (text != decode_slow(bytes.substr(0, i + 1), false)) EXPECT(false);
        }
        std::string at_once;
        Utf8Assembler other;
        other.append(bytes, at_once);
        EXPECT(at_once == text && other.carried_bytes() == assembler.carried_bytes());
        assembler.flush(text);
        EXPECT(text == decode_slow(bytes, true));
        EXPECT_EQUAL(assembler.carried_bytes(), 0);
        if (failures > 9) return;
    }
}

static std::string random_text(Random& random, int32_t length_max, int32_t letters) {
    std::string text;
    for (int32_t i = random.below(length_max); i > 0; i--)
        text += static_cast<char>('a' + random.below(letters));
    return text;
}

// Two letters and short strings: overlaps, borders and ties all the time.
static void test_stop_matcher_equals_its_twin() {
    Random random(1);
    for (int round = 0; round < 20000; round++) {
        Strings stops;
        for (int32_t i = random.below(limits::STOP_STRINGS_MAX + 1); i > 0; i--)
            stops.push_back("a" + random_text(random, 6, 2));
        StopMatcher matcher;
        EXPECT(matcher.set(stops) == StopStatus::ok);
        std::string text = random_text(random, 30, 3);
        Found wanted = find_stop_slow(text, stops);
        StopMatcher::Match match;
        size_t fed = 0;
        while (fed < text.size() && match.index < 0) {
            size_t piece = std::min(text.size() - fed, size_t(1 + random.below(5)));
            match = matcher.feed(std::string_view(text).substr(fed, piece));
            if (match.index >= 0) match.end += fed;
            fed += piece;
            if (match.index < 0)
                EXPECT_EQUAL(matcher.held_bytes(), held_slow(text.substr(0, fed), stops));
        }
        EXPECT_EQUAL(match.index, wanted.index);
        EXPECT_EQUAL(match.end, wanted.end);
    }
}

// Every string of two letters up to a length, behind beginnings of itself: whatever falls back more
// than one border.
static void test_stop_matcher_falls_back_through_every_border() {
    constexpr int32_t LENGTH_MAX = 11;
    Random random(3);
    for (int32_t length = 2; length <= LENGTH_MAX; length++) {
        for (int32_t bits = 0; bits < 1 << length; bits++) {
            std::string stop;
            for (int32_t i = 0; i < length; i++) stop += (bits >> i & 1) != 0 ? 'a' : 'b';
            std::string text;
            for (int32_t i = 0; i < 3; i++)
                text += stop.substr(0, static_cast<size_t>(random.below(length)));
            text += stop;
            StopMatcher matcher;
            EXPECT(matcher.set(Strings{stop}) == StopStatus::ok);
            size_t end = find_stop_slow(text, {stop}).end;
            for (size_t at = 0; at + 1 < end; at++) {
                EXPECT(matcher.feed(text.substr(at, 1)).index < 0);
                EXPECT_EQUAL(matcher.held_bytes(), held_slow(text.substr(0, at + 1), {stop}));
            }
            EXPECT_EQUAL(matcher.feed(text.substr(end - 1)).index, 0);
            if (failures > 9) return;
        }
    }
}

static void test_stop_matcher_limits() {
    StopMatcher matcher;
    EXPECT(matcher.set(Strings(limits::STOP_STRINGS_MAX + 1, "a")) == StopStatus::too_many);
    EXPECT(matcher.set({}, Strings(limits::TURN_ENDS_MAX + 1, "a")) == StopStatus::too_many);
    EXPECT(matcher.set(Strings{"b"}, Strings{"ab"}) == StopStatus::ok);
    EXPECT_EQUAL(matcher.feed("xab").index, 1);
    EXPECT(matcher.set(Strings{"a", ""}) == StopStatus::empty_string);
    EXPECT(matcher.set(Strings{std::string(limits::STOP_STRING_BYTES_MAX + 1, 'a')}) ==
           StopStatus::too_long);
    EXPECT_EQUAL(matcher.count(), 0);
    EXPECT(matcher.feed("aaa").index < 0);
    // The worst case for a matcher that starts over: a long run that never completes.
    std::string longest(limits::STOP_STRING_BYTES_MAX, 'a');
    longest.back() = 'b';
    EXPECT(matcher.set(Strings(limits::STOP_STRINGS_MAX, longest)) == StopStatus::ok);
    EXPECT(matcher.feed(std::string(1 << 20, 'a')).index < 0);
    EXPECT_EQUAL(matcher.held_bytes(), longest.size() - 1);
    StopMatcher::Match match = matcher.feed("b");
    EXPECT_EQUAL(match.index, 0);
    EXPECT_EQUAL(match.end, size_t{1});
}

static void test_json_escape() {
    std::string all;
    for (int byte = 0; byte < 256; byte++) all += static_cast<char>(byte);
    std::string escaped;
    json_escape(all, escaped);
    EXPECT(json_unescape_slow(escaped) == all);
    std::string quoted;
    json_string("\"\\\b\f\n\r\t\x01\x1F\x7F\xE2\x80\xA8", quoted);
    EXPECT_EQUAL(quoted, "\"\\\"\\\\\\b\\f\\n\\r\\t\\u0001\\u001f\x7F\xE2\x80\xA8\"");
    EXPECT(json_unescape_slow("\n") == MALFORMED);
}

static void test_vocabulary() {
    Vocabulary vocabulary;
    EXPECT(vocabulary.add("ab") == VocabularyStatus::ok);
    EXPECT(vocabulary.add("") == VocabularyStatus::ok);
    EXPECT(vocabulary.add(std::string(limits::TOKEN_BYTES_MAX, 'x')) == VocabularyStatus::ok);
    EXPECT(vocabulary.add(std::string(limits::TOKEN_BYTES_MAX + 1, 'x')) ==
           VocabularyStatus::entry_too_long);
    EXPECT_EQUAL(vocabulary.size(), 3);
    EXPECT(vocabulary.bytes(0) == "ab" && vocabulary.bytes(1).empty());
    EXPECT(vocabulary.bytes(-1).empty() && vocabulary.bytes(3).empty());
    while (vocabulary.size() < limits::VOCABULARY_MAX) (void)vocabulary.add("y");
    EXPECT(vocabulary.add("z") == VocabularyStatus::too_many);
}

static Vocabulary vocabulary_of(const Strings& tokens) {
    Vocabulary vocabulary;
    for (const std::string& token : tokens) (void)vocabulary.add(token);
    return vocabulary;
}

// One stream object for many requests, so that nothing of one may reach the next.
static void test_text_stream_equals_its_twin() {
    const Strings pieces = {"a",    "b",    "ab", "\xF0\x9F", "\x98\xB8", "\xC3",
                            "\xA9", "\xFF", "",   "b\xC3",    "c"};
    Vocabulary vocabulary = vocabulary_of(pieces);
    Random random(2);
    TextStream stream;
    for (int round = 0; round < 20000; round++) {
        Strings stops;
        for (int32_t i = random.below(4); i > 0; i--)
            stops.push_back("b" + random_text(random, 4, 2));
        TextSettings settings{StreamFormat::text, stops, "id", "model", 3};
        EXPECT(stream.start(settings, &vocabulary) == StopStatus::ok);
        stream.admit(1);
        Strings tokens;
        int32_t count = random.below(12);
        bool running = true;
        for (int32_t i = 0; i < count && running; i++) {
            if (random.below(3) == 0) stream.begin();
            int32_t token = random.below(vocabulary.size());
            tokens.push_back(pieces[static_cast<size_t>(token)]);
            running = stream.push(token);
        }
        if (random.below(4) == 0) stream.finish(StopReason::cancelled); // leaves what it carries
        if (stream.reason() == StopReason::cancelled) continue;
        stream.finish(StopReason::max_tokens);
        Answer wanted = answer_slow(tokens, stops, true);
        EXPECT(stream.collect() == wanted.text);
        EXPECT_EQUAL(stream.stop_index(), wanted.stop_index);
        EXPECT_EQUAL(stream.usage().output_tokens, wanted.output_tokens);
        EXPECT_EQUAL(stream.usage().input_tokens, 2);
        if (failures > 9) return;
    }
}

static void test_stream_costs_no_allocation_per_token(StreamFormat format) {
    Vocabulary vocabulary = vocabulary_of({" token", "\n\"", "\xF0\x9F", "\x98\xB8", "ST"});
    Strings stops = {"STOP", "STAY"};
    TextSettings settings{format, stops, "msg_0123456789", "model", 3};
    TextStream stream;
    long before = 0;
    for (int request = 0; request < 3; request++) {
        if (request == 1) before = allocations; // the first one makes the buffers
        EXPECT(stream.start(settings, &vocabulary) == StopStatus::ok);
        stream.admit(0);
        for (int step = 0; step < 500; step++) {
            if (step > 0) stream.begin();
            EXPECT(stream.push(step % vocabulary.size()));
            EXPECT(stream.push((step + 3) % vocabulary.size()));
            (void)stream.collect();
        }
        stream.begin();
        stream.finish(StopReason::end_turn);
        std::string_view end = stream.collect();
        EXPECT(format == StreamFormat::frames
                   ? end.ends_with(std::string_view("\0\0\0\2\x32\0", 6))
                   : end.ends_with("event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"));
    }
    EXPECT_EQUAL(allocations - before, 0);
}

// The same tokens and polls in both formats; the twin reads the frames.
static void test_frames_equal_their_twin() {
    Random random(4);
    Vocabulary vocabulary = vocabulary_of({" token", "\n\"", "\xF0\x9F", "\x98\xB8", "ST", ""});
    Strings stops = {"STOP", "STAY"};
    for (int round = 0; round < 500; round++) {
        TextStream sse, frames;
        TextSettings settings{StreamFormat::sse, stops, "msg_0123456789", "model", 300};
        EXPECT(sse.start(settings, &vocabulary) == StopStatus::ok);
        settings.format = StreamFormat::frames;
        EXPECT(frames.start(settings, &vocabulary) == StopStatus::ok);
        int32_t cached = random.below(300);
        sse.admit(cached);
        frames.admit(cached);
        for (int32_t left = random.below(20); left >= 0; left--) {
            int32_t token = random.below(vocabulary.size());
            EXPECT(sse.push(token));
            EXPECT(frames.push(token));
            bool polled = random.below(2) == 0;
            if (left == 0) sse.finish(StopReason::end_turn), frames.finish(StopReason::end_turn);
            if (!polled && left > 0) continue;
            EXPECT(sse_of_frames_slow(frames.collect()) == sse.collect());
            sse.begin();
            frames.begin();
        }
    }
    EXPECT(sse_of_frames_slow(std::string_view("\0\0\0\2\x32\1", 6)) == "malformed");
}

// Text that is shown of these tokens, one poll each.
static std::string text_of(const Strings& tokens, TextSettings settings, StopReason end) {
    Vocabulary vocabulary = vocabulary_of(tokens);
    settings.format = StreamFormat::blocks;
    TextStream stream;
    EXPECT(stream.start(settings, &vocabulary) == StopStatus::ok);
    stream.admit(0);
    std::string shown;
    auto add = [&] {
        stream.collect();
        for (const StreamPiece& piece : stream.pieces()) shown += piece.text;
        stream.begin();
    };
    for (int32_t token = 0; token < vocabulary.size() && stream.push(token); token++) add();
    stream.finish(end);
    add();
    return shown;
}

static void test_the_templates_space_is_dropped_once() {
    TextSettings settings;
    EXPECT_EQUAL(text_of({" a", " b", "c"}, settings, StopReason::end_turn), " a bc");
    settings.drops_space = true;
    EXPECT_EQUAL(text_of({" a", " b", "c"}, settings, StopReason::end_turn), "a bc");
    EXPECT_EQUAL(text_of({"x", " b", "c"}, settings, StopReason::end_turn), "x bc");
    EXPECT_EQUAL(text_of({"", "  b", "c"}, settings, StopReason::end_turn), " bc");
}

static void test_what_is_held_back_is_shown_by_a_whole_answer_alone() {
    Strings stops = {"STOP"};
    TextSettings settings;
    settings.stop_strings = stops;
    for (auto [end, wanted] : {std::pair{StopReason::end_turn, "So STO"},
                               {StopReason::max_tokens, "So STO"},
                               {StopReason::failed, "So "},
                               {StopReason::refused, "So "},
                               {StopReason::cancelled, "So "}})
        EXPECT_EQUAL(text_of({"So ", "ST", "O"}, settings, end), wanted);
}

static void test_a_cancelled_stream_says_nothing_more() {
    Vocabulary vocabulary = vocabulary_of({"text"});
    for (StreamFormat format : {StreamFormat::sse, StreamFormat::frames}) {
        TextStream stream;
        TextSettings settings{format, {}, "msg_0123456789", "model", 3};
        EXPECT(stream.start(settings, &vocabulary) == StopStatus::ok);
        stream.admit(0);
        EXPECT(stream.push(0));
        stream.finish(StopReason::cancelled);
        EXPECT_EQUAL(stream.collect(), "");
        EXPECT_EQUAL(stream.collect(), "");
    }
}

static void test_a_very_long_answer_gives_its_memory_back() {
    Vocabulary vocabulary = vocabulary_of({std::string(limits::TOKEN_BYTES_MAX, 'x')});
    TextStream stream;
    TextSettings settings{StreamFormat::text, {}, "", "", 0};
    EXPECT(stream.start(settings, &vocabulary) == StopStatus::ok);
    for (int i = 0; i < 1000; i++) EXPECT(stream.push(0));
    stream.finish(StopReason::end_turn);
    EXPECT_EQUAL(stream.collect().size(), size_t{1000} * limits::TOKEN_BYTES_MAX);
    stream.trim();
    EXPECT(stream.collect().empty());
}

} // namespace sublimate::test

int main() {
    using namespace sublimate::test;
    using sublimate::StreamFormat;
    test_utf8_equals_its_twin();
    test_stop_matcher_equals_its_twin();
    test_stop_matcher_falls_back_through_every_border();
    test_stop_matcher_limits();
    test_json_escape();
    test_vocabulary();
    test_text_stream_equals_its_twin();
    test_stream_costs_no_allocation_per_token(StreamFormat::sse);
    test_stream_costs_no_allocation_per_token(StreamFormat::frames);
    test_frames_equal_their_twin();
    test_the_templates_space_is_dropped_once();
    test_what_is_held_back_is_shown_by_a_whole_answer_alone();
    test_a_cancelled_stream_says_nothing_more();
    test_a_very_long_answer_gives_its_memory_back();
    return test_result();
}

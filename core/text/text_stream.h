// The text path of one request: tokens of a step in, bytes ready to send out.
//
// defines: StreamFormat, StopReason, stop_reason_name, TextSettings, TextStream
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "sse.h"
#include "stop_strings.h"
#include "utf8.h"
#include "vocabulary.h"

namespace sublimate {

// sse: Messages API frames. text: the whole text at the end. raw: token ids, no text (not a matter
// of TextStream).
enum class StreamFormat : int32_t { sse = 0, text = 1, raw = 2 };

enum class StopReason : int32_t {
    none = 0, // still running
    end_turn,
    max_tokens,
    stop_sequence,
    cancelled,
    refused,
    failed,
    scored,
};

// As the Messages API spells it, where it knows the reason; "" for none. Static storage.
const char* stop_reason_name(StopReason reason);

struct TextSettings {
    StreamFormat format = StreamFormat::sse;
    std::span<const std::string> stop_strings; // valid UTF-8
    std::string_view message_id;
    std::string_view model;
    int64_t input_tokens = 0; // of the prompt, cached ones included
    bool chunked = false;     // sse: what collect returns is one chunk of an HTTP/1.1 body
};

// Call order: start, then per poll: begin, [admit], push*, [finish], collect. The buffers keep
// their memory from request to request, so that a token costs no allocation; `trim` gives back what
// a very long answer took.
class TextStream {
public:
    // Forgets the previous request. The vocabulary outlives the stream.
    StopStatus start(const TextSettings& settings, const Vocabulary* vocabulary);

    // A new poll: the bytes of the previous one may be overwritten.
    void begin() { frames_.clear(); }
    // The request runs; `cached_tokens` of its prompt need no computing. For sse the stream opens.
    void admit(int64_t cached_tokens);
    // One sampled token of the answer. False: it completed a stop string, and the stream has ended:
    // neither it nor anything of the match is shown, the token is billed, later ones are not.
    bool push(int32_t token);
    // A token that is billed and shows nothing: the stop token.
    void count_token() { usage_.output_tokens++; }
    // The loop ended the request. With end_turn and max_tokens what was held back is shown, unless
    // that completes a stop string. With failed and refused an sse stream shows what is certain,
    // and its caller writes the error; with cancelled, nothing at all. No effect on a stream that
    // has ended.
    void finish(StopReason reason);
    // Closes the poll, once. sse: whole frames, with at most one text_delta. text: the whole text
    // once ended, else empty. Valid until the next begin, start or trim.
    std::string_view collect();

    void trim();

    bool ended() const { return reason_ != StopReason::none; }
    StopReason reason() const { return reason_; }
    // Of the stop string that ended the stream; -1: none.
    int32_t stop_index() const { return stop_index_; }
    std::string_view stop_string() const { return matcher_.string(stop_index_); }
    const Usage& usage() const { return usage_; }

private:
    void match_from(size_t at);
    void write_text(SseWriter& writer, size_t bytes);
    void write_end(SseWriter& writer);

    const Vocabulary* vocabulary_ = nullptr;
    StreamFormat format_ = StreamFormat::sse;
    bool chunked_ = false;
    StopReason reason_ = StopReason::none;
    int32_t stop_index_ = -1;
    bool admitted_ = false;
    bool block_open_ = false;
    bool end_written_ = false;
    int64_t input_tokens_ = 0;
    Usage usage_;
    Utf8Assembler assembler_;
    StopMatcher matcher_;
    std::string message_id_;
    std::string model_;
    std::string text_;   // not yet shown; its end may be held back
    std::string frames_; // of this poll
};

} // namespace sublimate

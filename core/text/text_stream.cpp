// TextStream: detokenise, find stop strings, frame.
#include "text_stream.h"

#include <algorithm>
#include <charconv>

#include "../check.h"

namespace sublimate {

namespace {

// Buffers of an ordinary answer keep their memory; what is beyond goes back after the request.
constexpr size_t KEPT_BUFFER_BYTES = 64 * 1024;

void empty_and_trim(std::string& buffer) {
    buffer.clear();
    if (buffer.capacity() > KEPT_BUFFER_BYTES) std::string().swap(buffer);
}

// RFC 9112 section 7.1: size in hex, CRLF, data, CRLF.
void make_chunk(std::string& data) {
    CHECK_BECAUSE(!data.empty(), "an empty chunk ends the body");
    constexpr int HEX_BASE = 16;
    char head[2 * sizeof(size_t) + 2];
    char* end = std::to_chars(head, head + sizeof head - 2, data.size(), HEX_BASE).ptr;
    *end++ = '\r';
    *end++ = '\n';
    data.insert(0, head, static_cast<size_t>(end - head));
    data.append("\r\n");
}

bool complete(StopReason reason) {
    return reason == StopReason::end_turn || reason == StopReason::max_tokens ||
           reason == StopReason::stop_sequence;
}

} // namespace

const char* stop_reason_name(StopReason reason) {
    switch (reason) {
    case StopReason::none:
        return "";
    case StopReason::end_turn:
        return "end_turn";
    case StopReason::max_tokens:
        return "max_tokens";
    case StopReason::stop_sequence:
        return "stop_sequence";
    case StopReason::cancelled:
        return "cancelled";
    case StopReason::refused:
        return "refused";
    case StopReason::failed:
        return "failed";
    case StopReason::scored:
        return "scored";
    }
    return "";
}

StopStatus TextStream::start(const TextSettings& settings, const Vocabulary* vocabulary) {
    CHECK(vocabulary != nullptr && settings.format != StreamFormat::raw);
    vocabulary_ = vocabulary;
    format_ = settings.format;
    chunked_ = settings.chunked;
    reason_ = StopReason::none;
    stop_index_ = -1;
    admitted_ = block_open_ = end_written_ = false;
    input_tokens_ = settings.input_tokens;
    usage_ = {};
    assembler_.reset();
    message_id_ = settings.message_id;
    model_ = settings.model;
    trim();
    return matcher_.set(settings.stop_strings);
}

void TextStream::admit(int64_t cached_tokens) {
    CHECK_BECAUSE(!admitted_ && !ended(), "admission opens the stream, once");
    admitted_ = true;
    usage_.cache_read_input_tokens = cached_tokens;
    usage_.input_tokens = std::max<int64_t>(input_tokens_ - cached_tokens, 0);
    if (format_ == StreamFormat::sse) SseWriter(frames_).message_start(message_id_, model_, usage_);
}

// Looks for stop strings in what was appended to text_ from `at` on.
void TextStream::match_from(size_t at) {
    StopMatcher::Match match = matcher_.feed(std::string_view(text_).substr(at));
    if (match.index < 0) return;
    size_t end = at + match.end;
    size_t length = matcher_.string(match.index).size();
    CHECK_BECAUSE(length <= end, "the beginning of a match was shown");
    text_.resize(end - length);
    stop_index_ = match.index;
    reason_ = StopReason::stop_sequence;
}

bool TextStream::push(int32_t token) {
    CHECK_BECAUSE(!ended(), "no token after the end");
    count_token();
    size_t at = text_.size();
    assembler_.append(vocabulary_->bytes(token), text_);
    match_from(at);
    return !ended();
}

void TextStream::finish(StopReason reason) {
    CHECK(reason != StopReason::none && reason != StopReason::stop_sequence);
    if (ended()) return;
    if (complete(reason)) {
        size_t at = text_.size();
        assembler_.flush(text_);
        match_from(at);
        if (ended()) return;
    }
    reason_ = reason;
}

// Shows the first `bytes` of text_; opens the block with its first content.
void TextStream::write_text(SseWriter& writer, size_t bytes) {
    if (bytes == 0) return;
    if (!block_open_) writer.block_start();
    block_open_ = true;
    writer.text_delta(std::string_view(text_).substr(0, bytes));
    text_.erase(0, bytes);
}

void TextStream::write_end(SseWriter& writer) {
    end_written_ = true;
    // The end of an answer that did not complete is an error, which the caller writes.
    if (!complete(reason_)) return;
    if (block_open_) writer.block_stop();
    std::string_view stop;
    if (stop_index_ >= 0) stop = stop_string();
    writer.message_delta(stop_reason_name(reason_), stop_index_ >= 0 ? &stop : nullptr, usage_);
    writer.message_stop();
}

std::string_view TextStream::collect() {
    if (format_ == StreamFormat::text)
        return ended() ? std::string_view(text_) : std::string_view();
    if (!admitted_ || end_written_) return {};
    // A cancelled client has gone: whatever this poll gathered for it is dropped.
    if (reason_ == StopReason::cancelled) {
        end_written_ = true;
        frames_.clear();
        return {};
    }
    SseWriter writer(frames_);
    // The held end is shown only by an answer that ran to its end; a match has been cut off
    // already.
    write_text(writer, complete(reason_) ? text_.size() : text_.size() - matcher_.held_bytes());
    if (ended()) write_end(writer);
    if (chunked_ && !frames_.empty()) make_chunk(frames_);
    return frames_;
}

void TextStream::trim() {
    empty_and_trim(text_);
    empty_and_trim(frames_);
}

} // namespace sublimate

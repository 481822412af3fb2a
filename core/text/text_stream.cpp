// TextStream: detokenise, find stop strings, frame.
#include "text_stream.h"

#include <algorithm>
#include <charconv>
#include <iterator>

#include "../check.h"
#include "frames.h"
#include "sse.h"

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
           reason == StopReason::stop_sequence || reason == StopReason::tool_use;
}

// What a token says. A control token that is a marker yields no text, but says its marker.
std::string_view token_text(const Vocabulary& vocabulary, const BlockFormat* blocks,
                            int32_t token) {
    std::string_view bytes = vocabulary.bytes(token);
    if (blocks == nullptr || !bytes.empty()) return bytes;
    for (const auto& [marker, text] : blocks->marker_tokens)
        if (marker == token) return text;
    return bytes;
}

StreamPiece::Kind piece_kind(BlockKind block) {
    if (block == BlockKind::text) return StreamPiece::Kind::text;
    return block == BlockKind::thinking ? StreamPiece::Kind::thinking
                                        : StreamPiece::Kind::arguments;
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
    case StopReason::tool_use:
        return "tool_use";
    }
    return "";
}

std::string tool_id(std::string_view message_id, int64_t call) {
    constexpr std::string_view PREFIX = "msg_";
    constexpr size_t DIGITS_MIN = 2;
    if (message_id.starts_with(PREFIX)) message_id.remove_prefix(PREFIX.size());
    std::string id = "toolu_";
    std::copy_if(message_id.begin(), message_id.end(), std::back_inserter(id), [](char byte) {
        auto lower = static_cast<char>(byte | 0x20);
        return (byte >= '0' && byte <= '9') || (lower >= 'a' && lower <= 'z');
    });
    std::string digits = std::to_string(call);
    if (digits.size() < DIGITS_MIN) id.append(DIGITS_MIN - digits.size(), '0');
    return id + digits;
}

StopStatus TextStream::start(const TextSettings& settings, const Vocabulary* vocabulary) {
    CHECK(vocabulary != nullptr && settings.format != StreamFormat::raw);
    vocabulary_ = vocabulary;
    format_ = settings.format;
    chunked_ = settings.chunked;
    reason_ = StopReason::none;
    stop_index_ = -1;
    admitted_ = block_open_ = end_written_ = cut_ = false;
    block_ = BlockKind::none;
    index_ = calls_ = 0;
    written_.clear();
    input_tokens_ = settings.input_tokens;
    usage_ = {};
    assembler_.reset();
    message_id_ = settings.message_id;
    model_ = settings.model;
    trim();
    blocks_ = settings.blocks;
    if (blocks_ != nullptr) {
        splitter_.start(blocks_.get());
        signer_ = settings.signer != nullptr ? *settings.signer : Signer("");
    }
    client_stops_ = static_cast<int32_t>(settings.stop_strings.size());
    drops_space_ = settings.drops_space;
    return matcher_.set(settings.stop_strings, settings.turn_ends);
}

const EventWriter& TextStream::writer() const {
    static constexpr SseWriter SSE;
    static constexpr FrameWriter FRAMES;
    CHECK_BECAUSE(frames(), "other formats have no events");
    if (format_ == StreamFormat::sse) return SSE;
    return FRAMES;
}

void TextStream::forget_pieces() {
    written_.clear();
    piece_bytes_.clear();
}

void TextStream::admit(int64_t cached_tokens) {
    CHECK_BECAUSE(!admitted_ && !ended(), "admission opens the stream, once");
    admitted_ = true;
    usage_.cache_read_input_tokens = cached_tokens;
    usage_.input_tokens = std::max<int64_t>(input_tokens_ - cached_tokens, 0);
    if (frames()) writer().message_start(message_id_, model_, usage_, frames_);
}

// Looks for stop strings in what was appended to text_ from `at` on.
void TextStream::match_from(size_t at) {
    if (drops_space_ && text_.size() > at) {
        drops_space_ = false;
        if (text_[at] == ' ') text_.erase(at, 1);
    }
    if (matcher_.count() == 0) return;
    StopMatcher::Match match = matcher_.feed(std::string_view(text_).substr(at));
    if (match.index < 0) return;
    size_t end = at + match.end;
    size_t length = matcher_.string(match.index).size();
    CHECK_BECAUSE(length <= end, "the beginning of a match was shown");
    text_.resize(end - length);
    if (match.index >= client_stops_) {
        reason_ = calls_ > 0 ? StopReason::tool_use : StopReason::end_turn;
        return;
    }
    stop_index_ = match.index;
    reason_ = StopReason::stop_sequence;
}

bool TextStream::push(int32_t token) {
    CHECK_BECAUSE(!ended(), "no token after the end");
    count_token();
    std::string_view bytes = token_text(*vocabulary_, blocks_.get(), token);
    if (blocks_ == nullptr) {
        block_ = BlockKind::text;
        size_t at = text_.size();
        assembler_.append(bytes, text_);
        match_from(at);
        return !ended();
    }
    fresh_.clear();
    assembler_.append(bytes, fresh_);
    bool thought = splitter_.thinks();
    take_parts(splitter_.feed(fresh_));
    usage_.thinking_tokens += thought || splitter_.thinks() ? 1 : 0;
    return !ended();
}

void TextStream::finish(StopReason reason) {
    CHECK(reason != StopReason::none && reason != StopReason::stop_sequence &&
          reason != StopReason::tool_use);
    if (ended()) return;
    cut_ = reason == StopReason::max_tokens;
    if (complete(reason) && blocks_ == nullptr) {
        size_t at = text_.size();
        assembler_.flush(text_);
        if (text_.size() > at) block_ = BlockKind::text;
        match_from(at);
        if (!ended()) drop_turn_end();
    } else if (complete(reason)) {
        fresh_.clear();
        assembler_.flush(fresh_);
        take_parts(splitter_.feed(fresh_));
        if (!ended()) take_parts(splitter_.finish(cut_));
    }
    if (ended()) return;
    reason_ = reason == StopReason::end_turn && calls_ > 0 ? StopReason::tool_use : reason;
}

// The beginning of a turn end at which an answer was cut is not text.
void TextStream::drop_turn_end() {
    if (!cut_) return;
    size_t held = std::min(matcher_.held_bytes(client_stops_), text_.size());
    text_.resize(text_.size() - held);
    if (text_.empty() && !block_open_) block_ = BlockKind::none;
}

// ---- blocks
// --------------------------------------------------------------------------------------
void TextStream::take_parts(std::span<const BlockPart> parts) {
    for (const BlockPart& part : parts) {
        if (ended()) return;
        take_part(part);
    }
}

void TextStream::take_part(const BlockPart& part) {
    size_t at = text_.size();
    switch (part.kind) {
    case BlockPart::Kind::text:
        block_ = BlockKind::text;
        text_.append(part.text);
        match_from(at);
        break;
    case BlockPart::Kind::thinking:
        if (block_ == BlockKind::none) signer_.begin();
        block_ = BlockKind::thinking;
        if (blocks_->omit_thinking) {
            if (!block_open_) open_block(block_);
            break;
        }
        text_.append(part.text);
        signer_.update(part.text);
        break;
    case BlockPart::Kind::call:
        CHECK_BECAUSE(block_ == BlockKind::none && text_.empty(), "blocks do not overlap");
        open_block(block_ = BlockKind::tool_use, part.text);
        calls_++;
        break;
    case BlockPart::Kind::arguments:
        CHECK_BECAUSE(block_ == BlockKind::tool_use && block_open_, "arguments are of a call");
        text_.append(part.text);
        break;
    case BlockPart::Kind::end:
    case BlockPart::Kind::cut:
        close_block(part.kind == BlockPart::Kind::cut);
        break;
    }
}

void TextStream::open_block(BlockKind kind, std::string_view name) {
    CHECK_BECAUSE(!block_open_, "blocks do not overlap");
    block_open_ = true;
    std::string id;
    if (kind == BlockKind::tool_use) id = tool_id(message_id_, calls_);
    if (!frames()) {
        if (kind == BlockKind::tool_use) add_piece(StreamPiece::Kind::tool_start, name, id);
        return;
    }
    head_.clear();
    const EventWriter& to = writer();
    if (kind == BlockKind::text) to.text_start(index_, frames_), to.text_head(index_, head_);
    if (kind == BlockKind::thinking)
        to.thinking_start(index_, frames_), to.thinking_head(index_, head_);
    if (kind == BlockKind::tool_use)
        to.tool_start(index_, id, name, frames_), to.arguments_head(index_, head_);
}

// Shows the first `bytes` of text_; opens the block with its first content.
void TextStream::write_content(size_t bytes) {
    CHECK(bytes <= text_.size());
    if (bytes == 0) return;
    if (!block_open_) open_block(block_);
    std::string_view text = std::string_view(text_).substr(0, bytes);
    CHECK_BECAUSE(block_ != BlockKind::none, "content belongs to a block");
    if (frames())
        writer().delta(head_, text, frames_);
    else
        add_piece(piece_kind(block_), text);
    text_.erase(0, bytes);
}

// The block has all its content; a beginning of a stop string at its end is none.
void TextStream::close_block(bool is_cut) {
    if (block_ == BlockKind::text) drop_turn_end();
    write_content(text_.size());
    if (block_open_) {
        std::string signature;
        if (block_ == BlockKind::thinking) signer_.finish(signature);
        if (frames())
            write_stop(signature);
        else
            add_piece(StreamPiece::Kind::stop, signature, is_cut ? "cut" : "");
        index_++;
    }
    block_ = BlockKind::none;
    block_open_ = false;
    matcher_.reset();
}

void TextStream::write_stop(std::string_view signature) {
    if (!signature.empty()) {
        head_.clear();
        writer().signature_head(index_, head_);
        writer().delta(head_, signature, frames_);
    }
    writer().block_stop(index_, frames_);
}

void TextStream::add_piece(StreamPiece::Kind kind, std::string_view text, std::string_view id) {
    CHECK_BECAUSE(kind == StreamPiece::Kind::stop || !text.empty(), "no empty content");
    piece_bytes_.append(text).append(id);
    written_.push_back({kind, text.size(), id.size()});
}

std::span<const StreamPiece> TextStream::pieces() {
    pieces_.clear();
    if (format_ == StreamFormat::text && !ended()) return pieces_;
    std::string_view bytes = piece_bytes_;
    for (const Piece& piece : written_) {
        std::string_view text = bytes.substr(0, piece.text_bytes);
        std::string_view id = bytes.substr(piece.text_bytes, piece.id_bytes);
        pieces_.push_back({piece.kind, text, id});
        bytes.remove_prefix(piece.text_bytes + piece.id_bytes);
    }
    CHECK_BECAUSE(bytes.empty(), "every byte belongs to a piece");
    return pieces_;
}

// ---- the end of a poll
// ---------------------------------------------------------------------------
void TextStream::write_end() {
    end_written_ = true;
    // The end of an answer that did not complete is an error, which the caller writes.
    if (!complete(reason_)) return;
    if (block_open_) close_block();
    if (!frames()) return;
    std::string_view stop;
    if (stop_index_ >= 0) stop = stop_string();
    writer().message_delta(stop_reason_name(reason_), stop_index_ >= 0 ? &stop : nullptr, usage_,
                           blocks_ != nullptr, frames_);
    writer().message_stop(frames_);
}

std::string_view TextStream::collect() {
    if (format_ == StreamFormat::text && blocks_ == nullptr)
        return ended() ? std::string_view(text_) : std::string_view();
    if (!admitted_ || end_written_ || (format_ == StreamFormat::text && !ended())) return {};
    // A cancelled client has gone: whatever this poll gathered for it is dropped.
    if (reason_ == StopReason::cancelled) {
        end_written_ = true;
        begin();
        return {};
    }
    // The held end is shown only by an answer that ran to its end; a match has been cut off
    // already.
    bool held = matcher_.count() > 0 && block_ == BlockKind::text && !complete(reason_);
    write_content(text_.size() - (held ? matcher_.held_bytes() : 0));
    if (ended()) write_end();
    if (chunked_ && !frames_.empty()) make_chunk(frames_);
    return frames_;
}

void TextStream::trim() {
    empty_and_trim(text_);
    empty_and_trim(frames_);
    empty_and_trim(fresh_);
    empty_and_trim(piece_bytes_);
    blocks_.reset();
}

} // namespace sublimate

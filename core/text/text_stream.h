// The text path of one request: tokens of a step in, bytes ready to send out.
//
// defines: StreamFormat, is_framed, StopReason, stop_reason_name, StreamPiece, tool_id,
// TextSettings, TextStream
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "blocks.h"
#include "events.h"
#include "signature.h"
#include "stop_strings.h"
#include "utf8.h"
#include "vocabulary.h"

namespace sublimate {

// sse, frames: the Messages API's stream, as server-sent events or as binary frames. text: all at
// the end, as one text, or as whole blocks if there is a block format. raw: token ids, no text (not
// a matter of TextStream). blocks: pieces of blocks, for who frames them himself.
enum class StreamFormat : int32_t { sse = 0, text = 1, raw = 2, blocks = 3, frames = 4 };

// Whether an answer in this format is bytes ready to send.
constexpr bool is_framed(StreamFormat format) {
    return format == StreamFormat::sse || format == StreamFormat::frames;
}

enum class StopReason : int32_t {
    none = 0, // still running
    end_turn,
    max_tokens,
    stop_sequence,
    cancelled,
    refused,
    failed,
    scored,
    tool_use, // the turn ended, and calls are among its blocks
};

// As the Messages API spells it, where it knows the reason; "" for none. Static storage.
const char* stop_reason_name(StopReason reason);

// What a surface frames. In order: a block is its content (text, thinking, or tool_start and then
// arguments) up to a stop; no content is empty.
struct StreamPiece {
    // stop: the block ends; of thinking, `text` is its signature.
    enum class Kind : uint8_t { text, thinking, tool_start, arguments, stop };
    Kind kind;
    std::string_view text; // of a tool_start, the tool's name
    std::string_view id;   // of a tool_start; of a stop, "cut" after arguments that were not whole
};

// Of the call with this number in a message: the same in every mode. Letters and digits only.
std::string tool_id(std::string_view message_id, int64_t call);

struct TextSettings {
    StreamFormat format = StreamFormat::sse;
    std::span<const std::string> stop_strings; // valid UTF-8
    std::string_view message_id;
    std::string_view model;
    int64_t input_tokens = 0; // of the prompt, cached ones included
    bool chunked = false;     // framed: what collect returns is one chunk of an HTTP/1.1 body
    std::shared_ptr<const BlockFormat> blocks = nullptr; // null: the answer is text
    const Signer* signer = nullptr;                      // of thinking; null: one without a key
    // Of a template that marks turns by plain words: strings with which the next turn begins, so
    // that they end this one as its stop token would. `drops_space`: the answer's first character
    // is the template's, if it is a space.
    std::span<const std::string> turn_ends = {};
    bool drops_space = false;
};

// Call order: start, then per poll: begin, [admit], push*, [finish], collect. The buffers keep
// their memory from request to request, so that a token costs no allocation; `trim` gives back what
// a very long answer took.
class TextStream {
public:
    // Forgets the previous request. The vocabulary outlives the stream.
    StopStatus start(const TextSettings& settings, const Vocabulary* vocabulary);

    // A new poll: the bytes of the previous one may be overwritten.
    void begin() {
        frames_.clear();
        if (format_ == StreamFormat::blocks) forget_pieces();
    }
    // The request runs; `cached_tokens` of its prompt need no computing. If it is framed the
    // stream opens.
    void admit(int64_t cached_tokens);
    // One sampled token of the answer. False: it completed a stop string, and the stream has ended:
    // neither it nor anything of the match is shown, the token is billed, later ones are not.
    bool push(int32_t token);
    // A token that is billed and shows nothing: the stop token.
    void count_token() { usage_.output_tokens++; }
    // The loop ended the request. With end_turn and max_tokens what was held back is shown, unless
    // that completes a stop string. With failed and refused a framed stream shows what is certain,
    // and its caller writes the error; with cancelled, nothing at all. No effect on a stream that
    // has ended.
    void finish(StopReason reason);
    // Closes the poll, once. Framed: whole frames, with at most one delta per block. text: the
    // whole text once ended, else empty. Valid until the next begin, start or trim.
    std::string_view collect();
    // blocks: of this poll. text, with a block format: of the whole answer, once ended. Valid as
    // what collect returned.
    std::span<const StreamPiece> pieces();

    void trim();

    bool ended() const { return reason_ != StopReason::none; }
    StopReason reason() const { return reason_; }
    // Of the stop string that ended the stream; -1: none.
    int32_t stop_index() const { return stop_index_; }
    std::string_view stop_string() const { return matcher_.string(stop_index_); }
    const Usage& usage() const { return usage_; }

private:
    void take_parts(std::span<const BlockPart> parts);
    void take_part(const BlockPart& part);
    void match_from(size_t at);
    void drop_turn_end();
    void open_block(BlockKind kind, std::string_view name = {});
    void write_content(size_t bytes);
    void close_block(bool is_cut = false);
    void write_stop(std::string_view signature);
    void write_end();
    void forget_pieces();
    bool frames() const { return is_framed(format_); }
    const EventWriter& writer() const;
    void add_piece(StreamPiece::Kind kind, std::string_view text, std::string_view id = {});

    struct Piece {
        StreamPiece::Kind kind;
        size_t text_bytes;
        size_t id_bytes;
    };

    // What every token touches.
    const Vocabulary* vocabulary_ = nullptr;
    std::shared_ptr<const BlockFormat> blocks_;
    StreamFormat format_ = StreamFormat::sse;
    StopReason reason_ = StopReason::none;
    int32_t stop_index_ = -1;
    int32_t client_stops_ = 0; // stop strings from here on are the template's
    bool drops_space_ = false; // of an answer that has not begun
    bool chunked_ = false;
    bool admitted_ = false;
    bool end_written_ = false;
    bool cut_ = false;                  // by the limit of tokens
    bool block_open_ = false;           // the start of block_ was written
    BlockKind block_ = BlockKind::none; // what text_ belongs to
    Utf8Assembler assembler_;
    Usage usage_;
    std::string text_;   // not yet shown; its end may be held back
    std::string frames_; // of this poll
    std::string head_;   // of the open block's deltas
    StopMatcher matcher_;
    // What only blocks, their borders and the ends of the answer do.
    int64_t index_ = 0; // of the next block to be opened, or of the open one
    int64_t calls_ = 0;
    int64_t input_tokens_ = 0;
    std::string message_id_;
    std::string model_;
    BlockSplitter splitter_;
    Signer signer_{""};
    std::string fresh_; // of one token, before it is taken apart
    std::vector<Piece> written_;
    std::string piece_bytes_; // text and id of each
    std::vector<StreamPiece> pieces_;
};

} // namespace sublimate

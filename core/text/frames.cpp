// FrameWriter: events in the wire format of protobuf.
#include "frames.h"

#include <algorithm>
#include <array>

#include "../check.h"
#include "../limits.h"

namespace sublimate {

namespace {

// ---- the wire format ---------------------------------------------------------------------------
constexpr uint32_t VARINT = 0, LENGTH_DELIMITED = 2, TYPE_BITS = 3;
constexpr uint32_t BYTE_BITS = 8, VARINT_BITS = 7, VARINT_MORE = 0x80;
constexpr size_t LENGTH_BYTES = 4; // of a frame, before its event

// Field numbers of frames.proto.
namespace event {
constexpr uint32_t MESSAGE_START = 1, BLOCK_START = 2, BLOCK_DELTA = 3, BLOCK_STOP = 4,
                   MESSAGE_DELTA = 5, MESSAGE_STOP = 6, PING = 7, ERROR = 8;
}
namespace message_field {
constexpr uint32_t OF_START = 1, ID = 1, MODEL = 2, USAGE = 6;
}
namespace block {
constexpr uint32_t INDEX = 1, CONTENT = 2, TEXT = 1, THINKING = 2, TOOL_USE = 3;
constexpr uint32_t TOOL_ID = 1, TOOL_NAME = 2;
} // namespace block
namespace delta_field {
constexpr uint32_t TEXT = 2, THINKING = 3, SIGNATURE = 4, PARTIAL_JSON = 5;
}
namespace end_field {
constexpr uint32_t STOP_REASON = 1, STOP_SEQUENCE = 2, USAGE = 3;
}
namespace usage_field {
constexpr uint32_t INPUT = 1, CACHE_READ = 3, OUTPUT = 4, CACHE_CREATION = 5, DETAILS = 6,
                   SERVICE_TIER = 7, THINKING = 1;
}
namespace error_field {
constexpr uint32_t TYPE = 1, MESSAGE = 2, REQUEST_ID = 3, CODE = 4;
}
// By the number in the enum StopReason.
constexpr std::array<std::string_view, 5> STOP_REASONS = {"", "end_turn", "max_tokens",
                                                          "stop_sequence", "tool_use"};

void put_varint(uint64_t value, std::string& out) {
    for (; value >= VARINT_MORE; value >>= VARINT_BITS)
        out.push_back(static_cast<char>(value | VARINT_MORE));
    out.push_back(static_cast<char>(value));
}

size_t varint_bytes(uint64_t value) {
    size_t bytes = 1;
    for (; value >= VARINT_MORE; value >>= VARINT_BITS) bytes++;
    return bytes;
}

void put_tag(uint32_t field, uint32_t type, std::string& out) {
    CHECK(field >= 1 && field < 1U << (VARINT_BITS - TYPE_BITS));
    out.push_back(static_cast<char>(field << TYPE_BITS | type));
}

// A field without presence: zero is not on the wire, as is the empty text below.
void put_count(uint32_t field, int64_t value, std::string& out) {
    CHECK_BECAUSE(value >= 0 && value <= INT32_MAX,
                  "counts fit uint32, and every client's numbers");
    if (value == 0) return;
    put_tag(field, VARINT, out);
    put_varint(static_cast<uint64_t>(value), out);
}

void put_present(uint32_t field, std::string_view text, std::string& out) {
    put_tag(field, LENGTH_DELIMITED, out);
    put_varint(text.size(), out);
    out.append(text);
}

void put_text(uint32_t field, std::string_view text, std::string& out) {
    if (!text.empty()) put_present(field, text, out);
}

// What was appended from `end` on goes before what begins at `begin`: a length is known last.
void move_before(size_t begin, size_t end, std::string& out) {
    CHECK(begin <= end && end < out.size());
    std::rotate(out.data() + begin, out.data() + end, out.data() + out.size());
}

// A message whose fields `body` appends.
template <typename Body>
void put_message(uint32_t field, std::string& out, Body body) {
    put_tag(field, LENGTH_DELIMITED, out);
    size_t begin = out.size();
    body();
    size_t end = out.size();
    put_varint(end - begin, out);
    move_before(begin, end, out);
}

void put_length(size_t bytes, std::string& out) {
    CHECK_BECAUSE(bytes > 0 && bytes <= size_t{limits::FRAME_BYTES_MAX}, "a frame has a limit");
    for (size_t shift = LENGTH_BYTES * BYTE_BITS; shift > 0; shift -= BYTE_BITS)
        out.push_back(static_cast<char>(bytes >> (shift - BYTE_BITS)));
}

// A frame with one event.
template <typename Body>
void put_frame(uint32_t field, std::string& out, Body body) {
    size_t begin = out.size();
    put_message(field, out, body);
    size_t end = out.size();
    put_length(end - begin, out);
    move_before(begin, end, out);
}

// ---- what events share -------------------------------------------------------------------------
void put_usage(const Usage& usage, std::string& out) {
    put_count(usage_field::INPUT, usage.input_tokens, out);
    put_count(usage_field::CACHE_READ, usage.cache_read_input_tokens, out);
    put_count(usage_field::OUTPUT, usage.output_tokens, out);
}

template <typename Body>
void put_block_start(int64_t index, uint32_t kind, std::string& out, Body body) {
    put_frame(event::BLOCK_START, out, [&] {
        put_count(block::INDEX, index, out);
        put_message(block::CONTENT, out, [&] { put_message(kind, out, body); });
    });
}

// All of a delta but the length and the bytes of its text.
void put_head(int64_t index, uint32_t field, std::string& head) {
    put_count(block::INDEX, index, head);
    put_tag(field, LENGTH_DELIMITED, head);
}

constexpr size_t HEAD_BYTES_MAX = 7; // the index has five bytes at most
constexpr size_t DELTA_TEXT_BYTES_MAX =
    size_t{limits::FRAME_BYTES_MAX} - HEAD_BYTES_MAX - 2 * sizeof(uint64_t);

// The longest beginning of the text that one frame takes and that ends with a code point.
std::string_view first_piece(std::string_view text) {
    constexpr uint8_t CONTINUES = 0x80, CONTINUES_MASK = 0xC0;
    if (text.size() <= DELTA_TEXT_BYTES_MAX) return text;
    size_t bytes = DELTA_TEXT_BYTES_MAX;
    while (bytes > 0 && (static_cast<uint8_t>(text[bytes]) & CONTINUES_MASK) == CONTINUES) bytes--;
    CHECK_BECAUSE(bytes > 0, "the text is UTF-8");
    return text.substr(0, bytes);
}

} // namespace

void FrameWriter::message_start(std::string_view message_id, std::string_view model,
                                const Usage& usage, std::string& out) const {
    put_frame(event::MESSAGE_START, out, [&] {
        put_message(message_field::OF_START, out, [&] {
            put_text(message_field::ID, message_id, out);
            put_text(message_field::MODEL, model, out);
            put_message(message_field::USAGE, out, [&] {
                put_usage(usage, out);
                put_message(usage_field::CACHE_CREATION, out, [] {});
                put_present(usage_field::SERVICE_TIER, "standard", out);
            });
        });
    });
}

void FrameWriter::text_start(int64_t index, std::string& out) const {
    put_block_start(index, block::TEXT, out, [] {});
}

void FrameWriter::thinking_start(int64_t index, std::string& out) const {
    put_block_start(index, block::THINKING, out, [] {});
}

void FrameWriter::tool_start(int64_t index, std::string_view id, std::string_view name,
                             std::string& out) const {
    put_block_start(index, block::TOOL_USE, out, [&] {
        put_text(block::TOOL_ID, id, out);
        put_text(block::TOOL_NAME, name, out);
    });
}

void FrameWriter::text_head(int64_t index, std::string& head) const {
    put_head(index, delta_field::TEXT, head);
}

void FrameWriter::thinking_head(int64_t index, std::string& head) const {
    put_head(index, delta_field::THINKING, head);
}

void FrameWriter::signature_head(int64_t index, std::string& head) const {
    put_head(index, delta_field::SIGNATURE, head);
}

void FrameWriter::arguments_head(int64_t index, std::string& head) const {
    put_head(index, delta_field::PARTIAL_JSON, head);
}

// The one event that every token pays for, so its lengths are computed, and nothing moves.
void FrameWriter::delta(std::string_view head, std::string_view text, std::string& out) const {
    CHECK_BECAUSE(!text.empty() && head.size() <= HEAD_BYTES_MAX, "no delta is empty");
    while (!text.empty()) {
        std::string_view piece = first_piece(text);
        size_t inner_bytes = head.size() + varint_bytes(piece.size()) + piece.size();
        put_length(1 + varint_bytes(inner_bytes) + inner_bytes, out);
        put_tag(event::BLOCK_DELTA, LENGTH_DELIMITED, out);
        put_varint(inner_bytes, out);
        out.append(head);
        put_varint(piece.size(), out);
        out.append(piece);
        text.remove_prefix(piece.size());
    }
}

void FrameWriter::block_stop(int64_t index, std::string& out) const {
    put_frame(event::BLOCK_STOP, out, [&] { put_count(block::INDEX, index, out); });
}

void FrameWriter::message_delta(std::string_view stop_reason, const std::string_view* stop_sequence,
                                const Usage& usage, bool details, std::string& out) const {
    auto reason = std::find(STOP_REASONS.begin(), STOP_REASONS.end(), stop_reason);
    CHECK_BECAUSE(reason > STOP_REASONS.begin() && reason < STOP_REASONS.end(),
                  "other ends are errors");
    put_frame(event::MESSAGE_DELTA, out, [&] {
        put_count(end_field::STOP_REASON, reason - STOP_REASONS.begin(), out);
        if (stop_sequence != nullptr) put_present(end_field::STOP_SEQUENCE, *stop_sequence, out);
        put_message(end_field::USAGE, out, [&] {
            put_usage(usage, out);
            if (!details) return;
            put_message(usage_field::DETAILS, out,
                        [&] { put_count(usage_field::THINKING, usage.thinking_tokens, out); });
        });
    });
}

void FrameWriter::message_stop(std::string& out) const {
    put_frame(event::MESSAGE_STOP, out, [] {});
}

void FrameWriter::ping(std::string& out) const {
    put_frame(event::PING, out, [] {});
}

void FrameWriter::error(std::string_view type, std::string_view message,
                        std::string_view request_id, std::string_view error_code,
                        std::string& out) const {
    put_frame(event::ERROR, out, [&] {
        put_text(error_field::TYPE, type, out);
        put_text(error_field::MESSAGE, message, out);
        put_text(error_field::REQUEST_ID, request_id, out);
        put_text(error_field::CODE, error_code, out);
    });
}

} // namespace sublimate

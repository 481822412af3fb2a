// Slow twin of FrameWriter: reads frames field by field and has SseWriter say what they say, so
// that a stream in frames and the same stream as server-sent events are compared byte by byte.
//
// defines: FieldsSlow, sse_of_frames_slow
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "../../core/limits.h"
#include "../../core/text/sse.h"

namespace sublimate::test {

// The fields of one protobuf message: numbers by varint, and texts or messages by their bytes.
struct FieldsSlow {
    explicit FieldsSlow(std::string_view bytes) {
        uint64_t last = 0;
        while (!bytes.empty() && valid) {
            uint64_t tag = varint(bytes), field = tag >> 3;
            valid = valid && field > last; // ascending, each once: as the runtime writes them
            last = field;
            if ((tag & 7) == 0) {
                numbers[field] = varint(bytes);
                valid = valid && numbers[field] != 0;
            } else if (uint64_t size = varint(bytes); (tag & 7) == 2 && size <= bytes.size()) {
                texts[field] = bytes.substr(0, size);
                bytes.remove_prefix(size);
            } else {
                valid = false;
            }
        }
    }
    bool has(uint64_t field) const { return texts.count(field) > 0; }
    std::string_view text(uint64_t field) const { return has(field) ? texts.at(field) : ""; }
    int64_t number(uint64_t field) const {
        return numbers.count(field) > 0 ? static_cast<int64_t>(numbers.at(field)) : 0;
    }

    bool valid = true;
    std::map<uint64_t, uint64_t> numbers;
    std::map<uint64_t, std::string_view> texts;

private:
    uint64_t varint(std::string_view& bytes) {
        uint64_t value = 0;
        for (int shift = 0; shift < 63 && !bytes.empty(); shift += 7) {
            auto byte = static_cast<uint8_t>(bytes[0]);
            bytes.remove_prefix(1);
            value |= uint64_t{byte & 0x7FU} << shift;
            if (byte < 0x80) return value;
        }
        valid = false;
        return 0;
    }
};

inline Usage usage_slow(std::string_view bytes) {
    FieldsSlow fields(bytes);
    return {fields.number(1), fields.number(3), fields.number(4),
            FieldsSlow(fields.text(6)).number(1)};
}

// One StreamEvent. False: it is none that the writer makes.
inline bool say_slow(std::string_view bytes, std::string& out) {
    const SseWriter sse;
    FieldsSlow event(bytes);
    if (!event.valid || event.texts.size() != 1 || !event.numbers.empty()) return false;
    uint64_t kind = event.texts.begin()->first;
    FieldsSlow fields(event.text(kind));
    int64_t index = fields.number(1);
    std::string head;
    if (kind == 1) {
        FieldsSlow message(fields.text(1));
        FieldsSlow usage(message.text(6));
        sse.message_start(message.text(1), message.text(2), usage_slow(message.text(6)), out);
        return usage.has(5) && usage.text(5).empty() && usage.text(7) == "standard";
    }
    if (kind == 2) {
        FieldsSlow block(fields.text(2));
        if (block.has(1)) sse.text_start(index, out);
        if (block.has(2)) sse.thinking_start(index, out);
        FieldsSlow tool(block.text(3));
        if (block.has(3)) sse.tool_start(index, tool.text(1), tool.text(2), out);
        return block.valid && tool.valid && block.texts.size() == 1;
    }
    if (kind == 3) {
        if (fields.texts.size() != 1) return false;
        uint64_t delta = fields.texts.begin()->first;
        if (delta == 2) sse.text_head(index, head);
        if (delta == 3) sse.thinking_head(index, head);
        if (delta == 4) sse.signature_head(index, head);
        if (delta == 5) sse.arguments_head(index, head);
        sse.delta(head, fields.text(delta), out);
        return !head.empty();
    }
    if (kind == 4) sse.block_stop(index, out);
    if (kind == 5) {
        const char* reasons[] = {"", "end_turn", "max_tokens", "stop_sequence", "tool_use"};
        if (index < 1 || index > 4) return false;
        std::string_view stop = fields.text(2);
        bool details = FieldsSlow(fields.text(3)).has(6);
        sse.message_delta(reasons[index], fields.has(2) ? &stop : nullptr,
                          usage_slow(fields.text(3)), details, out);
    }
    if (kind == 6) sse.message_stop(out);
    return fields.valid && (kind < 6 || event.text(kind).empty()) && kind <= 6;
}

// Whole frames as server-sent events; "malformed" if they are no such frames.
inline std::string sse_of_frames_slow(std::string_view frames) {
    std::string out;
    while (!frames.empty()) {
        if (frames.size() < 4) return "malformed";
        size_t size = 0;
        for (int i = 0; i < 4; i++) size = size << 8 | static_cast<uint8_t>(frames[i]);
        frames.remove_prefix(4);
        if (size > size_t{limits::FRAME_BYTES_MAX} || size > frames.size()) return "malformed";
        if (!say_slow(frames.substr(0, size), out)) return "malformed";
        frames.remove_prefix(size);
    }
    return out;
}

} // namespace sublimate::test

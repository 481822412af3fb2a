// SseWriter: the frames of an answer.
#include "sse.h"

#include <charconv>

#include "../check.h"
#include "json.h"

namespace sublimate {

namespace {

constexpr size_t NUMBER_BYTES_MAX = 20; // of a 64-bit integer with its sign

void number(int64_t value, std::string& out) {
    char digits[NUMBER_BYTES_MAX];
    auto end = std::to_chars(digits, digits + sizeof digits, value);
    out.append(digits, static_cast<size_t>(end.ptr - digits));
}

// The content_block is what `block` begins and the caller ends with "}}\n\n".
void start(int64_t index, std::string_view block, std::string& out) {
    CHECK(index >= 0);
    out.append("event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":");
    number(index, out);
    out.append(",\"content_block\":{\"type\":");
    out.append(block);
}

// kind: type and key of the text, as JSON up to its value.
void begin_delta(int64_t index, std::string_view kind, std::string& head) {
    head.append("event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":");
    number(index, head);
    head.append(",\"delta\":{\"type\":");
    head.append(kind);
}

} // namespace

void SseWriter::message_start(std::string_view message_id, std::string_view model,
                              const Usage& usage, std::string& out) const {
    out.append("event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":");
    json_string(message_id, out);
    out.append(",\"type\":\"message\",\"role\":\"assistant\",\"model\":");
    json_string(model, out);
    out.append(",\"content\":[],\"stop_reason\":null,\"stop_sequence\":null,\"stop_details\":null,"
               "\"container\":null,\"diagnostics\":null,\"usage\":{\"input_tokens\":");
    number(usage.input_tokens, out);
    out.append(",\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":");
    number(usage.cache_read_input_tokens, out);
    out.append(",\"cache_creation\":{\"ephemeral_5m_input_tokens\":0,"
               "\"ephemeral_1h_input_tokens\":0},\"output_tokens\":");
    number(usage.output_tokens, out);
    out.append(",\"service_tier\":\"standard\"}}}\n\n");
}

void SseWriter::text_start(int64_t index, std::string& out) const {
    start(index, "\"text\",\"text\":\"\"}}\n\n", out);
}

void SseWriter::thinking_start(int64_t index, std::string& out) const {
    start(index, "\"thinking\",\"thinking\":\"\",\"signature\":\"\"}}\n\n", out);
}

void SseWriter::tool_start(int64_t index, std::string_view id, std::string_view name,
                           std::string& out) const {
    start(index, "\"tool_use\",\"id\":", out);
    json_string(id, out);
    out.append(",\"name\":");
    json_string(name, out);
    out.append(",\"input\":{}}}\n\n");
}

void SseWriter::text_head(int64_t index, std::string& head) const {
    begin_delta(index, "\"text_delta\",\"text\":", head);
}

void SseWriter::thinking_head(int64_t index, std::string& head) const {
    begin_delta(index, "\"thinking_delta\",\"thinking\":", head);
}

void SseWriter::signature_head(int64_t index, std::string& head) const {
    begin_delta(index, "\"signature_delta\",\"signature\":", head);
}

void SseWriter::arguments_head(int64_t index, std::string& head) const {
    begin_delta(index, "\"input_json_delta\",\"partial_json\":", head);
}

void SseWriter::delta(std::string_view head, std::string_view text, std::string& out) const {
    CHECK_BECAUSE(!text.empty(), "clients drop a reply with an empty delta");
    out.append(head);
    json_string(text, out);
    out.append("}}\n\n");
}

void SseWriter::block_stop(int64_t index, std::string& out) const {
    out.append("event: content_block_stop\n"
               "data: {\"type\":\"content_block_stop\",\"index\":");
    number(index, out);
    out.append("}\n\n");
}

void SseWriter::message_delta(std::string_view stop_reason, const std::string_view* stop_sequence,
                              const Usage& usage, bool details, std::string& out) const {
    out.append("event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":"
               "{\"stop_reason\":");
    json_string(stop_reason, out);
    out.append(",\"stop_sequence\":");
    if (stop_sequence == nullptr) {
        out.append("null");
    } else {
        json_string(*stop_sequence, out);
    }
    out.append(",\"stop_details\":null,\"container\":null},\"usage\":{\"input_tokens\":");
    number(usage.input_tokens, out);
    out.append(",\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":");
    number(usage.cache_read_input_tokens, out);
    out.append(",\"output_tokens\":");
    number(usage.output_tokens, out);
    if (details) {
        out.append(",\"output_tokens_details\":{\"thinking_tokens\":");
        number(usage.thinking_tokens, out);
        out.push_back('}');
    }
    out.append("}}\n\n");
}

void SseWriter::message_stop(std::string& out) const {
    out.append("event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n");
}

} // namespace sublimate

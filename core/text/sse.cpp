// SseWriter: the frames of an answer.
#include "sse.h"

#include <charconv>

#include "../check.h"
#include "json.h"

namespace sublimate {

namespace {

constexpr size_t NUMBER_BYTES_MAX = 20; // of a 64-bit integer with its sign

} // namespace

void SseWriter::number(int64_t value) {
    char digits[NUMBER_BYTES_MAX];
    auto end = std::to_chars(digits, digits + sizeof digits, value);
    out_.append(digits, static_cast<size_t>(end.ptr - digits));
}

void SseWriter::message_start(std::string_view message_id, std::string_view model,
                              const Usage& usage) {
    out_.append("event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":");
    json_string(message_id, out_);
    out_.append(",\"type\":\"message\",\"role\":\"assistant\",\"model\":");
    json_string(model, out_);
    out_.append(",\"content\":[],\"stop_reason\":null,\"stop_sequence\":null,\"stop_details\":null,"
                "\"container\":null,\"diagnostics\":null,\"usage\":{\"input_tokens\":");
    number(usage.input_tokens);
    out_.append(",\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":");
    number(usage.cache_read_input_tokens);
    out_.append(",\"cache_creation\":{\"ephemeral_5m_input_tokens\":0,"
                "\"ephemeral_1h_input_tokens\":0},\"output_tokens\":");
    number(usage.output_tokens);
    out_.append(",\"service_tier\":\"standard\"}}}\n\n");
}

// The content_block is what `block` begins and the caller ends with "}}\n\n".
void SseWriter::start(int64_t index, std::string_view block) {
    CHECK(index >= 0);
    out_.append("event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":");
    number(index);
    out_.append(",\"content_block\":{\"type\":");
    out_.append(block);
}

void SseWriter::text_start(int64_t index) {
    start(index, "\"text\",\"text\":\"\"}}\n\n");
}

void SseWriter::thinking_start(int64_t index) {
    start(index, "\"thinking\",\"thinking\":\"\",\"signature\":\"\"}}\n\n");
}

void SseWriter::tool_start(int64_t index, std::string_view id, std::string_view name) {
    start(index, "\"tool_use\",\"id\":");
    json_string(id, out_);
    out_.append(",\"name\":");
    json_string(name, out_);
    out_.append(",\"input\":{}}}\n\n");
}

// kind: type and key of the text, as JSON up to its value.
void SseWriter::head(int64_t index, std::string_view kind) {
    out_.append("event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":");
    number(index);
    out_.append(",\"delta\":{\"type\":");
    out_.append(kind);
}

void SseWriter::text_head(int64_t index) {
    head(index, "\"text_delta\",\"text\":");
}

void SseWriter::thinking_head(int64_t index) {
    head(index, "\"thinking_delta\",\"thinking\":");
}

void SseWriter::signature_head(int64_t index) {
    head(index, "\"signature_delta\",\"signature\":");
}

void SseWriter::arguments_head(int64_t index) {
    head(index, "\"input_json_delta\",\"partial_json\":");
}

void SseWriter::delta(std::string_view head, std::string_view text) {
    CHECK_BECAUSE(!text.empty(), "clients drop a reply with an empty delta");
    out_.append(head);
    json_string(text, out_);
    out_.append("}}\n\n");
}

void SseWriter::block_stop(int64_t index) {
    out_.append("event: content_block_stop\n"
                "data: {\"type\":\"content_block_stop\",\"index\":");
    number(index);
    out_.append("}\n\n");
}

void SseWriter::message_delta(std::string_view stop_reason, const std::string_view* stop_sequence,
                              const Usage& usage, bool details) {
    out_.append("event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":"
                "{\"stop_reason\":");
    json_string(stop_reason, out_);
    out_.append(",\"stop_sequence\":");
    if (stop_sequence == nullptr) {
        out_.append("null");
    } else {
        json_string(*stop_sequence, out_);
    }
    out_.append(",\"stop_details\":null,\"container\":null},\"usage\":{\"input_tokens\":");
    number(usage.input_tokens);
    out_.append(",\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":");
    number(usage.cache_read_input_tokens);
    out_.append(",\"output_tokens\":");
    number(usage.output_tokens);
    if (details) {
        out_.append(",\"output_tokens_details\":{\"thinking_tokens\":");
        number(usage.thinking_tokens);
        out_.push_back('}');
    }
    out_.append("}}\n\n");
}

void SseWriter::message_stop() {
    out_.append("event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n");
}

} // namespace sublimate

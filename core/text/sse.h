// Server-sent events of the Messages API, as bytes ready to send.
//
// defines: SseWriter
#pragma once

#include "events.h"

namespace sublimate {

// Frames of "event: T\ndata: JSON\n\n". Errors and pings are not made here: their texts are in the
// edge's one table (src/sublimate/edge/errors.py).
class SseWriter final : public EventWriter {
public:
    void message_start(std::string_view message_id, std::string_view model, const Usage& usage,
                       std::string& out) const override;
    void text_start(int64_t index, std::string& out) const override;
    void thinking_start(int64_t index, std::string& out) const override;
    void tool_start(int64_t index, std::string_view id, std::string_view name,
                    std::string& out) const override;
    void text_head(int64_t index, std::string& head) const override;
    void thinking_head(int64_t index, std::string& head) const override;
    void signature_head(int64_t index, std::string& head) const override;
    void arguments_head(int64_t index, std::string& head) const override;
    void delta(std::string_view head, std::string_view text, std::string& out) const override;
    void block_stop(int64_t index, std::string& out) const override;
    void message_delta(std::string_view stop_reason, const std::string_view* stop_sequence,
                       const Usage& usage, bool details, std::string& out) const override;
    void message_stop(std::string& out) const override;
};

} // namespace sublimate

// Binary frames of the Messages API's stream: per event the length of a protobuf StreamEvent as
// four bytes, the most significant first, and the StreamEvent (proto/sublimate/v1/frames.proto).
// Written by hand, field by field in ascending order, so the bytes are those of the protobuf
// runtime.
//
// defines: FrameWriter
#pragma once

#include "events.h"

namespace sublimate {

// No frame is longer than limits::FRAME_BYTES_MAX without its length: a longer delta becomes
// several.
class FrameWriter final : public EventWriter {
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
    // Of the edge, which knows the texts and when to say them. error_code: empty, there is none.
    void ping(std::string& out) const;
    void error(std::string_view type, std::string_view message, std::string_view request_id,
               std::string_view error_code, std::string& out) const;
};

} // namespace sublimate

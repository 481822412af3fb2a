// Server-sent events of the Messages API, as bytes ready to send. One text block with index 0 is
// all that a text answer needs.
//
// defines: Usage, SseWriter
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace sublimate {

// Prompt total = input_tokens + cache_read_input_tokens: nothing is ever billed as cache creation.
struct Usage {
    int64_t input_tokens = 0;            // prompt tokens that were computed
    int64_t cache_read_input_tokens = 0; // prompt tokens that came from the prefix cache
    int64_t output_tokens = 0;
};

// Appends whole frames ("event: T\ndata: JSON\n\n") to a string. Grammar, which the caller keeps:
//   message_start [block_start text_delta+ block_stop] message_delta message_stop
// Errors are not made here: their texts are in the edge's one table (src/sublimate/edge/errors.py).
class SseWriter {
public:
    explicit SseWriter(std::string& out) : out_(out) {}

    void message_start(std::string_view message_id, std::string_view model, const Usage& usage);
    void block_start();
    void text_delta(std::string_view text); // valid UTF-8, not empty
    void block_stop();
    // stop_sequence: nullptr is null.
    void message_delta(std::string_view stop_reason, const std::string_view* stop_sequence,
                       const Usage& usage);
    void message_stop();

private:
    void number(int64_t value);

    std::string& out_;
};

} // namespace sublimate

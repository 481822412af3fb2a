// Server-sent events of the Messages API, as bytes ready to send.
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
    int64_t thinking_tokens = 0; // of the output: those inside thinking and at its borders
};

// Appends whole frames ("event: T\ndata: JSON\n\n") to a string. Grammar, which the caller keeps:
//   message_start (start delta+ block_stop)* message_delta message_stop
// with a start and deltas of one kind per block, and indices from 0 without gaps. Errors are not
// made here: their texts are in the edge's one table (src/sublimate/edge/errors.py).
class SseWriter {
public:
    explicit SseWriter(std::string& out) : out_(out) {}

    void message_start(std::string_view message_id, std::string_view model, const Usage& usage);
    void text_start(int64_t index);
    void thinking_start(int64_t index);
    void tool_start(int64_t index, std::string_view id, std::string_view name);
    // Frame of a delta up to its text, which is the same for all of a block: written once, and
    // given to each of them.
    void text_head(int64_t index);
    void thinking_head(int64_t index);
    void signature_head(int64_t index);
    void arguments_head(int64_t index);
    void delta(std::string_view head, std::string_view text); // valid UTF-8, not empty
    void block_stop(int64_t index);
    // stop_sequence: nullptr is null. details: usage says how much of the output was thinking.
    void message_delta(std::string_view stop_reason, const std::string_view* stop_sequence,
                       const Usage& usage, bool details = false);
    void message_stop();

private:
    void number(int64_t value);
    void start(int64_t index, std::string_view block);
    void head(int64_t index, std::string_view kind);

    std::string& out_;
};

} // namespace sublimate

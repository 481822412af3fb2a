// What a stream of the Messages API says, whatever its bytes look like.
//
// defines: Usage, EventWriter
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

// Appends whole events to a string. Grammar, which the caller keeps:
//   message_start (start delta+ block_stop)* message_delta message_stop
// with a start and deltas of one kind per block, and indices from 0 without gaps.
class EventWriter {
public:
    virtual void message_start(std::string_view message_id, std::string_view model,
                               const Usage& usage, std::string& out) const = 0;
    virtual void text_start(int64_t index, std::string& out) const = 0;
    virtual void thinking_start(int64_t index, std::string& out) const = 0;
    virtual void tool_start(int64_t index, std::string_view id, std::string_view name,
                            std::string& out) const = 0;
    // What the deltas of a block begin with: the same for all of them, so it is written once, and
    // given to each.
    virtual void text_head(int64_t index, std::string& head) const = 0;
    virtual void thinking_head(int64_t index, std::string& head) const = 0;
    virtual void signature_head(int64_t index, std::string& head) const = 0;
    virtual void arguments_head(int64_t index, std::string& head) const = 0;
    // text: valid UTF-8, not empty.
    virtual void delta(std::string_view head, std::string_view text, std::string& out) const = 0;
    virtual void block_stop(int64_t index, std::string& out) const = 0;
    // stop_sequence: nullptr is null. details: usage says how much of the output was thinking.
    virtual void message_delta(std::string_view stop_reason, const std::string_view* stop_sequence,
                               const Usage& usage, bool details, std::string& out) const = 0;
    virtual void message_stop(std::string& out) const = 0;

protected:
    ~EventWriter() = default; // nobody owns one by this type
};

} // namespace sublimate

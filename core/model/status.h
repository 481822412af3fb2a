// The outcome of something that can fail through the world's fault: a bad file, too little memory,
// an unsupported model. The message is for a person; an empty one means success.
//
// defines: Status
#pragma once

#include <string>
#include <utility>

namespace sublimate {

struct [[nodiscard]] Status {
    std::string message;

    bool ok() const { return message.empty(); }
    static Status success() { return {}; }
    static Status error(std::string message) { return {std::move(message)}; }
};

} // namespace sublimate

// Returns from the enclosing function with the first failure.
#define RETURN_IF_ERROR(expression)                                                                \
    do {                                                                                           \
        ::sublimate::Status returned_status = (expression);                                        \
        if (!returned_status.ok()) return returned_status;                                         \
    } while (false)

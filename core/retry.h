// System calls that a signal may interrupt before they have done anything.
//
// defines: retried
#pragma once

#include <cerrno>

namespace sublimate {

// What the call returns when no signal has interrupted it; negative: it failed, and errno says how.
template <class Call>
auto retried(Call&& call) {
    for (;;) {
        auto result = call();
        if (result >= 0 || errno != EINTR) return result;
    }
}

} // namespace sublimate

// Finds the client's stop strings in a stream of text and says how much of its end may not be shown
// yet.
//
// defines: StopMatcher
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "../limits.h"

namespace sublimate {

enum class StopStatus : int32_t { ok = 0, too_many, empty_string, too_long };

// One Knuth-Morris-Pratt automaton per string (SIAM J. Comput. 6, 1977): amortised constant work
// per byte and string, no allocation, and the partial match of each string is known at any time.
// With so few strings this costs less than building one combined automaton for each request.
//
// Rule: the match that ends first wins. Of several that end at the same byte the longest wins,
// because whatever is shown must not contain a part of any match; of equal strings the first in the
// list.
class StopMatcher {
public:
    struct Match {
        int32_t index = -1; // of the string in the list; -1: none
        size_t end = 0;     // position in the fed bytes behind the match
    };

    // Replaces all strings and resets; those of `more` are numbered behind the others. On an error
    // no string is set.
    StopStatus set(std::span<const std::string> strings, std::span<const std::string> more = {});
    void reset();

    // Goes on with `text`, up to the end of the first match. After a match: reset before feeding
    // again.
    Match feed(std::string_view text);

    // Length of the longest end of what was fed that a stop string begins with: it may yet become a
    // match.
    size_t held_bytes() const;
    std::string_view string(int32_t index) const;
    int32_t count() const { return count_; }

private:
    struct Pattern {
        int32_t length;
        int32_t matched; // [0, length)
        uint8_t bytes[limits::STOP_STRING_BYTES_MAX];
        uint8_t borders[limits::STOP_STRING_BYTES_MAX]; // longest proper border of bytes[0..i]
    };

    void add(const std::string& string);
    static bool advance(Pattern& pattern, uint8_t byte);
    static void find_borders(Pattern& pattern);

    Pattern patterns_[limits::STOP_STRINGS_MAX + limits::TURN_ENDS_MAX] = {};
    int32_t count_ = 0;
    bool partial_ = false;            // some pattern has matched > 0
    bool begins_[UINT8_MAX + 1] = {}; // a pattern begins with this byte
};

// A border is shorter than its string, so it fits a byte.
static_assert(limits::STOP_STRING_BYTES_MAX <= UINT8_MAX + 1);

} // namespace sublimate

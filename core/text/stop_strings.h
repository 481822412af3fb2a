// Finds the client's stop strings in a stream of text and says how much of its end may not be shown
// yet.
//
// defines: StopMatcher
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "../limits.h"

namespace sublimate {

enum class StopStatus : int32_t { ok = 0, too_many, empty_string, too_long };

// One Knuth-Morris-Pratt automaton per string (SIAM J. Comput. 6, 1977): amortised constant work
// per byte and string, no allocation while text is fed, and the partial match of each string is
// known at any time. The bytes of most texts begin no string and cost one look-up; a combined
// automaton would save the rest, and costs more to build than most answers would gain.
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

    // Length of the longest end of what was fed that a stop string begins with, of those from
    // `first` on: it may yet become a match.
    size_t held_bytes(int32_t first = 0) const;
    std::string_view string(int32_t index) const;
    int32_t count() const { return count_; }

private:
    struct Pattern {
        std::string bytes;
        std::vector<uint16_t> borders; // longest proper border of bytes[0..i]
        int32_t matched = 0;           // [0, length())

        int32_t length() const { return static_cast<int32_t>(bytes.size()); }
    };

    void add(const std::string& string);
    static bool advance(Pattern& pattern, char byte);
    static void find_borders(Pattern& pattern);

    std::vector<Pattern> patterns_; // kept from request to request, with their memory
    int32_t count_ = 0;
    bool partial_ = false;            // some pattern has matched > 0
    bool begins_[UINT8_MAX + 1] = {}; // a pattern begins with this byte
};

// A border is shorter than its string.
static_assert(limits::STOP_STRING_BYTES_MAX <= UINT16_MAX + 1);

} // namespace sublimate

// StopMatcher: one automaton per stop string.
#include "stop_strings.h"

#include <algorithm>
#include <cstring>

#include "../check.h"

namespace sublimate {

void StopMatcher::find_borders(Pattern& pattern) {
    pattern.borders.assign(pattern.bytes.size(), 0);
    int32_t border = 0;
    for (int32_t i = 1; i < pattern.length(); i++) {
        while (border > 0 && pattern.bytes[i] != pattern.bytes[border])
            border = pattern.borders[border - 1];
        if (pattern.bytes[i] == pattern.bytes[border]) border++;
        pattern.borders[i] = static_cast<uint16_t>(border);
    }
}

StopStatus StopMatcher::set(std::span<const std::string> strings,
                            std::span<const std::string> more) {
    count_ = 0;
    reset();
    std::memset(begins_, 0, sizeof begins_);
    if (strings.size() > size_t{limits::STOP_STRINGS_MAX} ||
        more.size() > size_t{limits::TURN_ENDS_MAX})
        return StopStatus::too_many;
    for (std::span<const std::string> list : {strings, more}) {
        for (const std::string& string : list) {
            if (string.empty()) return StopStatus::empty_string;
            if (string.size() > size_t{limits::STOP_STRING_BYTES_MAX}) return StopStatus::too_long;
        }
    }
    for (const std::string& string : strings) add(string);
    for (const std::string& string : more) add(string);
    return StopStatus::ok;
}

void StopMatcher::add(const std::string& string) {
    if (patterns_.size() == static_cast<size_t>(count_)) patterns_.emplace_back();
    Pattern& pattern = patterns_[count_++];
    pattern.bytes = string;
    pattern.matched = 0;
    find_borders(pattern);
    begins_[static_cast<uint8_t>(string[0])] = true;
}

void StopMatcher::reset() {
    for (int32_t i = 0; i < count_; i++) patterns_[i].matched = 0;
    partial_ = false;
}

// True when the byte completes the string.
bool StopMatcher::advance(Pattern& pattern, char byte) {
    int32_t matched = pattern.matched;
    while (matched > 0 && pattern.bytes[matched] != byte) matched = pattern.borders[matched - 1];
    if (pattern.bytes[matched] == byte) matched++;
    pattern.matched = matched;
    return matched == pattern.length();
}

StopMatcher::Match StopMatcher::feed(std::string_view text) {
    if (count_ == 0) return {};
    for (size_t at = 0; at < text.size(); at++) {
        char byte = text[at];
        if (!partial_ && !begins_[static_cast<uint8_t>(byte)]) continue;
        Match match;
        partial_ = false;
        for (int32_t i = 0; i < count_; i++) {
            bool complete = advance(patterns_[i], byte);
            partial_ |= patterns_[i].matched > 0;
            if (complete &&
                (match.index < 0 || patterns_[i].length() > patterns_[match.index].length()))
                match = {i, at + 1};
        }
        if (match.index >= 0) return match;
    }
    return {};
}

size_t StopMatcher::held_bytes(int32_t first) const {
    int32_t held = 0;
    for (int32_t i = first; i < count_; i++) held = std::max(held, patterns_[i].matched);
    return static_cast<size_t>(held);
}

std::string_view StopMatcher::string(int32_t index) const {
    CHECK(index >= 0 && index < count_);
    return patterns_[index].bytes;
}

} // namespace sublimate

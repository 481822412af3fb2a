// StopMatcher: one automaton per stop string.
#include "stop_strings.h"

#include <algorithm>
#include <cstring>

#include "../check.h"

namespace sublimate {

void StopMatcher::find_borders(Pattern& pattern) {
    pattern.borders[0] = 0;
    int32_t border = 0;
    for (int32_t i = 1; i < pattern.length; i++) {
        while (border > 0 && pattern.bytes[i] != pattern.bytes[border])
            border = pattern.borders[border - 1];
        if (pattern.bytes[i] == pattern.bytes[border]) border++;
        pattern.borders[i] = static_cast<uint8_t>(border);
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
    Pattern& pattern = patterns_[count_++];
    pattern.length = static_cast<int32_t>(string.size());
    pattern.matched = 0;
    std::memcpy(pattern.bytes, string.data(), string.size());
    find_borders(pattern);
    begins_[pattern.bytes[0]] = true;
}

void StopMatcher::reset() {
    for (int32_t i = 0; i < count_; i++) patterns_[i].matched = 0;
    partial_ = false;
}

// True when the byte completes the string.
bool StopMatcher::advance(Pattern& pattern, uint8_t byte) {
    int32_t matched = pattern.matched;
    while (matched > 0 && pattern.bytes[matched] != byte) matched = pattern.borders[matched - 1];
    if (pattern.bytes[matched] == byte) matched++;
    pattern.matched = matched;
    return matched == pattern.length;
}

StopMatcher::Match StopMatcher::feed(std::string_view text) {
    if (count_ == 0) return {};
    for (size_t at = 0; at < text.size(); at++) {
        auto byte = static_cast<uint8_t>(text[at]);
        if (!partial_ && !begins_[byte]) continue;
        Match match;
        partial_ = false;
        for (int32_t i = 0; i < count_; i++) {
            bool complete = advance(patterns_[i], byte);
            partial_ |= patterns_[i].matched > 0;
            if (complete &&
                (match.index < 0 || patterns_[i].length > patterns_[match.index].length))
                match = {i, at + 1};
        }
        if (match.index >= 0) return match;
    }
    return {};
}

size_t StopMatcher::held_bytes() const {
    int32_t held = 0;
    for (int32_t i = 0; i < count_; i++) held = std::max(held, patterns_[i].matched);
    return static_cast<size_t>(held);
}

std::string_view StopMatcher::string(int32_t index) const {
    CHECK(index >= 0 && index < count_);
    const Pattern& pattern = patterns_[index];
    return {reinterpret_cast<const char*>(pattern.bytes), static_cast<size_t>(pattern.length)};
}

} // namespace sublimate

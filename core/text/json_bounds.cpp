// count_json and lone_surrogate. Python twin: tests/unit/test_json_bounds.py.
#include "json_bounds.h"

#include <algorithm>
#include <array>

#include "../check.h"

namespace sublimate {

namespace {

constexpr char BACKSLASH = '\\';
constexpr size_t ESCAPE_BYTES = 6; // \uXXXX

bool is_hex(char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

// Whether the escape at this place is of a surrogate whose second digit is one of these.
bool is_surrogate(std::string_view json, size_t at, std::string_view second) {
    if (json.size() - at < ESCAPE_BYTES || json[at] != BACKSLASH || json[at + 1] != 'u')
        return false;
    return (json[at + 2] | ' ') == 'd' && second.find(json[at + 3]) != second.npos &&
           is_hex(json[at + 4]) && is_hex(json[at + 5]);
}

bool is_high(std::string_view json, size_t at) {
    return is_surrogate(json, at, "89abAB");
}
bool is_low(std::string_view json, size_t at) {
    return is_surrogate(json, at, "cdefCDEF");
}

} // namespace

JsonCounts count_json(std::string_view json) {
    JsonCounts counts;
    std::array<int64_t, JSON_DEPTH_TRACKED> keys; // of the open containers
    int64_t depth = 0;
    bool in_string = false;
    for (size_t at = 0; at < json.size(); at++) {
        char c = json[at];
        if (c == BACKSLASH) {
            if (at + 1 < json.size() && (json[at + 1] == BACKSLASH || json[at + 1] == '"')) at++;
        } else if (c == '"') {
            counts.quotes++;
            in_string = !in_string;
        } else if (in_string) {
            continue;
        } else if (c == '[' || c == '{') {
            counts.containers++;
            if (depth < JSON_DEPTH_TRACKED) keys[depth] = 0;
            counts.depth = std::max(counts.depth, ++depth);
        } else if (c == ']' || c == '}') {
            if (depth > 0) depth--;
        } else if (c == ':') {
            counts.keys++;
            if (depth > 0 && depth <= JSON_DEPTH_TRACKED)
                counts.object_keys = std::max(counts.object_keys, ++keys[depth - 1]);
        } else if (c == ',') {
            counts.commas++;
        }
    }
    return counts;
}

int64_t lone_surrogate(std::string_view json, int64_t from) {
    CHECK(from >= 0);
    size_t at = json.find(BACKSLASH, static_cast<size_t>(from));
    while (at != json.npos) {
        size_t step = 1;
        if (is_high(json, at)) {
            if (!is_low(json, at + ESCAPE_BYTES)) return static_cast<int64_t>(at);
            step = 2 * ESCAPE_BYTES;
        } else if (is_low(json, at)) {
            return static_cast<int64_t>(at);
        } else if (at + 1 < json.size() && json[at + 1] == BACKSLASH) {
            step = 2;
        }
        at = json.find(BACKSLASH, at + step);
    }
    return -1;
}

} // namespace sublimate

// Checks of a client's JSON before a decoder reads it: counts of its parts, and surrogates that no
// decoder accepts. Each check is one pass over the bytes.
//
// Nothing here depends on the text being valid JSON: the decoder says whether it is.
#pragma once

#include <cstdint>
#include <string_view>

namespace sublimate {

// Outside of strings. An escaped quote ends no string; an escaped backslash escapes nothing.
struct JsonCounts {
    int64_t quotes = 0;
    int64_t containers = 0; // objects and arrays
    int64_t keys = 0;       // colons
    int64_t commas = 0;
    int64_t depth = 0;       // the deepest nesting
    int64_t object_keys = 0; // the most colons of one container, down to JSON_DEPTH_TRACKED
};

constexpr int64_t JSON_DEPTH_TRACKED = 64; // deeper JSON is refused: JSON_DEPTH_MAX in limits.py
JsonCounts count_json(std::string_view json);

// Returns the position, at or after `from`, of the next escape (\uD800 to \uDFFF) that is half of a
// surrogate pair without the other half; -1 if there is none.
int64_t lone_surrogate(std::string_view json, int64_t from);

} // namespace sublimate

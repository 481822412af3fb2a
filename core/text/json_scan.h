// One JSON object (RFC 8259), byte by byte: whether it can still become valid, and how much of it
// could be closed to something valid right now. Stricter than the RFC in two points, as decoders
// are: half of a surrogate pair is no character, and depth has a bound.
//
// defines: JsonScanner
#pragma once

#include <cstdint>
#include <string>

#include "../limits.h"

namespace sublimate {

// A byte costs a few instructions and no memory.
class JsonScanner {
public:
    enum class State : uint8_t {
        start, // the object has not begun
        first_key_or_end,
        key,      // expected, after a comma
        in_key,   // from its quote to its last character
        colon,    // expected
        value,    // expected
        in_value, // a string
        number,
        literal, // true, false, null
        first_value_or_end,
        after_value,
        done,
        bad,
    };

    void reset() { *this = {}; }
    // False: the text up to here begins no JSON object, or it goes on behind its end.
    bool feed(char byte);

    State state() const { return state_; }
    int32_t depth() const { return depth_; } // open objects and arrays
    int64_t fed_bytes() const { return fed_bytes_; }
    // Of what was fed, up to the last place at which `close` gives a valid object. Never inside an
    // escape, a surrogate pair, a number, a literal or a key: what a cut would change is not shown.
    int64_t safe_bytes() const { return safe_bytes_; }
    // Appends what completes the first safe_bytes.
    void close(std::string& out) const;

private:
    bool fail();
    bool open(char byte);
    bool shut(char byte);
    bool begin_value(char byte);
    bool in_string(uint8_t byte);
    bool in_escape(uint8_t byte);
    bool end_code_unit();
    bool in_number(char byte);
    bool in_literal(char byte);
    bool between(char byte);
    void mark_safe();

    // Where in a number: what has come last.
    enum class Number : uint8_t { minus, zero, digits, point, fraction, e, sign, exponent };

    State state_ = State::start;
    Number number_ = Number::minus;
    bool escaped_ = false;     // the last byte was a backslash
    uint8_t hex_digits_ = 0;   // of a \u escape still to come
    uint16_t code_unit_ = 0;   // of a \u escape, as far as it came
    bool half_a_pair_ = false; // a high surrogate waits for its low one
    const char* rest_ = "";    // of a literal
    int32_t depth_ = 0;
    int64_t fed_bytes_ = 0;
    int64_t safe_bytes_ = 0;
    bool safe_in_string_ = false;               // the safe place is inside a value
    char closers_[limits::CALL_DEPTH_MAX] = {}; // of the open objects and arrays, outermost first
};

} // namespace sublimate

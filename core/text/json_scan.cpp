// JsonScanner: a state per place in the grammar, a stack of what is open.
#include "json_scan.h"

#include <string_view>

#include "../check.h"

namespace sublimate {

namespace {

constexpr uint8_t CONTROL_END = 0x20;
constexpr uint16_t HIGH_SURROGATES = 0xD800, LOW_SURROGATES = 0xDC00, SURROGATES_END = 0xE000;
constexpr uint8_t ESCAPE_DIGITS = 4;

bool is_space(char byte) {
    return byte == ' ' || byte == '\n' || byte == '\t' || byte == '\r';
}

bool is_digit(char byte) {
    return byte >= '0' && byte <= '9';
}

int hex_value(uint8_t byte) {
    if (byte >= '0' && byte <= '9') return byte - '0';
    auto lower = static_cast<uint8_t>(byte | 0x20);
    return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

} // namespace

bool JsonScanner::fail() {
    state_ = State::bad;
    return false;
}

void JsonScanner::mark_safe() {
    bool text = state_ == State::in_value && !escaped_ && hex_digits_ == 0 && !half_a_pair_;
    if (!text && state_ != State::after_value && state_ != State::done &&
        state_ != State::first_key_or_end && state_ != State::first_value_or_end)
        return;
    CHECK_BECAUSE(fed_bytes_ >= safe_bytes_, "what was safe stays so");
    safe_bytes_ = fed_bytes_;
    safe_in_string_ = text;
}

bool JsonScanner::feed(char byte) {
    bool good = false;
    switch (state_) {
    case State::in_key:
    case State::in_value:
        good = in_string(static_cast<uint8_t>(byte));
        break;
    case State::number:
        good = in_number(byte);
        break;
    case State::literal:
        good = in_literal(byte);
        break;
    case State::done:
    case State::bad:
        return fail();
    default:
        good = between(byte);
    }
    if (!good) return fail();
    fed_bytes_++;
    mark_safe();
    return true;
}

bool JsonScanner::open(char byte) {
    if (depth_ == limits::CALL_DEPTH_MAX) return false;
    closers_[depth_++] = byte == '{' ? '}' : ']';
    state_ = byte == '{' ? State::first_key_or_end : State::first_value_or_end;
    return true;
}

bool JsonScanner::shut(char byte) {
    CHECK_BECAUSE(depth_ > 0, "between values something is open");
    if (closers_[depth_ - 1] != byte) return false;
    state_ = --depth_ == 0 ? State::done : State::after_value;
    return true;
}

bool JsonScanner::begin_value(char byte) {
    if (byte == '{' || byte == '[') return open(byte);
    state_ = State::literal;
    switch (byte) {
    case '"':
        state_ = State::in_value;
        return true;
    case 't':
        rest_ = "rue";
        return true;
    case 'f':
        rest_ = "alse";
        return true;
    case 'n':
        rest_ = "ull";
        return true;
    default:
        state_ = State::number;
        number_ = byte == '-' ? Number::minus : byte == '0' ? Number::zero : Number::digits;
        return byte == '-' || is_digit(byte);
    }
}

// White space and punctuation around keys and values.
bool JsonScanner::between(char byte) {
    if (state_ == State::start) return byte == '{' && open(byte);
    if (is_space(byte)) return true;
    bool first = state_ == State::first_key_or_end || state_ == State::first_value_or_end;
    if (first && (byte == '}' || byte == ']')) return shut(byte);
    switch (state_) {
    case State::first_key_or_end:
    case State::key:
        state_ = State::in_key;
        return byte == '"';
    case State::colon:
        state_ = State::value;
        return byte == ':';
    case State::value:
    case State::first_value_or_end:
        return begin_value(byte);
    default:
        CHECK_BECAUSE(state_ == State::after_value, "all other states have a place of their own");
        if (byte != ',') return shut(byte);
        state_ = closers_[depth_ - 1] == '}' ? State::key : State::value;
        return true;
    }
}

bool JsonScanner::in_string(uint8_t byte) {
    if (hex_digits_ > 0 || escaped_) return in_escape(byte);
    if (byte == '\\') {
        escaped_ = true;
        return true;
    }
    if (byte < CONTROL_END || half_a_pair_) return false;
    if (byte == '"') state_ = state_ == State::in_key ? State::colon : State::after_value;
    return true;
}

bool JsonScanner::in_escape(uint8_t byte) {
    if (hex_digits_ > 0) {
        int value = hex_value(byte);
        if (value < 0) return false;
        code_unit_ = static_cast<uint16_t>(code_unit_ << 4 | value);
        return --hex_digits_ > 0 || end_code_unit();
    }
    escaped_ = false;
    if (byte == 'u') {
        hex_digits_ = ESCAPE_DIGITS;
        code_unit_ = 0;
        return true;
    }
    constexpr std::string_view SHORT_ESCAPES = "\"\\/bfnrt";
    return !half_a_pair_ && SHORT_ESCAPES.find(static_cast<char>(byte)) != std::string_view::npos;
}

bool JsonScanner::end_code_unit() {
    bool low = code_unit_ >= LOW_SURROGATES && code_unit_ < SURROGATES_END;
    if (low != half_a_pair_) return false;
    half_a_pair_ = code_unit_ >= HIGH_SURROGATES && code_unit_ < LOW_SURROGATES;
    return true;
}

// A number ends with the first byte that is not its own.
bool JsonScanner::in_number(char byte) {
    bool digit = is_digit(byte);
    Number at = number_;
    bool whole = at == Number::zero || at == Number::digits;
    if (digit && at == Number::minus) {
        number_ = byte == '0' ? Number::zero : Number::digits;
    } else if (digit && (at == Number::point || at == Number::fraction)) {
        number_ = Number::fraction;
    } else if (digit && (at == Number::e || at == Number::sign || at == Number::exponent)) {
        number_ = Number::exponent;
    } else if (byte == '.' && whole) {
        number_ = Number::point;
    } else if ((byte == 'e' || byte == 'E') && (whole || at == Number::fraction)) {
        number_ = Number::e;
    } else if ((byte == '+' || byte == '-') && at == Number::e) {
        number_ = Number::sign;
    } else if (!digit && (whole || at == Number::fraction || at == Number::exponent)) {
        state_ = State::after_value;
        mark_safe();
        return between(byte);
    } else {
        return digit && at == Number::digits;
    }
    return true;
}

bool JsonScanner::in_literal(char byte) {
    CHECK_BECAUSE(*rest_ != '\0', "a literal that is whole is none");
    if (byte != *rest_) return false;
    if (*++rest_ == '\0') state_ = State::after_value;
    return true;
}

void JsonScanner::close(std::string& out) const {
    CHECK_BECAUSE(safe_bytes_ > 0, "nothing is valid before the object has begun");
    // What followed the safe place opened nothing: opening is a safe place itself.
    if (safe_in_string_) out.push_back('"');
    for (int32_t at = depth_; at > 0; at--) out.push_back(closers_[at - 1]);
}

} // namespace sublimate

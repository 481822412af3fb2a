// Utf8Assembler: the WHATWG decoder's states.
#include "utf8.h"

namespace sublimate {

namespace {

constexpr std::string_view REPLACEMENT = "\xEF\xBF\xBD"; // U+FFFD
constexpr uint8_t ASCII_END = 0x80;
constexpr uint8_t CONTINUATION_LOWER = 0x80;
constexpr uint8_t CONTINUATION_UPPER = 0xBF;

// Lead bytes, how many bytes follow, and the bounds of the first of those (The Unicode Standard,
// table 3-7). The narrowed bounds exclude overlong forms, surrogates and what lies beyond U+10FFFF.
struct LeadRange {
    uint8_t first, last, needed, lower, upper;
};
constexpr LeadRange LEAD_RANGES[] = {
    {0xC2, 0xDF, 1, 0x80, 0xBF}, {0xE0, 0xE0, 2, 0xA0, 0xBF}, {0xE1, 0xEC, 2, 0x80, 0xBF},
    {0xED, 0xED, 2, 0x80, 0x9F}, {0xEE, 0xEF, 2, 0x80, 0xBF}, {0xF0, 0xF0, 3, 0x90, 0xBF},
    {0xF1, 0xF3, 3, 0x80, 0xBF}, {0xF4, 0xF4, 3, 0x80, 0x8F},
};

const LeadRange* range_of(uint8_t lead) {
    for (const LeadRange& range : LEAD_RANGES)
        if (lead >= range.first && lead <= range.last) return &range;
    return nullptr;
}

size_t ascii_run(std::string_view bytes, size_t at) {
    size_t end = at;
    while (end < bytes.size() && static_cast<uint8_t>(bytes[end]) < ASCII_END) end++;
    return end - at;
}

} // namespace

// A byte outside ASCII where a code point starts.
void Utf8Assembler::begin(uint8_t lead, std::string& text) {
    const LeadRange* range = range_of(lead);
    if (range == nullptr) {
        text.append(REPLACEMENT);
        return;
    }
    needed_ = range->needed;
    lower_ = range->lower;
    upper_ = range->upper;
    carry_[0] = static_cast<char>(lead);
    carried_ = 1;
}

// False: the byte does not continue the carried code point, which was replaced; the byte starts
// anew.
bool Utf8Assembler::continue_with(uint8_t byte, std::string& text) {
    if (byte < lower_ || byte > upper_) {
        flush(text);
        return false;
    }
    lower_ = CONTINUATION_LOWER;
    upper_ = CONTINUATION_UPPER;
    if (--needed_ > 0) {
        carry_[carried_++] = static_cast<char>(byte);
        return true;
    }
    text.append(carry_, carried_);
    text.push_back(static_cast<char>(byte));
    carried_ = 0;
    return true;
}

void Utf8Assembler::append(std::string_view bytes, std::string& text) {
    size_t at = 0;
    while (at < bytes.size()) {
        auto byte = static_cast<uint8_t>(bytes[at]);
        if (needed_ > 0) {
            if (continue_with(byte, text)) at++;
        } else if (byte >= ASCII_END) {
            begin(byte, text);
            at++;
        } else {
            size_t run = ascii_run(bytes, at);
            text.append(bytes.substr(at, run));
            at += run;
        }
    }
}

void Utf8Assembler::flush(std::string& text) {
    if (carried_ > 0) text.append(REPLACEMENT);
    reset();
}

int64_t ill_formed_at(std::string_view bytes) {
    size_t at = ascii_run(bytes, 0);
    while (at < bytes.size()) {
        const LeadRange* range = range_of(static_cast<uint8_t>(bytes[at]));
        if (range == nullptr || bytes.size() - at <= range->needed) return static_cast<int64_t>(at);
        uint8_t lower = range->lower, upper = range->upper;
        for (size_t i = 1; i <= range->needed; i++) {
            auto byte = static_cast<uint8_t>(bytes[at + i]);
            if (byte < lower || byte > upper) return static_cast<int64_t>(at);
            lower = CONTINUATION_LOWER;
            upper = CONTINUATION_UPPER;
        }
        at += 1 + range->needed;
        at += ascii_run(bytes, at);
    }
    return -1;
}

} // namespace sublimate

// json_escape: copies clean runs, replaces the rest.
#include "json.h"

#include <array>
#include <cstdint>

namespace sublimate {

namespace {

constexpr size_t BYTE_VALUES = 256;
constexpr int CONTROL_END = 0x20;

// Per byte: 0 is copied, 'u' becomes \u00XX, another character becomes a backslash and that
// character.
constexpr std::array<char, BYTE_VALUES> make_escapes() {
    std::array<char, BYTE_VALUES> escapes{};
    for (int byte = 0; byte < CONTROL_END; byte++) escapes[static_cast<size_t>(byte)] = 'u';
    escapes['\b'] = 'b';
    escapes['\f'] = 'f';
    escapes['\n'] = 'n';
    escapes['\r'] = 'r';
    escapes['\t'] = 't';
    escapes['"'] = '"';
    escapes['\\'] = '\\';
    return escapes;
}

constexpr std::array<char, BYTE_VALUES> ESCAPES = make_escapes();
constexpr char HEX_DIGITS[] = "0123456789abcdef";

} // namespace

void json_escape(std::string_view text, std::string& out) {
    size_t clean = 0; // start of the run not yet copied
    for (size_t at = 0; at < text.size(); at++) {
        auto byte = static_cast<uint8_t>(text[at]);
        char escape = ESCAPES[byte];
        if (escape == 0) continue;
        out.append(text.substr(clean, at - clean));
        clean = at + 1;
        out.push_back('\\');
        out.push_back(escape);
        if (escape != 'u') continue;
        out.append("00");
        out.push_back(HEX_DIGITS[byte >> 4]);
        out.push_back(HEX_DIGITS[byte & 15]);
    }
    out.append(text.substr(clean));
}

void json_string(std::string_view text, std::string& out) {
    out.push_back('"');
    json_escape(text, out);
    out.push_back('"');
}

} // namespace sublimate

// Bytes in, whole code points out. Tokens of a byte-level vocabulary end anywhere, also inside a
// code point.
//
// defines: Utf8Assembler, ill_formed_at
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace sublimate {

// Decodes a stream of bytes as the WHATWG Encoding Standard's UTF-8 decoder does (section 8.1.1),
// which is also what Python's bytes.decode("utf-8", "replace") does: each maximal subpart of an
// ill-formed sequence becomes one U+FFFD. The result does not depend on where the stream is cut.
// What is complete leaves at once; at most 3 bytes of a code point that may still be completed are
// carried.
class Utf8Assembler {
public:
    // Appends what is whole to `text`, which stays valid UTF-8.
    void append(std::string_view bytes, std::string& text);
    // End of the stream: a carried beginning becomes one U+FFFD.
    void flush(std::string& text);
    void reset() { *this = {}; }
    int32_t carried_bytes() const { return carried_; }

private:
    void begin(uint8_t lead, std::string& text);
    bool continue_with(uint8_t byte, std::string& text);

    char carry_[3] = {};
    uint8_t carried_ = 0;
    uint8_t needed_ = 0; // continuation bytes still to come
    uint8_t lower_ = 0;  // bounds of the next continuation byte
    uint8_t upper_ = 0;
};

// Returns the position of the first ill-formed sequence; -1 if all bytes are UTF-8.
int64_t ill_formed_at(std::string_view bytes);

} // namespace sublimate

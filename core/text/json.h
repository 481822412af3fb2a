// JSON string contents.
//
// defines: json_escape, json_string
#pragma once

#include <string>
#include <string_view>

namespace sublimate {

// Appends `text` as the inside of a JSON string (RFC 8259 section 7): quote, backslash and control
// characters are escaped, \b \f \n \r \t in their short form and the others as \u00XX; everything
// else is copied. Never fails: ill-formed UTF-8 is copied too, so only text that went through
// Utf8Assembler or came from Python may be given.
void json_escape(std::string_view text, std::string& out);

// The same with the quotes around it.
void json_string(std::string_view text, std::string& out);

} // namespace sublimate

// CallReader: one coroutine for each rule of the grammar in call_reader.h.
#include "call_reader.h"

#include <algorithm>

#include "../check.h"
#include "blocks.h"
#include "json.h"

namespace sublimate {

namespace {

// How a tagged call is written: NAME stands behind `opening`, KEY behind `parameter`.
struct TagStyle {
    std::string_view opening, name_end, closing, parameter, key_end, parameter_end;
};
constexpr TagStyle TAG_STYLES[] = {
    {"<function=", ">", "</function>", "<parameter=", ">", "</parameter>"},
    {"<function name=\"", "\">", "</function>", "<param name=\"", "\">", "</param>"},
    {"<invoke name=\"", "\">", "</invoke>", "<parameter name=\"", "\">", "</parameter>"},
};
// Keys of a call, in either kind of quotes.
constexpr std::string_view KEYS[] = {
    "\"name\"", "'name'", "\"arguments\"", "'arguments'", "\"parameters\"", "'parameters'",
    "\"type\"", "'type'", "\"id\"",        "'id'",        "\"function\"",   "'function'",
};
enum class Key : uint8_t { name, arguments, parameters, type, id, function };
constexpr std::string_view WORDS[] = {"true", "false", "null", "True", "False", "None"};
constexpr std::string_view WORDS_AS_JSON[] = {"true", "false", "null", "true", "false", "null"};
constexpr std::string_view DIALECT[] = {"call:"};             // Gemma 4 and FunctionGemma
constexpr std::string_view QUOTES[] = {"<|\"|>", "<escape>"}; // of their strings
constexpr std::string_view SEPARATORS[] = {"[ARGS]", "<｜tool▁sep｜>"};
constexpr std::string_view CALL_ID[] = {"[CALL_ID]"};
constexpr std::string_view ESCAPES = "\"\\/bfnrt";
constexpr std::string_view NUMBER_MARKS = "+-.eE";
constexpr uint8_t CONTROL_END = 0x20;
constexpr uint16_t HIGH_SURROGATES = 0xD800, LOW_SURROGATES = 0xDC00, SURROGATES_END = 0xE000;

bool is_space(char byte) {
    return byte == ' ' || byte == '\n' || byte == '\t' || byte == '\r';
}

bool is_digit(char byte) {
    return byte >= '0' && byte <= '9';
}

bool is_of_word(char byte) {
    auto lower = static_cast<char>(byte | 0x20);
    return is_digit(byte) || (lower >= 'a' && lower <= 'z') || byte == '_';
}

int hex_value(char byte) {
    if (is_digit(byte)) return byte - '0';
    auto lower = static_cast<char>(byte | 0x20);
    return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

// Whether the text is one JSON value and nothing else.
bool is_json(std::string_view text) {
    JsonScanner json;
    for (char byte : {'{', '"', '"', ':'}) json.feed(byte);
    for (char byte : text)
        if (!json.feed(byte) || json.depth() == 0 ||
            (json.depth() == 1 && json.state() == JsonScanner::State::key))
            return false;
    return json.feed('}') && json.state() == JsonScanner::State::done;
}

bool is_number(std::string_view text) {
    return !text.empty() && (text[0] == '-' || is_digit(text[0])) && is_json(text);
}

} // namespace

bool CallReader::may_begin(const BlockFormat& format, std::string_view text, size_t at,
                           bool is_blank, bool after_space) {
    text.remove_prefix(at);
    char first = text.front();
    if ((first == '{' || first == '[') && after_space) return true;
    auto begins = [text](std::string_view marker) {
        return text.starts_with(marker) || marker.starts_with(text);
    };
    for (const auto& [opening, closing] : format.lenient_markers)
        if (begins(opening) && (first != '`' || is_blank)) return true;
    for (const TagStyle& style : TAG_STYLES)
        if (begins(style.opening)) return true;
    return is_blank && std::any_of(format.tool_names.begin(), format.tool_names.end(),
                                   [first](const std::string& name) { return name[0] == first; });
}

CallReader::CallReader(const BlockFormat& format, bool after_space)
    : format_(format), after_space_(after_space), root_(run()) {
    for (const auto& [opening, closing] : format.lenient_markers) openings_.push_back(opening);
    for (const TagStyle& style : TAG_STYLES) openings_.push_back(style.opening);
    root_.begin(&open_);
}

bool CallReader::read(std::string_view text) {
    CHECK_BECAUSE(!open_.empty(), "the reader has already decided that this is not a call");
    // What waits goes on when there is another byte.
    waits_ = waits_ && text.size() == text_.size();
    text_ = text;
    while (!waits_ && !open_.empty()) open_.back().resume();
    return waits_;
}

std::span<const CallReader::Call> CallReader::calls() const {
    if (!is_whole_) return {};
    return calls_;
}

// ---- items --------------------------------------------------------------------------------------
CallReader::Task CallReader::run() {
    bool goes_on = true;
    while (goes_on) {
        is_whole_ = false;
        goes_on = co_await item(false);
        is_whole_ = goes_on;
        if (goes_on) co_await separator();
    }
    co_return false;
}

// Up to the next item: white space, and at most one comma or semicolon.
CallReader::Task CallReader::separator() {
    co_await space();
    char byte = co_await peek();
    if (byte != ',' && byte != ';') co_return true;
    is_whole_ = false;
    at_++;
    co_return co_await space();
}

// Skips white space.
CallReader::Task CallReader::space() {
    char byte = co_await peek();
    while (is_space(byte)) {
        at_++;
        byte = co_await peek();
    }
    co_return true;
}

// Reads the longest of these texts that stands here, and keeps its number in chosen_.
CallReader::Task CallReader::choose(Texts texts) {
    bool is_partial = true;
    size_t bytes = 0;
    while (is_partial) {
        std::string_view rest = text_.substr(at_);
        is_partial = false;
        for (size_t i = 0; i < texts.size(); i++) {
            if (rest.starts_with(texts[i]) && texts[i].size() > bytes) {
                bytes = texts[i].size();
                chosen_ = i;
            } else if (texts[i].size() > rest.size() && texts[i].starts_with(rest)) {
                is_partial = true;
            }
        }
        if (is_partial) co_await More{*this, text_.size()};
    }
    at_ += bytes;
    co_return bytes > 0;
}

CallReader::Task CallReader::item(bool is_marked) {
    bool is_opened = co_await choose(openings_);
    size_t marked_count = format_.lenient_markers.size();
    if (is_opened && chosen_ >= marked_count) co_return co_await tagged(chosen_ - marked_count);
    if (is_opened) co_return co_await marked(format_.lenient_markers[chosen_].second);
    if (at_ == 0 && !after_space_) co_return false;
    char byte = co_await peek();
    if (byte == '{') co_return co_await object();
    if (byte == '[') co_return co_await list();
    co_return co_await named(is_marked);
}

// From behind an opening.
CallReader::Task CallReader::marked(std::string_view closing) {
    if (depth_ == limits::CALL_DEPTH_MAX) co_return false;
    depth_++;
    bool goes_on = true;
    while (goes_on) {
        co_await space();
        is_whole_ = false;
        if (!co_await item(true)) co_return false;
        if (closing.empty()) break;
        is_whole_ = true;
        co_await space();
        goes_on = !co_await choose({&closing, 1});
        if (goes_on) co_await separator();
    }
    depth_--;
    co_return true;
}

CallReader::Task CallReader::object() {
    Call call;
    if (!co_await members(call) || call.name < 0 || call.arguments.empty()) co_return false;
    calls_.push_back(std::move(call));
    co_return true;
}

// What a call's object says of it.
CallReader::Task CallReader::members(Call& call) {
    if (depth_ == limits::CALL_DEPTH_MAX) co_return false;
    depth_++;
    bool is_inner = false; // in the object of `function`
    char byte = ',';
    while (byte == ',') {
        at_++;
        co_await space();
        if (!co_await choose(KEYS)) co_return false;
        auto key = static_cast<Key>(chosen_ / 2);
        co_await space();
        if (co_await peek() != ':') co_return false;
        at_++;
        co_await space();
        byte = co_await peek();
        bool is_object = byte == '{';
        if (key == Key::arguments || key == Key::parameters) {
            if (!is_object || !call.arguments.empty()) co_return false;
            if (!co_await literal(call.arguments, false)) co_return false;
        } else if (key == Key::function && is_object) {
            if (call.name >= 0 || is_inner) co_return false;
            is_inner = true;
            byte = ','; // its members are read as the others are
            continue;
        } else if (byte != '"' && byte != '\'') {
            co_return false;
        } else if (key == Key::name || key == Key::function) {
            if (call.name >= 0) co_return false;
            at_++;
            if (!co_await name(call) || co_await peek() != byte) co_return false;
            at_++;
        } else {
            std::string unused;
            if (!co_await string(unused)) co_return false;
        }
        co_await space();
        byte = co_await peek();
        if (byte != '}' || !is_inner) continue;
        is_inner = false;
        at_++;
        co_await space();
        byte = co_await peek();
    }
    if (byte != '}') co_return false;
    at_++;
    depth_--;
    co_return true;
}

CallReader::Task CallReader::list() {
    char byte = ',';
    while (byte == ',') {
        at_++;
        co_await space();
        byte = co_await peek();
        bool good = byte == '{' ? co_await object() : co_await named(false);
        if (!good) co_return false;
        co_await space();
        byte = co_await peek();
    }
    if (byte != ']') co_return false;
    at_++;
    co_return true;
}

// A name outside of JSON, and its arguments.
CallReader::Task CallReader::named(bool is_marked) {
    Call call;
    bool is_dialect = is_marked && co_await choose(DIALECT);
    if (!co_await name(call)) co_return false;
    char byte = co_await peek();
    bool good = false;
    if (is_dialect) {
        good = byte == '{' && co_await literal(call.arguments, true);
    } else if (byte == '(') {
        good = co_await keywords(call.arguments);
    } else if (is_marked) {
        if (!co_await call_id() || !co_await choose(SEPARATORS)) co_return false;
        co_await space();
        good = co_await peek() == '{' && co_await literal(call.arguments, false);
    }
    if (good) calls_.push_back(std::move(call));
    co_return good;
}

// An identifier, which may stand between name and separator.
CallReader::Task CallReader::call_id() {
    if (!co_await choose(CALL_ID)) co_return true;
    size_t begin = at_;
    char byte = co_await peek();
    while (is_of_word(byte) && byte != '_' && at_ - begin < size_t{limits::TOOL_NAME_BYTES_MAX}) {
        at_++;
        byte = co_await peek();
    }
    co_return true;
}

// The arguments of a call in Python's syntax, from its parenthesis on.
CallReader::Task CallReader::keywords(std::string& out) {
    at_++;
    co_await space();
    out = "{";
    char byte = co_await peek();
    while (byte != ')') {
        if (!co_await word(out)) co_return false;
        co_await space();
        if (co_await peek() != '=') co_return false;
        at_++;
        out += ": ";
        co_await space();
        if (!co_await literal(out, false)) co_return false;
        co_await space();
        byte = co_await peek();
        if (byte == ')') break;
        if (byte != ',') co_return false;
        at_++;
        out += ", ";
        co_await space();
    }
    at_++;
    out += '}';
    co_return true;
}

// The name of an offered tool, to its end.
CallReader::Task CallReader::name(Call& call) {
    const std::vector<std::string>& names = format_.tool_names;
    size_t begin = at_;
    bool goes_on = true;
    while (goes_on) {
        co_await peek();
        std::string_view so_far = text_.substr(begin, at_ + 1 - begin);
        goes_on = std::any_of(names.begin(), names.end(), [so_far](const std::string& name) {
            return name.starts_with(so_far);
        });
        if (goes_on) at_++;
    }
    auto found = std::find(names.begin(), names.end(), text_.substr(begin, at_ - begin));
    if (found != names.end()) call.name = static_cast<int32_t>(found - names.begin());
    co_return found != names.end();
}

// From behind an opening.
CallReader::Task CallReader::tagged(size_t number) {
    const TagStyle& style = TAG_STYLES[number];
    Call call;
    if (!co_await name(call) || !co_await choose({&style.name_end, 1})) co_return false;
    co_await space();
    bool is_json_object = co_await peek() == '{';
    if (is_json_object && !co_await literal(call.arguments, false)) co_return false;
    if (!is_json_object) call.arguments = "{";
    const std::string_view next[] = {style.closing, style.parameter};
    bool goes_on = true;
    while (goes_on) {
        co_await space();
        if (!co_await choose(Texts(next).first(is_json_object ? 1 : 2))) co_return false;
        goes_on = chosen_ > 0;
        if (!goes_on) break;
        if (call.arguments.size() > 1) call.arguments += ", ";
        std::string key;
        if (!co_await word(key) || !co_await choose({&style.key_end, 1})) co_return false;
        call.arguments.append(key).append(": ");
        std::string text;
        if (!co_await enclosed(text, style.parameter_end)) co_return false;
        call.arguments += typed(call, std::string_view(key).substr(1, key.size() - 2), text);
    }
    if (!is_json_object) call.arguments += '}';
    calls_.push_back(std::move(call));
    co_return true;
}

// The text of a parameter as JSON: what the schema says is a string is one.
std::string CallReader::typed(const Call& call, std::string_view key, std::string_view text) const {
    if (text.starts_with('\n')) text.remove_prefix(1);
    if (text.ends_with('\n')) text.remove_suffix(1);
    const std::string& tool = format_.tool_names[static_cast<size_t>(call.name)];
    bool is_string = std::any_of(
        format_.string_parameters.begin(), format_.string_parameters.end(),
        [&](const auto& parameter) { return parameter.first == tool && parameter.second == key; });
    if (!is_string && is_json(text)) return std::string(text);
    std::string out;
    json_string(text, out);
    return out;
}

// ---- literals: JSON's and Python's, written as JSON
// -----------------------------------------------
CallReader::Task CallReader::literal(std::string& out, bool has_bare_keys) {
    char byte = co_await peek();
    if (byte == '{' || byte == '[') co_return co_await container(out, has_bare_keys);
    if (byte == '"' || byte == '\'') co_return co_await string(out);
    if (is_digit(byte) || byte == '-') co_return co_await number(out);
    if (has_bare_keys && co_await choose(QUOTES)) {
        std::string text;
        if (!co_await enclosed(text, QUOTES[chosen_])) co_return false;
        json_string(text, out);
        co_return true;
    }
    if (!co_await choose(WORDS)) co_return false;
    out += WORDS_AS_JSON[chosen_];
    co_return true;
}

CallReader::Task CallReader::container(std::string& out, bool has_bare_keys) {
    if (depth_ == limits::CALL_DEPTH_MAX) co_return false;
    depth_++;
    bool is_object = text_[at_] == '{';
    char closer = is_object ? '}' : ']';
    out += text_[at_++];
    co_await space();
    char byte = co_await peek();
    while (byte != closer) {
        if (is_object) {
            bool is_bare = has_bare_keys && is_of_word(byte);
            bool is_quoted = byte == '"' || byte == '\'';
            if (!is_bare && !is_quoted) co_return false;
            bool good = is_bare ? co_await word(out) : co_await string(out);
            if (!good) co_return false;
            co_await space();
            if (co_await peek() != ':') co_return false;
            at_++;
            out += ": ";
            co_await space();
        }
        if (!co_await literal(out, has_bare_keys)) co_return false;
        co_await space();
        byte = co_await peek();
        if (byte == closer) break;
        if (byte != ',') co_return false;
        at_++;
        out += ", ";
        co_await space();
        byte = co_await peek();
        if (byte == closer) co_return false;
    }
    at_++;
    out += closer;
    depth_--;
    co_return true;
}

// Letters, digits and underscores, as a JSON string.
CallReader::Task CallReader::word(std::string& out) {
    size_t begin = at_;
    out += '"';
    char byte = co_await peek();
    while (is_of_word(byte)) {
        out += byte;
        at_++;
        byte = co_await peek();
    }
    out += '"';
    co_return at_ > begin;
}

CallReader::Task CallReader::string(std::string& out) {
    char quote = text_[at_++];
    out += '"';
    char byte = co_await peek();
    while (byte != quote) {
        if (static_cast<uint8_t>(byte) < CONTROL_END) co_return false;
        if (byte == '\\') {
            if (!co_await escape(out)) co_return false;
        } else {
            if (byte == '"') out += '\\';
            out += byte;
            at_++;
        }
        byte = co_await peek();
    }
    at_++;
    out += '"';
    co_return true;
}

CallReader::Task CallReader::escape(std::string& out) {
    at_++;
    char byte = co_await peek();
    if (byte == 'u') {
        if (!co_await code_unit(out) || (unit_ >= LOW_SURROGATES && unit_ < SURROGATES_END))
            co_return false;
        if (unit_ < HIGH_SURROGATES || unit_ >= SURROGATES_END) co_return true;
        // Half of a pair is not a character.
        if (co_await peek() != '\\') co_return false;
        at_++;
        if (co_await peek() != 'u' || !co_await code_unit(out)) co_return false;
        co_return unit_ >= LOW_SURROGATES&& unit_ < SURROGATES_END;
    }
    if (byte != '\'' && ESCAPES.find(byte) == std::string_view::npos) co_return false;
    if (byte != '\'') out += '\\';
    out += byte;
    at_++;
    co_return true;
}

// From the u of an escape on.
CallReader::Task CallReader::code_unit(std::string& out) {
    constexpr int DIGITS = 4;
    at_++;
    out += "\\u";
    unit_ = 0;
    for (int i = 0; i < DIGITS; i++) {
        char byte = co_await peek();
        if (hex_value(byte) < 0) co_return false;
        unit_ = static_cast<uint16_t>(unit_ << 4 | hex_value(byte));
        out += byte;
        at_++;
    }
    co_return true;
}

// Text as it is, up to a closing marker, which is read too.
CallReader::Task CallReader::enclosed(std::string& out, std::string_view closing) {
    bool is_closed = false;
    while (!is_closed) {
        is_closed = co_await choose({&closing, 1});
        if (!is_closed) out += text_[at_++];
    }
    co_return true;
}

CallReader::Task CallReader::number(std::string& out) {
    size_t begin = at_;
    char byte = co_await peek();
    while (is_digit(byte) || NUMBER_MARKS.find(byte) != std::string_view::npos) {
        at_++;
        byte = co_await peek();
    }
    std::string_view text = text_.substr(begin, at_ - begin);
    out += text;
    co_return is_number(text);
}

} // namespace sublimate

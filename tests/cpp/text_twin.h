// Slow twins of core/text for the C++ tests and the fuzzer: whole strings, searched from their
// start each time.
//
// defines: decode_slow, find_stop_slow, held_slow, Answer, answer_slow, MALFORMED,
// json_unescape_slow, JsonReaderSlow, json_object_slow, FoldedBlock, fold_slow
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "../../core/text/text_stream.h"

namespace sublimate::test {

// Length of the longest beginning of `bytes` that begins some well-formed code point of several
// bytes; `whole` says whether that code point is complete. 0: no code point begins so.
inline size_t sequence_length(std::string_view bytes, bool& whole) {
    auto at = [&](size_t i) { return static_cast<uint8_t>(bytes[i]); };
    size_t wanted = 0;
    if (at(0) >= 0xC2 && at(0) <= 0xDF) wanted = 2;
    if (at(0) >= 0xE0 && at(0) <= 0xEF) wanted = 3;
    if (at(0) >= 0xF0 && at(0) <= 0xF4) wanted = 4;
    whole = false;
    if (wanted == 0) return 0;
    size_t length = 1;
    while (length < wanted && length < bytes.size() && (at(length) & 0xC0) == 0x80) {
        if (length == 1) {
            int value = (at(0) << 8) + at(1);
            bool overlong = value < 0xE0A0 ? at(0) == 0xE0 : (at(0) == 0xF0 && value < 0xF090);
            bool surrogate = at(0) == 0xED && at(1) > 0x9F;
            bool beyond = at(0) == 0xF4 && at(1) > 0x8F;
            if (overlong || surrogate || beyond) break;
        }
        length++;
    }
    whole = length == wanted;
    return length;
}

// As Python's bytes.decode("utf-8", "replace"). ended false: an unfinished code point at the end is
// left out.
inline std::string decode_slow(std::string_view bytes, bool ended) {
    const std::string replacement = "\xEF\xBF\xBD";
    std::string text;
    while (!bytes.empty()) {
        bool whole = true;
        size_t length = 1;
        if (static_cast<uint8_t>(bytes[0]) >= 0x80) length = sequence_length(bytes, whole);
        if (!whole && length == bytes.size() && length > 0 && !ended) break;
        text += whole ? std::string(bytes.substr(0, length)) : replacement;
        bytes.remove_prefix(std::max<size_t>(length, 1));
    }
    return text;
}

struct Found {
    int index = -1;
    size_t end = 0;
};

// The match that ends first, of those the longest, of equals the first in the list.
inline Found find_stop_slow(std::string_view text, const std::vector<std::string>& stops) {
    for (size_t end = 1; end <= text.size(); end++) {
        Found found;
        for (size_t i = 0; i < stops.size(); i++) {
            if (!text.substr(0, end).ends_with(stops[i])) continue;
            if (found.index < 0 || stops[i].size() > stops[static_cast<size_t>(found.index)].size())
                found = {static_cast<int>(i), end};
        }
        if (found.index >= 0) return found;
    }
    return {};
}

inline size_t held_slow(std::string_view text, const std::vector<std::string>& stops) {
    size_t held = 0;
    for (const std::string& stop : stops)
        for (size_t n = 1; n < stop.size(); n++)
            if (text.ends_with(std::string_view(stop).substr(0, n))) held = std::max(held, n);
    return held;
}

struct Answer {
    std::string text; // that may be shown
    int stop_index = -1;
    int output_tokens = 0;
};

// What a client may see after these tokens. ended: no more will come.
inline Answer answer_slow(const std::vector<std::string>& tokens,
                          const std::vector<std::string>& stops, bool ended) {
    std::string bytes;
    std::string text;
    for (size_t count = 1; count <= tokens.size(); count++) {
        bytes += tokens[count - 1];
        text = decode_slow(bytes, ended && count == tokens.size());
        Found found = find_stop_slow(text, stops);
        if (found.index < 0) continue;
        size_t length = stops[static_cast<size_t>(found.index)].size();
        return {text.substr(0, found.end - length), found.index, static_cast<int>(count)};
    }
    if (!ended) text.resize(text.size() - held_slow(text, stops));
    return {text, -1, static_cast<int>(tokens.size())};
}

// What json_unescape_slow returns for what JSON does not allow: never valid text.
inline const std::string MALFORMED = "\xFF";

// The inside of a JSON string, back to text.
inline std::string json_unescape_slow(std::string_view json) {
    std::string text;
    for (size_t i = 0; i < json.size(); i++) {
        char c = json[i];
        if (static_cast<uint8_t>(c) < 0x20 || c == '"') return MALFORMED;
        if (c != '\\') {
            text += c;
            continue;
        }
        if (++i == json.size()) return MALFORMED;
        constexpr std::string_view names = "\"\\bfnrt";
        constexpr std::string_view values = "\"\\\b\f\n\r\t";
        size_t known = names.find(json[i]);
        if (known != std::string_view::npos) {
            text += values[known];
            continue;
        }
        if (json[i] != 'u' || json.substr(i + 1, 2) != "00" || i + 4 >= json.size())
            return MALFORMED;
        constexpr std::string_view digits = "0123456789abcdef";
        size_t high = digits.find(json[i + 3]);
        size_t low = digits.find(json[i + 4]);
        if (high > 1 || low > 15) return MALFORMED;
        text += static_cast<char>(high * 16 + low);
        i += 4;
    }
    return text;
}

// Reads JSON by recursion. Each function takes a value off the front, or says that there is none.
class JsonReaderSlow {
public:
    explicit JsonReaderSlow(std::string_view text) : rest_(text) {}

    bool value(int depth) {
        white();
        if (depth > limits::CALL_DEPTH_MAX || rest_.empty()) return false;
        if (rest_[0] == '{' || rest_[0] == '[') return container(depth);
        if (rest_[0] == '"') return string();
        for (std::string_view word : {"true", "false", "null"})
            if (take(word)) return true;
        return number();
    }
    bool empty() const { return rest_.empty(); }

private:
    void white() {
        rest_.remove_prefix(std::min(rest_.find_first_not_of(" \n\t\r"), rest_.size()));
    }
    bool take(std::string_view text) {
        if (!rest_.starts_with(text)) return false;
        rest_.remove_prefix(text.size());
        return true;
    }
    bool take_spaced(std::string_view text) {
        white();
        return take(text);
    }
    size_t digits() {
        size_t count = std::min(rest_.find_first_not_of("0123456789"), rest_.size());
        rest_.remove_prefix(count);
        return count;
    }
    bool number() {
        take("-");
        if (!take("0") && digits() == 0) return false;
        if (take(".") && digits() == 0) return false;
        if (!take("e") && !take("E")) return true;
        if (!take("+")) take("-");
        return digits() > 0;
    }
    // A \u escape; -1 for anything else.
    int code_unit() {
        if (!rest_.starts_with("\\u") || rest_.size() < 6) return -1;
        int unit = 0;
        for (char digit : rest_.substr(2, 4)) {
            size_t value = std::string_view("0123456789abcdefABCDEF").find(digit);
            if (value == std::string_view::npos) return -1;
            unit = unit * 16 + static_cast<int>(value < 16 ? value : value - 6);
        }
        rest_.remove_prefix(6);
        return unit;
    }
    bool string() {
        if (!take("\"")) return false;
        while (!rest_.empty() && !take("\"")) {
            if (static_cast<uint8_t>(rest_[0]) < 0x20) return false;
            if (rest_.starts_with("\\u")) {
                int unit = code_unit();
                bool high = unit >= 0xD800 && unit < 0xDC00;
                if (unit < 0 || (unit >= 0xDC00 && unit < 0xE000)) return false;
                if (int low = high ? code_unit() : 0; high && (low < 0xDC00 || low >= 0xE000))
                    return false;
                if (rest_.empty()) return false;
                continue;
            }
            bool escape = take("\\");
            if (rest_.empty()) return false;
            if (escape && std::string_view("\"\\/bfnrt").find(rest_[0]) == std::string_view::npos)
                return false;
            rest_.remove_prefix(1);
            if (rest_.empty()) return false;
        }
        return true;
    }
    bool container(int depth) {
        bool object = take("{");
        std::string_view end = object || !take("[") ? "}" : "]";
        if (take_spaced(end)) return true;
        do {
            white();
            if (object && (!string() || !take_spaced(":"))) return false;
            if (!value(depth + 1)) return false;
        } while (take_spaced(","));
        return take(end);
    }

    std::string_view rest_;
};

// Whether the text is one JSON object and nothing else.
inline bool json_object_slow(std::string_view text) {
    JsonReaderSlow reader(text);
    return text.starts_with("{") && reader.value(1) && reader.empty();
}

struct FoldedBlock {
    StreamPiece::Kind kind; // text, thinking or tool_start
    std::string text;       // of a call, its arguments
    std::string name;
    bool ended = false;
    bool cut = false; // of a call
    bool operator==(const FoldedBlock&) const = default;
};

// Adds pieces to blocks. False: they break the order that StreamPiece promises.
inline bool fold_slow(std::span<const StreamPiece> pieces, std::vector<FoldedBlock>& blocks) {
    using Kind = StreamPiece::Kind;
    for (const StreamPiece& piece : pieces) {
        bool open = !blocks.empty() && !blocks.back().ended;
        if (piece.text.empty() && piece.kind != Kind::stop) return false;
        bool cut = piece.kind == Kind::stop && piece.id == "cut";
        if ((piece.kind == Kind::tool_start || cut) == piece.id.empty()) return false;
        if (piece.kind == Kind::stop || piece.kind == Kind::arguments) {
            if (!open) return false;
            if (piece.kind == Kind::stop) {
                blocks.back().ended = true;
                blocks.back().cut = cut;
                if (cut && blocks.back().kind != Kind::tool_start) return false;
                if (piece.text.empty() == (blocks.back().kind == Kind::thinking)) return false;
                continue;
            }
            if (blocks.back().kind != Kind::tool_start) return false;
        } else if (piece.kind == Kind::tool_start) {
            if (open) return false;
            blocks.push_back({piece.kind, "", std::string(piece.text)});
            continue;
        } else if (!open) {
            blocks.push_back({piece.kind, "", ""});
        } else if (blocks.back().kind != piece.kind) {
            return false;
        }
        blocks.back().text += piece.text;
    }
    return true;
}

} // namespace sublimate::test

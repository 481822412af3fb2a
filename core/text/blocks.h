// Takes an answer apart: text, thinking, and calls of tools with their arguments. What a family of
// models writes around a call is data (BlockFormat); src/sublimate/model/tool_formats.py has it.
//
// Rules, which the slow twin (split in tests/unit/block_reference.py) states over the whole text:
//   - White space around markers belongs to the markers; so does all of it between two calls.
//   - A marker that is not whole yet is held back, as is white space that one may follow. An answer
//     that is cut there does not show it; one that the model ended does.
//   - A model may repeat the opening of its thinking where the prompt or itself has just written
//   it.
//   - A call is a call if its JSON is valid, names a known tool and has an object of arguments.
//     Else what was read of it is text again, and reading goes on behind that.
//   - `eager` shows a call once its arguments begin; whoever sets it has constrained the model to
//     valid calls. If the answer is cut inside the arguments, or breaks off, they are closed to
//     valid JSON; if it is cut before them, nothing is shown, as that is the beginning of a call
//     and no text. Else a call is shown when it is whole, and a cut one is text again.
//   - Thinking, and a call without any opening, begin only where no text of the answer precedes.
//   - `lenient`: calls in other spellings that end the answer are calls too (call_reader.h). They
//     begin outside of a fence of code, after white space; Python's and fences at a line's start.
//     They are held until the answer ends, or until they cannot become calls: then the text that
//     was read is text, and reading goes on behind it.
//
// defines: BlockKind, BlockFormat, BlockStatus, check_format, BlockPart, BlockSplitter
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../limits.h"
#include "call_reader.h"
#include "json_scan.h"

namespace sublimate {

enum class BlockKind : uint8_t { none, text, thinking, tool_use };

struct BlockFormat {
    // Tools. Without names there are none, whatever the markers say.
    std::vector<std::string> tool_names;
    std::vector<std::string> openings;
    std::string closing;  // may be missing in the answer; empty: the JSON ends the call
    std::string name_end; // not empty: the name stands before it, the arguments behind it
    std::string id_opening;
    std::string name_key = "name";
    std::string arguments_key = "arguments";
    bool bare = false;
    bool eager = false;
    // Thinking. Without an opening there is none.
    std::string thinking_opening;
    std::string thinking_closing;
    bool omit_thinking = false; // its blocks have a signature and no text
    // Where the answer begins: in a block that the prompt has begun, or (none) anew.
    BlockKind begins_in = BlockKind::none;
    // Tokens that yield no text of their own and are markers.
    std::vector<std::pair<int32_t, std::string>> marker_tokens;
    // Calls in other spellings: opening and closing of each family; (tool, parameter) of those that
    // a schema says are strings. Not `several`: such an answer has one call, its first.
    bool lenient = false;
    bool several = true;
    std::vector<std::pair<std::string, std::string>> lenient_markers;
    std::vector<std::pair<std::string, std::string>> string_parameters;
};

enum class BlockStatus : int32_t { ok = 0, bad_marker, bad_name };

// Markers and names that the splitter can find: short enough, not empty where they matter, and
// without white space at their ends.
BlockStatus check_format(const BlockFormat& format);

// A piece of one block, in the order of the answer.
struct BlockPart {
    // call: a call begins; its text is the tool's name. end: the open block ends. cut: so does a
    // call whose arguments were not whole, so that the splitter has closed them.
    enum class Kind : uint8_t { text, thinking, call, arguments, end, cut };
    Kind kind;
    std::string_view text; // empty for end and cut alone
};

// Text of one answer in any pieces in, parts out. Cutting the pieces elsewhere cuts parts
// elsewhere, and changes nothing else.
class BlockSplitter {
public:
    // The format outlives the answer and was checked.
    void start(const BlockFormat* format);
    // `text`: valid UTF-8. The parts are valid until the next call.
    std::span<const BlockPart> feed(std::string_view text);
    // The answer ends here. If it was cut, the beginning of a marker at its end is no text.
    std::span<const BlockPart> finish(bool cut = false);
    // The open block is one of thinking.
    bool thinks() const { return state_ == State::thinking; }

private:
    // opened: behind an opening, before what it opens. list: between the calls of an array.
    // lenient: in what may be calls in another spelling.
    enum class State : uint8_t { text, thinking, opened, object, arguments, list, lenient };
    enum class Member : uint8_t { other, name, arguments };
    enum class Match : uint8_t { none, partial, whole };
    struct Marker {
        enum class Kind : uint8_t { opening, bare, thinking, lenient };
        size_t at = 0;
        size_t bytes = 0;
        Kind kind = Kind::opening;
    };
    struct Range {
        int64_t begin = 0;
        int64_t end = 0;
    };
    // Where on its line, and in which kind of line, the text stands.
    struct Line {
        bool is_blank = true;    // only white space so far
        bool after_space = true; // or at the beginning
        bool is_code = false;    // in a fence
        int32_t ticks = 0;       // that the line begins with
        void feed(char byte);
    };

    bool advance();
    bool in_text();
    bool in_thinking();
    bool skip_opening();
    bool in_opened();
    bool in_header();
    bool in_arguments();
    bool in_object();
    bool in_list();
    bool in_lenient();

    Match match(std::string_view marker, size_t at) const;
    bool find_marker(Marker& marker, size_t& end) const;
    void take_marker(Marker marker);
    void begin_call();
    bool member_step(char byte, JsonScanner::State before, int32_t depth_before);
    std::string_view value_text() const;
    bool key_known();
    bool member_begins(char byte);
    bool member_ends();
    bool name_known(std::string_view name);
    void end_arguments();
    void open_call();
    void show_arguments();
    void close_arguments();
    void show_call();
    bool end_call();
    void show_lenient();
    bool break_off();
    bool give_up(size_t at);

    void show_text(size_t bytes);
    void show_thinking(size_t bytes);
    void show(BlockPart::Kind kind, std::string_view text);
    void end_block(BlockPart::Kind how = BlockPart::Kind::end);
    void drop(size_t bytes);
    size_t skip_space(size_t at) const;
    std::span<const BlockPart> take_parts();

    const BlockFormat* format_ = nullptr;
    State state_ = State::text;
    BlockKind open_ = BlockKind::none; // the block that parts were shown of and that goes on
    bool fresh_ = true;                // no text since the beginning, or since the last call
    bool after_marker_ = false;        // white space before text is not part of it
    bool closing_due_ = false;
    bool in_list_ = false;
    bool bare_ = false; // the call has no opening, so it has no closing
    Line line_;         // before pending_
    std::unique_ptr<CallReader> lenient_;
    std::string pending_;
    size_t scan_ = 0; // of pending_, what was looked at; in text and thinking white space only
    // Of the call that is read. Places are in pending_, and move when its beginning is shown.
    JsonScanner json_;
    int64_t json_begin_ = 0;
    int64_t value_begin_ = 0; // of the string of the outermost object that is read
    Member member_ = Member::other;
    int32_t name_ = -1; // of tool_names
    Range arguments_;
    bool arguments_whole_ = false;
    bool shown_ = false;
    bool may_repeat_ = false; // thinking has said nothing yet: its opening may come once more

    struct Piece {
        BlockPart::Kind kind;
        size_t bytes;
    };
    std::string shown_bytes_; // of this feed
    std::vector<Piece> pieces_;
    std::vector<BlockPart> parts_;
};

} // namespace sublimate

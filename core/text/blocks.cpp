// BlockSplitter: one state per place between markers; what is undecided stays in pending_.
#include "blocks.h"

#include <algorithm>

#include "../check.h"

namespace sublimate {

namespace {

bool is_space(char byte) {
    return byte == ' ' || byte == '\n' || byte == '\t' || byte == '\r';
}

bool is_letter_or_digit(char byte) {
    auto lower = static_cast<char>(byte | 0x20);
    return (byte >= '0' && byte <= '9') || (lower >= 'a' && lower <= 'z');
}

bool is_of_name(char byte) {
    return is_letter_or_digit(byte) || byte == '_' || byte == '-' || byte == '.';
}

bool is_marker(std::string_view text) {
    return text.size() <= size_t{limits::MARKER_BYTES_MAX} &&
           (text.empty() || (!is_space(text.front()) && !is_space(text.back())));
}

bool is_inside_character(char byte) {
    constexpr uint8_t MASK = 0xC0, CONTINUATION = 0x80;
    return (static_cast<uint8_t>(byte) & MASK) == CONTINUATION;
}

// Of the first `end` bytes, without white space at their end.
size_t trimmed(std::string_view text, size_t end) {
    while (end > 0 && is_space(text[end - 1])) end--;
    return end;
}

} // namespace

BlockStatus check_format(const BlockFormat& format) {
    bool good = format.openings.size() <= size_t{limits::MARKERS_MAX};
    for (const std::string& opening : format.openings) good &= is_marker(opening) && opening != "";
    for (const std::string* text : {&format.closing, &format.name_end, &format.id_opening,
                                    &format.thinking_opening, &format.thinking_closing})
        good &= is_marker(*text);
    good &= format.thinking_opening.empty() == format.thinking_closing.empty();
    good &= format.begins_in != BlockKind::thinking || !format.thinking_opening.empty();
    good &= format.begins_in != BlockKind::tool_use;
    // A name ends where a marker begins; without JSON around it, only a marker begins a call.
    for (const std::string* text : {&format.name_end, &format.id_opening})
        good &= text->empty() || !is_of_name(text->front());
    good &= format.name_end.empty() || !format.bare;
    good &= format.lenient_markers.size() <= size_t{limits::LENIENT_MARKERS_MAX};
    for (const auto& [opening, closing] : format.lenient_markers)
        good &= is_marker(opening) && !opening.empty() && is_marker(closing);
    if (!good) return BlockStatus::bad_marker;
    auto is_name = [](const std::string& name) {
        return !name.empty() && name.size() <= size_t{limits::TOOL_NAME_BYTES_MAX} &&
               std::all_of(name.begin(), name.end(), is_of_name);
    };
    good = std::all_of(format.tool_names.begin(), format.tool_names.end(), is_name) &&
           is_name(format.name_key) && is_name(format.arguments_key) &&
           format.name_key != format.arguments_key;
    return good ? BlockStatus::ok : BlockStatus::bad_name;
}

void BlockSplitter::Line::feed(char byte) {
    constexpr int32_t FENCE_TICKS = 3;
    if (byte == '\n') {
        is_blank = after_space = true;
        ticks = 0;
        return;
    }
    after_space = is_space(byte);
    bool begins = byte == '`' && (is_blank || ticks > 0);
    ticks = begins ? ticks + 1 : 0;
    if (ticks == FENCE_TICKS) is_code = !is_code;
    is_blank &= after_space;
}

void BlockSplitter::start(const BlockFormat* format) {
    CHECK(format != nullptr && check_format(*format) == BlockStatus::ok);
    format_ = format;
    state_ = format->begins_in == BlockKind::thinking ? State::thinking : State::text;
    open_ = BlockKind::none;
    fresh_ = format->begins_in != BlockKind::text;
    after_marker_ = closing_due_ = in_list_ = bare_ = false;
    may_repeat_ = state_ == State::thinking;
    line_ = {};
    // What precedes a continued text is not known.
    line_.is_blank = line_.after_space = fresh_;
    lenient_.reset();
    pending_.clear();
    scan_ = 0;
}

std::span<const BlockPart> BlockSplitter::feed(std::string_view text) {
    CHECK_BECAUSE(format_ != nullptr, "a splitter starts with a format");
    shown_bytes_.clear();
    pieces_.clear();
    pending_.append(text);
    while (advance()) {
    }
    CHECK_BECAUSE(scan_ <= pending_.size(), "looked behind the end");
    return take_parts();
}

// A step of the way; false: it needs more text.
bool BlockSplitter::advance() {
    switch (state_) {
    case State::text:
        return in_text();
    case State::thinking:
        return in_thinking();
    case State::opened:
        return format_->name_end.empty() ? in_opened() : in_header();
    case State::object:
        return in_object();
    case State::arguments:
        return in_arguments();
    case State::list:
        return in_list();
    case State::lenient:
        return in_lenient();
    }
    return false;
}

std::span<const BlockPart> BlockSplitter::finish(bool cut) {
    CHECK_BECAUSE(format_ != nullptr, "an answer ends once");
    shown_bytes_.clear();
    pieces_.clear();
    bool whole = name_ >= 0 && arguments_whole_;
    switch (state_) {
    case State::text: {
        // A closing marker that was cut is nothing to show.
        if (closing_due_) break;
        Marker marker;
        size_t end = pending_.size();
        if (cut) find_marker(marker, end);
        show_text(end < pending_.size() ? trimmed(pending_, end) : end);
        break;
    }
    case State::thinking:
        // What is held back is white space, and behind scan_ the beginning of a marker.
        show_thinking(trimmed(pending_, cut ? scan_ : pending_.size()));
        break;
    case State::opened:
        if (!format_->eager) show_text(pending_.size());
        break;
    case State::object:
    case State::arguments:
        if (!whole && !shown_ && !format_->eager) show_text(pending_.size());
        if (!whole && shown_) close_arguments();
        if (whole && !shown_) show_call();
        break;
    case State::list:
        break;
    case State::lenient:
        if (lenient_->calls().empty())
            show_text(pending_.size());
        else
            show_lenient();
        break;
    }
    end_block();
    lenient_.reset();
    format_ = nullptr;
    return take_parts();
}

// ---- text and thinking --------------------------------------------------------------------------
BlockSplitter::Match BlockSplitter::match(std::string_view marker, size_t at) const {
    std::string_view text = std::string_view(pending_).substr(at);
    if (text.starts_with(marker)) return Match::whole;
    return marker.starts_with(text) ? Match::partial : Match::none;
}

// The first marker from scan_ on. False: none is whole; `end`: where one may have begun, else the
// end. Of several at one place the shortest, which is the first to be whole.
bool BlockSplitter::find_marker(Marker& marker, size_t& end) const {
    bool tools = !format_->tool_names.empty();
    size_t first = skip_space(scan_);
    Line line = line_;
    for (size_t at = 0; at < first; at++) line.feed(pending_[at]);
    for (size_t at = first; at < pending_.size(); line.feed(pending_[at++])) {
        bool begins = at == first && fresh_;
        if (tools && begins && format_->bare && pending_[at] == '{') {
            marker = {at, 0, Marker::Kind::bare};
            return true;
        }
        bool partial = false;
        marker.bytes = 0;
        auto consider = [&](const std::string& text, Marker::Kind kind) {
            Match found = match(text, at);
            partial |= found == Match::partial;
            if (found == Match::whole && (marker.bytes == 0 || text.size() < marker.bytes))
                marker = {at, text.size(), kind};
        };
        if (begins && !format_->thinking_opening.empty())
            consider(format_->thinking_opening, Marker::Kind::thinking);
        if (tools)
            for (const std::string& text : format_->openings)
                if (text[0] == pending_[at]) consider(text, Marker::Kind::opening);
        if (marker.bytes > 0) return true;
        end = at;
        if (partial) return false;
        if (tools && format_->lenient && !line.is_code && !is_space(pending_[at]) &&
            CallReader::may_begin(*format_, pending_, at, line.is_blank, line.after_space)) {
            marker = {at, 0, Marker::Kind::lenient};
            return true;
        }
    }
    end = pending_.size();
    return false;
}

bool BlockSplitter::in_text() {
    if (closing_due_) {
        scan_ = skip_space(scan_);
        if (scan_ == pending_.size()) return false;
        Match found = match(format_->closing, scan_);
        if (found == Match::partial) return false;
        closing_due_ = false;
        if (found == Match::whole) drop(scan_ + format_->closing.size());
        if (found == Match::whole) scan_ = 0;
    }
    Marker marker;
    size_t end = 0;
    if (find_marker(marker, end)) {
        take_marker(marker);
        return true;
    }
    size_t text_end = trimmed(pending_, end);
    show_text(text_end);
    scan_ = end - text_end;
    return false;
}

void BlockSplitter::take_marker(Marker marker) {
    CHECK(marker.at >= scan_ && marker.at + marker.bytes <= pending_.size());
    bool after_space = marker.at > 0 ? is_space(pending_[marker.at - 1]) : line_.after_space;
    size_t text_end = trimmed(pending_, marker.at);
    show_text(text_end);
    // What was held back before the marker stays: if it opens no call, all of it is text.
    scan_ = marker.at - text_end + marker.bytes;
    state_ = State::opened;
    bare_ = marker.kind == Marker::Kind::bare;
    begin_call();
    if (marker.kind == Marker::Kind::lenient) {
        state_ = State::lenient;
        lenient_ = std::make_unique<CallReader>(*format_, after_space);
    }
    if (marker.kind != Marker::Kind::thinking) return;
    CHECK_BECAUSE(open_ == BlockKind::none, "thinking precedes text");
    state_ = State::thinking;
    may_repeat_ = true;
    drop(scan_);
    scan_ = 0;
}

// False: whether the opening comes once more is not known yet.
bool BlockSplitter::skip_opening() {
    size_t at = skip_space(0);
    Match found = at < pending_.size() ? match(format_->thinking_opening, at) : Match::partial;
    scan_ = at;
    if (found == Match::partial) return false;
    may_repeat_ = false;
    scan_ = 0;
    if (found == Match::whole) drop(at + format_->thinking_opening.size());
    return true;
}

bool BlockSplitter::in_thinking() {
    if (may_repeat_ && !skip_opening()) return false;
    const std::string& closing = format_->thinking_closing;
    for (size_t at = scan_; at < pending_.size(); at++) {
        Match found = match(closing, at);
        if (found == Match::none) continue;
        size_t text_end = trimmed(pending_, at);
        show_thinking(text_end);
        scan_ = at - text_end;
        if (found == Match::partial) return false;
        drop(scan_ + closing.size());
        scan_ = 0;
        end_block();
        state_ = State::text;
        after_marker_ = true;
        line_ = {};
        return true;
    }
    size_t text_end = trimmed(pending_, pending_.size());
    show_thinking(text_end);
    scan_ = pending_.size();
    return false;
}

// ---- calls
// ---------------------------------------------------------------------------------------
void BlockSplitter::begin_call() {
    json_.reset();
    name_ = -1;
    arguments_ = {};
    arguments_whole_ = shown_ = false;
    member_ = Member::other;
}

bool BlockSplitter::in_opened() {
    scan_ = skip_space(scan_);
    if (scan_ == pending_.size()) return false;
    if (pending_[scan_] == '[' && !in_list_) {
        in_list_ = true;
        scan_++;
        return true;
    }
    if (pending_[scan_] != '{') return give_up(scan_);
    json_begin_ = static_cast<int64_t>(scan_);
    state_ = State::object;
    return true;
}

// A name outside of JSON. Short, so it is read from its beginning each time.
bool BlockSplitter::in_header() {
    CHECK_BECAUSE(!bare_ && !in_list_, "those are of JSON");
    constexpr auto NAME_BYTES_MAX = size_t{limits::TOOL_NAME_BYTES_MAX};
    auto run_end = [this](size_t begin, auto is_part) {
        size_t end = begin;
        while (end < pending_.size() && end - begin <= NAME_BYTES_MAX && is_part(pending_[end]))
            end++;
        return end;
    };
    size_t begin = skip_space(scan_);
    size_t at = run_end(begin, is_of_name);
    if (at == pending_.size() && at - begin <= NAME_BYTES_MAX) return false;
    if (!name_known(std::string_view(pending_).substr(begin, at - begin))) return give_up(at);
    Match id = format_->id_opening.empty() ? Match::none : match(format_->id_opening, at);
    if (id == Match::whole) {
        size_t id_begin = at + format_->id_opening.size();
        at = run_end(id_begin, is_letter_or_digit);
        if (at == pending_.size() && at - id_begin <= NAME_BYTES_MAX) return false;
    }
    Match end = match(format_->name_end, at);
    if (end == Match::partial || (end == Match::none && id == Match::partial)) return false;
    if (end == Match::none) return give_up(at);
    at = skip_space(at + format_->name_end.size());
    if (at == pending_.size()) return false;
    if (pending_[at] != '{') return give_up(at);
    scan_ = at;
    json_begin_ = arguments_.begin = static_cast<int64_t>(at);
    state_ = State::arguments;
    if (format_->eager) open_call();
    return true;
}

bool BlockSplitter::in_arguments() {
    for (; scan_ < pending_.size(); scan_++) {
        if (!json_.feed(pending_[scan_])) return break_off();
        if (json_.state() != JsonScanner::State::done) continue;
        scan_++;
        end_arguments();
        return end_call();
    }
    if (shown_) show_arguments();
    return false;
}

// {"name": ..., "arguments": {...}}, with the keys that the format has, in any order.
bool BlockSplitter::in_object() {
    while (scan_ < pending_.size()) {
        JsonScanner::State before = json_.state();
        int32_t depth_before = json_.depth();
        char byte = pending_[scan_];
        if (!json_.feed(byte)) return break_off();
        scan_++;
        if (!member_step(byte, before, depth_before)) {
            scan_--;
            return break_off();
        }
        if (json_.state() == JsonScanner::State::done) return end_call();
    }
    if (shown_ && !arguments_whole_) show_arguments();
    return false;
}

// What the byte before scan_ means to the outermost object. False: it is no call.
bool BlockSplitter::member_step(char byte, JsonScanner::State before, int32_t depth_before) {
    using Json = JsonScanner::State;
    Json after = json_.state();
    bool outermost = depth_before == 1;
    if (after == Json::done) return name_ >= 0 && arguments_whole_;
    if (depth_before == 2 && json_.depth() == 1) return member_ends();
    if (!outermost || before == after) return true;
    if (after == Json::in_key) value_begin_ = static_cast<int64_t>(scan_);
    if (before == Json::in_key) return key_known();
    if (before == Json::value) return member_begins(byte);
    if (before == Json::in_value) return member_ends();
    return true;
}

// The string that ends with the byte before scan_, which is its quote.
std::string_view BlockSplitter::value_text() const {
    CHECK(value_begin_ >= 0 && value_begin_ < static_cast<int64_t>(scan_));
    auto begin = static_cast<size_t>(value_begin_);
    return std::string_view(pending_).substr(begin, scan_ - 1 - begin);
}

// Before the name is known only two other keys are met in calls, so that other JSON is soon shown.
bool BlockSplitter::key_known() {
    std::string_view key = value_text();
    member_ = Member::other;
    if (key == format_->name_key) member_ = Member::name;
    if (key == format_->arguments_key) member_ = Member::arguments;
    return member_ != Member::other || name_ >= 0 || key == "type" || key == "id";
}

bool BlockSplitter::member_begins(char byte) {
    if (member_ == Member::name) {
        value_begin_ = static_cast<int64_t>(scan_);
        return byte == '"' && name_ < 0;
    }
    if (member_ != Member::arguments) return true;
    if (byte != '{' || shown_ || arguments_whole_) return false;
    arguments_.begin = static_cast<int64_t>(scan_) - 1;
    if (format_->eager && name_ >= 0) open_call();
    return true;
}

bool BlockSplitter::member_ends() {
    Member member = std::exchange(member_, Member::other);
    if (member == Member::name) return name_known(value_text());
    if (member == Member::arguments) end_arguments();
    return true;
}

bool BlockSplitter::name_known(std::string_view name) {
    const std::vector<std::string>& names = format_->tool_names;
    auto found = std::find(names.begin(), names.end(), name);
    name_ = found == names.end() ? -1 : static_cast<int32_t>(found - names.begin());
    return name_ >= 0;
}

// The arguments end before scan_.
void BlockSplitter::end_arguments() {
    arguments_.end = static_cast<int64_t>(scan_);
    arguments_whole_ = true;
    if (!shown_) return;
    show_arguments();
    end_block();
}

// Shows that a call begins.
void BlockSplitter::open_call() {
    CHECK_BECAUSE(name_ >= 0 && !shown_, "a call is shown once, by its name");
    end_block();
    show(BlockPart::Kind::call, format_->tool_names[static_cast<size_t>(name_)]);
    open_ = BlockKind::tool_use;
    shown_ = true;
    line_ = {};
    drop(static_cast<size_t>(arguments_.begin));
}

// Of the arguments, all that can be closed.
void BlockSplitter::show_arguments() {
    int64_t end = arguments_whole_ ? arguments_.end : json_begin_ + json_.safe_bytes();
    CHECK_BECAUSE(arguments_.begin == 0 && end <= static_cast<int64_t>(pending_.size()),
                  "shown arguments begin what is pending");
    if (end <= 0) return;
    auto bytes = static_cast<size_t>(end);
    show(BlockPart::Kind::arguments, std::string_view(pending_).substr(0, bytes));
    drop(bytes);
    arguments_ = {};
}

// The arguments go on no more: closes what was shown of them.
void BlockSplitter::close_arguments() {
    CHECK(shown_ && !arguments_whole_);
    show_arguments();
    std::string closers;
    json_.close(closers);
    // The object around the arguments was not shown.
    if (state_ == State::object) closers.pop_back();
    if (!closers.empty()) show(BlockPart::Kind::arguments, closers);
    end_block(BlockPart::Kind::cut);
}

// A whole call that was not shown before.
void BlockSplitter::show_call() {
    CHECK(arguments_whole_ && arguments_.begin < arguments_.end);
    open_call();
    show_arguments();
    end_block();
}

// Everything up to scan_ was a call.
bool BlockSplitter::end_call() {
    CHECK_BECAUSE(name_ >= 0 && arguments_whole_, "half a call is none");
    if (!shown_) show_call();
    drop(scan_);
    scan_ = 0;
    fresh_ = after_marker_ = true;
    state_ = in_list_ ? State::list : State::text;
    closing_due_ = !in_list_ && !bare_ && !format_->closing.empty();
    return true;
}

// What comes is not valid, or of no call.
bool BlockSplitter::break_off() {
    if (shown_ && !arguments_whole_) close_arguments();
    if (shown_) fresh_ = after_marker_ = true;
    return give_up(scan_);
}

bool BlockSplitter::in_list() {
    CHECK_BECAUSE(in_list_ && open_ == BlockKind::none, "calls of a list end one by one");
    scan_ = skip_space(scan_);
    if (scan_ == pending_.size()) return false;
    bool goes_on = pending_[scan_] == ',';
    if (goes_on || pending_[scan_] == ']') {
        drop(scan_ + 1);
        scan_ = 0;
    }
    state_ = goes_on ? State::opened : State::text;
    in_list_ = goes_on;
    closing_due_ = !goes_on && !format_->closing.empty();
    if (goes_on) begin_call();
    return true;
}

// What may be calls in another spelling begins at scan_.
bool BlockSplitter::in_lenient() {
    std::string_view text = std::string_view(pending_).substr(scan_);
    bool is_long = text.size() > size_t{limits::LENIENT_CALLS_BYTES_MAX};
    if (is_long) text = text.substr(0, size_t{limits::LENIENT_CALLS_BYTES_MAX});
    if (lenient_->read(text)) {
        if (!is_long) return false;
        size_t end = scan_ + text.size();
        while (is_inside_character(pending_[end])) end--;
        return give_up(end);
    }
    return give_up(scan_ + std::max(lenient_->at(), size_t{1}));
}

// The answer ends with calls in another spelling.
void BlockSplitter::show_lenient() {
    for (const CallReader::Call& call : lenient_->calls()) {
        end_block();
        show(BlockPart::Kind::call, format_->tool_names[static_cast<size_t>(call.name)]);
        show(BlockPart::Kind::arguments, call.arguments);
        open_ = BlockKind::tool_use;
        if (!format_->several) break;
    }
    drop(pending_.size());
}

// No call: its first `at` bytes are text, and reading goes on behind them.
bool BlockSplitter::give_up(size_t at) {
    CHECK(at <= pending_.size() && open_ != BlockKind::tool_use);
    state_ = State::text;
    in_list_ = closing_due_ = false;
    lenient_.reset();
    size_t text_end = trimmed(pending_, at);
    show_text(text_end);
    scan_ = at - text_end;
    return true;
}

// ---- what is shown
// ------------------------------------------------------------------------------- The first `bytes`
// of pending_ are text; white space alone opens no block.
void BlockSplitter::show_text(size_t bytes) {
    std::string_view text = std::string_view(pending_).substr(0, bytes);
    if (open_ != BlockKind::text) {
        size_t first = std::min(skip_space(0), bytes);
        if (after_marker_ || first == bytes) text.remove_prefix(first);
    }
    if (!text.empty()) {
        CHECK_BECAUSE(open_ == BlockKind::none || open_ == BlockKind::text, "blocks end first");
        open_ = BlockKind::text;
        fresh_ = false;
        show(BlockPart::Kind::text, text);
    }
    for (size_t at = 0; at < bytes; at++) line_.feed(pending_[at]);
    drop(bytes);
}

void BlockSplitter::show_thinking(size_t bytes) {
    size_t first = open_ == BlockKind::thinking ? 0 : std::min(skip_space(0), bytes);
    std::string_view text = std::string_view(pending_).substr(first, bytes - first);
    if (!text.empty()) {
        CHECK_BECAUSE(open_ != BlockKind::text, "thinking precedes text");
        open_ = BlockKind::thinking;
        show(BlockPart::Kind::thinking, text);
    }
    drop(bytes);
}

void BlockSplitter::show(BlockPart::Kind kind, std::string_view text) {
    bool ends = kind == BlockPart::Kind::end || kind == BlockPart::Kind::cut;
    CHECK_BECAUSE(text.empty() == ends, "no empty part");
    shown_bytes_.append(text);
    bool joins = kind == BlockPart::Kind::text || kind == BlockPart::Kind::thinking ||
                 kind == BlockPart::Kind::arguments;
    if (joins && !pieces_.empty() && pieces_.back().kind == kind)
        pieces_.back().bytes += text.size();
    else
        pieces_.push_back({kind, text.size()});
}

void BlockSplitter::end_block(BlockPart::Kind how) {
    if (open_ == BlockKind::none) return;
    show(how, {});
    open_ = BlockKind::none;
}

// Forgets the first `bytes` of pending_; all places move.
void BlockSplitter::drop(size_t bytes) {
    CHECK(bytes <= pending_.size());
    pending_.erase(0, bytes);
    auto moved = static_cast<int64_t>(bytes);
    scan_ = scan_ > bytes ? scan_ - bytes : 0;
    json_begin_ -= moved;
    value_begin_ -= moved;
    arguments_.begin -= moved;
    arguments_.end -= moved;
}

size_t BlockSplitter::skip_space(size_t at) const {
    while (at < pending_.size() && is_space(pending_[at])) at++;
    return at;
}

std::span<const BlockPart> BlockSplitter::take_parts() {
    parts_.clear();
    size_t at = 0;
    for (const Piece& piece : pieces_) {
        parts_.push_back({piece.kind, std::string_view(shown_bytes_).substr(at, piece.bytes)});
        at += piece.bytes;
    }
    CHECK_BECAUSE(at == shown_bytes_.size(), "every byte belongs to a part");
    return parts_;
}

} // namespace sublimate

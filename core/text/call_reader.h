// Reads calls of tools that are not written as the model's family writes them: bare JSON, a fence,
// Python's syntax, or other families' markers. Such text is calls only if it names offered tools
// and nothing but white space follows it, so its reader holds it until the answer ends; text that
// cannot become calls any more is known at once.
//
//   calls   = item ([","|";"] item)*
//   item    = object | list | python | marked | tagged
//   object  = JSON of a call: its name, its arguments (also `parameters`), at most `type` and `id`;
//             or its `function`, which has them
//   list    = "[" (object | python) ("," (object | python))* "]"
//   python  = NAME "(" [KEY "=" literal ("," KEY "=" literal)*] ")"
//   marked  = opening (item | NAME separator arguments)+ closing, of BlockFormat::lenient_markers
//   tagged  = "<function=NAME>" (arguments | parameter*) "</function>"
//   parameter = "<parameter=KEY>" text "</parameter>"
//
// A call may lack its closing marker at the end of the answer. Literals are JSON's and Python's.
// The reader is a recursive descent that waits for text wherever it needs some: each byte is read
// once.
// The slow reference is Lenient in tests/unit/block_reference.py.
//
// defines: CallReader
#pragma once

#include <coroutine>
#include <cstdint>
#include <exception>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace sublimate {

struct BlockFormat;

class CallReader {
public:
    struct Call {
        int32_t name = -1;     // of tool_names
        std::string arguments; // a JSON object
    };

    // Whether calls may begin with text[at]. `is_blank`: only white space precedes on its line.
    // `after_space`: white space precedes it, or nothing.
    static bool may_begin(const BlockFormat& format, std::string_view text, size_t at,
                          bool is_blank, bool after_space);

    // The format outlives the reader. Not `after_space`: a marker has to begin the calls.
    CallReader(const BlockFormat& format, bool after_space);
    CallReader(const CallReader&) = delete;
    CallReader& operator=(const CallReader&) = delete;

    // `text`: from the first byte of the calls on; what was read before, and more. False: it cannot
    // become calls, because of the byte at `at`.
    bool read(std::string_view text);
    size_t at() const { return at_; }
    // The calls, if the answer ends here; else none.
    std::span<const Call> calls() const;

private:
    // A part of the descent; its result says whether the text went on as it has to.
    class Task {
    public:
        struct promise_type;
        using Handle = std::coroutine_handle<promise_type>;
        // Returns to `read`, which goes on with the innermost part.
        struct End {
            bool await_ready() noexcept { return false; }
            void await_suspend(Handle handle) noexcept { handle.promise().open->pop_back(); }
            void await_resume() noexcept {}
        };
        struct promise_type {
            std::vector<Handle>* open = nullptr; // of the reader
            bool result = false;
            Task get_return_object() { return Task(Handle::from_promise(*this)); }
            std::suspend_always initial_suspend() noexcept { return {}; }
            End final_suspend() noexcept { return {}; }
            void return_value(bool value) { result = value; }
            [[noreturn]] void unhandled_exception() { std::terminate(); }
        };
        explicit Task(Handle handle) : handle_(handle) {}
        Task(Task&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
        Task(const Task&) = delete;
        Task& operator=(const Task&) = delete;
        ~Task() {
            if (handle_) handle_.destroy();
        }
        void begin(std::vector<Handle>* open) {
            handle_.promise().open = open;
            open->push_back(handle_);
        }
        bool await_ready() { return false; }
        void await_suspend(Handle parent) { begin(parent.promise().open); }
        bool await_resume() { return handle_.promise().result; }

    private:
        Handle handle_;
    };
    // Waits until there is more text than `bytes`.
    struct More {
        CallReader& reader;
        size_t bytes;
        bool await_ready() { return reader.text_.size() > bytes; }
        void await_suspend(std::coroutine_handle<>) { reader.waits_ = true; }
        char await_resume() { return reader.text_[bytes]; }
    };
    using Texts = std::span<const std::string_view>;

    More peek() { return {*this, at_}; }
    Task run();
    Task space();
    Task separator();
    Task choose(Texts texts);
    Task item(bool is_marked);
    Task marked(std::string_view closing);
    Task tagged(size_t style);
    Task object();
    Task members(Call& call);
    Task list();
    Task named(bool is_marked);
    Task call_id();
    Task keywords(std::string& out);
    Task name(Call& call);
    Task word(std::string& out);
    Task literal(std::string& out, bool has_bare_keys);
    Task container(std::string& out, bool has_bare_keys);
    Task string(std::string& out);
    Task escape(std::string& out);
    Task code_unit(std::string& out);
    Task enclosed(std::string& out, std::string_view closing);
    Task number(std::string& out);
    std::string typed(const Call& call, std::string_view key, std::string_view text) const;

    const BlockFormat& format_;
    const bool after_space_;
    std::vector<std::string_view> openings_; // of marked, then of tagged items
    std::string_view text_;
    size_t at_ = 0;
    size_t chosen_ = 0;     // by choose
    int32_t depth_ = 0;     // of what is open
    uint16_t unit_ = 0;     // of the last \u escape
    bool is_whole_ = false; // what was read is calls, if the answer ends here
    bool waits_ = false;
    std::vector<Call> calls_;
    std::vector<Task::Handle> open_; // the innermost last
    Task root_;
};

} // namespace sublimate

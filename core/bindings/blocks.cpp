// Python's view of a BlockFormat, and of the frames that the edge says itself. See _core.pyi for
// the contract.
//
// defines: bind_blocks
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <utility>
#include <vector>

#include "../limits.h"
#include "../text/blocks.h"
#include "../text/frames.h"
#include "../text/text_stream.h"
#include "bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace sublimate {

namespace {

BlockKind kind_named(std::string_view name) {
    if (name.empty()) return BlockKind::none;
    if (name == "text") return BlockKind::text;
    if (name == "thinking") return BlockKind::thinking;
    throw nb::value_error("begins_in is one of text, thinking, or empty");
}

void make_format(BlockFormat* place, std::vector<std::string> tool_names,
                 std::vector<std::string> openings, std::string closing, std::string name_end,
                 std::string id_opening, std::string name_key, std::string arguments_key, bool bare,
                 bool eager, std::string thinking_opening, std::string thinking_closing,
                 bool omit_thinking, std::string_view begins_in,
                 std::vector<std::pair<int32_t, std::string>> marker_tokens, bool lenient,
                 bool several, std::vector<std::pair<std::string, std::string>> lenient_markers,
                 std::vector<std::pair<std::string, std::string>> string_parameters) {
    BlockFormat format{std::move(tool_names),
                       std::move(openings),
                       std::move(closing),
                       std::move(name_end),
                       std::move(id_opening),
                       std::move(name_key),
                       std::move(arguments_key),
                       bare,
                       eager,
                       std::move(thinking_opening),
                       std::move(thinking_closing),
                       omit_thinking,
                       kind_named(begins_in),
                       std::move(marker_tokens),
                       lenient,
                       several,
                       std::move(lenient_markers),
                       std::move(string_parameters)};
    if (check_format(format) == BlockStatus::bad_marker)
        throw nb::value_error("a marker is empty, too long, or of a kind that cannot be found");
    if (check_format(format) == BlockStatus::bad_name)
        throw nb::value_error("names and keys are letters, digits, '_', '-' and '.'");
    new (place) BlockFormat(std::move(format));
}

nb::bytes ping_frame() {
    std::string frame;
    FrameWriter().ping(frame);
    return nb::bytes(frame.data(), frame.size());
}

nb::bytes error_frame(std::string_view type, std::string_view message, std::string_view request_id,
                      std::string_view error_code) {
    constexpr size_t TEXT_BYTES_MAX = size_t{limits::FRAME_BYTES_MAX} / 2;
    if (type.size() + message.size() + request_id.size() + error_code.size() > TEXT_BYTES_MAX)
        throw nb::value_error("the texts of an error are too long for a frame");
    std::string frame;
    FrameWriter().error(type, message, request_id, error_code, frame);
    return nb::bytes(frame.data(), frame.size());
}

} // namespace

void bind_blocks(nb::module_& m) {
    using Strings = std::vector<std::string>;
    using Pairs = std::vector<std::pair<std::string, std::string>>;
    nb::class_<BlockFormat>(m, "BlockFormat")
        .def("__init__", &make_format, nb::kw_only(), "tool_names"_a = Strings(),
             "openings"_a = Strings(), "closing"_a = "", "name_end"_a = "", "id_opening"_a = "",
             "name_key"_a = "name", "arguments_key"_a = "arguments", "bare"_a = false,
             "eager"_a = false, "thinking_opening"_a = "", "thinking_closing"_a = "",
             "omit_thinking"_a = false, "begins_in"_a = "",
             "marker_tokens"_a = std::vector<std::pair<int32_t, std::string>>(),
             "lenient"_a = false, "several"_a = true, "lenient_markers"_a = Pairs(),
             "string_parameters"_a = Pairs());
    m.def("tool_id", &tool_id, "message_id"_a, "call"_a);
    m.def("ping_frame", &ping_frame);
    m.def("error_frame", &error_frame, "type"_a, "message"_a, "request_id"_a, "error_code"_a = "");
}

} // namespace sublimate

// What is checked of a client's JSON, for Python: see _core.pyi for the contract. Long bodies are
// read without the interpreter's lock, which the event loop needs meanwhile.
//
// defines: bind_json_bounds
#include "../text/json_bounds.h"

#include <nanobind/nanobind.h>

#include <cstring>
#include <string_view>

#include "../text/utf8.h"
#include "bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace sublimate {

namespace {

// For shorter text, releasing the lock costs more than the pass.
constexpr size_t RELEASE_BYTES_MIN = 16 << 10;
constexpr std::string_view REPLACEMENT = "\\ufffd";

std::string_view view_of(const nb::bytes& bytes) {
    return {bytes.c_str(), bytes.size()};
}

template <class Work>
auto unlocked(std::string_view text, Work&& work) {
    if (text.size() < RELEASE_BYTES_MIN) return work(text);
    nb::gil_scoped_release released;
    return work(text);
}

int64_t ill_formed_utf8(const nb::bytes& bytes) {
    return unlocked(view_of(bytes), ill_formed_at);
}

JsonCounts counts_of(const nb::bytes& json) {
    return unlocked(view_of(json), count_json);
}

void replace_surrogates(std::string_view text, char* copy, int64_t first) {
    std::memcpy(copy, text.data(), text.size());
    for (int64_t at = first; at >= 0;
         at = lone_surrogate(text, at + static_cast<int64_t>(REPLACEMENT.size())))
        std::memcpy(copy + at, REPLACEMENT.data(), REPLACEMENT.size());
}

nb::bytes whole_characters(const nb::bytes& json) {
    std::string_view whole = view_of(json);
    int64_t first = unlocked(whole, [](std::string_view text) { return lone_surrogate(text, 0); });
    if (first < 0) return json;
    PyObject* copy = PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(whole.size()));
    if (copy == nullptr) throw nb::python_error();
    char* bytes = PyBytes_AsString(copy); // nobody else has it yet
    unlocked(whole, [&](std::string_view text) { replace_surrogates(text, bytes, first); });
    return nb::steal<nb::bytes>(copy);
}

} // namespace

void bind_json_bounds(nb::module_& m) {
    nb::class_<JsonCounts>(m, "JsonCounts")
        .def_ro("quotes", &JsonCounts::quotes)
        .def_ro("containers", &JsonCounts::containers)
        .def_ro("keys", &JsonCounts::keys)
        .def_ro("commas", &JsonCounts::commas)
        .def_ro("depth", &JsonCounts::depth)
        .def_ro("object_keys", &JsonCounts::object_keys);
    m.def("ill_formed_utf8", &ill_formed_utf8, "data"_a);
    m.def("json_counts", &counts_of, "data"_a);
    m.def("whole_characters", &whole_characters, "data"_a);
}

} // namespace sublimate

// BytePairs for Python: see _core.pyi for the contract.
//
// defines: fill_pairs, encode_words, bind_byte_pairs
#include "../text/byte_pairs.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <string_view>
#include <vector>

#include "bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace sublimate {

namespace {

using Views = std::vector<std::string_view>; // of Python's own texts, which the caller holds

const char* problem_of(BytePairsStatus status) {
    switch (status) {
    case BytePairsStatus::ok:
        return nullptr;
    case BytePairsStatus::too_many:
        return "there are too many tokens or merges";
    case BytePairsStatus::not_two_texts:
        return "a merge is not two texts";
    case BytePairsStatus::unknown_token:
        return "a merge names unknown tokens";
    }
    return "unknown status";
}

void fill_pairs(BytePairs* place, const Views& tokens, const Views& merges,
                const std::vector<std::string>& characters, bool whole) {
    if (characters.size() != BytePairs::BYTES) throw nb::value_error("each byte has a character");
    BytePairs pairs;
    std::span<const std::string, BytePairs::BYTES> each(characters.data(), BytePairs::BYTES);
    BytePairsStatus status = pairs.fill(tokens, merges, each, whole);
    if (status != BytePairsStatus::ok) throw CoreError(problem_of(status));
    new (place) BytePairs(std::move(pairs));
}

nb::list encode_words(const BytePairs& pairs, const Views& words) {
    nb::list result;
    std::vector<int32_t> ids;
    for (std::string_view word : words) {
        ids.clear();
        if (pairs.encode(word, ids))
            result.append(nb::bytes(ids.data(), ids.size() * sizeof(int32_t)));
        else
            result.append(nb::none());
    }
    return result;
}

} // namespace

void bind_byte_pairs(nb::module_& m) {
    nb::class_<BytePairs>(m, "BytePairs")
        .def("__init__", &fill_pairs, "tokens"_a, "merges"_a, "characters"_a, nb::kw_only(),
             "whole"_a = false)
        .def("encode", &encode_words, "words"_a);
}

} // namespace sublimate

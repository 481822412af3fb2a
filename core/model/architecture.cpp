// Names of architectures as files write them.
#include "architecture.h"

#include <algorithm>

namespace sublimate {

namespace {

// What else a file may call one. Of models that see, the text's part alone is served: for text all
// parts of a rotation in three dimensions turn alike, as in one.
struct Spelling {
    std::string_view in_file;
    std::string_view name;
};

constexpr Spelling SPELLINGS[] = {
    {"qwen2vl", "qwen2"},
    {"qwen3vl", "qwen3"},
    {"gemma3_text", "gemma3"},
};

} // namespace

const Architecture* find_architecture(std::string_view name) {
    for (const Spelling& spelling : SPELLINGS)
        if (name == spelling.in_file) name = spelling.name;
    const Architecture* end = std::end(ARCHITECTURES);
    const Architecture* found =
        std::find_if(std::begin(ARCHITECTURES), end,
                     [&](const Architecture& architecture) { return name == architecture.name; });
    return found == end ? nullptr : found;
}

std::string supported_architectures() {
    std::string all;
    for (const Architecture& architecture : ARCHITECTURES)
        all += (all.empty() ? "" : ", ") + std::string(architecture.name) + " (" +
               architecture.models + ")";
    return all;
}

} // namespace sublimate

// The byte string of every token id, in one flat arena.
//
// defines: Vocabulary
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "../limits.h"

namespace sublimate {

enum class VocabularyStatus : int32_t { ok = 0, too_many, entry_too_long };

// Ids are positions in the order of `add`. Special tokens have empty bytes and yield no text.
class Vocabulary {
public:
    Vocabulary() : starts_(1, 0) {}

    void reserve(int64_t entries, int64_t bytes);
    // Appends the next id. At most VOCABULARY_MAX entries of at most TOKEN_BYTES_MAX bytes.
    VocabularyStatus add(std::string_view bytes);

    int32_t size() const { return static_cast<int32_t>(starts_.size()) - 1; }

    // Empty for an id that has no entry: a model may have more output rows than its tokenizer has
    // tokens.
    std::string_view bytes(int32_t id) const {
        if (id < 0 || id >= size()) return {};
        auto at = static_cast<size_t>(id);
        return {arena_.data() + starts_[at], starts_[at + 1] - starts_[at]};
    }

private:
    std::string arena_;
    std::vector<uint32_t> starts_; // (size + 1) offsets into the arena
};

// The arena's offsets fit 32 bits.
static_assert(int64_t{limits::VOCABULARY_MAX} * limits::TOKEN_BYTES_MAX <= UINT32_MAX);

} // namespace sublimate

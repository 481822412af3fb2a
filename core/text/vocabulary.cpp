// Vocabulary: filling the arena.
#include "vocabulary.h"

namespace sublimate {

void Vocabulary::reserve(int64_t entries, int64_t bytes) {
    starts_.reserve(static_cast<size_t>(entries) + 1);
    arena_.reserve(static_cast<size_t>(bytes));
}

VocabularyStatus Vocabulary::add(std::string_view bytes) {
    if (size() >= limits::VOCABULARY_MAX) return VocabularyStatus::too_many;
    if (bytes.size() > size_t{limits::TOKEN_BYTES_MAX}) return VocabularyStatus::entry_too_long;
    arena_.append(bytes);
    starts_.push_back(static_cast<uint32_t>(arena_.size()));
    return VocabularyStatus::ok;
}

} // namespace sublimate

// Byte-pair encoding of words: a vocabulary's tokens and merges, and the ids of a word by them.
//
// A table of these is made in milliseconds, so that a server need not wait for the library that
// encodes all other text.
//
// Python twin: the library's tokenizer (src/sublimate/model/byte_level.py).
//
// defines: BytePairsStatus, BytePairs
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "../limits.h"

namespace sublimate {

enum class BytePairsStatus : int32_t { ok = 0, too_many, not_two_texts, unknown_token };

// Neighbours merge, the earliest merge of the list first and of equal ones the leftmost, until no
// two that are left have one (Sennrich, Haddow and Birch, arXiv 1508.07909; over bytes as in
// GPT-2).
class BytePairs {
public:
    static constexpr size_t WORD_BYTES_MAX = 64; // longer ones take time by the square of it
    static constexpr size_t BYTES = 256;

    // tokens: texts, all different, each id its place. merges: "left right", by rank; of two of the
    // same pair the later one counts. characters: how the vocabulary writes each byte. whole: a
    // word that is a token is that token, whatever the merges make of it. Once, and first.
    BytePairsStatus fill(std::span<const std::string_view> tokens,
                         std::span<const std::string_view> merges,
                         std::span<const std::string, BYTES> characters, bool whole);

    // Appends the ids of a word. False, and nothing is appended, for one that is not ASCII, is too
    // long, or has a byte that no token says: the library knows what becomes of those.
    bool encode(std::string_view word, std::vector<int32_t>& ids) const;

private:
    struct Pair {
        int32_t left, right, made; // ids
    };

    std::string_view text(int32_t id) const {
        auto at = static_cast<size_t>(id);
        return std::string_view(arena_).substr(starts_[at], starts_[at + 1] - starts_[at]);
    }
    size_t token_place(std::string_view text) const;
    int32_t token(std::string_view text) const { return token_table_[token_place(text)]; }
    size_t pair_place(int32_t left, int32_t right) const;
    int32_t rank(int32_t left, int32_t right) const { return pair_table_[pair_place(left, right)]; }
    void merge(std::vector<int32_t>& ids, size_t begin) const;

    std::string arena_;
    std::vector<uint32_t> starts_;     // (tokens + 1) into the arena
    std::vector<Pair> pairs_;          // (merges) by rank
    std::vector<int32_t> token_table_; // (power of two) ids where their texts hash to; -1: free
    std::vector<int32_t> pair_table_;  // (power of two) ranks likewise
    std::array<std::string, BYTES> characters_;
    std::array<int32_t, BYTES> first_ = {}; // token of each byte alone; -1: none
    bool whole_ = false;
};

// A list of merges is longer than a vocabulary, and ids and ranks fit an int32.
static_assert(int64_t{limits::VOCABULARY_MAX} * 4 <= INT32_MAX);

} // namespace sublimate

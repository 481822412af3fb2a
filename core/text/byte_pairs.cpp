// BytePairs: two open hash tables, and merging by rank.
#include "byte_pairs.h"

#include <algorithm>
#include <bit>

#include "../check.h"

namespace sublimate {

namespace {

constexpr int32_t FREE = -1;
constexpr size_t MERGES_PER_TOKEN_MAX = 2;
// Knuth's multiplier for 64 bits: the golden ratio.
constexpr uint64_t GOLDEN = 0x9E3779B97F4A7C15u;

uint64_t hash_text(std::string_view text) {
    return std::hash<std::string_view>{}(text)*GOLDEN;
}

uint64_t hash_pair(int32_t left, int32_t right) {
    uint64_t key = uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
    return (key ^ key >> 29) * GOLDEN;
}

// At most half of its places are taken, so that a look at one ends soon.
std::vector<int32_t> empty_table(size_t entries) {
    return std::vector<int32_t>(std::bit_ceil(2 * entries + 2), FREE);
}

size_t first_place(uint64_t hash, const std::vector<int32_t>& table) {
    return hash >> 32 & (table.size() - 1);
}

} // namespace

// Where the text's token is, or would be.
size_t BytePairs::token_place(std::string_view wanted) const {
    size_t place = first_place(hash_text(wanted), token_table_);
    while (token_table_[place] != FREE && text(token_table_[place]) != wanted)
        place = (place + 1) & (token_table_.size() - 1);
    return place;
}

size_t BytePairs::pair_place(int32_t left, int32_t right) const {
    size_t place = first_place(hash_pair(left, right), pair_table_);
    while (pair_table_[place] != FREE) {
        const Pair& pair = pairs_[static_cast<size_t>(pair_table_[place])];
        if (pair.left == left && pair.right == right) break;
        place = (place + 1) & (pair_table_.size() - 1);
    }
    return place;
}

BytePairsStatus BytePairs::fill(std::span<const std::string_view> tokens,
                                std::span<const std::string_view> merges,
                                std::span<const std::string, BYTES> characters, bool whole) {
    CHECK(starts_.empty());
    size_t tokens_max = size_t{limits::VOCABULARY_MAX};
    if (tokens.size() > tokens_max || merges.size() > MERGES_PER_TOKEN_MAX * tokens_max)
        return BytePairsStatus::too_many;
    size_t bytes = 0;
    for (std::string_view token : tokens) bytes += token.size();
    if (bytes > UINT32_MAX) return BytePairsStatus::too_many;
    arena_.reserve(bytes);
    starts_.reserve(tokens.size() + 1);
    starts_.push_back(0);
    token_table_ = empty_table(tokens.size());
    for (size_t i = 0; i < tokens.size(); i++) {
        arena_.append(tokens[i]);
        starts_.push_back(static_cast<uint32_t>(arena_.size()));
        token_table_[token_place(tokens[i])] = static_cast<int32_t>(i);
    }
    pair_table_ = empty_table(merges.size());
    pairs_.reserve(merges.size());
    std::string made;
    for (std::string_view merge : merges) {
        size_t space = merge.find(' ');
        if (space == merge.npos || merge.find(' ', space + 1) != merge.npos)
            return BytePairsStatus::not_two_texts;
        made.assign(merge.substr(0, space)).append(merge.substr(space + 1));
        Pair pair = {token(merge.substr(0, space)), token(merge.substr(space + 1)), token(made)};
        if (std::min({pair.left, pair.right, pair.made}) < 0) return BytePairsStatus::unknown_token;
        pairs_.push_back(pair);
        pair_table_[pair_place(pair.left, pair.right)] = static_cast<int32_t>(pairs_.size()) - 1;
    }
    for (size_t byte = 0; byte < BYTES; byte++) {
        characters_[byte] = characters[byte];
        first_[byte] = token(characters[byte]);
    }
    whole_ = whole;
    return BytePairsStatus::ok;
}

bool BytePairs::encode(std::string_view word, std::vector<int32_t>& ids) const {
    if (word.size() > WORD_BYTES_MAX) return false;
    size_t begin = ids.size();
    for (char character : word) {
        auto byte = static_cast<uint8_t>(character);
        if (byte >= BYTES / 2 || first_[byte] < 0) {
            ids.resize(begin);
            return false;
        }
        ids.push_back(first_[byte]);
    }
    if (whole_) {
        std::string written;
        for (char character : word) written += characters_[static_cast<uint8_t>(character)];
        if (int32_t id = token(written); id >= 0) {
            ids.resize(begin);
            ids.push_back(id);
            return true;
        }
    }
    merge(ids, begin);
    return true;
}

// Of what stands from `begin` on. Words are short: looking at all neighbours each time is quicker
// than a queue of them.
void BytePairs::merge(std::vector<int32_t>& ids, size_t begin) const {
    while (ids.size() - begin >= 2) {
        int32_t best = INT32_MAX;
        size_t where = 0;
        for (size_t i = begin; i + 1 < ids.size(); i++) {
            int32_t found = rank(ids[i], ids[i + 1]);
            if (found < 0 || found >= best) continue;
            best = found;
            where = i;
        }
        if (best == INT32_MAX) return;
        ids[where] = pairs_[static_cast<size_t>(best)].made;
        ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(where) + 1);
    }
}

} // namespace sublimate

// Byte pairs against a slow twin with maps, on random merges; and what they refuse.
#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "../../core/text/byte_pairs.h"
#include "expect.h"

namespace sublimate::test {

using Strings = std::vector<std::string>;
using Characters = std::array<std::string, BytePairs::BYTES>;

static Characters plain_characters() {
    Characters characters;
    for (size_t byte = 0; byte < characters.size(); byte++)
        characters[byte] = byte == ' ' ? "\u0120" : std::string(1, static_cast<char>(byte));
    return characters;
}

static BytePairsStatus filled(BytePairs& pairs, const Strings& tokens, const Strings& merges,
                              bool whole = false) {
    std::vector<std::string_view> token_views(tokens.begin(), tokens.end());
    std::vector<std::string_view> merge_views(merges.begin(), merges.end());
    return pairs.fill(token_views, merge_views, plain_characters(), whole);
}

// Texts in place of ids, a map in place of tables.
static Strings merge_slow(Strings parts,
                          const std::map<std::pair<std::string, std::string>, int>& ranks) {
    while (true) {
        std::optional<size_t> best;
        int least = INT32_MAX;
        for (size_t i = 0; i + 1 < parts.size(); i++) {
            auto found = ranks.find({parts[i], parts[i + 1]});
            if (found == ranks.end() || found->second >= least) continue;
            least = found->second;
            best = i;
        }
        if (!best) return parts;
        parts[*best] += parts[*best + 1];
        parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(*best) + 1);
    }
}

static void test_ids_equal_those_of_the_twin() {
    Random random(7);
    for (int32_t round = 0; round < 200; round++) {
        Strings tokens = {"a", "b", "c", "\u0120"};
        Strings merges;
        std::map<std::pair<std::string, std::string>, int> ranks;
        for (int32_t i = 0; i < 24; i++) {
            auto pick = [&] {
                return tokens[static_cast<size_t>(
                    random.below(static_cast<int32_t>(tokens.size())))];
            };
            std::string left = pick(), right = pick();
            if (left.size() + right.size() > 12) continue;
            if (std::find(tokens.begin(), tokens.end(), left + right) == tokens.end())
                tokens.push_back(left + right);
            ranks[{left, right}] = static_cast<int>(merges.size()); // the later of two counts
            merges.push_back(left + " " + right);
        }
        BytePairs pairs;
        EXPECT(filled(pairs, tokens, merges) == BytePairsStatus::ok);
        for (int32_t word = 0; word < 40; word++) {
            std::string text;
            Strings parts;
            for (int32_t i = random.below(20); i > 0; i--) {
                char character = "abc "[random.below(4)];
                text += character;
                parts.push_back(character == ' ' ? "\u0120" : std::string(1, character));
            }
            std::vector<int32_t> ids = {-7};
            EXPECT(pairs.encode(text, ids) && ids[0] == -7);
            Strings said;
            for (size_t i = 1; i < ids.size(); i++)
                said.push_back(tokens[static_cast<size_t>(ids[i])]);
            EXPECT(said == merge_slow(parts, ranks));
        }
    }
}

static void test_a_whole_word_goes_before_its_merges() {
    Strings tokens = {"a", "b", "\u0120", "ab", "\u0120ab"};
    for (bool whole : {false, true}) {
        BytePairs pairs;
        EXPECT(filled(pairs, tokens, {"a b"}, whole) == BytePairsStatus::ok);
        std::vector<int32_t> ids;
        EXPECT(pairs.encode(" ab", ids));
        EXPECT(ids == (whole ? std::vector<int32_t>{4} : std::vector<int32_t>{2, 3}));
    }
}

static void test_what_the_library_has_to_do_is_left_to_it() {
    BytePairs pairs;
    EXPECT(filled(pairs, {"a", "b"}, {}) == BytePairsStatus::ok);
    std::vector<int32_t> ids = {1};
    EXPECT(!pairs.encode("a\u00e9", ids) && !pairs.encode("ac", ids));
    EXPECT(!pairs.encode(std::string(BytePairs::WORD_BYTES_MAX + 1, 'a'), ids));
    EXPECT(ids == std::vector<int32_t>{1});
    EXPECT(pairs.encode(std::string(BytePairs::WORD_BYTES_MAX, 'a'), ids) && pairs.encode("", ids));
    EXPECT_EQUAL(ids.size(), 1 + BytePairs::WORD_BYTES_MAX);
}

static void test_damaged_merges_are_refused() {
    for (const char* merge : {"ab", "a  b", "a b c", "", "a "}) {
        BytePairs pairs;
        BytePairsStatus status = filled(pairs, {"a", "b", "ab"}, {merge});
        EXPECT(status == BytePairsStatus::not_two_texts || std::string(merge) == "a ");
        EXPECT(status != BytePairsStatus::ok);
    }
    for (const char* merge : {"a c", "c b", "b a"}) {
        BytePairs pairs;
        EXPECT(filled(pairs, {"a", "b", "ab"}, {merge}) == BytePairsStatus::unknown_token);
    }
}

} // namespace sublimate::test

int main() {
    using namespace sublimate::test;
    test_ids_equal_those_of_the_twin();
    test_a_whole_word_goes_before_its_merges();
    test_what_the_library_has_to_do_is_left_to_it();
    test_damaged_merges_are_refused();
    return test_result();
}

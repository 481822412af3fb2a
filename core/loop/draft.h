// What a sequence is likely to say next, looked up in what it has said: where its last tokens stood
// before, the tokens that followed them there are the draft (Yang et al., "Inference with
// Reference", 2023, arXiv 2304.04487). No second model, fixed memory, two stores a token.
//
// Each token is also judged: did it repeat as expected? The share of those that did, kept apart by
// the length of the repetition, is the chance of the next draft. It is judged whether or not the
// draft was computed, so a sequence that begins to repeat itself is noticed at no cost, and what a
// drafter thinks depends on the sequence's own tokens alone.
//
// defines: MATCH_CLASSES, match_class, ngram_entries, Drafter (start, follow, find, chance, draft)
#pragma once

#include <cstdint>

#include "../check.h"
#include "../limits.h"
#include "pages.h"

namespace sublimate {

// By the number of repeated tokens: 2-3, 4-7, 8-15, more.
constexpr int32_t MATCH_CLASSES = 4;
constexpr float FIRST_CHANCES[MATCH_CLASSES] = {0.40f, 0.65f, 0.75f, 0.90f};
constexpr float CHANCE_STEP = 1.0f / 16.0f; // how much one token changes a chance

SUBLIMATE_HD constexpr int32_t match_class(int32_t matched) {
    return matched < 4 ? 0 : (matched < 8 ? 1 : (matched < 16 ? 2 : 3));
}

// Places kept per n-gram length: as many as there are positions, up to the limit.
SUBLIMATE_HD constexpr int32_t ngram_entries(int32_t context_tokens) {
    int32_t entries = limits::PAGE_TOKENS;
    while (entries < context_tokens && entries < limits::NGRAM_ENTRIES_MAX) entries *= 2;
    return entries;
}

constexpr int32_t NGRAM_LENGTHS = 2; // two and three tokens
constexpr int32_t NO_PLACE = 0;      // nothing stands before position 0

struct Drafter {
    int32_t* places; // (NGRAM_LENGTHS, entries) newest position after an n-gram with this hash
    int32_t entries;
    int32_t newest[3]; // the last tokens, oldest first
    int32_t seen;      // positions taken in
    int32_t source;    // the position that the next token should repeat; NO_PLACE: none
    int32_t matched;   // tokens before it that equal the newest ones, up to MATCH_TOKENS_MAX
    float chances[MATCH_CLASSES];
    int32_t tokens[limits::DRAFT_TOKENS_MAX];

    SUBLIMATE_HD void start() {
        for (int32_t i = 0; i < NGRAM_LENGTHS * entries; i++) places[i] = NO_PLACE;
        constexpr auto first = constant_table(FIRST_CHANCES);
        for (int32_t i = 0; i < MATCH_CLASSES; i++) chances[i] = first.at[i];
        newest[0] = newest[1] = newest[2] = 0;
        seen = matched = 0;
        source = NO_PLACE;
    }

    // Takes in the history up to `end`, or HISTORY_TOKENS_PER_STEP of it, and looks for a source.
    // history(i): token at position i in [0, end). False: there is no draft now.
    template <class History>
    SUBLIMATE_HD bool follow(History&& history, int32_t end) {
        CHECK(seen <= end);
        int32_t stop = end - seen > limits::HISTORY_TOKENS_PER_STEP
                           ? seen + limits::HISTORY_TOKENS_PER_STEP
                           : end;
        while (seen < stop) take_in(history, history(seen));
        if (seen < end) return false;
        if (source == NO_PLACE) find(history);
        return source != NO_PLACE;
    }

    // That the next token is its draft, if `ahead` drafts before it were right.
    SUBLIMATE_HD float chance(int32_t ahead) const { return chances[match_class(matched + ahead)]; }

    // Writes the first `count` drafts. A source that reaches the end goes on with the drafts
    // themselves: a text that repeats a short piece repeats it again.
    template <class History>
    SUBLIMATE_HD void draft(History&& history, int32_t count) {
        CHECK(source != NO_PLACE && source < seen && count <= limits::DRAFT_TOKENS_MAX);
        for (int32_t i = 0; i < count; i++) {
            int32_t at = source + i;
            tokens[i] = at < seen ? history(at) : tokens[at - seen];
        }
    }

private:
    SUBLIMATE_HD int32_t* place(int32_t length) const {
        uint64_t hash = mix_hash(join_words(newest[1], newest[2]));
        if (length == 3) hash = mix_hash(hash ^ static_cast<uint32_t>(newest[0]));
        int64_t at = static_cast<int64_t>(hash & static_cast<uint64_t>(entries - 1));
        return places + (length - 2) * int64_t{entries} + at;
    }

    template <class History>
    SUBLIMATE_HD void take_in(History&& history, int32_t token) {
        CHECK(source <= seen - 1 || source == NO_PLACE);
        if (source != NO_PLACE) {
            bool repeats = history(source) == token;
            float& mine = chances[match_class(matched)];
            mine += ((repeats ? 1.0f : 0.0f) - mine) * CHANCE_STEP;
            if (repeats && matched < limits::MATCH_TOKENS_MAX) matched++;
            source = repeats ? source + 1 : NO_PLACE;
        }
        if (seen >= 2) *place(2) = seen;
        if (seen >= 3) *place(3) = seen;
        newest[0] = newest[1];
        newest[1] = newest[2];
        newest[2] = token;
        seen++;
    }

    template <class History>
    SUBLIMATE_HD void find(History&& history) {
        for (int32_t length = NGRAM_LENGTHS + 1; length >= 2 && source == NO_PLACE; length--) {
            int32_t candidate = seen >= length ? *place(length) : NO_PLACE;
            int32_t equal = 0; // another n-gram may have the same hash: the tokens decide
            while (equal < candidate && equal < limits::MATCH_TOKENS_MAX &&
                   history(candidate - 1 - equal) == history(seen - 1 - equal))
                equal++;
            if (equal < length) continue;
            source = candidate;
            matched = equal;
        }
    }
};

} // namespace sublimate

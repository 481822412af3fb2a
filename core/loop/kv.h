// Paged KV bookkeeping for running sequences: admission by reservation, prefix sharing between
// finished and running requests, publication of pages as soon as they are computed, and the
// ownership audit.
//
// The invariant, kept at every return: free + cached >= reserved. A sequence reserves at admission
// all pages that it can ever need; each page it takes or adopts later lowers its reservation by
// one. So taking a page never fails, no sequence ever waits for another one's pages, and nothing is
// preempted.
//
// Pages of the generated arithmetic. When the model's two arithmetics give different bits, a page
// remembers which of them wrote which of its rows and its ancestors' rows (its provenance). Pages
// that the prompt's arithmetic wrote throughout are exact: a hit on one gives the bits that
// computing it would give. Others are found after those, and only if share_generated is set: such a
// hit is right to the last few bits only.
//
// defines: PromptTokens, PageTable, KvConfig, KvCache (could_ever_fit, admit, adopt, append,
// commit, take_back, release, token_at, next_page_hash, audit)
#pragma once

#include <cstdint>

#include "pages.h"

namespace sublimate {

// The prompt in slot memory, which its edge can still write: every read is clamped to the
// vocabulary.
struct PromptTokens {
    const int32_t* words; // (length)
    int32_t length;
    int32_t vocabulary;

    SUBLIMATE_HD int32_t at(int32_t position) const {
        int32_t token = *static_cast<const volatile int32_t*>(words + position);
        return token < 0 ? 0 : (token >= vocabulary ? vocabulary - 1 : token);
    }
    SUBLIMATE_HD void copy_page(int32_t page_index, int32_t* tokens) const {
        for (int32_t i = 0; i < limits::PAGE_TOKENS; i++)
            tokens[i] = at(page_index * limits::PAGE_TOKENS + i);
    }
};

// The pages of one running sequence, in order.
struct PageTable {
    int32_t* pages; // (pages_per_sequence) ids; the first `count` are valid
    int32_t count;
    int32_t reserved; // pages it may still take
    KvKey key;
    bool sharing; // false: neither reads nor publishes
};

struct KvConfig {
    int32_t pages;
    uint64_t salt;
    uint64_t hash_mask;
    bool share_generated;        // may a prompt hit pages that decoding wrote?
    bool same_arithmetic;        // prompt and generated rows give equal bits: nothing to mark
    uint64_t* digests = nullptr; // see PageStore::start
};

SUBLIMATE_HD constexpr int32_t pages_for(int32_t tokens) {
    return (tokens + limits::PAGE_TOKENS - 1) / limits::PAGE_TOKENS;
}

class KvCache {
public:
    SUBLIMATE_HD void start(const KvConfig& config, Page* pages, int32_t* table) {
        config_ = config;
        reserved_ = 0;
        changes_ = 1;
        store_.start(pages, config.pages, table, {config.salt, config.hash_mask}, config.digests);
    }

    SUBLIMATE_HD bool could_ever_fit(int32_t pages) const { return pages <= config_.pages; }

    // Matches the longest cached prefix of whole pages, but never the last prompt token, and
    // reserves the rest of `needed` pages. False, with nothing changed, if they are not available
    // now. reuse: false computes the whole prompt (but still publishes it).
    SUBLIMATE_HD bool admit(PageTable& table, const PromptTokens& prompt, int32_t needed,
                            bool reuse) {
        CHECK(table.count == 0 && table.reserved == 0);
        if (table.sharing && reuse) match(table, prompt);
        int32_t rest = needed - table.count;
        bool fits = available() >= reserved_ + rest || fault(Fault::reservation_ignored);
        if (!fits) {
            release_pages(table, false);
            return false;
        }
        table.reserved = rest;
        reserved_ += rest;
        return true;
    }

    // At a page border of a prompt: takes over pages that others have computed meanwhile. Returns
    // how many.
    SUBLIMATE_HD int32_t adopt(PageTable& table, const PromptTokens& prompt) {
        CHECK(table.sharing);
        int32_t adopted = match(table, prompt);
        CHECK_BECAUSE(adopted <= table.reserved, "more pages are adopted than were reserved");
        table.reserved -= adopted;
        reserved_ -= adopted;
        return adopted;
    }

    // Maps `position` and stores its token. The next position in order; a new page comes from the
    // reservation.
    SUBLIMATE_HD void append(PageTable& table, int32_t position, int32_t token, bool generated) {
        int32_t index = position / limits::PAGE_TOKENS;
        bool mark = generated && !config_.same_arithmetic && !fault(Fault::generated_unmarked);
        if (index == table.count) {
            CHECK_BECAUSE(table.reserved > 0, "a sequence takes more pages than it reserved");
            table.reserved--;
            reserved_--;
            table.pages[table.count++] = store_.take(table.key);
        }
        CHECK(index == table.count - 1);
        Page& page = store_.at(table.pages[index]);
        CHECK_BECAUSE(!page.published, "a published page is written");
        page.tokens[position % limits::PAGE_TOKENS] = token;
        page.generated_rows |= (mark ? 1u : 0u) << (position % limits::PAGE_TOKENS);
    }

    // Positions [computed_before, computed) now hold KV: publishes the pages that became full.
    SUBLIMATE_HD void commit(PageTable& table, int32_t computed_before, int32_t computed) {
        if (!table.sharing && !fault(Fault::no_cache_published)) return;
        CHECK(computed_before <= computed);
        CHECK(computed <= table.count * limits::PAGE_TOKENS ||
              fault(Fault::publish_before_computed));
        int32_t first = computed_before / limits::PAGE_TOKENS;
        for (int32_t index = first; index < computed / limits::PAGE_TOKENS; index++)
            publish(table, index);
    }

    // Positions from `computed` on were drafts that proved wrong. Whole pages of them return to the
    // reservation; the rest of the last page is written again.
    SUBLIMATE_HD void take_back(PageTable& table, int32_t computed) {
        if (fault(Fault::draft_page_kept)) return;
        CHECK(table.count >= pages_for(computed));
        while (table.count > pages_for(computed)) {
            int32_t page = table.pages[--table.count];
            CHECK_BECAUSE(!store_.at(page).published, "a wrong draft was published");
            store_.release(page, false);
            table.reserved++;
            reserved_++;
        }
    }

    // Gives everything back. forget: the pages that only this sequence used are not kept.
    SUBLIMATE_HD void release(PageTable& table, bool forget) {
        CHECK_BECAUSE(reserved_ >= table.reserved, "more is given back than was reserved");
        reserved_ -= table.reserved;
        table.reserved = 0;
        release_pages(table, forget);
        changes_++;
    }

    SUBLIMATE_HD int32_t token_at(const PageTable& table, int32_t position) const {
        CHECK(position >= 0 && position < table.count * limits::PAGE_TOKENS);
        int32_t page = table.pages[position / limits::PAGE_TOKENS];
        return store_.at(page).tokens[position % limits::PAGE_TOKENS];
    }

    // Chain hash of the page that a prompt computes next, 0 if it is not a whole page that could be
    // shared. Two sequences with the same value are about to compute the same page.
    SUBLIMATE_HD uint64_t next_page_hash(const PageTable& table, const PromptTokens& prompt,
                                         int32_t computed) const {
        int32_t index = computed / limits::PAGE_TOKENS;
        if (!table.sharing || index >= shareable_pages(prompt)) return 0;
        int32_t tokens[limits::PAGE_TOKENS];
        prompt.copy_page(index, tokens);
        return store_.hasher().page(parent_hash(table, index), tokens) | 1;
    }

    // Whole pages of a prompt that may come from the cache: its last token is always computed.
    SUBLIMATE_HD static int32_t shareable_pages(const PromptTokens& prompt) {
        int32_t last = fault(Fault::cached_last_token) ? prompt.length : prompt.length - 1;
        return last / limits::PAGE_TOKENS;
    }

    SUBLIMATE_HD int32_t available() const { return store_.free_count() + store_.cached_count(); }
    SUBLIMATE_HD int32_t reserved() const { return reserved_; }
    SUBLIMATE_HD uint64_t changes() const {
        return changes_;
    } // grows whenever pages may become available
    SUBLIMATE_HD const PageStore& store() const { return store_; }

    // Complete ownership check. tables: every running sequence's; owners: (pages) scratch. Null if
    // all is well.
    SUBLIMATE_HD const char* audit(const PageTable* const* tables, int32_t count,
                                   int32_t* owners) const {
        for (int32_t page = 0; page < config_.pages; page++) owners[page] = 0;
        int32_t promised = 0;
        for (int32_t i = 0; i < count; i++) {
            promised += tables[i]->reserved;
            const char* why = audit_table(*tables[i], owners);
            if (why) return why;
        }
        if (promised != reserved_) return "reserved pages do not add up";
        if (available() < reserved_) return "fewer pages are available than reserved";
        const char* why = audit_pages(owners);
        return why ? why : audit_lists(owners);
    }

private:
    SUBLIMATE_HD uint64_t parent_hash(const PageTable& table, int32_t index) const {
        return index == 0 ? store_.hasher().root(table.key)
                          : store_.at(table.pages[index - 1]).hash;
    }

    SUBLIMATE_HD int32_t match(PageTable& table, const PromptTokens& prompt) {
        int32_t matched = 0;
        int32_t tokens[limits::PAGE_TOKENS];
        for (int32_t index = table.count; index < shareable_pages(prompt); index++) {
            prompt.copy_page(index, tokens);
            int32_t parent = index == 0 ? NO_PAGE : table.pages[index - 1];
            uint64_t hash = store_.hasher().page(parent_hash(table, index), tokens);
            int32_t page = store_.find(hash, parent, table.key, tokens, ALL_PROMPT);
            if (page == NO_PAGE && config_.share_generated)
                page = store_.find(hash, parent, table.key, tokens, ANY_PROVENANCE);
            if (page == NO_PAGE) break;
            if (!fault(Fault::adopt_without_reference) || store_.at(page).refcount == 0)
                store_.reference(page);
            table.pages[table.count++] = page;
            matched++;
        }
        return matched;
    }

    // If somebody published the same page in the meantime, his is used and ours goes back: one page
    // of each content, and the chain of parents stays one chain.
    SUBLIMATE_HD void publish(PageTable& table, int32_t index) {
        int32_t page = table.pages[index];
        int32_t parent = index == 0 ? NO_PAGE : table.pages[index - 1];
        const Page& own = store_.at(page);
        if (own.published) return;
        CHECK(own.refcount == 1);
        uint64_t hash = store_.hasher().page(parent_hash(table, index), own.tokens);
        uint64_t provenance = store_.provenance_after(parent, own.generated_rows);
        int32_t twin = store_.find(hash, parent, table.key, own.tokens, provenance);
        if (twin == NO_PAGE) {
            store_.publish(page, hash, parent);
        } else {
            store_.reference(twin);
            table.pages[index] = twin;
            store_.release(page, false);
        }
        changes_++;
    }

    SUBLIMATE_HD void release_pages(PageTable& table, bool forget) {
        bool wrong = fault(Fault::wrong_page_freed) && table.count > 1;
        for (int32_t i = table.count - 1; i >= 0; i--) {
            if (fault(Fault::refcount_leak) && i == 1) continue;
            store_.release(table.pages[wrong && i == 0 ? 1 : i], forget);
        }
        table.count = 0;
    }

    SUBLIMATE_HD const char* audit_table(const PageTable& table, int32_t* owners) const {
        for (int32_t i = 0; i < table.count; i++) {
            int32_t page = table.pages[i];
            if (page < 0 || page >= config_.pages) return "a table names no page";
            const Page& p = store_.at(page);
            if (p.state != PageState::owned) return "a table names a page that it does not own";
            int32_t parent = i == 0 ? NO_PAGE : table.pages[i - 1];
            if (p.published && p.parent != parent) return "a published page has another parent";
            if (p.published && !table.sharing) return "a private sequence holds a shared page";
            if (!same_key(p.key, table.key)) return "a table names a page of another key";
            if (i > 0 && p.published && p.provenance == ALL_PROMPT &&
                store_.at(parent).provenance != ALL_PROMPT)
                return "a page forgot that its parent was generated";
            owners[page]++;
        }
        return nullptr;
    }

    SUBLIMATE_HD const char* audit_pages(const int32_t* owners) const {
        int32_t counts[3] = {};
        for (int32_t page = 0; page < config_.pages; page++) {
            const Page& p = store_.at(page);
            counts[static_cast<int32_t>(p.state)]++;
            if (p.refcount != owners[page]) return "refcount is not the number of owners";
            if ((p.state == PageState::owned) != (p.refcount > 0))
                return "state contradicts refcount";
            if (p.state == PageState::cached && !p.published)
                return "a cached page is not findable";
            if (p.state == PageState::free && p.published) return "a free page is published";
            if (p.published && !store_.findable(page))
                return "a published page is not in the table";
            if (p.published && p.parent != NO_PAGE && !store_.at(p.parent).published)
                return "a published page outlived its parent";
        }
        if (counts[0] != store_.free_count()) return "free count is wrong";
        if (counts[1] != store_.cached_count()) return "cached count is wrong";
        if (!store_.told_truly()) return "the prefix table is not the page index";
        return nullptr;
    }

    // Walks both lists and recounts children; `owners` is reused as scratch.
    SUBLIMATE_HD const char* audit_lists(int32_t* children) const {
        int32_t steps = 0;
        for (int32_t page = store_.first_free(); page != NO_PAGE; page = store_.at(page).newer) {
            if (store_.at(page).state != PageState::free || ++steps > store_.free_count())
                return "the free list is damaged";
        }
        if (steps != store_.free_count()) return "the free list lost a page";
        steps = 0;
        for (int32_t page = store_.oldest(); page != NO_PAGE; page = store_.at(page).newer) {
            if (store_.at(page).state != PageState::cached || ++steps > store_.cached_count())
                return "the LRU list is damaged";
        }
        if (steps != store_.cached_count()) return "the LRU list lost a page";
        for (int32_t page = 0; page < config_.pages; page++) children[page] = 0;
        for (int32_t page = 0; page < config_.pages; page++) {
            const Page& p = store_.at(page);
            if (p.published && p.parent != NO_PAGE) children[p.parent]++;
        }
        for (int32_t page = 0; page < config_.pages; page++) {
            const Page& p = store_.at(page);
            if (p.published && p.children != children[page]) return "children are miscounted";
        }
        return nullptr;
    }

    PageStore store_;
    KvConfig config_ = {};
    int32_t reserved_ = 0;
    uint64_t changes_ = 0;
};

} // namespace sublimate

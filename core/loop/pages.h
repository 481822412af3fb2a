// The page store under the prefix cache: who owns which page of KV memory, and which pages can be
// found again.
//
// A page is in exactly one of three places:
//   free    on the free list; content meaningless
//   cached  refcount 0, published, on the LRU list; may be evicted
//   owned   refcount = number of page tables that name it; never evicted
//
// The chain. A published page knows its parent page by id. A page that is owned has an owned parent
// (each table that names a page names its parents too), and a cached page is evicted only when no
// published page names it as its parent. So a parent id is never stale, and comparing it compares
// the whole prefix. Tables release their pages from the end to the start, so the LRU list always
// has children before parents.
//
// defines: Page, PageState, PageStore
#pragma once

#include <cstdint>

#include "../check.h"
#include "../limits.h"
#include "../ring/prefix_table.h"
#include "fault.h"
#include "page_hash.h"

namespace sublimate {

constexpr int32_t NO_PAGE = -1;

enum class PageState : int32_t { free = 0, cached = 1, owned = 2 };

struct Page {
    uint64_t hash; // chain hash over key and all tokens up to the page's end
    KvKey key;
    int32_t parent;   // page before it, NO_PAGE at the start of a sequence
    int32_t refcount; // page tables that name it
    int32_t children; // published pages that name it as their parent
    int32_t older;    // LRU neighbours while cached; `newer` links the free list
    int32_t newer;
    PageState state;
    bool published;          // can be found by the hash table
    uint32_t generated_rows; // bit per row that the generated arithmetic wrote
    uint64_t provenance;     // see chain_provenance; valid once published
    int32_t tokens[limits::PAGE_TOKENS];
};

// Which arithmetic wrote which row, of a page and all its ancestors, as one word: 0 if the prompt's
// wrote all. Pages with equal tokens, parents, keys and provenance hold equal bits; with batch
// invariance off, only those whose provenance is 0.
constexpr uint64_t ALL_PROMPT = 0;
constexpr uint64_t ANY_PROVENANCE = ~uint64_t{0};

SUBLIMATE_HD inline uint64_t chain_provenance(uint64_t parent, uint32_t generated_rows) {
    if (parent == ALL_PROMPT && generated_rows == 0) return ALL_PROMPT;
    return (mix_hash(parent ^ mix_hash(generated_rows)) | 1) & ~(uint64_t{1} << 63);
}

class PageStore {
public:
    // Entries of the hash table: a power of two, at least twice the pages, so that probes stay
    // short.
    SUBLIMATE_HD static int32_t table_entries(int32_t pages) {
        int32_t entries = limits::PREFIX_ENTRIES_MIN;
        while (entries < 2 * pages) entries *= 2;
        return entries;
    }

    // pages: (page_count), table: (table_entries(page_count)). digests: likewise, shared memory
    // that tells others which pages can be found (ring/prefix_table.h), or null.
    SUBLIMATE_HD void start(Page* pages, int32_t page_count, int32_t* table,
                            const PageHasher& hasher, uint64_t* digests) {
        CHECK(page_count >= 1 && pages != nullptr && table != nullptr);
        CHECK(page_count <= limits::KV_PAGES_MAX);
        pages_ = pages;
        page_count_ = page_count;
        table_ = table;
        table_mask_ = static_cast<uint32_t>(table_entries(page_count)) - 1;
        hasher_ = hasher;
        digests_ = digests;
        free_count_ = cached_count_ = 0;
        oldest_ = newest_ = first_free_ = NO_PAGE;
        evictions_ = 0;
        for (uint32_t i = 0; i <= table_mask_; i++) set_entry(i, NO_PAGE);
        for (int32_t page = page_count - 1; page >= 0; page--) push_free(page);
    }

    SUBLIMATE_HD const PageHasher& hasher() const { return hasher_; }

    // ---- finding: the hash only leads to candidates; parent, key and all tokens decide
    SUBLIMATE_HD int32_t find(uint64_t hash, int32_t parent, const KvKey& key,
                              const int32_t* tokens, uint64_t provenance) const {
        for (uint32_t at = home(hash);; at = (at + 1) & table_mask_) {
            int32_t page = table_[at];
            if (page == NO_PAGE) return NO_PAGE;
            if (matches(pages_[page], hash, parent, key, tokens, provenance)) return page;
        }
    }

    // Provenance of a page with these rows behind a published parent.
    SUBLIMATE_HD uint64_t provenance_after(int32_t parent, uint32_t generated_rows) const {
        uint64_t before = parent == NO_PAGE ? ALL_PROMPT : pages_[parent].provenance;
        return chain_provenance(before, generated_rows);
    }

    // Makes an owned, complete page findable. Its parent is published (or it has none).
    SUBLIMATE_HD void publish(int32_t page, uint64_t hash, int32_t parent) {
        CHECK(page != parent);
        Page& p = pages_[page];
        CHECK(p.state == PageState::owned && !p.published);
        CHECK(parent == NO_PAGE || pages_[parent].published);
        p.hash = hash;
        p.parent = parent;
        p.provenance = provenance_after(parent, p.generated_rows);
        p.published = true;
        if (parent != NO_PAGE) pages_[parent].children++;
        uint32_t at = home(hash);
        while (table_[at] != NO_PAGE) at = (at + 1) & table_mask_;
        set_entry(at, page);
    }

    // ---- ownership
    // One more table names the page. Called before anything else may evict.
    SUBLIMATE_HD void reference(int32_t page) {
        CHECK(page >= 0 && page < page_count_);
        Page& p = pages_[page];
        CHECK_BECAUSE(p.state != PageState::free, "a free page is referenced");
        if (p.state == PageState::cached) {
            unlink(page);
            p.state = PageState::owned;
        }
        p.refcount++;
    }

    // One table less names the page. forget: do not keep it findable (its content is not trusted).
    SUBLIMATE_HD void release(int32_t page, bool forget) {
        Page& p = pages_[page];
        CHECK_BECAUSE(p.state == PageState::owned && p.refcount > 0, "release of an unowned page");
        if (--p.refcount > 0) return;
        if (p.published && forget && p.children == 0) unpublish(page);
        if (p.published) {
            link_newest(page);
        } else {
            push_free(page);
        }
    }

    // A free page, or the oldest cached one; its refcount is 1. The caller holds a reservation.
    SUBLIMATE_HD int32_t take(const KvKey& key) {
        if (first_free_ == NO_PAGE) evict();
        int32_t page = first_free_;
        CHECK_BECAUSE(page != NO_PAGE, "a reservation was broken: no page left");
        Page& p = pages_[page];
        CHECK_BECAUSE(p.state == PageState::free && p.refcount == 0, "a page in use was free");
        first_free_ = p.newer;
        free_count_--;
        p.state = PageState::owned;
        p.refcount = 1;
        p.children = 0;
        p.parent = NO_PAGE;
        p.published = false;
        p.key = key;
        p.generated_rows = 0;
        return page;
    }

    SUBLIMATE_HD Page& at(int32_t page) { return pages_[page]; }
    SUBLIMATE_HD const Page& at(int32_t page) const { return pages_[page]; }
    SUBLIMATE_HD int32_t page_count() const { return page_count_; }
    SUBLIMATE_HD int32_t free_count() const { return free_count_; }
    SUBLIMATE_HD int32_t cached_count() const { return cached_count_; }
    SUBLIMATE_HD uint64_t evictions() const { return evictions_; }
    SUBLIMATE_HD int32_t first_free() const { return first_free_; }
    SUBLIMATE_HD int32_t oldest() const { return oldest_; }
    // Others see just the pages that can be found.
    SUBLIMATE_HD bool told_truly() const {
        if (!digests_) return true;
        for (uint32_t at = 0; at <= table_mask_; at++)
            if (load_acquire(digests_ + at) != digest_at(at)) return false;
        return true;
    }
    SUBLIMATE_HD bool findable(int32_t page) const {
        for (uint32_t at = home(pages_[page].hash);; at = (at + 1) & table_mask_) {
            if (table_[at] == page) return true;
            if (table_[at] == NO_PAGE) return false;
        }
    }

private:
    SUBLIMATE_HD uint32_t home(uint64_t hash) const { return prefix_home(hash, table_mask_); }

    SUBLIMATE_HD static bool matches(const Page& p, uint64_t hash, int32_t parent, const KvKey& key,
                                     const int32_t* tokens, uint64_t provenance) {
        if (p.hash != hash || !same_key(p.key, key)) return false;
        if (provenance != ANY_PROVENANCE && p.provenance != provenance) return false;
        if (p.parent != parent && !fault(Fault::parent_not_compared)) return false;
        if (fault(Fault::hash_only_hit)) return true;
        for (int32_t i = 0; i < limits::PAGE_TOKENS; i++) {
            if (p.tokens[i] != tokens[i]) return false;
        }
        return true;
    }

    SUBLIMATE_HD void push_free(int32_t page) {
        Page& p = pages_[page];
        p.state = PageState::free;
        p.refcount = 0;
        p.published = false;
        p.newer = first_free_;
        first_free_ = page;
        free_count_++;
    }

    SUBLIMATE_HD void link_newest(int32_t page) {
        Page& p = pages_[page];
        CHECK_BECAUSE(p.refcount == 0 && p.published, "only findable pages without owner are kept");
        p.state = PageState::cached;
        p.older = newest_;
        p.newer = NO_PAGE;
        if (newest_ != NO_PAGE) pages_[newest_].newer = page;
        newest_ = page;
        if (oldest_ == NO_PAGE) oldest_ = page;
        cached_count_++;
    }

    SUBLIMATE_HD void unlink(int32_t page) {
        Page& p = pages_[page];
        CHECK(p.state == PageState::cached && cached_count_ > 0);
        (p.older == NO_PAGE ? oldest_ : pages_[p.older].newer) = p.newer;
        (p.newer == NO_PAGE ? newest_ : pages_[p.newer].older) = p.older;
        cached_count_--;
    }

    SUBLIMATE_HD void evict() {
        int32_t page = oldest_;
        if (fault(Fault::evict_parent_first)) page = newest_;
        if (fault(Fault::evict_live_page)) page = steal_live();
        if (page == NO_PAGE) return;
        if (pages_[page].state == PageState::cached) unlink(page);
        unpublish(page);
        push_free(page);
        evictions_++;
    }

    // Removes a page from the hash table; backward-shift deletion keeps every probe chain whole.
    SUBLIMATE_HD void unpublish(int32_t page) {
        Page& p = pages_[page];
        CHECK_BECAUSE(p.children == 0 || fault(Fault::evict_parent_first), "a parent goes first");
        if (p.parent != NO_PAGE) {
            CHECK(pages_[p.parent].children > 0);
            pages_[p.parent].children--;
        }
        p.published = false;
        uint32_t hole = home(p.hash);
        while (table_[hole] != page) {
            CHECK_BECAUSE(table_[hole] != NO_PAGE, "a published page is not in the table");
            hole = (hole + 1) & table_mask_;
        }
        for (uint32_t at = (hole + 1) & table_mask_; table_[at] != NO_PAGE;
             at = (at + 1) & table_mask_) {
            uint32_t wanted = home(pages_[table_[at]].hash);
            if (((at - wanted) & table_mask_) < ((at - hole) & table_mask_)) continue;
            set_entry(hole, table_[at]); // for a moment twice, rather than nowhere
            hole = at;
        }
        set_entry(hole, NO_PAGE);
    }

    // Who looks from outside sees the digest of what the table has.
    SUBLIMATE_HD uint64_t digest_at(uint32_t at) const {
        return table_[at] == NO_PAGE ? 0 : prefix_digest(pages_[table_[at]].hash);
    }

    SUBLIMATE_HD void set_entry(uint32_t at, int32_t page) {
        CHECK(at <= table_mask_);
        table_[at] = page;
        if (!digests_ || (fault(Fault::prefix_kept) && page == NO_PAGE)) return;
        store_release(digests_ + at, digest_at(at));
    }

    // Only for the planted fault: some published page that is in use and has no children, else the
    // oldest.
    SUBLIMATE_HD int32_t steal_live() const {
        for (int32_t page = 0; page < page_count_; page++) {
            const Page& p = pages_[page];
            if (p.state == PageState::owned && p.published && p.children == 0) return page;
        }
        return oldest_;
    }

    Page* pages_ = nullptr;       // (page_count)
    int32_t* table_ = nullptr;    // (table_mask + 1) page ids, NO_PAGE empty
    uint64_t* digests_ = nullptr; // (table_mask + 1) of these pages; null: not told
    PageHasher hasher_;
    uint64_t evictions_ = 0;
    uint32_t table_mask_ = 0;
    int32_t page_count_ = 0;
    int32_t free_count_ = 0;
    int32_t cached_count_ = 0;
    int32_t first_free_ = NO_PAGE;
    int32_t oldest_ = NO_PAGE;
    int32_t newest_ = NO_PAGE;
};

} // namespace sublimate

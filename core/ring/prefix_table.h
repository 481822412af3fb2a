// What an engine tells all edges, without being asked: a digest of every page that its page cache
// would find, and how busy it is. An edge that can choose between engines sends a prompt to the one
// that holds most of it (loop/page_hash.h hashes both alike).
//
// One writer, the loop; any number of readers in other processes, which only have the memory for
// reading. It is a hint: an entry may come or go, or move, while it is looked for, and the engine
// compares the tokens of each page before it uses it. So there is no lock and no version to check.
//
// The digests lie where the page cache's own hash table has the pages: open addressing, at most
// half full, 0 where nothing is. Free of host-only facilities; the memory is made by
// prefix_memory.h.
//
// defines: PrefixLoad, PrefixControl, PrefixTableView, prefix_layout_bytes, prefix_view,
//          prefix_format, prefix_home, prefix_digest, prefix_has, prefix_pages
#pragma once

#include <cstdint>

#include "ring.h"

namespace sublimate {

// Written after each iteration that did something.
struct PrefixLoad {
    uint64_t running;            // requests that hold pages
    uint64_t waiting;            // accepted, not admitted
    uint64_t prompt_tokens_left; // of both: not computed yet; before admission nothing is
    uint64_t pages_total;
    uint64_t pages_available; // free or cached, and promised to nobody
    uint64_t prompt_row_ps;   // what the scheduler takes a prompt's token to cost
    uint64_t reserved[2];
};

constexpr uint32_t PREFIX_MAGIC = 0x58465250; // "PRFX"
constexpr uint32_t PREFIX_VERSION = 1;

struct PrefixControl {
    uint32_t magic;
    uint32_t version;
    uint64_t entries; // a power of two
    alignas(limits::LINE_PAIR_BYTES) PrefixLoad load;
};
static_assert(sizeof(PrefixControl) == 2 * limits::LINE_PAIR_BYTES);

struct PrefixTableView {
    PrefixControl* control = nullptr; // null: nobody is told anything
    uint64_t* digests = nullptr;      // (mask + 1)
    uint32_t mask = 0;
};

SUBLIMATE_HD constexpr bool prefix_entries_legal(uint64_t entries) {
    return entries >= uint64_t{limits::PREFIX_ENTRIES_MIN} &&
           entries <= uint64_t{limits::PREFIX_ENTRIES_MAX} && (entries & (entries - 1)) == 0;
}

SUBLIMATE_HD constexpr int64_t prefix_layout_bytes(int32_t entries) {
    return int64_t{sizeof(PrefixControl)} + int64_t{entries} * int64_t{sizeof(uint64_t)};
}

// base: prefix_layout_bytes(entries) bytes, of which a reader may have no more than sight.
SUBLIMATE_HD inline PrefixTableView prefix_view(void* base, int32_t entries) {
    CHECK(base != nullptr && prefix_entries_legal(static_cast<uint64_t>(entries)));
    auto* control = static_cast<PrefixControl*>(base);
    return {control, reinterpret_cast<uint64_t*>(control + 1), static_cast<uint32_t>(entries) - 1};
}

// By the writer, once, before anybody else has the memory.
SUBLIMATE_HD inline void prefix_format(const PrefixTableView& view) {
    *view.control = {PREFIX_MAGIC, PREFIX_VERSION, uint64_t{view.mask} + 1, {}};
    for (uint32_t i = 0; i <= view.mask; i++) view.digests[i] = 0;
}

// Where the search for a hash begins, in a table of mask + 1 entries.
SUBLIMATE_HD inline uint32_t prefix_home(uint64_t hash, uint32_t mask) {
    return static_cast<uint32_t>(hash >> 7 ^ hash) & mask;
}

// What stands in the table for a hash; never 0.
SUBLIMATE_HD inline uint64_t prefix_digest(uint64_t hash) {
    return hash | 1;
}

// Bounded, whatever a writer that broke has left there.
SUBLIMATE_HD inline bool prefix_has(const PrefixTableView& view, uint64_t hash) {
    uint32_t home = prefix_home(hash, view.mask);
    for (uint32_t i = 0; i <= view.mask; i++) {
        uint64_t found = load_acquire(view.digests + ((home + i) & view.mask));
        if (found == prefix_digest(hash)) return true;
        if (found == 0) return false;
    }
    return false;
}

// How many of the hashes, of a chain from its beginning, are there without a gap.
SUBLIMATE_HD inline int32_t prefix_pages(const PrefixTableView& view, const uint64_t* hashes,
                                         int32_t count) {
    CHECK(view.control != nullptr && count >= 0);
    int32_t pages = 0;
    while (pages < count && prefix_has(view, hashes[pages])) pages++;
    return pages;
}

} // namespace sublimate

// The chain hash of pages: what leads to a page in the page cache (pages.h), and what an engine
// tells of its pages to the edges (ring/prefix_table.h), which hash a prompt in the same way.
//
// defines: KvKey, same_key, mix_hash, join_words, PageHasher
#pragma once

#include <cstdint>

#include "../limits.h"
#include "fault.h"

namespace sublimate {

// Everything besides the tokens that changes the bits of a page, and the tenant.
struct KvKey {
    int32_t tenant_low;
    int32_t tenant_high;
    int32_t adapter;
    int32_t sparse_mode;
};

SUBLIMATE_HD inline bool same_key(const KvKey& a, const KvKey& b) {
    bool tenant = a.tenant_low == b.tenant_low && a.tenant_high == b.tenant_high;
    if (fault(Fault::key_without_tenant)) tenant = true;
    bool adapter = a.adapter == b.adapter || fault(Fault::key_without_adapter);
    return tenant && adapter && a.sparse_mode == b.sparse_mode;
}

// splitmix64's finaliser: a full-avalanche permutation of 64 bits.
SUBLIMATE_HD inline uint64_t mix_hash(uint64_t value) {
    value += 0x9E3779B97F4A7C15u;
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9u;
    value = (value ^ (value >> 27)) * 0x94D049BB133111EBu;
    return value ^ (value >> 31);
}

SUBLIMATE_HD inline uint64_t join_words(int32_t low, int32_t high) {
    return uint64_t{static_cast<uint32_t>(high)} << 32 | static_cast<uint32_t>(low);
}

// Tenant first, then the other key fields, then page after page. salt: secret, so that hashes can
// neither be chosen by a client nor tell anything of a text. mask: all ones; fewer bits in tests,
// to make collisions.
struct PageHasher {
    uint64_t salt = 0;
    uint64_t mask = ~uint64_t{0};

    SUBLIMATE_HD uint64_t root(const KvKey& key) const {
        KvKey used = key;
        if (fault(Fault::key_without_tenant)) used.tenant_low = used.tenant_high = 0;
        if (fault(Fault::key_without_adapter)) used.adapter = 0;
        uint64_t hash = mix_hash(salt ^ join_words(used.tenant_low, used.tenant_high));
        return mix_hash(hash ^ join_words(used.adapter, used.sparse_mode));
    }

    // tokens: (PAGE_TOKENS). parent: of the page before, or the root.
    SUBLIMATE_HD uint64_t page(uint64_t parent, const int32_t* tokens) const {
        uint64_t hash = parent;
        for (int32_t i = 0; i < limits::PAGE_TOKENS; i += 2)
            hash = mix_hash(hash ^ join_words(tokens[i], tokens[i + 1]));
        return hash & mask;
    }

    // Of the first `pages` whole pages of `tokens`, one behind the other.
    SUBLIMATE_HD void chain(const KvKey& key, const int32_t* tokens, int32_t pages,
                            uint64_t* hashes) const {
        CHECK(pages >= 0 && pages <= limits::PAGES_PER_SEQUENCE_MAX);
        uint64_t hash = root(key);
        for (int32_t i = 0; i < pages; i++)
            hashes[i] = hash = page(hash, tokens + i * limits::PAGE_TOKENS);
    }
};

} // namespace sublimate

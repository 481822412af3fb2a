// The memory of a prefix table: a memfd that only the engine which made it can write. Nobody can
// resize it, and whoever gets the descriptor can map it for reading only.
//
// defines: PrefixMemory
#pragma once

#include <cstdint>

#include "prefix_table.h"
#include "region.h"

namespace sublimate {

class PrefixMemory {
public:
    PrefixMemory() = default;
    PrefixMemory(PrefixMemory&& other) noexcept;
    PrefixMemory& operator=(PrefixMemory&& other) noexcept;
    PrefixMemory(const PrefixMemory&) = delete;
    PrefixMemory& operator=(const PrefixMemory&) = delete;
    ~PrefixMemory();

    // For the writer: formatted, then sealed. entries: as PageStore::table_entries gives them.
    // Null, or why not (static storage, for a person); `memory` is written only if it is null.
    static const char* create(int32_t entries, PrefixMemory& memory);

    // For a reader. Duplicates the descriptor. As above; what arrives is checked first.
    static const char* attach(int fd, PrefixMemory& memory);

    const PrefixTableView& view() const { return view_; } // a reader's must not be written
    int fd() const { return fd_.get(); }

private:
    bool map(int64_t bytes, int protection);

    Descriptor fd_;
    void* base_ = nullptr;
    int64_t bytes_ = 0;
    PrefixTableView view_;
};

} // namespace sublimate

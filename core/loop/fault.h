// Planted faults: bugs that the simulator switches on to prove that it would see them. In a normal
// build `fault` is a constant false and leaves no code behind.
//
// defines: Fault, FAULT_NAMES, fault
#pragma once

#include <cstdint>

#include "../check.h"

namespace sublimate {

enum class Fault : int32_t {
    none,
    wrong_page_freed,
    hash_only_hit,
    key_without_tenant,
    refcount_leak,
    publish_before_computed,
    evict_live_page,
    reservation_ignored,
    adopt_without_reference,
    parent_not_compared,
    evict_parent_first,
    generated_unmarked,
    lost_cancel,
    cancel_ignores_generation,
    double_terminal,
    missing_terminal,
    starve_prefill,
    starve_decode,
    off_by_one_position,
    mask_ignored,
    stale_mask_used,
    score_off_by_one,
    seed_ignores_position,
    nan_kills_neighbours,
    nan_accepted,
    budget_off_by_one,
    stop_token_ignored,
    ring_full_drop,
    cached_last_token,
    no_cache_published,
    detach_keeps_pages,
    stale_next_token,
    draft_not_compared,
    draft_published,
    draft_position,
    draft_beyond_budget,
    draft_page_kept,
    draft_for_masked,
    stale_freedom_used,
    trigger_ignored,
    draft_past_trigger,
    free_end_ignored,
    kept_stop_ends,
    late_row_kept,
    late_row_spins,
    prefix_kept,
    key_without_adapter,
    count,
};

constexpr const char* FAULT_NAMES[static_cast<int32_t>(Fault::count)] = {
    "none",
    "wrong_page_freed",
    "hash_only_hit",
    "key_without_tenant",
    "refcount_leak",
    "publish_before_computed",
    "evict_live_page",
    "reservation_ignored",
    "adopt_without_reference",
    "parent_not_compared",
    "evict_parent_first",
    "generated_unmarked",
    "lost_cancel",
    "cancel_ignores_generation",
    "double_terminal",
    "missing_terminal",
    "starve_prefill",
    "starve_decode",
    "off_by_one_position",
    "mask_ignored",
    "stale_mask_used",
    "score_off_by_one",
    "seed_ignores_position",
    "nan_kills_neighbours",
    "nan_accepted",
    "budget_off_by_one",
    "stop_token_ignored",
    "ring_full_drop",
    "cached_last_token",
    "no_cache_published",
    "detach_keeps_pages",
    "stale_next_token",
    "draft_not_compared",
    "draft_published",
    "draft_position",
    "draft_beyond_budget",
    "draft_page_kept",
    "draft_for_masked",
    "stale_freedom_used",
    "trigger_ignored",
    "draft_past_trigger",
    "free_end_ignored",
    "kept_stop_ends",
    "late_row_kept",
    "late_row_spins",
    "prefix_kept",
    "key_without_adapter",
};

#if defined(SUBLIMATE_FAULTS)
inline Fault planted_fault = Fault::none;
inline bool fault(Fault which) {
    return planted_fault == which;
}
#else
SUBLIMATE_HD constexpr bool fault(Fault) {
    return false;
}
#endif

} // namespace sublimate

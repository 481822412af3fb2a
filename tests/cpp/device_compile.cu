// Compile-only: the headers of the resident loop are device code. A kernel names one entry of each, so that nvcc
// generates code for what a device-resident loop needs; it is never launched. Run by `make cuda`.
#include "core/loop/buckets.h"
#include "core/loop/gumbel.h"
#include "core/loop/kv.h"
#include "core/loop/pages.h"
#include "core/loop/schedule.h"
#include "core/loop/stop.h"
#include "core/ring/ring.h"

namespace sublimate {

__global__ void ring_on_device(void* base, int32_t vocabulary, int32_t* record) {
    RegionView view = region_view(base, vocabulary);
    int32_t slot = submission_pop(view);
    if (slot < 0 || cancel_requested(view, slot, 1) || !mask_ready(view, 0, 0)) return;
    if (token_room_words(view) >= limits::STEP_HEADER_WORDS) token_push(view, record, limits::STEP_HEADER_WORDS);
}

__global__ void pages_on_device(KvCache* cache, PageTable* table, PromptTokens prompt) {
    if (!cache->admit(*table, prompt, pages_for(prompt.length))) return;
    cache->append(*table, 0, prompt.at(0), false);
    cache->commit(*table, 0, 1);
    cache->release(*table, false);
}

} // namespace sublimate

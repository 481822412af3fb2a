// The shared memory between one edge and one engine. Each word has a single writer; whatever the
// other side wrote is treated as input and bounds-checked on each use.
//
//   edge                                            loop
//   Slots::acquire -> record in slot memory
//   submission_push (release)              ------>  submission_pop (acquire)
//   cancel_request (word of a slot)        ------>  cancel_requested, once per step
//   mask words, then mask_publish          ------>  mask_state, when the row is sampled
//   token_pop                              <------  token_try_push, one record per publish
//   trace_read (trace_ring.h)              <------  trace_write, while the edge follows
//   Slots::release (after the terminal row)
//
// Free of host-only facilities: compiles for CUDA device code too. memfd and eventfd are in
// ring/region.h (host).
//
// defines: load_acquire, store_release, RegionControl, StatsPage, RegionView, slot_place,
// submission_*, cancel_*,
//          mask_*, token_*, Slots
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__CUDACC__)
#include <climits> // libcu++ 13.0 uses CHAR_BIT without including it

#include <cuda/atomic>
#endif

#include "../check.h"
#include "../limits.h"
#include "../request.h"

namespace sublimate {

// ---- words that two processes share ---------------------------------------------------------
template <class T>
SUBLIMATE_HD inline T load_acquire(const T* word) {
#if defined(__CUDACC__)
    return cuda::atomic_ref<T, cuda::thread_scope_system>(*const_cast<T*>(word))
        .load(cuda::memory_order_acquire);
#else
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
#endif
}

template <class T>
SUBLIMATE_HD inline void store_release(T* word, T value) {
#if defined(__CUDACC__)
    cuda::atomic_ref<T, cuda::thread_scope_system>(*word).store(value, cuda::memory_order_release);
#else
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
#endif
}

// Store, then load, that must not pass each other: a sleeper announces itself and then looks once
// more.
template <class T>
SUBLIMATE_HD inline void store_sequential(T* word, T value) {
#if defined(__CUDACC__)
    cuda::atomic_ref<T, cuda::thread_scope_system>(*word).store(value, cuda::memory_order_seq_cst);
#else
    __atomic_store_n(word, value, __ATOMIC_SEQ_CST);
#endif
}

template <class T>
SUBLIMATE_HD inline T load_sequential(const T* word) {
#if defined(__CUDACC__)
    return cuda::atomic_ref<T, cuda::thread_scope_system>(*const_cast<T*>(word))
        .load(cuda::memory_order_seq_cst);
#else
    return __atomic_load_n(word, __ATOMIC_SEQ_CST);
#endif
}

// ---- layout ---------------------------------------------------------------------------------
// What the loop tells about itself; written by the loop after each step, read by the edge's
// /metrics and headers.
struct StatsPage {
    uint64_t step_count;
    uint64_t last_step_ns; // monotonic clock when the last step ended; 0 before the first
    uint64_t busy_ns;      // time spent inside steps
    uint64_t running;      // sequences that hold pages
    uint64_t waiting;      // accepted, not admitted
    uint64_t pages_total;
    uint64_t pages_free;     // on the free list
    uint64_t pages_cached;   // refcount 0, still findable
    uint64_t pages_reserved; // promised to running sequences, not yet taken
    uint64_t prompt_tokens;  // of admitted requests, cached ones included
    uint64_t cached_tokens;  // prompt tokens that came from the prefix cache
    uint64_t generated_tokens;
    uint64_t accepted;        // records taken from the ring
    uint64_t finished;        // terminal rows published; accepted - finished returns to 0
    uint64_t cancelled_queue; // by the state the cancel met
    uint64_t cancelled_prefill;
    uint64_t cancelled_decode;
    uint64_t stale_cancels; // generation did not match: counted, no effect
    uint64_t refused;
    uint64_t failed;
    uint64_t mask_waits;      // rows that were computed before their mask was there
    uint64_t ring_full_waits; // steps in which this edge's rows waited for room in the token ring
    uint64_t evictions;
    uint64_t
        utilization_ppm; // share of the measured roofline during the last second, parts per million
    uint64_t last_step_rows;
    uint64_t oldest_waiting_ns; // age of the oldest request that waits; 0 if none
    uint64_t drafted_tokens;    // rows that speculation added
    uint64_t accepted_drafts;   // of these, right ones: tokens that cost no step of their own
    uint64_t launch_ns; // of all steps: from the start of the loop's turn to that of its plan
    uint64_t reserved[3];
};

constexpr uint32_t REGION_MAGIC = 0x4c425553; // "SUBL"
constexpr uint32_t REGION_VERSION = 3;

struct RegionControl {
    // Written once by the creator.
    uint32_t magic;
    uint32_t version;
    uint32_t vocabulary;
    uint32_t mask_words; // 32-bit words of one token mask
    uint64_t total_bytes;
    // Edge writes.
    alignas(limits::LINE_PAIR_BYTES) uint64_t submission_tail;
    alignas(limits::LINE_PAIR_BYTES) uint64_t token_head;    // words consumed
    alignas(limits::LINE_PAIR_BYTES) uint32_t edge_sleeping; // 1: ring the token bell
    // Loop writes.
    alignas(limits::LINE_PAIR_BYTES) uint64_t submission_head;
    alignas(limits::LINE_PAIR_BYTES) uint64_t token_tail;      // words produced
    alignas(limits::LINE_PAIR_BYTES) uint32_t engine_sleeping; // 1: ring the submission bell
    alignas(limits::LINE_PAIR_BYTES) uint64_t engine_heartbeat_ns;
    uint32_t edge_lost; // 1: the loop gave this region up; the edge needs a new one
    alignas(limits::LINE_PAIR_BYTES) StatsPage stats;
    // The trace ring, see trace_ring.h: the edge writes the first, the loop the second.
    alignas(limits::LINE_PAIR_BYTES) uint64_t trace_until_ns;
    alignas(limits::LINE_PAIR_BYTES) uint64_t trace_head; // records written
};

constexpr int64_t REGION_ALIGNMENT_BYTES = 4096; // a memory page: each part can be protected alone
constexpr int64_t REGION_CONTROL_BYTES = REGION_ALIGNMENT_BYTES;
static_assert(sizeof(RegionControl) <= REGION_CONTROL_BYTES);
static_assert(offsetof(RegionControl, submission_tail) == 128);
static_assert(int64_t{limits::TRACE_RECORDS} * limits::TRACE_RECORD_WORDS * 8 %
                  REGION_ALIGNMENT_BYTES ==
              0);

struct RegionLayout {
    int64_t submission, cancel, mask_ready, tokens, masks, slots, trace, total_bytes;
};

SUBLIMATE_HD constexpr int64_t align_up(int64_t value, int64_t alignment) {
    return (value + alignment - 1) / alignment * alignment;
}

SUBLIMATE_HD constexpr int64_t slot_area_words() {
    int64_t words = 0;
    for (int32_t c = 0; c < limits::SLOT_CLASSES; c++)
        words += int64_t{limits::SLOT_WORDS[c]} * limits::SLOT_COUNTS[c];
    return words;
}

// Offsets in bytes; a function of the vocabulary alone, so that neither side reads an offset from
// memory.
SUBLIMATE_HD constexpr RegionLayout region_layout(int32_t vocabulary) {
    RegionLayout at{};
    int64_t mask_words = align_up(vocabulary, 32) / 32;
    at.submission = REGION_CONTROL_BYTES;
    at.cancel = align_up(at.submission + int64_t{limits::SUBMISSION_RING_ENTRIES} * 4,
                         REGION_ALIGNMENT_BYTES);
    at.mask_ready = align_up(at.cancel + int64_t{limits::SLOTS_MAX} * 4, REGION_ALIGNMENT_BYTES);
    at.tokens = align_up(at.mask_ready + int64_t{limits::MASK_SLOTS} * 4, REGION_ALIGNMENT_BYTES);
    at.masks = align_up(at.tokens + int64_t{limits::TOKEN_RING_WORDS} * 4, REGION_ALIGNMENT_BYTES);
    at.slots = align_up(at.masks + limits::MASK_SLOTS * mask_words * 4, REGION_ALIGNMENT_BYTES);
    at.trace = align_up(at.slots + slot_area_words() * 4, REGION_ALIGNMENT_BYTES);
    at.total_bytes =
        at.trace + int64_t{limits::TRACE_RECORDS} * limits::TRACE_RECORD_WORDS * int64_t{8};
    return at;
}

struct SlotPlace {
    int64_t word_offset; // from the start of the slot area
    int32_t words;       // capacity
};

// slot in [0, SLOTS_MAX).
SUBLIMATE_HD inline SlotPlace slot_place(int32_t slot) {
    constexpr auto words = constant_table(limits::SLOT_WORDS);
    constexpr auto counts = constant_table(limits::SLOT_COUNTS);
    int64_t offset = 0;
    int32_t first = 0;
    for (int32_t c = 0; c < limits::SLOT_CLASSES; c++) {
        if (slot < first + counts.at[c])
            return {offset + int64_t{words.at[c]} * (slot - first), words.at[c]};
        offset += int64_t{words.at[c]} * counts.at[c];
        first += counts.at[c];
    }
    CHECK_BECAUSE(false, "slot out of range");
    return {0, 0};
}

// Pointers into a mapped region. Copying it copies no memory.
struct RegionView {
    RegionControl* control = nullptr;
    uint32_t* submission = nullptr; // (SUBMISSION_RING_ENTRIES) slot numbers
    uint32_t* cancel = nullptr;     // (SLOTS_MAX) generation to cancel; 0 none
    uint32_t* mask_ready = nullptr; // (MASK_SLOTS) what the words of the slot are for; see below
    int32_t* tokens = nullptr;      // (TOKEN_RING_WORDS)
    uint32_t* masks = nullptr;      // (MASK_SLOTS, mask_words) bit 1 = allowed
    int32_t* slots = nullptr;       // slot area
    uint64_t* trace = nullptr;      // (TRACE_RECORDS, TRACE_RECORD_WORDS)
    int32_t vocabulary = 0; // private copies: the shared ones are the other side's to damage
    int32_t mask_words = 0;

    SUBLIMATE_HD bool attached() const { return control != nullptr; }
    SUBLIMATE_HD int32_t* slot_memory(int32_t slot) const {
        return slots + slot_place(slot).word_offset;
    }
};

// base: total_bytes of memory, 128-byte aligned.
SUBLIMATE_HD inline RegionView region_view(void* base, int32_t vocabulary) {
    RegionLayout at = region_layout(vocabulary);
    auto* bytes = static_cast<unsigned char*>(base);
    RegionView view;
    view.control = reinterpret_cast<RegionControl*>(bytes);
    view.submission = reinterpret_cast<uint32_t*>(bytes + at.submission);
    view.cancel = reinterpret_cast<uint32_t*>(bytes + at.cancel);
    view.mask_ready = reinterpret_cast<uint32_t*>(bytes + at.mask_ready);
    view.tokens = reinterpret_cast<int32_t*>(bytes + at.tokens);
    view.masks = reinterpret_cast<uint32_t*>(bytes + at.masks);
    view.slots = reinterpret_cast<int32_t*>(bytes + at.slots);
    view.trace = reinterpret_cast<uint64_t*>(bytes + at.trace);
    view.vocabulary = vocabulary;
    view.mask_words = static_cast<int32_t>(align_up(vocabulary, 32) / 32);
    return view;
}

// memory: zeroed. Fills the words that the creator writes.
SUBLIMATE_HD inline void region_format(RegionView& view) {
    RegionLayout at = region_layout(view.vocabulary);
    view.control->magic = REGION_MAGIC;
    view.control->version = REGION_VERSION;
    view.control->vocabulary = static_cast<uint32_t>(view.vocabulary);
    view.control->mask_words = static_cast<uint32_t>(view.mask_words);
    view.control->total_bytes = static_cast<uint64_t>(at.total_bytes);
}

// ---- submission ring: single producer (edge), single consumer (loop) ------------------------
// False when full, which cannot happen while the
// edge owns only SLOTS_MAX slots (limits.h).
SUBLIMATE_HD inline bool submission_push(RegionView& view, int32_t slot) {
    uint64_t tail = view.control->submission_tail;
    uint64_t head = load_acquire(&view.control->submission_head);
    if (tail - head >= uint64_t{limits::SUBMISSION_RING_ENTRIES}) return false;
    view.submission[tail & (limits::SUBMISSION_RING_ENTRIES - 1)] = static_cast<uint32_t>(slot);
    store_sequential(&view.control->submission_tail,
                     tail + 1); // before the look at engine_sleeping
    return true;
}

// The next slot, or -1 when empty. A slot number out of range is returned as it is: the caller
// refuses it.
SUBLIMATE_HD inline int32_t submission_pop(RegionView& view) {
    uint64_t head = view.control->submission_head;
    uint64_t tail = load_acquire(&view.control->submission_tail);
    if (head == tail || tail - head > uint64_t{limits::SUBMISSION_RING_ENTRIES}) return -1;
    uint32_t slot = view.submission[head & (limits::SUBMISSION_RING_ENTRIES - 1)];
    store_release(&view.control->submission_head, head + 1);
    // Never -1, which would read as "empty" and lose the entry.
    return slot < uint32_t{limits::SLOTS_MAX} ? static_cast<int32_t>(slot) : limits::SLOTS_MAX;
}

SUBLIMATE_HD inline bool submission_pending(const RegionView& view) {
    return load_sequential(&view.control->submission_tail) != view.control->submission_head;
}

// ---- cancel words: one writer (edge), read by the loop at each step -------------------------
SUBLIMATE_HD inline void cancel_request(RegionView& view, int32_t slot, int32_t generation) {
    CHECK(slot >= 0 && slot < limits::SLOTS_MAX);
    store_sequential(&view.cancel[slot], static_cast<uint32_t>(generation));
}

SUBLIMATE_HD inline bool cancel_requested(const RegionView& view, int32_t slot,
                                          int32_t generation) {
    return load_acquire(&view.cancel[slot]) == static_cast<uint32_t>(generation);
}

// ---- masks ----------------------------------------------------------------------------------
// A masked request has a mask slot: the words of one mask, and mask_ready, which says what they are
// for. Only the edge writes either.
//
//   mask_ready            meaning
//   0                     nothing yet
//   index + 1             the words are the mask of generated token `index`
//   MASK_FREE | index + 1 from token `index` on no mask is needed, until one is sampled that is in
//                         the request's trigger set; from the next one on they are again
//
// The trigger set is the words of a second slot (bit 1 = a trigger), written only while the request
// is not free; its mask_ready stays 0. Without one, free is for good. A stop token that is a
// trigger cannot end the answer while it is free: it is drawn again without stop tokens. And
// whatever is said before token `free_end` of the request, its freedom ends there; freedom from
// then on does not.
//
// The edge writes words, then mask_ready; the loop reads mask_ready (acquire), then words. The edge
// writes words again only when it has seen token `index`, so what a row is sampled with does not
// depend on when the mask came. While free the loop looks at the triggers alone.
constexpr uint32_t MASK_FREE = 1u << 31;
static_assert(uint32_t{limits::CONTEXT_TOKENS_MAX} < MASK_FREE, "an index leaves the bit alone");

enum class MaskState : int32_t { missing, ready, free };

SUBLIMATE_HD inline void mask_publish(RegionView& view, int32_t mask_slot, uint32_t index) {
    CHECK(index < MASK_FREE - 1);
    store_sequential(&view.mask_ready[mask_slot], index + 1); // before the look at engine_sleeping
}

SUBLIMATE_HD inline void mask_publish_free(RegionView& view, int32_t mask_slot, uint32_t index) {
    CHECK(index < MASK_FREE - 1);
    store_sequential(&view.mask_ready[mask_slot], MASK_FREE | (index + 1));
}

// Before a slot passes to another request, and before that request is submitted: else the last mask
// of its former owner could pass for the first one of the new.
SUBLIMATE_HD inline void mask_clear(RegionView& view, int32_t mask_slot) {
    store_sequential(&view.mask_ready[mask_slot], 0u);
}

// What is known of generated token `index`, which is not free yet.
SUBLIMATE_HD inline MaskState mask_state(const RegionView& view, int32_t mask_slot,
                                         uint32_t index) {
    uint32_t word = load_sequential(&view.mask_ready[mask_slot]); // a sleeper looks once more
    if (word == index + 1) return MaskState::ready;
    return word == (MASK_FREE | (index + 1)) ? MaskState::free : MaskState::missing;
}

SUBLIMATE_HD inline const uint32_t* mask_bits(const RegionView& view, int32_t mask_slot) {
    return view.masks + int64_t{mask_slot} * view.mask_words;
}

SUBLIMATE_HD inline bool mask_has(const uint32_t* words, int32_t token) {
    return (words[token / 32] >> (token % 32) & 1u) != 0;
}

// ---- token ring: single producer (loop), single consumer (edge) -----------------------------
SUBLIMATE_HD inline int64_t token_room_words(const RegionView& view) {
    uint64_t used = view.control->token_tail - load_acquire(&view.control->token_head);
    if (used > uint64_t{limits::TOKEN_RING_WORDS})
        return 0; // a damaged head: no room, never a wild write
    return limits::TOKEN_RING_WORDS - static_cast<int64_t>(used);
}

// Copies one record of `words` words into the ring. The caller has checked token_room_words.
SUBLIMATE_HD inline void token_push(RegionView& view, const int32_t* record, int32_t words) {
    CHECK(words > 0 && words <= token_room_words(view));
    uint64_t tail = view.control->token_tail;
    constexpr uint64_t mask = limits::TOKEN_RING_WORDS - 1;
    for (int32_t i = 0; i < words; i++)
        view.tokens[(tail + static_cast<uint64_t>(i)) & mask] = record[i];
    store_sequential(&view.control->token_tail, tail + static_cast<uint64_t>(words));
}

// The same for a loop that must survive a hostile edge: the room is looked at once, and false is
// returned if it shrank since the caller looked.
SUBLIMATE_HD inline bool token_try_push(RegionView& view, const int32_t* record, int32_t words) {
    if (words <= 0 || words > token_room_words(view)) return false;
    uint64_t tail = view.control->token_tail;
    constexpr uint64_t mask = limits::TOKEN_RING_WORDS - 1;
    for (int32_t i = 0; i < words; i++)
        view.tokens[(tail + static_cast<uint64_t>(i)) & mask] = record[i];
    store_sequential(&view.control->token_tail, tail + static_cast<uint64_t>(words));
    return true;
}

// Copies the next record to `record` (capacity words); returns its words, 0 when empty, -1 when the
// ring holds something that is no record (the engine is broken: the caller must drop the region).
SUBLIMATE_HD inline int32_t token_pop(RegionView& view, int32_t* record, int32_t capacity) {
    uint64_t head = view.control->token_head;
    uint64_t used = load_acquire(&view.control->token_tail) - head;
    if (used == 0) return 0;
    if (used > uint64_t{limits::TOKEN_RING_WORDS}) return -1;
    constexpr uint64_t mask = limits::TOKEN_RING_WORDS - 1;
    int32_t words = load_acquire(&view.tokens[head & mask]); // once: checked, then used
    if (words < limits::STEP_HEADER_WORDS || words > capacity ||
        static_cast<uint64_t>(words) > used)
        return -1;
    for (int32_t i = 0; i < words; i++)
        record[i] = view.tokens[(head + static_cast<uint64_t>(i)) & mask];
    store_release(&view.control->token_head, head + static_cast<uint64_t>(words));
    return words;
}

SUBLIMATE_HD inline bool tokens_pending(const RegionView& view) {
    return load_sequential(&view.control->token_tail) != view.control->token_head;
}

// Largest record a publish can make.
constexpr int32_t TOKEN_RECORD_WORDS_MAX =
    limits::STEP_HEADER_WORDS +
    (limits::SEQUENCES_MAX + limits::QUEUE_MAX) * limits::TOKEN_ROW_WORDS_MAX;
static_assert(TOKEN_RECORD_WORDS_MAX * 4 <= limits::TOKEN_RING_WORDS);

// ---- slots: owned by the edge, private to it ------------------------------------------------
// Free lists per size
// class and the generation of each slot. Not shared memory; used by one thread.
class Slots {
public:
    struct Lease {
        int32_t slot = -1; // -1: no slot of sufficient size is free
        int32_t generation = 0;
    };

    Slots() {
        int32_t slot = 0;
        for (int32_t c = 0; c < limits::SLOT_CLASSES; c++) {
            first_[c] = slot;
            for (int32_t i = limits::SLOT_COUNTS[c] - 1; i >= 0; i--)
                free_[slot + limits::SLOT_COUNTS[c] - 1 - i] = slot + i;
            free_count_[c] = limits::SLOT_COUNTS[c];
            slot += limits::SLOT_COUNTS[c];
        }
    }

    // The smallest free slot of at least `words` words.
    Lease acquire(int64_t words) {
        for (int32_t c = 0; c < limits::SLOT_CLASSES; c++) {
            if (words > limits::SLOT_WORDS[c] || free_count_[c] == 0) continue;
            int32_t slot = free_[first_[c] + --free_count_[c]];
            CHECK_BECAUSE(!taken_[slot], "a slot on the free list is taken");
            taken_[slot] = true;
            if (++generation_[slot] == INT32_MAX) generation_[slot] = 1; // 0 means "no cancel"
            in_use_++;
            return {slot, generation_[slot]};
        }
        return {};
    }

    void release(int32_t slot, int32_t generation) {
        CHECK(slot >= 0 && slot < limits::SLOTS_MAX);
        CHECK_BECAUSE(taken_[slot] && generation_[slot] == generation, "double release of a slot");
        taken_[slot] = false;
        in_use_--;
        for (int32_t c = limits::SLOT_CLASSES - 1; c >= 0; c--) {
            if (slot < first_[c]) continue;
            free_[first_[c] + free_count_[c]++] = slot;
            return;
        }
    }

    bool holds(int32_t slot, int32_t generation) const {
        return slot >= 0 && slot < limits::SLOTS_MAX && taken_[slot] &&
               generation_[slot] == generation;
    }
    int32_t in_use() const { return in_use_; }

private:
    int32_t first_[limits::SLOT_CLASSES] = {};
    int32_t free_count_[limits::SLOT_CLASSES] = {};
    int32_t free_[limits::SLOTS_MAX] = {};
    int32_t generation_[limits::SLOTS_MAX] = {};
    bool taken_[limits::SLOTS_MAX] = {};
    int32_t in_use_ = 0;
};

} // namespace sublimate

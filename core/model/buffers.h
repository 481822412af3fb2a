// All memory that a step writes, laid out once for the largest step, and the KV pages.
//
// defines: ActivationBuffer, StepBuffers, KvArena
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "../cpu/ops.h"
#include "config.h"
#include "memory.h"
#include "populate.h"

namespace sublimate::cpu {

// Writable twin of Activations.
struct ActivationBuffer {
    float* f32 = nullptr;     // (rows, columns)
    int8_t* values = nullptr; // (rows, columns)
    float* scales = nullptr;  // (rows, columns / 32)
    int32_t* sums = nullptr;  // (rows, columns / 32)
    int32_t columns = 0;
    uint16_t* bf16 = nullptr;     // (rows, columns)
    int32_t* half_sums = nullptr; // (rows, columns / 16), if any weights read them

    // The rows from `row` on.
    Activations from_row(int32_t row) const;
    // Fills the int8 form of channels [first, first + count) of a row from `x`, which holds just
    // those. `first` and `count` are whole groups.
    void quantise(const Ops& ops, int32_t row, int32_t first, int32_t count, const float* x) const;
    // The int8 form of row `from` of another buffer of as many columns.
    void copy_quantised(int32_t row, const ActivationBuffer& other, int32_t from) const;
    // Likewise the bf16 form.
    void to_bf16(const Ops& ops, int32_t row, int32_t first, int32_t count, const float* x) const;
    // Fills rows 2 * row and 2 * row + 1 such that their sum stands for `x` with about 15 bits: the
    // second is what rounding took from the first. A matmul over both rows, added, reads the
    // weights once. Channels as for quantise; `scratch` holds `count` floats.
    void quantise_pair(const Ops& ops, int32_t row, int32_t first, int32_t count, const float* x,
                       float* scratch) const;
};

struct StepBuffers {
    float* residual = nullptr;        // (STEP_ROWS_MAX, hidden)
    float* query_key_value = nullptr; // (STEP_ROWS_MAX, query + 2 * kv columns)
    float* cos_sin = nullptr;         // (STEP_ROWS_MAX, rope dimension)
    float* window_cos_sin = nullptr;  // likewise, of layers whose rope is another; else null
    float* branch = nullptr;          // (STEP_ROWS_MAX, hidden) of a block that norms what it adds
    float* logits = nullptr;          // (LOGIT_ROWS_MAX, vocabulary)
    ActivationBuffer normed;          // (STEP_ROWS_MAX, hidden)
    ActivationBuffer normed_pairs;    // (2 * STEP_ROWS_MAX, hidden) int8 only: see quantise_pair
    ActivationBuffer attended_pairs;  // (2 * STEP_ROWS_MAX, query columns) int8 only
    ActivationBuffer attended;        // (STEP_ROWS_MAX, query columns)
    ActivationBuffer gated;           // (STEP_ROWS_MAX * experts_used, feed_forward)
    ActivationBuffer gated_pairs;     // twice as many rows, int8 only
    ActivationBuffer logit_rows;      // (LOGIT_ROWS_MAX, hidden)
    struct PerThread {
        ActivationBuffer normed;         // (REPEATED_NORM_ROWS_MAX, hidden)
        ActivationBuffer normed_pairs;   // (2 * REPEATED_NORM_ROWS_MAX, hidden) int8 only
        ActivationBuffer gathered;       // (BLOCK_ROWS_MAX, hidden) rows of one expert
        ActivationBuffer gathered_pairs; // likewise, int8 only
        float* row = nullptr;            // (the larger of hidden and query columns)
        float* item = nullptr;           // (ITEM_FLOATS_MAX)
        float* second_item = nullptr;    // (ITEM_FLOATS_MAX)
    };
    std::vector<PerThread> threads;

    // halves: with half_sums.
    static Status allocate(const ModelConfig& config, int32_t threads, bool halves,
                           StepBuffers* buffers);

private:
    AnonymousMemory memory_;
};

// Pages of all layers. Memory becomes real when a page is first written or, once requests are
// served, a little before that.
struct KvArena {
    KvLayout layout = {};
    int32_t pages = 0;
    int32_t layers = 0;
    int64_t layer_bytes = 0;
    AnonymousMemory memory;
    std::unique_ptr<PopulateAhead> ahead; // ends before the memory does

    static int64_t page_bytes(const ModelConfig& config, KvType type); // of all layers
    static Status allocate(const ModelConfig& config, KvType type, int64_t bytes, KvArena* arena);
    std::byte* layer(int32_t index) const { return memory.data() + index * layer_bytes; }
    void populate_ahead(); // from now on, ahead of what `use` names
    // A step is about to use this page.
    void use(int32_t page) const {
        if (ahead == nullptr) return;
        ahead->reached((int64_t{page} + 1) * layout.head_bytes * layout.kv_heads);
    }
};

} // namespace sublimate::cpu

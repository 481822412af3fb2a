// All memory of a loop, carved once from one block that the host hands in. After construction the
// loop allocates nothing.
//
// defines: LoopConfig, LoopMemory, loop_memory_bytes, loop_memory
#pragma once

#include <cstdint>

#include "../limits.h"
#include "../ring/ring.h"
#include "cost.h"
#include "draft.h"
#include "edge.h"
#include "kv.h"
#include "sampler.h"
#include "schedule.h"
#include "sequence.h"
#include "step.h"

namespace sublimate {

constexpr int32_t SAMPLE_LANES = 16; // rows sampled at the same time, each with its own scratch

struct LoopConfig {
    int32_t vocabulary = 0;
    int32_t context_tokens = 0; // <= CONTEXT_TOKENS_MAX
    int32_t pages = 0;          // KV pages that the model has
    int32_t sequences_max = limits::SEQUENCES_MAX;
    int32_t queue_max = limits::QUEUE_MAX;
    int32_t sample_lanes = SAMPLE_LANES;
    uint64_t salt = 0;                 // random: keys the hash of the prefix cache
    uint64_t hash_mask = ~uint64_t{0}; // fewer bits only in tests
    bool share_generated = true;       // see KvConfig
    bool same_arithmetic = false;
    int64_t ring_full_deadline_ns = limits::RING_FULL_DEADLINE_NS;
    Policy policy = DEFAULT_POLICY;
    StepCost cost = DEFAULT_STEP_COST; // of this model on this machine
    bool speculation = false;
    int32_t adapters = 0;          // that a request may name, from 1
    PrefixTableView prefixes = {}; // formatted, of table_entries(pages); or null
};

// A row whose logits the step computes.
struct LogitTask {
    int32_t sequence;
    int32_t position;
    MaskState mask; // as the sampler met it
};

struct LoopMemory {
    Page* pages;              // (pages)
    int32_t* hash_table;      // (PageStore::table_entries(pages))
    int32_t* page_tables;     // (sequences_max, pages_per_sequence)
    int32_t* owners;          // (pages) scratch of the audit
    const PageTable** tables; // (sequences_max) scratch of the audit
    Sequence* sequences;      // (sequences_max + queue_max)
    int32_t* free_sequences;  // (sequences_max + queue_max)
    int32_t* queue;           // (queue_max) in order of arrival
    int32_t* running;         // (sequences_max) in order of admission
    int32_t* free_rows;       // (sequences_max) rows of page_tables
    Candidate* candidates;    // (sequences_max)
    Drafter* drafters;        // (sequences_max) by row of page_tables; null without speculation
    Plan* plan;
    int32_t* tokens;        // (STEP_ROWS_MAX)
    int32_t* positions;     // (STEP_ROWS_MAX)
    Segment* segments;      // (sequences_max)
    int32_t* logit_rows;    // (LOGIT_ROWS_MAX)
    LogitTask* tasks;       // (LOGIT_ROWS_MAX)
    Sample* samples;        // (LOGIT_ROWS_MAX)
    SampleScratch* scratch; // (sample_lanes)
    Edge* edges;            // (EDGES_MAX)
    int32_t pages_per_sequence;
};

namespace memory {

constexpr int64_t ALIGNMENT_BYTES = 64;

// Hands out pieces of a block; with a null base it only counts.
struct Arena {
    unsigned char* base;
    int64_t used_bytes;

    template <class T>
    SUBLIMATE_HD T* take(int64_t count) {
        int64_t at = used_bytes;
        used_bytes = align_up(at + count * static_cast<int64_t>(sizeof(T)), ALIGNMENT_BYTES);
        return base ? reinterpret_cast<T*>(base + at) : nullptr;
    }
};

SUBLIMATE_HD inline void carve_drafters(const LoopConfig& config, Arena& arena, LoopMemory& m) {
    int32_t entries = ngram_entries(config.context_tokens);
    m.drafters = arena.take<Drafter>(config.sequences_max);
    for (int32_t i = 0; i < config.sequences_max; i++) {
        auto* places = arena.take<int32_t>(int64_t{NGRAM_LENGTHS} * entries);
        if (!m.drafters) continue;
        m.drafters[i].places = places;
        m.drafters[i].entries = entries;
    }
}

SUBLIMATE_HD inline LoopMemory carve(const LoopConfig& config, Arena& arena) {
    LoopMemory m = {};
    int32_t sequences = config.sequences_max + config.queue_max;
    m.pages_per_sequence = pages_for(config.context_tokens);
    m.pages = arena.take<Page>(config.pages);
    m.hash_table = arena.take<int32_t>(PageStore::table_entries(config.pages));
    m.page_tables = arena.take<int32_t>(int64_t{config.sequences_max} * m.pages_per_sequence);
    m.owners = arena.take<int32_t>(config.pages);
    m.tables = arena.take<const PageTable*>(config.sequences_max);
    m.sequences = arena.take<Sequence>(sequences);
    m.free_sequences = arena.take<int32_t>(sequences);
    m.queue = arena.take<int32_t>(config.queue_max);
    m.running = arena.take<int32_t>(config.sequences_max);
    m.free_rows = arena.take<int32_t>(config.sequences_max);
    m.candidates = arena.take<Candidate>(config.sequences_max);
    if (config.speculation) carve_drafters(config, arena, m);
    m.plan = arena.take<Plan>(1);
    m.tokens = arena.take<int32_t>(limits::STEP_ROWS_MAX);
    m.positions = arena.take<int32_t>(limits::STEP_ROWS_MAX);
    m.segments = arena.take<Segment>(config.sequences_max);
    m.logit_rows = arena.take<int32_t>(limits::LOGIT_ROWS_MAX);
    m.tasks = arena.take<LogitTask>(limits::LOGIT_ROWS_MAX);
    m.samples = arena.take<Sample>(limits::LOGIT_ROWS_MAX);
    m.scratch = arena.take<SampleScratch>(config.sample_lanes);
    m.edges = arena.take<Edge>(limits::EDGES_MAX);
    for (int32_t i = 0; i < limits::EDGES_MAX; i++) {
        auto* record = arena.take<int32_t>(TOKEN_RECORD_WORDS_MAX);
        auto* cancel_seen = arena.take<uint32_t>(limits::SLOTS_MAX);
        if (!m.edges) continue;
        m.edges[i] = {};
        m.edges[i].record = record;
        m.edges[i].cancel_seen = cancel_seen;
    }
    for (int32_t i = 0; i < config.sample_lanes; i++) {
        SampleScratch lane = {};
        lane.logits = arena.take<float>(config.vocabulary);
        lane.counts = arena.take<int32_t>(config.vocabulary);
        lane.select.ids = arena.take<int32_t>(config.vocabulary);
        lane.select.weights = arena.take<float>(config.vocabulary);
        if (!m.scratch) continue;
        m.scratch[i] = lane;
        for (int32_t id = 0; id < config.vocabulary; id++) lane.counts[id] = 0;
    }
    return m;
}

SUBLIMATE_HD inline void check_config(const LoopConfig& c) {
    CHECK(c.vocabulary >= 2 && c.vocabulary <= limits::VOCABULARY_MAX);
    CHECK(c.context_tokens >= 1 && c.context_tokens <= limits::CONTEXT_TOKENS_MAX);
    CHECK(c.pages >= 1 && c.sample_lanes >= 1);
    CHECK(c.sequences_max >= 1 && c.sequences_max <= limits::SEQUENCES_MAX);
    CHECK(c.ring_full_deadline_ns > 0 && sane_policy(c.policy));
    CHECK(sane_cost(c.cost));
    CHECK(c.pages <= limits::KV_PAGES_MAX);
    CHECK(c.adapters >= 0 && c.adapters <= limits::ADAPTERS_MAX);
    CHECK_BECAUSE(c.prefixes.control == nullptr ||
                      c.prefixes.mask + 1 ==
                          static_cast<uint32_t>(PageStore::table_entries(c.pages)),
                  "the prefix table is not as large as the page index");
    CHECK(c.queue_max >= 1 && c.queue_max <= limits::QUEUE_MAX);
}

} // namespace memory

SUBLIMATE_HD inline int64_t loop_memory_bytes(const LoopConfig& config) {
    memory::check_config(config);
    memory::Arena arena = {nullptr, 0};
    memory::carve(config, arena);
    return arena.used_bytes;
}

// block: loop_memory_bytes(config) bytes, 64-byte aligned, owned by the caller and outliving the
// loop. May be dirty: everything that is read before it is written is set here or by the loop.
SUBLIMATE_HD inline LoopMemory loop_memory(const LoopConfig& config, void* block) {
    memory::check_config(config);
    memory::Arena arena = {static_cast<unsigned char*>(block), 0};
    return memory::carve(config, arena);
}

} // namespace sublimate

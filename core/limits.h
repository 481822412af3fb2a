// Every bound of the core, in one place, each with its reason; static_asserts relate them to each
// other. Python imports these from the extension and never repeats a number.
#pragma once

#include <cstdint>

namespace sublimate::limits {

// ---- requests -------------------------------------------------------------------------------
// Ring pairs one engine serves, one edge process each: sixteen workers, and some that take over.
constexpr int32_t EDGES_MAX = 20;
constexpr int32_t SEQUENCES_MAX = 128; // requests that run at once (rows of a decode step)
constexpr int32_t QUEUE_MAX = 384; // accepted requests that wait in the engine, all edges together
constexpr int32_t CONTEXT_TOKENS_MAX = 131072;
constexpr int32_t VOCABULARY_MAX = 262208; // of the larger Gemma 3
constexpr int32_t STOP_TOKENS_MAX = 8;     // token ids that end a request, tested inside the loop
constexpr int32_t LOGIT_BIAS_MAX = 256;    // (token, bias) pairs of one request
constexpr int32_t LOGPROBS_MAX = 20;       // alternatives reported per token
constexpr int32_t PRIORITIES_MAX = 3;      // one per execution profile

// ---- slots: where request records live in shared memory -------------------------------------
// A record takes the smallest free slot that holds it. Five size classes make prompts of 131,000
// tokens possible without giving every short prompt 2 MiB.
constexpr int32_t SLOT_CLASSES = 5;
constexpr int32_t SLOT_WORDS[SLOT_CLASSES] = {1024, 4096, 16384, 65536, 524288};
constexpr int32_t SLOT_COUNTS[SLOT_CLASSES] = {256, 128, 64, 32, 8};
constexpr int32_t SLOTS_MAX = 488;
constexpr int32_t MASK_SLOTS = 256; // token masks and triggers of all that run, per edge

// ---- rings ----------------------------------------------------------------------------------
constexpr int32_t CACHE_LINE_BYTES = 64;
constexpr int32_t LINE_PAIR_BYTES =
    128; // head and tail this far apart: the adjacent-line prefetcher
constexpr int32_t SUBMISSION_RING_ENTRIES = 512; // power of two, so that indices wrap by a mask
constexpr int32_t TOKEN_RING_WORDS = 1 << 18;    // 1 MiB: some thousand steps of 32 rows
constexpr int32_t TOKEN_ROW_WORDS = 8;           // fixed part of a row of a step record
constexpr int32_t STEP_HEADER_WORDS = 8;
constexpr int32_t TOKEN_ROW_WORDS_MAX = TOKEN_ROW_WORDS + 2 * LOGPROBS_MAX;
constexpr int32_t TRACE_RECORD_WORDS = 8;  // of 64 bits: one cache line
constexpr int32_t TRACE_RECORDS = 1 << 14; // 1 MiB: a second of full batches in quick steps

// ---- steps ----------------------------------------------------------------------------------
constexpr int32_t STEP_ROWS_MAX = 1024; // token budget of the largest step
constexpr int32_t LOGIT_ROWS_MAX = 128; // rows of a step whose logits are computed
constexpr int32_t PAGE_TOKENS = 32; // tokens per KV page: one cache line of bf16 keys per channel
constexpr int32_t PAGES_PER_SEQUENCE_MAX = CONTEXT_TOKENS_MAX / PAGE_TOKENS;
// A quarter of memory at most is for keys and values, of all engines of a model together.
constexpr int32_t KV_MEMORY_SHARE = 4;
constexpr int32_t KV_PAGES_MAX = 1 << 20; // 32 M tokens: of the smallest model in all memory
// Digests of pages that an engine shows to edges, in a table at most half full.
constexpr int32_t PREFIX_ENTRIES_MIN = 4;
constexpr int32_t PREFIX_ENTRIES_MAX = 2 * KV_PAGES_MAX;
constexpr int32_t SPIN_ROUNDS = 2048; // bounded spin before a wait for work sleeps
// Before a wait inside a step sleeps: the others are at work, and waking takes longer than most
// waits, but one whose core is taken away is gone for milliseconds.
constexpr int32_t BARRIER_SPIN_ROUNDS = 8192;
constexpr int64_t RING_FULL_DEADLINE_NS =
    5'000'000'000; // an edge that reads nothing for so long is lost

// ---- speculation ----------------------------------------------------------------------------
constexpr int32_t DRAFT_TOKENS_MAX = 15; // of one sequence in one step; with its own row a tile
constexpr int32_t MATCH_TOKENS_MAX = 16; // a longer repetition says nothing more
constexpr int32_t NGRAM_ENTRIES_MAX = 1 << 14; // places remembered per sequence and n-gram length
constexpr int32_t HISTORY_TOKENS_PER_STEP = 1024; // tokens of a sequence indexed in one step

// ---- text -----------------------------------------------------------------------------------
constexpr int32_t STOP_STRINGS_MAX = 64; // of a client
constexpr int32_t TURN_ENDS_MAX = 2;     // strings with which a template of plain words ends a turn
constexpr int32_t STOP_STRING_BYTES_MAX = 1024;
constexpr int32_t TOKEN_BYTES_MAX = 1024; // bytes of one vocabulary entry
constexpr int32_t MARKERS_MAX = 8;        // openings of a block format
constexpr int32_t MARKER_BYTES_MAX = 64;
constexpr int32_t TOOL_NAME_BYTES_MAX = 128;
constexpr int32_t FRAME_BYTES_MAX =
    1 << 20; // of a binary frame, less its length: what a reader holds
constexpr int32_t LENIENT_MARKERS_MAX = 32; // pairs of other families
constexpr int32_t LENIENT_CALLS_BYTES_MAX =
    1 << 16;                           // of text that may be calls: held until the answer ends
constexpr int32_t CALL_DEPTH_MAX = 48; // of a call's JSON: less than a client may send back

// ---- files ----------------------------------------------------------------------------------
constexpr int64_t GGUF_TENSORS_MAX = 65536;
constexpr int64_t GGUF_KEYS_MAX = 65536;
constexpr int64_t GGUF_PARTS_MAX = 1024; // files of one model
// Of all values together: twice what the largest vocabularies take. Nobody reads the last.
constexpr int64_t GGUF_METADATA_BYTES_MAX = 32 << 20;
constexpr int64_t GGUF_ELEMENTS_MAX = 1 << 21;
constexpr int64_t GGUF_STRING_BYTES_MAX = 4 << 20;
constexpr int64_t GGUF_UNREAD_BYTES_MAX = 64 << 20; // tokenizer.huggingface.json
constexpr int64_t GGUF_TEXT_BYTES_MAX = 96 << 20;   // of a folder that `convert` has packed
constexpr int32_t GGUF_DIMENSIONS_MAX = 4;
constexpr int64_t GGUF_KEY_BYTES_MAX = 65535;      // of the format's specification
constexpr int64_t GGUF_TENSOR_NAME_BYTES_MAX = 64; // likewise
constexpr int64_t GGUF_ALIGNMENT_MAX = 1 << 20;    // a larger one is no file that a writer made

// ---- models: what one loaded model may be, products of these fit int64 ----------------
constexpr int32_t LAYERS_MAX = 1024;
constexpr int32_t HIDDEN_MAX = 1 << 18; // also feed-forward columns
constexpr int32_t HEADS_MAX = 1024;
constexpr int32_t EXPERTS_MAX = 1024;    // of a layer
constexpr int32_t EXPERTS_USED_MAX = 32; // by a row: all rows of a step have room for theirs
constexpr int32_t HEAD_DIM_MAX = 256;    // the kernels keep a head's output on the stack

// ---- adapters -------------------------------------------------------------------------------
constexpr int32_t ADAPTERS_MAX = 64;      // loaded with one model
constexpr int32_t ADAPTER_RANK_MAX = 512; // larger ones are not low

// ---- threads --------------------------------------------------------------------------------
constexpr int32_t COMPUTE_THREADS_MAX = 64;

constexpr int32_t slot_class_sum(const int32_t (&counts)[SLOT_CLASSES]) {
    int32_t sum = 0;
    for (int32_t count : counts) sum += count;
    return sum;
}

static_assert(slot_class_sum(SLOT_COUNTS) == SLOTS_MAX);
static_assert((SUBMISSION_RING_ENTRIES & (SUBMISSION_RING_ENTRIES - 1)) == 0);
static_assert((TOKEN_RING_WORDS & (TOKEN_RING_WORDS - 1)) == 0);
static_assert(SUBMISSION_RING_ENTRIES > SLOTS_MAX,
              "every slot of an edge can be submitted at once");
static_assert(LOGIT_ROWS_MAX >= SEQUENCES_MAX, "every running request can sample in one step");
static_assert(LOGIT_ROWS_MAX <= QUEUE_MAX,
              "a record of all sampled rows and one row per running request fits (ring.h)");
static_assert((NGRAM_ENTRIES_MAX & (NGRAM_ENTRIES_MAX - 1)) == 0);
static_assert(STEP_ROWS_MAX >= 2 * SEQUENCES_MAX, "a full decode batch leaves room for prefill");
static_assert(PAGE_TOKENS * 2 == CACHE_LINE_BYTES,
              "one bf16 key channel of a page is one cache line");
static_assert(CONTEXT_TOKENS_MAX % PAGE_TOKENS == 0);
static_assert((PREFIX_ENTRIES_MAX & (PREFIX_ENTRIES_MAX - 1)) == 0 &&
                  (PREFIX_ENTRIES_MIN & (PREFIX_ENTRIES_MIN - 1)) == 0,
              "tables of pages wrap by a mask");
static_assert(KV_PAGES_MAX >= 4 * PAGES_PER_SEQUENCE_MAX, "several of the longest requests fit");
static_assert(FRAME_BYTES_MAX > 2 * TOKEN_BYTES_MAX, "the text of a token fits one frame");
static_assert(int64_t{EXPERTS_MAX} * HIDDEN_MAX < INT32_MAX, "rows of all experts are counted");
// The worst record (every running request reports every alternative) fits the ring many times over.
static_assert((STEP_HEADER_WORDS + SEQUENCES_MAX * TOKEN_ROW_WORDS_MAX) * 8 <= TOKEN_RING_WORDS);

} // namespace sublimate::limits

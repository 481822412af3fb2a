// The extension module sublimate._core: constants that Python must not repeat, then the classes of
// each part.
//
// defines: bind_constants, the module
#include <nanobind/nanobind.h>

#include <cstddef>

#include "../limits.h"
#include "../request.h"
#include "bindings.h"

namespace nb = nanobind;

namespace sublimate {

namespace {

struct NamedNumber {
    const char* name;
    int64_t value;
};

#define LIMIT(name) {#name, limits::name}
// Every scalar of limits.h; a test compares the names with the header.
constexpr NamedNumber LIMITS[] = {
    LIMIT(EDGES_MAX),
    LIMIT(SEQUENCES_MAX),
    LIMIT(KV_MEMORY_SHARE),
    LIMIT(QUEUE_MAX),
    LIMIT(CONTEXT_TOKENS_MAX),
    LIMIT(VOCABULARY_MAX),
    LIMIT(STOP_TOKENS_MAX),
    LIMIT(LOGIT_BIAS_MAX),
    LIMIT(LOGPROBS_MAX),
    LIMIT(PRIORITIES_MAX),
    LIMIT(SLOT_CLASSES),
    LIMIT(SLOTS_MAX),
    LIMIT(MASK_SLOTS),
    LIMIT(CACHE_LINE_BYTES),
    LIMIT(LINE_PAIR_BYTES),
    LIMIT(SUBMISSION_RING_ENTRIES),
    LIMIT(TOKEN_RING_WORDS),
    LIMIT(TOKEN_ROW_WORDS),
    LIMIT(STEP_HEADER_WORDS),
    LIMIT(TOKEN_ROW_WORDS_MAX),
    LIMIT(TRACE_RECORD_WORDS),
    LIMIT(TRACE_RECORDS),
    LIMIT(STEP_ROWS_MAX),
    LIMIT(LOGIT_ROWS_MAX),
    LIMIT(PAGE_TOKENS),
    LIMIT(PAGES_PER_SEQUENCE_MAX),
    LIMIT(KV_PAGES_MAX),
    LIMIT(PREFIX_ENTRIES_MIN),
    LIMIT(PREFIX_ENTRIES_MAX),
    LIMIT(DRAFT_TOKENS_MAX),
    LIMIT(MATCH_TOKENS_MAX),
    LIMIT(NGRAM_ENTRIES_MAX),
    LIMIT(HISTORY_TOKENS_PER_STEP),
    LIMIT(SPIN_ROUNDS),
    LIMIT(BARRIER_SPIN_ROUNDS),
    LIMIT(RING_FULL_DEADLINE_NS),
    LIMIT(STOP_STRINGS_MAX),
    LIMIT(TURN_ENDS_MAX),
    LIMIT(STOP_STRING_BYTES_MAX),
    LIMIT(MARKERS_MAX),
    LIMIT(MARKER_BYTES_MAX),
    LIMIT(TOOL_NAME_BYTES_MAX),
    LIMIT(FRAME_BYTES_MAX),
    LIMIT(LENIENT_MARKERS_MAX),
    LIMIT(LENIENT_CALLS_BYTES_MAX),
    LIMIT(CALL_DEPTH_MAX),
    LIMIT(TOKEN_BYTES_MAX),
    LIMIT(GGUF_TENSORS_MAX),
    LIMIT(GGUF_KEYS_MAX),
    LIMIT(GGUF_PARTS_MAX),
    LIMIT(GGUF_METADATA_BYTES_MAX),
    LIMIT(GGUF_ELEMENTS_MAX),
    LIMIT(GGUF_STRING_BYTES_MAX),
    LIMIT(GGUF_UNREAD_BYTES_MAX),
    LIMIT(GGUF_TEXT_BYTES_MAX),
    LIMIT(GGUF_DIMENSIONS_MAX),
    LIMIT(GGUF_KEY_BYTES_MAX),
    LIMIT(GGUF_TENSOR_NAME_BYTES_MAX),
    LIMIT(GGUF_ALIGNMENT_MAX),
    LIMIT(LAYERS_MAX),
    LIMIT(HIDDEN_MAX),
    LIMIT(HEADS_MAX),
    LIMIT(EXPERTS_MAX),
    LIMIT(EXPERTS_USED_MAX),
    LIMIT(HEAD_DIM_MAX),
    LIMIT(ADAPTERS_MAX),
    LIMIT(ADAPTER_RANK_MAX),
    LIMIT(COMPUTE_THREADS_MAX),
};
#undef LIMIT

constexpr NamedNumber FLAGS[] = {
    {"ignore_eos", FLAG_IGNORE_EOS}, {"score", FLAG_SCORE},   {"score_decode", FLAG_SCORE_DECODE},
    {"no_cache", FLAG_NO_CACHE},     {"masked", FLAG_MASKED}, {"seeded", FLAG_SEEDED},
};

struct RequestField {
    const char* name;
    size_t offset_bytes;
    size_t size_bytes;
};

#define FIELD(name) {#name, offsetof(RequestHeader, name), sizeof(RequestHeader::name)}
constexpr RequestField REQUEST_FIELDS[] = {
    FIELD(version),
    FIELD(slot),
    FIELD(generation),
    FIELD(profile),
    FIELD(prompt_length),
    FIELD(token_budget),
    FIELD(temperature_bits),
    FIELD(top_k),
    FIELD(top_p_bits),
    FIELD(min_p_bits),
    FIELD(repetition_penalty_bits),
    FIELD(presence_penalty_bits),
    FIELD(frequency_penalty_bits),
    FIELD(seed_low),
    FIELD(seed_high),
    FIELD(flags),
    FIELD(logprobs),
    FIELD(logit_bias_count),
    FIELD(stop_token_count),
    FIELD(stop_tokens),
    FIELD(adapter),
    FIELD(mask_slot),
    FIELD(tenant_low),
    FIELD(tenant_high),
    FIELD(sparse_mode),
    FIELD(shard_count),
    FIELD(submitted_ns_low),
    FIELD(submitted_ns_high),
    FIELD(trigger_slot),
    FIELD(free_end),
    FIELD(reserved),
};
#undef FIELD

constexpr size_t field_bytes() {
    size_t bytes = 0;
    for (const RequestField& field : REQUEST_FIELDS) bytes += field.size_bytes;
    return bytes;
}
static_assert(field_bytes() == sizeof(RequestHeader), "a field of the header is missing here");

template <size_t count>
nb::dict numbers(const NamedNumber (&table)[count]) {
    nb::dict result;
    for (const NamedNumber& entry : table) result[entry.name] = entry.value;
    return result;
}

void bind_constants(nb::module_& m) {
    nb::dict fields;
    for (const RequestField& field : REQUEST_FIELDS)
        fields[field.name] = nb::make_tuple(field.offset_bytes / sizeof(int32_t),
                                            field.size_bytes / sizeof(int32_t));
    m.attr("LIMITS") = numbers(LIMITS);
    m.attr("FLAGS") = numbers(FLAGS);
    m.attr("REQUEST_FIELDS") = fields;
    m.attr("REQUEST_HEADER_WORDS") = REQUEST_HEADER_WORDS;
    m.attr("REQUEST_VERSION") = REQUEST_VERSION;
}

} // namespace

} // namespace sublimate

NB_MODULE(_core, m) {
    using namespace sublimate;
    // A process that ends on a signal still holds its engine and region: no leak worth a report to
    // whoever pressed control-C.
    nb::set_leak_warnings(false);
    nb::exception<CoreError>(m, "CoreError");
    bind_constants(m);
    bind_blocks(m);
    bind_edge(m);
    bind_byte_pairs(m);
    bind_json_bounds(m);
    bind_model(m);
    bind_engine(m);
    bind_limits(m);
    bind_policy(m);
    bind_prefixes(m);
    bind_trace(m);
    bind_kernel(m);
}

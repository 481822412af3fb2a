// Python's view of an edge: Region, Vocabulary, StreamEvent, EdgeClient. A thin layer: what happens
// is in ring/region.h and text/edge_client.h; here objects are kept alive and values change their
// type. See _core.pyi for the contract.
//
// defines: PythonEvent, PythonClient, bind_region, bind_vocabulary, bind_histogram, bind_event,
// bind_masks, bind_client, bind_edge
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <bit>
#include <string>
#include <vector>

#include "../text/edge_client.h"
#include "bindings.h"
#include "stats.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace sublimate {

namespace {

// ---- Region ------------------------------------------------------------------------------------
Region create_region(int32_t vocabulary) {
    Region region;
    RegionStatus status = Region::create(vocabulary, region);
    if (status != RegionStatus::ok) throw CoreError(region_status_text(status));
    return region;
}

Region attach_region(int memory_fd, int submission_bell_fd, int token_bell_fd) {
    Region region;
    RegionStatus status = Region::attach({memory_fd, submission_bell_fd, token_bell_fd}, region);
    if (status != RegionStatus::ok) throw CoreError(region_status_text(status));
    return region;
}

struct StatsField {
    const char* name;
    uint64_t StatsPage::* word;
};

#define STAT(name) {#name, &StatsPage::name}
constexpr StatsField STATS_FIELDS[] = {
    STAT(step_count),       STAT(last_step_ns),      STAT(busy_ns),         STAT(running),
    STAT(waiting),          STAT(pages_total),       STAT(pages_free),      STAT(pages_cached),
    STAT(pages_reserved),   STAT(prompt_tokens),     STAT(cached_tokens),   STAT(generated_tokens),
    STAT(accepted),         STAT(finished),          STAT(cancelled_queue), STAT(cancelled_prefill),
    STAT(cancelled_decode), STAT(stale_cancels),     STAT(refused),         STAT(failed),
    STAT(mask_waits),       STAT(ring_full_waits),   STAT(evictions),       STAT(utilization_ppm),
    STAT(last_step_rows),   STAT(oldest_waiting_ns), STAT(drafted_tokens),  STAT(accepted_drafts),
    STAT(launch_ns),
};
#undef STAT
static_assert(sizeof(StatsPage) ==
                  (std::size(STATS_FIELDS) + std::size(StatsPage{}.reserved)) * sizeof(uint64_t),
              "a field of the stats page is missing here");

nb::dict region_stats(const Region& region) {
    const RegionControl* control = region.view().control;
    nb::dict result = stats_dict(control->stats);
    result["engine_heartbeat_ns"] = load_acquire(&control->engine_heartbeat_ns);
    return result;
}

void bind_region(nb::module_& m) {
    nb::class_<Region>(m, "Region")
        .def_static("create", &create_region, "vocabulary"_a)
        .def_static("attach", &attach_region, "memory_fd"_a, "submission_bell_fd"_a,
                    "token_bell_fd"_a)
        .def_prop_ro("fds",
                     [](const Region& region) {
                         RegionDescriptors fds = region.descriptors();
                         return nb::make_tuple(fds.memory, fds.submission_bell, fds.token_bell);
                     })
        .def_prop_ro("vocabulary", [](const Region& region) { return region.view().vocabulary; })
        .def("stats", &region_stats);
}

// ---- Vocabulary --------------------------------------------------------------------------------
void fill_vocabulary(Vocabulary* place, const nb::sequence& tokens) {
    new (place) Vocabulary();
    size_t count = nb::len(tokens);
    for (size_t i = 0; i < count; i++) {
        auto bytes = nb::cast<nb::bytes>(tokens[i]);
        VocabularyStatus status =
            place->add({static_cast<const char*>(bytes.data()), bytes.size()});
        if (status == VocabularyStatus::ok) continue;
        throw CoreError(status == VocabularyStatus::too_many
                            ? "the vocabulary has too many tokens"
                            : "a token of the vocabulary is too long");
    }
}

nb::bytes decode_ids(const Vocabulary& vocabulary, const std::vector<int32_t>& ids) {
    std::string bytes;
    for (int32_t id : ids) bytes.append(vocabulary.bytes(id));
    return nb::bytes(bytes.data(), bytes.size());
}

void bind_vocabulary(nb::module_& m) {
    nb::class_<Vocabulary>(m, "Vocabulary")
        .def(
            "__init__",
            [](Vocabulary* place, nb::sequence tokens) { fill_vocabulary(place, tokens); },
            "tokens"_a)
        .def("__len__", &Vocabulary::size)
        .def("decode", &decode_ids, "ids"_a);
}

// ---- Histogram ---------------------------------------------------------------------------------
void make_histogram(Histogram* place, std::vector<double> edges) {
    if (!std::is_sorted(edges.begin(), edges.end())) throw nb::value_error("edges ascend");
    new (place) Histogram(std::move(edges));
}

void bind_histogram(nb::module_& m) {
    nb::class_<Histogram>(m, "Histogram")
        .def("__init__", &make_histogram, "edges"_a)
        .def("observe", &Histogram::observe, "value"_a)
        .def_prop_ro("edges", [](const Histogram& histogram) { return histogram.edges(); })
        .def_prop_ro("counts", [](const Histogram& histogram) { return histogram.counts(); })
        .def_prop_ro("sum", &Histogram::sum);
}

// ---- StreamEvent -------------------------------------------------------------------------------
// An event with its own copies: one bytes object per request and poll, whatever the number of
// tokens.
struct PythonEvent {
    int64_t key;
    bool admitted;
    bool finished;
    int32_t cached_tokens;
    int32_t output_tokens;
    int32_t thinking_tokens;
    int32_t bucket_rows;
    uint64_t submitted_ns;
    uint64_t admitted_ns;
    uint64_t first_token_ns;
    uint64_t last_record_ns;
    uint64_t polled_ns;
    uint64_t encoded_ns;
    uint64_t first_sent_ns;
    const char* stop_reason;
    const char* refuse_reason;
    const char* fail_reason;
    nb::object data;
    nb::object text;
    nb::object pieces;
    nb::object stop_sequence;
    nb::object token_ids;
    nb::object logprobs;
    nb::object logprob_ids;
};

const char* refuse_reason_name(RefuseReason reason) {
    switch (reason) {
    case RefuseReason::none:
        return "";
    case RefuseReason::too_long:
        return "too_long";
    case RefuseReason::queue_full:
        return "queue_full";
    case RefuseReason::malformed:
        return "malformed";
    }
    return "";
}

const char* fail_reason_name(FailReason reason) {
    switch (reason) {
    case FailReason::none:
        return "";
    case FailReason::not_finite:
        return "not_finite";
    case FailReason::nothing_allowed:
        return "nothing_allowed";
    }
    return "";
}

nb::list token_list(std::span<const int32_t> ids) {
    nb::list result;
    for (int32_t id : ids) result.append(id);
    return result;
}

nb::list logprob_list(const StreamEvent& event) {
    nb::list result;
    size_t at = 0;
    for (const TokenLogprobs& token : event.logprobs) {
        nb::list pairs;
        for (int32_t i = 0; i < token.pair_count; i++, at++) {
            const LogprobPair& pair = event.logprob_pairs[at];
            pairs.append(nb::make_tuple(pair.token, pair.logprob));
        }
        result.append(nb::make_tuple(token.chosen, pairs));
    }
    return result;
}

nb::list logprob_id_list(const StreamEvent& event) {
    nb::list result;
    for (const TokenLogprobs& token : event.logprobs) result.append(token.token);
    return result;
}

const char* piece_kind(StreamPiece::Kind kind) {
    switch (kind) {
    case StreamPiece::Kind::text:
        return "text";
    case StreamPiece::Kind::thinking:
        return "thinking";
    case StreamPiece::Kind::tool_start:
        return "tool_start";
    case StreamPiece::Kind::arguments:
        return "arguments";
    case StreamPiece::Kind::stop:
        return "stop";
    }
    return "";
}

nb::list piece_list(std::span<const StreamPiece> pieces) {
    nb::list result;
    for (const StreamPiece& piece : pieces)
        result.append(nb::make_tuple(piece_kind(piece.kind),
                                     nb::str(piece.text.data(), piece.text.size()),
                                     nb::str(piece.id.data(), piece.id.size())));
    return result;
}

PythonEvent python_event(const StreamEvent& event) {
    nb::object stop_sequence = nb::none();
    if (event.stop_index >= 0)
        stop_sequence = nb::str(event.stop_string.data(), event.stop_string.size());
    return {event.key,
            event.admitted,
            event.finished,
            event.cached_tokens,
            event.output_tokens,
            event.thinking_tokens,
            event.bucket_rows,
            event.submitted_ns,
            event.admitted_ns,
            event.first_token_ns,
            event.last_record_ns,
            event.polled_ns,
            event.encoded_ns,
            event.first_sent_ns,
            stop_reason_name(event.reason),
            refuse_reason_name(event.refuse_reason),
            fail_reason_name(event.fail_reason),
            nb::bytes(event.data.data(), event.data.size()),
            nb::str(event.text.data(), event.text.size()),
            piece_list(event.pieces),
            stop_sequence,
            token_list(event.token_ids),
            logprob_list(event),
            logprob_id_list(event)};
}

void bind_event(nb::module_& m) {
    nb::class_<PythonEvent>(m, "StreamEvent")
        .def_ro("key", &PythonEvent::key)
        .def_ro("data", &PythonEvent::data)
        .def_ro("admitted", &PythonEvent::admitted)
        .def_ro("finished", &PythonEvent::finished)
        .def_ro("cached_tokens", &PythonEvent::cached_tokens)
        .def_ro("output_tokens", &PythonEvent::output_tokens)
        .def_ro("thinking_tokens", &PythonEvent::thinking_tokens)
        .def_ro("bucket_rows", &PythonEvent::bucket_rows)
        .def_ro("stop_reason", &PythonEvent::stop_reason)
        .def_ro("refuse_reason", &PythonEvent::refuse_reason)
        .def_ro("fail_reason", &PythonEvent::fail_reason)
        .def_ro("stop_sequence", &PythonEvent::stop_sequence)
        .def_ro("text", &PythonEvent::text)
        .def_ro("pieces", &PythonEvent::pieces)
        .def_ro("token_ids", &PythonEvent::token_ids)
        .def_ro("logprobs", &PythonEvent::logprobs)
        .def_ro("logprob_ids", &PythonEvent::logprob_ids)
        .def_ro("submitted_ns", &PythonEvent::submitted_ns)
        .def_ro("admitted_ns", &PythonEvent::admitted_ns)
        .def_ro("first_token_ns", &PythonEvent::first_token_ns)
        .def_ro("last_record_ns", &PythonEvent::last_record_ns)
        .def_ro("polled_ns", &PythonEvent::polled_ns)
        .def_ro("encoded_ns", &PythonEvent::encoded_ns)
        .def_ro("first_sent_ns", &PythonEvent::first_sent_ns);
}

// ---- EdgeClient --------------------------------------------------------------------------------
// A plain memoryview: the edge serves without numpy, which takes as long to load as all else of it.
using Int32View = nb::ndarray<nb::memview, int32_t, nb::ndim<1>>;
using Int32Array = nb::ndarray<nb::numpy, int32_t, nb::ndim<1>>;
using Float32Array = nb::ndarray<nb::numpy, float, nb::ndim<1>>;
using MaskView = nb::ndarray<nb::numpy, uint32_t, nb::ndim<1>>;

// The client with the Python objects whose memory it uses.
struct PythonClient {
    PythonClient(nb::object region_object, nb::object vocabulary_object, nb::object gaps_object,
                 std::string_view signature_key)
        : region(std::move(region_object)), vocabulary(std::move(vocabulary_object)),
          gaps(std::move(gaps_object)),
          client(nb::cast<Region&>(region), object_or_null<const Vocabulary>(vocabulary),
                 object_or_null<Histogram>(gaps), signature_key) {}

    template <class T>
    static T* object_or_null(const nb::object& object) {
        return object.is_none() ? nullptr : nb::cast<T*>(object);
    }

    nb::object region;
    nb::object vocabulary;
    nb::object gaps;
    EdgeClient client;
    std::vector<StreamEvent> events; // of the last poll; kept so that a poll does not allocate it
};

// CoreError for a broken engine, ValueError for a caller that uses the client wrongly.
void raise_unless_ok(ClientStatus status) {
    if (status == ClientStatus::ok) return;
    if (status == ClientStatus::engine_broken) throw CoreError(client_status_text(status));
    throw nb::value_error(client_status_text(status));
}

StreamFormat format_named(std::string_view name) {
    if (name == "sse") return StreamFormat::sse;
    if (name == "text") return StreamFormat::text;
    if (name == "raw") return StreamFormat::raw;
    if (name == "blocks") return StreamFormat::blocks;
    if (name == "frames") return StreamFormat::frames;
    throw nb::value_error("format is one of sse, frames, text, raw, blocks");
}

// The view keeps the Region's Python object alive, and with it the mapping.
nb::object acquire_slot(PythonClient& self, int64_t words) {
    EdgeClient::Lease lease = self.client.acquire(words);
    if (lease.slot < 0) return nb::none();
    Int32View view(lease.words.data(), {lease.words.size()}, self.region);
    return nb::make_tuple(lease.slot, lease.generation, view.cast());
}

nb::object mask_view(PythonClient& self, int32_t mask_slot) {
    std::span<uint32_t> words = self.client.mask_words(mask_slot);
    if (words.empty()) raise_unless_ok(ClientStatus::bad_mask);
    return MaskView(words.data(), {words.size()}, self.region).cast();
}

void submit_slot(PythonClient& self, int32_t slot, int32_t generation, int64_t key,
                 std::string_view format, const std::vector<std::string>& stop_strings,
                 const std::vector<std::string>& turn_ends, bool drops_space,
                 const std::string& message_id, const std::string& model, int64_t input_tokens,
                 bool chunked, std::shared_ptr<BlockFormat> blocks) {
    StreamRequest request{key,       format_named(format), stop_strings, message_id,
                          model,     input_tokens,         chunked,      std::move(blocks),
                          turn_ends, drops_space};
    raise_unless_ok(self.client.submit(slot, generation, request));
}

void discard_slot(PythonClient& self, int32_t slot, int32_t generation) {
    if (!self.client.discard(slot, generation)) raise_unless_ok(ClientStatus::not_held);
}

nb::list poll_events(PythonClient& self) {
    if (!self.client.poll(self.events)) raise_unless_ok(ClientStatus::engine_broken);
    nb::list result;
    for (const StreamEvent& event : self.events) result.append(nb::cast(python_event(event)));
    return result;
}

template <class T, class Array>
nb::object owned_array(std::vector<T>&& values) {
    auto* kept = new std::vector<T>(std::move(values));
    nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
    return Array(kept->data(), {kept->size()}, owner).cast();
}

nb::object read_scores(PythonClient& self, int32_t slot, int32_t generation) {
    std::span<const int32_t> words = self.client.scores(slot, generation);
    if (words.empty()) raise_unless_ok(ClientStatus::not_held);
    std::vector<float> logprobs(words.size() / 2);
    std::vector<int32_t> best(words.size() / 2);
    for (size_t i = 0; i < best.size(); i++) {
        logprobs[i] = std::bit_cast<float>(words[2 * i]);
        best[i] = words[2 * i + 1];
    }
    self.client.discard(slot, generation);
    return nb::make_tuple(owned_array<float, Float32Array>(std::move(logprobs)),
                          owned_array<int32_t, Int32Array>(std::move(best)));
}

void bind_masks(nb::class_<PythonClient>& client) {
    client
        .def(
            "publish_mask",
            [](PythonClient& self, int32_t mask_slot, uint32_t index) {
                raise_unless_ok(self.client.publish_mask(mask_slot, index));
            },
            "mask_slot"_a, "index"_a)
        .def(
            "publish_free",
            [](PythonClient& self, int32_t mask_slot, uint32_t index) {
                raise_unless_ok(self.client.publish_free(mask_slot, index));
            },
            "mask_slot"_a, "index"_a)
        .def(
            "clear_mask",
            [](PythonClient& self, int32_t mask_slot) {
                raise_unless_ok(self.client.clear_mask(mask_slot));
            },
            "mask_slot"_a)
        .def("mask_words", &mask_view, "mask_slot"_a);
}

void bind_client(nb::module_& m) {
    nb::class_<PythonClient> client(m, "EdgeClient");
    bind_masks(client);
    client
        .def(
            "__init__",
            [](PythonClient* place, nb::handle_t<Region> region, nb::object vocabulary,
               nb::object gaps, const nb::bytes& signature_key) {
                if (!vocabulary.is_none() && !nb::isinstance<Vocabulary>(vocabulary))
                    throw nb::type_error("vocabulary is a Vocabulary or None");
                if (!gaps.is_none() && !nb::isinstance<Histogram>(gaps))
                    throw nb::type_error("gaps is a Histogram or None");
                new (place) PythonClient(nb::borrow(region), std::move(vocabulary), std::move(gaps),
                                         {signature_key.c_str(), signature_key.size()});
            },
            "region"_a, "vocabulary"_a.none(), "gaps"_a.none() = nb::none(),
            "signature_key"_a = nb::bytes("", 0))
        .def("acquire", &acquire_slot, "words"_a)
        .def("submit", &submit_slot, "slot"_a, "generation"_a, "key"_a, nb::kw_only(), "format"_a,
             "stop_strings"_a = std::vector<std::string>(),
             "turn_ends"_a = std::vector<std::string>(), "drops_space"_a = false,
             "message_id"_a = "", "model"_a = "", "input_tokens"_a = 0, "chunked"_a = false,
             "blocks"_a.none() = nb::none())
        .def("discard", &discard_slot, "slot"_a, "generation"_a)
        .def(
            "cancel",
            [](PythonClient& self, int32_t slot, int32_t generation) {
                self.client.cancel(slot, generation);
            },
            "slot"_a, "generation"_a)
        .def(
            "lend",
            [](PythonClient& self, int32_t slot, int32_t generation, int socket) {
                return self.client.lend(slot, generation, socket);
            },
            "slot"_a, "generation"_a, "socket"_a)
        .def(
            "unlend",
            [](PythonClient& self, int32_t slot, int32_t generation) {
                self.client.unlend(slot, generation);
            },
            "slot"_a, "generation"_a)
        .def(
            "progress",
            [](const PythonClient& self, int32_t slot, int32_t generation) {
                StreamProgress progress = self.client.progress(slot, generation);
                return nb::make_tuple(progress.output_tokens, progress.sent_ns);
            },
            "slot"_a, "generation"_a)
        .def("poll", &poll_events)
        .def("scores", &read_scores, "slot"_a, "generation"_a)
        .def("sleep_prepare", [](PythonClient& self) { return self.client.sleep_prepare(); })
        .def("clear_bell", [](PythonClient& self) { self.client.clear_bell(); })
        .def_prop_ro("in_flight", [](const PythonClient& self) { return self.client.in_flight(); })
        .def_prop_ro("slots_in_use",
                     [](const PythonClient& self) { return self.client.slots_in_use(); })
        .def_prop_ro("stale_rows",
                     [](const PythonClient& self) { return self.client.stale_rows(); })
        .def_prop_ro("text_ns", [](const PythonClient& self) { return self.client.text_ns(); })
        .def_prop_ro("text_tokens",
                     [](const PythonClient& self) { return self.client.text_tokens(); })
        .def_prop_ro("heard_ns", [](const PythonClient& self) { return self.client.heard_ns(); });
}

} // namespace

nb::dict stats_dict(const StatsPage& page) {
    nb::dict result;
    for (const StatsField& field : STATS_FIELDS)
        result[field.name] = load_acquire(&(page.*field.word));
    return result;
}

void bind_edge(nb::module_& m) {
    bind_region(m);
    bind_vocabulary(m);
    bind_histogram(m);
    bind_event(m);
    bind_client(m);
}

} // namespace sublimate

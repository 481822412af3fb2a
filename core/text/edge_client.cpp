// EdgeClient: slots and submission first, then the way of a token row through the text path.
#include "edge_client.h"

#include <sys/socket.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <ctime>
#include <utility>

namespace sublimate {

namespace {

uint64_t monotonic_ns() {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    constexpr uint64_t NS_PER_SECOND = 1'000'000'000;
    return static_cast<uint64_t>(now.tv_sec) * NS_PER_SECOND + static_cast<uint64_t>(now.tv_nsec);
}

constexpr int32_t WORD_BITS = 32;
constexpr int32_t ROW_FLAGS_ALL = ROW_ADMITTED | ROW_TOKEN | ROW_FINISHED;

bool is_mask_slot(int32_t mask_slot) {
    return mask_slot >= 0 && mask_slot < limits::MASK_SLOTS;
}

uint64_t join(int32_t low, int32_t high) {
    return uint64_t{static_cast<uint32_t>(high)} << WORD_BITS | static_cast<uint32_t>(low);
}

StopReason stop_reason(int32_t reason) {
    switch (static_cast<FinishReason>(reason)) {
    case FinishReason::stop_token:
        return StopReason::end_turn;
    case FinishReason::budget:
        return StopReason::max_tokens;
    case FinishReason::cancelled:
        return StopReason::cancelled;
    case FinishReason::refused:
        return StopReason::refused;
    case FinishReason::failed:
        return StopReason::failed;
    case FinishReason::scored:
        return StopReason::scored;
    case FinishReason::none:
        break;
    }
    return StopReason::none;
}

// The header fits its slot and agrees with the lease. What the values mean to the loop is the
// loop's to check.
bool header_fits(const RequestHeader& header, int32_t slot, int32_t generation,
                 StreamFormat format) {
    if (header.version != REQUEST_VERSION || header.slot != slot || header.generation != generation)
        return false;
    if (header.prompt_length < 1 || header.token_budget < 0 || header.logit_bias_count < 0 ||
        header.logit_bias_count > limits::LOGIT_BIAS_MAX || header.logprobs < -1 ||
        header.logprobs > limits::LOGPROBS_MAX)
        return false;
    bool score = (header.flags & FLAG_SCORE) != 0;
    if (score && format != StreamFormat::raw) return false;
    return request_words(header.prompt_length, header.logit_bias_count, score) <=
           slot_place(slot).words;
}

} // namespace

const char* client_status_text(ClientStatus status) {
    switch (status) {
    case ClientStatus::ok:
        return "ok";
    case ClientStatus::not_held:
        return "the slot is not held in the state that this call needs";
    case ClientStatus::no_vocabulary:
        return "a text format needs a vocabulary";
    case ClientStatus::stop_without_text:
        return "stop strings need a text format";
    case ClientStatus::bad_stop_strings:
        return "stop strings are too many, too long or empty";
    case ClientStatus::bad_blocks:
        return "a block format needs a text format, and markers and names that can be found";
    case ClientStatus::bad_record:
        return "the record's header does not fit its slot";
    case ClientStatus::bad_mask:
        return "no such mask slot, or no token of this index";
    case ClientStatus::engine_broken:
        return "the engine damaged the rings of the region";
    }
    return "unknown client status";
}

// One request, private to the edge. What bounds the engine's rows is copied from the record at
// submission, because the slot's memory is the engine's to damage afterwards.
struct EdgeClient::Stream {
    int32_t slot = 0;
    int32_t generation = 0;
    int64_t key = 0;
    StreamFormat format = StreamFormat::raw;
    RequestHeader header{};
    bool admitted = false;
    bool touched = false;
    bool admitted_now = false; // in this poll
    bool token_now = false;    // likewise
    StopReason reason = StopReason::none;
    RefuseReason refuse_reason = RefuseReason::none;
    FailReason fail_reason = FailReason::none;
    int32_t cached_tokens = 0;
    int32_t output_tokens = 0;
    int32_t bucket_rows = 0;
    uint64_t submitted_ns = 0;
    uint64_t admitted_ns = 0;
    uint64_t first_token_ns = 0;
    uint64_t first_sent_ns = 0;
    uint64_t last_record_ns = 0;
    uint64_t token_ns = 0; // of the last poll with tokens
    uint64_t sent_ns = 0;
    int socket = -1; // lent; else -1
    TextStream text;
    std::vector<int32_t> token_ids; // of this poll, as the next two
    std::vector<TokenLogprobs> logprobs;
    std::vector<LogprobPair> logprob_pairs;

    bool scores() const { return (header.flags & FLAG_SCORE) != 0; }
    bool shows_text() const { return format != StreamFormat::raw; }
    void begin();
    void tell(StreamEvent& event);
};

void EdgeClient::Stream::begin() {
    admitted_now = token_now = false;
    token_ids.clear();
    logprobs.clear();
    logprob_pairs.clear();
    if (shows_text()) text.begin();
}

// Fills a new event.
void EdgeClient::Stream::tell(StreamEvent& event) {
    event.key = key;
    event.admitted = admitted_now;
    event.finished = reason != StopReason::none;
    event.reason = reason;
    event.refuse_reason = refuse_reason;
    event.fail_reason = fail_reason;
    event.cached_tokens = cached_tokens;
    event.output_tokens = output_tokens;
    event.bucket_rows = bucket_rows;
    event.submitted_ns = submitted_ns;
    event.admitted_ns = admitted_ns;
    event.first_token_ns = first_token_ns;
    event.first_sent_ns = first_sent_ns;
    event.last_record_ns = last_record_ns;
    event.token_ids = token_ids;
    event.logprobs = logprobs;
    event.logprob_pairs = logprob_pairs;
    if (!shows_text()) return;
    (is_framed(format) ? event.data : event.text) = text.collect();
    if (!is_framed(format)) event.pieces = text.pieces();
    event.thinking_tokens = static_cast<int32_t>(text.usage().thinking_tokens);
    event.stop_index = text.stop_index();
    if (event.stop_index >= 0) event.stop_string = text.stop_string();
}

EdgeClient::EdgeClient(Region& region, const Vocabulary* vocabulary, Histogram* gaps,
                       std::string_view signature_key)
    : region_(region), view_(region.view()), vocabulary_(vocabulary), gaps_(gaps),
      signer_(signature_key), record_(static_cast<size_t>(TOKEN_RECORD_WORDS_MAX)) {
    CHECK_BECAUSE(view_.attached(), "an edge client needs a mapped region");
    touched_.reserve(size_t{limits::SLOTS_MAX});
    speaking_.reserve(size_t{limits::SLOTS_MAX});
}

EdgeClient::~EdgeClient() = default;

// ---- slots and submission ----------------------------------------------------------------------
EdgeClient::Lease EdgeClient::acquire(int64_t words) {
    Slots::Lease lease = slots_.acquire(words);
    if (lease.slot < 0) return {};
    std::unique_ptr<Stream>& stream = streams_[lease.slot];
    if (!stream) stream = std::make_unique<Stream>();
    states_[lease.slot] = State::acquired;

    int32_t* memory = view_.slot_memory(lease.slot);
    RequestHeader header{};
    header.version = REQUEST_VERSION;
    header.slot = lease.slot;
    header.generation = lease.generation;
    std::memcpy(memory, &header, sizeof header);
    auto capacity = static_cast<size_t>(slot_place(lease.slot).words);
    return {lease.slot, lease.generation, {memory, capacity}};
}

// Whether the rings still connect us to a loop.
bool EdgeClient::connected() {
    broken_ |= load_acquire(&view_.control->edge_lost) != 0;
    return !broken_;
}

ClientStatus EdgeClient::submit(int32_t slot, int32_t generation, const StreamRequest& request) {
    if (!connected()) return ClientStatus::engine_broken;
    if (!slots_.holds(slot, generation) || states_[slot] != State::acquired)
        return ClientStatus::not_held;
    int32_t* memory = view_.slot_memory(slot);
    RequestHeader header;
    std::memcpy(&header, memory, sizeof header);
    if (!header_fits(header, slot, generation, request.format)) return ClientStatus::bad_record;

    Stream& stream = *streams_[slot];
    if (request.format == StreamFormat::raw) {
        if (!request.stop_strings.empty() || !request.turn_ends.empty())
            return ClientStatus::stop_without_text;
        if (request.blocks != nullptr) return ClientStatus::bad_blocks;
    } else {
        if (vocabulary_ == nullptr) return ClientStatus::no_vocabulary;
        if (request.blocks != nullptr && check_format(*request.blocks) != BlockStatus::ok)
            return ClientStatus::bad_blocks;
        TextSettings settings{request.format,
                              request.stop_strings,
                              request.message_id,
                              request.model,
                              request.input_tokens > 0 ? request.input_tokens
                                                       : header.prompt_length,
                              request.chunked,
                              request.blocks,
                              &signer_,
                              request.turn_ends,
                              request.drops_space};
        if (stream.text.start(settings, vocabulary_) != StopStatus::ok)
            return ClientStatus::bad_stop_strings;
    }
    uint64_t now = monotonic_ns();
    header.submitted_ns_low = static_cast<int32_t>(now & UINT32_MAX);
    header.submitted_ns_high = static_cast<int32_t>(now >> WORD_BITS);
    std::memcpy(memory, &header, sizeof header);

    stream.slot = slot;
    stream.generation = generation;
    stream.key = request.key;
    stream.format = request.format;
    stream.header = header;
    stream.admitted = stream.touched = false;
    stream.reason = StopReason::none;
    stream.refuse_reason = RefuseReason::none;
    stream.fail_reason = FailReason::none;
    stream.cached_tokens = stream.output_tokens = stream.bucket_rows = 0;
    stream.submitted_ns = now;
    stream.admitted_ns = stream.first_token_ns = stream.last_record_ns = 0;
    stream.first_sent_ns = 0;
    stream.token_ns = stream.sent_ns = 0;
    stream.socket = -1;
    if (!submission_push(view_, slot)) {
        broken_ = true; // only damaged indices make the ring look full
        return ClientStatus::engine_broken;
    }
    states_[slot] = State::submitted;
    in_flight_++;
    if (sleep_announced(&view_.control->engine_sleeping)) wake_engine();
    return ClientStatus::ok;
}

bool EdgeClient::discard(int32_t slot, int32_t generation) {
    if (!slots_.holds(slot, generation)) return false;
    if (states_[slot] != State::acquired && states_[slot] != State::scored) return false;
    if (states_[slot] == State::scored) in_flight_--;
    states_[slot] = State::free;
    slots_.release(slot, generation);
    return true;
}

void EdgeClient::wake_engine() {
    region_.ring_bell(Bell::submission);
}

void EdgeClient::cancel(int32_t slot, int32_t generation) {
    Stream* stream = running(slot, generation);
    if (stream == nullptr) return;
    stream->socket = -1;
    cancel_request(view_, slot, generation);
    // Rare, so the bell is rung whatever the engine announced: it need not look at all cancel words
    // to sleep.
    wake_engine();
}

EdgeClient::Stream* EdgeClient::running(int32_t slot, int32_t generation) const {
    bool runs = slots_.holds(slot, generation) && states_[slot] == State::submitted;
    return runs ? streams_[slot].get() : nullptr;
}

// ---- lent sockets ------------------------------------------------------------------------------
bool EdgeClient::lend(int32_t slot, int32_t generation, int socket) {
    Stream* stream = running(slot, generation);
    if (stream == nullptr || !is_framed(stream->format) || socket < 0) return false;
    stream->socket = socket;
    return true;
}

void EdgeClient::unlend(int32_t slot, int32_t generation) {
    if (Stream* stream = running(slot, generation)) stream->socket = -1;
}

StreamProgress EdgeClient::progress(int32_t slot, int32_t generation) const {
    const Stream* stream = running(slot, generation);
    if (stream == nullptr) return {};
    return {stream->output_tokens, stream->sent_ns};
}

// Whether the event has nothing left to say. Leaves in its data what the lender has to write.
bool EdgeClient::write_to_socket(Stream& stream, StreamEvent& event) {
    int socket = std::exchange(stream.socket, -1);
    if (event.finished) return false;
    ssize_t sent = send(socket, event.data.data(), event.data.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    // An error is the lender's to find out: it has the connection.
    if (sent > 0) event.data.remove_prefix(static_cast<size_t>(sent));
    if (!event.data.empty()) return false;
    stream.socket = socket;
    stream.sent_ns = heard_ns_;
    if (stream.output_tokens > 0 && stream.first_sent_ns == 0)
        stream.first_sent_ns = monotonic_ns();
    event.first_sent_ns = stream.first_sent_ns;
    return event.token_ids.empty(); // whoever makes its masks needs to know them
}

void EdgeClient::write_to_sockets(std::vector<StreamEvent>& events) {
    CHECK_BECAUSE(speaking_.size() == events.size(), "an event went to another's socket");
    size_t kept = 0;
    for (size_t i = 0; i < events.size(); i++) {
        bool lent = speaking_[i]->socket >= 0 && !events[i].data.empty();
        if (lent && write_to_socket(*speaking_[i], events[i])) continue;
        events[kept++] = events[i];
    }
    events.resize(kept);
}

std::span<const int32_t> EdgeClient::scores(int32_t slot, int32_t generation) const {
    if (!slots_.holds(slot, generation) || states_[slot] != State::scored) return {};
    const RequestHeader& header = streams_[slot]->header;
    const int32_t* results = view_.slot_memory(slot) + REQUEST_HEADER_WORDS + header.prompt_length +
                             2 * header.logit_bias_count;
    return {results, static_cast<size_t>(header.prompt_length) * 2};
}

// ---- masks -------------------------------------------------------------------------------------
std::span<uint32_t> EdgeClient::mask_words(int32_t mask_slot) {
    if (!is_mask_slot(mask_slot)) return {};
    return {view_.masks + int64_t{mask_slot} * view_.mask_words,
            static_cast<size_t>(view_.mask_words)};
}

ClientStatus EdgeClient::clear_mask(int32_t mask_slot) {
    if (!is_mask_slot(mask_slot)) return ClientStatus::bad_mask;
    mask_clear(view_, mask_slot);
    mask_free_[mask_slot] = false;
    return ClientStatus::ok;
}

ClientStatus EdgeClient::publish_mask(int32_t mask_slot, uint32_t index) {
    if (!is_mask_slot(mask_slot) || index >= uint32_t{limits::CONTEXT_TOKENS_MAX})
        return ClientStatus::bad_mask;
    mask_publish(view_, mask_slot, index);
    return mask_published(mask_slot, false);
}

ClientStatus EdgeClient::publish_free(int32_t mask_slot, uint32_t index) {
    if (!is_mask_slot(mask_slot) || index >= uint32_t{limits::CONTEXT_TOKENS_MAX})
        return ClientStatus::bad_mask;
    mask_publish_free(view_, mask_slot, index);
    return mask_published(mask_slot, true);
}

ClientStatus EdgeClient::mask_published(int32_t mask_slot, bool free) {
    mask_free_[mask_slot] = free;
    if (sleep_announced(&view_.control->engine_sleeping)) wake_engine();
    return ClientStatus::ok;
}

// Whether the next mask of the stream depends on this token. Ends its freedom if it is a trigger,
// as the loop does.
bool EdgeClient::is_watched(const Stream& stream, int32_t token) {
    const RequestHeader& header = stream.header;
    if ((header.flags & FLAG_MASKED) == 0 || !is_mask_slot(header.mask_slot)) return false;
    bool& free = mask_free_[header.mask_slot];
    if (free && stream.output_tokens == header.free_end) free = false;
    if (free && is_mask_slot(header.trigger_slot))
        free = !mask_has(mask_bits(view_, header.trigger_slot), token);
    return !free;
}

// ---- tokens ------------------------------------------------------------------------------------
bool EdgeClient::sleep_prepare() {
    sleep_announce(&view_.control->edge_sleeping);
    if (!tokens_pending(view_)) return true;
    sleep_end(&view_.control->edge_sleeping);
    return false;
}

void EdgeClient::clear_bell() {
    sleep_end(&view_.control->edge_sleeping);
    region_.clear_bell(Bell::token);
}

void EdgeClient::begin_poll() {
    for (Stream* stream : touched_) {
        stream->touched = false;
        if (stream->reason != StopReason::none) stream->text.trim();
    }
    touched_.clear();
    speaking_.clear();
}

bool EdgeClient::poll(std::vector<StreamEvent>& events) {
    events.clear();
    if (!connected()) return false;
    begin_poll();
    uint64_t polled_ns = monotonic_ns();
    // One ring's worth at most, so that an engine that never stops writing cannot keep the edge
    // here.
    int64_t budget_words = limits::TOKEN_RING_WORDS;
    while (budget_words > 0) {
        int32_t words = token_pop(view_, record_.data(), TOKEN_RECORD_WORDS_MAX);
        if (words == 0) break;
        if (words < 0 || !apply_record(record_.data(), words)) {
            broken_ = true;
            return false;
        }
        budget_words -= words;
    }
    if (!touched_.empty()) heard_ns_ = polled_ns;
    collect_events(polled_ns, events);
    write_to_sockets(events);
    return true;
}

// record: private copy. Its own word count is not trusted: it may have changed after token_pop
// looked at it.
bool EdgeClient::apply_record(const int32_t* record, int32_t words) {
    StepRecord header;
    std::memcpy(&header, record, sizeof header);
    uint64_t time_ns = join(header.time_ns_low, header.time_ns_high);
    int32_t at = limits::STEP_HEADER_WORDS;
    for (int32_t i = 0; i < header.row_count; i++) {
        TokenRow row;
        if (words - at < limits::TOKEN_ROW_WORDS) return false;
        std::memcpy(&row, record + at, sizeof row);
        at += limits::TOKEN_ROW_WORDS;
        if (row.extra_pairs < 0 || row.extra_pairs > limits::LOGPROBS_MAX ||
            words - at < 2 * row.extra_pairs)
            return false;
        if (!apply_row(row, record + at, time_ns)) return false;
        at += 2 * row.extra_pairs;
    }
    return at == words;
}

bool EdgeClient::apply_row(const TokenRow& row, const int32_t* pairs, uint64_t time_ns) {
    State state = slots_.holds(row.slot, row.generation) ? states_[row.slot] : State::free;
    if (state != State::submitted && state != State::draining) {
        stale_rows_++;
        return true;
    }
    if (row.flags == 0 || (row.flags & ~ROW_FLAGS_ALL) != 0) return false;
    Stream& stream = *streams_[row.slot];
    if (state == State::submitted) {
        touch(stream);
        // As the engine wrote it, but never before what is known already.
        stream.last_record_ns = std::max({time_ns, stream.submitted_ns, stream.last_record_ns});
        if ((row.flags & ROW_ADMITTED) != 0 && !apply_admission(stream, row)) return false;
        if ((row.flags & ROW_TOKEN) != 0 && !apply_token(stream, row, pairs)) return false;
    }
    if ((row.flags & ROW_FINISHED) != 0) return apply_end(stream, row);
    return true;
}

void EdgeClient::touch(Stream& stream) {
    if (stream.touched) return;
    stream.touched = true;
    stream.begin();
    touched_.push_back(&stream);
}

bool EdgeClient::apply_admission(Stream& stream, const TokenRow& row) {
    if (stream.admitted || (row.flags & ROW_TOKEN) != 0) return false;
    if (row.token < 0 || row.token > stream.header.prompt_length || row.detail < 0) return false;
    stream.admitted = stream.admitted_now = true;
    stream.admitted_ns = stream.last_record_ns;
    stream.cached_tokens = row.token;
    stream.bucket_rows = row.detail;
    if (stream.shows_text()) stream.text.admit(row.token);
    return true;
}

bool EdgeClient::apply_token(Stream& stream, const TokenRow& row, const int32_t* pairs) {
    if (!stream.admitted || row.token < 0 || row.token >= view_.vocabulary) return false;
    if (stream.output_tokens >= stream.header.token_budget) return false;
    if (stream.output_tokens++ == 0) stream.first_token_ns = stream.last_record_ns;
    text_tokens_++;
    stream.token_now = true;
    if (stream.header.logprobs >= 0) take_logprobs(stream, row, pairs);
    if (!stream.shows_text() || is_watched(stream, row.token))
        stream.token_ids.push_back(row.token);
    if (!stream.shows_text()) return true;
    bool finished = (row.flags & ROW_FINISHED) != 0;
    if (finished && stop_reason(row.reason) == StopReason::end_turn) {
        stream.text.count_token();
        return true;
    }
    if (stream.text.push(row.token)) return true;
    // The answer is over for the caller; the loop learns it by the cancel word and ends with a
    // terminal row.
    stream.reason = stream.text.reason();
    if (!finished) {
        cancel(stream.slot, stream.generation);
        states_[stream.slot] = State::draining;
    }
    return true;
}

void EdgeClient::take_logprobs(Stream& stream, const TokenRow& row, const int32_t* pairs) {
    stream.logprobs.push_back({row.token, std::bit_cast<float>(row.logprob_bits), row.extra_pairs});
    for (int32_t i = 0; i < row.extra_pairs; i++)
        stream.logprob_pairs.push_back({pairs[2 * i], std::bit_cast<float>(pairs[2 * i + 1])});
}

// A terminal row: decides why the stream ends, unless a stop string has, and frees the slot.
bool EdgeClient::apply_end(Stream& stream, const TokenRow& row) {
    StopReason reason = stop_reason(row.reason);
    if (reason == StopReason::none) return false;
    if (reason == StopReason::scored && !stream.scores()) return false;
    if (stream.reason == StopReason::none) {
        if (reason == StopReason::refused) {
            if (row.detail < 0 || row.detail > static_cast<int32_t>(RefuseReason::malformed))
                return false;
            stream.refuse_reason = static_cast<RefuseReason>(row.detail);
        }
        if (reason == StopReason::failed) {
            if (row.detail < 0 || row.detail > static_cast<int32_t>(FailReason::nothing_allowed))
                return false;
            stream.fail_reason = static_cast<FailReason>(row.detail);
        }
        if (reason == StopReason::end_turn && stream.output_tokens == 0) {
            stream.output_tokens = 1; // the stop token, which the loop need not report
            if (stream.shows_text()) stream.text.count_token();
        }
        if (stream.shows_text()) stream.text.finish(reason);
        stream.reason = stream.shows_text() ? stream.text.reason() : reason;
    }
    if (stream.reason == StopReason::scored) {
        states_[stream.slot] = State::scored;
    } else {
        release(stream);
    }
    return true;
}

void EdgeClient::release(Stream& stream) {
    states_[stream.slot] = State::free;
    slots_.release(stream.slot, stream.generation);
    in_flight_--;
}

void EdgeClient::observe_gap(Stream& stream) {
    constexpr double SECONDS_PER_NS = 1e-9;
    uint64_t before = std::exchange(stream.token_ns, heard_ns_);
    if (before != 0 && gaps_ != nullptr)
        gaps_->observe(static_cast<double>(heard_ns_ - before) * SECONDS_PER_NS);
}

void EdgeClient::collect_events(uint64_t polled_ns, std::vector<StreamEvent>& events) {
    if (touched_.empty()) return;
    for (Stream* stream : touched_) {
        if (stream->token_now) observe_gap(*stream);
        StreamEvent& event = events.emplace_back();
        stream->tell(event);
        bool speaks = event.admitted || event.finished || !event.data.empty() ||
                      !event.pieces.empty() || !event.token_ids.empty() || !event.logprobs.empty();
        if (speaks)
            speaking_.push_back(stream);
        else
            events.pop_back();
    }
    uint64_t encoded_ns = monotonic_ns();
    CHECK_BECAUSE(encoded_ns >= polled_ns, "the monotonic clock went back");
    text_ns_ += encoded_ns - polled_ns;
    for (StreamEvent& event : events) {
        // A record may have come after the poll had begun.
        event.polled_ns = std::max(polled_ns, event.last_record_ns);
        event.encoded_ns = std::max(encoded_ns, event.polled_ns);
    }
}

} // namespace sublimate

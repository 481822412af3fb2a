// The edge's half of a region: slots, submission, cancel, and the text path of every request. One
// thread only. What the engine wrote into the region is input: each word is checked, and an engine
// that breaks the protocol ends the client (poll returns false), never the process.
//
// State of a slot:
//   free -> acquired -> submitted -> free                  terminal row
//              |            |------> scored -> free        terminal row of a score request, then
//              its results are read |            '------> draining -> free      stop string found:
//              finished for the caller, cancelled in
//              '-> free (discard)                          the loop, whose terminal row frees the
//              slot
//
// defines: ClientStatus, client_status_text, LogprobPair, TokenLogprobs, StreamEvent,
// StreamRequest, StreamProgress, EdgeClient
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "../request.h"
#include "../ring/region.h"
#include "histogram.h"
#include "text_stream.h"
#include "vocabulary.h"

namespace sublimate {

enum class ClientStatus : int32_t {
    ok = 0,
    not_held,          // no such (slot, generation), or not in the state that the call needs
    no_vocabulary,     // a text format without a vocabulary
    stop_without_text, // stop strings with format raw
    bad_stop_strings,
    bad_blocks,    // a block format that check_format refuses, or one for format raw
    bad_record,    // the header does not describe what the slot can hold
    bad_mask,      // no such mask slot, or no such token
    engine_broken, // the engine damaged the rings, or gave this edge up
};

// For a person; static storage.
const char* client_status_text(ClientStatus status);

struct LogprobPair {
    int32_t token;
    float logprob;
};

struct TokenLogprobs {
    int32_t token;
    float chosen;
    int32_t pair_count; // this many of StreamEvent::logprob_pairs, in order
};

// What one poll has for one request. Views are valid until the next call that is not const.
struct StreamEvent {
    int64_t key = 0;
    bool admitted = false; // on the event that carries the admission
    bool finished = false;
    StopReason reason = StopReason::none;
    RefuseReason refuse_reason = RefuseReason::none;
    FailReason fail_reason = FailReason::none;
    int32_t cached_tokens = 0;
    int32_t output_tokens = 0;   // billed so far
    int32_t thinking_tokens = 0; // of them
    int32_t bucket_rows = 0;     // of the step that admitted it
    int32_t stop_index = -1;     // of the stop string in the request's list
    // Stages of the request so far, on the monotonic clock, never decreasing; 0: not reached.
    uint64_t submitted_ns = 0;   // handed to the loop
    uint64_t admitted_ns = 0;    // of the record with the admission, as for the next two
    uint64_t first_token_ns = 0; // of the first token
    uint64_t last_record_ns = 0; // of the latest row
    uint64_t polled_ns = 0;      // this poll met that row
    uint64_t encoded_ns = 0;     // data and text were ready
    // The first bytes after the first token went to a lent socket; 0: not to one.
    uint64_t first_sent_ns = 0;
    std::string_view data; // framed: whole frames, or what of them a lent socket did not take
    std::string_view text; // text, without a block format: everything, when finished
    std::span<const StreamPiece> pieces; // blocks: of this poll; text: of everything, likewise
    std::string_view stop_string;
    // Of this poll, the stop token included. raw: all. Else of masked requests, while they are not
    // free, a trigger included: after them the next mask is that of token `output_tokens`.
    std::span<const int32_t> token_ids;
    std::span<const TokenLogprobs> logprobs;
    std::span<const LogprobPair> logprob_pairs;
};

struct StreamRequest {
    int64_t key = 0;
    StreamFormat format = StreamFormat::sse;
    std::span<const std::string> stop_strings;
    std::string_view message_id;
    std::string_view model;
    int64_t input_tokens = 0; // for usage; 0: the prompt length of the record
    bool chunked = false;     // framed: the frames of a poll are one HTTP/1.1 chunk
    std::shared_ptr<const BlockFormat> blocks = nullptr; // null: the answer is one text
    std::span<const std::string> turn_ends = {};         // as for TextSettings, and the next
    bool drops_space = false;
};

struct StreamProgress {
    int32_t output_tokens = 0;
    uint64_t sent_ns = 0; // monotonic clock of the last write to a lent socket; 0: none
};

class EdgeClient {
public:
    struct Lease {
        int32_t slot = -1; // -1: none free
        int32_t generation = 0;
        std::span<int32_t> words; // ring memory of the slot's full capacity
    };

    // All outlive the client; vocabulary may be null if only format raw is used. gaps: takes the
    // seconds between polls that brought tokens, per stream; null: nobody asks. signature_key: of
    // thinking blocks.
    EdgeClient(Region& region, const Vocabulary* vocabulary, Histogram* gaps = nullptr,
               std::string_view signature_key = {});
    ~EdgeClient();

    // The smallest free slot of at least `words` words. Its header is zero but for version, slot
    // and generation.
    Lease acquire(int64_t words);
    // Hands the record to the loop and stamps its submission time. Anything but ok leaves the slot
    // acquired.
    ClientStatus submit(int32_t slot, int32_t generation, const StreamRequest& request);
    // Gives back an acquired slot, or a scored one whose results nobody wants. False: not in such a
    // state.
    bool discard(int32_t slot, int32_t generation);
    // Idempotent; unknown, late or finished ones are no-ops. The finished event still comes.
    void cancel(int32_t slot, int32_t generation);

    // Lends the connected, non-blocking socket of a framed stream: from now on poll writes its
    // frames there itself, and only what the caller must know becomes an event. Ends with unlend,
    // cancel, the end of the stream, or a write that did not take everything, whose rest is the
    // event's data. The end of a stream is always the caller's to write. The lender does not write
    // meanwhile, and unlends before it closes. False: no such stream runs.
    bool lend(int32_t slot, int32_t generation, int socket);
    void unlend(int32_t slot, int32_t generation); // idempotent
    // Of a submitted request; zero for any other.
    StreamProgress progress(int32_t slot, int32_t generation) const;

    // Drains the token ring into `events` (replaced), one per request that has something to say, in
    // the order of first touch. False: the ring is corrupt, for good; the region must be dropped.
    bool poll(std::vector<StreamEvent>& events);

    // Results of a scored request: (prompt_length, 2) words (log-probability bits, arg-max id).
    // Empty: not scored.
    std::span<const int32_t> scores(int32_t slot, int32_t generation) const;

    // Mask slots: see ring/ring.h, which also says when words may be written. Which request owns
    // which is the caller's business; clear comes before a slot changes hands, and publish_free of
    // token 0 after it.
    std::span<uint32_t> mask_words(int32_t mask_slot); // (mask_words); empty: no such slot
    ClientStatus clear_mask(int32_t mask_slot);
    ClientStatus publish_mask(int32_t mask_slot, uint32_t index);
    ClientStatus publish_free(int32_t mask_slot, uint32_t index);

    // Announces that the caller will wait on the token bell. False: records are pending, poll
    // first.
    bool sleep_prepare();
    // After the bell woke the caller, before poll.
    void clear_bell();

    int32_t in_flight() const { return in_flight_; } // submitted, draining or scored
    int32_t slots_in_use() const { return slots_.in_use(); }
    int64_t stale_rows() const { return stale_rows_; } // rows that met no request
    // Time spent between a record and its frames, over all polls that had records, and the tokens
    // in them.
    uint64_t text_ns() const { return text_ns_; }
    int64_t text_tokens() const { return text_tokens_; }
    uint64_t heard_ns() const { return heard_ns_; } // monotonic clock of the last poll with rows

private:
    enum class State : uint8_t { free, acquired, submitted, draining, scored };
    struct Stream;

    bool apply_record(const int32_t* record, int32_t words);
    bool apply_row(const TokenRow& row, const int32_t* pairs, uint64_t time_ns);
    bool apply_admission(Stream& stream, const TokenRow& row);
    bool apply_token(Stream& stream, const TokenRow& row, const int32_t* pairs);
    bool apply_end(Stream& stream, const TokenRow& row);
    void take_logprobs(Stream& stream, const TokenRow& row, const int32_t* pairs);
    void touch(Stream& stream);
    void release(Stream& stream);
    void begin_poll();
    void collect_events(uint64_t polled_ns, std::vector<StreamEvent>& events);
    void observe_gap(Stream& stream);
    void write_to_sockets(std::vector<StreamEvent>& events);
    bool write_to_socket(Stream& stream, StreamEvent& event);
    Stream* running(int32_t slot, int32_t generation) const;
    bool is_watched(const Stream& stream, int32_t token);
    bool connected();
    void wake_engine();
    ClientStatus mask_published(int32_t mask_slot, bool free);

    Region& region_;
    RegionView view_;
    const Vocabulary* vocabulary_;
    Histogram* gaps_;
    Signer signer_;
    Slots slots_;
    State states_[limits::SLOTS_MAX] = {};
    bool mask_free_[limits::MASK_SLOTS] = {};            // as the loop sees the slot's request
    std::unique_ptr<Stream> streams_[limits::SLOTS_MAX]; // made at a slot's first use, then kept
    std::vector<int32_t> record_;                        // (TOKEN_RECORD_WORDS_MAX)
    std::vector<Stream*> touched_;                       // in this poll, in order
    std::vector<Stream*> speaking_;                      // those with an event, likewise
    int32_t in_flight_ = 0;
    int64_t stale_rows_ = 0;
    uint64_t text_ns_ = 0;
    int64_t text_tokens_ = 0;
    uint64_t heard_ns_ = 0;
    bool broken_ = false; // for good; see connected
};

} // namespace sublimate

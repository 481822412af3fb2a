// Fuzz target of what an engine may write into a region: any words in ring, control page and slots,
// at any time. The edge client must stay whole: its counts add up, each request ends at most once,
// and a broken ring stays broken.
//
// Input: per step an operation byte and its operands, little-endian words.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "../../core/ring/trace_ring.h"
#include "../../core/text/edge_client.h"

namespace sublimate::test {

constexpr int32_t VOCABULARY = 64;
constexpr int32_t KEYS_MAX = 64;

static void require(bool condition, const char* what) {
    if (condition) return;
    std::printf("the edge client broke: %s\n", what);
    std::abort();
}

class Reader {
public:
    Reader(const uint8_t* data, size_t size) : at_(data), left_(size) {}
    bool empty() const { return left_ == 0; }
    // The next `bytes` bytes as a number; what is missing is zero.
    uint64_t number(size_t bytes) {
        uint64_t value = 0;
        size_t taken = bytes < left_ ? bytes : left_;
        if (taken > 0) std::memcpy(&value, at_, taken);
        at_ += taken;
        left_ -= taken;
        return value;
    }
    int32_t word() { return static_cast<int32_t>(number(4)); }
    uint8_t byte() { return static_cast<uint8_t>(number(1)); }

private:
    const uint8_t* at_;
    size_t left_;
};

struct Request {
    int32_t slot = -1, generation = 0;
    bool finished = false;
};

// One region for all inputs; the control page is made new for each.
static Region& shared_region() {
    static Region region;
    if (!region.view().attached())
        require(Region::create(VOCABULARY, region) == RegionStatus::ok, "no region");
    RegionView view = region.view();
    std::memset(view.control, 0, sizeof *view.control);
    region_format(view);
    return region;
}

static const Vocabulary& shared_vocabulary() {
    static Vocabulary vocabulary;
    while (vocabulary.size() < VOCABULARY)
        (void)vocabulary.add(std::string(1, static_cast<char>(vocabulary.size() * 5)));
    return vocabulary;
}

class Run {
public:
    explicit Run(Reader input)
        : input_(input), region_(shared_region()), view_(region_.view()),
          client_(region_, &shared_vocabulary()) {}

    void go() {
        while (!input_.empty()) {
            step();
            int32_t open = 0;
            for (const Request& request : requests_) open += !request.finished;
            require(client_.in_flight() >= 0 && client_.in_flight() <= client_.slots_in_use(),
                    "counts");
            require(open == 0 || broken_ || client_.in_flight() > 0, "a request lost its slot");
        }
    }

private:
    void step() {
        switch (input_.byte() % 8) {
        case 0:
            submit();
            break;
        case 1:
            push_row();
            break;
        case 2:
            push_words();
            break;
        case 3:
            damage_control();
            break;
        case 4:
            damage_slot();
            break;
        case 5:
            client_.cancel(input_.byte(), input_.byte());
            break;
        case 6:
            (void)client_.scores(input_.byte(), input_.byte());
            break;
        case 7:
            poll();
            break;
        }
    }

    void submit() {
        EdgeClient::Lease lease = client_.acquire(REQUEST_HEADER_WORDS + 1);
        if (lease.slot < 0 || requests_.size() >= KEYS_MAX) return;
        RequestHeader header;
        std::memcpy(&header, lease.words.data(), sizeof header);
        header.prompt_length = input_.byte();
        header.token_budget = input_.byte();
        header.logprobs = input_.byte() % 4 - 1;
        header.flags = input_.byte() % 4;
        std::memcpy(lease.words.data(), &header, sizeof header);
        StreamRequest request;
        request.key = static_cast<int64_t>(requests_.size());
        request.format = static_cast<StreamFormat>(input_.byte() % 3);
        std::vector<std::string> stops(input_.byte() % 3, std::string(1, 'A'));
        request.stop_strings = stops;
        request.message_id = "id";
        ClientStatus status = client_.submit(lease.slot, lease.generation, request);
        broken_ |= status == ClientStatus::engine_broken;
        if (status == ClientStatus::ok) {
            requests_.push_back({lease.slot, lease.generation, false});
        } else {
            require(client_.discard(lease.slot, lease.generation), "an unsubmitted slot is held");
        }
    }

    // A well-formed record with one row for a request, so that the input reaches behind the frame.
    void push_row() {
        if (requests_.empty()) return;
        const Request& request = requests_[input_.byte() % requests_.size()];
        TokenRow row{
            request.slot,      request.generation, input_.byte() % 8, input_.byte() % VOCABULARY, 0,
            input_.byte() % 8, input_.byte() % 4,  input_.byte() % 3};
        std::vector<int32_t> words(limits::STEP_HEADER_WORDS + limits::TOKEN_ROW_WORDS +
                                   2 * static_cast<size_t>(row.extra_pairs));
        words[0] = static_cast<int32_t>(words.size());
        words[1] = 1;
        std::memcpy(words.data() + limits::STEP_HEADER_WORDS, &row, sizeof row);
        if (token_room_words(view_) >= words[0]) token_push(view_, words.data(), words[0]);
    }

    void push_words() {
        for (int32_t count = input_.byte() % 64; count > 0; count--) {
            uint64_t tail = view_.control->token_tail++;
            view_.tokens[tail % uint64_t{limits::TOKEN_RING_WORDS}] = input_.word();
        }
    }

    void damage_control() {
        size_t word = input_.number(2) % (sizeof(RegionControl) / sizeof(uint64_t));
        auto* words = reinterpret_cast<uint64_t*>(view_.control);
        words[word] = input_.number(8);
    }

    void damage_slot() {
        int32_t slot = input_.byte();
        view_.slot_memory(slot)[input_.number(2) % limits::SLOT_WORDS[0]] = input_.word();
    }

    // Whatever the trace ring says of itself, its reader stays inside it and its count goes on.
    void read_trace() {
        constexpr int32_t READ_MAX = 32;
        TraceRecord records[READ_MAX];
        uint64_t missed = 0;
        int32_t count = trace_read(view_, trace_next_, missed, records, READ_MAX);
        require(count >= 0 && count <= READ_MAX, "more records than were asked for");
        require(trace_next_ <= view_.control->trace_head, "a record that was not written");
    }

    void poll() {
        read_trace();
        bool good = client_.poll(events_);
        require(good || events_.empty(), "events of a broken ring");
        require(!(good && broken_), "a broken ring healed");
        broken_ = !good;
        for (const StreamEvent& event : events_) {
            require(event.key >= 0 && event.key < static_cast<int64_t>(requests_.size()), "key");
            Request& request = requests_[static_cast<size_t>(event.key)];
            require(!request.finished, "an event after the end");
            request.finished = event.finished;
            require(event.data.empty() || event.data.ends_with("\n\n"), "half a frame");
        }
    }

    Reader input_;
    Region& region_;
    RegionView view_;
    EdgeClient client_;
    std::vector<StreamEvent> events_;
    std::vector<Request> requests_;
    uint64_t trace_next_ = 0;
    bool broken_ = false;
};

} // namespace sublimate::test

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    sublimate::test::Run(sublimate::test::Reader(data, size)).go();
    return 0;
}

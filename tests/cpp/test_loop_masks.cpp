// Token masks: rows run before their mask is there, wait only if it is late, and go free until a
// trigger; what they say depends on none of it.
#include <functional>
#include <vector>

#include "../sim/oracle.h"
#include "loop_bench.h"
#include "test.h"

namespace sublimate {
namespace {

using test::LoopBench;
using test::ManualClock;
using test::SeenRow;

constexpr int32_t MASK_SLOT = 2;
constexpr int32_t TRIGGER_SLOT = 9;
constexpr sim::ModelTraits HABITS = {48, false, 0, 95};

RequestHeader masked_header(int32_t budget, bool triggers = false) {
    RequestHeader h = LoopBench::header(budget);
    h.flags = FLAG_MASKED;
    h.mask_slot = MASK_SLOT;
    h.trigger_slot = triggers ? TRIGGER_SLOT : -1;
    return h;
}

uint32_t* words_of(RegionView& view, int32_t slot) {
    return view.masks + int64_t{slot} * view.mask_words;
}

void allow_only(RegionView& view, int32_t token, uint32_t index) {
    uint32_t* words = words_of(view, MASK_SLOT);
    for (int32_t i = 0; i < view.mask_words; i++) words[i] = 0;
    if (token >= 0) words[token / 32] = 1u << (token % 32);
    mask_publish(view, MASK_SLOT, index);
}

// The tokens of one masked request whose edge follows the simulator's rules, each mask `late`
// iterations after its token, beside some neighbours.
struct Said {
    std::vector<int32_t> tokens;
    std::vector<int32_t> logprobs;
    StatsPage stats;
};

Said say(bool triggers, int32_t late, int32_t neighbours, bool speculation, float temperature,
         int32_t free_end = 0) {
    constexpr uint64_t SEED = 77;
    LoopConfig config = test::small_config();
    config.pages = 200;
    config.speculation = speculation;
    config.cost.decode_row_ps = 1'000'000;
    LoopBench bench(config, 1, HABITS);
    RegionView& view = bench.views[0];
    for (int32_t i = 0; i < neighbours; i++)
        bench.submit(LoopBench::header(60), LoopBench::prompt(20, i));
    RequestHeader h = masked_header(120, triggers);
    h.temperature_bits = static_cast<int32_t>(float_bits(temperature));
    h.logprobs = 0;
    h.free_end = free_end;
    sim::trigger_words_for(SEED, view.vocabulary, words_of(view, TRIGGER_SLOT));
    Slots::Lease lease = bench.submit(h, LoopBench::prompt(40));
    Said said;
    bool unmasked = false;
    int32_t published = -1;
    int32_t waited = 0;
    for (int32_t i = 0; i < 3000 && (i == 0 || bench.loop->outstanding() > 0); i++) {
        auto index = static_cast<int32_t>(said.tokens.size());
        if (!unmasked && published < index && waited++ >= late) {
            waited = 0;
            published = index;
            auto at = static_cast<uint32_t>(index);
            unmasked = sim::is_free_from(h, SEED, index);
            sim::mask_words_for(SEED + 50, index, view.vocabulary, words_of(view, MASK_SLOT));
            unmasked ? mask_publish_free(view, MASK_SLOT, at) : mask_publish(view, MASK_SLOT, at);
        }
        for (const SeenRow& seen : bench.iterate()) {
            if (seen.row.slot != lease.slot || (seen.row.flags & ROW_TOKEN) == 0) continue;
            said.tokens.push_back(seen.row.token);
            said.logprobs.push_back(seen.row.logprob_bits);
            unmasked = unmasked && !mask_has(words_of(view, TRIGGER_SLOT), seen.row.token);
            unmasked = unmasked && static_cast<int32_t>(said.tokens.size()) != free_end;
        }
    }
    said.stats = bench.loop->totals();
    return said;
}

TEST(a_row_runs_before_its_mask_is_there_and_the_others_go_on) {
    LoopBench bench;
    Slots::Lease masked = bench.submit(masked_header(3), LoopBench::prompt(10));
    Slots::Lease free_one = bench.submit(LoopBench::header(6), LoopBench::prompt(10, 1));
    std::vector<SeenRow> rows;
    for (int32_t i = 0; i < 9; i++)
        for (SeenRow& row : bench.iterate()) rows.push_back(row);
    EXPECT(LoopBench::end_of(rows, free_one.slot) != nullptr);
    EXPECT_EQ(LoopBench::tokens_of(rows, free_one.slot).size(), 6u);
    EXPECT(LoopBench::tokens_of(rows, masked.slot).empty());
    EXPECT_EQ(bench.loop->totals().mask_waits, static_cast<uint64_t>(MASK_MISSES_MAX));
    RegionView& view = bench.views[0];
    for (int32_t index = 0; index < 3; index++) {
        allow_only(view, 7 + index, static_cast<uint32_t>(index));
        for (SeenRow& row : bench.iterate()) rows.push_back(row);
    }
    EXPECT(LoopBench::tokens_of(rows, masked.slot) == std::vector<int32_t>({7, 8, 9}));
}

// The hash model, and something that happens while it computes.
class BusyModel {
public:
    BusyModel(int32_t pages, std::function<void()> meanwhile)
        : model_({}, pages, 1), meanwhile_(std::move(meanwhile)) {}
    int32_t vocabulary() const { return model_.vocabulary(); }
    const SamplerOps& sampler_ops() const { return model_.sampler_ops(); }
    template <class Body>
    void for_rows(int32_t count, Body&& body) {
        model_.for_rows(count, body);
    }
    const float* forward(const Step& step) {
        meanwhile_();
        return model_.forward(step);
    }

private:
    sim::HashModel model_;
    std::function<void()> meanwhile_;
};

TEST(a_mask_that_comes_during_the_step_is_in_time) {
    LoopConfig config = test::small_config();
    std::vector<uint64_t> block(static_cast<size_t>(loop_memory_bytes(config)) / 8 + 8);
    auto address = reinterpret_cast<uintptr_t>(block.data());
    auto* base = reinterpret_cast<unsigned char*>(block.data()) + (64 - address % 64) % 64;
    LoopBench edge(config); // for its region and slots
    edge.loop->detach(0);
    uint32_t next = 0;
    BusyModel model(config.pages, [&] { allow_only(edge.views[0], 5, next++); });
    ManualClock clock;
    Loop<BusyModel, ManualClock> loop(config, loop_memory(config, base), model, clock);
    loop.attach(0, edge.views[0]);
    edge.submit(masked_header(8), LoopBench::prompt(10));
    for (int32_t i = 0; i < 8; i++) EXPECT(loop.run_once());
    EXPECT_EQ(loop.outstanding(), 0);
    EXPECT_EQ(loop.totals().mask_waits, 0u);
    EXPECT_EQ(loop.step_count(), 8u);
    loop.detach(0);
}

TEST(nothing_is_computed_for_rows_that_only_wait) {
    LoopBench bench;
    RegionView& view = bench.views[0];
    Slots::Lease lease = bench.submit(masked_header(2), LoopBench::prompt(33));
    bench.iterate();
    EXPECT(bench.worked && bench.loop->step_count() == 1);
    for (int32_t i = 0; i < 20; i++) {
        EXPECT(bench.iterate().empty() && !bench.worked);
        EXPECT(!bench.loop->mask_arrived());
    }
    EXPECT_EQ(bench.loop->step_count(), 1u);
    EXPECT_EQ(bench.loop->totals().mask_waits, 1u);
    allow_only(view, 4, 1); // of another token
    EXPECT(!bench.loop->mask_arrived());
    allow_only(view, 4, 0);
    EXPECT(bench.loop->mask_arrived());
    EXPECT(LoopBench::tokens_of(bench.iterate(), lease.slot) == std::vector<int32_t>({4}));
    bench.iterate();
    cancel_request(view, lease.slot, lease.generation); // while it waits
    std::vector<SeenRow> rows = bench.iterate();
    const TokenRow* end = LoopBench::end_of(rows, lease.slot);
    EXPECT(end != nullptr && end->reason == static_cast<int32_t>(FinishReason::cancelled));
    EXPECT_EQ(bench.loop->outstanding(), 0);
    EXPECT(!bench.loop->mask_arrived());
}

TEST(a_mask_that_allows_nothing_fails_its_request_only) {
    LoopBench bench;
    Slots::Lease masked = bench.submit(masked_header(5), LoopBench::prompt(10));
    Slots::Lease other = bench.submit(LoopBench::header(5), LoopBench::prompt(10, 1));
    allow_only(bench.views[0], 3, 0);
    std::vector<SeenRow> rows = bench.iterate();
    allow_only(bench.views[0], -1, 1);
    for (SeenRow& row : bench.finish()) rows.push_back(row);
    const TokenRow* end = LoopBench::end_of(rows, masked.slot);
    EXPECT(end != nullptr && end->reason == static_cast<int32_t>(FinishReason::failed));
    EXPECT_EQ(end->detail, static_cast<int32_t>(FailReason::nothing_allowed));
    EXPECT_EQ(LoopBench::tokens_of(rows, masked.slot).size(), 1u);
    EXPECT_EQ(LoopBench::tokens_of(rows, other.slot).size(), 5u);
    EXPECT_EQ(bench.loop->totals().failed, 1u);
}

TEST(when_masks_come_and_who_runs_beside_changes_nothing) {
    for (bool triggers : {false, true}) {
        for (float temperature : {0.0f, 1.1f}) {
            Said alone = say(triggers, 0, 0, false, temperature);
            EXPECT_EQ(alone.tokens.size(), 120u);
            EXPECT_EQ(alone.stats.mask_waits, 0u);
            for (int32_t late : {1, 3}) {
                Said other = say(triggers, late, 6, true, temperature);
                EXPECT(other.tokens == alone.tokens && other.logprobs == alone.logprobs);
                EXPECT(other.stats.mask_waits > 0);
            }
        }
    }
}

TEST(free_text_is_speculated_upon_up_to_a_trigger) {
    Said plain = say(true, 0, 0, false, 0.0f);
    Said drafted = say(true, 0, 0, true, 0.0f);
    EXPECT(plain.tokens == drafted.tokens && plain.logprobs == drafted.logprobs);
    EXPECT_EQ(plain.stats.drafted_tokens, 0u);
    EXPECT(drafted.stats.accepted_drafts > 0);
    EXPECT(drafted.stats.step_count < plain.stats.step_count);
    EXPECT_EQ(say(false, 0, 0, true, 0.0f).stats.drafted_tokens, 0u);
}

TEST(freedom_ends_at_its_token_whatever_comes_when) {
    Said unbounded = say(true, 0, 0, false, 0.0f);
    int32_t differing = 0;
    for (int32_t end = 1; end < 60 && differing < 3; end++) {
        Said alone = say(true, 0, 0, false, 0.0f, end);
        EXPECT_EQ(alone.tokens.size(), 120u);
        if (alone.tokens == unbounded.tokens) continue; // it ended before, or began again there
        differing++;
        for (int32_t late : {1, 3}) {
            Said other = say(true, late, 6, true, 0.0f, end);
            EXPECT(other.tokens == alone.tokens && other.logprobs == alone.logprobs);
        }
    }
    EXPECT_EQ(differing, 3);
}

TEST(a_free_stretch_ends_before_the_token_that_it_was_told) {
    LoopBench bench;
    RegionView& view = bench.views[0];
    RequestHeader h = masked_header(9, true);
    h.free_end = 4;
    for (int32_t i = 0; i < view.mask_words; i++) words_of(view, TRIGGER_SLOT)[i] = 0;
    Slots::Lease lease = bench.submit(h, LoopBench::prompt(10));
    mask_publish_free(view, MASK_SLOT, 0);
    std::vector<SeenRow> rows;
    for (int32_t i = 0; i < 9; i++)
        for (SeenRow& row : bench.iterate()) rows.push_back(row);
    EXPECT_EQ(LoopBench::tokens_of(rows, lease.slot).size(), 4u);
    allow_only(view, 7, 4);
    for (SeenRow& row : bench.iterate()) rows.push_back(row);
    EXPECT(LoopBench::tokens_of(rows, lease.slot).back() == 7);
    mask_publish_free(view, MASK_SLOT, 5); // for good: that token has passed
    for (SeenRow& row : bench.finish()) rows.push_back(row);
    EXPECT_EQ(LoopBench::tokens_of(rows, lease.slot).size(), 9u);
}

TEST(a_stop_token_that_is_a_trigger_ends_no_free_stretch) {
    RequestHeader h = masked_header(20, true);
    std::vector<int32_t> plain;
    for (bool kept : {false, true}) {
        LoopBench bench;
        RegionView& view = bench.views[0];
        for (int32_t i = 0; i < view.mask_words; i++) words_of(view, TRIGGER_SLOT)[i] = 0;
        if (kept) words_of(view, TRIGGER_SLOT)[plain[5] / 32] |= 1u << (plain[5] % 32);
        if (kept) h.stop_token_count = 1, h.stop_tokens[0] = plain[5];
        Slots::Lease lease = bench.submit(h, LoopBench::prompt(10));
        mask_publish_free(view, MASK_SLOT, 0);
        std::vector<int32_t> said = LoopBench::tokens_of(bench.finish(), lease.slot);
        EXPECT_EQ(said.size(), 20u);
        for (int32_t token : said) EXPECT(!kept || token != plain[5]);
        plain = said;
    }
}

TEST(free_without_triggers_is_for_good) {
    LoopBench bench;
    Slots::Lease masked = bench.submit(masked_header(30), LoopBench::prompt(10));
    Slots::Lease plain = bench.submit(LoopBench::header(30), LoopBench::prompt(10));
    mask_publish_free(bench.views[0], MASK_SLOT, 0);
    std::vector<SeenRow> rows = bench.iterate();
    mask_clear(bench.views[0], MASK_SLOT); // not looked at any more
    for (SeenRow& row : bench.finish()) rows.push_back(row);
    EXPECT(LoopBench::tokens_of(rows, masked.slot) == LoopBench::tokens_of(rows, plain.slot));
    EXPECT_EQ(bench.loop->totals().mask_waits, 0u);
}

} // namespace
} // namespace sublimate

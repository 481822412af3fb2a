// The loop step by step: order of events, cancels in every state, back-pressure, refusals, sharing
// between running requests, scores, edges that come and go.
#include "loop_bench.h"
#include "test.h"

namespace sublimate {
namespace {

using test::LoopBench;
using test::SeenRow;

bool ends_with(const std::vector<SeenRow>& rows, const Slots::Lease& lease, FinishReason reason) {
    const TokenRow* end = LoopBench::end_of(rows, lease.slot);
    return end && end->generation == lease.generation &&
           end->reason == static_cast<int32_t>(reason);
}

int32_t terminal_rows(const std::vector<SeenRow>& rows) {
    int32_t count = 0;
    for (const SeenRow& seen : rows) count += (seen.row.flags & ROW_FINISHED) != 0 ? 1 : 0;
    return count;
}

TEST(a_request_is_admitted_then_speaks_then_ends_once) {
    LoopBench bench;
    Slots::Lease lease = bench.submit(LoopBench::header(5), LoopBench::prompt(40));
    std::vector<SeenRow> rows = bench.finish();
    EXPECT_EQ(rows.size(), size_t{6});
    EXPECT_EQ(rows[0].row.flags, static_cast<int32_t>(ROW_ADMITTED));
    EXPECT_EQ(rows[0].row.detail, 64); // bucket of 40 rows
    EXPECT_EQ(LoopBench::tokens_of(rows, lease.slot).size(), size_t{5});
    EXPECT(ends_with(rows, lease, FinishReason::budget));
    EXPECT_EQ(terminal_rows(rows), 1);
    EXPECT(!bench.loop->run_once());
    StatsPage stats = bench.views[0].control->stats;
    EXPECT_EQ(stats.accepted, 1u);
    EXPECT_EQ(stats.finished, 1u);
    EXPECT_EQ(stats.generated_tokens, 5u);
    EXPECT_EQ(stats.running + stats.waiting + stats.pages_reserved, 0u);
    EXPECT_EQ(stats.pages_free + stats.pages_cached, stats.pages_total);
}

TEST(a_budget_of_zero_computes_the_prompt_only) {
    LoopBench bench;
    Slots::Lease lease = bench.submit(LoopBench::header(0), LoopBench::prompt(70));
    std::vector<SeenRow> rows = bench.finish();
    EXPECT(LoopBench::tokens_of(rows, lease.slot).empty());
    EXPECT(ends_with(rows, lease, FinishReason::budget));
    bench.submit(LoopBench::header(1), LoopBench::prompt(70));
    rows = bench.finish();
    EXPECT_EQ(rows[0].row.token, 64); // two whole pages were cached
}

TEST(text_does_not_depend_on_company_cache_or_chunks) {
    LoopBench alone;
    Slots::Lease lease = alone.submit(LoopBench::header(12), LoopBench::prompt(100));
    std::vector<int32_t> expected = LoopBench::tokens_of(alone.finish(), lease.slot);
    LoopConfig config = test::small_config();
    for (ProfilePolicy& p : config.policy.profiles) p.step_rows_max = 9;
    LoopBench crowd(config);
    std::vector<Slots::Lease> leases;
    for (int32_t i = 0; i < 8; i++)
        leases.push_back(crowd.submit(LoopBench::header(12), LoopBench::prompt(100, i % 2)));
    std::vector<SeenRow> rows = crowd.finish();
    for (size_t i = 0; i < leases.size(); i += 2)
        EXPECT(LoopBench::tokens_of(rows, leases[i].slot) == expected);
}

TEST(equal_prompts_at_once_are_computed_once) {
    LoopBench bench;
    for (int32_t i = 0; i < 6; i++) bench.submit(LoopBench::header(1), LoopBench::prompt(161));
    int32_t computed = 0;
    for (int32_t i = 0; i < 50 && (bench.loop->outstanding() > 0 || i == 0); i++) {
        bench.iterate();
        computed += bench.loop->state().plan->prefill_rows;
    }
    EXPECT_EQ(computed, 161 + 5); // five whole pages once, the last token by each
    EXPECT_EQ(bench.loop->totals().cached_tokens, 5u * 160u);
}

TEST(tenants_do_not_share) {
    LoopBench bench;
    RequestHeader h = LoopBench::header(4);
    bench.submit(h, LoopBench::prompt(100));
    std::vector<SeenRow> first = bench.finish();
    h.tenant_high = 1;
    bench.submit(h, LoopBench::prompt(100));
    std::vector<SeenRow> other = bench.finish();
    EXPECT_EQ(other[0].row.token, 0);
    EXPECT(LoopBench::tokens_of(first, 0) != LoopBench::tokens_of(other, 1));
}

TEST(a_cancel_works_within_one_step_in_every_state) {
    LoopConfig config = test::small_config();
    config.sequences_max = 1;
    for (ProfilePolicy& p : config.policy.profiles) p.step_rows_max = 16;
    LoopBench bench(config);
    Slots::Lease runs = bench.submit(LoopBench::header(50), LoopBench::prompt(64));
    Slots::Lease waits = bench.submit(LoopBench::header(50), LoopBench::prompt(64, 1));
    bench.iterate();
    cancel_request(bench.views[0], waits.slot, waits.generation);
    EXPECT(ends_with(bench.iterate(), waits, FinishReason::cancelled));
    cancel_request(bench.views[0], runs.slot, runs.generation);
    EXPECT(ends_with(bench.iterate(), runs, FinishReason::cancelled));
    Slots::Lease decodes = bench.submit(LoopBench::header(50), LoopBench::prompt(4));
    for (int32_t i = 0; i < 4; i++) bench.iterate();
    cancel_request(bench.views[0], decodes.slot, decodes.generation);
    EXPECT(ends_with(bench.iterate(), decodes, FinishReason::cancelled));
    StatsPage totals = bench.loop->totals();
    EXPECT_EQ(totals.cancelled_queue, 1u);
    EXPECT_EQ(totals.cancelled_prefill, 1u);
    EXPECT_EQ(totals.cancelled_decode, 1u);
    EXPECT_EQ(totals.stale_cancels, 0u);
}

TEST(a_late_cancel_is_counted_and_harms_nobody) {
    LoopBench bench;
    Slots::Lease first = bench.submit(LoopBench::header(2), LoopBench::prompt(4));
    bench.finish();
    bench.slots[0].release(first.slot, first.generation);
    Slots::Lease second = bench.submit(LoopBench::header(9), LoopBench::prompt(4));
    EXPECT_EQ(second.slot, first.slot);
    bench.iterate();
    cancel_request(bench.views[0], first.slot, first.generation);
    EXPECT(ends_with(bench.finish(), second, FinishReason::budget));
    for (int32_t i = 0; i < limits::SLOTS_MAX / STALE_SCAN_WORDS; i++) bench.loop->run_once();
    EXPECT_EQ(bench.loop->totals().stale_cancels, 1u);
}

TEST(the_queue_is_bounded_and_what_cannot_fit_is_refused) {
    LoopConfig config = test::small_config();
    config.sequences_max = 1;
    config.queue_max = 2;
    config.pages = 4;
    LoopBench bench(config);
    Slots::Lease too_big = bench.submit(LoopBench::header(200), LoopBench::prompt(10));
    std::vector<SeenRow> rows = bench.iterate();
    EXPECT(ends_with(rows, too_big, FinishReason::refused));
    EXPECT_EQ(LoopBench::end_of(rows, too_big.slot)->detail,
              static_cast<int32_t>(RefuseReason::too_long));
    std::vector<Slots::Lease> leases;
    for (int32_t i = 0; i < 3; i++)
        leases.push_back(bench.submit(LoopBench::header(9), LoopBench::prompt(10)));
    rows = bench.iterate();
    const TokenRow* full = LoopBench::end_of(rows, leases[2].slot);
    EXPECT(full && full->detail == static_cast<int32_t>(RefuseReason::queue_full));
    rows = bench.finish();
    EXPECT(ends_with(rows, leases[0], FinishReason::budget));
    EXPECT(ends_with(rows, leases[1], FinishReason::budget));
}

TEST(a_full_ring_holds_rows_back_and_loses_none) {
    LoopBench bench;
    Slots::Lease lease = bench.submit(LoopBench::header(6), LoopBench::prompt(4));
    std::vector<SeenRow> rows = bench.iterate();
    RegionControl& control = *bench.views[0].control;
    uint64_t head = control.token_head;
    control.token_head = head - (limits::TOKEN_RING_WORDS - ROOM_WORDS_MIN + 1);
    for (int32_t i = 0; i < 20; i++) {
        bench.clock.time_ns += 1'000'000;
        bench.loop->run_once();
    }
    EXPECT_EQ(control.token_tail, head);
    EXPECT(bench.loop->totals().ring_full_waits >= 20);
    cancel_request(bench.views[0], lease.slot, lease.generation);
    bench.loop->run_once();
    EXPECT_EQ(bench.loop->running(), 0);     // pages are back at once
    EXPECT_EQ(bench.loop->outstanding(), 1); // its row waits
    control.token_head = head;
    EXPECT(ends_with(bench.finish(), lease, FinishReason::cancelled));
}

TEST(an_edge_that_reads_nothing_is_lost_after_the_deadline_and_not_by_a_clock_jump) {
    LoopBench bench;
    bench.submit(LoopBench::header(100), LoopBench::prompt(4));
    bench.iterate();
    RegionControl& control = *bench.views[0].control;
    control.token_head -= limits::TOKEN_RING_WORDS - 100;
    bench.clock.time_ns += 3600 * int64_t{1'000'000'000};
    bench.loop->run_once();
    EXPECT(!bench.loop->lost(0));
    EXPECT_EQ(control.edge_lost, 0u);
    int32_t waited = 0;
    while (!bench.loop->lost(0) && waited++ < 1000) {
        bench.clock.time_ns += BLOCKED_TICK_MAX_NS;
        bench.loop->run_once();
    }
    EXPECT_EQ(waited, static_cast<int32_t>(limits::RING_FULL_DEADLINE_NS / BLOCKED_TICK_MAX_NS));
    EXPECT_EQ(control.edge_lost, 1u); // the edge is told
    EXPECT_EQ(bench.loop->outstanding(), 0);
    EXPECT(bench.loop->audit() == nullptr);
    bench.loop->detach(0);
}

TEST(a_damaged_ring_costs_its_edge_and_nobody_else) {
    LoopBench bench(test::small_config(), 2);
    bench.submit(LoopBench::header(50), LoopBench::prompt(40), 0);
    Slots::Lease honest = bench.submit(LoopBench::header(50), LoopBench::prompt(40), 1);
    bench.iterate();
    bench.views[0].control->token_head = 12345678901234u;
    bench.views[0].control->submission_tail = 999999u;
    std::vector<SeenRow> rows;
    for (int32_t i = 0; i < 60; i++) {
        bench.clock.time_ns += 20'000'000;
        bench.loop->run_once();
    }
    bench.loop->detach(0);
    EXPECT_EQ(bench.loop->outstanding(), 0);
    EXPECT(bench.loop->audit() == nullptr);
    bench.views.erase(bench.views.begin());
    EXPECT(ends_with(bench.read(), honest, FinishReason::budget));
}

TEST(a_detached_edge_leaves_nothing_behind) {
    LoopBench bench(test::small_config(), 2);
    for (int32_t i = 0; i < 30; i++)
        bench.submit(LoopBench::header(50), LoopBench::prompt(40, i), i % 2);
    for (int32_t i = 0; i < 5; i++) bench.iterate();
    bench.loop->detach(0);
    EXPECT(bench.loop->audit() == nullptr);
    std::vector<SeenRow> rows = bench.finish();
    for (const SeenRow& seen : rows) EXPECT_EQ(seen.edge, 1);
    EXPECT_EQ(bench.loop->totals().running, 0u);
}

TEST(scores_lie_in_the_slot_in_chunks_as_in_one) {
    for (int32_t flags : {int32_t{FLAG_SCORE}, FLAG_SCORE | FLAG_SCORE_DECODE}) {
        std::vector<int32_t> reference;
        for (int32_t budget : {640, 7}) {
            LoopConfig config = test::small_config();
            for (ProfilePolicy& p : config.policy.profiles) p.step_rows_max = budget;
            LoopBench bench(config);
            RequestHeader h = LoopBench::header(0);
            h.flags = flags;
            Slots::Lease lease = bench.submit(h, LoopBench::prompt(200));
            std::vector<SeenRow> rows = bench.finish();
            EXPECT(ends_with(rows, lease, FinishReason::scored));
            const int32_t* scores =
                bench.views[0].slot_memory(lease.slot) + REQUEST_HEADER_WORDS + 200;
            EXPECT_EQ(scores[0], 0);
            EXPECT_EQ(scores[1], -1);
            for (int32_t i = 1; i < 200; i++) EXPECT(scores[2 * i + 1] >= 0 && scores[2 * i] != 0);
            std::vector<int32_t> words(scores, scores + 400);
            if (reference.empty()) reference = words;
            EXPECT(words == reference);
        }
    }
}

TEST(non_finite_logits_fail_their_row_only) {
    sim::ModelTraits traits;
    traits.nan_period = 25;
    LoopBench bench(test::small_config(), 1, traits);
    int32_t failed = 0;
    for (int32_t i = 0; i < 16; i++) bench.submit(LoopBench::header(20), LoopBench::prompt(40, i));
    std::vector<SeenRow> rows = bench.finish();
    for (const SeenRow& seen : rows)
        failed += seen.row.reason == static_cast<int32_t>(FinishReason::failed) ? 1 : 0;
    EXPECT(failed > 0 && failed < 16);
    EXPECT_EQ(terminal_rows(rows), 16);
    EXPECT_EQ(bench.loop->totals().failed, static_cast<uint64_t>(failed));
}

// Cached tokens of the admission row.
int32_t cached_tokens(const std::vector<SeenRow>& rows, int32_t slot) {
    for (const SeenRow& seen : rows)
        if (seen.row.slot == slot && (seen.row.flags & ROW_ADMITTED) != 0) return seen.row.token;
    return -1;
}

TEST(requests_share_pages_only_if_every_part_of_their_key_is_equal) {
    LoopConfig config = test::small_config();
    config.adapters = 1;
    LoopBench bench(config);
    RequestHeader base = LoopBench::header(1);
    std::vector<RequestHeader> others(4, base);
    others[0].tenant_low = 1;
    others[1].tenant_high = 1;
    others[2].adapter = 1;
    others[3].sparse_mode = 1;
    Slots::Lease first = bench.submit(base, LoopBench::prompt(70));
    EXPECT_EQ(cached_tokens(bench.finish(), first.slot), 0);
    for (int32_t expected : {0, 64}) {
        for (const RequestHeader& other : others) {
            Slots::Lease lease = bench.submit(other, LoopBench::prompt(70));
            EXPECT_EQ(cached_tokens(bench.finish(), lease.slot), expected);
        }
    }
}

TEST(nobody_finds_pages_of_a_request_that_failed) {
    sim::ModelTraits traits;
    traits.nan_period = 3;
    LoopConfig config = test::small_config();
    for (ProfilePolicy& p : config.policy.profiles) p.step_rows_max = limits::PAGE_TOKENS;
    LoopBench bench(config, 1, traits);
    int32_t failed = 0;
    int32_t succeeded = 0;
    for (int32_t i = 0; i < 12; i++) { // prompts of several steps, so that pages were published
        Slots::Lease first = bench.submit(LoopBench::header(1), LoopBench::prompt(100, i));
        std::vector<SeenRow> rows = bench.finish();
        const TokenRow* end = LoopBench::end_of(rows, first.slot);
        bool fails = end->reason == static_cast<int32_t>(FinishReason::failed);
        (fails ? failed : succeeded)++;
        Slots::Lease again = bench.submit(LoopBench::header(1), LoopBench::prompt(100, i));
        EXPECT_EQ(cached_tokens(bench.finish(), again.slot), fails ? 0 : 96);
    }
    EXPECT(failed > 0 && succeeded > 0);
}

TEST(whoever_waits_for_admission_rises_until_it_is_its_turn) {
    constexpr int32_t PRIORITY_GAP = 2;
    LoopConfig config = test::small_config();
    config.sequences_max = 1;
    for (ProfilePolicy& p : config.policy.profiles) p.priority = PRIORITY_GAP;
    config.policy.profiles[static_cast<int32_t>(Profile::long_context)].priority = 0;
    LoopBench bench(config);
    RequestHeader low = LoopBench::header(1);
    low.profile = static_cast<int32_t>(Profile::long_context);
    bench.submit(LoopBench::header(2), LoopBench::prompt(8, 1));
    Slots::Lease patient = bench.submit(low, LoopBench::prompt(8));
    int32_t admitted_at = -1;
    int32_t others_before = 0;
    for (int32_t i = 0; i < 3 * PRIORITY_GAP * AGEING_STEPS && admitted_at < 0; i++) {
        // Somebody of the higher priority always waits.
        if (bench.loop->waiting() < 4 && i < 400)
            bench.submit(LoopBench::header(1), LoopBench::prompt(8, i));
        for (const SeenRow& seen : bench.iterate()) {
            if ((seen.row.flags & ROW_ADMITTED) == 0) continue;
            if (seen.row.slot == patient.slot) admitted_at = i;
            others_before += seen.row.slot != patient.slot && admitted_at < 0 ? 1 : 0;
        }
    }
    EXPECT(admitted_at >= 0 && admitted_at <= (PRIORITY_GAP + 1) * AGEING_STEPS);
    EXPECT(others_before > AGEING_STEPS); // a priority is one, all the same
}

TEST(rows_beyond_a_batch_limit_run_in_turn) {
    LoopConfig config = test::small_config();
    for (ProfilePolicy& p : config.policy.profiles) p.decode_rows_max = 2;
    LoopBench bench(config);
    std::vector<Slots::Lease> leases;
    for (int32_t i = 0; i < 6; i++)
        leases.push_back(bench.submit(LoopBench::header(60), LoopBench::prompt(8, i)));
    std::vector<SeenRow> rows;
    for (int32_t i = 0; i < 60; i++)
        for (SeenRow& row : bench.iterate()) rows.push_back(row);
    for (const Slots::Lease& lease : leases) {
        auto tokens = static_cast<int32_t>(LoopBench::tokens_of(rows, lease.slot).size());
        EXPECT(tokens >= 12 && tokens <= 28); // 20 each, but for who came first
    }
}

TEST(gauges_are_each_edges_own_and_the_oldest_wait_is_the_first_ones) {
    LoopConfig config = test::small_config();
    config.sequences_max = 1;
    LoopBench bench(config, 2);
    bench.submit(LoopBench::header(200), LoopBench::prompt(8, 1), 1);
    bench.iterate();
    for (int32_t i = 0; i < 3; i++) {
        bench.submit(LoopBench::header(1), LoopBench::prompt(8, i), 0);
        bench.iterate();
    }
    bench.submit(LoopBench::header(1), LoopBench::prompt(8, 5), 1);
    bench.iterate();
    constexpr uint64_t ITERATION_NS = 1'000'000;
    const StatsPage& first = bench.views[0].control->stats;
    const StatsPage& second = bench.views[1].control->stats;
    EXPECT_EQ(first.running, 0u);
    EXPECT_EQ(first.waiting, 3u);
    EXPECT_EQ(first.oldest_waiting_ns, 3 * ITERATION_NS);
    EXPECT_EQ(second.running, 1u);
    EXPECT_EQ(second.waiting, 1u);
    EXPECT_EQ(second.oldest_waiting_ns, 0u);
    EXPECT_EQ(bench.loop->totals().oldest_waiting_ns, 3 * ITERATION_NS);
    EXPECT_EQ(bench.loop->totals().waiting, 4u);
}

TEST(what_was_pushed_is_pushed_once_however_little_room_is_left) {
    LoopBench bench;
    const RegionView& view = bench.views[0];
    // The ring has just the room that an iteration may need: behind the admission it has less.
    view.control->token_head -= limits::TOKEN_RING_WORDS - ROOM_WORDS_MIN;
    EXPECT_EQ(token_room_words(view), ROOM_WORDS_MIN);
    uint64_t before = view.control->token_tail;
    Slots::Lease lease = bench.submit(LoopBench::header(2), LoopBench::prompt(40));
    bench.loop->run_once();
    EXPECT(view.control->token_tail > before);
    view.control->token_head = before;
    std::vector<SeenRow> rows = bench.read();
    EXPECT_EQ(rows.size(), size_t{2});
    EXPECT_EQ(rows[0].row.flags, static_cast<int32_t>(ROW_ADMITTED));
    EXPECT_EQ(rows[1].row.flags, static_cast<int32_t>(ROW_TOKEN));
    for (SeenRow& row : bench.finish()) rows.push_back(row);
    EXPECT_EQ(LoopBench::tokens_of(rows, lease.slot).size(), size_t{2});
    EXPECT_EQ(terminal_rows(rows), 1);
}

// An iteration publishes twice, and each time as much as a record can hold.
TEST(an_edge_has_room_if_two_of_the_largest_records_fit) {
    for (int32_t missing : {1, 0}) {
        LoopBench bench;
        const RegionView& view = bench.views[0];
        int32_t room = 2 * TOKEN_RECORD_WORDS_MAX - missing;
        view.control->token_head -= static_cast<uint64_t>(limits::TOKEN_RING_WORDS - room);
        bench.submit(LoopBench::header(1), LoopBench::prompt(40));
        bench.loop->run_once();
        EXPECT_EQ(bench.loop->outstanding() + bench.loop->running(), 0);
        EXPECT_EQ(view.control->token_tail > 0, missing == 0);
    }
}

TEST(memory_is_what_was_asked_for) {
    LoopConfig config = test::small_config();
    auto bytes = static_cast<size_t>(loop_memory_bytes(config));
    std::vector<unsigned char> block(bytes + 4096 + 64, 0xEE);
    auto address = reinterpret_cast<uintptr_t>(block.data());
    unsigned char* base = block.data() + (64 - address % 64) % 64;
    test::ManualClock clock;
    sim::HashModel model({}, config.pages, 1);
    Loop<sim::HashModel, test::ManualClock> loop(config, loop_memory(config, base), model, clock);
    EXPECT(!loop.run_once());
    for (size_t i = 0; i < 4096; i++) EXPECT_EQ(base[bytes + i], 0xEE);
    EXPECT(loop.audit() == nullptr);
}

} // namespace
} // namespace sublimate

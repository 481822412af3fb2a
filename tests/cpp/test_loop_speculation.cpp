// Speculation: where drafts come from, that they change nothing but the number of steps, and that
// they are made only where they pay.
#include "../../core/loop/draft.h"
#include "../../core/loop/speculate.h"
#include "loop_bench.h"
#include "test.h"

#include <map>
#include <random>
#include <vector>

namespace sublimate {
namespace {

using test::LoopBench;
using test::SeenRow;

// A drafter with memory of its own, fed with a text.
struct Fed {
    explicit Fed(int32_t entries = 64) : places(static_cast<size_t>(NGRAM_LENGTHS * entries), 7) {
        drafter.places = places.data();
        drafter.entries = entries;
        drafter.start();
    }
    auto history() const {
        return [this](int32_t at) { return text.at(static_cast<size_t>(at)); };
    }
    bool feed(const std::vector<int32_t>& more) {
        text.insert(text.end(), more.begin(), more.end());
        return drafter.follow(history(), static_cast<int32_t>(text.size()));
    }
    std::vector<int32_t> draft(int32_t count) {
        drafter.draft(history(), count);
        return {drafter.tokens, drafter.tokens + count};
    }
    std::vector<int32_t> places;
    std::vector<int32_t> text;
    Drafter drafter = {};
};

TEST(what_followed_before_is_the_draft) {
    Fed fed;
    EXPECT(!fed.feed({1, 2, 3, 4, 5, 6, 7, 8, 9}));
    EXPECT(!fed.feed({1}));
    EXPECT(fed.feed({2}));
    EXPECT(fed.draft(4) == std::vector<int32_t>({3, 4, 5, 6}));
    EXPECT(fed.feed({3}));
    EXPECT_EQ(fed.drafter.matched, 3);
    EXPECT(!fed.feed({99})); // something else: the source is dropped
    EXPECT(fed.feed({5, 6, 7}));
    EXPECT_EQ(fed.drafter.matched, 3); // all three of them, but not the 99 before
    EXPECT(fed.draft(2) == std::vector<int32_t>({8, 9}));
}

TEST(three_tokens_find_what_two_would_miss) {
    Fed fed;
    EXPECT(fed.feed({1, 5, 6, 70, 0, 2, 5, 6, 80, 0, 3, 5, 6, 90, 0, 1, 5, 6}));
    EXPECT(fed.draft(1) == std::vector<int32_t>({70}));
}

TEST(a_short_period_goes_on_into_its_own_drafts) {
    Fed fed;
    EXPECT(fed.feed({9, 4, 5, 4, 5, 4}));
    EXPECT(fed.draft(7) == std::vector<int32_t>({5, 4, 5, 4, 5, 4, 5}));
}

// With few places most are overwritten; whatever is found is a true repetition all the same.
TEST(a_source_always_repeats) {
    std::mt19937 random(5);
    int32_t hits = 0;
    for (int32_t round = 0; round < 300; round++) {
        Fed fed(static_cast<int32_t>(1u << random() % 7));
        uint32_t words = 2 + random() % 12;
        for (int32_t i = 0; i < 200; i++) {
            if (!fed.feed({static_cast<int32_t>(random() % words)})) continue;
            hits++;
            int32_t end = static_cast<int32_t>(fed.text.size());
            EXPECT(fed.drafter.matched >= 2 && fed.drafter.source < end);
            for (int32_t back = 1; back <= fed.drafter.matched; back++)
                EXPECT_EQ(fed.history()(fed.drafter.source - back), fed.history()(end - back));
        }
    }
    EXPECT(hits > 10000);
}

TEST(chances_follow_what_happens) {
    Fed fed;
    std::vector<int32_t> circle;
    for (int32_t i = 0; i < 400; i++) circle.push_back(i % 20);
    fed.feed(circle);
    fed.feed({0}); // found only at the end of a text: from here on each token is judged
    for (int32_t i = 1; i < 200; i++) fed.feed({i % 20});
    EXPECT(fed.drafter.chance(0) > 0.98f);
    for (int32_t i = 0; i < 200; i++) { // after 30, 31 always something new
        fed.feed({30});
        fed.feed({31});
        fed.feed({100 + i});
    }
    EXPECT(fed.drafter.chances[0] < 0.1f);
}

TEST(a_long_history_is_taken_in_over_several_steps) {
    Fed fed(4096);
    std::vector<int32_t> text;
    for (int32_t i = 0; i < limits::HISTORY_TOKENS_PER_STEP; i++) text.push_back(i);
    text.push_back(0);
    text.push_back(1);
    EXPECT(!fed.feed(text));
    EXPECT_EQ(fed.drafter.seen, limits::HISTORY_TOKENS_PER_STEP);
    EXPECT(fed.feed({}));
    EXPECT(fed.draft(2) == std::vector<int32_t>({2, 3}));
}

// ---- the loop
LoopConfig config_of(bool speculation, int64_t row_ps) {
    LoopConfig config = test::small_config();
    config.speculation = speculation;
    config.same_arithmetic = true;
    config.cost.decode_row_ps = row_ps;
    config.cost.decode_position_ps = 0;
    return config;
}

constexpr int64_t CHEAP_ROW_PS = 1'000'000;
constexpr int64_t DEAR_ROW_PS = 1'000'000'000'000;
constexpr sim::ModelTraits HABITS = {48, false, 0, 92};

RequestHeader random_header(std::mt19937& random) {
    auto unit = [&random] { return static_cast<float>(random() % 1000) / 1000.0f; };
    auto bits = [](float value) { return static_cast<int32_t>(float_bits(value)); };
    RequestHeader h = LoopBench::header(1 + static_cast<int32_t>(random() % 90));
    h.profile = static_cast<int32_t>(random() % 3);
    h.seed_low = static_cast<int32_t>(random());
    if (random() % 2 == 0) h.temperature_bits = bits(0.2f + unit());
    if (random() % 3 == 0) h.top_p_bits = bits(0.5f + 0.5f * unit());
    if (random() % 4 == 0) h.top_k = 5;
    if (random() % 3 == 0) h.repetition_penalty_bits = bits(0.8f + 0.5f * unit());
    if (random() % 4 == 0) h.frequency_penalty_bits = bits(unit());
    h.logprobs = static_cast<int32_t>(random() % 4) - 1;
    h.stop_token_count = 1;
    h.stop_tokens[0] = static_cast<int32_t>(random() % 48);
    return h;
}

struct Played {
    std::map<int32_t, std::vector<SeenRow>> rows; // of each slot, admission left out
    StatsPage stats;
};

Played play(uint32_t seed, const LoopConfig& config, const sim::ModelTraits& traits) {
    std::mt19937 random(seed);
    LoopBench bench(config, 1, traits);
    std::vector<SeenRow> all;
    for (int32_t i = 0; i < 12; i++) {
        RequestHeader header = random_header(random);
        int32_t length = 1 + static_cast<int32_t>(random() % 70);
        bench.submit(header, LoopBench::prompt(length, static_cast<int32_t>(random() % 48)));
        if (random() % 2 == 0) continue;
        for (SeenRow& row : bench.iterate()) all.push_back(row);
    }
    for (SeenRow& row : bench.finish()) all.push_back(row);
    Played played = {{}, bench.loop->totals()};
    for (SeenRow& row : all)
        if ((row.row.flags & ROW_ADMITTED) == 0) played.rows[row.row.slot].push_back(row);
    return played;
}

bool same_row(const SeenRow& a, const SeenRow& b) {
    return memcmp(&a.row, &b.row, sizeof a.row) == 0 && a.pairs == b.pairs;
}

TEST(every_stream_is_the_same_with_and_without) {
    uint64_t accepted = 0;
    for (uint32_t seed = 0; seed < 150; seed++) {
        sim::ModelTraits traits = HABITS;
        traits.habit_percent = 40 + static_cast<int32_t>(seed % 60);
        traits.nan_period = seed % 5 == 0 ? 150 : 0;
        Played off = play(seed, config_of(false, CHEAP_ROW_PS), traits);
        Played on = play(seed, config_of(true, CHEAP_ROW_PS), traits);
        EXPECT_EQ(off.rows.size(), on.rows.size());
        for (const auto& [slot, rows] : off.rows) {
            const std::vector<SeenRow>& others = on.rows[slot];
            EXPECT_EQ(rows.size(), others.size());
            for (size_t i = 0; i < rows.size() && i < others.size(); i++)
                EXPECT(same_row(rows[i], others[i]));
        }
        EXPECT_EQ(off.stats.drafted_tokens, 0u);
        EXPECT_EQ(off.stats.generated_tokens, on.stats.generated_tokens);
        EXPECT(on.stats.step_count <= off.stats.step_count);
        accepted += on.stats.accepted_drafts;
    }
    EXPECT(accepted > 5000);
}

TEST(a_step_says_several_tokens_in_order) {
    sim::ModelTraits always = HABITS;
    always.habit_percent = 100;
    LoopBench bench(config_of(true, CHEAP_ROW_PS), 1, always);
    bench.submit(LoopBench::header(200), LoopBench::prompt(8));
    size_t most = 0;
    int32_t tokens = 0;
    while (bench.loop->outstanding() > 0 || tokens == 0) {
        std::vector<SeenRow> rows = bench.iterate();
        most = std::max(most, rows.size());
        for (const SeenRow& seen : rows) tokens += (seen.row.flags & ROW_TOKEN) != 0 ? 1 : 0;
        for (size_t i = 0; i + 1 < rows.size(); i++)
            EXPECT((rows[i].row.flags & ROW_FINISHED) == 0);
    }
    EXPECT_EQ(tokens, 200);
    EXPECT_EQ(most, size_t{limits::DRAFT_TOKENS_MAX} + 1);
    EXPECT(bench.loop->step_count() < 60);
}

TEST(no_drafts_where_they_cannot_pay) {
    LoopBench dear(config_of(true, DEAR_ROW_PS), 1, HABITS);
    for (int32_t i = 0; i < 3; i++) dear.submit(LoopBench::header(60), LoopBench::prompt(9, i));
    dear.finish();
    EXPECT_EQ(dear.loop->totals().drafted_tokens, 0u);
}

// Text without repetitions, at the prices of a real machine: nearly all rows are real ones.
TEST(it_switches_itself_off) {
    LoopConfig config = config_of(true, DEFAULT_STEP_COST.decode_row_ps);
    config.context_tokens = 2048;
    config.pages = 600;
    LoopBench bench(config, 1, {48, false, 0, 0});
    for (int32_t i = 0; i < 8; i++) bench.submit(LoopBench::header(400), LoopBench::prompt(9, i));
    bench.finish();
    StatsPage stats = bench.loop->totals();
    EXPECT_EQ(stats.generated_tokens, 3200u);
    EXPECT(stats.drafted_tokens < 32);
}

TEST(masked_and_scoring_requests_get_none) {
    LoopBench bench(config_of(true, CHEAP_ROW_PS), 1, HABITS);
    RequestHeader masked = LoopBench::header(40);
    masked.flags |= FLAG_MASKED;
    masked.mask_slot = 0;
    for (int32_t word = 0; word < bench.views[0].mask_words; word++)
        bench.views[0].masks[word] = ~0u;
    bench.submit(masked, LoopBench::prompt(9));
    RequestHeader score = LoopBench::header(0);
    score.flags |= FLAG_SCORE;
    bench.submit(score, LoopBench::prompt(90));
    uint32_t next = 0;
    for (int32_t i = 0; i < 200 && (i == 0 || bench.loop->outstanding() > 0); i++) {
        mask_publish(bench.views[0], 0, next);
        for (const SeenRow& seen : bench.iterate())
            next += (seen.row.flags & ROW_TOKEN) != 0 ? 1 : 0;
    }
    EXPECT_EQ(next, 40u);
    EXPECT_EQ(bench.loop->totals().drafted_tokens, 0u);
}

TEST(a_full_batch_leaves_no_rows) {
    LoopConfig config = config_of(true, CHEAP_ROW_PS);
    config.sequences_max = limits::SEQUENCES_MAX;
    config.queue_max = limits::SEQUENCES_MAX;
    config.pages = 14 * limits::SEQUENCES_MAX;
    sim::ModelTraits always = HABITS;
    always.habit_percent = 100;
    LoopBench bench(config, 1, always);
    for (int32_t i = 0; i < limits::SEQUENCES_MAX; i++)
        bench.submit(LoopBench::header(400), LoopBench::prompt(4, i));
    bool full = false;
    for (int32_t i = 0; i < 2000 && (i == 0 || bench.loop->outstanding() > 0); i++) {
        bench.iterate();
        const Plan& plan = *bench.loop->state().plan;
        if (plan.rows == 0) continue;
        EXPECT(plan.logit_rows <= limits::LOGIT_ROWS_MAX && plan.rows <= plan.rows_max);
        full |= plan.count == limits::SEQUENCES_MAX;
        if (plan.count == limits::SEQUENCES_MAX) EXPECT_EQ(plan.draft_rows, 0);
    }
    EXPECT(full);
    EXPECT_EQ(bench.loop->totals().generated_tokens, 400u * limits::SEQUENCES_MAX);
}

} // namespace
} // namespace sublimate

// The scheduler: budgets and minimums for random views and policies, turns, first come first
// served, and what each execution profile is for.
#include "../../core/loop/buckets.h"
#include "../../core/loop/schedule.h"
#include "test.h"

#include <random>
#include <vector>

namespace sublimate {
namespace {

constexpr int32_t LOW_LATENCY = 0;
constexpr int32_t HIGH_THROUGHPUT = 1;
constexpr int32_t LONG_CONTEXT = 2;

Candidate decode_of(int32_t sequence, int32_t profile, int32_t waited = 0) {
    return {sequence, profile, true, false, 100, 1, 0, waited, static_cast<uint64_t>(sequence + 1),
            0};
}

Candidate prompt_of(int32_t sequence, int32_t profile, int32_t rows, int32_t position = 0) {
    return {sequence,
            profile,
            false,
            false,
            position,
            rows,
            position + rows,
            0,
            static_cast<uint64_t>(sequence + 1),
            0};
}

Plan plan_of(const std::vector<Candidate>& candidates, const Policy& policy = DEFAULT_POLICY,
             std::vector<int32_t> waited = {0, 0, 0}, const StepCost& cost = DEFAULT_STEP_COST) {
    ScheduleView view = {candidates.data(),
                         static_cast<int32_t>(candidates.size()),
                         {waited[0], waited[1], waited[2]}};
    Plan plan;
    schedule(view, policy, cost, plan);
    return plan;
}

int32_t rows_of(const Plan& plan, int32_t candidate) {
    for (int32_t i = 0; i < plan.count; i++)
        if (plan.entries[i].candidate == candidate) return plan.entries[i].rows;
    return 0;
}

int32_t decode_rows(const Plan& plan) {
    return plan.rows - plan.prefill_rows;
}

Policy random_policy(std::mt19937& random) {
    auto between = [&random](int32_t low, int32_t high) {
        return low + static_cast<int32_t>(random() % static_cast<uint32_t>(high - low + 1));
    };
    Policy policy = DEFAULT_POLICY;
    for (ProfilePolicy& p : policy.profiles) {
        p.decode_rows_max = between(1, 128);
        p.decode_rows_beside_short_prompt = between(1, 128);
        p.step_rows_max = between(1, limits::STEP_ROWS_MAX);
        p.step_percent = between(100, 1000);
        p.step_percent_max = between(p.step_percent, STEP_PERCENT_MAX);
        p.short_prompt_weight = between(0, 64);
        p.prefill_rows_min = between(0, 300);
        p.prompts_at_once = between(0, 8);
        p.priority = between(0, 4);
    }
    return policy;
}

std::vector<Candidate> random_candidates(std::mt19937& random) {
    std::vector<Candidate> all;
    auto count = static_cast<int32_t>(random() % (limits::SEQUENCES_MAX + 1));
    for (int32_t i = 0; i < count; i++) {
        auto profile = static_cast<int32_t>(random() % 3);
        if (random() % 2 == 0) {
            all.push_back(decode_of(i, profile, static_cast<int32_t>(random() % 40)));
            continue;
        }
        Candidate c = prompt_of(i, profile, 1 + static_cast<int32_t>(random() % 3000),
                                static_cast<int32_t>(random() % 500));
        c.score = random() % 6 == 0;
        c.page_hash = random() % 3 == 0 ? 1 + random() % 4 : 0;
        all.push_back(c);
    }
    return all;
}

// Everything a step promises, for one random view.
void check_plan(const std::vector<Candidate>& all, const Policy& policy, const Plan& plan) {
    int32_t decodes = 0;
    int32_t prompts = 0;
    int32_t logits = 0;
    bool low_latency = false;
    for (const Candidate& c : all) {
        (c.decode ? decodes : prompts)++;
        low_latency |= c.decode && c.profile == LOW_LATENCY;
    }
    std::vector<bool> used(all.size());
    for (int32_t i = 0; i < plan.count; i++) {
        const Plan::Entry& entry = plan.entries[i];
        const Candidate& c = all[static_cast<size_t>(entry.candidate)];
        EXPECT(!used[static_cast<size_t>(entry.candidate)]);
        used[static_cast<size_t>(entry.candidate)] = true;
        EXPECT(entry.rows >= 1 && entry.rows <= c.rows_left);
        bool ends = entry.rows == c.rows_left;
        logits += c.decode || (ends && !c.score) ? 1 : (c.score ? entry.rows : 0);
    }
    EXPECT(plan.rows <= limits::STEP_ROWS_MAX);
    EXPECT_EQ(plan.logit_rows, logits);
    EXPECT(plan.logit_rows <= limits::LOGIT_ROWS_MAX);
    if (low_latency) EXPECT(plan.rows <= std::max(2, policy.profiles[LOW_LATENCY].step_rows_max));
    if (decodes > 0) EXPECT(decode_rows(plan) >= 1);
    if (prompts > 0) EXPECT(plan.prefill_rows >= 1);
}

TEST(budgets_and_minimums_hold_for_any_view_and_policy) {
    std::mt19937 random(7);
    for (int32_t round = 0; round < 20000; round++) {
        Policy policy = random_policy(random);
        std::vector<Candidate> all = random_candidates(random);
        std::vector<int32_t> waited = {static_cast<int32_t>(random() % 60),
                                       static_cast<int32_t>(random() % 60), 0};
        Plan plan = plan_of(all, policy, waited);
        check_plan(all, policy, plan);
        Plan again = plan_of(all, policy, waited);
        EXPECT_EQ(plan.count, again.count);
        for (int32_t i = 0; i < plan.count; i++)
            EXPECT_EQ(plan.entries[i].candidate, again.entries[i].candidate);
    }
}

// A closed world: everybody always wants rows; nobody may wait longer than his turn can take.
void check_turns(std::mt19937& random) {
    Policy policy = random_policy(random);
    std::vector<Candidate> all = random_candidates(random);
    for (Candidate& c : all) c.page_hash = 0;
    std::vector<int32_t> waited = {0, 0, 0};
    for (int32_t step = 0; step < 400; step++) {
        Plan plan = plan_of(all, policy, waited);
        bool served[3] = {};
        for (Candidate& c : all) c.waited_steps++;
        for (int32_t i = 0; i < plan.count; i++) {
            Candidate& c = all[static_cast<size_t>(plan.entries[i].candidate)];
            c.waited_steps = 0;
            if (!c.decode) served[c.profile] = true;
        }
        for (int32_t p = 0; p < 3; p++)
            waited[static_cast<size_t>(p)] = served[p] ? 0 : waited[static_cast<size_t>(p)] + 1;
        for (const Candidate& c : all) {
            if (c.decode) EXPECT(c.waited_steps <= limits::SEQUENCES_MAX + 6 * AGEING_STEPS);
            if (!c.decode) EXPECT(waited[static_cast<size_t>(c.profile)] <= 8 * AGEING_STEPS);
        }
    }
}

TEST(nobody_starves_in_a_crowd) {
    std::mt19937 random(11);
    for (int32_t round = 0; round < 30; round++) check_turns(random);
}

TEST(low_latency_serves_prompts_one_at_a_time_in_order) {
    Plan plan = plan_of({prompt_of(5, LOW_LATENCY, 50), prompt_of(2, LOW_LATENCY, 50),
                         prompt_of(3, LOW_LATENCY, 50)});
    EXPECT_EQ(rows_of(plan, 1), 50);
    EXPECT_EQ(plan.count, 1);
}

TEST(high_throughput_fills_a_step_when_prompts_crowd) {
    std::vector<Candidate> all;
    for (int32_t i = 0; i < 8; i++) all.push_back(decode_of(i, HIGH_THROUGHPUT));
    for (int32_t i = 8; i < 32; i++) all.push_back(prompt_of(i, HIGH_THROUGHPUT, 100));
    Plan plan = plan_of(all);
    EXPECT_EQ(decode_rows(plan), 8);
    EXPECT(plan.prefill_rows > 500);
}

double step_ratio(const Plan& plan) {
    return static_cast<double>(plan.decode_ps + plan.prefill_ps) /
           static_cast<double>(plan.decode_ps);
}

// One prompt of `rows` beside `streams` decode rows, until it is computed: the longest step over
// its decode rows' time, and the share of all time that went into the prompt.
struct Beside {
    double ratio_max, share;
    int32_t steps, rows_min;
};
Beside run_beside(int32_t profile, int32_t streams, int32_t rows, const StepCost& cost) {
    std::vector<Candidate> all;
    for (int32_t i = 0; i < streams; i++) all.push_back(decode_of(i, profile));
    all.push_back(prompt_of(streams, profile, rows));
    Beside seen = {0.0, 0.0, 0, rows};
    int64_t whole = 0;
    int64_t prefill = 0;
    for (Candidate& prompt = all.back(); prompt.rows_left > 0; seen.steps++) {
        Plan plan = plan_of(all, DEFAULT_POLICY, {0, 0, 0}, cost);
        EXPECT_EQ(decode_rows(plan), streams);
        if (plan.prefill_rows > DEFAULT_POLICY.profiles[profile].prefill_rows_min)
            seen.ratio_max = std::max(seen.ratio_max, step_ratio(plan));
        if (plan.prefill_rows < prompt.rows_left)
            seen.rows_min = std::min(seen.rows_min, plan.prefill_rows);
        whole += plan.decode_ps + plan.prefill_ps;
        prefill += plan.prefill_ps;
        prompt.position += plan.prefill_rows;
        prompt.rows_left -= plan.prefill_rows;
    }
    seen.share = static_cast<double>(prefill) / static_cast<double>(whole);
    return seen;
}

TEST(a_long_prompt_keeps_its_share_and_no_step_takes_longer_than_the_policy_says) {
    StepCost shallow = DEFAULT_STEP_COST;
    shallow.prompt_row_ps /= 4; // tiles: cheap rows, dear first ones
    shallow.prompt_step_ps *= 2;
    for (const StepCost& cost : {DEFAULT_STEP_COST, shallow}) {
        for (int32_t profile : {LOW_LATENCY, HIGH_THROUGHPUT, LONG_CONTEXT}) {
            double percent = DEFAULT_POLICY.profiles[profile].step_percent;
            Beside seen = run_beside(profile, 16, 2000, cost);
            EXPECT(seen.ratio_max <= percent / 100 + 0.001);
            EXPECT(seen.share >= 0.8 * (1 - 100 / percent));
            EXPECT(seen.rows_min >= DEFAULT_POLICY.profiles[profile].prefill_rows_min);
        }
    }
}

TEST(chunks_shrink_with_depth_but_a_prompt_always_moves) {
    std::vector<Candidate> all = {decode_of(0, HIGH_THROUGHPUT),
                                  prompt_of(1, HIGH_THROUGHPUT, 30000)};
    for (int32_t i = 2; i < 17; i++) all.push_back(decode_of(i, HIGH_THROUGHPUT));
    int32_t before = limits::STEP_ROWS_MAX;
    for (int32_t position : {0, 1024, 4096, 16384, 100000}) {
        all[1].position = position;
        int32_t rows = plan_of(all).prefill_rows;
        EXPECT(rows <= before && rows >= 1);
        EXPECT(position > 0 || rows >= limits::PAGE_TOKENS / 2);
        before = rows;
    }
    EXPECT_EQ(before, DEFAULT_POLICY.profiles[HIGH_THROUGHPUT].prefill_rows_min);
}

// What a step with prompt rows may take, for any view and policy: the budget, or the smallest
// chunk.
TEST(no_step_outlasts_the_watchdog_however_deep_its_prompt) {
    int32_t deep = limits::CONTEXT_TOKENS_MAX - 4000;
    for (int32_t profile : {LOW_LATENCY, HIGH_THROUGHPUT, LONG_CONTEXT}) {
        Plan shallow = plan_of({prompt_of(0, profile, 4000)});
        EXPECT(shallow.rows > shallow.rows_max - limits::PAGE_TOKENS);
        Plan plan = plan_of({prompt_of(0, profile, 4000, deep), prompt_of(1, profile, 4000, deep)});
        EXPECT(plan.rows >= DEFAULT_POLICY.profiles[profile].prefill_rows_min);
        EXPECT(plan.prefill_ps <=
               scheduling::PROMPT_STEP_PS_MAX + DEFAULT_STEP_COST.prompt_step_ps);
        EXPECT(plan.rows < shallow.rows);
    }
}

TEST(the_time_budget_holds_where_a_smaller_chunk_exists) {
    std::mt19937 random(12);
    for (int32_t round = 0; round < 20000; round++) {
        Policy policy = random_policy(random);
        for (ProfilePolicy& p : policy.profiles) p.short_prompt_weight = 0;
        std::vector<Candidate> all = random_candidates(random);
        Plan plan = plan_of(all, policy);
        if (plan.decode_ps == 0 || plan.prefill_rows == 0) continue;
        int32_t percent = STEP_PERCENT_MAX;
        int32_t least = 1;
        for (int32_t i = 0; i < plan.count; i++) {
            const Candidate& c = all[static_cast<size_t>(plan.entries[i].candidate)];
            if (c.decode) percent = std::min(percent, policy.profiles[c.profile].step_percent);
            if (!c.decode) least = std::max(least, policy.profiles[c.profile].prefill_rows_min);
        }
        EXPECT(plan.prefill_rows <= least || step_ratio(plan) <= percent / 100.0 + 0.001);
    }
}

TEST(long_context_keeps_steps_short_beside_decode_rows) {
    Plan beside = plan_of({decode_of(0, LONG_CONTEXT), prompt_of(1, LONG_CONTEXT, 20000)});
    EXPECT_EQ(beside.prefill_rows, DEFAULT_POLICY.profiles[LONG_CONTEXT].prefill_rows_min);
    Plan alone = plan_of({prompt_of(1, LONG_CONTEXT, 20000)});
    EXPECT_EQ(alone.prefill_rows, DEFAULT_POLICY.profiles[LONG_CONTEXT].step_rows_max);
    // A long-context row also keeps the prompts of others small, however many they are.
    std::vector<Candidate> mixed = {decode_of(0, LONG_CONTEXT)};
    for (int32_t i = 1; i < 40; i++) mixed.push_back(prompt_of(i, HIGH_THROUGHPUT, 100));
    EXPECT(plan_of(mixed).prefill_rows <=
           DEFAULT_POLICY.profiles[HIGH_THROUGHPUT].prefill_rows_min);
}

TEST(a_short_prompt_runs_at_once_in_low_latency) {
    std::vector<Candidate> all = {prompt_of(0, LOW_LATENCY, 140)};
    for (int32_t i = 1; i < 17; i++) all.push_back(decode_of(i, LOW_LATENCY));
    Plan plan = plan_of(all);
    EXPECT_EQ(rows_of(plan, 0), 140);
    EXPECT_EQ(decode_rows(plan),
              DEFAULT_POLICY.profiles[LOW_LATENCY].decode_rows_beside_short_prompt);
    // The same rows at the end of a long prompt are no short prompt.
    all[0] = prompt_of(0, LOW_LATENCY, 140, 1860);
    plan = plan_of(all);
    EXPECT_EQ(decode_rows(plan), 16);
    EXPECT(rows_of(plan, 0) < 32);
}

TEST(a_low_latency_row_bounds_the_step_of_all) {
    std::vector<Candidate> all = {decode_of(0, LOW_LATENCY)};
    for (int32_t i = 1; i < 100; i++) all.push_back(decode_of(i, HIGH_THROUGHPUT));
    all.push_back(prompt_of(101, HIGH_THROUGHPUT, 5000));
    Plan plan = plan_of(all);
    EXPECT(plan.rows <= DEFAULT_POLICY.profiles[LOW_LATENCY].step_rows_max);
    EXPECT_EQ(rows_of(plan, 0), 1);
}

TEST(a_decode_limit_means_in_turn) {
    std::vector<Candidate> all;
    for (int32_t i = 0; i < 40; i++) all.push_back(decode_of(i, LOW_LATENCY));
    std::vector<int32_t> served(all.size());
    for (int32_t step = 0; step < 10; step++) {
        Plan plan = plan_of(all);
        EXPECT_EQ(plan.rows, DEFAULT_POLICY.profiles[LOW_LATENCY].decode_rows_max);
        for (Candidate& c : all) c.waited_steps++;
        for (int32_t i = 0; i < plan.count; i++) {
            auto at = static_cast<size_t>(plan.entries[i].candidate);
            all[at].waited_steps = 0;
            served[at]++;
        }
    }
    for (int32_t count : served) EXPECT(count >= 3 && count <= 5); // 160 rows over 40
}

TEST(chunks_end_at_page_borders) {
    std::vector<Candidate> all = {prompt_of(0, HIGH_THROUGHPUT, 5000, 4)};
    for (int32_t i = 1; i < 17; i++) all.push_back(decode_of(i, HIGH_THROUGHPUT));
    EXPECT_EQ((4 + plan_of(all).prefill_rows) % limits::PAGE_TOKENS, 0);
    EXPECT(plan_of(all).prefill_rows >= 20);
}

TEST(of_equal_pages_one_is_computed) {
    std::vector<Candidate> all = {prompt_of(0, HIGH_THROUGHPUT, 64),
                                  prompt_of(1, HIGH_THROUGHPUT, 64),
                                  prompt_of(2, HIGH_THROUGHPUT, 64)};
    all[0].page_hash = all[1].page_hash = 77;
    all[2].page_hash = 78;
    Plan plan = plan_of(all);
    EXPECT_EQ(rows_of(plan, 0), 64);
    EXPECT_EQ(rows_of(plan, 1), 0);
    EXPECT_EQ(rows_of(plan, 2), 64);
}

TEST(score_rows_stay_within_the_logits_of_a_step) {
    Candidate score = prompt_of(0, HIGH_THROUGHPUT, 4000);
    score.score = true;
    Plan plan = plan_of({score, decode_of(1, HIGH_THROUGHPUT), prompt_of(2, HIGH_THROUGHPUT, 10)});
    EXPECT(plan.logit_rows <= limits::LOGIT_ROWS_MAX);
    EXPECT(rows_of(plan, 0) > 64);
    EXPECT_EQ(rows_of(plan, 1), 1);
}

TEST(the_smallest_bucket_that_holds_is_chosen) {
    for (int32_t rows = 1; rows <= limits::STEP_ROWS_MAX; rows++) {
        Bucket bucket = choose_bucket(rows, 1 + rows);
        EXPECT(bucket.rows >= rows && (bucket.rows == 1 || bucket.rows / 2 < rows));
        EXPECT(bucket.context_tokens >= 1 + rows);
        EXPECT(bucket.id >= 0 && bucket.id < ROW_BUCKET_COUNT * CONTEXT_BUCKET_COUNT);
    }
    EXPECT_EQ(choose_bucket(1, limits::CONTEXT_TOKENS_MAX).context_tokens,
              limits::CONTEXT_TOKENS_MAX);
    EXPECT(choose_bucket(1, 512).id != choose_bucket(1, 513).id);
    EXPECT(choose_bucket(32, 512).id != choose_bucket(33, 512).id);
}

} // namespace
} // namespace sublimate

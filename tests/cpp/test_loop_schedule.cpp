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
    return {
        sequence, profile, true, false, false, 100, 1, waited, static_cast<uint64_t>(sequence + 1),
        0};
}

Candidate prompt_of(int32_t sequence, int32_t profile, int32_t rows, int32_t position = 0) {
    return {sequence, profile, false,
            false,    true,    position,
            rows,     0,       static_cast<uint64_t>(sequence + 1),
            0};
}

Plan plan_of(const std::vector<Candidate>& candidates, const Policy& policy = DEFAULT_POLICY,
             std::vector<int32_t> waited = {0, 0, 0}) {
    ScheduleView view = {candidates.data(),
                         static_cast<int32_t>(candidates.size()),
                         {waited[0], waited[1], waited[2]}};
    Plan plan;
    schedule(view, policy, plan);
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
        p.decode_rows_beside_prefill = between(1, 128);
        p.step_rows_max = between(1, limits::STEP_ROWS_MAX);
        p.prefill_rows_beside_decode = between(0, 512);
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
        c.ends_prompt = random() % 4 != 0;
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
        bool ends = c.ends_prompt && entry.rows == c.rows_left;
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

TEST(high_throughput_fills_a_step_with_many) {
    std::vector<Candidate> all;
    for (int32_t i = 0; i < 64; i++) all.push_back(decode_of(i, HIGH_THROUGHPUT));
    for (int32_t i = 64; i < 70; i++) all.push_back(prompt_of(i, HIGH_THROUGHPUT, 100));
    Plan plan = plan_of(all);
    EXPECT_EQ(decode_rows(plan), 64);
    EXPECT(plan.prefill_rows > 400);
}

TEST(long_context_keeps_chunks_small_beside_decode_rows) {
    Plan beside = plan_of({decode_of(0, LONG_CONTEXT), prompt_of(1, LONG_CONTEXT, 20000)});
    EXPECT_EQ(beside.prefill_rows,
              DEFAULT_POLICY.profiles[LONG_CONTEXT].prefill_rows_beside_decode);
    Plan alone = plan_of({prompt_of(1, LONG_CONTEXT, 20000)});
    EXPECT_EQ(alone.prefill_rows, DEFAULT_POLICY.profiles[LONG_CONTEXT].step_rows_max);
    // A long-context row also keeps the prompts of others small.
    Plan mixed = plan_of({decode_of(0, LONG_CONTEXT), prompt_of(1, HIGH_THROUGHPUT, 20000)});
    EXPECT_EQ(mixed.prefill_rows, beside.prefill_rows);
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
    Plan plan = plan_of({decode_of(0, HIGH_THROUGHPUT), prompt_of(1, HIGH_THROUGHPUT, 5000, 10)});
    EXPECT_EQ((10 + plan.prefill_rows) % limits::PAGE_TOKENS, 0);
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

// Sampling: known answers of the generator, the polynomials, the distribution of Gumbel-max against
// softmax, and every filter and penalty against a naive twin that sorts.
#include "../../core/loop/sampler.h"
#include "test.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

namespace sublimate {
namespace {

int32_t bits(float value) {
    return static_cast<int32_t>(float_bits(value));
}

RequestHeader greedy() {
    RequestHeader h = {};
    h.prompt_length = 1;
    h.top_p_bits = bits(1.0f);
    h.repetition_penalty_bits = bits(1.0f);
    h.logprobs = -1;
    return h;
}

// One row with its own scratch.
struct Sampler {
    explicit Sampler(std::vector<float> row)
        : logits(std::move(row)), work(logits.size()), weights(logits.size()),
          counts(logits.size()), ids(logits.size()) {}

    Sample sample(const RequestHeader& h, const std::vector<int32_t>& history = {0},
                  const std::vector<int32_t>& bias = {}, const uint32_t* mask = nullptr) {
        SampleRequest request = {&h, bias.data(), mask, static_cast<int32_t>(logits.size()),
                                 static_cast<int32_t>(history.size())};
        SampleScratch scratch = {work.data(), counts.data(), {ids.data(), weights.data()}};
        Sample out = {};
        sample_row(
            scalar_sampler_ops(), logits.data(), request,
            [&history](int32_t at) { return history[static_cast<size_t>(at)]; }, scratch, out);
        for (int32_t count : counts) EXPECT_EQ(count, 0); // left clean for the next row
        return out;
    }

    std::vector<float> logits, work, weights;
    std::vector<int32_t> counts, ids;
};

std::vector<float> random_row(std::mt19937& random, int32_t count, bool ties) {
    std::vector<float> row;
    for (int32_t i = 0; i < count; i++) {
        auto value = static_cast<float>(random() % 2000) / 100.0f - 10.0f;
        row.push_back(ties ? std::round(value) : value);
    }
    return row;
}

// Ids by rank: logit descending, id ascending.
std::vector<int32_t> ranking(const std::vector<float>& row) {
    std::vector<int32_t> order(row.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&row](int32_t a, int32_t b) {
        return row[static_cast<size_t>(a)] > row[static_cast<size_t>(b)];
    });
    return order;
}

// What top-k, top-p and min-p leave, by a full sort in double precision. `margin` is set if a sum
// comes so close to top_p that rounding may decide.
std::vector<int32_t> naive_survivors(const std::vector<float>& row, double temperature,
                                     const SelectLimits& limits, bool* margin) {
    std::vector<int32_t> order = ranking(row);
    if (limits.top_k > 0 && limits.top_k < static_cast<int32_t>(order.size()))
        order.resize(static_cast<size_t>(limits.top_k));
    double top = row[static_cast<size_t>(order[0])];
    auto weight = [&](int32_t id) {
        return std::exp((row[static_cast<size_t>(id)] - top) / temperature);
    };
    double total = 0.0;
    for (int32_t id : order) total += weight(id);
    double sum = 0.0;
    size_t kept = 0;
    *margin = false;
    while (kept < order.size() && (sum < limits.top_p * total || limits.top_p >= 1.0f)) {
        sum += weight(order[kept++]);
        *margin |= limits.top_p < 1.0f && std::fabs(sum - limits.top_p * total) < 1e-5 * total;
    }
    order.resize(kept);
    std::erase_if(order, [&](int32_t id) {
        *margin |= limits.min_p > 0.0f && std::fabs(weight(id) - limits.min_p) < 1e-5;
        return weight(id) < limits.min_p;
    });
    std::sort(order.begin(), order.end());
    return order;
}

TEST(philox_gives_the_known_answers) {
    // Random123's known-answer file: philox4x32 with 10 rounds.
    PhiloxBlock zero = philox({{0, 0, 0, 0}}, 0, 0);
    EXPECT_EQ(zero.word[0], 0x6627e8d5u);
    EXPECT_EQ(zero.word[1], 0xe169c58du);
    EXPECT_EQ(zero.word[2], 0xbc57ac4cu);
    EXPECT_EQ(zero.word[3], 0x9b00dbd8u);
    uint32_t f = 0xffffffffu;
    PhiloxBlock ones = philox({{f, f, f, f}}, f, f);
    EXPECT_EQ(ones.word[0], 0x408f276du);
    EXPECT_EQ(ones.word[1], 0x41c83b0eu);
    EXPECT_EQ(ones.word[2], 0xa20bc7c6u);
    EXPECT_EQ(ones.word[3], 0x6d5451fdu);
}

TEST(polynomials_are_close_to_the_library) {
    for (float x = 1e-30f; x < 1e30f; x *= 1.37f) {
        double exact = std::log(static_cast<double>(x));
        EXPECT_NEAR(log_polynomial(x), exact, 2e-7 * std::max(1.0, std::fabs(exact)));
    }
    for (float x = -87.0f; x <= 0.0f; x += 0.0137f) {
        double exact = std::exp(static_cast<double>(x));
        EXPECT_NEAR(exp_polynomial(x), exact, 2e-7 * exact);
    }
    EXPECT_EQ(exp_polynomial(-88.0f), 0.0f);
    EXPECT_EQ(exp_polynomial(MINUS_INFINITY), 0.0f);
    EXPECT_EQ(exp_polynomial(0.0f), 1.0f);
    EXPECT_EQ(log_polynomial(1.0f), 0.0f);
}

TEST(noise_stays_within_its_bounds) {
    EXPECT(gumbel_from_bits(0xffffffffu) <= GUMBEL_NOISE_MAX);
    EXPECT(gumbel_from_bits(0) >= GUMBEL_NOISE_MIN);
    EXPECT(gumbel_noise(1, 2, 3) != gumbel_noise(1, 3, 3));
    EXPECT(gumbel_noise(1, 2, 3) != gumbel_noise(2, 2, 3));
    EXPECT(gumbel_noise(1, 2, 3) != gumbel_noise(uint64_t{1} << 32 | 1, 2, 3));
    std::vector<float> noise;
    for (int32_t id = 0; id < 256; id++) noise.push_back(gumbel_noise(9, 9, id));
    std::sort(noise.begin(), noise.end());
    EXPECT(std::adjacent_find(noise.begin(), noise.end()) == noise.end());
}

TEST(gumbel_argmax_equals_its_definition) {
    std::mt19937 random(3);
    for (int32_t round = 0; round < 200; round++) {
        std::vector<float> row =
            random_row(random, 1 + static_cast<int32_t>(random() % 300), false);
        if (round % 3 == 0) row[random() % row.size()] = MINUS_INFINITY;
        float inverse = 0.2f + static_cast<float>(random() % 100) / 20.0f;
        float floor = round % 2 == 0 ? MINUS_INFINITY : -3.0f;
        auto count = static_cast<int32_t>(row.size());
        int32_t best = -1;
        float best_score = MINUS_INFINITY;
        for (int32_t i = 0; i < count; i++) {
            float score =
                std::fmaf(row[static_cast<size_t>(i)], inverse, gumbel_noise(5, round, i));
            if (row[static_cast<size_t>(i)] < floor || !(score > best_score)) continue;
            best_score = score;
            best = i;
        }
        EXPECT_EQ(gumbel_argmax(row.data(), count, inverse, floor, 5, round), best);
    }
    float none[3] = {MINUS_INFINITY, MINUS_INFINITY, MINUS_INFINITY};
    EXPECT_EQ(gumbel_argmax(none, 3, 1.0f, MINUS_INFINITY, 1, 1), -1);
}

// Chi-square of `draws` samples over the ids of `row` against the softmax of the survivors.
void check_distribution(const std::vector<float>& row, RequestHeader h, double temperature,
                        const std::vector<int32_t>& survivors) {
    constexpr int32_t DRAWS = 40000;
    Sampler sampler(row);
    std::vector<double> seen(row.size());
    for (int32_t i = 0; i < DRAWS; i++) {
        h.seed_low = i;
        seen[static_cast<size_t>(sampler.sample(h).token)] += 1.0;
    }
    double total = 0.0;
    for (int32_t id : survivors) total += std::exp(row[static_cast<size_t>(id)] / temperature);
    double chi_square = 0.0;
    double inside = 0.0;
    for (int32_t id : survivors) {
        double expected = DRAWS * std::exp(row[static_cast<size_t>(id)] / temperature) / total;
        double count = seen[static_cast<size_t>(id)];
        chi_square += (count - expected) * (count - expected) / expected;
        inside += count;
    }
    EXPECT_EQ(inside, static_cast<double>(DRAWS));
    auto freedom = static_cast<double>(survivors.size() - 1);
    EXPECT(chi_square < freedom + 5.0 * std::sqrt(2.0 * freedom) + 5.0);
}

TEST(samples_follow_the_softmax) {
    std::vector<float> row = {1.0f, 2.0f, 0.5f, -1.0f, 3.0f, 2.5f, 0.0f, 1.5f};
    std::vector<int32_t> all = {0, 1, 2, 3, 4, 5, 6, 7};
    RequestHeader h = greedy();
    h.temperature_bits = bits(1.0f);
    check_distribution(row, h, 1.0, all);
    h.temperature_bits = bits(1.7f);
    check_distribution(row, h, 1.7f, all);
    h.top_k = 3;
    check_distribution(row, h, 1.7f, {1, 4, 5});
    h.top_k = 0;
    h.min_p_bits = bits(0.3f);
    h.temperature_bits = bits(1.0f);
    check_distribution(row, h, 1.0, {1, 4, 5}); // exp(-1) = 0.37 survives, exp(-1.5) does not
}

TEST(survivors_equal_those_of_a_full_sort) {
    std::mt19937 random(5);
    int32_t compared = 0;
    for (int32_t round = 0; round < 4000; round++) {
        std::vector<float> row =
            random_row(random, 1 + static_cast<int32_t>(random() % 200), round % 2 == 0);
        SelectLimits limits = {0, 1.0f, 0.0f};
        if (random() % 2) limits.top_k = 1 + static_cast<int32_t>(random() % 60);
        if (random() % 2) limits.top_p = static_cast<float>(1 + random() % 99) / 100.0f;
        if (random() % 3 == 0) limits.min_p = static_cast<float>(random() % 60) / 100.0f;
        float temperature = 0.1f + static_cast<float>(random() % 80) / 10.0f;
        bool margin = false;
        std::vector<int32_t> expected = naive_survivors(row, double{temperature}, limits, &margin);
        if (margin) continue;
        Sampler sampler(row);
        SelectScratch scratch = {sampler.ids.data(), sampler.weights.data()};
        int32_t count =
            select_survivors(scalar_sampler_ops(), row.data(), static_cast<int32_t>(row.size()),
                             1.0f / temperature, limits, scratch);
        std::vector<int32_t> got(sampler.ids.begin(), sampler.ids.begin() + count);
        EXPECT(got == expected);
        compared++;
    }
    EXPECT(compared > 2000);
}

TEST(edge_cases_of_the_filters) {
    std::vector<float> equal(50, 1.0f);
    RequestHeader h = greedy();
    h.temperature_bits = bits(1.0f);
    h.top_k = 1;
    EXPECT_EQ(Sampler(equal).sample(h).token, 0); // ties by the lowest id
    h.top_k = 0;
    h.top_p_bits = bits(1e-6f);
    EXPECT_EQ(Sampler(equal).sample(h).token, 0);
    h.top_p_bits = bits(0.1f);
    for (int32_t seed = 0; seed < 50; seed++) {
        h.seed_low = seed;
        EXPECT(Sampler(equal).sample(h).token < 6);
    }
    h = greedy();
    h.temperature_bits = bits(1.0f);
    h.top_k = 1000; // more than there are
    h.min_p_bits = bits(0.99f);
    EXPECT_EQ(Sampler({0.0f, 9.0f, 1.0f}).sample(h).token, 1);
    h = greedy();
    h.temperature_bits = bits(1e-6f); // as good as greedy
    EXPECT_EQ(Sampler({0.0f, 9.0f, 9.0f}).sample(h).token, 1);
    h.temperature_bits = bits(3e38f); // as good as uniform
    h.top_p_bits = bits(0.5f);
    EXPECT(Sampler({0.0f, 9.0f, 1.0f}).sample(h).token >= 0);
    EXPECT_EQ(Sampler({5.0f}).sample(h).token, 0);
}

TEST(a_seeded_row_repeats_and_another_position_differs) {
    std::mt19937 random(1);
    std::vector<float> row = random_row(random, 400, false);
    for (float& value : row) value *= 0.05f;
    RequestHeader h = greedy();
    h.temperature_bits = bits(1.0f);
    h.seed_low = 77;
    std::vector<int32_t> history = {1};
    int32_t changed = 0;
    for (int32_t i = 0; i < 20; i++) {
        int32_t first = Sampler(row).sample(h, history).token;
        EXPECT_EQ(Sampler(row).sample(h, history).token, first);
        history.push_back(1);
        changed += Sampler(row).sample(h, history).token != first ? 1 : 0;
    }
    EXPECT(changed > 15);
}

// The best of logit / temperature + noise, for ids that pass.
int32_t drawn(const std::vector<float>& row, float temperature, uint64_t seed, int32_t position,
              float lowest) {
    int32_t best = -1;
    float best_score = 0.0f;
    for (int32_t id = 0; id < static_cast<int32_t>(row.size()); id++) {
        float logit = row[static_cast<size_t>(id)];
        float score = std::fma(logit, 1.0f / temperature, gumbel_noise(seed, position, id));
        if (logit < lowest || (best >= 0 && score <= best_score)) continue;
        best = id;
        best_score = score;
    }
    return best;
}

// What a seed says is a promise: the same in each release, whatever filters a request has.
TEST(a_draw_is_that_of_its_seed_position_and_id) {
    std::mt19937 random(5);
    std::vector<float> row = random_row(random, 300, false);
    for (size_t i = 0; i < row.size(); i++) // no two are equal
        row[i] = row[i] * 0.1f + static_cast<float>(i) * 1e-6f;
    std::vector<float> sorted = row;
    std::sort(sorted.begin(), sorted.end());
    RequestHeader h = greedy();
    std::vector<int32_t> history;
    for (int32_t position = 1; position < 40; position++) {
        history.push_back(1);
        h.seed_low = position * 77;
        h.seed_high = position % 3 - 1;
        uint64_t seed =
            uint64_t{static_cast<uint32_t>(h.seed_high)} << 32 | static_cast<uint32_t>(h.seed_low);
        float temperature = 0.5f + 0.05f * static_cast<float>(position);
        h.temperature_bits = bits(temperature);
        h.top_k = 0;
        float lowest = sorted.front();
        EXPECT_EQ(Sampler(row).sample(h, history).token,
                  drawn(row, temperature, seed, position, lowest));
        h.top_k = position + 1;
        lowest = sorted[sorted.size() - static_cast<size_t>(h.top_k)];
        EXPECT_EQ(Sampler(row).sample(h, history).token,
                  drawn(row, temperature, seed, position, lowest));
    }
}

TEST(pinned_draws) {
    RequestHeader h = greedy();
    h.temperature_bits = bits(1.0f);
    h.seed_low = 20260725;
    h.seed_high = 7;
    std::vector<int32_t> history;
    std::vector<int32_t> tokens;
    for (int32_t i = 0; i < 12; i++) {
        history.push_back(i);
        tokens.push_back(Sampler(std::vector<float>(1000, 0.0f)).sample(h, history).token);
    }
    std::vector<int32_t> wanted = {392, 407, 884, 705, 263, 154, 711, 517, 30, 146, 74, 466};
    EXPECT(tokens == wanted);
    for (int32_t token : tokens)
        if (tokens != wanted) std::printf("%d, ", token);
}

TEST(penalties_act_on_the_right_tokens) {
    std::vector<float> row = {4.0f, 3.9f, -1.0f, 3.8f};
    std::vector<int32_t> history = {0, 2, 1, 1}; // prompt 0 2, output 1 1
    RequestHeader h = greedy();
    h.prompt_length = 2;
    EXPECT_EQ(Sampler(row).sample(h, history).token, 0);
    h.repetition_penalty_bits = bits(2.0f);
    Sampler repetition(row);
    EXPECT_EQ(repetition.sample(h, history).token, 3);
    EXPECT_EQ(repetition.work[0], 2.0f);
    EXPECT_EQ(repetition.work[1], 1.95f);
    EXPECT_EQ(repetition.work[2], -2.0f); // a negative logit is multiplied
    EXPECT_EQ(repetition.work[3], 3.8f);
    h = greedy();
    h.prompt_length = 2;
    h.presence_penalty_bits = bits(0.5f);
    h.frequency_penalty_bits = bits(0.25f);
    Sampler output(row);
    EXPECT_EQ(output.sample(h, history).token, 0);
    EXPECT_EQ(output.work[0], 4.0f); // the prompt does not count
    EXPECT_EQ(output.work[1], 3.9f - 0.25f * 2.0f - 0.5f);
    EXPECT_EQ(output.work[2], -1.0f);
}

TEST(bias_and_mask_apply_and_bad_ids_are_ignored) {
    std::vector<float> row = {1.0f, 2.0f, 3.0f, 0.0f};
    RequestHeader h = greedy();
    h.logit_bias_count = 3;
    int32_t nan = bits(__builtin_nanf(""));
    EXPECT_EQ(Sampler(row).sample(h, {0}, {0, bits(5.0f), 900, bits(99.0f), -1, bits(99.0f)}).token,
              0);
    EXPECT_EQ(Sampler(row).sample(h, {0}, {0, nan, 1, bits(1e38f), 1, bits(3e38f)}).token, 1);
    h.logit_bias_count = 0;
    uint32_t only_three = 1u << 3;
    EXPECT_EQ(Sampler(row).sample(h, {0}, {}, &only_three).token, 3);
    uint32_t nothing = 0;
    EXPECT_EQ(Sampler(row).sample(h, {0}, {}, &nothing).token, SAMPLE_NOTHING_ALLOWED);
    h.temperature_bits = bits(1.0f);
    EXPECT_EQ(Sampler(row).sample(h, {0}, {}, &only_three).token, 3);
    EXPECT_EQ(Sampler(row).sample(h, {0}, {}, &nothing).token, SAMPLE_NOTHING_ALLOWED);
    h.top_p_bits = bits(0.5f);
    EXPECT_EQ(Sampler(row).sample(h, {0}, {}, &nothing).token, SAMPLE_NOTHING_ALLOWED);
    EXPECT_EQ(Sampler(row).sample(h, {0}, {}, &only_three).token, 3);
}

TEST(a_row_that_is_not_finite_fails) {
    for (float bad : {__builtin_nanf(""), __builtin_huge_valf(), -__builtin_huge_valf()}) {
        for (size_t at : {size_t{0}, size_t{17}, size_t{32}}) {
            std::vector<float> row(33, 1.0f);
            row[at] = bad;
            EXPECT_EQ(Sampler(row).sample(greedy()).token, -1);
            EXPECT(!all_finite(row.data(), 33));
        }
    }
    std::vector<float> large = {3e38f, -3e38f, 1e-42f, -0.0f};
    EXPECT(all_finite(large.data(), 4));
    RequestHeader h = greedy();
    h.temperature_bits = bits(0.01f);
    EXPECT_EQ(Sampler(large).sample(h).token, 0);
}

TEST(logprobs_are_those_of_the_untouched_row) {
    std::mt19937 random(9);
    std::vector<float> row = random_row(random, 100, false);
    RequestHeader h = greedy();
    h.temperature_bits = bits(1.5f);
    h.logit_bias_count = 1;
    h.logprobs = 5;
    Sample sample = Sampler(row).sample(h, {0}, {3, bits(50.0f)});
    EXPECT_EQ(sample.token, 3);
    double total = 0.0;
    for (float value : row) total += std::exp(static_cast<double>(value));
    EXPECT_NEAR(sample.logprob, row[3] - std::log(total), 1e-5);
    EXPECT_EQ(sample.alternatives, 5);
    std::vector<int32_t> order = ranking(row);
    for (int32_t i = 0; i < 5; i++) {
        EXPECT_EQ(sample.ids[i], order[static_cast<size_t>(i)]);
        EXPECT_NEAR(sample.logprobs[i], row[static_cast<size_t>(sample.ids[i])] - std::log(total),
                    1e-5);
    }
    h.logit_bias_count = h.logprobs = 0;
    sample = Sampler(row).sample(h);
    EXPECT_EQ(sample.alternatives, 0);
    EXPECT(sample.logprob < 0.0f);
    Sampler tiny({1.0f, 1.0f, 2.0f});
    h = greedy();
    h.logprobs = limits::LOGPROBS_MAX; // more than there are tokens
    sample = tiny.sample(h);
    EXPECT_EQ(sample.alternatives, 3);
    EXPECT_EQ(sample.ids[0], 2);
    EXPECT_EQ(sample.ids[1], 0);
    EXPECT_EQ(sample.ids[2], 1);
}

TEST(sum_exp_is_the_sum) {
    std::mt19937 random(2);
    for (int32_t count : {1, 2, 15, 16, 17, 33, 1000}) {
        std::vector<float> row = random_row(random, count, false);
        double exact = 0.0;
        float top = max_value(row.data(), count);
        for (float value : row) exact += std::exp((double{value} - double{top}) * 0.7);
        EXPECT_NEAR(sum_exp(row.data(), count, top, 0.7f), exact, 1e-5 * exact);
    }
}

} // namespace
} // namespace sublimate

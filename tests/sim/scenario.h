// What one seed looks like: sizes, policy, rates of everything that can go wrong; and the requests
// it draws.
//
// defines: Scenario, draw_scenario, RequestMaker
#pragma once

#include <cstdint>
#include <vector>

#include "../../core/loop/memory.h"
#include "hash_model.h"
#include "oracle.h"

namespace sublimate::sim {

constexpr int32_t EDGES_SIMULATED = 3;
constexpr int32_t VOCABULARY_SIMULATED_MAX = 40;
constexpr int32_t CONTEXT_SIMULATED_MAX = 224;
constexpr int32_t PAGES_SIMULATED_MAX = 80;
constexpr int32_t SEQUENCES_SIMULATED_MAX = 20;
constexpr int32_t QUEUE_SIMULATED_MAX = 32;
constexpr int32_t TENANTS_SIMULATED_MAX = 4;

// Rates per iteration, in parts of a thousand unless said otherwise.
struct Scenario {
    LoopConfig loop;
    ModelTraits traits;
    int32_t edges = 1;
    int32_t submit = 0;
    int32_t burst = 0; // several equal prompts at once
    int32_t cancel = 0;
    int32_t late_cancel = 0;    // of generations that have ended
    int32_t hostile_record = 0; // of a submission
    int32_t hostile_ring = 0;
    int32_t ring_full = 0;
    int32_t read_percent = 100; // chance that an edge reads in an iteration
    int32_t late_mask = 0;      // chance in a thousand that a mask is held back another iteration
    int32_t absent_mask = 0;    // of a masked request: some mask of it never comes
    int32_t edge_death = 0;
    int32_t engine_death = 0;
    int32_t clock_jump = 0;
    int32_t score_percent = 0;
    int32_t masked_percent = 0;
    int32_t sampled_percent = 0;
    int32_t prompt_max = 0;
    int32_t budget_max = 0;
    int32_t tenants = 1;
    bool traced = false; // every edge follows what the loop decides
};

// Any two tenants differ in one half of their number at least, and some in one half alone.
inline void set_tenant(RequestHeader& header, int32_t tenant) {
    header.tenant_low = tenant & 1;
    header.tenant_high = tenant >> 1;
}

// Small and varied, so that chunks, turns and budgets all bite.
inline Policy draw_policy(Random& random) {
    Policy policy = DEFAULT_POLICY;
    if (random.chance(30)) return policy;
    for (ProfilePolicy& p : policy.profiles) {
        p.decode_rows_max = random.between(1, 16);
        p.decode_rows_beside_short_prompt = random.between(1, p.decode_rows_max);
        p.step_rows_max = random.between(2, 96);
        p.step_percent = random.between(100, 600);
        p.step_percent_max = p.step_percent + (random.chance(50) ? random.between(0, 2000) : 0);
        p.short_prompt_weight = random.chance(50) ? random.between(0, 64) : 0;
        p.prefill_rows_min = random.between(1, 32);
        p.prompts_at_once = random.between(1, 6);
        p.priority = random.between(0, 3);
    }
    return policy;
}

// Of machines that differ widely; nothing of it may matter to what is said, only to when.
inline StepCost draw_cost(Random& random) {
    StepCost cost = DEFAULT_STEP_COST;
    if (random.chance(30)) return cost;
    cost.step_ps = int64_t{random.between(0, 5000)} * 1'000'000;
    cost.prompt_step_ps = random.chance(50) ? int64_t{random.between(0, 5000)} * 1'000'000 : 0;
    cost.decode_row_ps = int64_t{random.between(1, 2000)} * 1'000'000;
    cost.decode_position_ps = int64_t{random.between(0, 5000)} * 10'000;
    cost.prompt_row_ps = int64_t{random.between(1, 2000)} * 1'000'000;
    cost.prompt_position_ps = int64_t{random.between(0, 5000)} * 10'000;
    return cost;
}

inline Scenario draw_scenario(uint64_t seed) {
    Random random(mix_hash(seed) ^ 0x73696d);
    auto sometimes = [&random](int32_t percent, int32_t most) {
        return random.chance(percent) ? random.between(1, most) : 0;
    };
    Scenario s;
    s.traced =
        mix_hash(seed ^ 0x7472616365) % 4 == 0; // of no draw, so that seeds stay what they are
    s.loop.vocabulary = random.between(16, VOCABULARY_SIMULATED_MAX);
    s.loop.context_tokens = random.between(40, CONTEXT_SIMULATED_MAX);
    s.loop.pages = random.between(4, random.chance(50) ? 16 : PAGES_SIMULATED_MAX);
    s.loop.sequences_max = random.between(1, SEQUENCES_SIMULATED_MAX);
    s.loop.queue_max = random.between(1, QUEUE_SIMULATED_MAX);
    s.loop.sample_lanes = random.between(1, 4);
    s.loop.salt = random.next();
    s.loop.hash_mask = random.chance(60) ? ~uint64_t{0} : (uint64_t{1} << random.below(4)) - 1;
    s.loop.same_arithmetic = random.chance(40);
    s.traits.arithmetics_differ = !s.loop.same_arithmetic && random.chance(70);
    s.loop.share_generated = !s.traits.arithmetics_differ;
    s.loop.ring_full_deadline_ns = int64_t{random.between(1, 30)} * BLOCKED_TICK_MAX_NS;
    s.loop.policy = draw_policy(random);
    s.loop.cost = draw_cost(random);
    s.traits.vocabulary = s.loop.vocabulary;
    s.traits.nan_period = random.chance(30) ? random.between(60, 600) : 0;
    s.edges = random.between(1, EDGES_SIMULATED);
    s.submit = random.chance(20) ? random.between(200, 700) : random.between(20, 150);
    s.burst = sometimes(50, 60);
    s.cancel = sometimes(60, 120);
    s.late_cancel = sometimes(50, 80);
    s.hostile_record = sometimes(40, 200);
    s.hostile_ring = sometimes(10, 6);
    s.ring_full = sometimes(30, 20);
    s.read_percent = random.chance(60) ? 100 : random.between(20, 99);
    s.late_mask = random.between(0, 900);
    s.edge_death = sometimes(20, 10);
    s.engine_death = sometimes(15, 8);
    s.clock_jump = sometimes(25, 30);
    s.score_percent = random.chance(50) ? random.between(1, 20) : 0;
    s.masked_percent = random.chance(40) ? random.between(5, 60) : 0;
    s.absent_mask = sometimes(30, 300);
    s.sampled_percent = random.chance(60) ? random.between(5, 80) : 0;
    s.budget_max = random.between(2, s.loop.context_tokens < 80 ? 12 : 48);
    s.prompt_max = random.between(2, s.loop.context_tokens - s.budget_max);
    s.tenants = random.between(1, TENANTS_SIMULATED_MAX);
    s.loop.speculation = random.chance(60);
    s.loop.adapters = 1;
    if (random.chance(50)) s.loop.cost.decode_row_ps = int64_t{random.between(1, 60)} * 1'000'000;
    s.traits.habit_percent = random.chance(60) ? random.between(30, 98) : 0;
    return s;
}

// Draws request records. Prompts share prefixes, repeat, continue earlier answers, and come from
// several tenants with equal texts.
class RequestMaker {
public:
    void start(const Scenario& scenario, Random& random) {
        scenario_ = &scenario;
        for (auto& base : bases_) fill(random, base, scenario.loop.context_tokens);
        past_.clear();
    }

    void remember(const std::vector<int32_t>& conversation) { past_ = conversation; }

    void draw(Random& random, RequestSpec& spec) {
        const Scenario& s = *scenario_;
        spec = {};
        RequestHeader& h = spec.header;
        h.version = REQUEST_VERSION;
        h.profile = random.below(limits::PRIORITIES_MAX);
        h.token_budget = random.chance(3) ? 0 : random.between(1, s.budget_max);
        draw_prompt(random, spec.prompt);
        h.prompt_length = static_cast<int32_t>(spec.prompt.size());
        set_tenant(h, random.below(s.tenants));
        h.adapter = random.chance(10) ? 1 : 0;
        h.sparse_mode = random.chance(5) ? 1 : 0;
        h.flags =
            (random.chance(10) ? FLAG_NO_CACHE : 0) | (random.chance(30) ? FLAG_IGNORE_EOS : 0);
        h.mask_slot = h.trigger_slot = -1;
        h.free_end = random.chance(40) ? random.between(1, 16) : 0;
        h.logprobs = random.chance(8) ? random.between(0, limits::LOGPROBS_MAX) : -1;
        h.stop_token_count = random.between(0, 2);
        for (int32_t i = 0; i < h.stop_token_count; i++)
            h.stop_tokens[i] = random.below(s.loop.vocabulary);
        draw_sampling(random, spec);
        if (random.chance(s.score_percent))
            h.flags |= FLAG_SCORE | (random.chance(50) ? FLAG_SCORE_DECODE : 0);
        if (random.chance(2) && (h.flags & FLAG_SCORE) == 0) h.token_budget = s.loop.context_tokens;
        judge(spec);
    }

    // The reason the loop must give for a well-formed record that can never fit.
    void judge(RequestSpec& spec) const {
        const RequestHeader& h = spec.header;
        int32_t answer = (h.flags & FLAG_SCORE) != 0 ? 0 : h.token_budget;
        // The last token of an answer is never computed.
        int32_t computed = h.prompt_length + (answer > 0 ? answer - 1 : 0);
        bool too_long = h.prompt_length + answer > scenario_->loop.context_tokens ||
                        computed > scenario_->loop.pages * limits::PAGE_TOKENS;
        spec.refusal = too_long ? RefuseReason::too_long : RefuseReason::none;
    }

private:
    void fill(Random& random, std::vector<int32_t>& tokens, int32_t count) const {
        tokens.clear();
        for (int32_t i = 0; i < count; i++)
            tokens.push_back(random.below(scenario_->loop.vocabulary));
    }

    void draw_prompt(Random& random, std::vector<int32_t>& prompt) const {
        int32_t length = random.between(1, scenario_->prompt_max);
        if (random.chance(20) && length > limits::PAGE_TOKENS)
            length -= length % limits::PAGE_TOKENS;
        int32_t kind = random.below(100);
        const std::vector<int32_t>& base =
            kind < 20 && !past_.empty() ? past_ : bases_[random.below(BASES)];
        bool own = kind >= 85;
        int32_t shared = kind < 50 ? length : random.below(length + 1);
        prompt.clear();
        for (int32_t i = 0; i < length; i++) {
            bool from_base = !own && i < shared && i < static_cast<int32_t>(base.size());
            prompt.push_back(from_base ? base[static_cast<size_t>(i)]
                                       : random.below(scenario_->loop.vocabulary));
        }
        // Equal later pages behind another first page: only the parent tells them apart.
        if (random.chance(15))
            prompt[static_cast<size_t>(
                random.below(length < limits::PAGE_TOKENS ? length : limits::PAGE_TOKENS))] =
                random.below(scenario_->loop.vocabulary);
    }

    void draw_sampling(Random& random, RequestSpec& spec) const {
        RequestHeader& h = spec.header;
        auto bits = [](float value) { return static_cast<int32_t>(float_bits(value)); };
        h.temperature_bits = bits(0.0f);
        h.top_p_bits = bits(1.0f);
        h.repetition_penalty_bits = bits(1.0f);
        h.seed_low = static_cast<int32_t>(random.next());
        h.seed_high = static_cast<int32_t>(random.next());
        if (random.chance(scenario_->masked_percent)) h.flags |= FLAG_MASKED;
        spec.mask_seed = random.next();
        if (!random.chance(scenario_->sampled_percent)) return;
        if (random.chance(70)) h.temperature_bits = bits(0.25f + 2.0f * random.unit());
        if (random.chance(25)) h.top_k = random.between(1, 60);
        if (random.chance(25)) h.top_p_bits = bits(0.05f + 0.95f * random.unit());
        if (random.chance(20)) h.min_p_bits = bits(0.5f * random.unit());
        if (random.chance(20)) h.repetition_penalty_bits = bits(0.5f + random.unit());
        if (random.chance(20)) h.presence_penalty_bits = bits(4.0f * random.unit() - 2.0f);
        if (random.chance(20)) h.frequency_penalty_bits = bits(4.0f * random.unit() - 2.0f);
        h.logit_bias_count = random.chance(20) ? random.between(1, 5) : 0;
        for (int32_t i = 0; i < h.logit_bias_count; i++) {
            spec.bias.push_back(random.below(scenario_->loop.vocabulary));
            spec.bias.push_back(bits(8.0f * random.unit() - 4.0f));
        }
    }

    static constexpr int32_t BASES = 3;
    const Scenario* scenario_ = nullptr;
    std::vector<int32_t> bases_[BASES];
    std::vector<int32_t> past_;
};

} // namespace sublimate::sim

// See world.h.
#include "world.h"

#include <cstdio>

namespace sublimate::sim {

World::World() {
    LoopConfig largest;
    largest.vocabulary = VOCABULARY_SIMULATED_MAX;
    largest.context_tokens = CONTEXT_SIMULATED_MAX;
    largest.pages = PAGES_SIMULATED_MAX;
    largest.sequences_max = SEQUENCES_SIMULATED_MAX;
    largest.queue_max = QUEUE_SIMULATED_MAX;
    largest.speculation = true;
    auto bytes = static_cast<size_t>(align_up(loop_memory_bytes(largest), 4096));
    memory_ = std::aligned_alloc(4096, bytes);
    CHECK(memory_ != nullptr);
    memset(memory_, 0xA5, bytes); // dirty memory must do
    int64_t table_bytes = prefix_layout_bytes(PageStore::table_entries(PAGES_SIMULATED_MAX));
    prefixes_ = std::aligned_alloc(4096, static_cast<size_t>(align_up(table_bytes, 4096)));
    CHECK(prefixes_ != nullptr);
    for (auto& edge : edges_) edge = std::make_unique<SimEdge>(VOCABULARY_SIMULATED_MAX);
}

World::~World() {
    loop_.reset();
    std::free(memory_);
    std::free(prefixes_);
}

std::string World::run(uint64_t seed, int32_t steps, bool verbose) {
    start(seed);
    std::string why;
    int32_t computed = 0; // steps of the model; an iteration without work is not one
    for (int32_t i = 0; computed < steps && i < steps * IDLE_FACTOR && why.empty(); i++) {
        let_things_happen();
        why = iterate(false);
        if (!why.empty()) why += " at iteration " + std::to_string(i);
        computed += loop_->state().plan->rows > 0 ? 1 : 0;
        if (verbose)
            std::printf("iteration %d: running %d waiting %d rows %d\n", i, loop_->running(),
                        loop_->waiting(), loop_->state().plan->rows);
    }
    if (why.empty()) why = drain();
    collect();
    return why;
}

// ---- start and restart
void World::start(uint64_t seed) {
    scenario_ = draw_scenario(seed);
    random_ = Random(mix_hash(seed + 1));
    maker_.start(scenario_, random_);
    engine_seed_ = seed;
    clock_.time_ns = 1'000'000'000;
    loop_.reset();
    for (int32_t& left : ring_full_left_) left = 0;
    start_engine();
}

// A new engine process: fresh loop, fresh pages, fresh regions.
void World::start_engine() {
    if (loop_) collect();
    engine_seed_ = mix_hash(engine_seed_);
    model_.emplace(scenario_.traits, scenario_.loop.pages, engine_seed_);
    scenario_.loop.prefixes =
        prefix_view(prefixes_, PageStore::table_entries(scenario_.loop.pages));
    prefix_format(scenario_.loop.prefixes);
    loop_.emplace(scenario_.loop, loop_memory(scenario_.loop, memory_), *model_, clock_);
    for (Progress& progress : progress_) progress = {};
    for (Wait& wait : waits_) wait = {};
    iterations_ = 0;
    for (int32_t e = 0; e < scenario_.edges; e++) restart_edge(e, false);
}

void World::restart_edge(int32_t e, bool attached) {
    if (attached) loop_->detach(e);
    edges_[e]->restart(scenario_, maker_);
    edges_[e]->others_may_fill = scenario_.edges > 1;
    ring_full_left_[e] = 0;
    traces_[e].restart(edges_[e]->view, scenario_.traced, scenario_.clock_jump == 0);
    loop_->attach(e, edges_[e]->view);
}

void World::collect() {
    StatsPage totals = loop_->totals();
    coverage_.steps += totals.step_count;
    coverage_.tokens += totals.generated_tokens;
    coverage_.cached += totals.cached_tokens;
    coverage_.evictions += totals.evictions;
    coverage_.cancelled_queue += totals.cancelled_queue;
    coverage_.cancelled_prefill += totals.cancelled_prefill;
    coverage_.cancelled_decode += totals.cancelled_decode;
    coverage_.stale += totals.stale_cancels;
    coverage_.refused += totals.refused;
    coverage_.failed += totals.failed;
    coverage_.mask_waits += totals.mask_waits;
    coverage_.ring_full += totals.ring_full_waits;
    coverage_.drafted += totals.drafted_tokens;
    coverage_.accepted_drafts += totals.accepted_drafts;
    coverage_.freed = coverage_.triggered = 0;
    for (const auto& edge : edges_) {
        coverage_.freed += edge->freed;
        coverage_.triggered += edge->triggered;
    }
}

// ---- what happens between two iterations
void World::submit(int32_t e) {
    bool burst = random_.per_mille(scenario_.burst);
    int32_t copies = burst ? random_.between(2, 5) : 1;
    maker_.draw(random_, spec_);
    for (int32_t i = 0; i < copies; i++) {
        if (i > 0 && random_.chance(30)) spec_.header.profile = random_.below(3);
        if (i > 0 && random_.chance(20)) set_tenant(spec_.header, random_.below(scenario_.tenants));
        bool damage =
            spec_.refusal == RefuseReason::none && random_.per_mille(scenario_.hostile_record);
        coverage_.hostile += damage ? 1 : 0;
        edges_[e]->submit(random_, spec_, damage);
    }
}

void World::act(int32_t e) {
    SimEdge& edge = *edges_[e];
    const Scenario& s = scenario_;
    if (edge.hostile) {
        if (random_.chance(20)) restart_edge(e, true);
        return;
    }
    if (random_.per_mille(s.submit) && edge.live_count < 60) submit(e);
    if (random_.per_mille(s.cancel)) edge.cancel_one(random_, random_.chance(30));
    if (random_.per_mille(s.late_cancel)) edge.cancel_late(random_);
    if (random_.per_mille(s.hostile_record / 8)) edge.submit_bad_slot(random_);
    if (random_.per_mille(s.hostile_record / 8)) edge.misbehave(random_);
    if (random_.per_mille(s.hostile_ring)) edge.damage_ring(random_);
    if (ring_full_left_[e] > 0 && --ring_full_left_[e] == 0) edge.set_ballast(0);
    if (ring_full_left_[e] == 0 && random_.per_mille(s.ring_full)) {
        ring_full_left_[e] = random_.between(1, 60);
        // Too little room for an iteration, or so little that the first record leaves too little.
        int32_t room = random_.chance(50) ? random_.below(ROOM_WORDS_MIN)
                                          : ROOM_WORDS_MIN + random_.below(ROOM_WORDS_SPARE);
        edge.set_ballast(limits::TOKEN_RING_WORDS - room);
    }
    edge.publish_masks(random_, s.late_mask);
    edge.cancel_unmasked(random_, 20);
    if (random_.per_mille(s.edge_death)) {
        coverage_.edge_deaths++;
        restart_edge(e, true);
    }
}

void World::let_things_happen() {
    for (int32_t e = 0; e < scenario_.edges; e++) act(e);
    clock_.time_ns += random_.chance(5) ? 20 * STEP_NS : random_.between(1, STEP_NS);
    if (random_.per_mille(scenario_.clock_jump))
        clock_.time_ns +=
            random_.chance(30) ? -STEP_NS : int64_t{random_.below(1000)} * 1000 * STEP_NS;
    if (random_.per_mille(scenario_.engine_death)) {
        coverage_.engine_deaths++;
        start_engine();
    }
}

// ---- one iteration and its checks
std::string World::iterate(bool quiet) {
    for (int32_t e = 0; e < scenario_.edges; e++) {
        bool room = token_room_words(edges_[e]->view) >= ROOM_WORDS_MIN;
        edges_[e]->blocked_iterations = room ? 0 : edges_[e]->blocked_iterations + 1;
    }
    loop_->run_once();
    iterations_++;
    std::string why = check_after_iteration();
    return why.empty() ? read_edges(quiet) : why;
}

std::string World::check_after_iteration() {
    const char* audit = loop_->audit();
    if (audit) return std::string("audit: ") + audit;
    std::string why = check_cancels();
    if (why.empty()) why = check_admissions();
    if (why.empty()) why = check_turns();
    if (why.empty()) why = check_drafts();
    if (why.empty()) why = check_masks();
    if (why.empty()) why = check_progress();
    if (why.empty()) why = check_traces();
    if (why.empty()) why = check_lost();
    return why;
}

// What is told of single requests adds up to what is counted.
std::string World::check_traces() {
    for (int32_t e = 0; e < scenario_.edges; e++) {
        const Edge& edge = loop_->state().edges[e];
        if (edges_[e]->hostile || !edge.serving()) continue;
        uint64_t parts = traces_[e].of(TraceKind::part);
        std::string why = traces_[e].check(edge);
        coverage_.traced += traces_[e].of(TraceKind::part) - parts;
        if (!why.empty()) return why;
    }
    return "";
}

// A cancel works within one step, whatever state it meets.
std::string World::check_cancels() const {
    const LoopState& state = loop_->state();
    for (int32_t i = 0; i < state.running_count + state.queue_count; i++) {
        int32_t index =
            i < state.running_count ? state.running[i] : state.queue[i - state.running_count];
        const Sequence& s = state.sequences[index];
        const RegionView& view = state.edges[s.edge].view;
        if (view.cancel[s.header.slot] == static_cast<uint32_t>(s.header.generation))
            return "a cancelled request still runs";
    }
    return "";
}

// Who was admitted had the highest priority, which rises while it waits, and of equals came first.
std::string World::check_admissions() {
    const LoopState& state = loop_->state();
    auto priority = [&](int32_t index) {
        const Sequence& s = state.sequences[index];
        Wait& wait = waits_[index];
        if (wait.arrival != s.arrival) wait = {s.arrival, iterations_};
        int32_t own = scenario_.loop.policy.profiles[s.header.profile].priority;
        return own + static_cast<int32_t>((iterations_ - wait.since) / AGEING_STEPS);
    };
    for (int32_t i = 0; i < state.queue_count; i++) priority(state.queue[i]);
    for (int32_t i = 0; i < state.running_count; i++) {
        int32_t admitted = state.running[i];
        uint64_t arrival = state.sequences[admitted].arrival;
        if (progress_[admitted].arrival == arrival) continue; // earlier
        for (int32_t q = 0; q < state.queue_count; q++) {
            const Sequence& waiting = state.sequences[state.queue[q]];
            if (!state.edges[waiting.edge].room) continue;
            int32_t ahead = priority(admitted) - priority(state.queue[q]);
            if (ahead < 0 || (ahead == 0 && arrival > waiting.arrival))
                return "a request was admitted before one whose turn it was";
        }
    }
    return "";
}

// Neither prompts nor decode rows are left out of a step that both could use; budgets hold.
std::string World::check_turns() const {
    const LoopState& state = loop_->state();
    int32_t decodes = 0;
    int32_t prompts = 0;
    bool low_latency = false;
    for (int32_t i = 0; i < state.candidate_count; i++) {
        const Candidate& c = state.candidates[i];
        (c.decode ? decodes : prompts)++;
        bool late = i >= state.candidate_count - state.plan->late_rows;
        low_latency |= c.decode && c.profile == 0 && !late;
    }
    int32_t rows = state.plan->rows;
    if (decodes + prompts > 0 && rows == 0) return "nothing runs although something could";
    if (rows == 0) return "";
    if (decodes > 0 && model_->decode_segments == 0) return "decode rows were left out";
    if (prompts > 0 && model_->prompt_segments == 0) return "prompts were left out";
    int32_t budget = scenario_.loop.policy.profiles[0].step_rows_max;
    if (low_latency && rows > (budget < 2 ? 2 : budget)) return "the low-latency budget broke";
    return check_time_budget();
}

// Beside decode rows, prompts take no more time than the most tolerant reading of the policy allows
// them, except for the rows that a prompt always gets.
std::string World::check_time_budget() const {
    const LoopState& state = loop_->state();
    const Plan& plan = *state.plan;
    const Policy& policy = scenario_.loop.policy;
    int64_t percent_max = STEP_PERCENT_MAX;
    int32_t rows_min = 1;
    for (int32_t i = 0; i < plan.count - plan.late_rows; i++) {
        const Candidate& c = state.candidates[plan.entries[i].candidate];
        const ProfilePolicy& own = policy.profiles[c.profile];
        if (c.decode && own.step_percent_max < percent_max) percent_max = own.step_percent_max;
        if (!c.decode && own.prefill_rows_min > rows_min) rows_min = own.prefill_rows_min;
    }
    if (plan.decode_ps == 0 || plan.prefill_rows <= rows_min) return "";
    if (plan.prefill_ps > plan.decode_ps / 100 * (percent_max - 100))
        return "prompts took more time than decode rows give them";
    return "";
}

// Drafts are rows of decode entries that the plan's budget left free, and nothing else.
std::string World::check_drafts() const {
    const LoopState& state = loop_->state();
    const Plan& plan = *state.plan;
    if (plan.rows == 0) return "";
    int32_t drafts = 0;
    for (int32_t i = 0; i < plan.count; i++) {
        if (state.candidates[plan.entries[i].candidate].decode) drafts += plan.entries[i].rows - 1;
    }
    if (drafts != plan.draft_rows) return "drafts are miscounted";
    if (drafts > 0 && !scenario_.loop.speculation) return "drafts without speculation";
    if (drafts > 0 && plan.rows > plan.rows_max) return "drafts broke the row budget";
    return "";
}

// Nothing is computed again and again for want of a mask.
std::string World::check_masks() const {
    const LoopState& state = loop_->state();
    const Plan& plan = *state.plan;
    bool useful = plan.rows == 0;
    for (int32_t i = 0; i < plan.count; i++) {
        const Sequence& s = state.sequences[state.candidates[plan.entries[i].candidate].sequence];
        useful |= s.state != State::waiting_mask || s.mask_misses == 1;
        if (s.mask_misses > MASK_MISSES_MAX) return "a row runs too often before its mask is there";
    }
    return useful ? "" : "a step for rows that only wait for masks";
}

// Nobody who could run waits for ever.
std::string World::check_progress() {
    const LoopState& state = loop_->state();
    for (int32_t i = 0; i < state.running_count; i++) {
        const Sequence& s = state.sequences[state.running[i]];
        Progress& progress = progress_[state.running[i]];
        bool may_run = state.edges[s.edge].room && s.state != State::waiting_mask;
        int32_t waits_max = s.computed < s.header.prompt_length ? PROMPT_WAIT_MAX : DECODE_WAIT_MAX;
        if (s.arrival != progress.arrival || s.computed != progress.computed || !may_run) {
            progress = {s.arrival, s.computed, 0};
        } else if (++progress.waited > waits_max) {
            return "a running request starves";
        }
    }
    return "";
}

std::string World::check_lost() {
    for (int32_t e = 0; e < scenario_.edges; e++) {
        if (!loop_->lost(e)) continue;
        int64_t blocked_ns = edges_[e]->blocked_iterations * BLOCKED_TICK_MAX_NS;
        if (!edges_[e]->hostile && blocked_ns <= scenario_.loop.ring_full_deadline_ns)
            return "an edge was lost before its deadline";
        coverage_.lost_edges++;
        restart_edge(e, true);
    }
    return "";
}

std::string World::read_edges(bool all) {
    for (int32_t e = 0; e < scenario_.edges; e++) {
        if (!all && !random_.chance(scenario_.read_percent)) continue;
        uint64_t before = edges_[e]->rows_seen;
        std::string why = edges_[e]->read();
        coverage_.rows += edges_[e]->rows_seen - before;
        if (!why.empty()) return "edge " + std::to_string(e) + ": " + why;
    }
    return "";
}

// ---- liveness: nothing new comes, everything in flight ends
std::string World::drain() {
    for (int32_t e = 0; e < scenario_.edges; e++) {
        if (edges_[e]->hostile) restart_edge(e, true);
        edges_[e]->set_ballast(0);
        edges_[e]->cancel_untrusted();
    }
    for (int32_t i = 0; i < DRAIN_ITERATIONS_MAX; i++) {
        clock_.time_ns += STEP_NS;
        for (int32_t e = 0; e < scenario_.edges; e++) {
            edges_[e]->publish_masks(random_, 0);
            edges_[e]->cancel_unmasked(random_, 1000);
            edges_[e]->cancel_untrusted();
        }
        std::string why = iterate(true);
        if (!why.empty()) return why + " while draining";
        int32_t live = 0;
        for (int32_t e = 0; e < scenario_.edges; e++) live += edges_[e]->live_count;
        if (live == 0 && loop_->outstanding() == 0) return check_idle();
        if (!loop_->state().worked_before && loop_->outstanding() == 0)
            return "requests without a terminal row: " + std::to_string(live);
    }
    return "the loop does not drain";
}

std::string World::check_idle() {
    loop_->run_once();
    StatsPage totals = loop_->totals();
    const PageStore& store = loop_->state().kv.store();
    if (totals.running != 0 || totals.waiting != 0) return "gauges are not back at zero";
    if (loop_->state().kv.reserved() != 0) return "reservations are left";
    if (store.free_count() + store.cached_count() != scenario_.loop.pages) return "pages leaked";
    for (int32_t e = 0; e < scenario_.edges; e++) {
        const StatsPage& stats = edges_[e]->view.control->stats;
        if (stats.accepted != stats.finished) return "accepted is not finished";
        if (stats.running + stats.waiting + stats.oldest_waiting_ns != 0)
            return "an edge's gauges are not back at zero";
        if (edges_[e]->bad_slots() != 0) return "a bad slot was not refused";
    }
    coverage_.drained++;
    return "";
}

} // namespace sublimate::sim

// The resident loop: take -> cancel -> admit -> schedule -> step -> sample -> stop -> publish, once
// per step. Its memory, rings, clock and model are handed in; it never allocates, blocks, throws or
// trusts an edge.
//
// Table of contents of this folder, in the order of the data path:
//   memory.h       LoopConfig, LoopMemory: everything the loop owns
//   edge.h         one edge's region, counters and the record being built for it
//   validate.h     checks of a request record
//   sequence.h     the states of a request
//   pages.h kv.h   paged KV: ownership, prefix sharing, reservation, audit
//   schedule.h     the pure scheduler and its policy; buckets.h the step's bucket
//   step.h         the seam to the model
//   sampler.h      one row of logits to one token; select.h, sampler_ops.h, gumbel.h below it
//   stop.h         why a request ends
//   fault.h        planted bugs for the simulator
//
// concept Clock: int64_t now_ns(), monotonic. concept Model: see step.h.
//
// defines: Loop
#pragma once

#include <cstdint>

#include "buckets.h"
#include "edge.h"
#include "kv.h"
#include "memory.h"
#include "sampler.h"
#include "schedule.h"
#include "sequence.h"
#include "step.h"
#include "stop.h"
#include "validate.h"

namespace sublimate {

template <class Model, class Clock>
class Loop {
public:
    Loop(const LoopConfig& config, const LoopMemory& memory, Model& model, Clock& clock)
        : config_(config), m_(memory), model_(model), clock_(clock) {
        CHECK(model.vocabulary() == config.vocabulary);
        kv_.start({config.pages, config.salt, config.hash_mask, config.share_generated,
                   config.same_arithmetic},
                  m_.pages, m_.hash_table);
        free_count_ = config.sequences_max + config.queue_max;
        for (int32_t i = 0; i < free_count_; i++) {
            m_.sequences[i] = {};
            m_.free_sequences[i] = free_count_ - 1 - i;
        }
        for (int32_t i = 0; i < config.sequences_max; i++)
            m_.free_rows[i] = config.sequences_max - 1 - i;
        last_ns_ = clock.now_ns();
    }

    // One iteration, at most one step. Returns whether there was anything to do; if not, the caller
    // may sleep until a bell rings, but while outstanding() > 0 for no longer than
    // BLOCKED_TICK_MAX_NS.
    bool run_once() {
        begin();
        bool worked = drain();
        worked |= take();
        worked |= cancel();
        worked |= admit();
        schedule_rows();
        publish();
        if (m_.plan->rows > 0) {
            step();
            sample();
            stop();
            publish();
            worked = true;
        }
        end(worked);
        return worked;
    }

    // ---- edges; callable between iterations, on the loop's thread
    void attach(int32_t edge, const RegionView& view) {
        CHECK(edge >= 0 && edge < limits::EDGES_MAX && !m_.edges[edge].attached);
        CHECK(view.vocabulary == config_.vocabulary);
        edge_start(m_.edges[edge], view);
        write_stats(m_.edges[edge]);
    }

    // Cancels all of the edge's requests, without rows, and forgets the region.
    void detach(int32_t edge) {
        CHECK(edge >= 0 && edge < limits::EDGES_MAX && m_.edges[edge].attached);
        if (!m_.edges[edge].lost) lose(edge);
        add_counters(retired_, m_.edges[edge].counters);
        m_.edges[edge].attached = false;
        m_.edges[edge].view = {};
    }

    bool lost(int32_t edge) const { return m_.edges[edge].lost; }

    // ---- observation
    int32_t running() const { return running_count_; }
    int32_t waiting() const { return queue_count_; }
    int32_t outstanding() const { return config_.sequences_max + config_.queue_max - free_count_; }
    uint64_t step_count() const { return step_count_; }
    const Plan& plan() const { return *m_.plan; }
    const Bucket& bucket() const { return bucket_; }
    const KvCache& kv() const { return kv_; }
    const LoopConfig& config() const { return config_; }
    const Sequence& sequence(int32_t index) const { return m_.sequences[index]; }
    int32_t running_sequence(int32_t i) const { return m_.running[i]; }
    int32_t queued_sequence(int32_t i) const { return m_.queue[i]; }
    void set_utilization_ppm(uint64_t ppm) { utilization_ppm_ = ppm; }

    // Totals over all edges, also those that have gone.
    StatsPage totals() const {
        EdgeCounters sum = retired_;
        for (int32_t e = 0; e < limits::EDGES_MAX; e++) {
            if (m_.edges[e].attached) add_counters(sum, m_.edges[e].counters);
        }
        return make_stats(sum, static_cast<uint64_t>(running_count_),
                          static_cast<uint64_t>(queue_count_), oldest_waiting_ns(-1));
    }

    // Null if page ownership, lists and counts agree; else what is wrong. O(pages).
    const char* audit() const {
        for (int32_t i = 0; i < running_count_; i++)
            m_.tables[i] = &m_.sequences[m_.running[i]].table;
        const char* why = kv_.audit(m_.tables, running_count_, m_.owners);
        if (why) return why;
        int32_t live = 0;
        int32_t draining = 0;
        for (int32_t e = 0; e < limits::EDGES_MAX; e++) {
            live += m_.edges[e].live;
            draining += m_.edges[e].draining;
        }
        if (live != outstanding()) return "live requests do not add up";
        if (live != running_count_ + queue_count_ + draining) return "a request is in no list";
        return nullptr;
    }

private:
    // ---- begin
    void begin() {
        int64_t now = clock_.now_ns();
        int64_t passed = now - last_ns_;
        last_ns_ = now;
        iterations_++;
        m_.plan->count = m_.plan->rows = 0;
        for (int32_t e = 0; e < limits::EDGES_MAX; e++) {
            Edge& edge = m_.edges[e];
            if (!edge.serving()) continue;
            store_release(&edge.view.control->engine_heartbeat_ns, static_cast<uint64_t>(now));
            if (!edge_begin(edge, passed, config_.ring_full_deadline_ns)) lose(e);
        }
    }

    // Terminal rows that waited for room.
    bool drain() {
        bool worked = false;
        for (int32_t e = 0; e < limits::EDGES_MAX; e++) {
            Edge& edge = m_.edges[e];
            if (!edge.serving() || edge.draining == 0 || !edge.room) continue;
            for (int32_t i = 0; i < config_.sequences_max + config_.queue_max; i++) {
                Sequence& s = m_.sequences[i];
                if (s.state != State::draining || s.edge != e) continue;
                edge_add_row(edge, s.terminal, nullptr);
                edge.draining--;
                set_free(i);
            }
            worked = true;
        }
        return worked;
    }

    // ---- take
    bool take() {
        bool worked = false;
        for (int32_t e = 0; e < limits::EDGES_MAX; e++) {
            Edge& edge = m_.edges[e];
            if (!edge.serving() || !edge.room) continue;
            for (int32_t n = 0; n < limits::SEQUENCES_MAX; n++) {
                int32_t slot = submission_pop(edge.view);
                if (slot < 0) break;
                accept(e, slot);
                worked = true;
            }
        }
        return worked;
    }

    void accept(int32_t e, int32_t slot) {
        Edge& edge = m_.edges[e];
        edge.counters.accepted++;
        RequestHeader header = {};
        RefuseReason why = RefuseReason::malformed;
        if (slot < limits::SLOTS_MAX) {
            const int32_t* words = edge.view.slot_memory(slot);
            copy_header(words, &header);
            uint32_t word = load_acquire(&edge.view.cancel[slot]);
            if (word != static_cast<uint32_t>(header.generation))
                edge_count_stale(edge, slot, word);
            why = judge(header, slot, words);
        }
        if (why != RefuseReason::none) {
            edge.counters.refused++;
            edge_add_row(edge,
                         {slot, header.generation, ROW_FINISHED, 0, 0,
                          static_cast<int32_t>(FinishReason::refused), static_cast<int32_t>(why),
                          0},
                         nullptr);
            return;
        }
        int32_t index = m_.free_sequences[--free_count_];
        Sequence& s = m_.sequences[index];
        move_to(s, State::queued);
        s.edge = e;
        s.header = header;
        s.arrival = ++arrivals_;
        s.queued_step = iterations_;
        s.tried_changes = 0;
        s.accepted_ns = last_ns_;
        s.computed = s.generated = s.waited_steps = s.cached_tokens = 0;
        s.table_row = -1;
        m_.queue[queue_count_++] = index;
        edge.live++;
    }

    RefuseReason judge(const RequestHeader& header, int32_t slot, const int32_t* words) const {
        if (queue_count_ >= config_.queue_max || free_count_ == 0) return RefuseReason::queue_full;
        RefuseReason why = validate_header(header, slot, slot_place(slot).words, config_.vocabulary,
                                           config_.context_tokens);
        if (why != RefuseReason::none) return why;
        if (!validate_payload(words, header, config_.vocabulary)) return RefuseReason::malformed;
        if (!kv_.could_ever_fit(pages_for(positions_needed(header)))) return RefuseReason::too_long;
        return RefuseReason::none;
    }

    // ---- cancel
    bool cancel() {
        bool worked = false;
        for (int32_t i = queue_count_ - 1; i >= 0; i--) worked |= cancel_one(m_.queue[i]);
        for (int32_t i = running_count_ - 1; i >= 0; i--) worked |= cancel_one(m_.running[i]);
        for (int32_t e = 0; e < limits::EDGES_MAX; e++) {
            if (m_.edges[e].serving()) scan_stale(e);
        }
        return worked;
    }

    bool cancel_one(int32_t index) {
        Sequence& s = m_.sequences[index];
        Edge& edge = m_.edges[s.edge];
        uint32_t word = load_acquire(&edge.view.cancel[s.header.slot]);
        bool meant = word == static_cast<uint32_t>(s.header.generation);
        if (fault(Fault::cancel_ignores_generation)) meant = word != 0;
        if (fault(Fault::lost_cancel) && s.state == State::decode) meant = false;
        if (!meant) return false;
        edge.cancel_seen[s.header.slot] = word;
        bool prompt = s.computed < s.header.prompt_length;
        if (s.state == State::queued) {
            edge.counters.cancelled_queue++;
        } else if (prompt) {
            edge.counters.cancelled_prefill++;
        } else {
            edge.counters.cancelled_decode++;
        }
        finish(index, terminal_row(s, FinishReason::cancelled), nullptr);
        return true;
    }

    // Counts cancels that met nobody: a window of slots per iteration, without those that are live.
    void scan_stale(int32_t e) {
        Edge& edge = m_.edges[e];
        for (int32_t i = 0; i < STALE_SCAN_WORDS; i++) {
            int32_t slot = edge.scan_slot + i;
            uint32_t word = load_acquire(&edge.view.cancel[slot]);
            if (word == 0 || word == edge.cancel_seen[slot] || submission_pending(edge.view))
                continue;
            edge_count_stale(edge, slot, word);
        }
        edge.scan_slot = (edge.scan_slot + STALE_SCAN_WORDS) % limits::SLOTS_MAX;
    }

    // ---- admit
    bool admit() {
        admitted_first_ = running_count_;
        while (running_count_ < config_.sequences_max) {
            int32_t index = next_to_admit();
            if (index < 0 || !admit_one(index)) break;
        }
        return running_count_ > admitted_first_;
    }

    // By aged priority, then arrival. Whoever is next is not overtaken, even if he does not fit
    // yet.
    int32_t next_to_admit() const {
        int32_t best = -1;
        int32_t best_priority = 0;
        for (int32_t i = 0; i < queue_count_; i++) {
            const Sequence& s = m_.sequences[m_.queue[i]];
            if (!m_.edges[s.edge].room) continue;
            int32_t priority = aged(config_.policy.profiles[s.header.profile].priority,
                                    static_cast<int32_t>(iterations_ - s.queued_step));
            if (best >= 0 && priority <= best_priority) continue;
            best = m_.queue[i];
            best_priority = priority;
        }
        return best;
    }

    bool admit_one(int32_t index) {
        Sequence& s = m_.sequences[index];
        if (s.tried_changes == kv_.changes()) return false;
        const RequestHeader& h = s.header;
        int32_t row = m_.free_rows[config_.sequences_max - 1 - running_count_];
        s.table.pages = m_.page_tables + int64_t{row} * m_.pages_per_sequence;
        s.table.count = s.table.reserved = 0;
        s.table.key = {h.tenant_low, h.tenant_high, h.adapter, h.sparse_mode};
        s.table.sharing = (h.flags & FLAG_NO_CACHE) == 0;
        if (!kv_.admit(s.table, prompt(s), pages_for(positions_needed(h)), !is_score(h))) {
            s.tried_changes = kv_.changes();
            return false;
        }
        s.table_row = row;
        s.computed = s.table.count * limits::PAGE_TOKENS;
        s.cached_tokens = s.computed;
        move_to(s, State::prefill);
        remove_from(m_.queue, queue_count_, index);
        m_.running[running_count_++] = index;
        EdgeCounters& counters = m_.edges[s.edge].counters;
        counters.prompt_tokens += static_cast<uint64_t>(h.prompt_length);
        counters.cached_tokens += static_cast<uint64_t>(s.computed);
        return true;
    }

    // ---- schedule
    void schedule_rows() {
        candidate_count_ = 0;
        for (int32_t i = 0; i < running_count_; i++) add_candidate(m_.running[i]);
        ScheduleView view = {m_.candidates, candidate_count_, {}};
        for (int32_t p = 0; p < limits::PRIORITIES_MAX; p++)
            view.prefill_waited[p] = prefill_waited_[p];
        schedule(view, config_.policy, *m_.plan);
        age_candidates();
        bucket_ = {};
        if (m_.plan->rows > 0) bucket_ = choose_bucket(m_.plan->rows, longest_context());
        for (int32_t i = admitted_first_; i < running_count_; i++) {
            const Sequence& s = m_.sequences[m_.running[i]];
            edge_add_row(m_.edges[s.edge],
                         {s.header.slot, s.header.generation, ROW_ADMITTED, s.cached_tokens, 0, 0,
                          bucket_.rows, 0},
                         nullptr);
        }
    }

    void add_candidate(int32_t index) {
        Sequence& s = m_.sequences[index];
        Edge& edge = m_.edges[s.edge];
        if (!edge.room) {
            if (!edge.waited_for_room) edge.counters.ring_full_waits++;
            edge.waited_for_room = true;
            return;
        }
        int32_t prompt_left = s.header.prompt_length - s.computed;
        bool in_prompt = prompt_left > 0;
        if (in_prompt && s.computed % limits::PAGE_TOKENS == 0 && s.table.sharing &&
            !is_score(s.header)) {
            int32_t adopted = kv_.adopt(s.table, prompt(s)) * limits::PAGE_TOKENS;
            s.computed += adopted;
            prompt_left -= adopted;
            edge.counters.cached_tokens += static_cast<uint64_t>(adopted);
        }
        bool ready = mask_is_ready(s);
        int32_t rows = in_prompt ? prompt_left - (ready ? 0 : 1) : (ready ? 1 : 0);
        if (rows <= 0) {
            edge.counters.mask_waits++;
            if (s.state != State::waiting_mask) move_to(s, State::waiting_mask);
            return;
        }
        State next = in_prompt ? State::prefill : State::decode;
        if (s.state == State::waiting_mask) move_to(s, next);
        CHECK(s.state == next);
        Candidate& c = m_.candidates[candidate_count_++];
        c = {index,
             s.header.profile,
             !in_prompt,
             is_score(s.header),
             rows == prompt_left,
             s.computed,
             rows,
             s.waited_steps,
             s.arrival,
             0};
        if (in_prompt && !is_score(s.header))
            c.page_hash = kv_.next_page_hash(s.table, prompt(s), s.computed);
    }

    // Whether the next generated token of the sequence may be sampled now.
    bool mask_is_ready(const Sequence& s) const {
        if ((s.header.flags & FLAG_MASKED) == 0 || is_score(s.header)) return true;
        if (s.header.token_budget == 0) return true;
        const RegionView& view = m_.edges[s.edge].view;
        if (fault(Fault::stale_mask_used) && s.generated > 0) return true;
        return mask_ready(view, s.header.mask_slot, static_cast<uint32_t>(s.generated));
    }

    void age_candidates() {
        for (int32_t i = 0; i < candidate_count_; i++)
            m_.sequences[m_.candidates[i].sequence].waited_steps++;
        for (int32_t i = 0; i < m_.plan->count; i++)
            m_.sequences[planned_sequence(i)].waited_steps = 0;
        bool waits[limits::PRIORITIES_MAX] = {};
        for (int32_t i = 0; i < candidate_count_; i++) {
            if (!m_.candidates[i].decode) waits[m_.candidates[i].profile] = true;
        }
        for (int32_t p = 0; p < limits::PRIORITIES_MAX; p++) {
            bool served = (m_.plan->prefill_profiles >> p & 1) != 0;
            prefill_waited_[p] = waits[p] && !served ? prefill_waited_[p] + 1 : 0;
        }
    }

    int32_t planned_sequence(int32_t entry) const {
        return m_.candidates[m_.plan->entries[entry].candidate].sequence;
    }

    int32_t longest_context() const {
        int32_t longest = 1;
        for (int32_t i = 0; i < m_.plan->count; i++) {
            int32_t end = m_.sequences[planned_sequence(i)].computed + m_.plan->entries[i].rows;
            longest = end > longest ? end : longest;
        }
        return longest;
    }

    // ---- step
    void step() {
        int32_t rows = 0;
        task_count_ = 0;
        for (int32_t i = 0; i < m_.plan->count; i++) {
            lay_out(planned_sequence(i), m_.plan->entries[i].rows, rows, i);
            rows += m_.plan->entries[i].rows;
        }
        Step step = {};
        step.row_count = rows;
        step.segment_count = m_.plan->count;
        step.logit_row_count = task_count_;
        step.page_table_stride = m_.pages_per_sequence;
        step.tokens = m_.tokens;
        step.positions = m_.positions;
        step.segments = m_.segments;
        step.logit_rows = m_.logit_rows;
        step.page_tables = m_.page_tables;
        int64_t begin_ns = clock_.now_ns();
        logits_ = model_.forward(step);
        int64_t end_ns = clock_.now_ns();
        busy_ns_ += static_cast<uint64_t>(end_ns > begin_ns ? end_ns - begin_ns : 0);
        last_step_ns_ = end_ns;
        step_count_++;
    }

    // Maps the rows of one sequence into the step and notes whose logits are wanted.
    void lay_out(int32_t index, int32_t rows, int32_t first_row, int32_t segment) {
        Sequence& s = m_.sequences[index];
        const RequestHeader& h = s.header;
        bool in_prompt = s.computed < h.prompt_length;
        bool generated = !in_prompt || (is_score(h) && (h.flags & FLAG_SCORE_DECODE) != 0);
        PromptTokens tokens = prompt(s);
        for (int32_t i = 0; i < rows; i++) {
            int32_t position = s.computed + i;
            int32_t token = in_prompt ? tokens.at(position) : s.next_token;
            if (fault(Fault::stale_next_token) && !in_prompt && s.generated == 3) token = 1;
            kv_.append(s.table, position, token, generated);
            m_.tokens[first_row + i] = token;
            m_.positions[first_row + i] = position;
            bool last = position == h.prompt_length - 1;
            bool wanted = is_score(h) ? !last : (!in_prompt || (last && h.token_budget > 0));
            if (!wanted) continue;
            m_.logit_rows[task_count_] = first_row + i;
            m_.tasks[task_count_++] = {index, position};
        }
        if (fault(Fault::off_by_one_position) && s.generated == 2)
            m_.positions[first_row] = s.computed - 1;
        m_.segments[segment] = {
            s.table_row, first_row,       rows,
            s.computed,  h.prompt_length, generated ? Arithmetic::generated : Arithmetic::prompt,
            h.adapter,   h.tenant_low,    h.tenant_high};
    }

    // ---- sample
    void sample() {
        for (int32_t first = 0; first < task_count_; first += config_.sample_lanes) {
            int32_t left = task_count_ - first;
            int32_t lanes = left < config_.sample_lanes ? left : config_.sample_lanes;
            model_.for_rows(lanes,
                            [this, first](int32_t lane) { sample_task(first + lane, lane); });
        }
    }

    void sample_task(int32_t task, int32_t lane) {
        const Sequence& s = m_.sequences[m_.tasks[task].sequence];
        const float* logits = logits_ + int64_t{task} * config_.vocabulary;
        int32_t position = m_.tasks[task].position;
        if (is_score(s.header)) {
            score_row(model_.sampler_ops(), logits, config_.vocabulary, prompt(s).at(position + 1),
                      m_.samples[task]);
            return;
        }
        const RegionView& view = m_.edges[s.edge].view;
        const int32_t* words = view.slot_memory(s.header.slot);
        bool masked = (s.header.flags & FLAG_MASKED) != 0;
        SampleRequest request = {&s.header, bias_words(words, s.header),
                                 masked ? mask_bits(view, s.header.mask_slot) : nullptr,
                                 config_.vocabulary, position + 1};
        auto history = [this, &s](int32_t at) { return kv_.token_at(s.table, at); };
        sample_row(model_.sampler_ops(), logits, request, history, m_.scratch[lane],
                   m_.samples[task]);
    }

    // ---- stop
    void stop() {
        int32_t task = 0;
        bool poisoned = false;
        for (int32_t i = 0; i < m_.plan->count; i++) {
            int32_t index = planned_sequence(i);
            int32_t first = task;
            while (task < task_count_ && m_.tasks[task].sequence == index) task++;
            poisoned |= !rows_succeeded(first, task);
            bool failed = !rows_succeeded(first, task);
            if (fault(Fault::nan_kills_neighbours)) failed = poisoned;
            advance(index, m_.plan->entries[i].rows, first, task, failed);
        }
    }

    bool rows_succeeded(int32_t first_task, int32_t end_task) const {
        for (int32_t t = first_task; t < end_task; t++) {
            if (m_.samples[t].token < 0) return false;
        }
        return true;
    }

    // Commits what the step computed for one sequence, then says what follows from it.
    void advance(int32_t index, int32_t rows, int32_t first_task, int32_t end_task, bool failed) {
        Sequence& s = m_.sequences[index];
        int32_t before = s.computed;
        s.computed += rows;
        if (failed) {
            m_.edges[s.edge].counters.failed++;
            finish(index, terminal_row(s, FinishReason::failed), nullptr);
            return;
        }
        int32_t ahead = fault(Fault::publish_before_computed) ? limits::PAGE_TOKENS - 1 : 0;
        kv_.commit(s.table, before, s.computed + ahead);
        if (is_score(s.header)) {
            store_scores(s, first_task, end_task);
            if (s.computed == s.header.prompt_length)
                finish(index, terminal_row(s, FinishReason::scored), nullptr);
            return;
        }
        if (s.computed < s.header.prompt_length) return;
        if (s.header.token_budget == 0) {
            finish(index, terminal_row(s, FinishReason::budget), nullptr);
            return;
        }
        accept_token(index, m_.samples[first_task]);
    }

    void accept_token(int32_t index, const Sample& sample) {
        Sequence& s = m_.sequences[index];
        Edge& edge = m_.edges[s.edge];
        s.next_token = sample.token;
        s.generated++;
        edge.counters.generated_tokens++;
        FinishReason why = stop_reason(s.header, sample.token, s.generated, config_.context_tokens);
        TokenRow row = terminal_row(s, why);
        row.flags = ROW_TOKEN | (why == FinishReason::none ? 0 : ROW_FINISHED);
        row.token = sample.token;
        row.logprob_bits = static_cast<int32_t>(float_bits(sample.logprob));
        if (why != FinishReason::none) {
            finish(index, row, &sample);
            return;
        }
        edge_add_row(edge, row, &sample);
        if (s.state == State::prefill) move_to(s, State::decode);
    }

    void store_scores(const Sequence& s, int32_t first_task, int32_t end_task) {
        int32_t* words = m_.edges[s.edge].view.slot_memory(s.header.slot);
        int32_t* scores = score_words(words, s.header);
        scores[0] = 0;
        scores[1] = -1;
        for (int32_t t = first_task; t < end_task; t++) {
            int32_t at = m_.tasks[t].position + (fault(Fault::score_off_by_one) ? 0 : 1);
            scores[2 * at] = static_cast<int32_t>(float_bits(m_.samples[t].logprob));
            scores[2 * at + 1] = m_.samples[t].ids[0];
        }
    }

    // ---- publish
    void publish() {
        RecordStamp stamp = {step_count_, clock_.now_ns(), m_.plan->rows, bucket_.id};
        for (int32_t e = 0; e < limits::EDGES_MAX; e++) {
            Edge& edge = m_.edges[e];
            if (edge.serving() && !edge_push(edge, stamp)) lose(e);
        }
    }

    // ---- the end of a request and of an edge
    static TokenRow terminal_row(const Sequence& s, FinishReason why) {
        return {s.header.slot,
                s.header.generation,
                ROW_FINISHED,
                0,
                0,
                static_cast<int32_t>(why),
                0,
                0};
    }

    // Gives pages back at once; the terminal row leaves with this iteration, or waits for room.
    void finish(int32_t index, const TokenRow& row, const Sample* sample) {
        Sequence& s = m_.sequences[index];
        Edge& edge = m_.edges[s.edge];
        if (s.state == State::queued) {
            remove_from(m_.queue, queue_count_, index);
        } else {
            bool forget = row.reason == static_cast<int32_t>(FinishReason::failed);
            if (!fault(Fault::detach_keeps_pages) || !edge.lost) kv_.release(s.table, forget);
            remove_from(m_.running, running_count_, index);
            m_.free_rows[config_.sequences_max - 1 - running_count_] = s.table_row;
        }
        bool room = edge.room;
        if (fault(Fault::ring_full_drop) && !room) {
            set_free(index);
        } else if (edge.lost) {
            set_free(index);
        } else if (room) {
            bool skip = fault(Fault::missing_terminal) &&
                        row.reason == static_cast<int32_t>(FinishReason::cancelled);
            if (!skip) edge_add_row(edge, row, sample);
            if (fault(Fault::double_terminal)) edge_add_row(edge, row, sample);
            set_free(index);
        } else {
            move_to(s, State::draining);
            s.terminal = row;
            edge.draining++;
        }
    }

    void set_free(int32_t index) {
        Sequence& s = m_.sequences[index];
        move_to(s, State::free);
        m_.edges[s.edge].live--;
        m_.free_sequences[free_count_++] = index;
    }

    // The edge reads nothing any more, or broke its ring: all its requests end without rows.
    void lose(int32_t e) {
        Edge& edge = m_.edges[e];
        edge.lost = true;
        edge.room = false;
        edge.record_rows = 0;
        edge.record_words = limits::STEP_HEADER_WORDS;
        for (int32_t i = 0; i < config_.sequences_max + config_.queue_max; i++) {
            Sequence& s = m_.sequences[i];
            if (s.state == State::free || s.edge != e) continue;
            if (s.state == State::draining) {
                edge.draining--;
                set_free(i);
            } else {
                finish(i, terminal_row(s, FinishReason::cancelled), nullptr);
            }
        }
    }

    static void remove_from(int32_t* list, int32_t& count, int32_t index) {
        int32_t at = 0;
        while (at < count && list[at] != index) at++;
        CHECK_BECAUSE(at < count, "a sequence is not in its list");
        for (; at + 1 < count; at++) list[at] = list[at + 1];
        count--;
    }

    PromptTokens prompt(const Sequence& s) const {
        return prompt_tokens(m_.edges[s.edge].view.slot_memory(s.header.slot), s.header,
                             config_.vocabulary);
    }

    // ---- end: statistics
    void end(bool worked) {
        if (worked || worked_before_ || queue_count_ > 0) {
            for (int32_t e = 0; e < limits::EDGES_MAX; e++) {
                if (m_.edges[e].serving()) write_stats(m_.edges[e]);
            }
        }
        worked_before_ = worked;
    }

    void write_stats(Edge& edge) {
        auto e = static_cast<int32_t>(&edge - m_.edges);
        uint64_t running = 0;
        uint64_t waiting = 0;
        for (int32_t i = 0; i < running_count_; i++)
            running += m_.sequences[m_.running[i]].edge == e ? 1 : 0;
        for (int32_t i = 0; i < queue_count_; i++)
            waiting += m_.sequences[m_.queue[i]].edge == e ? 1 : 0;
        StatsPage stats = make_stats(edge.counters, running, waiting, oldest_waiting_ns(e));
        constexpr int32_t WORDS = sizeof(StatsPage) / sizeof(uint64_t);
        uint64_t words[WORDS];
        memcpy(words, &stats, sizeof words);
        auto* out = reinterpret_cast<uint64_t*>(&edge.view.control->stats);
        for (int32_t i = 0; i < WORDS; i++) store_release(out + i, words[i]);
    }

    // edge -1: of all edges. The queue is in order of arrival.
    uint64_t oldest_waiting_ns(int32_t e) const {
        for (int32_t i = 0; i < queue_count_; i++) {
            const Sequence& s = m_.sequences[m_.queue[i]];
            if (e >= 0 && s.edge != e) continue;
            return last_ns_ > s.accepted_ns ? static_cast<uint64_t>(last_ns_ - s.accepted_ns) : 0;
        }
        return 0;
    }

    StatsPage make_stats(const EdgeCounters& c, uint64_t running, uint64_t waiting,
                         uint64_t oldest_ns) const {
        StatsPage stats = {};
        stats.step_count = step_count_;
        stats.last_step_ns = static_cast<uint64_t>(last_step_ns_);
        stats.busy_ns = busy_ns_;
        stats.running = running;
        stats.waiting = waiting;
        stats.pages_total = static_cast<uint64_t>(config_.pages);
        stats.pages_free = static_cast<uint64_t>(kv_.store().free_count());
        stats.pages_cached = static_cast<uint64_t>(kv_.store().cached_count());
        stats.pages_reserved = static_cast<uint64_t>(kv_.reserved());
        stats.prompt_tokens = c.prompt_tokens;
        stats.cached_tokens = c.cached_tokens;
        stats.generated_tokens = c.generated_tokens;
        stats.accepted = c.accepted;
        stats.finished = c.finished;
        stats.cancelled_queue = c.cancelled_queue;
        stats.cancelled_prefill = c.cancelled_prefill;
        stats.cancelled_decode = c.cancelled_decode;
        stats.stale_cancels = c.stale_cancels;
        stats.refused = c.refused;
        stats.failed = c.failed;
        stats.mask_waits = c.mask_waits;
        stats.ring_full_waits = c.ring_full_waits;
        stats.evictions = kv_.store().evictions();
        stats.utilization_ppm = utilization_ppm_;
        stats.last_step_rows = static_cast<uint64_t>(m_.plan->rows);
        stats.oldest_waiting_ns = oldest_ns;
        return stats;
    }

    static void add_counters(EdgeCounters& sum, const EdgeCounters& more) {
        constexpr int32_t WORDS = sizeof(EdgeCounters) / sizeof(uint64_t);
        uint64_t a[WORDS];
        uint64_t b[WORDS];
        memcpy(a, &sum, sizeof a);
        memcpy(b, &more, sizeof b);
        for (int32_t i = 0; i < WORDS; i++) a[i] += b[i];
        memcpy(&sum, a, sizeof a);
    }

    LoopConfig config_;
    LoopMemory m_;
    Model& model_;
    Clock& clock_;
    KvCache kv_;
    EdgeCounters retired_ = {}; // of edges that were detached
    Bucket bucket_ = {};
    const float* logits_ = nullptr; // (task, vocabulary) of the current step
    int64_t last_ns_ = 0;
    int64_t last_step_ns_ = 0;
    uint64_t busy_ns_ = 0;
    uint64_t step_count_ = 0;
    uint64_t iterations_ = 0;
    uint64_t arrivals_ = 0;
    uint64_t utilization_ppm_ = 0;
    int32_t free_count_ = 0;
    int32_t queue_count_ = 0;
    int32_t running_count_ = 0;
    int32_t candidate_count_ = 0;
    int32_t task_count_ = 0;
    int32_t admitted_first_ = 0;
    int32_t prefill_waited_[limits::PRIORITIES_MAX] = {};
    bool worked_before_ = false;
};

} // namespace sublimate

// The phases of a step.
#include "forward.h"

#include <algorithm>
#include <cmath>

#include "../check.h"
#include "forward_parts.h"
#include "pack.h"

namespace sublimate::cpu {

namespace {

// Positions that every later row attends to with much of its weight (arXiv 2309.17453), where
// models keep activations far above the rest.
constexpr int32_t SINK_POSITIONS = 16;
constexpr int32_t ATTENTION_BLOCK_ROWS_MAX = 32;
constexpr int32_t ATTENTION_BLOCK_ROWS_MIN = 8; // fewer would read the pages for too few vectors
// Without batch invariance: a tile has 16 rows, with fewer the prompt's arithmetic gains nothing.
constexpr int32_t PROMPT_ARITHMETIC_ROWS_MIN = 16;
constexpr int32_t ATTENTION_ITEMS_PER_THREAD = 8;

} // namespace

CpuModel::CpuModel(const ModelConfig& config, const Weights& weights, const RopeTables& ropes,
                   const Ops& ops, ThreadPool& pool)
    : config_(config), weights_(weights), ropes_(ropes), pool_(pool),
      sampler_ops_{ops.argmax, ops.max_value, ops.sum_exp, ops.all_finite, ops.gumbel_argmax},
      candidates_{{pool.size()}, {&ops}}, ops_(&ops) {
    for (int32_t threads : thread_counts(pool.size()))
        plan_tables_.emplace_back(config, weights, threads);
    plans_ = &plan_tables_.front();
    for (Choice& choice : choices_) choice.kept = {&ops, pool.size()};
    // Every row may end a block and every segment begin one.
    constexpr size_t BLOCKS_MAX = limits::STEP_ROWS_MAX + limits::SEQUENCES_MAX;
    row_blocks_.resize(BLOCKS_MAX);
    attention_blocks_.resize(BLOCKS_MAX);
    row_pages_.resize(limits::STEP_ROWS_MAX);
    row_arithmetic_.resize(limits::STEP_ROWS_MAX);
    row_adapters_.resize(limits::STEP_ROWS_MAX);
    adapter_rows_.resize(BLOCKS_MAX);
    if (config.experts > 0) routing_.reserve(config, limits::STEP_ROWS_MAX);
}

Status CpuModel::create(const ModelConfig& config, const Weights& weights, const RopeTables& ropes,
                        const Ops& ops, KvType kv_type, int64_t kv_bytes, ThreadPool& pool,
                        std::unique_ptr<CpuModel>* model) {
    std::unique_ptr<CpuModel> fresh(new CpuModel(config, weights, ropes, ops, pool));
    RETURN_IF_ERROR(
        StepBuffers::allocate(config, pool.size(), weights.have_half_scales(), &fresh->buffers_));
    RETURN_IF_ERROR(KvArena::allocate(config, kv_type, kv_bytes, &fresh->kv_));
    *model = std::move(fresh);
    return Status::success();
}

// ---- variants ----------------------------------------------------------------------------------

void CpuModel::set_candidates(const Candidates& candidates) {
    CHECK(!candidates.threads.empty() && !candidates.ops.empty());
    CHECK_BECAUSE(candidates.ops.front() == &ops(), "the kernels of create come first");
    for (int32_t threads : candidates.threads) plans_for(threads);
    for (const Ops* each : candidates.ops)
        CHECK_BECAUSE(each->matmul_prompt == ops().matmul_prompt || same_arithmetic(),
                      "a prompt's arithmetic is no choice");
    candidates_ = candidates;
}

void CpuModel::set_choice(Phase phase, const Choice& choice) {
    bool known = false;
    for (const Ops* each : candidates_.ops) known = known || each == choice.kept.ops;
    CHECK_BECAUSE(known, "kernels that are no candidate");
    plans_for(choice.kept.threads);
    choices_[static_cast<size_t>(phase)] = choice;
}

const PlanTable& CpuModel::plans_for(int32_t threads) const {
    for (const PlanTable& plans : plan_tables_)
        if (plans.threads() == threads) return plans;
    CHECK_BECAUSE(false, "no plan for so many threads");
    return plan_tables_.front();
}

// ---- before the threads start ------------------------------------------------------------------

void CpuModel::prepare(const Step& step) {
    CHECK(step.row_count >= 1 && step.row_count <= limits::STEP_ROWS_MAX);
    CHECK(step.segment_count >= 1 && step.segment_count <= limits::SEQUENCES_MAX);
    CHECK(step.logit_row_count >= 0 && step.logit_row_count <= limits::LOGIT_ROWS_MAX);
    phase_ = phase_of(step.row_count);
    const Variant& variant = choice(phase_).kept;
    step_ = &step;
    ops_ = variant.ops;
    plans_ = &plans_for(variant.threads);
    plan_ = &plans_->for_rows(step.row_count);
    prepare_arithmetic(step);
    prepare_row_blocks(step);
    prepare_attention(step);
    prepare_adapters(step);
}

void CpuModel::prepare_arithmetic(const Step& step) {
    int32_t generated_rows = 0;
    for (int32_t s = 0; s < step.segment_count; s++)
        if (step.segments[s].arithmetic == Arithmetic::generated)
            generated_rows += step.segments[s].row_count;
    all_as_prompt_ = !batch_invariant_ && generated_rows >= PROMPT_ARITHMETIC_ROWS_MIN;
}

void CpuModel::prepare_row_blocks(const Step& step) {
    row_block_count_ = 0;
    int32_t next_row = 0;
    for (int32_t s = 0; s < step.segment_count; s++) {
        const Segment& segment = step.segments[s];
        CHECK(segment.first_row == next_row && segment.row_count >= 1);
        next_row += segment.row_count;
        CHECK(next_row <= step.row_count);
        for (int32_t i = 0; i < segment.row_count; i++) {
            int32_t row = segment.first_row + i;
            bool sink = segment.first_position + i < SINK_POSITIONS;
            // Sinks take two activation rows each.
            int32_t rows_max = sink ? plan_->rows_per_block / 2 : plan_->rows_per_block;
            if (row_block_count_ > 0) {
                RowBlock& last = row_blocks_[static_cast<size_t>(row_block_count_ - 1)];
                bool joins = last.sink == sink && last.end - last.begin < rows_max &&
                             (same_arithmetic() || last.arithmetic == arithmetic_of(segment));
                if (joins) {
                    last.end++;
                    continue;
                }
            }
            row_blocks_[static_cast<size_t>(row_block_count_++)] = {row, row + 1,
                                                                    arithmetic_of(segment), sink};
        }
    }
    CHECK(next_row == step.row_count);
}

void CpuModel::prepare_attention(const Step& step) {
    int64_t attended = 0;
    for (int32_t row = 0; row < step.row_count; row++) attended += step.positions[row] + 1;
    // A chunk of a long prompt beside streams that decode is most of the work in few rows: blocks
    // small enough that the threads end together. How rows are grouped changes no bits.
    int64_t attended_max =
        attended * config_.kv_heads / (plans_->threads() * ATTENTION_ITEMS_PER_THREAD);
    attention_block_count_ = 0;
    for (int32_t s = 0; s < step.segment_count; s++) {
        const Segment& segment = step.segments[s];
        const int32_t* table =
            step.page_tables + int64_t{segment.sequence} * step.page_table_stride;
        for (int32_t i = 0; i < segment.row_count; i++) {
            int32_t row = segment.first_row + i;
            int32_t position = segment.first_position + i;
            CHECK(step.positions[row] == position && position >= 0);
            CHECK(position < config_.context_length);
            int32_t page = table[position / limits::PAGE_TOKENS];
            CHECK(page >= 0 && page < kv_.pages);
            row_pages_[static_cast<size_t>(row)] = page;
            kv_.use(page);
            row_arithmetic_[static_cast<size_t>(row)] = arithmetic_of(segment);
        }
        int64_t fitting = attended_max / (segment.first_position + segment.row_count);
        auto rows_max = static_cast<int32_t>(
            std::clamp<int64_t>(fitting / ATTENTION_BLOCK_ROWS_MIN * ATTENTION_BLOCK_ROWS_MIN,
                                ATTENTION_BLOCK_ROWS_MIN, ATTENTION_BLOCK_ROWS_MAX));
        for (int32_t i = 0; i < segment.row_count; i += rows_max)
            attention_blocks_[static_cast<size_t>(attention_block_count_++)] = {
                s, segment.first_row + i, std::min(rows_max, segment.row_count - i)};
    }
    attention_heads_ = attention_heads(attention_block_count_ == step.row_count);
}

// The query heads of one item: all that share keys and values, or one, so that the threads end
// together. A head's bits are its own. Counted in what the busiest thread does: to a row alone,
// fetching and widening a line costs as much as its products for one head.
int32_t CpuModel::attention_heads(bool single_rows) const {
    int32_t group = config_.group_heads();
    int32_t fetch = single_rows ? 1 : 0;
    int32_t items = attention_block_count_ * config_.kv_heads;
    CHECK(items >= 1 && group >= 1);
    int32_t together = divide_up(items, plans_->threads()) * (group + fetch);
    int32_t apart = divide_up(items * group, plans_->threads()) * (1 + fetch);
    return apart < together ? 1 : group;
}

const float* CpuModel::forward(const Step& step) {
    prepare(step);
    // For a few rows one thread is done sooner than a second one is woken.
    if (plan_->repeats_norms)
        for (int32_t row = 0; row < step.row_count; row++) embed(row);
    pool_.run(plans_->threads(), [this](int32_t thread) { run(thread); });
    return buffers_.logits;
}

// ---- on every thread ----------------------------------------------------------------------------

void CpuModel::run(int32_t thread) {
    if (!plan_->repeats_norms) {
        share_rows(thread, step_->row_count, [&](int32_t row) { embed(row); });
        pool_.barrier();
    }
    for (int32_t layer = 0; layer < config_.layers; layer++) {
        run_attention(thread, layer);
        config_.experts > 0 ? run_experts(thread, layer) : run_feed_forward(thread, layer);
    }
    run_head(thread);
}

void CpuModel::embed(int32_t row) const {
    int32_t token = step_->tokens[row];
    CHECK(token >= 0 && token < config_.vocabulary);
    float* residual = buffers_.residual + int64_t{row} * config_.hidden;
    unpack_row(weights_.embedding, token, residual);
    scale(residual, config_.hidden, config_.embedding_scale);
    int64_t at = int64_t{row} * config_.rope.dimension;
    turn(ropes_.full, row, buffers_.cos_sin + at);
    if (config_.has_two_ropes()) turn(ropes_.window, row, buffers_.window_cos_sin + at);
}

void CpuModel::turn(const RopeTable& rope, int32_t row, float* cos_sin) const {
    float position = static_cast<float>(step_->positions[row]);
    for (size_t i = 0; i < rope.inverse_frequencies.size(); i++) {
        // The angle in fp32, as the models were trained; its sine and cosine as well as they can be
        // had.
        double angle = position * rope.inverse_frequencies[i];
        cos_sin[2 * i] = static_cast<float>(std::cos(angle)) * rope.magnitude;
        cos_sin[2 * i + 1] = static_cast<float>(std::sin(angle)) * rope.magnitude;
    }
}

void CpuModel::norm(int32_t thread, const float* weight, const float* x, const Rows& out,
                    int32_t row, Form form) const {
    float* normed = out.plain->f32 + int64_t{row} * config_.hidden;
    if (weight != nullptr) // else the block reads the residual as it is
        ops_->rms_norm(x, weight, config_.norm_epsilon, config_.hidden, normed);
    else
        std::copy(x, x + config_.hidden, normed);
    carry(out, form, row, 0, config_.hidden, normed,
          buffers_.threads[static_cast<size_t>(thread)].row);
}

void CpuModel::carry(const Rows& out, Form form, int32_t row, int32_t first, int32_t count,
                     const float* from, float* scratch) const {
    CHECK_BECAUSE(form != Form::pairs || out.pairs != nullptr, "logit rows are never pairs");
    if (form == Form::bf16) out.plain->to_bf16(*ops_, row, first, count, from);
    if (form == Form::quantised) out.plain->quantise(*ops_, row, first, count, from);
    if (form == Form::pairs) out.pairs->quantise_pair(*ops_, row, first, count, from, scratch);
}

CpuModel::Rows CpuModel::norm_rows(int32_t thread, const float* weight, bool feeds_quantised,
                                   bool pairs) {
    const StepBuffers::PerThread& own = buffers_.threads[static_cast<size_t>(thread)];
    Rows out = {&buffers_.normed, &buffers_.normed_pairs};
    if (plan_->repeats_norms) out = {&own.normed, &own.normed_pairs};
    auto norm_row = [&](int32_t row) {
        Form form = Form::f32;
        if (feeds_quantised) form = form_of(arithmetic_of(row), pairs || is_sink(row));
        norm(thread, weight, buffers_.residual + int64_t{row} * config_.hidden, out, row, form);
    };
    if (plan_->repeats_norms) {
        for (int32_t row = 0; row < step_->row_count; row++) norm_row(row);
    } else {
        share_rows(thread, step_->row_count, norm_row);
        pool_.barrier();
    }
    return out;
}

bool CpuModel::is_sink(int32_t row) const {
    return step_->positions[row] < SINK_POSITIONS;
}

CpuModel::Form CpuModel::form_of(Arithmetic arithmetic, bool two) const {
    if (arithmetic == Arithmetic::prompt && !same_arithmetic()) return Form::bf16;
    return two ? Form::pairs : Form::quantised;
}

CpuModel::Form CpuModel::form_for(const PackedMatrix& reader, Arithmetic arithmetic,
                                  bool two) const {
    return quantised(reader) ? form_of(arithmetic, two) : Form::f32;
}

void CpuModel::multiply(const PackedMatrix& matrix, const ActivationBuffer& x,
                        const RowBlock& block, int32_t panel_begin, int32_t panel_end, float* out,
                        int64_t out_stride) const {
    auto* matmul = block.arithmetic == Arithmetic::prompt ? ops_->matmul_prompt : ops_->matmul;
    // Views that begin at the item, so that `out` does too.
    PackedMatrix panels = matrix;
    panels.data += panel_begin * matrix.panel_bytes;
    panels.panels = panel_end - panel_begin;
    panels.rows = std::min(panels.panels * PANEL_ROWS, matrix.rows - panel_begin * PANEL_ROWS);
    matmul(panels, x.from_row(block.begin), 0, block.end - block.begin, 0, panels.panels, out,
           out_stride);
}

void CpuModel::multiply_rows(const PackedMatrix& matrix, const Rows& x, const RowBlock& block,
                             bool pairs, int32_t panel_begin, int32_t panel_end, float* out) const {
    int64_t stride = int64_t{panel_end - panel_begin} * PANEL_ROWS;
    if (form_for(matrix, block.arithmetic, pairs) != Form::pairs) {
        multiply(matrix, *x.plain, block, panel_begin, panel_end, out, stride);
        return;
    }
    RowBlock rows = {2 * block.begin, 2 * block.end, block.arithmetic, block.sink};
    multiply(matrix, *x.pairs, rows, panel_begin, panel_end, out, stride);
    int32_t columns =
        static_cast<int32_t>(std::min<int64_t>(stride, matrix.rows - panel_begin * PANEL_ROWS));
    for (int32_t row = 0; row < block.end - block.begin; row++) {
        float* first = out + 2 * row * stride;
        ops_->add(first, first + stride, columns);
        if (row > 0) std::copy(first, first + columns, out + row * stride);
    }
}

} // namespace sublimate::cpu

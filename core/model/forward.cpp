// The phases of a step.
#include "forward.h"

#include <algorithm>
#include <cmath>

#include "../check.h"
#include "pack.h"

namespace sublimate::cpu {

namespace {

// Positions that every later row attends to with much of its weight (arXiv 2309.17453), where
// models keep activations far above the rest.
constexpr int32_t SINK_POSITIONS = 16;
// Layers whose rounding errors pass through the most others, and in which those activations form.
constexpr int32_t FIRST_LAYERS = 4;
constexpr int32_t ATTENTION_BLOCK_ROWS_MAX = 32;
constexpr int32_t ATTENTION_BLOCK_ROWS_MIN = 8; // fewer would read the pages for too few vectors
// Without batch invariance: a tile has 16 rows, with fewer the prompt's arithmetic gains nothing.
constexpr int32_t PROMPT_ARITHMETIC_ROWS_MIN = 16;
constexpr int32_t ATTENTION_ITEMS_PER_THREAD = 8;

bool quantised(const PackedMatrix& matrix) {
    return is_quantised(matrix.kind);
}

bool any_quantised(const FusedProjection& projection) {
    for (int32_t i = 0; i < projection.part_count; i++)
        if (quantised(projection.parts[i])) return true;
    return false;
}

int32_t divide_up(int32_t count, int32_t size) {
    return (count + size - 1) / size;
}

} // namespace

CpuModel::CpuModel(const ModelConfig& config, const Weights& weights, const RopeTable& rope,
                   const Ops& ops, ThreadPool& pool)
    : config_(config), weights_(weights), rope_(rope), pool_(pool),
      sampler_ops_{ops.argmax, ops.max_value, ops.sum_exp, ops.all_finite, ops.gumbel_argmax},
      candidates_{{pool.size()}, {&ops}},
      attention_scale_(1.0f / std::sqrt(static_cast<float>(config.head_dim))), ops_(&ops) {
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
}

Status CpuModel::create(const ModelConfig& config, const Weights& weights, const RopeTable& rope,
                        const Ops& ops, KvType kv_type, int64_t kv_bytes, ThreadPool& pool,
                        std::unique_ptr<CpuModel>* model) {
    std::unique_ptr<CpuModel> fresh(new CpuModel(config, weights, rope, ops, pool));
    RETURN_IF_ERROR(StepBuffers::allocate(config, pool.size(), &fresh->buffers_));
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

// ---- on every thread
// --------------------------------------------------------------------------------

template <class Body>
void CpuModel::share_rows(int32_t thread, int32_t rows, Body&& body) {
    int32_t size = plan_->rows_per_item;
    pool_.share(thread, divide_up(rows, size), [&](int32_t item) {
        int32_t end = std::min(rows, (item + 1) * size);
        for (int32_t row = item * size; row < end; row++) body(row);
    });
}

void CpuModel::run(int32_t thread) {
    if (!plan_->repeats_norms) {
        share_rows(thread, step_->row_count, [&](int32_t row) { embed(row); });
        pool_.barrier();
    }
    for (int32_t layer = 0; layer < config_.layers; layer++) {
        run_attention(thread, layer);
        run_feed_forward(thread, weights_.layers[static_cast<size_t>(layer)]);
    }
    run_head(thread);
}

void CpuModel::embed(int32_t row) const {
    int32_t token = step_->tokens[row];
    CHECK(token >= 0 && token < config_.vocabulary);
    unpack_row(weights_.embedding, token, buffers_.residual + int64_t{row} * config_.hidden);
    float position = static_cast<float>(step_->positions[row]);
    float* cos_sin = buffers_.cos_sin + int64_t{row} * config_.rope.dimension;
    for (size_t i = 0; i < rope_.inverse_frequencies.size(); i++) {
        // The angle in fp32, as the models were trained; its sine and cosine as well as they can be
        // had.
        double angle = position * rope_.inverse_frequencies[i];
        cos_sin[2 * i] = static_cast<float>(std::cos(angle)) * rope_.magnitude;
        cos_sin[2 * i + 1] = static_cast<float>(std::sin(angle)) * rope_.magnitude;
    }
}

void CpuModel::norm(int32_t thread, const float* weight, const float* x, const Rows& out,
                    int32_t row, Form form) const {
    float* normed = out.plain->f32 + int64_t{row} * config_.hidden;
    ops_->rms_norm(x, weight, config_.norm_epsilon, config_.hidden, normed);
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

void CpuModel::project(int32_t thread, const FusedProjection& projection, const Rows& x, bool pairs,
                       int32_t item) const {
    const RowBlock& block = row_blocks_[static_cast<size_t>(item % row_block_count_)];
    int32_t chunk = item / row_block_count_;
    int32_t part = 0;
    while (chunk >= divide_up(projection.parts[part].panels, plan_->query_key_value)) {
        chunk -= divide_up(projection.parts[part].panels, plan_->query_key_value);
        part++;
        CHECK(part < projection.part_count);
    }
    const PackedMatrix& matrix = projection.parts[part];
    int32_t begin = chunk * plan_->query_key_value;
    int32_t end = std::min(begin + plan_->query_key_value, matrix.panels);
    int64_t stride = config_.query_columns() + 2 * int64_t{config_.kv_columns()};
    float* out = buffers_.query_key_value + block.begin * stride + projection.first_output[part] +
                 begin * PANEL_ROWS;
    int32_t columns = (end - begin) * PANEL_ROWS;
    float* product = buffers_.threads[static_cast<size_t>(thread)].item;
    multiply_rows(matrix, x, block, pairs || block.sink, begin, end, product);
    for (int32_t row = block.begin; row < block.end; row++, product += columns)
        std::copy(product, product + columns, out + (row - block.begin) * stride);
}

void CpuModel::rope_and_append(int32_t row, int32_t layer_index) const {
    int64_t stride = config_.query_columns() + 2 * int64_t{config_.kv_columns()};
    float* query = buffers_.query_key_value + row * stride;
    float* key = query + config_.query_columns();
    const float* value = key + config_.kv_columns();
    const float* cos_sin = buffers_.cos_sin + int64_t{row} * config_.rope.dimension;
    // Query heads and key heads lie side by side.
    ops_->rope(query, cos_sin, config_.heads + config_.kv_heads, config_.head_dim,
               config_.rope.dimension);
    ops_->kv_append(key, value, kv_.layout, kv_.layer(layer_index),
                    row_pages_[static_cast<size_t>(row)],
                    step_->positions[row] % limits::PAGE_TOKENS);
}

const std::byte* CpuModel::first_page(int32_t item, int32_t layer_index) const {
    int32_t items_per_block = config_.heads / attention_heads_;
    if (item >= attention_block_count_ * items_per_block) return nullptr;
    const AttentionBlock& block = attention_blocks_[static_cast<size_t>(item / items_per_block)];
    int32_t sequence = step_->segments[block.segment].sequence;
    int64_t page = step_->page_tables[int64_t{sequence} * step_->page_table_stride];
    CHECK(page >= 0 && page < kv_.pages);
    int32_t head = item % items_per_block * attention_heads_ / config_.group_heads();
    return kv_.layer(layer_index) + (page * config_.kv_heads + head) * kv_.layout.head_bytes;
}

void CpuModel::attend(int32_t item, int32_t layer_index) const {
    int32_t items_per_block = config_.heads / attention_heads_;
    const AttentionBlock& block = attention_blocks_[static_cast<size_t>(item / items_per_block)];
    const Segment& segment = step_->segments[block.segment];
    int64_t stride = config_.query_columns() + 2 * int64_t{config_.kv_columns()};
    AttentionCall call = {};
    call.query = buffers_.query_key_value + block.first_row * stride;
    call.query_stride = stride;
    call.out = buffers_.attended.f32 + int64_t{block.first_row} * config_.query_columns();
    call.out_stride = config_.query_columns();
    call.row_count = block.row_count;
    call.first_position = segment.first_position + (block.first_row - segment.first_row);
    call.query_head = item % items_per_block * attention_heads_;
    call.group_heads = attention_heads_;
    call.kv_head = call.query_head / config_.group_heads();
    call.pages = kv_.layer(layer_index);
    call.page_table = step_->page_tables + int64_t{segment.sequence} * step_->page_table_stride;
    call.scale = attention_scale_;
    call.next = first_page(item + 1, layer_index);
    auto* attention =
        segment.arithmetic == Arithmetic::prompt ? ops_->attention_prompt : ops_->attention;
    attention(call, kv_.layout);
}

void CpuModel::quantise_attended(int32_t thread, const PackedMatrix& reader, int32_t row,
                                 bool pairs, int32_t first, int32_t count) const {
    carry({&buffers_.attended, &buffers_.attended_pairs},
          form_for(reader, arithmetic_of(row), pairs || is_sink(row)), row, first, count,
          buffers_.attended.f32 + int64_t{row} * config_.query_columns() + first,
          buffers_.threads[static_cast<size_t>(thread)].row);
}

void CpuModel::run_attention(int32_t thread, int32_t layer_index) {
    const LayerWeights& layer = weights_.layers[static_cast<size_t>(layer_index)];
    const FusedProjection& projection = layer.query_key_value;
    bool pairs = layer_index < FIRST_LAYERS;
    Rows x = norm_rows(thread, layer.attention_norm, any_quantised(projection), pairs);
    int32_t chunks = 0;
    for (int32_t i = 0; i < projection.part_count; i++)
        chunks += divide_up(projection.parts[i].panels, plan_->query_key_value);
    pool_.share(thread, chunks * row_block_count_,
                [&](int32_t item) { project(thread, projection, x, pairs, item); });
    if (plan_->repeats_norms) {
        pool_.barrier([&] {
            for (int32_t row = 0; row < step_->row_count; row++) rope_and_append(row, layer_index);
        });
    } else {
        pool_.barrier();
        share_rows(thread, step_->row_count,
                   [&](int32_t row) { rope_and_append(row, layer_index); });
        pool_.barrier();
    }

    // An item's channels are quantised by the item if they are whole groups, else in a phase of
    // their own.
    bool within = attention_heads_ * config_.head_dim % GROUP_COLUMNS == 0;
    int32_t items_per_block = config_.heads / attention_heads_;
    int32_t columns = attention_heads_ * config_.head_dim;
    pool_.share(thread, attention_block_count_ * items_per_block, [&](int32_t item) {
        attend(item, layer_index);
        const AttentionBlock& block =
            attention_blocks_[static_cast<size_t>(item / items_per_block)];
        for (int32_t row = 0; within && row < block.row_count; row++)
            quantise_attended(thread, layer.attention_output, block.first_row + row, pairs,
                              item % items_per_block * columns, columns);
    });
    pool_.barrier();
    if (!within && quantised(layer.attention_output)) {
        share_rows(thread, step_->row_count, [&](int32_t row) {
            quantise_attended(thread, layer.attention_output, row, pairs, 0,
                              config_.query_columns());
        });
        pool_.barrier();
    }

    int32_t output_chunks = divide_up(layer.attention_output.panels, plan_->attention_output);
    pool_.share(thread, output_chunks * row_block_count_, [&](int32_t item) {
        add_product(thread, layer.attention_output, {&buffers_.attended, &buffers_.attended_pairs},
                    plan_->attention_output, pairs, item);
    });
    pool_.barrier();
}

void CpuModel::add_product(int32_t thread, const PackedMatrix& matrix, const Rows& x,
                           int32_t panels_per_item, bool pairs, int32_t item) const {
    const RowBlock& block = row_blocks_[static_cast<size_t>(item % row_block_count_)];
    int32_t begin = item / row_block_count_ * panels_per_item;
    int32_t end = std::min(begin + panels_per_item, matrix.panels);
    int32_t stride = (end - begin) * PANEL_ROWS;
    int32_t columns = std::min(stride, matrix.rows - begin * PANEL_ROWS);
    float* product = buffers_.threads[static_cast<size_t>(thread)].item;
    multiply_rows(matrix, x, block, pairs || block.sink, begin, end, product);
    for (int32_t row = block.begin; row < block.end; row++, product += stride)
        ops_->add(buffers_.residual + int64_t{row} * config_.hidden + begin * PANEL_ROWS, product,
                  columns);
}

void CpuModel::gate_and_up(int32_t thread, const LayerWeights& layer, const Rows& x,
                           int32_t item) const {
    const RowBlock& block = row_blocks_[static_cast<size_t>(item % row_block_count_)];
    const StepBuffers::PerThread& own = buffers_.threads[static_cast<size_t>(thread)];
    int32_t begin = item / row_block_count_ * plan_->gate_up;
    int32_t end = std::min(begin + plan_->gate_up, layer.gate.panels);
    int32_t stride = (end - begin) * PANEL_ROWS;
    int32_t first = begin * PANEL_ROWS;
    int32_t columns = std::min(stride, config_.feed_forward - first);
    multiply_rows(layer.gate, x, block, block.sink, begin, end, own.item);
    multiply_rows(layer.up, x, block, block.sink, begin, end, own.second_item);
    for (int32_t row = block.begin; row < block.end; row++) {
        int64_t at = int64_t{row - block.begin} * stride;
        float* gated = buffers_.gated.f32 + int64_t{row} * config_.feed_forward + first;
        ops_->swiglu(own.item + at, own.second_item + at, columns, gated);
        carry({&buffers_.gated, &buffers_.gated_pairs},
              form_for(layer.down, block.arithmetic, block.sink), row, first, columns, gated,
              own.item + at);
    }
}

void CpuModel::run_feed_forward(int32_t thread, const LayerWeights& layer) {
    bool feeds_quantised = quantised(layer.gate) || quantised(layer.up);
    Rows x = norm_rows(thread, layer.feed_forward_norm, feeds_quantised, false);
    pool_.share(thread, divide_up(layer.gate.panels, plan_->gate_up) * row_block_count_,
                [&](int32_t item) { gate_and_up(thread, layer, x, item); });
    pool_.barrier();
    pool_.share(thread, divide_up(layer.down.panels, plan_->down) * row_block_count_,
                [&](int32_t item) {
                    add_product(thread, layer.down, {&buffers_.gated, &buffers_.gated_pairs},
                                plan_->down, false, item);
                });
    pool_.barrier();
}

void CpuModel::run_head(int32_t thread) {
    int32_t rows = step_->logit_row_count;
    if (rows == 0) return;
    Form form = quantised(weights_.head) ? Form::quantised : Form::f32;
    bool repeats = rows <= PlanTable::REPEATED_NORM_ROWS_MAX;
    Rows x = {&buffers_.logit_rows, nullptr};
    if (repeats) x.plain = &buffers_.threads[static_cast<size_t>(thread)].normed;
    auto norm_row = [&](int32_t i) {
        int32_t row = step_->logit_rows[i];
        norm(thread, weights_.final_norm, buffers_.residual + int64_t{row} * config_.hidden, x, i,
             form);
    };
    if (repeats) {
        for (int32_t i = 0; i < rows; i++) norm_row(i);
    } else {
        share_rows(thread, rows, norm_row);
        pool_.barrier();
    }
    const StepPlan& plan = plans_->for_rows(rows);
    pool_.share(thread, divide_up(weights_.head.panels, plan.head), [&](int32_t item) {
        int32_t begin = item * plan.head;
        int32_t end = std::min(begin + plan.head, weights_.head.panels);
        multiply(weights_.head, *x.plain, {0, rows, Arithmetic::generated, false}, begin, end,
                 buffers_.logits + begin * PANEL_ROWS, config_.vocabulary);
    });
}

} // namespace sublimate::cpu

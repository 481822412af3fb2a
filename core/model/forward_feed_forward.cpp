// What a block adds to the residual, the feed-forward block of a layer, and the logits.
#include <algorithm>
#include <cmath>

#include "../check.h"
#include "forward_parts.h"

namespace sublimate::cpu {

void CpuModel::add_product(int32_t thread, const Product& of, const Rows& x, int32_t item) const {
    const PackedMatrix& matrix = of.matrix;
    const RowBlock& block = row_blocks_[static_cast<size_t>(item % row_block_count_)];
    int32_t begin = item / row_block_count_ * of.panels_per_item;
    int32_t end = std::min(begin + of.panels_per_item, matrix.panels);
    int32_t stride = (end - begin) * PANEL_ROWS;
    int32_t columns = std::min(stride, matrix.rows - begin * PANEL_ROWS);
    float* product = buffers_.threads[static_cast<size_t>(thread)].item;
    multiply_rows(matrix, x, block, of.pairs || block.sink, begin, end, product);
    add_adapters(of.layer_index, of.place, block, begin, end - begin, product, stride);
    for (int32_t row = block.begin; row < block.end; row++, product += stride) {
        int64_t at = int64_t{row} * config_.hidden + begin * PANEL_ROWS;
        scale(product, columns, config_.residual_scale);
        if (of.to_branch)
            std::copy(product, product + columns, buffers_.branch + at);
        else
            ops_->add(buffers_.residual + at, product, columns);
    }
}

void CpuModel::add_branch(int32_t thread, const float* norm_weight) {
    share_rows(thread, step_->row_count, [&](int32_t row) {
        float* branch = buffers_.branch + int64_t{row} * config_.hidden;
        ops_->rms_norm(branch, norm_weight, config_.norm_epsilon, config_.hidden, branch);
        ops_->add(buffers_.residual + int64_t{row} * config_.hidden, branch, config_.hidden);
    });
    pool_.barrier();
}

void CpuModel::gate_and_up(int32_t thread, int32_t layer_index, const Rows& x, int32_t item) const {
    const LayerWeights& layer = weights_.layers[static_cast<size_t>(layer_index)];
    const RowBlock& block = row_blocks_[static_cast<size_t>(item % row_block_count_)];
    const StepBuffers::PerThread& own = buffers_.threads[static_cast<size_t>(thread)];
    int32_t begin = item / row_block_count_ * plan_->gate_up;
    int32_t end = std::min(begin + plan_->gate_up, layer.gate.panels);
    int32_t stride = (end - begin) * PANEL_ROWS;
    multiply_rows(layer.gate, x, block, block.sink, begin, end, own.item);
    multiply_rows(layer.up, x, block, block.sink, begin, end, own.second_item);
    add_adapters(layer_index, AdapterPlace::gate_up, block, begin, end - begin, own.item, stride);
    add_adapters(layer_index, AdapterPlace::gate_up, block, layer.gate.panels + begin, end - begin,
                 own.second_item, stride);
    join_gate_and_up(thread, layer.down, block, block.begin, begin, stride);
}

void CpuModel::join_gate_and_up(int32_t thread, const PackedMatrix& reader, const RowBlock& block,
                                int32_t first_gated, int32_t begin, int32_t stride) const {
    const StepBuffers::PerThread& own = buffers_.threads[static_cast<size_t>(thread)];
    int32_t first = begin * PANEL_ROWS;
    int32_t columns = std::min(stride, config_.feed_forward - first);
    for (int32_t i = 0; i < block.end - block.begin; i++) {
        int64_t at = int64_t{i} * stride;
        int32_t row = first_gated + i;
        float* gated = buffers_.gated.f32 + int64_t{row} * config_.feed_forward + first;
        bool gelu = config_.architecture->activation == Activation::gelu;
        (gelu ? ops_->geglu : ops_->swiglu)(own.item + at, own.second_item + at, columns, gated);
        carry({&buffers_.gated, &buffers_.gated_pairs},
              form_for(reader, block.arithmetic, block.sink), row, first, columns, gated,
              own.item + at);
    }
}

void CpuModel::run_feed_forward(int32_t thread, int32_t layer_index) {
    const LayerWeights& layer = weights_.layers[static_cast<size_t>(layer_index)];
    bool feeds_quantised = quantised(layer.gate) || quantised(layer.up);
    Rows x = norm_rows(thread, layer.feed_forward_norm, feeds_quantised, false);
    run_adapters(thread, layer_index, AdapterPlace::gate_up, *x.plain);
    pool_.share(thread, divide_up(layer.gate.panels, plan_->gate_up) * row_block_count_,
                [&](int32_t item) { gate_and_up(thread, layer_index, x, item); });
    pool_.barrier();
    run_adapters(thread, layer_index, AdapterPlace::down, buffers_.gated);
    const Product down = {layer.down,  layer_index, AdapterPlace::down,
                          plan_->down, false,       layer.feed_forward_post_norm != nullptr};
    pool_.share(thread, divide_up(layer.down.panels, plan_->down) * row_block_count_,
                [&](int32_t item) {
                    add_product(thread, down, {&buffers_.gated, &buffers_.gated_pairs}, item);
                });
    pool_.barrier();
    if (layer.feed_forward_post_norm != nullptr) add_branch(thread, layer.feed_forward_post_norm);
}

void CpuModel::shape_logits(float* logits, int32_t count) const {
    scale(logits, count, config_.logit_scale);
    const float cap = config_.logit_soft_cap;
    if (cap == 0.0f) return;
    for (int32_t i = 0; i < count; i++) logits[i] = cap * std::tanh(logits[i] / cap);
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
        float* logits = buffers_.logits + begin * PANEL_ROWS;
        multiply(weights_.head, *x.plain, {0, rows, Arithmetic::generated, false}, begin, end,
                 logits, config_.vocabulary);
        int32_t columns =
            std::min((end - begin) * PANEL_ROWS, config_.vocabulary - begin * PANEL_ROWS);
        for (int32_t i = 0; i < rows; i++, logits += config_.vocabulary)
            shape_logits(logits, columns);
    });
}

} // namespace sublimate::cpu

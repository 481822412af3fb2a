// The attention block of a layer: projections, rotation, attention over pages, output.
#include <algorithm>

#include "../check.h"
#include "forward_parts.h"

namespace sublimate::cpu {

namespace {

// Layers whose rounding errors pass through the most others, and in which those activations form.
constexpr int32_t FIRST_LAYERS = 4;

} // namespace

void CpuModel::project(int32_t thread, int32_t layer_index, const Rows& x, bool pairs,
                       int32_t item) const {
    const FusedProjection& projection =
        weights_.layers[static_cast<size_t>(layer_index)].query_key_value;
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
    add_adapters(layer_index, AdapterPlace::query_key_value, block,
                 projection.first_output[part] / PANEL_ROWS + begin, end - begin, product, columns);
    const float* bias = projection.bias;
    if (bias != nullptr) bias += projection.first_output[part] + begin * PANEL_ROWS;
    for (int32_t row = block.begin; row < block.end; row++, product += columns) {
        if (bias != nullptr) ops_->add(product, bias, columns);
        std::copy(product, product + columns, out + (row - block.begin) * stride);
    }
}

// In place: each of `count` heads, or all of them as one vector.
void CpuModel::norm_heads(float* heads, const float* weight, int32_t count) const {
    bool each = config_.architecture->query_key_norm == QueryKeyNorm::head;
    int32_t columns = each ? config_.head_dim : count * config_.head_dim;
    for (int32_t i = 0; i < (each ? count : 1); i++, heads += columns)
        ops_->rms_norm(heads, weight, config_.norm_epsilon, columns, heads);
}

void CpuModel::rope_and_append(int32_t row, int32_t layer_index) const {
    int64_t stride = config_.query_columns() + 2 * int64_t{config_.kv_columns()};
    float* query = buffers_.query_key_value + row * stride;
    float* key = query + config_.query_columns();
    const float* value = key + config_.kv_columns();
    const LayerWeights& layer = weights_.layers[static_cast<size_t>(layer_index)];
    if (layer.query_norm != nullptr) {
        norm_heads(query, layer.query_norm, config_.heads);
        norm_heads(key, layer.key_norm, config_.kv_heads);
    }
    bool windowed = config_.has_two_ropes() && config_.has_window(layer_index);
    const float* cos_sin = (windowed ? buffers_.window_cos_sin : buffers_.cos_sin) +
                           int64_t{row} * config_.rope.dimension;
    // Query heads and key heads lie side by side.
    ops_->rope(query, cos_sin, config_.heads + config_.kv_heads, config_.head_dim,
               config_.rope.dimension);
    if (kv_.layout.type == KvType::int8)
        ops_->hadamard(query, config_.heads + config_.kv_heads, config_.head_dim);
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
    call.scale = config_.attention_scale;
    call.window = config_.has_window(layer_index) ? config_.window : 0;
    call.soft_cap = config_.attention_soft_cap;
    call.next = first_page(item + 1, layer_index);
    bool plain = call.window == 0 && call.soft_cap == 0.0f;
    bool as_prompt = segment.arithmetic == Arithmetic::prompt && plain;
    (as_prompt ? ops_->attention_prompt : ops_->attention)(call, kv_.layout);
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
    run_adapters(thread, layer_index, AdapterPlace::query_key_value, *x.plain);
    int32_t chunks = 0;
    for (int32_t i = 0; i < projection.part_count; i++)
        chunks += divide_up(projection.parts[i].panels, plan_->query_key_value);
    pool_.share(thread, chunks * row_block_count_,
                [&](int32_t item) { project(thread, layer_index, x, pairs, item); });
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

    run_adapters(thread, layer_index, AdapterPlace::attention_output, buffers_.attended);
    const Product output = {
        layer.attention_output,  layer_index, AdapterPlace::attention_output,
        plan_->attention_output, pairs,       layer.attention_post_norm != nullptr};
    int32_t output_chunks = divide_up(layer.attention_output.panels, plan_->attention_output);
    pool_.share(thread, output_chunks * row_block_count_, [&](int32_t item) {
        add_product(thread, output, {&buffers_.attended, &buffers_.attended_pairs}, item);
    });
    pool_.barrier();
    if (layer.attention_post_norm != nullptr) add_branch(thread, layer.attention_post_norm);
}

} // namespace sublimate::cpu

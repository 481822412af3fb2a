// The feed-forward block of a mixture of experts: each row is routed to a few of many feed-forwards
// and gets the sum of what they say, weighted. The rows of an expert lie side by side, so that its
// weights are read once a step and by the same kernels as any others.
//
// A row's logits, its experts and the products are functions of its own numbers, and its sum goes
// by ascending experts, whoever else is in the step.
#include <algorithm>

#include "../check.h"
#include "forward_parts.h"

namespace sublimate::cpu {

namespace {

// A row's arithmetic and its form, as a kind of Routing.
constexpr int32_t PROMPT_KIND = 1;
constexpr int32_t SINK_KIND = 2;

} // namespace

CpuModel::RowBlock CpuModel::rows_of(const Routing::Block& block) const {
    auto arithmetic = (block.kind & PROMPT_KIND) != 0 ? Arithmetic::prompt : Arithmetic::generated;
    return {block.begin, block.end, arithmetic, (block.kind & SINK_KIND) != 0};
}

void CpuModel::sort_rows() {
    routing_.sort(
        step_->row_count,
        [this](int32_t row) {
            bool prompt = !same_arithmetic() && arithmetic_of(row) == Arithmetic::prompt;
            return (prompt ? PROMPT_KIND : 0) | (is_sink(row) ? SINK_KIND : 0);
        },
        // Sinks take two activation rows each.
        [this](int32_t kind) {
            return (kind & SINK_KIND) != 0 ? plan_->rows_per_block / 2 : plan_->rows_per_block;
        });
}

void CpuModel::route(int32_t thread, const LayerWeights& layer, const Rows& x) {
    const int32_t rows = step_->row_count;
    const int32_t blocks = divide_up(rows, plan_->rows_per_block);
    pool_.share(thread, layer.router.panels * blocks, [&](int32_t item) {
        int32_t panel = item / blocks;
        int32_t begin = item % blocks * plan_->rows_per_block;
        int32_t end = std::min(begin + plan_->rows_per_block, rows);
        multiply(layer.router, *x.plain, {begin, end, Arithmetic::generated, false}, panel,
                 panel + 1, routing_.logits(begin) + panel * PANEL_ROWS, routing_.logits_stride());
    });
    if (plan_->repeats_norms) {
        pool_.barrier([&] {
            for (int32_t row = 0; row < rows; row++) routing_.choose(row);
            sort_rows();
        });
    } else {
        pool_.barrier();
        share_rows(thread, rows, [&](int32_t row) { routing_.choose(row); });
        pool_.barrier([&] { sort_rows(); });
    }
}

// The rows of a block, side by side in the thread's own memory, in the forms that gate and up read.
CpuModel::Rows CpuModel::gather(int32_t thread, const LayerWeights& layer, const Rows& x,
                                const Routing::Block& block) const {
    const StepBuffers::PerThread& own = buffers_.threads[static_cast<size_t>(thread)];
    const RowBlock rows = rows_of(block);
    const Form form = form_of(rows.arithmetic, rows.sink);
    const bool floats = !quantised(layer.gate) || !quantised(layer.up);
    const bool others = quantised(layer.gate) || quantised(layer.up);
    for (int32_t place = block.begin; place < block.end; place++) {
        const int32_t row = routing_.row(place);
        const int32_t to = place - block.begin;
        const int64_t from = int64_t{row} * config_.hidden;
        const int64_t at = int64_t{to} * config_.hidden;
        if (floats) std::copy_n(x.plain->f32 + from, config_.hidden, own.gathered.f32 + at);
        if (!others) continue;
        if (form == Form::bf16)
            std::copy_n(x.plain->bf16 + from, config_.hidden, own.gathered.bf16 + at);
        if (form == Form::quantised) own.gathered.copy_quantised(to, *x.plain, row);
        for (int32_t half = 0; form == Form::pairs && half < 2; half++)
            own.gathered_pairs.copy_quantised(2 * to + half, *x.pairs, 2 * row + half);
    }
    return {&own.gathered, &own.gathered_pairs};
}

// All experts in one item, in order: the only place where several of them meet a row's residual.
void CpuModel::add_experts(int32_t thread, const LayerWeights& layer, int32_t item) const {
    const int32_t begin = item * plan_->down;
    const int32_t end = std::min(begin + plan_->down, layer.down.panels / config_.experts);
    const int32_t columns = (end - begin) * PANEL_ROWS;
    for (int32_t i = 0; i < routing_.block_count(); i++) {
        const Routing::Block& block = routing_.block(i);
        const RowBlock rows = rows_of(block);
        float* product = buffers_.threads[static_cast<size_t>(thread)].item;
        multiply_rows(expert_of(layer.down, block.expert, config_.experts),
                      {&buffers_.gated, &buffers_.gated_pairs}, rows, rows.sink, begin, end,
                      product);
        for (int32_t place = block.begin; place < block.end; place++, product += columns) {
            scale(product, columns, routing_.weight(place) * config_.residual_scale);
            int64_t at = int64_t{routing_.row(place)} * config_.hidden + begin * PANEL_ROWS;
            ops_->add(buffers_.residual + at, product, columns);
        }
    }
}

// One expert's gate and up, over the rows of its block: panels of a chunk.
void CpuModel::ask_expert(int32_t thread, const LayerWeights& layer, const Rows& x,
                          const Routing::Block& block, int32_t chunk) const {
    const StepBuffers::PerThread& own = buffers_.threads[static_cast<size_t>(thread)];
    const PackedMatrix gate = expert_of(layer.gate, block.expert, config_.experts);
    const PackedMatrix up = expert_of(layer.up, block.expert, config_.experts);
    RowBlock rows = rows_of(block);
    rows.begin = 0; // where gather put them
    rows.end = block.end - block.begin;
    const int32_t begin = chunk * plan_->gate_up;
    const int32_t end = std::min(begin + plan_->gate_up, gate.panels);
    multiply_rows(gate, x, rows, rows.sink, begin, end, own.item);
    multiply_rows(up, x, rows, rows.sink, begin, end, own.second_item);
    join_gate_and_up(thread, layer.down, rows, block.begin, begin, (end - begin) * PANEL_ROWS);
}

void CpuModel::run_experts(int32_t thread, int32_t layer_index) {
    const LayerWeights& layer = weights_.layers[static_cast<size_t>(layer_index)];
    bool feeds_quantised = quantised(layer.gate) || quantised(layer.up);
    Rows x = norm_rows(thread, layer.feed_forward_norm, feeds_quantised, false);
    route(thread, layer, x);
    const int32_t chunks = divide_up(layer.gate.panels / config_.experts, plan_->gate_up);
    int32_t gathered = -1; // a thread's items are mostly neighbours: of one block
    Rows rows = {};
    pool_.share(thread, routing_.block_count() * chunks, [&](int32_t item) {
        const int32_t index = item / chunks;
        const Routing::Block& block = routing_.block(index);
        if (gathered != index) rows = gather(thread, layer, x, block);
        gathered = index;
        ask_expert(thread, layer, rows, block, item % chunks);
    });
    pool_.barrier();
    pool_.share(thread, divide_up(layer.down.panels / config_.experts, plan_->down),
                [&](int32_t item) { add_experts(thread, layer, item); });
    pool_.barrier();
}

} // namespace sublimate::cpu

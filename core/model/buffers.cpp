// Laying out step memory with a counter that first measures and then hands out.
#include "buffers.h"

#include <algorithm>

#include "../check.h"
#include "plan.h"

namespace sublimate::cpu {

namespace {

// Real memory of the KV cache beyond what is in use. A server that was never asked has room for a
// long prompt; one that was used is given as much again, up to a part of the whole, since a busy
// server has no time to add to it, and then each new page costs the step that reaches it.
constexpr int64_t AHEAD_BYTES_MIN = int64_t{128} << 20;
constexpr int64_t AHEAD_BYTES_MAX = int64_t{512} << 20;
constexpr int64_t AHEAD_PART = 4;

class Layout {
public:
    Layout(std::byte* base, bool halves) : base_(base), halves_(halves) {}

    template <class Element>
    Element* take(int64_t count) {
        int64_t at = used_;
        int64_t bytes = count * static_cast<int64_t>(sizeof(Element));
        // A line pair between arrays: no false sharing, and a vector may read past a row's end.
        used_ += (bytes / limits::LINE_PAIR_BYTES + 2) * limits::LINE_PAIR_BYTES;
        return base_ == nullptr ? nullptr : reinterpret_cast<Element*>(base_ + at);
    }

    ActivationBuffer take_activations(int64_t rows, int32_t columns) {
        float* f32 = take<float>(rows * columns);
        auto* bf16 = take<uint16_t>(rows * columns);
        ActivationBuffer buffer = take_quantised(rows, columns);
        buffer.f32 = f32;
        buffer.bf16 = bf16;
        return buffer;
    }

    ActivationBuffer take_quantised(int64_t rows, int32_t columns) {
        ActivationBuffer buffer;
        int64_t groups = columns / GROUP_COLUMNS;
        buffer.columns = columns;
        buffer.values = take<int8_t>(rows * columns);
        buffer.scales = take<float>(rows * groups);
        buffer.sums = take<int32_t>(rows * groups);
        if (halves_) buffer.half_sums = take<int32_t>(rows * 2 * groups);
        return buffer;
    }

    int64_t used() const { return used_; }

private:
    std::byte* base_;
    bool halves_;
    int64_t used_ = 0;
};

void lay_out(const ModelConfig& config, Layout& layout, StepBuffers& buffers) {
    constexpr int64_t ROWS = limits::STEP_ROWS_MAX;
    buffers.residual = layout.take<float>(ROWS * config.hidden);
    buffers.query_key_value =
        layout.take<float>(ROWS * (config.query_columns() + 2 * config.kv_columns()));
    buffers.cos_sin = layout.take<float>(ROWS * config.rope.dimension);
    if (config.has_two_ropes())
        buffers.window_cos_sin = layout.take<float>(ROWS * config.rope.dimension);
    if (config.architecture->norms != NormPlace::before)
        buffers.branch = layout.take<float>(ROWS * config.hidden);
    buffers.normed = layout.take_activations(ROWS, config.hidden);
    buffers.normed_pairs = layout.take_quantised(2 * ROWS, config.hidden);
    buffers.attended_pairs = layout.take_quantised(2 * ROWS, config.query_columns());
    buffers.attended = layout.take_activations(ROWS, config.query_columns());
    buffers.gated = layout.take_activations(ROWS * config.experts_used, config.feed_forward);
    buffers.gated_pairs =
        layout.take_quantised(2 * ROWS * config.experts_used, config.feed_forward);
    buffers.logit_rows = layout.take_activations(limits::LOGIT_ROWS_MAX, config.hidden);
    for (StepBuffers::PerThread& thread : buffers.threads) {
        thread.normed = layout.take_activations(PlanTable::REPEATED_NORM_ROWS_MAX, config.hidden);
        thread.normed_pairs =
            layout.take_quantised(2 * PlanTable::REPEATED_NORM_ROWS_MAX, config.hidden);
        if (config.experts > 0) {
            thread.gathered = layout.take_activations(PlanTable::BLOCK_ROWS_MAX, config.hidden);
            thread.gathered_pairs = layout.take_quantised(PlanTable::BLOCK_ROWS_MAX, config.hidden);
        }
        thread.row = layout.take<float>(std::max(config.hidden, config.query_columns()));
        thread.item = layout.take<float>(PlanTable::ITEM_FLOATS_MAX);
        thread.second_item = layout.take<float>(PlanTable::ITEM_FLOATS_MAX);
    }
    buffers.logits = layout.take<float>(int64_t{limits::LOGIT_ROWS_MAX} * config.vocabulary);
}

} // namespace

Activations ActivationBuffer::from_row(int32_t row) const {
    int64_t channel = int64_t{row} * columns;
    int64_t group = int64_t{row} * (columns / GROUP_COLUMNS);
    return {f32 == nullptr ? nullptr : f32 + channel,
            values + channel,
            scales + group,
            sums + group,
            columns,
            bf16 == nullptr ? nullptr : bf16 + channel,
            half_sums == nullptr ? nullptr : half_sums + 2 * group};
}

void ActivationBuffer::quantise(const Ops& ops, int32_t row, int32_t first, int32_t count,
                                const float* x) const {
    int64_t channel = int64_t{row} * columns + first;
    int64_t group = channel / GROUP_COLUMNS;
    ops.quantise(x, count, values + channel, scales + group, sums + group);
    if (half_sums != nullptr) ops.add_halves(values + channel, count, half_sums + 2 * group);
}

void ActivationBuffer::copy_quantised(int32_t row, const ActivationBuffer& other,
                                      int32_t from) const {
    CHECK(columns == other.columns);
    int64_t groups = columns / GROUP_COLUMNS;
    std::copy_n(other.values + int64_t{from} * columns, columns, values + int64_t{row} * columns);
    std::copy_n(other.scales + from * groups, groups, scales + row * groups);
    std::copy_n(other.sums + from * groups, groups, sums + row * groups);
    if (half_sums != nullptr)
        std::copy_n(other.half_sums + from * 2 * groups, 2 * groups, half_sums + row * 2 * groups);
}

void ActivationBuffer::to_bf16(const Ops& ops, int32_t row, int32_t first, int32_t count,
                               const float* x) const {
    ops.to_bf16(x, count, bf16 + int64_t{row} * columns + first);
}

void ActivationBuffer::quantise_pair(const Ops& ops, int32_t row, int32_t first, int32_t count,
                                     const float* x, float* scratch) const {
    quantise(ops, 2 * row, first, count, x);
    int64_t channel = int64_t{2 * row} * columns + first;
    const int8_t* coarse = values + channel;
    const float* scale = scales + channel / GROUP_COLUMNS;
    for (int32_t begin = 0; begin < count; begin += GROUP_COLUMNS) {
        float step = scale[begin / GROUP_COLUMNS];
        for (int32_t i = begin; i < begin + GROUP_COLUMNS; i++)
            scratch[i] = x[i] - step * static_cast<float>(coarse[i]);
    }
    quantise(ops, 2 * row + 1, first, count, scratch);
}

Status StepBuffers::allocate(const ModelConfig& config, int32_t threads, bool halves,
                             StepBuffers* buffers) {
    StepBuffers fresh;
    fresh.threads.resize(static_cast<size_t>(threads));
    Layout measure(nullptr, halves);
    lay_out(config, measure, fresh);
    RETURN_IF_ERROR(AnonymousMemory::map(measure.used(), "step buffers", &fresh.memory_));
    Layout layout(fresh.memory_.data(), halves);
    lay_out(config, layout, fresh);
    *buffers = std::move(fresh);
    return Status::success();
}

int64_t KvArena::page_bytes(const ModelConfig& config, KvType type) {
    return kv_head_bytes(type, config.head_dim) * config.kv_heads * config.layers;
}

Status KvArena::allocate(const ModelConfig& config, KvType type, int64_t bytes, KvArena* arena) {
    KvArena fresh;
    fresh.layout.type = type;
    fresh.layout.kv_heads = config.kv_heads;
    fresh.layout.head_dim = config.head_dim;
    fresh.layout.head_bytes = page_bytes(config, type) / config.layers / config.kv_heads;
    int64_t pages = bytes / page_bytes(config, type);
    if (pages < 1)
        return Status::error("the KV memory of " + std::to_string(bytes) +
                             " bytes holds not even one page of " +
                             std::to_string(limits::PAGE_TOKENS) + " tokens, which takes " +
                             std::to_string(page_bytes(config, type)));
    fresh.pages = static_cast<int32_t>(std::min<int64_t>(pages, limits::KV_PAGES_MAX));
    fresh.layers = config.layers;
    fresh.layer_bytes = fresh.pages * fresh.layout.head_bytes * config.kv_heads;
    // Each layer begins with a huge page of its own, so that little use makes little memory real.
    constexpr auto HUGE_PAGE = static_cast<int64_t>(HUGE_PAGE_BYTES);
    if (fresh.layer_bytes > HUGE_PAGE)
        fresh.layer_bytes = (fresh.layer_bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    RETURN_IF_ERROR(
        AnonymousMemory::map(fresh.layer_bytes * config.layers, "the KV cache", &fresh.memory));
    *arena = std::move(fresh);
    return Status::success();
}

void KvArena::populate_ahead() {
    CHECK(ahead == nullptr);
    ahead = std::make_unique<PopulateAhead>(memory.data(), layer_bytes, layers, AHEAD_BYTES_MIN,
                                            std::max(AHEAD_BYTES_MAX, memory.size() / AHEAD_PART));
}

} // namespace sublimate::cpu

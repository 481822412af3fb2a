// See scripted_model.h.
#include "scripted_model.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "../cpu/ops.h"

namespace sublimate {

namespace {
constexpr float PEAK_LOGIT =
    30.0f; // far above the rest, so that sampling at any usual temperature agrees

SamplerOps best_sampler_ops() {
    const cpu::Ops& ops = cpu::ops_for(cpu::best_isa());
    return {ops.argmax, ops.max_value, ops.sum_exp, ops.all_finite, ops.gumbel_argmax};
}
} // namespace

ScriptedModel::ScriptedModel(std::vector<ScriptLine> script, const ScriptOptions& options)
    : script_(std::move(script)), options_(options), sampler_ops_(best_sampler_ops()) {
    CHECK(options.vocabulary > 0 && options.vocabulary <= limits::VOCABULARY_MAX);
    CHECK(options.stop_token >= 0 && options.stop_token < options.vocabulary);
    pages_.assign(static_cast<size_t>(options.kv_pages) * limits::PAGE_TOKENS, -1);
    prompt_.reserve(static_cast<size_t>(options.context_length));
    logits_.assign(static_cast<size_t>(limits::LOGIT_ROWS_MAX) *
                       static_cast<size_t>(options.vocabulary),
                   0.0f);
    peaks_.assign(limits::LOGIT_ROWS_MAX, 0);
}

int32_t ScriptedModel::next_token(const Step& step, const Segment& segment, int32_t position) {
    const int32_t* table = step.page_tables + int64_t{segment.sequence} * step.page_table_stride;
    int32_t prompt_length = std::min(segment.prompt_length, position + 1);
    prompt_.resize(static_cast<size_t>(prompt_length)); // within the reserved capacity
    for (int32_t i = 0; i < prompt_length; i++) {
        int64_t page = table[i / limits::PAGE_TOKENS];
        prompt_[static_cast<size_t>(i)] =
            pages_[static_cast<size_t>(page * limits::PAGE_TOKENS + i % limits::PAGE_TOKENS)];
    }
    const std::vector<int32_t>* answer = &prompt_;
    for (const ScriptLine& line : script_) {
        auto found =
            std::search(prompt_.begin(), prompt_.end(), line.match.begin(), line.match.end());
        if (found == prompt_.end() && !line.match.empty()) continue;
        answer = &line.answer;
        break;
    }
    int32_t generated = position + 1 - segment.prompt_length;
    if (generated < 0 || generated >= static_cast<int32_t>(answer->size()))
        return options_.stop_token;
    return (*answer)[static_cast<size_t>(generated)];
}

const float* ScriptedModel::forward(const Step& step) {
    int32_t prompt_rows = 0;
    for (int32_t s = 0; s < step.segment_count; s++) {
        const Segment& segment = step.segments[s];
        const int32_t* table =
            step.page_tables + int64_t{segment.sequence} * step.page_table_stride;
        for (int32_t i = 0; i < segment.row_count; i++) {
            int32_t position = segment.first_position + i;
            int64_t page = table[position / limits::PAGE_TOKENS];
            CHECK(page >= 0 && page < options_.kv_pages);
            int64_t lane = page * limits::PAGE_TOKENS + position % limits::PAGE_TOKENS;
            pages_[static_cast<size_t>(lane)] = step.tokens[segment.first_row + i];
            prompt_rows += position < segment.prompt_length;
        }
    }
    int32_t s = 0;
    for (int32_t r = 0; r < step.logit_row_count; r++) {
        int32_t row = step.logit_rows[r];
        while (row >= step.segments[s].first_row + step.segments[s].row_count) s++;
        float* logits = logits_.data() + int64_t{r} * options_.vocabulary;
        logits[peaks_[static_cast<size_t>(r)]] = 0.0f;
        int32_t token = next_token(step, step.segments[s], step.positions[row]);
        peaks_[static_cast<size_t>(r)] = token;
        logits[token] = PEAK_LOGIT;
    }
    int64_t delay_us =
        options_.step_delay_us + int64_t{prompt_rows} * options_.prefill_delay_us_per_token;
    if (delay_us > 0) std::this_thread::sleep_for(std::chrono::microseconds(delay_us));
    return logits_.data();
}

} // namespace sublimate

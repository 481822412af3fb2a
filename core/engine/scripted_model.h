// A model without weights: it answers from a script, through the same loop, pages and rings as a
// real one. Its KV is the token itself, so a request that is given a wrong page echoes a wrong
// prompt. Serves the API tests.
//
// defines: ScriptLine, ScriptOptions, ScriptedModel
#pragma once

#include <cstdint>
#include <vector>

#include "../loop/sampler_ops.h"
#include "../loop/step.h"

namespace sublimate {

struct ScriptLine {
    std::vector<int32_t>
        match; // a prompt that contains this run of ids gets `answer`; empty matches all
    std::vector<int32_t> answer; // then stop_token
};

struct ScriptOptions {
    int32_t vocabulary = 0;
    int32_t context_length = 8192;
    int32_t kv_pages = 4096;
    int32_t stop_token = 2;
    int32_t step_delay_us = 0;              // per step
    int32_t prefill_delay_us_per_token = 0; // per prompt row
    int32_t adapters = 0;                   // that requests may name; they change no answer
};

class ScriptedModel {
public:
    ScriptedModel(std::vector<ScriptLine> script, const ScriptOptions& options);

    int32_t vocabulary() const { return options_.vocabulary; }
    const float* forward(const Step& step);
    template <class Body>
    void for_rows(int32_t count, Body&& body) {
        for (int32_t i = 0; i < count; i++) body(i);
    }
    const SamplerOps& sampler_ops() const { return sampler_ops_; }

private:
    int32_t next_token(const Step& step, const Segment& segment, int32_t position);

    std::vector<ScriptLine> script_;
    ScriptOptions options_;
    SamplerOps sampler_ops_;      // of the best instruction set, as a real model has them
    std::vector<int32_t> pages_;  // (page, PAGE_TOKENS) token ids
    std::vector<int32_t> prompt_; // scratch: the prompt of the row being answered
    std::vector<float> logits_;   // (LOGIT_ROWS_MAX, vocabulary)
    std::vector<int32_t> peaks_;  // (LOGIT_ROWS_MAX) where the last call put its peaks
};

} // namespace sublimate

// Proof that the loop's headers are free of host-only facilities: a kernel that really runs every
// phase of an iteration on the device. Compiled for sm_90a in CI; the result is an object file that
// nobody links.
#include "../../core/loop/loop.h"

namespace sublimate {

// memory, region: device memory of loop_memory_bytes and region_layout; logits: (LOGIT_ROWS_MAX,
// vocabulary).
__global__ void one_iteration(LoopState* state, LoopConfig config, void* memory, void* region,
                              const float* logits, SamplerOps ops, long long now_ns,
                              const char** why) {
    LoopState& loop = *state;
    state_start(loop, config, loop_memory(config, memory), now_ns);
    RegionView view = region_view(region, config.vocabulary);
    region_format(view);
    edge_start(loop.edges[0], view);
    begin_iteration(loop, now_ns);
    bool worked = drain(loop);
    worked |= take(loop);
    worked |= cancel(loop);
    worked |= admit(loop);
    schedule_rows(loop);
    publish(loop, now_ns);
    if (loop.plan->rows > 0) {
        Step step = lay_out_step(loop);
        for (int32_t task = 0; task < step.logit_row_count; task++)
            sample_task(loop, ops, logits, task, task % config.sample_lanes);
        stop(loop);
        publish(loop, now_ns);
    }
    end_iteration(loop, worked);
    for (int32_t i = 0; i < loop.running_count; i++)
        loop.tables[i] = &loop.sequences[loop.running[i]].table;
    *why = loop.kv.audit(loop.tables, loop.running_count, loop.owners);
}

// The primitives that a device sampler calls directly.
__global__ void sampler_primitives(const float* logits, int32_t vocabulary, uint64_t seed,
                                   int32_t* tokens, float* values) {
    tokens[0] = argmax(logits, vocabulary);
    tokens[1] = gumbel_argmax(logits, vocabulary, 1.0f, MINUS_INFINITY, seed, 0);
    values[0] = max_value(logits, vocabulary);
    values[1] = sum_exp(logits, vocabulary, values[0], 1.0f);
    values[2] = all_finite(logits, vocabulary) ? 1.0f : 0.0f;
}

} // namespace sublimate

// Times the model step alone, without scheduler or sampler.
//
// usage: forward_bench MODEL.gguf [isa] [threads] [seconds per figure]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "core/model/model.h"

namespace {

using namespace sublimate;

constexpr int32_t PREFILL_TOKENS = 512;
constexpr int32_t CONTEXT_TOKENS = 128; // of a decoding sequence
constexpr int32_t BATCHES[] = {1, 2, 4, 8, 16, 32, 64, 128};

double now_s() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

struct Inputs {
    std::vector<int32_t> tokens, positions, logit_rows, table;
    std::vector<Segment> segments;
    Step step() const {
        return {static_cast<int32_t>(tokens.size()),
                static_cast<int32_t>(segments.size()),
                static_cast<int32_t>(logit_rows.size()),
                static_cast<int32_t>(table.size() / segments.size()),
                tokens.data(),
                positions.data(),
                segments.data(),
                logit_rows.data(),
                table.data()};
    }
};

Inputs prefill_inputs(const LoadedModel& model) {
    Inputs inputs;
    for (int32_t i = 0; i < PREFILL_TOKENS; i++) {
        inputs.tokens.push_back((i * 7919 + 13) % model.config.vocabulary);
        inputs.positions.push_back(i);
    }
    inputs.logit_rows = {PREFILL_TOKENS - 1};
    inputs.segments = {{0, 0, PREFILL_TOKENS, 0, PREFILL_TOKENS, Arithmetic::prompt, 0, 0, 0}};
    for (int32_t i = 0; i < PREFILL_TOKENS / limits::PAGE_TOKENS; i++) inputs.table.push_back(i);
    return inputs;
}

Inputs decode_inputs(const LoadedModel& model, int32_t batch) {
    Inputs inputs;
    for (int32_t i = 0; i < batch; i++) {
        inputs.tokens.push_back((i * 7919 + 13) % model.config.vocabulary);
        inputs.positions.push_back(CONTEXT_TOKENS - 1);
        inputs.logit_rows.push_back(i);
        inputs.segments.push_back(
            {i, i, 1, CONTEXT_TOKENS - 1, CONTEXT_TOKENS - 1, Arithmetic::generated, 0, 0, 0});
        for (int32_t p = 0; p < CONTEXT_TOKENS / limits::PAGE_TOKENS; p++)
            inputs.table.push_back(i * CONTEXT_TOKENS / limits::PAGE_TOKENS + p);
    }
    return inputs;
}

void report(LoadedModel& model, const char* name, const Inputs& inputs, double seconds) {
    Step step = inputs.step();
    model.model->forward(step);
    std::vector<double> times;
    for (double end = now_s() + seconds; now_s() < end || times.size() < 3;) {
        double begin = now_s();
        model.model->forward(step);
        times.push_back(now_s() - begin);
    }
    std::sort(times.begin(), times.end());
    double median = times[times.size() / 2];
    double rows = static_cast<double>(inputs.tokens.size());
    std::printf("%-8s %4.0f rows %9.3f ms (best %9.3f) %8.0f tok/s (best %8.0f)\n", name, rows,
                median * 1e3, times[0] * 1e3, rows / median, rows / times[0]);
}

} // namespace

int main(int argc, char** argv) {
    if (argc < 2) {
        std::fprintf(stderr, "usage: forward_bench MODEL.gguf [isa] [threads] [seconds]\n");
        return 2;
    }
    LoadOptions options;
    if (argc > 2) options.isa = argv[2];
    if (argc > 3) options.threads = std::atoi(argv[3]);
    double seconds = argc > 4 ? std::atof(argv[4]) : 1.0;
    std::shared_ptr<LoadedModel> model;
    Status status = load_model(argv[1], options, &model);
    if (!status.ok()) {
        std::fprintf(stderr, "%s\n", status.message.c_str());
        return 1;
    }
    std::printf("%s, %d threads, loaded in %.3f s\n", model->model->ops().name, model->pool->size(),
                model->load_seconds);
    report(*model, "prefill", prefill_inputs(*model), seconds);
    for (int32_t batch : BATCHES) report(*model, "decode", decode_inputs(*model, batch), seconds);
    return 0;
}

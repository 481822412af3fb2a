// Times the model step alone, without scheduler or sampler.
//
// usage: forward_bench MODEL.gguf [isa] [threads] [seconds per figure] [figure ...]
//   figures: prefill:TOKENS, decode:BATCH, verify:ROWS (the last ROWS positions of one sequence),
//   chunk:ROWS (of a long prompt, beside 16 sequences that decode); without any, prefill:512 and
//   batches up to 128
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <numeric>
#include <string>
#include <vector>

#include "core/model/model.h"

namespace {

using namespace sublimate;

constexpr int32_t CONTEXT_TOKENS = 128;  // of a decoding sequence
constexpr int32_t CHUNK_POSITION = 1500; // the first of a chunk
constexpr int32_t CHUNK_NEIGHBOURS = 16;
constexpr const char* FIGURES[] = {"prefill:512", "decode:1",  "decode:2",  "decode:4",  "decode:8",
                                   "decode:16",   "decode:32", "decode:64", "decode:128"};

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

Inputs prefill_inputs(const LoadedModel& model, int32_t count) {
    Inputs inputs;
    for (int32_t i = 0; i < count; i++) {
        inputs.tokens.push_back((i * 7919 + 13) % model.config.vocabulary);
        inputs.positions.push_back(i);
    }
    for (int32_t i = 0; i <= count / limits::PAGE_TOKENS; i++) inputs.table.push_back(i);
    return inputs;
}

// Rows [first, first + rows) of a prompt whose earlier rows ran before.
Inputs rows_of(const Inputs& prompt, int32_t first, int32_t rows, Arithmetic arithmetic) {
    Inputs inputs;
    inputs.tokens.assign(prompt.tokens.begin() + first, prompt.tokens.begin() + first + rows);
    inputs.positions.assign(prompt.positions.begin() + first,
                            prompt.positions.begin() + first + rows);
    inputs.table = prompt.table;
    inputs.logit_rows = {rows - 1};
    auto length = static_cast<int32_t>(prompt.tokens.size());
    inputs.segments = {{0, 0, rows, first, length, arithmetic, 0, 0, 0}};
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

// The pages behind those that the decoding sequences own; every table is as long as this one's.
Inputs chunk_inputs(const LoadedModel& model, int32_t rows) {
    Inputs inputs = decode_inputs(model, CHUNK_NEIGHBOURS);
    constexpr int32_t OWN = CONTEXT_TOKENS / limits::PAGE_TOKENS;
    int32_t stride = (CHUNK_POSITION + rows - 1) / limits::PAGE_TOKENS + 1;
    inputs.table.assign(static_cast<size_t>((CHUNK_NEIGHBOURS + 1) * stride), 0);
    for (int32_t i = 0; i < CHUNK_NEIGHBOURS * OWN; i++)
        inputs.table[static_cast<size_t>(i / OWN * stride + i % OWN)] = i;
    for (int32_t i = 0; i < stride; i++)
        inputs.table[static_cast<size_t>(CHUNK_NEIGHBOURS * stride + i)] =
            CHUNK_NEIGHBOURS * OWN + i;
    inputs.segments.push_back({CHUNK_NEIGHBOURS, CHUNK_NEIGHBOURS, rows, CHUNK_POSITION,
                               CHUNK_POSITION + rows, Arithmetic::prompt, 0, 0, 0});
    for (int32_t i = 0; i < rows; i++) {
        inputs.tokens.push_back((i * 7919 + 13) % model.config.vocabulary);
        inputs.positions.push_back(CHUNK_POSITION + i);
    }
    return inputs;
}

// Runs the steps in order until `seconds` are over; one round is one time.
void report(LoadedModel& model, const char* name, const std::vector<Inputs>& steps,
            double seconds) {
    double rows = 0;
    for (const Inputs& inputs : steps) rows += static_cast<double>(inputs.tokens.size());
    auto round = [&] {
        for (const Inputs& inputs : steps) model.model->forward(inputs.step());
    };
    round();
    std::vector<double> times;
    for (double end = now_s() + seconds; now_s() < end || times.size() < 3;) {
        double begin = now_s();
        round();
        times.push_back(now_s() - begin);
    }
    double mean = std::accumulate(times.begin(), times.end(), 0.0) / double(times.size());
    std::sort(times.begin(), times.end());
    double median = times[times.size() / 2];
    std::printf("%-13s %9.3f ms (mean %9.3f, best %9.3f) %8.0f tok/s (mean %8.0f, best %8.0f)\n",
                name, median * 1e3, mean * 1e3, times[0] * 1e3, rows / median, rows / mean,
                rows / times[0]);
}

bool run_figure(LoadedModel& model, const std::string& figure, double seconds) {
    size_t colon = figure.find(':');
    int32_t count = colon == std::string::npos ? 0 : std::atoi(figure.c_str() + colon + 1);
    std::string kind = figure.substr(0, colon);
    if (count < 1 || count >= model.config.context_length) return false;
    std::vector<Inputs> steps;
    if (kind == "prefill") {
        Inputs prompt = prefill_inputs(model, count);
        for (int32_t first = 0; first < count; first += limits::STEP_ROWS_MAX)
            steps.push_back(rows_of(prompt, first, std::min(limits::STEP_ROWS_MAX, count - first),
                                    Arithmetic::prompt));
    } else if (kind == "decode" && count <= limits::SEQUENCES_MAX) {
        steps.push_back(decode_inputs(model, count));
    } else if (kind == "chunk" && count <= limits::STEP_ROWS_MAX - CHUNK_NEIGHBOURS &&
               CHUNK_POSITION + count <= model.config.context_length) {
        steps.push_back(chunk_inputs(model, count));
    } else if (kind == "verify" && count <= CONTEXT_TOKENS) {
        Inputs prompt = prefill_inputs(model, CONTEXT_TOKENS);
        model.model->forward(rows_of(prompt, 0, CONTEXT_TOKENS, Arithmetic::prompt).step());
        steps.push_back(rows_of(prompt, CONTEXT_TOKENS - count, count, Arithmetic::generated));
        steps.back().logit_rows.resize(static_cast<size_t>(count));
        std::iota(steps.back().logit_rows.begin(), steps.back().logit_rows.end(), 0);
    } else {
        return false;
    }
    report(model, figure.c_str(), steps, seconds);
    return true;
}

} // namespace

int main(int argc, char** argv) {
    if (argc < 2) {
        std::fprintf(stderr,
                     "usage: forward_bench MODEL.gguf [isa] [threads] [seconds] [figure ...]\n");
        return 2;
    }
    LoadOptions options;
    if (argc > 2) options.isa = argv[2];
    if (argc > 3) options.threads = std::atoi(argv[3]);
    double seconds = argc > 4 ? std::atof(argv[4]) : 1.0;
    std::vector<std::string> figures(argv + std::min(argc, 5), argv + argc);
    if (figures.empty()) figures.assign(std::begin(FIGURES), std::end(FIGURES));
    std::shared_ptr<LoadedModel> model;
    Status status = load_model(argv[1], options, &model);
    if (!status.ok()) {
        std::fprintf(stderr, "%s\n", status.message.c_str());
        return 1;
    }
    std::printf("%s, %d threads, loaded in %.3f s\n", model->model->ops().name, model->pool->size(),
                model->load_seconds);
    model->model->place_threads();
    for (const std::string& figure : figures) {
        if (run_figure(*model, figure, seconds)) continue;
        std::fprintf(stderr, "no figure %s\n", figure.c_str());
        return 2;
    }
    return 0;
}

// Teacher-forced check of the model against reference continuations, without Python: reads a golden
// file in a plain text form (tests/golden/golden_as_text.py) and compares arg-max and negative
// log-likelihood at every position.
//
// usage: golden_check MODEL.gguf GOLDEN.txt default|exact prompt|generated
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "core/model/model.h"

namespace {

using namespace sublimate;

struct Case {
    std::string name;
    std::vector<int32_t> prompt;
    std::vector<int32_t> greedy;
    std::vector<float> gaps; // between the two highest logits, per greedy position
    double nll;              // mean over the prompt's positions 1 and later
};

constexpr double NLL_MEAN_BAR = 0.01;
constexpr double NLL_CASE_BAR = 0.03;
constexpr double NLL_EXACT_BAR = 0.001;
constexpr float GAP_BAR = 0.5f;
constexpr float GAP_EXACT_BAR = 0.05f;
constexpr int32_t PROMPT_CHUNK_ROWS = 128;

std::vector<Case> read_cases(const char* path) {
    std::ifstream file(path);
    std::vector<Case> cases;
    Case one;
    size_t prompt_count = 0;
    size_t greedy_count = 0;
    while (file >> one.name >> prompt_count >> greedy_count >> one.nll) {
        one.prompt.resize(prompt_count);
        one.greedy.resize(greedy_count);
        one.gaps.resize(greedy_count);
        for (int32_t& id : one.prompt) file >> id;
        for (int32_t& id : one.greedy) file >> id;
        for (float& gap : one.gaps) file >> gap;
        cases.push_back(one);
    }
    return cases;
}

double log_probability(const float* logits, int32_t count, int32_t token) {
    float maximum = logits[0];
    for (int32_t i = 1; i < count; i++) maximum = std::max(maximum, logits[i]);
    double sum = 0.0;
    for (int32_t i = 0; i < count; i++) sum += std::exp(double(logits[i]) - double(maximum));
    return double(logits[token]) - double(maximum) - std::log(sum);
}

struct Outcome {
    double nll_sum = 0.0;
    int32_t checked = 0;
    int32_t wrong = 0;
};

Outcome run_case(LoadedModel& loaded, const Case& one, Arithmetic arithmetic, float gap_bar) {
    std::vector<int32_t> ids = one.prompt;
    ids.insert(ids.end(), one.greedy.begin(), one.greedy.end());
    int32_t total = static_cast<int32_t>(ids.size());
    int32_t prompt = static_cast<int32_t>(one.prompt.size());
    std::vector<int32_t> positions(ids.size());
    std::vector<int32_t> rows(ids.size());
    std::vector<int32_t> table(ids.size() / limits::PAGE_TOKENS + 1);
    for (size_t i = 0; i < ids.size(); i++) rows[i] = positions[i] = static_cast<int32_t>(i);
    for (size_t i = 0; i < table.size(); i++) table[i] = static_cast<int32_t>(i * 7 + 3);
    int32_t chunk = arithmetic == Arithmetic::prompt ? PROMPT_CHUNK_ROWS : 1;
    Outcome outcome;
    for (int32_t begin = 0; begin + 1 < total; begin += chunk) {
        int32_t count = std::min(chunk, total - 1 - begin);
        Segment segment = {0, 0, count, begin, prompt, arithmetic, 0, 0, 0};
        Step step = {count,
                     1,
                     count,
                     static_cast<int32_t>(table.size()),
                     ids.data() + begin,
                     positions.data() + begin,
                     &segment,
                     rows.data(),
                     table.data()};
        const float* logits = loaded.model->forward(step);
        int32_t vocabulary = loaded.model->vocabulary();
        for (int32_t r = 0; r < count; r++, logits += vocabulary) {
            int32_t next = begin + r + 1;
            if (next < prompt) {
                outcome.nll_sum -= log_probability(logits, vocabulary, ids[next]);
            } else if (one.gaps[static_cast<size_t>(next - prompt)] > gap_bar) {
                outcome.checked++;
                outcome.wrong += loaded.model->ops().argmax(logits, vocabulary) != ids[next];
            }
        }
    }
    return outcome;
}

} // namespace

int main(int argc, char** argv) {
    if (argc != 5) {
        std::fprintf(stderr, "usage: golden_check MODEL GOLDEN default|exact prompt|generated\n");
        return 2;
    }
    bool exact = std::strcmp(argv[3], "exact") == 0;
    Arithmetic arithmetic =
        std::strcmp(argv[4], "prompt") == 0 ? Arithmetic::prompt : Arithmetic::generated;
    LoadOptions options;
    options.exact = exact;
    std::shared_ptr<LoadedModel> loaded;
    Status status = load_model(argv[1], options, &loaded);
    if (!status.ok()) {
        std::fprintf(stderr, "%s\n", status.message.c_str());
        return 1;
    }
    std::printf("loaded in %.2f s, %s, %s, %s\n", loaded->load_seconds, loaded->model->ops().name,
                argv[3], argv[4]);
    std::vector<Case> cases = read_cases(argv[2]);
    double sum = 0.0, reference_sum = 0.0, worst = 0.0;
    int64_t tokens = 0;
    int32_t checked = 0, wrong = 0;
    for (const Case& one : cases) {
        Outcome outcome = run_case(*loaded, one, arithmetic, exact ? GAP_EXACT_BAR : GAP_BAR);
        double count = double(one.prompt.size() - 1);
        double difference = outcome.nll_sum / count - one.nll;
        std::printf("%-16s nll %.5f reference %.5f difference %+.5f, %d of %d wrong\n",
                    one.name.c_str(), outcome.nll_sum / count, one.nll, difference, outcome.wrong,
                    outcome.checked);
        worst = std::max(worst, std::fabs(difference));
        sum += outcome.nll_sum;
        reference_sum += one.nll * count;
        tokens += static_cast<int64_t>(count);
        checked += outcome.checked;
        wrong += outcome.wrong;
    }
    double mean = std::fabs(sum - reference_sum) / double(tokens);
    std::printf("mean difference %.5f, worst case %.5f, %d of %d wrong\n", mean, worst, wrong,
                checked);
    bool pass = !cases.empty() && wrong == 0 && mean <= (exact ? NLL_EXACT_BAR : NLL_MEAN_BAR) &&
                worst <= (exact ? NLL_EXACT_BAR : NLL_CASE_BAR);
    return pass ? 0 : 1;
}

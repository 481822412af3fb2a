// Routing of rows to experts: each choice against its twin in double precision, and the places of a
// whole step against a plain list of who chose whom.
#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <utility>
#include <vector>

#include "core/model/routing.h"
#include "forward_twin.h"
#include "test.h"

namespace {

using namespace sublimate;
using namespace sublimate::test;
using cpu::Routing;

constexpr int32_t ROWS = 50;

ModelConfig config_of(int32_t experts, int32_t used, bool renormalised) {
    ModelConfig config;
    config.experts = experts;
    config.experts_used = used;
    config.experts_renormalised = renormalised;
    return config;
}

void fill(Routing& routing, int32_t experts, uint64_t seed) {
    Random random(seed);
    for (int32_t row = 0; row < ROWS; row++) {
        float* logits = routing.logits(row);
        for (int32_t e = 0; e < experts; e++) logits[e] = random.between(-9.0f, 9.0f);
        // Equal ones, at the border of what is chosen too.
        for (int32_t e = 1; row % 3 == 0 && e < experts; e += 2) logits[e] = logits[e - 1];
    }
}

// What one expert of one row gets: a kind of each row by its number.
int32_t kind_of(int32_t row) {
    return row * 7 % 5 % Routing::KINDS;
}

} // namespace

TEST(choices_are_those_of_the_twin) {
    const std::vector<std::pair<int32_t, int32_t>> sizes = {{1, 1}, {6, 3}, {8, 8}, {128, 8}};
    for (const auto& [experts, used] : sizes) {
        for (bool renormalised : {false, true}) {
            ModelConfig config = config_of(experts, used, renormalised);
            Routing routing;
            routing.reserve(config, ROWS);
            fill(routing, experts, static_cast<uint64_t>(experts));
            for (int32_t row = 0; row < ROWS; row++) {
                const float* logits = routing.logits(row);
                auto twin = twin_routing(config, {logits, logits + experts});
                routing.choose(row);
                for (int32_t i = 0; i < used; i++) {
                    EXPECT_EQ(routing.chosen(row, i), twin[static_cast<size_t>(i)].second);
                    EXPECT_NEAR(routing.chosen_weight(row, i), twin[static_cast<size_t>(i)].first,
                                1e-6);
                }
            }
        }
    }
}

// Lost numbers stay lost, and choose experts that exist all the same.
TEST(a_number_that_is_none_reaches_every_weight) {
    const float nan = std::nanf("");
    const float infinity = std::numeric_limits<float>::infinity();
    for (float bad : {nan, infinity}) {
        for (int32_t at : {0, 3, 5}) {
            Routing routing;
            routing.reserve(config_of(6, 2, true), ROWS);
            fill(routing, 6, 1);
            routing.logits(1)[at] = bad;
            routing.choose(1);
            EXPECT(std::isnan(routing.chosen_weight(1, 0)));
            for (int32_t i : {0, 1}) EXPECT(routing.chosen(1, i) >= 0 && routing.chosen(1, i) < 6);
            EXPECT(routing.chosen(1, 0) != routing.chosen(1, 1));
        }
    }
}

TEST(places_hold_every_choice_once) {
    constexpr int32_t EXPERTS = 10, USED = 3;
    Routing routing;
    routing.reserve(config_of(EXPERTS, USED, true), ROWS);
    fill(routing, EXPERTS, 4);
    std::set<std::pair<int32_t, int32_t>> chosen; // expert, row
    for (int32_t row = 0; row < ROWS; row++) {
        routing.choose(row);
        for (int32_t i = 0; i < USED; i++) chosen.insert({routing.chosen(row, i), row});
    }
    auto rows_max = [](int32_t kind) { return kind + 1; };
    for (int32_t again = 0; again < 2; again++) {
        routing.sort(ROWS, kind_of, rows_max);
        std::set<std::pair<int32_t, int32_t>> found;
        int32_t place = 0, expert_before = 0;
        for (int32_t b = 0; b < routing.block_count(); b++) {
            const Routing::Block& block = routing.block(b);
            EXPECT(block.begin == place && block.end > block.begin);
            EXPECT(block.end - block.begin <= rows_max(block.kind));
            EXPECT(block.expert >= expert_before); // the order of a row's sum
            expert_before = block.expert;
            for (; place < block.end; place++) {
                int32_t row = routing.row(place);
                EXPECT_EQ(kind_of(row), block.kind);
                EXPECT(place == block.begin || row > routing.row(place - 1));
                found.insert({block.expert, row});
                for (int32_t i = 0; i < USED; i++)
                    if (routing.chosen(row, i) == block.expert)
                        EXPECT_EQ(routing.weight(place), routing.chosen_weight(row, i));
            }
        }
        EXPECT_EQ(place, ROWS * USED);
        EXPECT(found == chosen);
    }
}

// Which experts each row of a step takes, and the rows of each expert side by side: places, in the
// order of the expert, the kind of the row and its number. A row's experts and their weights are a
// function of its own logits.
//
// defines: Routing
#pragma once

#include <cstdint>
#include <vector>

#include "../check.h"
#include "../limits.h"
#include "config.h"

namespace sublimate::cpu {

class Routing {
public:
    // Rows of different kinds never share a block.
    static constexpr int32_t KINDS = 4;

    // Places [begin, end), all of one expert and one kind.
    struct Block {
        int32_t expert, kind, begin, end;
    };

    // Room for steps of rows_max rows; afterwards nothing is allocated.
    void reserve(const ModelConfig& config, int32_t rows_max);

    // Of a row, (experts): what its experts are chosen by.
    float* logits(int32_t row) { return logits_.data() + int64_t{row} * experts_; }
    int64_t logits_stride() const { return experts_; }

    // The experts of the highest logits, of equal ones the first, with their shares of the softmax
    // over all experts or, renormalised, over those. A NaN among the logits makes every weight one.
    // Different rows may be chosen for by different threads.
    void choose(int32_t row);

    // Once it is done for rows [0, rows): places and blocks. kind_of(row) < KINDS;
    // rows_max(kind): of a block.
    template <class KindOf, class RowsMax>
    void sort(int32_t rows, KindOf&& kind_of, RowsMax&& rows_max) {
        begin_sort();
        for (int32_t row = 0; row < rows; row++) count(row, kind_of(row));
        end_count();
        for (int32_t row = 0; row < rows; row++) place(row, kind_of(row));
        for (int32_t kind = 0; kind < KINDS; kind++) rows_max_[kind] = rows_max(kind);
        cut();
    }

    int32_t block_count() const { return block_count_; }
    const Block& block(int32_t index) const { return blocks_[static_cast<size_t>(index)]; }
    int32_t row(int32_t place) const { return places_[static_cast<size_t>(place)].row; }
    float weight(int32_t place) const { return places_[static_cast<size_t>(place)].weight; }

    // Of a row's i-th choice.
    int32_t chosen(int32_t row, int32_t i) const { return choices(row)[i].expert; }
    float chosen_weight(int32_t row, int32_t i) const { return choices(row)[i].weight; }

private:
    struct Choice {
        int32_t expert;
        float weight;
    };
    struct Place {
        int32_t row;
        float weight;
    };

    const Choice* choices(int32_t row) const { return choices_.data() + int64_t{row} * used_; }
    void begin_sort();
    void count(int32_t row, int32_t kind);
    void end_count();
    void place(int32_t row, int32_t kind);
    void cut();

    int32_t experts_ = 0;
    int32_t used_ = 0;
    bool renormalised_ = false;
    std::vector<float> logits_;   // (row, experts)
    std::vector<Choice> choices_; // (row, used)
    std::vector<int32_t> ends_;   // (expert, kind) one past its last place
    std::vector<Place> places_;   // (rows * used)
    std::vector<Block> blocks_;   // (rows * used)
    int32_t block_count_ = 0;
    int32_t rows_max_[KINDS] = {};
};

} // namespace sublimate::cpu

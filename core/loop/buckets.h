// Which of the precompiled plans a step runs: the smallest bucket of rows that holds it, and the
// class of its longest context. The tables are plain constants; the models build one plan per pair
// at load.
//
// defines: ROW_BUCKETS, CONTEXT_BUCKETS, Bucket, choose_bucket
#pragma once

#include <cstdint>

#include "../check.h"
#include "../limits.h"

namespace sublimate {

constexpr int32_t ROW_BUCKET_COUNT = 11;
constexpr int32_t ROW_BUCKETS[ROW_BUCKET_COUNT] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024};
constexpr int32_t CONTEXT_BUCKET_COUNT = 5;
constexpr int32_t CONTEXT_BUCKETS[CONTEXT_BUCKET_COUNT] = {512, 2048, 8192, 32768, 131072};
static_assert(ROW_BUCKETS[ROW_BUCKET_COUNT - 1] == limits::STEP_ROWS_MAX);
static_assert(CONTEXT_BUCKETS[CONTEXT_BUCKET_COUNT - 1] == limits::CONTEXT_TOKENS_MAX);

struct Bucket {
    int32_t id; // row index * CONTEXT_BUCKET_COUNT + context index
    int32_t rows;
    int32_t context_tokens;
};

// rows in [1, STEP_ROWS_MAX]; context_tokens: longest context among the step's sequences.
SUBLIMATE_HD inline Bucket choose_bucket(int32_t rows, int32_t context_tokens) {
    CHECK(rows >= 1 && rows <= limits::STEP_ROWS_MAX);
    CHECK(context_tokens >= 1 && context_tokens <= limits::CONTEXT_TOKENS_MAX);
    constexpr auto row_table = constant_table(ROW_BUCKETS);
    constexpr auto context_table = constant_table(CONTEXT_BUCKETS);
    int32_t row = 0;
    while (row_table.at[row] < rows) row++;
    int32_t context = 0;
    while (context_table.at[context] < context_tokens) context++;
    return {row * CONTEXT_BUCKET_COUNT + context, row_table.at[row], context_table.at[context]};
}

} // namespace sublimate

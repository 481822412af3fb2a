// How much of the machine the last second used: for each step the time that the machine would need
// at least (to read the weights once, or to do the arithmetic, whichever is longer), over the time
// that passed.
//
// defines: RooflineRates, Roofline; measure_rates is in rates.h
#pragma once

#include <cstddef>
#include <cstdint>

namespace sublimate {

struct RooflineRates {
    double bytes_per_s = 0;   // reading weights, all compute threads
    double row_ops_per_s = 0; // multiply-adds of the layers, all compute threads, operands in cache
};

class Roofline {
public:
    Roofline() = default;
    // weight_bytes: read by a step; row_ops: multiply-adds of one row.
    Roofline(const RooflineRates& rates, int64_t weight_bytes, int64_t row_ops);

    void count_step(int32_t rows);
    // Parts per million over the last whole window of a second; 0 after an idle one.
    uint64_t utilization_ppm(int64_t now_ns);

private:
    double step_read_ns_ = 0; // 0: nothing is known of the machine, always 0
    double row_compute_ns_ = 0;
    double ideal_ns_ = 0;
    int64_t window_begin_ns_ = 0;
    uint64_t last_ppm_ = 0;
};

} // namespace sublimate

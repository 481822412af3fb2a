// See roofline.h.
#include "roofline.h"

#include <algorithm>

namespace sublimate {

namespace {
constexpr int64_t WINDOW_NS = 1'000'000'000;
constexpr double NS_PER_S = 1e9;
constexpr double PPM = 1e6;
} // namespace

Roofline::Roofline(const RooflineRates& rates, int64_t weight_bytes, int64_t row_ops) {
    if (rates.bytes_per_s <= 0 || rates.row_ops_per_s <= 0) return;
    step_read_ns_ = static_cast<double>(weight_bytes) / rates.bytes_per_s * NS_PER_S;
    row_compute_ns_ = static_cast<double>(row_ops) / rates.row_ops_per_s * NS_PER_S;
}

void Roofline::count_step(int32_t rows) {
    ideal_ns_ += std::max(step_read_ns_, row_compute_ns_ * rows);
}

uint64_t Roofline::utilization_ppm(int64_t now_ns) {
    int64_t passed = now_ns - window_begin_ns_;
    if (passed < WINDOW_NS) return last_ppm_;
    // After a sleep the window is long and mostly idle; what counts is the second that just ended.
    last_ppm_ = passed < 2 * WINDOW_NS
                    ? static_cast<uint64_t>(ideal_ns_ / static_cast<double>(passed) * PPM)
                    : 0;
    window_begin_ns_ = now_ns;
    ideal_ns_ = 0;
    return last_ppm_;
}

} // namespace sublimate

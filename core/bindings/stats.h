// StatsPage as a Python dict, for Region.stats and LoopEngine.stats.
//
// defines: stats_dict
#pragma once

#include <nanobind/nanobind.h>

#include "../ring/ring.h"

namespace sublimate {

nanobind::dict stats_dict(const StatsPage& page); // in edge.cpp; page may be shared memory

} // namespace sublimate

// What this machine gives a loaded model at most: measured once at load, in some tens of
// milliseconds.
//
// defines: measure_rates
#pragma once

#include "../model/model.h"
#include "roofline.h"

namespace sublimate {

// Reads the packed weights with all compute threads, and multiplies one hot panel. Best of several.
RooflineRates measure_rates(LoadedModel& model);

} // namespace sublimate

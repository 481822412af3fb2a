// What this machine offers, as far as it concerns the engine.
//
// defines: usable_cores, memory_bytes, CpuReport, probe_cpu
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ops.h"

namespace sublimate::cpu {

// Cores that this process may run on: its affinity mask and its control group's CPU quota. At
// least 1.
int32_t usable_cores();

// Memory that this process may use: physical memory or its control group's limit, if lower.
int64_t memory_bytes();

struct CpuReport {
    std::string model;                 // brand string, "" if unknown
    int32_t cores = 0;                 // usable_cores
    std::vector<std::string> features; // of those that matter here: CPUID bits
    bool amx_permitted = false;        // the kernel grants tile state
    std::vector<Isa> runs;             // instruction sets that run here, slowest first
    Isa best = Isa::ref;
    int64_t l1_data_bytes = 0; // per core; 0 unknown
    int64_t l2_bytes = 0;      // per core
    int64_t l3_bytes = 0;      // shared
    int64_t memory_bytes = 0;
    std::string transparent_huge_pages; // always, madvise, never, or unknown
    int64_t huge_page_bytes = 0;
};

CpuReport probe_cpu();

} // namespace sublimate::cpu

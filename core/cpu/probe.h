// What this machine offers, as far as it concerns the engine.
//
// defines: ReadFile, read_file, group_folders, GroupLimits, group_limits, usable_cores,
// memory_bytes, CpuReport, probe_cpu
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "ops.h"

namespace sublimate::cpu {

// The text of a file, empty if it cannot be read: of this machine, or of a recording of another.
using ReadFile = std::function<std::string(const std::string& path)>;
std::string read_file(const std::string& path);

// The folder of this process's control group and those of the groups above it, as far as they are
// mounted, nearest first. `controller` is one of version 1's; empty: version 2.
std::vector<std::string> group_folders(const ReadFile& read, const std::string& controller);

// The least that any of these groups allows, whichever version they are of.
struct GroupLimits {
    int64_t memory_bytes = 0;      // 0: no limit, and then memory_free_bytes has no meaning
    int64_t memory_free_bytes = 0; // the least that is left below any limit
    double cores = 0;              // of CPU time; 0: no limit
};
GroupLimits group_limits(const ReadFile& read);

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

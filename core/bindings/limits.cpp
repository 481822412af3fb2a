// Python's view of what the machine gives at most: measure_limits. See _core.pyi for the contract.
//
// defines: bind_limits
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <vector>

#include "../cpu/probe.h"
#include "../engine/limits_probe.h"
#include "bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace sublimate {

namespace {

nb::dict machine_limits(const std::vector<int64_t>& working_sets, int32_t threads,
                        const std::string& isa) {
    cpu::Isa widest = cpu::Isa::amx;
    if (!isa.empty() && !cpu::isa_from_name(isa.c_str(), &widest))
        throw CoreError("isa: no such instruction set");
    if (threads < 0 || threads > limits::COMPUTE_THREADS_MAX)
        throw CoreError("threads: not in [0, COMPUTE_THREADS_MAX]");
    for (int64_t bytes : working_sets) {
        if (bytes < 1 || bytes > cpu::memory_bytes())
            throw CoreError("working_sets: one is empty or larger than the memory");
    }
    MachineLimits found;
    {
        nb::gil_scoped_release released;
        found = measure_limits(widest, threads > 0 ? threads : cpu::usable_cores(), working_sets);
    }
    nb::list reads;
    for (const ReadRate& rate : found.reads) {
        nb::dict row;
        row["working_set_bytes"] = rate.working_set_bytes;
        row["threads"] = rate.threads;
        row["bytes_per_s"] = rate.bytes_per_s;
        row["huge_pages_share"] = rate.huge_pages_share;
        reads.append(row);
    }
    nb::list computes;
    for (const ComputeRate& rate : found.computes) {
        nb::dict row;
        row["name"] = rate.name;
        row["threads"] = rate.threads;
        row["ops_per_s"] = rate.ops_per_s;
        computes.append(row);
    }
    nb::dict result;
    result["isa"] = found.isa;
    result["reads"] = reads;
    result["computes"] = computes;
    return result;
}

} // namespace

void bind_limits(nb::module_& m) {
    m.def("measure_limits", &machine_limits, "working_sets"_a, nb::kw_only(), "threads"_a = 0,
          "isa"_a = "");
}

} // namespace sublimate

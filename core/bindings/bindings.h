// What the binding files share: the one exception that crosses into Python and the functions that
// fill the module.
//
// defines: CoreError, with_threads, choice_info, bind_edge, bind_model, bind_engine, bind_limits,
// bind_blocks, bind_byte_pairs, bind_json_bounds, bind_policy, bind_prefixes, bind_trace,
// bind_kernel
#pragma once

#include <nanobind/nanobind.h>

#include <stdexcept>
#include <string>
#include <system_error>

namespace sublimate {

// The world's fault (a bad file, an unsupported model, too little memory, a broken peer). Thrown
// only in binding code, on the calling thread; becomes sublimate._core.CoreError. The text is for a
// person.
class CoreError : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

// Runs what starts threads: that none can be had is the machine's fault.
template <class Body>
void with_threads(Body&& body) {
    try {
        body();
    } catch (const std::system_error& error) {
        throw CoreError(std::string("a thread cannot be started: ") + error.what());
    }
}

namespace cpu {
struct Choice;
}
// How the steps of a phase run, and what was measured to choose so: isa, threads, measured (of
// each: isa, threads, least_ms).
nanobind::dict choice_info(const cpu::Choice& choice);

void bind_edge(nanobind::module_& m);        // Region, Vocabulary, StreamEvent, EdgeClient
void bind_blocks(nanobind::module_& m);      // BlockFormat, tool_id
void bind_byte_pairs(nanobind::module_& m);  // BytePairs
void bind_json_bounds(nanobind::module_& m); // JsonCounts, json_counts, ill_formed_utf8, ...
void bind_model(nanobind::module_& m);       // Gguf, Model, probe, bench_op
void bind_engine(nanobind::module_& m);      // LoopEngine, heap_allocations
void bind_limits(nanobind::module_& m);      // measure_limits
void bind_policy(nanobind::module_& m);      // POLICY, POLICY_DIGEST, decide
void bind_prefixes(nanobind::module_& m);    // PrefixHasher, PrefixTable
void bind_trace(nanobind::module_& m);       // TraceReader, TRACE_EVENTS
void bind_kernel(nanobind::module_& m);      // KernelMap, load_steering, load_connections, attach_*

} // namespace sublimate

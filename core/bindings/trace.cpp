// Python's view of the trace ring: TraceReader, and what its records are called. See _core.pyi for
// the contract.
//
// defines: PythonReader, read_records, bind_trace
#include <nanobind/nanobind.h>

#include <vector>

#include "../ring/region.h"
#include "../ring/trace_ring.h"
#include "bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace sublimate {

namespace {

// A cursor in the ring of a Region, whose Python object it keeps.
struct PythonReader {
    explicit PythonReader(nb::object region_object)
        : region(std::move(region_object)), view(nb::cast<Region&>(region).view()),
          next(load_acquire(&view.control->trace_head)) {}

    nb::object region;
    RegionView view;
    uint64_t next;
    std::vector<TraceRecord> records; // kept so that a read does not allocate it
};

void follow(PythonReader& self, int64_t until_ns) {
    if (until_ns < 0) throw nb::value_error("until_ns is a time");
    trace_follow(self.view, until_ns);
}

nb::tuple read_records(PythonReader& self, int32_t records_max) {
    if (records_max < 0) throw nb::value_error("records_max is a count");
    if (records_max > limits::TRACE_RECORDS) records_max = limits::TRACE_RECORDS;
    self.records.resize(static_cast<size_t>(records_max));
    uint64_t missed = 0;
    int32_t count = trace_read(self.view, self.next, missed, self.records.data(), records_max);
    CHECK(count >= 0 && count <= records_max);
    return nb::make_tuple(missed, nb::bytes(reinterpret_cast<const char*>(self.records.data()),
                                            static_cast<size_t>(count) * sizeof(TraceRecord)));
}

} // namespace

void bind_trace(nb::module_& m) {
    nb::list events;
    for (const TraceEvent& event : TRACE_EVENTS)
        events.append(nb::make_tuple(event.name, event.arguments));
    m.attr("TRACE_EVENTS") = events;
    nb::class_<PythonReader>(m, "TraceReader")
        .def(
            "__init__",
            [](PythonReader* place, nb::handle_t<Region> region) {
                new (place) PythonReader(nb::borrow(region));
            },
            "region"_a)
        .def("follow", &follow, "until_ns"_a)
        .def("read", &read_records, "records_max"_a);
}

} // namespace sublimate

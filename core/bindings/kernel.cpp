// Python's view of the kernel's maps and programs (core/bpf). What the kernel refuses is an OSError
// with its number. See _core.pyi for the contract.
//
// defines: bind_kernel
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../bpf/kernel_map.h"
#include "../bpf/load.h"
#include "../bpf/maps.h"
#include "../bpf/system_call.h"
#include "../check.h"
#include "../limits.h"
#include "bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace sublimate {

namespace {

constexpr int64_t ENTRIES_MAX = 1 << 24; // a map of so many takes gigabytes of the kernel's memory

// The result of a call, or OSError.
int64_t told(int64_t result) {
    if (result >= 0) return result;
    errno = static_cast<int>(-result);
    PyErr_SetFromErrno(PyExc_OSError);
    throw nb::python_error();
}

uint32_t checked_entries(int64_t entries) {
    if (entries < 1 || entries > ENTRIES_MAX) throw nb::value_error("entries: 1 to 16777216");
    return static_cast<uint32_t>(entries);
}

std::span<const uint8_t> view(const nb::bytes& bytes, int32_t expected, const char* wrong) {
    if (static_cast<int64_t>(bytes.size()) != expected) throw nb::value_error(wrong);
    return {reinterpret_cast<const uint8_t*>(bytes.c_str()), bytes.size()};
}

std::span<const uint8_t> key_of(const KernelMap& map, const nb::bytes& key) {
    return view(key, map.key_bytes(), "a key has the map's key_bytes");
}

nb::bytes as_bytes(const std::vector<uint8_t>& bytes) {
    return nb::bytes(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

nb::object lookup(const KernelMap& map, const nb::bytes& key) {
    std::vector<uint8_t> value(static_cast<size_t>(map.value_bytes()));
    int result = map.lookup(key_of(map, key), value);
    if (result == -ENOENT) return nb::none();
    told(result);
    return as_bytes(value);
}

void update(const KernelMap& map, const nb::bytes& key, const nb::bytes& value) {
    told(map.update(key_of(map, key),
                    view(value, map.value_bytes(), "a value has the map's value_bytes")));
}

bool remove_element(const KernelMap& map, const nb::bytes& key) {
    int result = map.remove(key_of(map, key));
    return result != -ENOENT && told(result) == 0;
}

nb::tuple read_elements(const KernelMap& map) {
    std::vector<uint8_t> keys;
    std::vector<uint8_t> values;
    int64_t count = 0;
    {
        nb::gil_scoped_release others_run;
        count = map.read(keys, values);
    }
    told(count);
    CHECK(std::ssize(keys) == count * map.key_bytes());
    return nb::make_tuple(as_bytes(keys), as_bytes(values));
}

int64_t clear(const KernelMap& map) {
    int64_t count = 0;
    {
        nb::gil_scoped_release others_run;
        count = map.clear();
    }
    return told(count);
}

nb::dict steering_fds(int64_t entries) {
    SteeringFds fds = {};
    told(load_steering(checked_entries(entries), &fds));
    CHECK(fds.program > 0 && fds.steered > 0);
    CHECK(fds.sockets > 0 && fds.groups > 0 && fds.addresses > 0 && fds.connection_ids > 0);
    nb::dict named;
#define FD(name) named[#name] = fds.name
    FD(program);
    FD(sockets);
    FD(groups);
    FD(addresses);
    FD(connection_ids);
    FD(steered);
#undef FD
    static_assert(sizeof fds == 6 * sizeof(int), "a descriptor is missing here");
    return named;
}

nb::dict connection_fds(int64_t entries, bool packets) {
    ConnectionFds fds = {};
    told(load_connections(checked_entries(entries), packets, &fds));
    CHECK(fds.connections > 0 && fds.touches > 0);
    CHECK(fds.digests > 0 && fds.cache > 0);
    CHECK((fds.sent < 0) == packets && (fds.packet_out < 0) != packets);
    nb::dict named;
#define FD(name)                                                                                   \
    if (fds.name >= 0) named[#name] = fds.name
    FD(connections);
    FD(digests);
    FD(touches);
    FD(cache);
    FD(sent);
    FD(received);
    FD(packet_in);
    FD(packet_out);
#undef FD
    static_assert(sizeof fds == 8 * sizeof(int), "a descriptor is missing here");
    return named;
}

nb::tuple program_statistics(int program) {
    uint64_t run_ns = 0;
    uint64_t runs = 0;
    told(bpf_program_statistics(program, &run_ns, &runs));
    return nb::make_tuple(run_ns, runs);
}

// Those on this machine whose names begin so and that are of one of the groups; without any, of
// some group. Only these stay open: a machine may have more than a process has descriptors.
nb::list kernel_objects(bool programs, const std::string& prefix,
                        const std::vector<uint32_t>& groups) {
    std::vector<std::pair<int, bpf_object_info>> found;
    auto checked = [&](int64_t result) {
        if (result < 0)
            for (const auto& each : found) close(each.first);
        told(result);
    };
    uint32_t id = 0;
    for (;;) {
        CHECK(found.size() <= id); // ids grow
        int next = bpf_next_object(programs, &id);
        if (next == -ENOENT) break;
        checked(next);
        int fd = bpf_open_object(programs, id);
        if (fd == -ENOENT) continue; // gone meanwhile
        checked(fd);
        struct bpf_object_info info = {};
        int error = bpf_describe_object(programs, fd, &info);
        bool wanted = groups.empty()
                          ? info.btf != 0
                          : std::find(groups.begin(), groups.end(), info.btf) != groups.end();
        if (error < 0 || !wanted || !std::string_view(info.name).starts_with(prefix))
            close(fd);
        else
            found.emplace_back(fd, info);
        checked(error);
    }
    nb::list objects;
    for (const auto& [fd, info] : found)
        objects.append(nb::make_tuple(fd, info.id, info.name, info.btf));
    return objects;
}

// Python packs these (kernel/keys.py, connections.py, steering.py).
static_assert(sizeof(ConnectionKey) == 40 && offsetof(ConnectionKey, local) == 4);
static_assert(offsetof(ConnectionKey, remote) == 20 && offsetof(ConnectionKey, local_port) == 36);
static_assert(sizeof(SteeredAddress) == 8 && offsetof(SteeredAddress, connections) == 4);
static_assert(sizeof(SteeringPlace) == 8 && offsetof(SteeringPlace, workers) == 4);
static_assert(sizeof(SteeringGroup) == 12 && offsetof(SteeringGroup, port) == 8);
static_assert(offsetof(ConnectionDigests, digests) == 8);
static_assert(sizeof(ConnectionDigests) == 8 + CONNECTION_BLOCKS * BLOCK_DIGEST_BYTES);
static_assert(QUIC_CONNECTION_ID_BYTES <= ADDRESS_BYTES, "it stands where an address would");
// What is read by mmap is one page of any machine.
static_assert(int{CACHE_ROWS} * int{CACHE_ROW_WORDS} * sizeof(uint64_t) <= 4096);
static_assert(CONNECTION_COUNTERS * sizeof(uint64_t) <= 4096);
static_assert(STEERING_COUNTERS * sizeof(uint64_t) <= 4096);
static_assert(CACHE_FOUND_TOKENS < CACHE_ROW_WORDS);
static_assert(CACHE_ROWS >= limits::EDGES_MAX, "each edge has a row of counters");
static_assert(STEERING_WORKERS_MAX >= limits::EDGES_MAX, "each edge has a socket of each port");

nb::dict kernel_limits() {
    nb::dict limits;
#define LIMIT(name) limits[#name] = static_cast<int>(name)
    LIMIT(STEERING_WORKERS_MAX);
    LIMIT(STEERING_GROUPS_MAX);
    LIMIT(STEERING_ENTRIES);
    LIMIT(STEERING_COUNTERS);
    LIMIT(STEERED_CONNECTIONS);
    LIMIT(CONNECTION_ENTRIES);
    LIMIT(CONNECTION_BLOCKS);
    LIMIT(CONNECTION_COUNTERS);
    LIMIT(BLOCK_DIGEST_BYTES);
    LIMIT(QUIC_CONNECTION_ID_BYTES);
    LIMIT(CACHE_ROWS);
    LIMIT(CACHE_ROW_WORDS);
#undef LIMIT
    return limits;
}

} // namespace

void bind_kernel(nb::module_& m) {
    m.attr("KERNEL_LIMITS") = kernel_limits();
    nb::class_<KernelMap>(m, "KernelMap")
        .def(
            "__init__",
            [](KernelMap* place, int fd, int32_t key_bytes, int32_t value_bytes) {
                if (fd < 0 || key_bytes < 1 || value_bytes < 1)
                    throw nb::value_error("a descriptor and the bytes of a key and a value");
                new (place) KernelMap(fd, key_bytes, value_bytes);
            },
            "fd"_a, "key_bytes"_a, "value_bytes"_a)
        .def("lookup", &lookup, "key"_a)
        .def("update", &update, "key"_a, "value"_a)
        .def("remove", &remove_element, "key"_a)
        .def("read", &read_elements)
        .def("clear", &clear);
    m.def("load_steering", &steering_fds, "entries"_a);
    m.def("load_connections", &connection_fds, "entries"_a, "packets"_a);
    m.def(
        "attach_tracepoint",
        [](int program) { return told(bpf_open_tracepoint(nullptr, program)); }, "program"_a);
    m.def(
        "attach_cgroup",
        [](int program, int cgroup, bool egress) {
            return told(bpf_link_cgroup(program, cgroup, egress ? 1 : 0));
        },
        "program"_a, "cgroup"_a, "egress"_a);
    m.def("program_statistics", &program_statistics, "program"_a);
    m.def("kernel_objects", &kernel_objects, "programs"_a, "prefix"_a = "",
          "groups"_a = std::vector<uint32_t>());
    m.def("enable_statistics", [] { return told(bpf_enable_statistics()); });
}

} // namespace sublimate

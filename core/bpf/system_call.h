// bpf(2), the commands that are used here. Its structs are written out: their layout never changes,
// and the headers of the machine that builds may be older than what the running kernel can do.
// Plain C, since the generated skeletons are.
//
// defines: bpf_call, bpf_create_array, bpf_load_loader, bpf_run_loader, bpf_open_tracepoint,
//          bpf_link_cgroup, bpf_lookup_element, bpf_update_element, bpf_delete_element,
//          bpf_lookup_batch, bpf_program_statistics, bpf_enable_statistics, bpf_next_object,
//          bpf_open_object, bpf_describe_object
#ifndef SUBLIMATE_BPF_SYSTEM_CALL_H
#define SUBLIMATE_BPF_SYSTEM_CALL_H

#include <errno.h>
#include <linux/types.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    SUBLIMATE_MAP_CREATE = 0,
    SUBLIMATE_MAP_LOOKUP = 1,
    SUBLIMATE_MAP_UPDATE = 2,
    SUBLIMATE_MAP_DELETE = 3,
    SUBLIMATE_PROGRAM_LOAD = 5,
    SUBLIMATE_PROGRAM_RUN = 10,
    SUBLIMATE_PROGRAM_NEXT = 11,
    SUBLIMATE_MAP_NEXT = 12,
    SUBLIMATE_PROGRAM_OPEN = 13,
    SUBLIMATE_MAP_OPEN = 14,
    SUBLIMATE_OBJECT_INFO = 15,
    SUBLIMATE_TRACEPOINT_OPEN = 17,
    SUBLIMATE_MAP_LOOKUP_BATCH = 24,
    SUBLIMATE_LINK_CREATE = 28,
    SUBLIMATE_ENABLE_STATISTICS = 32,

    SUBLIMATE_MAP_ARRAY = 2,
    SUBLIMATE_PROGRAM_SYSCALL = 31,
    SUBLIMATE_PROGRAM_SLEEPABLE = 1 << 4,
    SUBLIMATE_NAME_BYTES = 16,
};

// The result, or a negative errno.
static inline int bpf_call(int command, void* attributes, size_t bytes) {
    long result = syscall(SYS_bpf, command, attributes, bytes);
    return result < 0 ? -errno : (int)result;
}

static inline uint64_t bpf_pointer(const void* pointer) {
    return (uint64_t)(uintptr_t)pointer;
}

// An array map of one element.
static inline int bpf_create_array(const char* name, uint32_t value_bytes) {
    struct {
        uint32_t type, key_bytes, value_bytes, entries, flags, inner_map, node;
        char name[SUBLIMATE_NAME_BYTES];
    } call;
    memset(&call, 0, sizeof call);
    call.type = SUBLIMATE_MAP_ARRAY;
    call.key_bytes = 4;
    call.value_bytes = value_bytes;
    call.entries = 1;
    strncpy(call.name, name, sizeof call.name - 1);
    return bpf_call(SUBLIMATE_MAP_CREATE, &call, sizeof call);
}

// Instructions that name the map as the first of their descriptors.
static inline int bpf_load_loader(const void* instructions, uint32_t bytes, int map) {
    struct {
        uint32_t type, instruction_count;
        uint64_t instructions, license;
        uint32_t log_level, log_bytes;
        uint64_t log;
        uint32_t kernel_version, flags;
        char name[SUBLIMATE_NAME_BYTES];
        uint32_t interface, attach_type, btf, function_info_bytes;
        uint64_t function_info;
        uint32_t function_infos, line_info_bytes;
        uint64_t line_info;
        uint32_t line_infos, attach_btf, attach_program, core_relocations;
        uint64_t descriptors;
    } call;
    memset(&call, 0, sizeof call);
    call.type = SUBLIMATE_PROGRAM_SYSCALL;
    call.instruction_count = bytes / 8;
    call.instructions = bpf_pointer(instructions);
    call.license = bpf_pointer("Dual BSD/GPL"); // of what bpftool generates
    call.flags = SUBLIMATE_PROGRAM_SLEEPABLE;
    strncpy(call.name, "__loader.prog", sizeof call.name - 1);
    call.descriptors = bpf_pointer(&map);
    return bpf_call(SUBLIMATE_PROGRAM_LOAD, &call, sizeof call);
}

// 0 or a negative errno: the call's, or the loader's own.
static inline int bpf_run_loader(int program, void* context, uint32_t context_bytes) {
    struct {
        uint32_t program, result, in_bytes, out_bytes;
        uint64_t in, out;
        uint32_t repeat, duration_ns, context_in_bytes, context_out_bytes;
        uint64_t context_in, context_out;
        uint32_t flags, cpu, batch_count, padding;
    } call;
    memset(&call, 0, sizeof call);
    call.program = (uint32_t)program;
    call.context_in_bytes = context_bytes;
    call.context_in = bpf_pointer(context);
    int error = bpf_call(SUBLIMATE_PROGRAM_RUN, &call, sizeof call);
    if (error < 0) return error;
    return (int32_t)call.result < 0 ? (int32_t)call.result : 0;
}

// A link; it lasts as long as somebody holds it. name: NULL for a program that names its own.
static inline int bpf_open_tracepoint(const char* name, int program) {
    struct {
        uint64_t name;
        uint32_t program, padding;
    } call = {bpf_pointer(name), (uint32_t)program, 0};
    return bpf_call(SUBLIMATE_TRACEPOINT_OPEN, &call, sizeof call);
}

// A link likewise. attach_type: 0 for what comes in, 1 for what goes out.
static inline int bpf_link_cgroup(int program, int cgroup, uint32_t attach_type) {
    struct {
        uint32_t program, target, attach_type, flags;
    } call = {(uint32_t)program, (uint32_t)cgroup, attach_type, 0};
    return bpf_call(SUBLIMATE_LINK_CREATE, &call, sizeof call);
}

struct bpf_element {
    uint32_t map, padding;
    uint64_t key, value, flags;
};

static inline int bpf_lookup_element(int map, const void* key, void* value) {
    struct bpf_element call = {(uint32_t)map, 0, bpf_pointer(key), bpf_pointer(value), 0};
    return bpf_call(SUBLIMATE_MAP_LOOKUP, &call, sizeof call);
}

static inline int bpf_update_element(int map, const void* key, const void* value, uint64_t flags) {
    struct bpf_element call = {(uint32_t)map, 0, bpf_pointer(key), bpf_pointer(value), flags};
    return bpf_call(SUBLIMATE_MAP_UPDATE, &call, sizeof call);
}

static inline int bpf_delete_element(int map, const void* key) {
    struct bpf_element call = {(uint32_t)map, 0, bpf_pointer(key), 0, 0};
    return bpf_call(SUBLIMATE_MAP_DELETE, &call, sizeof call);
}

// Up to *count elements behind *at (from the first where first is set); *count says how many came.
// -ENOENT with the last ones.
static inline int bpf_lookup_batch(int map, int first, void* at, void* keys, void* values,
                                   uint32_t* count) {
    struct {
        uint64_t in, out, keys, values;
        uint32_t count, map;
        uint64_t element_flags, flags;
    } call = {first ? 0 : bpf_pointer(at),
              bpf_pointer(at),
              bpf_pointer(keys),
              bpf_pointer(values),
              *count,
              (uint32_t)map,
              0,
              0};
    int result = bpf_call(SUBLIMATE_MAP_LOOKUP_BATCH, &call, sizeof call);
    *count = call.count;
    return result;
}

enum { SUBLIMATE_INFO_WORDS = 32 }; // 8 bytes each: what is read of bpf_prog_info and bpf_map_info

static inline int bpf_object_words(int fd, uint64_t* words) {
    struct {
        uint32_t fd, bytes;
        uint64_t info;
    } call = {(uint32_t)fd, SUBLIMATE_INFO_WORDS * sizeof *words, bpf_pointer(words)};
    memset(words, 0, call.bytes);
    return bpf_call(SUBLIMATE_OBJECT_INFO, &call, sizeof call);
}

// Time spent and runs since the program was loaded; both 0 while nobody has the kernel count them.
static inline int bpf_program_statistics(int program, uint64_t* run_ns, uint64_t* runs) {
    enum { RUN_NS = 24, RUNS = 25 };
    uint64_t words[SUBLIMATE_INFO_WORDS];
    int result = bpf_object_words(program, words);
    *run_ns = words[RUN_NS];
    *runs = words[RUNS];
    return result;
}

// A descriptor: while it is open the kernel counts what programs cost. As kernel.bpf_stats_enabled.
static inline int bpf_enable_statistics(void) {
    uint32_t what = 0; // how long programs run
    return bpf_call(SUBLIMATE_ENABLE_STATISTICS, &what, sizeof what);
}

// The machine's programs or maps by their ids, in order: the one behind *id, -ENOENT at the end.
static inline int bpf_next_object(int programs, uint32_t* id) {
    struct {
        uint32_t start, next, flags;
    } call = {*id, 0, 0};
    int result =
        bpf_call(programs ? SUBLIMATE_PROGRAM_NEXT : SUBLIMATE_MAP_NEXT, &call, sizeof call);
    *id = call.next;
    return result;
}

// A descriptor of it.
static inline int bpf_open_object(int programs, uint32_t id) {
    struct {
        uint32_t id, next, flags;
    } call = {id, 0, 0};
    return bpf_call(programs ? SUBLIMATE_PROGRAM_OPEN : SUBLIMATE_MAP_OPEN, &call, sizeof call);
}

struct bpf_object_info {
    uint32_t id, btf; // btf: the same for what one skeleton has loaded
    char name[SUBLIMATE_NAME_BYTES];
};

static inline int bpf_describe_object(int programs, int fd, struct bpf_object_info* info) {
    enum { PROGRAM_NAME = 64, PROGRAM_BTF = 128, MAP_NAME = 24, MAP_BTF = 64 }; // bytes
    uint64_t words[SUBLIMATE_INFO_WORDS];
    const char* bytes = (const char*)words;
    int result = bpf_object_words(fd, words);
    memcpy(&info->id, bytes + sizeof(uint32_t), sizeof info->id);
    memcpy(&info->btf, bytes + (programs ? PROGRAM_BTF : MAP_BTF), sizeof info->btf);
    memcpy(info->name, bytes + (programs ? PROGRAM_NAME : MAP_NAME), sizeof info->name);
    info->name[sizeof info->name - 1] = 0;
    return result;
}

#endif

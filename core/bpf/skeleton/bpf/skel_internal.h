// What the generated skeletons (../../generated) include by this name and call: the loader program
// and its data go to the kernel, which runs it; it makes the maps and loads the programs. Written
// for user space and for what these skeletons use; no library is needed for it, nor any kernel
// header newer than the structs below, which are the interface of bpf(2).
//
// defines: bpf_map_desc, bpf_prog_desc, bpf_loader_ctx, bpf_load_and_run_opts, skel_alloc,
//          skel_free, skel_closenz, skel_raw_tracepoint_open, bpf_load_and_run
#ifndef SUBLIMATE_BPF_SKELETON_H
#define SUBLIMATE_BPF_SKELETON_H

#include <errno.h>
#include <linux/types.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../system_call.h"

// ---- what the loader program reads and writes: the layout is that of bpftool 7.1 ----
struct bpf_map_desc {
    int map_fd;
    __u32 max_entries; // 0: as in the source
    __aligned_u64 initial_value;
};

struct bpf_prog_desc {
    int prog_fd;
};

struct bpf_loader_ctx {
    __u32 sz;
    __u32 flags;
    __u32 log_level;
    __u32 log_size;
    __u64 log_buf;
};

struct bpf_load_and_run_opts {
    struct bpf_loader_ctx* ctx;
    const void* data;
    const void* insns;
    __u32 data_sz;
    __u32 insns_sz;
    const char* errstr;
};

static inline void* skel_alloc(size_t bytes) {
    return calloc(1, bytes);
}

static inline void skel_free(void* skeleton) {
    free(skeleton);
}

static inline int skel_closenz(int fd) {
    return fd > 0 ? close(fd) : -EINVAL;
}

static inline int skel_raw_tracepoint_open(const char* name, int program) {
    return bpf_open_tracepoint(name, program);
}

// 0 or a negative errno.
static inline int bpf_load_and_run(struct bpf_load_and_run_opts* opts) {
    int map = bpf_create_array("__loader.map", opts->data_sz);
    if (map < 0) return map;
    int error = bpf_update_element(map, &(int){0}, opts->data, 0);
    int program = error ? error : bpf_load_loader(opts->insns, opts->insns_sz, map);
    if (program >= 0) {
        error = bpf_run_loader(program, opts->ctx, opts->ctx->sz);
        close(program);
    } else {
        error = program;
    }
    close(map);
    return error;
}

#endif

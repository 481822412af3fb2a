// The only file that includes the generated skeletons, which are C.
#include "load.h"

#include "generated/connections.lskel.h"
#include "generated/packets.lskel.h"
#include "generated/steering.lskel.h"

// The kernel gives up the check of a program when a signal comes (EAGAIN), as when a child ends.
enum { ATTEMPTS = 5 };

// The descriptor stays open when its skeleton goes.
static int taken(int* fd) {
    int mine = *fd;
    *fd = -1;
    return mine;
}

static int load_steering_once(uint32_t entries, struct SteeringFds* fds) {
    struct steering* skeleton = steering__open();
    if (!skeleton) return -ENOMEM;
    skeleton->maps.addresses.max_entries = entries;
    skeleton->maps.connection_ids.max_entries = entries;
    int error = steering__load(skeleton);
    if (!error)
        *fds = (struct SteeringFds){
            .program = taken(&skeleton->progs.sublimate_steer.prog_fd),
            .sockets = taken(&skeleton->maps.sockets.map_fd),
            .groups = taken(&skeleton->maps.groups.map_fd),
            .addresses = taken(&skeleton->maps.addresses.map_fd),
            .connection_ids = taken(&skeleton->maps.connection_ids.map_fd),
            .steered = taken(&skeleton->maps.steered.map_fd),
        };
    steering__destroy(skeleton);
    return error;
}

int load_steering(uint32_t entries, struct SteeringFds* fds) {
    int error = -EAGAIN;
    for (int attempt = 0; error == -EAGAIN && attempt < ATTEMPTS; ++attempt)
        error = load_steering_once(entries, fds);
    return error;
}

static int load_tracepoints(uint32_t entries, struct ConnectionFds* fds) {
    struct connections* skeleton = connections__open();
    if (!skeleton) return -ENOMEM;
    skeleton->maps.connections.max_entries = entries;
    skeleton->maps.digests.max_entries = entries;
    int error = connections__load(skeleton);
    if (!error)
        *fds = (struct ConnectionFds){
            .connections = taken(&skeleton->maps.connections.map_fd),
            .digests = taken(&skeleton->maps.digests.map_fd),
            .touches = taken(&skeleton->maps.touches.map_fd),
            .cache = taken(&skeleton->maps.cache.map_fd),
            .sent = taken(&skeleton->progs.sublimate_sent.prog_fd),
            .received = taken(&skeleton->progs.sublimate_got.prog_fd),
            .packet_in = taken(&skeleton->progs.sublimate_in.prog_fd),
            .packet_out = -1,
        };
    connections__destroy(skeleton);
    return error;
}

static int load_packets(uint32_t entries, struct ConnectionFds* fds) {
    struct packets* skeleton = packets__open();
    if (!skeleton) return -ENOMEM;
    skeleton->maps.connections.max_entries = entries;
    skeleton->maps.digests.max_entries = entries;
    int error = packets__load(skeleton);
    if (!error)
        *fds = (struct ConnectionFds){
            .connections = taken(&skeleton->maps.connections.map_fd),
            .digests = taken(&skeleton->maps.digests.map_fd),
            .touches = taken(&skeleton->maps.touches.map_fd),
            .cache = taken(&skeleton->maps.cache.map_fd),
            .sent = -1,
            .received = -1,
            .packet_in = taken(&skeleton->progs.sublimate_in.prog_fd),
            .packet_out = taken(&skeleton->progs.sublimate_out.prog_fd),
        };
    packets__destroy(skeleton);
    return error;
}

int load_connections(uint32_t entries, bool packets, struct ConnectionFds* fds) {
    int error = -EAGAIN;
    for (int attempt = 0; error == -EAGAIN && attempt < ATTEMPTS; ++attempt)
        error = packets ? load_packets(entries, fds) : load_tracepoints(entries, fds);
    return error;
}

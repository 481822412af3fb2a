// Loads the generated skeletons. Plain C, as they are.
//
// defines: SteeringFds, ConnectionFds, load_steering, load_connections
#ifndef SUBLIMATE_BPF_LOAD_H
#define SUBLIMATE_BPF_LOAD_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Descriptors, the caller's to close. What lives in the kernel lives as long as one of them, or an
// attachment, does.
struct SteeringFds {
    int program, sockets, groups, addresses, connection_ids, steered;
};

// Of the programs those that this form of it has; else -1.
struct ConnectionFds {
    int connections, digests, touches, cache;
    int sent, received, packet_in, packet_out;
};

// 0 or a negative errno. `entries`: of each map that remembers; at least 1.
int load_steering(uint32_t entries, struct SteeringFds* fds);

// `packets`: for a kernel without the tracepoints of socket calls.
int load_connections(uint32_t entries, bool packets, struct ConnectionFds* fds);

#ifdef __cplusplus
}
#endif

#endif

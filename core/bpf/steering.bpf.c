// Which worker gets a new TCP connection, or a datagram: the one that the server remembers for the
// QUIC connection id, else for the client's address, else one by the hash of both ends. Where that
// one is gone the next that is there; where none is, the kernel picks, so nobody can be refused.
//
// Attached by SO_ATTACH_REUSEPORT_EBPF to each group of sockets. `make bpf` compiles it into
// generated/steering.lskel.h.
#include <stddef.h>

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "maps.h"

// Where the protocols have it, in bytes.
enum {
    IPV4_SOURCE = 12,
    IPV6_SOURCE = 8,
    UDP_HEADER_BYTES = 8,
    LONG_HEADER = 0x80,
    LONG_CONNECTION_ID = UDP_HEADER_BYTES + 6, // behind flags, version and length
    SHORT_CONNECTION_ID = UDP_HEADER_BYTES + 1,
};

struct {
    __uint(type, BPF_MAP_TYPE_REUSEPORT_SOCKARRAY);
    __uint(max_entries, STEERING_GROUPS_MAX* STEERING_WORKERS_MAX);
    __type(key, __u32);
    __type(value, __u64);
} sockets SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, STEERING_GROUPS_MAX);
    __type(key, struct SteeringGroup);
    __type(value, struct SteeringPlace);
} groups SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_LRU_HASH);
    __uint(max_entries, STEERING_ENTRIES);
    __type(key, __u8[ADDRESS_BYTES]);
    __type(value, struct SteeredAddress);
} addresses SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_LRU_HASH);
    __uint(max_entries, STEERING_ENTRIES);
    __type(key, __u8[QUIC_CONNECTION_ID_BYTES]);
    __type(value, __u32);
} connection_ids SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(map_flags, BPF_F_MMAPABLE);
    __uint(max_entries, STEERING_COUNTERS);
    __type(key, __u32);
    __type(value, __u64);
} steered SEC(".maps");

static __always_inline int pass(__u32 what) {
    __u64* counter = bpf_map_lookup_elem(&steered, &what);
    if (counter) __sync_fetch_and_add(counter, 1);
    return SK_PASS;
}

static __always_inline __u32* by_connection_id(struct sk_reuseport_md* packet) {
    __u8 flags = 0;
    __u8 id[QUIC_CONNECTION_ID_BYTES];
    if (packet->ip_protocol != IPPROTO_UDP) return NULL;
    if (bpf_skb_load_bytes(packet, UDP_HEADER_BYTES, &flags, sizeof flags)) return NULL;
    __u32 at = flags & LONG_HEADER ? LONG_CONNECTION_ID : SHORT_CONNECTION_ID;
    if (bpf_skb_load_bytes(packet, at, id, sizeof id)) return NULL;
    return bpf_map_lookup_elem(&connection_ids, id);
}

static __always_inline __u32* by_address(struct sk_reuseport_md* packet) {
    __u8 address[ADDRESS_BYTES] = {};
    if (packet->eth_protocol == bpf_htons(ETH_P_IP)) {
        address[10] = address[11] = 0xff;
        if (bpf_skb_load_bytes_relative(packet, IPV4_SOURCE, address + 12, 4, BPF_HDR_START_NET))
            return NULL;
    } else if (bpf_skb_load_bytes_relative(packet, IPV6_SOURCE, address, sizeof address,
                                           BPF_HDR_START_NET)) {
        return NULL;
    }
    struct SteeredAddress* known = bpf_map_lookup_elem(&addresses, address);
    if (!known) return NULL;
    // The datagrams of one handshake stay together, so they are not counted.
    if (packet->ip_protocol == IPPROTO_TCP) {
        if (known->connections >= STEERED_CONNECTIONS) return NULL;
        __sync_fetch_and_add(&known->connections, 1);
    }
    return &known->worker;
}

SEC("sk_reuseport")
int sublimate_steer(struct sk_reuseport_md* packet) {
    struct SteeringGroup group = {
        .family = packet->sk->family,
        .protocol = packet->ip_protocol,
        .port = packet->sk->src_port,
    };
    struct SteeringPlace* place = bpf_map_lookup_elem(&groups, &group);
    if (!place || !place->workers) return pass(STEERED_BY_HASH);
    __u32 first = place->number * STEERING_WORKERS_MAX;
    __u32 decided = STEERED_BY_CONNECTION_ID;
    __u32* worker = by_connection_id(packet);
    if (!worker) {
        decided = STEERED_BY_ADDRESS;
        worker = by_address(packet);
    }
    if (worker && *worker < STEERING_WORKERS_MAX) {
        __u32 slot = first + *worker;
        if (!bpf_sk_select_reuseport(packet, &sockets, &slot, 0)) return pass(decided);
    }
    decided = worker ? STEERED_AWAY : STEERED_BY_HASH;
    for (__u32 i = 0; i < STEERING_WORKERS_MAX; i++) {
        if (i >= place->workers) break;
        __u32 slot = first + (packet->hash + i) % place->workers;
        if (!bpf_sk_select_reuseport(packet, &sockets, &slot, 0)) break;
    }
    return pass(decided);
}

char _license[] SEC("license") = "Apache-2.0";

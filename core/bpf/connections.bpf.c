// When a connection was last used: two LRU maps of the connections that the server put there, and
// programs that touch what they find in the first. They observe; they add nothing and carry no
// byte.
//
// Compiled twice by `make bpf`. generated/connections.lskel.h sees TCP at the tracepoints of socket
// calls; generated/packets.lskel.h, for a kernel without those, in its cgroup's packets. Both see
// QUIC's connection ids in the cgroup's incoming datagrams: no socket call names them.
//
// SPDX-License-Identifier: Apache-2.0 OR BSD-2-Clause OR GPL-2.0-only
// (the kernel lets programs read its structs only if they may be used under its own licence)
#include <stddef.h>

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/in6.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#include "maps.h"

// Where the protocols have it, in bytes.
enum {
    IPV4_PROTOCOL = 9,
    IPV6_NEXT_HEADER = 6,
    IPV6_HEADER_BYTES = 40,
    UDP_HEADER_BYTES = 8,
    LONG_HEADER = 0x80,
    FAMILY_IPV4 = 2,
    FAMILY_IPV6 = 10,
};

struct {
    __uint(type, BPF_MAP_TYPE_LRU_HASH);
    __uint(max_entries, CONNECTION_ENTRIES);
    __type(key, struct ConnectionKey);
    __type(value, __u64); // CLOCK_MONOTONIC of the last use, in ns
} connections SEC(".maps");

// A map of its own: whoever writes a value writes all of it, and the programs write the other one.
struct {
    __uint(type, BPF_MAP_TYPE_LRU_HASH);
    __uint(max_entries, CONNECTION_ENTRIES);
    __type(key, struct ConnectionKey);
    __type(value, struct ConnectionDigests);
} digests SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(map_flags, BPF_F_MMAPABLE);
    __uint(max_entries, CONNECTION_COUNTERS);
    __type(key, __u32);
    __type(value, __u64);
} touches SEC(".maps");

// Counters of the edges, for all of them to read: a row each. No program looks at it.
struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(map_flags, BPF_F_MMAPABLE);
    __uint(max_entries, CACHE_ROWS* CACHE_ROW_WORDS);
    __type(key, __u32);
    __type(value, __u64);
} cache SEC(".maps");

static __always_inline void touch(const struct ConnectionKey* key, __u32 hook) {
    __u64* last_ns = bpf_map_lookup_elem(&connections, key);
    if (!last_ns) return;
    *last_ns = bpf_ktime_get_ns();
    __u64* counter = bpf_map_lookup_elem(&touches, &hook);
    if (counter) __sync_fetch_and_add(counter, 1);
}

static __always_inline void put_ipv4(__u8* address, __u32 ipv4) {
    address[10] = address[11] = 0xff;
    __builtin_memcpy(address + 12, &ipv4, sizeof ipv4);
}

#ifndef SUBLIMATE_PACKETS

// Of the kernel's own structs just what is read here; the loader finds the places of this kernel.
struct sock_common {
    __u32 skc_daddr;
    __u32 skc_rcv_saddr;
    __u16 skc_dport;
    __u16 skc_num;
    __u16 skc_family;
    struct in6_addr skc_v6_daddr;
    struct in6_addr skc_v6_rcv_saddr;
} __attribute__((preserve_access_index));

struct sock {
    struct sock_common __sk_common;
    __u16 sk_protocol;
} __attribute__((preserve_access_index));

static __always_inline void touch_socket(struct sock* sk, __u32 hook) {
    struct ConnectionKey key = {.protocol = IPPROTO_TCP};
    struct sock_common* common = &sk->__sk_common;
    if (sk->sk_protocol != IPPROTO_TCP) return;
    if (common->skc_family == FAMILY_IPV4) {
        put_ipv4(key.local, common->skc_rcv_saddr);
        put_ipv4(key.remote, common->skc_daddr);
    } else if (common->skc_family == FAMILY_IPV6) {
        for (int i = 0; i < 4; i++) {
            ((__u32*)key.local)[i] = common->skc_v6_rcv_saddr.in6_u.u6_addr32[i];
            ((__u32*)key.remote)[i] = common->skc_v6_daddr.in6_u.u6_addr32[i];
        }
    } else {
        return;
    }
    key.local_port = common->skc_num;
    key.remote_port = bpf_ntohs(common->skc_dport);
    touch(&key, hook);
}

SEC("tp_btf/sock_send_length")
int BPF_PROG(sublimate_sent, struct sock* sk, int length, int flags) {
    touch_socket(sk, TOUCHED_BY_SEND);
    return 0;
}

SEC("tp_btf/sock_recv_length")
int BPF_PROG(sublimate_got, struct sock* sk, int length, int flags) {
    touch_socket(sk, TOUCHED_BY_RECEIVE);
    return 0;
}

#else

static __always_inline void touch_socket(struct __sk_buff* packet, __u32 hook) {
    struct ConnectionKey key = {.protocol = IPPROTO_TCP};
    struct bpf_sock* sk = packet->sk ? bpf_sk_fullsock(packet->sk) : NULL;
    if (!sk || sk->protocol != IPPROTO_TCP) return;
    if (sk->family == FAMILY_IPV4) {
        put_ipv4(key.local, sk->src_ip4);
        put_ipv4(key.remote, sk->dst_ip4);
    } else {
        for (int i = 0; i < 4; i++) {
            ((__u32*)key.local)[i] = sk->src_ip6[i];
            ((__u32*)key.remote)[i] = sk->dst_ip6[i];
        }
    }
    key.local_port = sk->src_port;
    key.remote_port = bpf_ntohs(sk->dst_port);
    touch(&key, hook);
}

SEC("cgroup_skb/egress")
int sublimate_out(struct __sk_buff* packet) {
    touch_socket(packet, TOUCHED_BY_EGRESS);
    return 1;
}

#endif

// A short header: those of a connection that stands. Its id is of a length that only the server
// knows.
static __always_inline void touch_quic(struct __sk_buff* packet) {
    struct ConnectionKey key = {.protocol = IPPROTO_UDP};
    __u8 first = 0, protocol = 0, flags = 0;
    __u32 at = IPV6_HEADER_BYTES;
    if (packet->protocol == bpf_htons(ETH_P_IP)) {
        if (bpf_skb_load_bytes(packet, 0, &first, 1)) return;
        if (bpf_skb_load_bytes(packet, IPV4_PROTOCOL, &protocol, 1)) return;
        at = (first & 0xf) * 4; // the header's length, in words of four bytes
    } else if (bpf_skb_load_bytes(packet, IPV6_NEXT_HEADER, &protocol, 1)) {
        return;
    }
    if (protocol != IPPROTO_UDP) return;
    at += UDP_HEADER_BYTES;
    if (bpf_skb_load_bytes(packet, at, &flags, 1) || flags & LONG_HEADER) return;
    if (bpf_skb_load_bytes(packet, at + 1, key.local, QUIC_CONNECTION_ID_BYTES)) return;
    touch(&key, TOUCHED_BY_INGRESS);
}

SEC("cgroup_skb/ingress")
int sublimate_in(struct __sk_buff* packet) {
#ifdef SUBLIMATE_PACKETS
    touch_socket(packet, TOUCHED_BY_INGRESS);
#endif
    touch_quic(packet);
    return 1;
}

char _license[] SEC("license") = "Dual BSD/GPL";

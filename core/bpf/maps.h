// What the programs in the kernel and the server agree upon: keys and values of the maps, and their
// bounds. Plain C, since the compiler for the kernel reads it too.
//
// defines: bounds, SteeringGroup, SteeringPlace, SteeredAddress, SteeringCounter,
//          ConnectionKey, ConnectionDigests, ConnectionCounter, CacheCounter
#ifndef SUBLIMATE_BPF_MAPS_H
#define SUBLIMATE_BPF_MAPS_H

#include <linux/types.h>

enum {
    STEERING_WORKERS_MAX = 64,    // sockets of one port
    STEERING_GROUPS_MAX = 16,     // (family, protocol, port): each a group of SO_REUSEPORT
    STEERING_ENTRIES = 65536,     // of each map that remembers a worker, by default
    CONNECTION_ENTRIES = 65536,   // connections that are remembered, by default
    CONNECTION_BLOCKS = 10,       // of a connection's last KV blocks
    BLOCK_DIGEST_BYTES = 32,      // keyed, so that it tells nothing of the prompt
    ADDRESS_BYTES = 16,           // IPv6, or IPv4 mapped into it
    QUIC_CONNECTION_ID_BYTES = 8, // what is looked at of a connection id
    STEERED_CONNECTIONS = 8,      // of one address, until the server remembers it anew
    CACHE_ROWS = 64,              // of counters: one per edge, which writes it
};

// The group that a socket belongs to; numbers in the machine's byte order.
struct SteeringGroup {
    __u32 family;
    __u32 protocol;
    __u32 port;
};

// Its number, and how many workers have had a socket of it. Worker w of group g has socket
// g * STEERING_WORKERS_MAX + w.
struct SteeringPlace {
    __u32 number;
    __u32 workers;
};

// Where a client's new connections go, and how many have gone there since the server said so: a
// crowd behind one address, such as a proxy's connections, is left to the hash.
struct SteeredAddress {
    __u32 worker;
    __u32 connections;
};

// What decided where a connection or a datagram goes.
enum SteeringCounter {
    STEERED_BY_CONNECTION_ID,
    STEERED_BY_ADDRESS,
    STEERED_BY_HASH, // nothing is remembered
    STEERED_AWAY,    // the remembered worker is gone: by hash
    STEERING_COUNTERS,
};

// protocol is IPPROTO_TCP, with addresses (IPv4 ones mapped into IPv6) and ports of the server's
// side (local) and the client's (remote); or IPPROTO_UDP, with a QUIC connection id of the server's
// at the front of `local` and zeros after it. Addresses in network byte order, ports in the
// machine's.
struct ConnectionKey {
    __u32 protocol;
    __u8 local[ADDRESS_BYTES];
    __u8 remote[ADDRESS_BYTES];
    __u16 local_port;
    __u16 remote_port;
};

// Digest i is of the connection's tokens from the first to the end of block first_block + i.
struct ConnectionDigests {
    __u32 first_block;
    __u32 blocks;
    __u8 digests[CONNECTION_BLOCKS][BLOCK_DIGEST_BYTES];
};

// Touches of a known connection by the hook that saw it.
enum ConnectionCounter {
    TOUCHED_BY_SEND,
    TOUCHED_BY_RECEIVE,
    TOUCHED_BY_EGRESS,
    TOUCHED_BY_INGRESS,
    CONNECTION_COUNTERS,
};

// What an edge counts in its row of the map `cache`, which every edge reads.
enum CacheCounter {
    CACHE_LOOKUPS,
    CACHE_HITS,
    CACHE_INSERTS,
    CACHE_REMOVES,
    CACHE_EVICTIONS,
    CACHE_EXPECTED_TOKENS, // of prompts, those whose blocks were remembered
    CACHE_FOUND_TOKENS,    // of these, the ones that the engine had still
    CACHE_ROW_WORDS = 8,
};

#endif

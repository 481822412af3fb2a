"""State that the kernel keeps for the server by eBPF: it observes and steers, and carries no byte.

Reading order: reason (whether the kernel lets us), keys (what a connection is called), steering
(which worker gets a connection), connections (what is remembered of one; cgroup: where packets are
seen), metrics, objects (all of it from outside). What runs in the kernel is in core/bpf. This file
stays empty.
"""

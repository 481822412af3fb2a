"""State that the kernel keeps for the server by eBPF: it observes and steers, and carries no byte.

Reading order: reason (whether the kernel lets us), steering (which worker gets a connection). What
runs in the kernel is in core/bpf. This file stays empty.
"""

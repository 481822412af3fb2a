"""The supervisor: binds the socket, makes the shared memory, starts and restarts edge and engine.

Reading order: channel (what the processes say to each other), child (how one is started), backoff,
listen, supervise (the policy). This file stays empty so that a child imports only what it needs.
"""

"""The supervisor: binds the socket, makes the shared memory, starts and restarts edge and engine.

Reading order: listen, backoff, worker (one child), reporter (what a watcher is told),
notify (what a service manager is told), supervise (the policy). The messages are in control/. This
file stays empty.
"""

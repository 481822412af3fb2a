"""The supervisor: binds sockets, makes the shared memory, starts and restarts edges and engines.

Reading order: listen, launch, backoff, worker (one child), members (an engine, an edge), pairs
(what is between them), reporter (what a watcher is told), notify (what a service manager is told),
fleet (the policy), rolling (how all are replaced), wakeup (signals), supervise. The messages are in
control/. This file stays empty.
"""

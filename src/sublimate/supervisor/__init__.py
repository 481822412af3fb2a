"""The supervisor: binds sockets, makes the shared memory, starts and restarts edges and engines.

Reading order: listen, launch, backoff, worker (one child, of either kind), members (an engine, an
edge), pairs (what is between them), cores and shared_weights with engine_loads (what an engine is
told to load), kernel_memory (what the kernel does for edges), reporter (what a watcher is told),
notify (what a service manager is told), fleet (the policy), rolling (how all are replaced),
model_memory and residency (which of several models are there), wakeup (signals), supervise. The
messages are in control/. This file stays empty.
"""

"""What the kernel does for the edges, loaded once before any child starts, and handed to each: its
memory of connections, and with several workers the steering of new ones.

defines: KernelMemory
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Sequence

from ..config import ServerSettings
from ..control import channel
from ..kernel.connections import Connections
from ..kernel.reason import refused
from ..kernel.steering import Steering
from .listen import WorkerSockets
from .worker import Worker

SECRET_BYTES = 32


class KernelMemory:
    """Lives as long as the server: what is attached ends with its process."""

    def __init__(self, settings: ServerSettings, workers: Sequence[WorkerSockets] = ()) -> None:
        self._secret = secrets.token_bytes(SECRET_BYTES)
        """Of the digests. Also an edge that starts again must have it."""
        self._connections = Connections()
        if settings.kernel_state:
            self._connections = Connections.load(self._secret, settings.kernel_entries)
        self._workers = workers
        self._absent: set[int] = set()
        """Workers whose sockets get nothing new; a socket is in the kernel's table once."""
        if settings.kernel_state and len(workers) > 1:
            self._steer(Steering.load(settings.kernel_entries))

    def _steer(self, steering: Steering) -> None:
        """The program decides when all sockets are in its table, or never: what it knows half of
        would give all connections to that half."""
        groups = self._workers[0].all()
        self._connections.steering = steering
        self._absent = set(range(len(self._workers)))
        try:
            for worker in range(len(self._workers)):
                self.edge_is_up(worker)
            for sock in groups:
                steering.attach(sock)
        except OSError as error:
            for sock in groups:
                steering.detach(sock)
            steering.close()
            self._absent = set()
            self._connections.steering = Steering(reason=refused(error))

    def edge_is_up(self, worker: int) -> None:
        """New connections may go to that worker's sockets. Raises OSError."""
        if worker not in self._absent:
            return
        for sock in self._workers[worker].all():
            self._connections.steering.set_socket(worker, sock)
        self._absent.discard(worker)

    def edge_is_gone(self, worker: int) -> None:
        """They go to the others' at once, though its sockets are open still. Where the kernel does
        not let that be, they wait there for the next edge."""
        if self._connections.steering.loaded:
            # Cleared in part is absent too: the next edge sets all of them.
            self._absent.add(worker)
            with contextlib.suppress(OSError):
                self._connections.steering.clear_socket(worker)

    def tell(self, edge: Worker, row: int, worker: int = 0) -> None:
        """Hand it to an edge that has just been started; row: of the counters, that edge's."""
        state = self._connections
        message = channel.KernelMemory(
            reason=state.reason,
            names=tuple(state.named),
            secret=self._secret,
            hook=state.hook,
            sees_quic=state.sees_quic,
            row=row,
            worker=worker,
            steering=state.steering.reason,
        )
        edge.send(message, (*state.named.values(), *state.steering.fds))

    def close(self) -> None:
        """Detach; nothing of it stays in the kernel when the edges have ended too."""
        self._connections.close()

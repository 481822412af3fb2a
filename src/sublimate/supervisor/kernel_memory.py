"""The kernel's memory of connections, loaded once before any child starts, and handed to each edge.

defines: KernelMemory
"""

from __future__ import annotations

import secrets

from ..config import ServerSettings
from ..control import channel
from ..kernel.connections import Connections
from .worker import Worker

SECRET_BYTES = 32


class KernelMemory:
    """Lives as long as the server: what is attached ends with its process."""

    def __init__(self, settings: ServerSettings) -> None:
        self._secret = secrets.token_bytes(SECRET_BYTES)
        """Of the digests. Also an edge that starts again must have it."""
        self._connections = Connections()
        if settings.kernel_state:
            self._connections = Connections.load(self._secret, settings.kernel_entries)

    def tell(self, edge: Worker, row: int) -> None:
        """Hand it to an edge that has just been started; row: of the counters, that edge's."""
        state = self._connections
        message = channel.KernelMemory(
            reason=state.reason,
            names=tuple(state.named),
            secret=self._secret,
            hook=state.hook,
            sees_quic=state.sees_quic,
            row=row,
        )
        edge.send(message, tuple(state.named.values()))

    def close(self) -> None:
        """Detach; nothing of it stays in the kernel when the edges have ended too."""
        self._connections.close()

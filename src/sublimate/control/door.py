"""How commands of the same user reach a running server's supervisor: one question, one answer.

An abstract socket (unix(7)) with the number of the supervisor's process in its name: it leaves no
file behind, and both ends ask the kernel who the other one is. No client of the server comes here.

defines: ModelRow, AskModels, StopModel, Question, Told, Door, knock
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Callable
from typing import Literal

import msgspec

from ..errors import PeerError

DATAGRAM_BYTES_MAX = 1 << 17
VISITORS_MAX = 8
VISIT_SECONDS = 5.0
"""Within which a question is asked."""
CREDENTIALS = struct.Struct("3i")
"""Process, user and group, as SO_PEERCRED has them."""
ROOT = 0


class ModelRow(msgspec.Struct, frozen=True, kw_only=True):
    """What is told of one model."""

    name: str
    state: Literal["absent", "coming", "here", "leaving"]
    memory_bytes: int
    requests: int
    idle_seconds: float | None
    main: bool


class AskModels(msgspec.Struct, frozen=True, tag="models", tag_field="op"):
    """Which there are, and where they stand."""


class StopModel(msgspec.Struct, frozen=True, tag="stop", tag_field="op"):
    """Take one out of memory, once what it has is done."""

    name: str


Question = AskModels | StopModel


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """The answer."""

    models: tuple[ModelRow, ...] = ()
    """All; none of a server that keeps its one model in memory."""
    error: str = ""


def _address(process_id: int) -> str:
    return f"\0sublimate-{process_id}"


def _credentials(sock: socket.socket) -> tuple[int, int]:
    """Process and user of the other end. Raises OSError."""
    told = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    process_id, user, _ = CREDENTIALS.unpack(told)
    return process_id, user


class Door:
    """Of one supervisor, on its thread. A door that cannot be opened lets nobody in."""

    def __init__(self) -> None:
        self._visitors: dict[socket.socket, float] = {}
        """Until when each may ask."""
        self._listener: socket.socket | None = None
        try:
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        except OSError:
            return  # no descriptor is left
        try:
            listener.bind(_address(os.getpid()))
            listener.listen(VISITORS_MAX)
        except OSError:
            listener.close()
        else:
            self._listener = listener

    def fds(self) -> list[int]:
        """What becomes readable when somebody comes or asks."""
        listener = [self._listener] if self._listener is not None else []
        return [sock.fileno() for sock in (*listener, *self._visitors)]

    @property
    def due_seconds(self) -> float | None:
        """When somebody has been here for too long."""
        return min(self._visitors.values(), default=None)

    def serve(self, answer: Callable[[Question], Told]) -> None:
        """Whoever has come, and whatever was asked."""
        if self._listener is None:
            return
        self._let_in(self._listener)
        now = time.monotonic()
        for visitor, until in list(self._visitors.items()):
            if self._hear(visitor, answer) or now >= until:
                del self._visitors[visitor]
                visitor.close()

    def _let_in(self, listener: socket.socket) -> None:
        while True:
            try:
                visitor, _ = listener.accept()
            except OSError:
                return
            try:
                _, user = _credentials(visitor)
                is_known = user in (os.geteuid(), ROOT)
            except OSError:
                is_known = False
            if not is_known or len(self._visitors) >= VISITORS_MAX:
                visitor.close()
                continue
            visitor.setblocking(False)
            self._visitors[visitor] = time.monotonic() + VISIT_SECONDS

    def _hear(self, visitor: socket.socket, answer: Callable[[Question], Told]) -> bool:
        """Whether this visit is over."""
        try:
            asked = msgspec.json.decode(visitor.recv(DATAGRAM_BYTES_MAX), type=Question)
            visitor.send(msgspec.json.encode(answer(asked)))
        except BlockingIOError:
            return False
        except (OSError, msgspec.MsgspecError):
            return True
        return True

    def close(self) -> None:
        """Idempotent."""
        for sock in (*self._visitors, *([self._listener] if self._listener else [])):
            sock.close()
        self._visitors.clear()
        self._listener = None


def knock(process_id: int, question: Question, seconds: float = VISIT_SECONDS) -> Told:
    """Ask the supervisor with that process number. Raises PeerError if it does not answer, or if it
    is another one's."""
    if process_id < 1:
        raise ValueError("a process has a number")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.settimeout(seconds)
        try:
            sock.connect(_address(process_id))
            found, user = _credentials(sock)
            if found != process_id or os.geteuid() not in (user, ROOT):
                raise PeerError(f"Process {process_id} is no server of this user.")
            sock.send(msgspec.json.encode(question))
            return msgspec.json.decode(sock.recv(DATAGRAM_BYTES_MAX), type=Told)
        except (OSError, msgspec.MsgspecError) as error:
            raise PeerError(f"Process {process_id} does not answer as a server does.") from error

"""The other edges of this server: datagrams and connections that are handed on to them.

Every edge has an inbox, a socket that all the others can write to. What comes there is a datagram
of a QUIC connection that is theirs who have the inbox, or a connection to serve as if a client had
opened it (relay.py). Messages are kept whole, and what finds no room is dropped, as datagrams are.

defines: Siblings
"""

from __future__ import annotations

import array
import asyncio
import logging
import os
import socket
from collections.abc import Callable
from typing import Any

import msgspec

from .place import Place

LOG = logging.getLogger("sublimate.edge")
MESSAGE_BYTES_MAX = 80 * 1024
RIGHTS_BYTES = socket.CMSG_SPACE(array.array("i").itemsize)
MESSAGES_PER_TURN = 64
Datagram = Callable[[bytes, Any], None]
"""Told data and the address that it came from."""


class _Message(msgspec.Struct, array_like=True):
    """`data` is a datagram from `address`; without an address a descriptor comes beside it."""

    data: bytes = b""
    address: tuple[str | int, ...] = ()


class Siblings:
    """On the event loop's thread only."""

    def __init__(self, loop: asyncio.AbstractEventLoop, place: Place) -> None:
        self.place = place
        self.on_datagram: Datagram | None = None
        self.on_connection: Callable[[socket.socket], None] | None = None
        self._loop = loop
        self._inbox: socket.socket | None = None
        self._others: dict[int, socket.socket] = {}
        self._workers: dict[int, int] = {}
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(_Message)

    # ---- who there is --------------------------------------------------------------------------
    def open(self, inbox: socket.socket) -> None:
        """Read what the others send."""
        if self._inbox is not None:
            raise RuntimeError("an edge has one inbox")
        self._inbox = inbox
        inbox.setblocking(False)
        self._loop.add_reader(inbox.fileno(), self._read)

    def came(self, number: int, worker: int, inbox: socket.socket) -> None:
        """Another edge runs, and this is its inbox."""
        if number == self.place.number:
            raise ValueError("an edge is none of its siblings")
        self.gone(number)
        inbox.setblocking(False)
        self._others[number], self._workers[number] = inbox, worker

    def gone(self, number: int) -> None:
        """It has ended."""
        self._workers.pop(number, None)
        if (inbox := self._others.pop(number, None)) is not None:
            inbox.close()

    def of_worker(self, worker: int) -> int | None:
        """The edge of another worker: of two, where one is taking over, the one that came last."""
        found = [number for number, other in self._workers.items() if other == worker]
        return found[-1] if found else None

    @property
    def numbers(self) -> list[int]:
        return list(self._others)

    def knows(self, number: int) -> bool:
        return number in self._others

    def close(self) -> None:
        """Idempotent."""
        for number in self.numbers:
            self.gone(number)
        inbox, self._inbox = self._inbox, None
        if inbox is not None:
            self._loop.remove_reader(inbox.fileno())
            inbox.close()

    # ---- messages ------------------------------------------------------------------------------
    def hand_datagram(self, number: int, data: bytes, address: Any) -> None:
        """To the edge whose connection it is of."""
        self._send(number, _Message(data, tuple(address)))

    def connect(self, number: int) -> socket.socket | None:
        """A connection that this edge serves as any client's; None if it cannot be had."""
        try:
            ours, theirs = socket.socketpair()
        except OSError:
            return None  # no descriptor is left; who asks has an answer for that
        with theirs:
            if self._send(number, _Message(), theirs.fileno()):
                ours.setblocking(False)
                return ours
        ours.close()
        return None

    def _send(self, number: int, message: _Message, descriptor: int = -1) -> bool:
        inbox = self._others.get(number)
        if inbox is None:
            return False
        rights: list[tuple[int, int, bytes]] = []
        if descriptor >= 0:
            fds = array.array("i", [descriptor]).tobytes()
            rights.append((socket.SOL_SOCKET, socket.SCM_RIGHTS, fds))
        try:
            inbox.sendmsg([self._encoder.encode(message)], rights, socket.MSG_NOSIGNAL)
        except OSError:
            return False  # no room, or it has just ended
        return True

    def _read(self) -> None:
        for _ in range(MESSAGES_PER_TURN):
            if self._inbox is None:
                return
            try:
                data, ancillary, _, _ = self._inbox.recvmsg(
                    MESSAGE_BYTES_MAX, RIGHTS_BYTES, socket.MSG_CMSG_CLOEXEC
                )
            except OSError:
                return
            if not data:  # the supervisor, which holds the other end, is gone: nobody writes again
                self._loop.remove_reader(self._inbox.fileno())
                return
            fds = array.array("i")
            for _, _, raw in ancillary:
                fds.frombytes(raw[: len(raw) - len(raw) % fds.itemsize])
            self._take(self._decoder.decode(data), list(fds))

    def _take(self, message: _Message, fds: list[int]) -> None:
        if fds and self.on_connection is not None:
            self.on_connection(socket.socket(fileno=fds.pop()))
        elif message.address and self.on_datagram is not None:
            self.on_datagram(message.data, message.address)
        for fd in fds:
            os.close(fd)

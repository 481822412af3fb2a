"""Which worker gets a new connection or a datagram, decided in the kernel by what is remembered.

Each worker has a socket of its own on the one port (SO_REUSEPORT). A program in the kernel picks
the worker that is remembered for the QUIC connection id, else for the client's address; else, and
wherever that worker's socket is gone, one that is there by hash. It is core/bpf/steering.bpf.c.

defines: Steering
"""

from __future__ import annotations

import contextlib
import mmap
import os
import socket
import struct
import sys
from collections.abc import Sequence

from .. import _core
from .keys import packed_address
from .reason import LOADED, Reason, missing, refused

WORKERS_MAX = _core.KERNEL_LIMITS["STEERING_WORKERS_MAX"]
GROUPS_MAX = _core.KERNEL_LIMITS["STEERING_GROUPS_MAX"]
ENTRIES = _core.KERNEL_LIMITS["STEERING_ENTRIES"]
CONNECTION_ID_BYTES = _core.KERNEL_LIMITS["QUIC_CONNECTION_ID_BYTES"]
SO_ATTACH_REUSEPORT_EBPF, SO_DETACH_REUSEPORT_BPF = 52, 68
FDS = ("program", "sockets", "groups", "addresses", "connection_ids", "steered")
COUNTERS = ("connection_id", "address", "hash", "away")
"""As in core/bpf/maps.h: what decided. `away`: the remembered worker was gone."""

GROUP = struct.Struct("=III")
NUMBER = struct.Struct("=I")
PLACE = struct.Struct("=II")
"""Of a group: its number, and how many workers have had a socket of it."""
STEERED = struct.Struct("=II")
"""Of an address: its worker, and the connections that have gone there since."""
SOCKET = struct.Struct("=Q")
ADDRESS_BYTES = 16


class Steering:
    """The program, its maps, and what this process may do with them.

    Without the right, or on a kernel that cannot, `reason` says why and every method does nothing:
    then the kernel's hash decides. Descriptors are inherited by nobody; hand `fds` to a worker, and
    it makes one of its own by `from_fds`. One process sets sockets; any may remember.
    """

    def __init__(self, fds: Sequence[int] = (), reason: Reason = "off") -> None:
        if fds and len(fds) != len(FDS):
            raise ValueError(f"steering has {len(FDS)} descriptors: {', '.join(FDS)}")
        self.fds = tuple(fds)
        self.reason: Reason = LOADED if fds else reason
        self._counters: mmap.mmap | None = None
        if fds:
            named = dict(zip(FDS, fds, strict=True))
            self._program = named["program"]
            self._sockets = _core.KernelMap(named["sockets"], NUMBER.size, SOCKET.size)
            self._groups = _core.KernelMap(named["groups"], GROUP.size, PLACE.size)
            self._addresses = _core.KernelMap(named["addresses"], ADDRESS_BYTES, STEERED.size)
            self._ids = _core.KernelMap(named["connection_ids"], CONNECTION_ID_BYTES, NUMBER.size)
            self._counters = mmap.mmap(named["steered"], mmap.PAGESIZE, prot=mmap.PROT_READ)

    @classmethod
    def load(cls, entries: int = ENTRIES) -> Steering:
        """Load it, with room for so many addresses and so many connection ids. Never raises: see
        `reason`."""
        if (reason := missing()) is not None:
            return cls(reason=reason)
        try:
            named = _core.load_steering(entries)
        except OSError as error:
            return cls(reason=refused(error))
        fds = [named[name] for name in FDS]
        try:
            return cls(fds)
        except OSError as error:  # its counters cannot be mapped
            for fd in fds:
                os.close(fd)
            return cls(reason=refused(error))

    @classmethod
    def from_fds(cls, fds: Sequence[int]) -> Steering:
        """What another process loaded; takes the descriptors over. Empty: not loaded there."""
        return cls(fds)

    @property
    def loaded(self) -> bool:
        return bool(self.fds)

    # ---- sockets -----------------------------------------------------------------------------
    def attach(self, sock: socket.socket) -> bool:
        """Let the program decide for the group of this socket (its family, protocol and port);
        once, on any of them, after it was bound with SO_REUSEPORT. Raises OSError."""
        if not self.loaded:
            return False
        self._place(sock)
        sock.setsockopt(socket.SOL_SOCKET, SO_ATTACH_REUSEPORT_EBPF, self._program)
        return True

    def detach(self, sock: socket.socket) -> None:
        """The kernel's hash decides for this group again; idempotent."""
        with contextlib.suppress(OSError):  # there is none
            sock.setsockopt(socket.SOL_SOCKET, SO_DETACH_REUSEPORT_BPF, 0)

    def set_socket(self, index: int, sock: socket.socket) -> bool:
        """Worker `index` has this socket: listening TCP, or bound UDP. What it had before on that
        port is replaced. Raises OSError, ValueError."""
        if not self.loaded:
            return False
        group, number, workers = self._place(sock)
        slot = number * WORKERS_MAX + _checked(index)
        self._sockets.update(NUMBER.pack(slot), SOCKET.pack(sock.fileno()))
        self._groups.update(group, PLACE.pack(number, max(workers, index + 1)))
        return True

    def clear_socket(self, index: int) -> None:
        """Worker `index` gets nothing new any more, on no port, while any other is there. A socket
        that all its owners have closed goes by itself."""
        if not self.loaded:
            return
        _checked(index)
        _, numbers = self._groups.read()
        for number, _ in PLACE.iter_unpack(numbers):
            self._sockets.remove(NUMBER.pack(number * WORKERS_MAX + index))

    def _place(self, sock: socket.socket) -> tuple[bytes, int, int]:
        """The socket's group, its number (the next free one where it is new) and its workers."""
        protocol = socket.IPPROTO_UDP if sock.type == socket.SOCK_DGRAM else socket.IPPROTO_TCP
        group = GROUP.pack(sock.family, protocol, sock.getsockname()[1])
        if (known := self._groups.lookup(group)) is not None:
            number, workers = PLACE.unpack(known)
            return group, number, workers
        taken = len(self._groups.read()[1]) // PLACE.size
        if taken >= GROUPS_MAX:
            raise ValueError(f"sockets of more than {GROUPS_MAX} ports")
        self._groups.update(group, PLACE.pack(taken, 0))
        return group, taken, 0

    # ---- what is remembered ----------------------------------------------------------------------
    def remember_address(self, address: str, index: int) -> bool:
        """The next few connections (STEERED_CONNECTIONS) and all unknown datagrams of this client
        go to worker `index`."""
        return self.remember_packed(packed_address(address), index) if self.loaded else False

    def remember_packed(self, address: bytes, index: int) -> bool:
        """The same of an address as it is packed (kernel/keys.py)."""
        return (
            self._remember(self._addresses, address, STEERED.pack(_checked(index), 0))
            if self.loaded
            else False
        )

    def forget_packed(self, address: bytes) -> None:
        """The hash picks for this client again."""
        if self.loaded:
            self._addresses.remove(address)

    def remember_connection_id(self, connection_id: bytes, index: int) -> bool:
        """Datagrams to this QUIC connection id (one that the server gave out; its first 8 bytes
        count) go to worker `index`, wherever they come from."""
        if not self.loaded:
            return False
        if len(connection_id) < CONNECTION_ID_BYTES:
            raise ValueError(f"a connection id has {CONNECTION_ID_BYTES} bytes or more here")
        return self._remember(
            self._ids, connection_id[:CONNECTION_ID_BYTES], NUMBER.pack(_checked(index))
        )

    def _remember(self, where: _core.KernelMap, key: bytes, value: bytes) -> bool:
        """A worker that gave up its rights may not be let on kernels before 5.19."""
        try:
            where.update(key, value)
        except OSError as error:
            self.close()
            self.reason = refused(error)
            return False
        return True

    def forget_connection_id(self, connection_id: bytes) -> None:
        """That connection is over. The oldest are forgotten anyway."""
        if self.loaded:
            self._ids.remove(connection_id[:CONNECTION_ID_BYTES])

    def steered(self) -> dict[str, int]:
        """Connections and datagrams so far by what decided (COUNTERS); read from shared memory."""
        if self._counters is None:
            return {}
        size = struct.calcsize("=Q")
        values = [
            int.from_bytes(self._counters[at * size : (at + 1) * size], sys.byteorder)
            for at in range(len(COUNTERS))
        ]
        return dict(zip(COUNTERS, values, strict=True))

    def close(self) -> None:
        """Close this process's descriptors. What is attached stays so while its sockets live."""
        if self._counters is not None:
            self._counters.close()
        for fd in self.fds:
            os.close(fd)
        self.fds, self.reason, self._counters = (), "off", None


def _checked(index: int) -> int:
    if not 0 <= index < WORKERS_MAX:
        raise ValueError(f"a worker's number is below {WORKERS_MAX}")
    return index

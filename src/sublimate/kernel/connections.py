"""What the kernel remembers of connections: when each was last used, and which KV blocks its last
prompt ended in, as digests that tell nothing of it.

The supervisor loads it (load), each edge gets the descriptors (from_fds). The edge looks a
connection up when a request begins and writes its blocks when the answer has ended; in between, and
without any call of ours, the programs of core/bpf/connections.bpf.c note each use.

defines: Use, Connections
"""

from __future__ import annotations

import errno
import hashlib
import mmap
import os
import struct
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from .. import _core
from .cgroup import own_cgroup
from .keys import KEY_BYTES, address_of
from .reason import LOADED, Reason, missing, refused
from .steering import Steering

ENTRIES = _core.KERNEL_LIMITS["CONNECTION_ENTRIES"]
BLOCKS = _core.KERNEL_LIMITS["CONNECTION_BLOCKS"]
BLOCK_TOKENS = _core.LIMITS["PAGE_TOKENS"]
DIGEST_BYTES = _core.KERNEL_LIMITS["BLOCK_DIGEST_BYTES"]
ROWS = _core.KERNEL_LIMITS["CACHE_ROWS"]
ROW_WORDS = _core.KERNEL_LIMITS["CACHE_ROW_WORDS"]
PROGRAMS = ("sent", "received", "packet_in", "packet_out")
HOOKS = ("send", "receive", "egress", "ingress")
COUNTERS = (
    "lookups", "hits", "inserts", "removes", "evictions", "expected_tokens", "found_tokens",
)  # fmt: skip
"""As in core/bpf/maps.h."""
LOOKUPS, HITS, INSERTS, REMOVES, EVICTIONS, EXPECTED_TOKENS, FOUND_TOKENS = range(len(COUNTERS))

LAST_USE = struct.Struct("=Q")
VALUE = struct.Struct(f"=II{BLOCKS * DIGEST_BYTES}s")
ID_BYTES = 4
CROWD_CONNECTIONS = 8
"""More at once from one address, with one edge, are of several clients: a proxy's."""


class Use(NamedTuple):
    """One request of a connection that the kernel may remember."""

    key: bytes
    expected: int
    """Tokens at the prompt's beginning that the engine has computed for this connection before, as
    far as that is remembered."""
    value: bytes
    """What will be remembered of the prompt."""


class Connections:
    """Without the right, or on a kernel that cannot, `reason` says why, and every method does
    nothing. One thread per process; the counters of a row have one writer, the edge of that row.

    secret: of the server, 32 bytes or more; keys the digests.
    """

    def __init__(self, reason: Reason = "off") -> None:
        self.reason: Reason = reason
        self.hook = ""
        """Where TCP is seen: tracepoints or packets."""
        self.sees_quic = False
        """Datagrams too; else the server alone notes the use of a connection over QUIC."""
        self.named: dict[str, int] = {}
        """Descriptors: maps and programs."""
        self.steering = Steering()
        """Of new connections to workers, where there are several; handed on beside the memory."""
        self.worker = 0
        """Of this process."""
        self._links: list[int] = []
        self._known: set[bytes] = set()
        """Connections that this process has put into the map and not taken out."""
        self._asking: set[bytes] = set()
        """Open ones of TCP that have asked something, where there is steering; whether or not any
        of them is remembered."""
        self._of_address: Counter[bytes] = Counter()
        """How many of these a client has."""
        self._begun: Counter[bytes] = Counter()
        """Uses of each connection that have not ended."""
        self._left: set[bytes] = set()
        """Connections that were closed before: nobody takes out what is written of them then."""

    @property
    def loaded(self) -> bool:
        return self.reason == LOADED

    # ---- loading -----------------------------------------------------------------------------
    @classmethod
    def load(cls, secret: bytes, entries: int = ENTRIES) -> Connections:
        """Load the maps and attach the programs. Never raises: see `reason`. What is attached ends
        with this object's process, or by `close`."""
        self = cls()
        if (reason := missing()) is not None:
            self.reason = reason
            return self
        try:
            self._load(entries)
            self._open(secret, 0)
        except OSError as error:
            self.close()
            allowed: Reason = "no_capability" if error.errno == errno.EPERM else refused(error)
            self.reason = missing(needs_btf=True) or allowed
        return self

    def _load(self, entries: int) -> None:
        try:
            self.named = _core.load_connections(entries, packets=False)
            for name in ("sent", "received"):
                self._links.append(_core.attach_tracepoint(self.named[name]))
            self.hook = "tracepoints"
        except OSError:
            self._close_fds()
            self.named = _core.load_connections(entries, packets=True)
            self._attach_cgroup("packet_out")
            self.hook = "packets"
        try:
            self._attach_cgroup("packet_in")
            self.sees_quic = True
        except OSError:
            if self.hook == "packets":
                raise

    def _attach_cgroup(self, name: str) -> None:
        if (folder := own_cgroup()) is None:
            raise OSError(errno.ENOENT, "no cgroup of version 2 is mounted")
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            link = _core.attach_cgroup(self.named[name], fd, name == "packet_out")
        finally:
            os.close(fd)
        self._links.append(link)

    @classmethod
    def from_fds(
        cls, named: Mapping[str, int], secret: bytes, *, row: int, hook: str, sees_quic: bool
    ) -> Connections:
        """What another process loaded; takes the descriptors over. row: of its counters, this
        process's alone."""
        self = cls()
        self.named, self.hook, self.sees_quic = dict(named), hook, sees_quic
        self._open(secret, row)
        return self

    def _open(self, secret: bytes, row: int) -> None:
        if len(secret) < DIGEST_BYTES or not 0 <= row < ROWS:
            raise ValueError(f"a secret of {DIGEST_BYTES} bytes, and a row below {ROWS}")
        named = self.named
        self._uses = _core.KernelMap(named["connections"], KEY_BYTES, LAST_USE.size)
        self._digests = _core.KernelMap(named["digests"], KEY_BYTES, VALUE.size)
        self._touches = memoryview(
            mmap.mmap(named["touches"], mmap.PAGESIZE, prot=mmap.PROT_READ)
        ).cast("Q")
        self._cache = memoryview(mmap.mmap(named["cache"], ROWS * ROW_WORDS * 8)).cast("Q")
        self._row = row * ROW_WORDS
        self._secret = secret
        self.reason = LOADED
        # Who had the row before may have been killed: its connections are over, counted or not.
        inserts, removes, evictions = (
            self._cache[self._row + counter] for counter in (INSERTS, REMOVES, EVICTIONS)
        )
        self._count(REMOVES, inserts - removes - evictions)

    # ---- of a request --------------------------------------------------------------------------
    def begin(self, key: bytes, owner: bytes, ids: Any, *, worker: int = 0) -> Use | None:
        """A request with this prompt on that connection; None: nothing can be remembered of it.
        owner: whose it is. ids: int32 (tokens,). worker: whose engine has it."""
        if self.steering.loaded:
            self._steer(key, worker)
        if not self.loaded or not key:
            return None
        blocks = len(ids) // BLOCK_TOKENS
        first = max(0, blocks - BLOCKS)
        self._count(LOOKUPS)
        value = self._tried(self._digests.lookup, key)
        known_first, known_count, known = VALUE.unpack(value) if value else (first, 0, b"")
        if value is not None:
            self._count(HITS)
        elif key in self._known:
            self._known.discard(key)
            self._count(EVICTIONS)
        begin = min(first, known_first)
        digests = self._digested(owner, ids, begin, blocks)
        expected = 0
        for block in range(min(known_first + known_count, blocks) - 1, known_first - 1, -1):
            at = (block - known_first) * DIGEST_BYTES
            if digests[block - begin] == known[at : at + DIGEST_BYTES]:
                expected = (block + 1) * BLOCK_TOKENS
                break
        kept = b"".join(digests[first - begin :])
        self._begun[key] += 1
        return Use(key, expected, VALUE.pack(first, blocks - first, kept))

    def end(self, use: Use, found: int | None) -> None:
        """Its answer has ended: the prompt's last blocks are the connection's. found: tokens that
        the engine took from its cache; None: it never began. Once for each use."""
        has_left = use.key in self._left
        self._begun[use.key] -= 1
        if not self._begun[use.key]:
            del self._begun[use.key]
            self._left.discard(use.key)
        if has_left or found is None or not self.loaded:
            return
        if use.expected:
            self._count(EXPECTED_TOKENS, use.expected)
            self._count(FOUND_TOKENS, min(use.expected, found))
        self._tried(self._digests.update, use.key, use.value)
        self._tried(self._uses.update, use.key, LAST_USE.pack(time.monotonic_ns()))
        if use.key not in self._known:
            self._count(INSERTS)
            self._known.add(use.key)

    def forget(self, key: bytes) -> None:
        """The connection is closed: it will not come back."""
        self._asks_no_more(key)
        if key in self._begun:
            self._left.add(key)
        if not self.loaded or key not in self._known:
            return
        self._known.discard(key)
        was_there = self._tried(self._digests.remove, key)
        self._tried(self._uses.remove, key)
        self._count(REMOVES if was_there else EVICTIONS)

    # ---- of several workers ----------------------------------------------------------------------
    def _steer(self, key: bytes, worker: int) -> None:
        """New connections of this client go to the edge beside the engine that has its prompts. Not
        those of a proxy or a crowd behind one address: they would all go to one edge."""
        if not (address := address_of(key)):
            return
        if key not in self._asking:
            self._asking.add(key)
            self._of_address[address] += 1
        if self._of_address[address] > CROWD_CONNECTIONS:
            self.steering.forget_packed(address)
        else:
            self.steering.remember_packed(address, worker)

    def _asks_no_more(self, key: bytes) -> None:
        if key not in self._asking:
            return
        self._asking.discard(key)
        address = address_of(key)
        self._of_address[address] -= 1
        if self._of_address[address] <= 0:
            del self._of_address[address]

    def label_given(self, label: bytes) -> None:
        """A QUIC connection of this edge is called so, too: its datagrams come here, whatever
        address their sender has by then."""
        self.steering.remember_connection_id(label, self.worker)

    def label_retired(self, label: bytes) -> None:
        """None is any more."""
        self.steering.forget_connection_id(label)

    def _digested(self, owner: bytes, ids: Any, first: int, last: int) -> list[bytes]:
        """Of blocks first to last - 1. A digest is of all tokens up to its block's end, since a
        block's keys and values depend on all before it."""
        words = memoryview(ids).cast("B")
        running = hashlib.blake2b(owner, digest_size=DIGEST_BYTES, key=self._secret)
        running.update(words[: first * BLOCK_TOKENS * ID_BYTES])
        digests: list[bytes] = []
        for block in range(first, last):
            begin = block * BLOCK_TOKENS * ID_BYTES
            running.update(words[begin : begin + BLOCK_TOKENS * ID_BYTES])
            digests.append(running.copy().digest())
        return digests

    def _count(self, counter: int, by: int = 1) -> None:
        self._cache[self._row + counter] += by

    def _tried(self, call: Any, *arguments: bytes) -> Any:
        """A process without rights may not be let on kernels before 5.19: then it goes without."""
        if not self.loaded:
            return None
        try:
            return call(*arguments)
        except OSError as error:
            self.reason = refused(error)
            return None

    # ---- for people ----------------------------------------------------------------------------
    def counters(self) -> dict[str, int]:
        """Of all edges together, by COUNTERS; read from shared memory."""
        if not self.loaded:
            return dict.fromkeys(COUNTERS, 0)
        return {name: sum(self._cache[at::ROW_WORDS]) for at, name in enumerate(COUNTERS)}

    def touches(self) -> dict[str, int]:
        """Uses of known connections so far, by HOOKS."""
        return dict(zip(HOOKS, self._touches[: len(HOOKS)], strict=True)) if self.loaded else {}

    def cost(self) -> dict[str, tuple[int, int]]:
        """(ns, runs) by program; zeros while nobody has the kernel count (docs/kernel.md)."""
        named = self.named if self.loaded else {}
        return {name: _core.program_statistics(named[name]) for name in PROGRAMS if name in named}

    def close(self) -> None:
        """Detach and close all."""
        self.steering.close()
        self._close_fds()
        self.reason = "off"

    def _close_fds(self) -> None:
        for fd in (*self._links, *self.named.values()):
            os.close(fd)
        self._links, self.named = [], {}

"""Where it is written how much of a key's limits is used: in this process, or for all edges of a
server in memory that they share.

A line per key: of each kind three doubles, the level of its bucket, when that was (seconds of the
monotonic clock, which is the same in all processes) and the bucket's size; then a count of running
requests per edge. An edge that ends badly leaves its count behind: the others do not count it any
more, and the next one of its number begins with none. A lock of the kernel's (fcntl) makes each
change one, and goes with who holds it.

defines: Entry, Ledger, OwnLedger, SharedLedgers
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import mmap
import os
import struct
from collections.abc import Generator
from typing import NamedTuple, Protocol

from .. import _core

KINDS_MAX = 4
EDGES_MAX = _core.LIMITS["EDGES_MAX"]
NAME_BYTES = 16
LEVELS = struct.Struct("=ddd")
COUNT = struct.Struct("=i")
LINE_BYTES = 256
LINES_MAX = 4096
"""Keys with limits that one server has known since it started."""
LEVELS_AT = NAME_BYTES
COUNTS_AT = LEVELS_AT + KINDS_MAX * LEVELS.size


class Entry(NamedTuple):
    """Of one bucket."""

    level: float = 0.0
    seconds: float = 0.0
    capacity: float = 0.0


class Ledger(Protocol):
    """Of one key. Everything but `locked` is called while it is locked."""

    def locked(self) -> contextlib.AbstractContextManager[None]: ...

    def read(self, kind: int) -> Entry:
        """Nothing is known yet where its size is 0."""
        ...

    def write(self, kind: int, entry: Entry) -> None: ...

    def running(self) -> int:
        """Requests of all edges."""
        ...

    def add_running(self, by: int) -> None:
        """By this edge."""
        ...


class OwnLedger:
    """Of a server with one edge."""

    def __init__(self) -> None:
        self._levels = [Entry()] * KINDS_MAX
        self._running = 0

    def locked(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def read(self, kind: int) -> Entry:
        return self._levels[kind]

    def write(self, kind: int, entry: Entry) -> None:
        self._levels[kind] = entry

    def running(self) -> int:
        return self._running

    def add_running(self, by: int) -> None:
        self._running += by
        if self._running < 0:
            raise RuntimeError("more requests have ended than began")


class SharedLedgers:
    """The lines that all edges of a server see."""

    def __init__(self, descriptor: int, number: int) -> None:
        """Takes the descriptor over, of memory that may be empty yet. number: of this edge."""
        if not 0 <= number < EDGES_MAX:
            raise ValueError("more edges than have a count")
        self._descriptor = descriptor
        os.ftruncate(descriptor, LINES_MAX * LINE_BYTES)
        self._memory = mmap.mmap(descriptor, LINES_MAX * LINE_BYTES)
        self._number = number
        self._counted = {number}
        """Whose running requests count. What an edge that ended badly had stays in memory: only the
        next one of its number may clear it, for somebody slow to hear would clear that one's."""
        self._depth = 0
        with self.locked():
            for line in range(LINES_MAX):
                at = line * LINE_BYTES
                if not any(self._memory[at : at + NAME_BYTES]):
                    break
                COUNT.pack_into(self._memory, at + COUNTS_AT + number * COUNT.size, 0)

    @contextlib.contextmanager
    def locked(self) -> Generator[None]:
        """No other edge reads or writes. May be entered again within."""
        if not self._depth:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX)
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            if not self._depth:
                fcntl.lockf(self._descriptor, fcntl.LOCK_UN)

    def of(self, name: str) -> Ledger:
        """Of the key with this name. One more than there is room for is counted by this edge alone,
        so that its limits hold per worker."""
        digest = hashlib.blake2b(name.encode(), digest_size=NAME_BYTES).digest()
        with self.locked():
            for line in range(LINES_MAX):
                at = line * LINE_BYTES
                found = self._memory[at : at + NAME_BYTES]
                if not any(found):
                    self._memory[at : at + NAME_BYTES] = digest
                    found = digest
                if found == digest:
                    return _SharedLedger(self, self._memory, at, self._number)
        return OwnLedger()

    def came(self, number: int) -> None:
        """That edge runs too."""
        self._counted.add(number)

    def gone(self, number: int) -> None:
        """It has ended, and what it had with it."""
        if number == self._number:
            raise ValueError("an edge that asks has not ended")
        self._counted.discard(number)

    def counted(self, counts: tuple[int, ...]) -> int:
        """The sum of those that run."""
        return sum(counts[number] for number in self._counted)

    def close(self) -> None:
        """No ledger is asked any more."""
        self._memory.close()
        os.close(self._descriptor)


class _SharedLedger:
    """One line."""

    def __init__(self, all_of_them: SharedLedgers, memory: mmap.mmap, at: int, number: int) -> None:
        self._all = all_of_them
        self._memory = memory
        self._at = at
        self._mine = at + COUNTS_AT + number * COUNT.size

    def locked(self) -> contextlib.AbstractContextManager[None]:
        return self._all.locked()

    def read(self, kind: int) -> Entry:
        at = self._at + LEVELS_AT + kind * LEVELS.size
        return Entry(*LEVELS.unpack_from(self._memory, at))

    def write(self, kind: int, entry: Entry) -> None:
        LEVELS.pack_into(self._memory, self._at + LEVELS_AT + kind * LEVELS.size, *entry)

    def running(self) -> int:
        counts = struct.unpack_from(f"={EDGES_MAX}i", self._memory, self._at + COUNTS_AT)
        return self._all.counted(counts)

    def add_running(self, by: int) -> None:
        count = COUNT.unpack_from(self._memory, self._mine)[0] + by
        if count < 0:
            raise RuntimeError("more requests have ended than began")
        COUNT.pack_into(self._memory, self._mine, count)

"""What is kept in memory for all tenants of a server, bounded, and fair between them.

defines: TenantMemory
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

Value = TypeVar("Value")


class TenantMemory(Generic[Value]):
    """Values by owner and name. Where there are too many, or too many bytes of them, the owner who
    has the most loses the one that he used least recently: nobody loses anything for an owner who
    keeps more than he does. May be used from several threads."""

    def __init__(
        self, values_max: int, bytes_max: int, size_bytes: Callable[[Value], int] = lambda value: 1
    ) -> None:
        if values_max < 1 or bytes_max < 1:
            raise ValueError("there is nothing to remember with")
        self._values_max, self._bytes_max = values_max, bytes_max
        self._size_bytes = size_bytes
        self._owners: dict[bytes, OrderedDict[str, Value]] = {}
        """Least recently used first; none without a value."""
        self._owner_bytes: dict[bytes, int] = {}
        self._count = 0
        self._lock = threading.Lock()
        self.bytes = 0

    def __len__(self) -> int:
        return self._count

    def keep(self, owner: bytes, name: str, value: Value) -> None:
        """Others may go for it. One too large for the whole memory is not kept."""
        if self._size_bytes(value) > self._bytes_max:
            return
        with self._lock:
            self._take(owner, name)
            self._owners.setdefault(owner, OrderedDict())[name] = value
            self._count += 1
            self._add_bytes(owner, self._size_bytes(value))
            while self._count > self._values_max:
                self._drop_of(max(self._owners, key=lambda one: len(self._owners[one])))
            while self.bytes > self._bytes_max:
                self._drop_of(max(self._owners, key=self._owner_bytes.__getitem__))

    def find(self, owner: bytes, name: str) -> Value | None:
        """None if it is not kept, or is another owner's."""
        with self._lock:
            values = self._owners.get(owner)
            if values is None or name not in values:
                return None
            values.move_to_end(name)
            return values[name]

    def forget(self, owner: bytes, name: str) -> bool:
        """Whether it was kept."""
        with self._lock:
            return self._take(owner, name)

    def _drop_of(self, owner: bytes) -> None:
        self._take(owner, next(iter(self._owners[owner])))

    def _take(self, owner: bytes, name: str) -> bool:
        values = self._owners.get(owner)
        if values is None or name not in values:
            return False
        self._count -= 1
        self._add_bytes(owner, -self._size_bytes(values.pop(name)))
        if not values:
            del self._owners[owner], self._owner_bytes[owner]
        return True

    def _add_bytes(self, owner: bytes, size: int) -> None:
        self.bytes += size
        self._owner_bytes[owner] = self._owner_bytes.get(owner, 0) + size

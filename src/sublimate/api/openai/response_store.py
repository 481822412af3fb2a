"""Responses that were made, for who goes on from one: in memory, bounded, gone with the process.

defines: Kept, ResponseStore, store_of
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import msgspec

from ...edge.errors import ApiError
from ...model.tool_formats import ToolCall, ToolResult
from ...model.turns import Text, Thinking, Turn

if TYPE_CHECKING:
    from ...edge.app import EdgeServer

KEPT_MAX = 4096
BYTES_MAX = 64 << 20
OVERHEAD_BYTES = 512
"""Of one that is kept, beside its texts."""


class Kept(msgspec.Struct, frozen=True):
    """A response, and the conversation up to its end. Conversations that go on share turns, so
    what they take together is less than the sum of `size_bytes`."""

    body: bytes
    turns: tuple[Turn, ...]
    """Without instructions: those are of one response alone."""
    inputs: tuple[Turn, ...] = ()
    """Those of it that it was an answer to."""

    @property
    def size_bytes(self) -> int:
        return OVERHEAD_BYTES + len(self.body) + sum(map(_turn_bytes, self.turns))


def _turn_bytes(turn: Turn) -> int:
    total = OVERHEAD_BYTES
    for block in turn.blocks:
        if isinstance(block, Text | Thinking | ToolResult):
            total += len(block.text)
        elif isinstance(block, ToolCall):
            total += len(block.arguments)
    return total


class ResponseStore:
    """Of one server; each owner meets his own alone. May be used from several threads."""

    def __init__(self, kept_max: int = KEPT_MAX, bytes_max: int = BYTES_MAX) -> None:
        self._kept_max, self._bytes_max = kept_max, bytes_max
        self._kept: OrderedDict[tuple[bytes, str], Kept] = OrderedDict()
        """Least recently used first."""
        self._lock = threading.Lock()
        self.bytes = 0

    def keep(
        self,
        owner: bytes,
        identifier: str,
        body: bytes,
        turns: Sequence[Turn],
        inputs: Sequence[Turn] = (),
    ) -> None:
        """The oldest go for it. One too large for the whole store is not kept."""
        kept = Kept(body, tuple(turns), tuple(inputs))
        if kept.size_bytes > self._bytes_max:
            return
        with self._lock:
            self._kept[owner, identifier] = kept
            self.bytes += kept.size_bytes
            while self.bytes > self._bytes_max or len(self._kept) > self._kept_max:
                self.bytes -= self._kept.popitem(last=False)[1].size_bytes

    def find(self, owner: bytes, identifier: str) -> Kept:
        """Raises ApiError (404)."""
        with self._lock:
            kept = self._kept.get((owner, identifier))
            if kept is None:
                raise ApiError("response_not_found")
            self._kept.move_to_end((owner, identifier))
            return kept

    def forget(self, owner: bytes, identifier: str) -> None:
        """Raises ApiError (404)."""
        with self._lock:
            kept = self._kept.pop((owner, identifier), None)
            if kept is None:
                raise ApiError("response_not_found")
            self.bytes -= kept.size_bytes

    def __len__(self) -> int:
        return len(self._kept)


_STORES: WeakKeyDictionary[EdgeServer, ResponseStore] = WeakKeyDictionary()


def store_of(server: EdgeServer) -> ResponseStore:
    return _STORES.setdefault(server, ResponseStore())

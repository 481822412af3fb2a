"""Responses that were made, for who goes on from one: in memory, bounded, gone with the process.

defines: Kept, not_elsewhere, ResponseStore
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from ...edge.errors import ApiError
from ...edge.relay import ElsewhereError, kept_elsewhere
from ...model.tool_formats import ToolCall, ToolResult
from ...model.turns import Text, Thinking, Turn
from ..tenant_memory import TenantMemory

if TYPE_CHECKING:
    from ...edge.app import EdgeServer
    from ...edge.exchange import Exchange

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


def not_elsewhere(
    server: EdgeServer, exchange: Exchange, identifier: str, error_code: str = "response_not_found"
) -> None:
    """Raises ElsewhereError for a response that another worker has made, and so keeps. error_code:
    of the error if that worker does not run."""

    def otherwise() -> None:
        raise ApiError(error_code)

    if (worker := kept_elsewhere(server, exchange, identifier)) is not None:
        raise ElsewhereError(worker, otherwise)


class ResponseStore:
    """Part of one server; each owner meets his own alone. May be used from several threads."""

    def __init__(
        self, server: EdgeServer | None = None, kept_max: int = KEPT_MAX, bytes_max: int = BYTES_MAX
    ) -> None:
        del server  # nothing of it is needed
        self._memory = TenantMemory[Kept](kept_max, bytes_max, lambda kept: kept.size_bytes)

    @property
    def bytes(self) -> int:
        return self._memory.bytes

    def __len__(self) -> int:
        return len(self._memory)

    def keep(
        self,
        owner: bytes,
        identifier: str,
        body: bytes,
        turns: Sequence[Turn],
        inputs: Sequence[Turn] = (),
    ) -> None:
        """Older ones go for it, of who keeps the most. One too large for the whole store is not
        kept."""
        self._memory.keep(owner, identifier, Kept(body, tuple(turns), tuple(inputs)))

    def find_or_none(self, owner: bytes, identifier: str) -> Kept | None:
        return self._memory.find(owner, identifier)

    def find(self, owner: bytes, identifier: str) -> Kept:
        """Raises ApiError (404)."""
        kept = self.find_or_none(owner, identifier)
        if kept is None:
            raise ApiError("response_not_found")
        return kept

    def forget(self, owner: bytes, identifier: str) -> None:
        """Raises ApiError (404)."""
        if not self._memory.forget(owner, identifier):
            raise ApiError("response_not_found")

    def drain(self) -> None:
        """It begins nothing."""

    def close(self) -> None:
        """It goes with the server."""

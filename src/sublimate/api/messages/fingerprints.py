"""What the prompts of recent messages were, as digests: enough to say where a later one diverged.

defines: Fingerprint, fingerprint, Fingerprints
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from ...edge.generation import Generation
from ..tenant_memory import TenantMemory

if TYPE_CHECKING:
    from ...edge.app import EdgeServer

MESSAGES_MAX = 4096
"""Remembered. Some 500 bytes each."""

MissReason = Literal[
    "",
    "model_changed",
    "system_changed",
    "tools_changed",
    "messages_changed",
    "previous_message_not_found",
]


class Fingerprint(msgspec.Struct, frozen=True):
    """Of one prompt."""

    model: str
    system: bytes
    tools: bytes
    blocks: int
    """Of all messages behind the system prompt."""
    messages: bytes
    tokens: int = 0
    """Known once they are counted."""


def fingerprint(generation: Generation) -> Fingerprint:
    system, blocks = _parts(generation)
    return Fingerprint(
        generation.model_name,
        _digest(system),
        _digest(generation.tools),
        len(blocks),
        _digest(blocks),
    )


def _parts(generation: Generation) -> tuple[Sequence[Any], list[Any]]:
    """The system prompt, and the blocks behind it with their roles."""
    turns = generation.turns
    has_system = bool(turns) and turns[0].role == "system"
    rest = turns[1:] if has_system else turns
    return turns[0].blocks if has_system else (), [(t.role, b) for t in rest for b in t.blocks]


def _digest(value: Any) -> bytes:
    return hashlib.sha256(msgspec.json.encode(value)).digest()


class Fingerprints:
    """Part of one server: by owner and message id. May be used from several threads."""

    def __init__(self, server: EdgeServer | None = None, messages_max: int = MESSAGES_MAX) -> None:
        del server  # nothing of it is needed
        self._known = TenantMemory[Fingerprint](messages_max, messages_max)

    def __len__(self) -> int:
        return len(self._known)

    def remember(self, owner: bytes, message_id: str, entry: Fingerprint) -> None:
        self._known.keep(owner, message_id, entry)

    def drain(self) -> None:
        """It begins nothing."""

    def close(self) -> None:
        """It goes with the server."""

    def compare(
        self, owner: bytes, message_id: str, generation: Generation
    ) -> tuple[MissReason, int]:
        """(what of this prompt is not as it was, if anything; tokens of the prompt then)."""
        before = self._known.find(owner, message_id)
        if before is None:
            return "previous_message_not_found", 0
        if before.model != generation.model_name:
            return "model_changed", before.tokens
        system, blocks = _parts(generation)
        if before.system != _digest(system):
            return "system_changed", before.tokens
        if before.tools != _digest(generation.tools):
            return "tools_changed", before.tokens
        if before.messages != _digest(blocks[: before.blocks]):
            return "messages_changed", before.tokens
        return "", before.tokens

"""What surfaces and listeners keep for the life of a server.

defines: Part, SomePart
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from .app import EdgeServer


class Part(Protocol):
    """What a surface keeps for the life of a server."""

    def __init__(self, server: EdgeServer) -> None: ...

    def drain(self) -> None:
        """Begin nothing new."""
        ...

    def close(self) -> None: ...


SomePart = TypeVar("SomePart", bound=Part)

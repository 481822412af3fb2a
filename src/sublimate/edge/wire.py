"""What carries one answer to its client: HTTP/1.1, a stream of HTTP/3, a call of gRPC.

An exchange says what is answered and when; a wire knows how that looks on its transport. Handlers
know neither.

defines: Header, Wire
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from .exchange import Exchange

Header = tuple[str, str]
"""Name in lower case, and value."""


class Wire(Protocol):
    """One of these is used once: `whole`; or `begin`, then `send` any number of times, then
    `finish`. After either the exchange calls `answered`. On the event loop's thread only."""

    standing: Sequence[Header]
    """Of every answer on this transport."""
    has_trailers: bool
    """What `finish` is given arrives."""
    chunked: bool
    """Pieces of a stream are chunks of HTTP/1.1: for the text path, which makes them ready."""

    @property
    def connection_key(self) -> bytes:
        """Its connection's, as the kernel knows it (kernel/keys.py); empty if it does not."""
        ...

    @property
    def protocol(self) -> str:
        """HTTP/1.1 over TLS, HTTP/3: for people, logs and counters."""
        ...

    @property
    def descriptor(self) -> int:
        """Of the socket that takes framed pieces as they are, for who may write to it while
        nothing waits here; -1 if nobody may."""
        ...

    @property
    def is_closing(self) -> bool:
        """The client reads no more."""
        ...

    def whole(self, status: int, fields: Sequence[Header], body: bytes, /) -> None:
        """Head and all of a body, which is empty for HEAD whatever `content-length` says."""
        ...

    def begin(self, status: int, fields: Sequence[Header], pieces: bytes, /) -> bool:
        """Head of a stream and its first pieces, framed; as `send`."""
        ...

    def send(self, pieces: bytes, /) -> bool:
        """Framed pieces of a stream. True: all of it is with the kernel, nothing waits here."""
        ...

    def finish(self, pieces: bytes, trailers: Sequence[Header] = (), /) -> None:
        """The last pieces, framed, and the end of the stream. Where there are no trailers they
        are left out."""
        ...

    def answered(self, exchange: Exchange, /) -> None:
        """The answer is complete: what follows on the connection?"""
        ...

    def last(self) -> None:
        """What comes behind this request cannot be trusted: no answer follows this one."""
        ...

    def framed(self, frames: bytes, /) -> bytes:
        """Bytes of a stream as `begin`, `send` and `finish` take them."""
        ...

    def unsent_bytes(self) -> int:
        """Of what waits here for a client that reads slowly."""
        ...

    def resume_body(self) -> None:
        """The request's sink has room for more of its body."""
        ...

    def cut(self) -> None:
        """End it at once: its client takes nothing."""
        ...

    def base_url(self) -> str:
        """Of this server as the client reached it, by address: a host field may say anything."""
        ...

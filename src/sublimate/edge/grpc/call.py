"""One call, whatever carries it: a transport in front, its method's side behind.

    transport ── head, messages, end of messages ──► Call ──► Talk: a route, health, reflection
    transport ◄── head, messages, status ─────────── Call ◄──

A transport makes a Call when the head of a request has come and tells it what follows; the call
tells the transport, its Carrier, what to send. A call ends once: by its answer, an error, its
deadline, its client's cancel, or because its client reads too slowly. Whatever runs for it ends
with it.

defines: is_call, check_call, Carrier, Talk, Method, Call
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from ..errors import ApiError
from ..exchange import new_identifier
from ..wire import Header
from .framing import CODINGS, IDENTITY, timeout_seconds
from .status import Status, status_of

if TYPE_CHECKING:
    from ..app import EdgeServer

LOG = logging.getLogger("sublimate.edge")
GRPC_TYPE = b"application/grpc"


def is_call(fields: dict[bytes, bytes]) -> bool:
    """Whether a request, by its header fields, is a call and not one of the HTTP API."""
    return fields.get(b"content-type", b"").startswith(GRPC_TYPE)


def check_call(verb: str, fields: dict[bytes, bytes]) -> None:
    """Raises ApiError for a call that is none: it is answered by that error's HTTP status."""
    kind = fields.get(b"content-type", b"").partition(b";")[0].strip()
    if verb != "POST" or kind not in (GRPC_TYPE, GRPC_TYPE + b"+proto"):
        raise ApiError("call_content_type")


class Carrier(Protocol):
    """What a transport does for one call. Nothing here waits or raises; what cannot be sent any
    more is dropped."""

    protocol: str
    """gRPC over HTTP/2, gRPC over HTTP/3: for people, logs and counters."""

    def head(self, fields: Sequence[Header], /) -> None:
        """Initial metadata. Once, and not at all where the call fails before its first message."""
        ...

    def messages(self, messages: Sequence[bytes], /) -> None:
        """Whole messages, without their prefixes."""
        ...

    def end(self, status: Status, /) -> None:
        """The last that is sent: trailers, or without a head before, Trailers-Only."""
        ...

    def unsent_bytes(self) -> int:
        """Of messages that wait for a client that reads slowly."""
        ...

    def base_url(self) -> str: ...


class Talk(Protocol):
    """A method's side of one call. What it raises becomes the call's error."""

    def message(self, data: bytes, /) -> None:
        """One message of the client's."""
        ...

    def end(self) -> None:
        """The client has said all."""
        ...

    def gone(self, error: ApiError | None, /) -> None:
        """The call has ended and its answer was not complete: with this error, or without one
        because its client has left."""
        ...


Method = Callable[["Call"], Talk]
"""Called when the head of a call has come. Raises ApiError."""


class Call:
    """One call. On the event loop's thread only."""

    def __init__(
        self, server: EdgeServer, carrier: Carrier, path: str, fields: dict[bytes, bytes]
    ) -> None:
        """`path`: /package.Service/Method. `fields`: metadata, in the form that Request has
        fields; of several values under one name, the list."""
        self.server = server
        self.carrier = carrier
        self.path = path
        self.fields = fields
        self.request_id = new_identifier("req")
        self.has_ended = False
        self.was_cancelled = False
        """Its client has said that it wants no answer; one whose connection is lost has not."""
        self._talk: Talk | None = None
        self._has_head = False
        self._deadline: asyncio.TimerHandle | None = None

    # ---- from the transport --------------------------------------------------------------------
    def begin(self) -> None:
        """The head has come."""
        if self._talk is not None:
            raise RuntimeError("a call begins once")
        self.guarded(self._begin)

    def _begin(self) -> None:
        if (text := self.fields.get(b"grpc-timeout")) is not None:
            seconds = timeout_seconds(text)
            self._deadline = self.server.loop.call_later(seconds, self._deadline_passed)
        if self.fields.get(b"grpc-encoding", IDENTITY) not in (IDENTITY, *CODINGS):
            raise ApiError("call_encoding")
        method = self.server.routes.calls.get(self.path)
        if method is None:
            raise ApiError("call_unknown")
        self._talk = method(self)

    def message(self, data: bytes) -> None:
        """A whole message of the client's."""
        if self._talk is not None:
            self.guarded(self._talk.message, data)

    def end_of_messages(self) -> None:
        if self._talk is not None:
            self.guarded(self._talk.end)

    def cancelled(self, *, is_said: bool = False) -> None:
        """The client has cancelled (is_said: certainly), or its connection is lost. Nothing is sent
        any more."""
        if not self.has_ended:
            self.was_cancelled = is_said
            talk = self._over("cancelled")
            if talk is not None:
                talk.gone(None)

    def guarded(self, step: Callable[..., None], *arguments: bytes) -> None:
        if self.has_ended:
            return
        try:
            step(*arguments)
        except ApiError as error:
            self.fail(error)
        except Exception:
            LOG.exception("%s: a call failed", self.request_id)
            self.fail(ApiError("internal"))

    # ---- to the transport ----------------------------------------------------------------------
    def reply(self, messages: Sequence[bytes], fields: Sequence[Header] = ()) -> None:
        """Messages of the answer; its head, made of `fields`, goes with the first of them. A client
        that has left too much of those before unread gets that as an error, and no more."""
        if self.has_ended:
            return
        if self.carrier.unsent_bytes() > self.server.limits.unsent_bytes_max:
            self.fail(ApiError("call_slow_reader"))
            return
        if not self._has_head:
            self._has_head = True
            self.carrier.head(fields)
        if messages:
            self.carrier.messages(messages)

    def complete(self) -> None:
        """The answer is whole."""
        if not self.has_ended:
            self._over("ok")
            self.carrier.end(Status())

    def fail(self, error: ApiError, fields: Sequence[Header] = ()) -> None:
        """End with an error. `fields`: those of the answer's head, if it has none yet."""
        if not self.has_ended:
            talk = self._over(error.code)
            shown = () if self._has_head else fields
            self.carrier.end(status_of(error, self.request_id, shown))
            if talk is not None:
                talk.gone(error)

    def _deadline_passed(self) -> None:
        self.fail(ApiError("call_deadline"))

    def _over(self, how: str) -> Talk | None:
        """From here on nothing of it is heard or said. Returns its method's side."""
        self.has_ended = True
        self.server.metrics.calls[self.carrier.protocol, how] += 1
        if self._deadline is not None:
            self._deadline.cancel()
        talk, self._talk = self._talk, None
        return talk

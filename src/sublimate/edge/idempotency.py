"""Answers that are kept for a while, for clients that repeat a POST with the same idempotency-key.

The same key may come another way: over HTTP or as a call of gRPC, for events or for binary frames.
The answer is kept as it was first asked for, and told to each reader in the form that it asks for.

The first request with a key runs in an exchange of its own, whose wire is an Outcome: it writes the
answer down and passes it on to whoever asked, the first client among them. A repeat gets all of it
from the beginning, while it runs or after. A client whose connection is lost leaves the answer
running for some seconds, so that it finds it when it comes back; one that cancels, as HTTP/3 can,
ends it at once.

It keeps what a repeat should get: whole answers, and refusals that a retry would get again.
Bounded per tenant, in bytes, number and age.

defines: FIELD, may_repeat, keeper_of, Outcome, Outcomes
"""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from . import limits
from .coding import FRAMES_TYPE, accepts_frames
from .errors import ApiError
from .exchange import EVENT_STREAM, Exchange, Request
from .json_bounds import decodable
from .routes import Retelling
from .wire import Header

if TYPE_CHECKING:
    from .app import EdgeServer

FIELD = b"idempotency-key"
KEY_BYTES_MAX = 255
LASTING = frozenset((400, 404, 405, 413, 422))
"""Statuses of errors that lie in the request, so that a retry would get them again."""
REPLAYED: Header = ("idempotency-replayed", "true")


class _Asked(msgspec.Struct):
    """The one member of a body that decides whether its answer is a stream."""

    stream: bool = False


def _is_stream(streams: bool | None, body: bytes) -> bool:
    """Of an answer: its transport says so, else the body."""
    if streams is not None:
        return streams
    try:
        return msgspec.json.decode(decodable(body), type=_Asked).stream
    except (msgspec.DecodeError, RecursionError):  # its handler reports it
        return False


def keeper_of(owner: bytes, key: bytes, workers: int) -> int:
    """The worker whose edge keeps the answer under this key."""
    if workers < 1:
        raise ValueError("there is a worker")
    digest = hashlib.blake2b(key, key=hashlib.sha256(owner).digest(), digest_size=8).digest()
    return int.from_bytes(digest, "little") % workers


class _Making(Exchange):
    """The exchange that makes an answer."""

    __slots__ = ("_outcome",)

    def __init__(self, outcome: Outcome, request: Request) -> None:
        super().__init__(outcome, request)
        self._outcome = outcome

    def fail(self, error: ApiError) -> None:
        if not self.answered:
            self._outcome.error = error.bare()
        super().fail(error)


class _Reading(msgspec.Struct):
    """How one reader gets it."""

    is_repeat: bool
    retell: Callable[[bytes], bytes] | None = None
    """Into the form that this reader asks for; None: it is kept in that."""

    def told(self, pieces: bytes) -> bytes:
        return pieces if self.retell is None else self.retell(pieces)


class Outcome:
    """One answer, as far as it is made: the wire of the exchange that makes it."""

    chunked = False
    has_trailers = False
    descriptor = -1
    standing: Sequence[Header] = ()
    connection_key = b""

    def __init__(self, store: Outcomes, owner: bytes, key: bytes, digest: bytes) -> None:
        self.digest = digest
        self.streams: bool | None = None
        """As its first transport asked for it (see Exchange)."""
        self.error: ApiError | None = None
        """That it ended in, for readers that tell errors in their own way."""
        self.owner = owner
        self.key = key
        self.protocol = ""
        self.expires_seconds = 0.0
        self.size_bytes = 0
        self.is_complete = False
        self.is_closing = False
        self._store = store
        self._url = ""
        self._exchange: Exchange | None = None
        self._readers: dict[Exchange, _Reading] = {}
        """Who gets it."""
        self._head: tuple[int, Sequence[Header]] | None = None
        self._is_stream = False
        self._content: list[bytes] = []
        self._times_left = 0
        """How often its last reader has gone."""

    # ---- readers -------------------------------------------------------------------------------
    def first(self, reader: Exchange) -> Exchange:
        """The exchange that makes the answer, in place of the reader's own."""
        asked = reader.request
        fields = {name: value for name, value in asked.fields.items() if name != b"accept-encoding"}
        request = Request(asked.method, asked.target, fields)
        request.body = asked.body
        self.protocol, self._url = reader.wire.protocol, reader.base_url()
        exchange = self._exchange = _Making(self, request)
        exchange.request_id = reader.request_id
        exchange.started_seconds = reader.started_seconds
        exchange.handler, exchange.error_shape = reader.handler, reader.error_shape
        exchange.is_relayed = reader.is_relayed
        exchange.owner, exchange.standing_headers = reader.owner, reader.standing_headers
        exchange.streams = self.streams = reader.streams
        self._join(reader, is_repeat=False)
        return exchange

    def repeat(self, reader: Exchange) -> None:
        """All that there is of it, and then what comes."""
        self._join(reader, is_repeat=True)
        if self._head is None:
            return
        if self._is_stream:
            self._start(reader, b"".join(self._content))
            if self.is_complete:
                reader.finish()
        else:
            self._pass_on(reader, b"".join(self._content))
        self._told(reader)

    def _join(self, reader: Exchange, *, is_repeat: bool) -> None:
        if reader in self._readers:
            raise RuntimeError("a reader asks once")
        self._readers[reader] = _Reading(is_repeat)
        reader.on_gone = lambda: self._left(reader)

    def _fields(self, reading: _Reading) -> tuple[int, Sequence[Header]]:
        """Status and head for this reader."""
        if self._head is None:
            raise RuntimeError("an answer begins with its head")
        status, fields = self._head
        return status, [*fields, REPLAYED] if reading.is_repeat else fields

    def _pass_on(self, reader: Exchange, body: bytes) -> None:
        """The whole answer."""
        if self._is_stream:
            raise RuntimeError("a stream is passed on in pieces")
        if self.error is not None and reader.is_of_call:
            reader.fail(self.error)
        else:
            reader.pass_on(*self._fields(self._readers[reader]), body)

    def _start(self, reader: Exchange, pieces: bytes) -> None:
        """A stream's head and what there is of it."""
        if not self._is_stream:
            raise RuntimeError("a whole answer has no beginning")
        reading = self._readers[reader]
        status, fields = self._fields(reading)
        make = self._store.retelling(reader)
        is_framed = ("content-type", FRAMES_TYPE) in fields
        if make is not None and is_framed != accepts_frames(reader.request.field(b"accept")):
            kind = EVENT_STREAM if is_framed else FRAMES_TYPE
            fields = [(name, kind if name == "content-type" else value) for name, value in fields]
            reading.retell = make(not is_framed)
        reader.pass_on_stream(status, fields, reading.told(pieces))

    def _left(self, reader: Exchange) -> None:
        self._readers.pop(reader, None)
        if self._readers or self.is_complete:
            return
        self._times_left += 1
        left = self._times_left
        if reader.was_cancelled:
            self._give_up(left)
        else:
            self._store.later(lambda: self._give_up(left))

    def _give_up(self, left: int) -> None:
        """Nobody wants it: the last reader has cancelled, or has not come back since it was left
        for that time."""
        if self._readers or self.is_complete or self._exchange is None:
            return
        if left != self._times_left:
            return
        self.is_closing = True
        self._store.drop(self)
        self._exchange.client_gone()

    def _told(self, reader: Exchange) -> None:
        """It may have had all of it."""
        if reader.answered:
            reading = self._readers.pop(reader, None)
            if reading is not None and reading.is_repeat:
                self._store.note(reader)

    # ---- Wire ----------------------------------------------------------------------------------
    def whole(self, status: int, fields: Sequence[Header], body: bytes, /) -> None:
        self._begin(status, fields, is_stream=False)
        self._keep(body)
        for reader in list(self._readers):
            self._pass_on(reader, body)
            self._told(reader)

    def begin(self, status: int, fields: Sequence[Header], pieces: bytes, /) -> bool:
        self._begin(status, fields, is_stream=True)
        self._keep(pieces)
        for reader in list(self._readers):
            self._start(reader, pieces)
        return False

    def send(self, pieces: bytes, /) -> bool:
        self._keep(pieces)
        for reader, reading in list(self._readers.items()):
            if reader.streaming and (told := reading.told(pieces)):
                reader.write(reader.framed(told))
        return False

    def finish(self, pieces: bytes, trailers: Sequence[Header] = (), /) -> None:
        del trailers
        self._keep(pieces)
        for reader, reading in list(self._readers.items()):
            if self.error is not None and reader.is_of_call:
                reader.fail(self.error)
            else:
                told = reading.told(pieces)
                reader.finish(reader.framed(told) if told else b"")
            self._told(reader)

    def answered(self, exchange: Exchange, /) -> None:
        if self.is_complete:
            raise RuntimeError("an answer ends once")
        self.is_complete = True
        self._readers.clear()
        # Thousands of small pieces take more than what is in them.
        self._content = [b"".join(self._content)]
        is_lasting = not exchange.error_code or exchange.status in LASTING
        if not is_lasting or (self._is_stream and exchange.error_code):
            self._store.drop(self)
        self._exchange = None

    def _begin(self, status: int, fields: Sequence[Header], *, is_stream: bool) -> None:
        if self._head is not None:
            raise RuntimeError("an answer has one head")
        self._head, self._is_stream = (status, fields), is_stream

    def _keep(self, data: bytes) -> None:
        self.size_bytes += len(data)
        self._content.append(data)
        self._store.grown(self, len(data))

    def forget(self) -> None:
        """It is kept no longer; who reads it goes on."""
        self._content = []

    def last(self) -> None:
        for reader in self._readers:
            reader.wire.last()

    def framed(self, frames: bytes, /) -> bytes:
        return frames

    def unsent_bytes(self) -> int:
        return max((reader.unsent_bytes() for reader in self._readers), default=0)

    def resume_body(self) -> None:
        """The body was there before the answer was begun."""

    def cut(self) -> None:
        for reader in list(self._readers):
            reader.cut()

    def base_url(self) -> str:
        return self._url


class Outcomes:
    """What is kept, by owner and key. A Part of its server."""

    def __init__(self, server: EdgeServer) -> None:
        self._server = server
        self._known: dict[bytes, OrderedDict[bytes, Outcome]] = {}
        self._bytes: dict[bytes, int] = {}

    def enter(self, exchange: Exchange) -> Exchange | None:
        """The exchange to handle in place of this one; None if it gets an answer that another
        makes or has made. Raises ApiError for a key that is none, or is another request's."""
        request, owner = exchange.request, exchange.tenant_key
        key = request.fields[FIELD]
        if not 0 < len(key) <= KEY_BYTES_MAX or not key.isascii():
            raise ApiError("idempotency_key", maximum=KEY_BYTES_MAX)
        told = [request.method.encode(), request.target, request.body]
        digest = hashlib.sha256(b"\0".join(told)).digest()
        mine = self._known.setdefault(owner, OrderedDict())
        self._expire(owner, mine)
        outcome = mine.get(key)
        if outcome is None:
            outcome = mine[key] = Outcome(self, owner, key, digest)
            outcome.expires_seconds = time.monotonic() + limits.OUTCOME_SECONDS
            return outcome.first(exchange)
        if outcome.digest != digest:
            raise ApiError("idempotency_mismatch")
        if outcome.streams != exchange.streams:
            is_stream = _is_stream(outcome.streams, request.body)
            if is_stream != _is_stream(exchange.streams, request.body):
                form = "a stream" if is_stream else "a whole message"
                raise ApiError("idempotency_form", form=form)
        outcome.repeat(exchange)
        return None

    def retelling(self, reader: Exchange) -> Retelling | None:
        """Of streams that this reader's handler makes."""
        return self._server.routes.retellings.get(reader.handler)

    def _expire(self, owner: bytes, mine: OrderedDict[bytes, Outcome]) -> None:
        """The oldest go, unless they still run."""
        now = time.monotonic()
        for outcome in list(mine.values()):
            is_over = now > outcome.expires_seconds
            is_full = len(mine) >= limits.OUTCOMES_MAX or self._is_full(owner)
            if not is_over and not is_full:
                break
            if outcome.is_complete:
                self.drop(outcome)

    def _is_full(self, owner: bytes) -> bool:
        return self._bytes.get(owner, 0) > limits.OUTCOME_BYTES_MAX

    def grown(self, outcome: Outcome, size: int) -> None:
        """More of an answer was made. One that is too large is not kept."""
        mine = self._known.get(outcome.owner)
        if mine is None or mine.get(outcome.key) is not outcome:
            outcome.forget()
            return
        self._bytes[outcome.owner] = self._bytes.get(outcome.owner, 0) + size
        if self._is_full(outcome.owner):
            self._expire(outcome.owner, mine)
        if self._is_full(outcome.owner):
            self.drop(outcome)

    def drop(self, outcome: Outcome) -> None:
        """Forget it: a repeat is a new request."""
        mine = self._known.get(outcome.owner, OrderedDict())
        if mine.get(outcome.key) is outcome:
            del mine[outcome.key]
            self._bytes[outcome.owner] = self._bytes.get(outcome.owner, 0) - outcome.size_bytes
            outcome.forget()

    def later(self, step: Callable[[], None]) -> None:
        """After the time in which a client may come back."""
        self._server.loop.call_later(limits.OUTCOME_GRACE_SECONDS, step)

    def note(self, exchange: Exchange) -> None:
        """A repeat has its answer."""
        self._server.refused(exchange)

    def drain(self) -> None:
        """What runs goes on."""

    def close(self) -> None:
        self._known.clear()


def may_repeat(exchange: Exchange) -> bool:
    """It has a key under which its answer is kept. Uploads, whose bodies are not in memory, have
    none, nor have requests that no client sent."""
    request = exchange.request
    is_asked = type(exchange) is Exchange or exchange.is_of_call
    is_plain = is_asked and exchange.sink is None and not exchange.is_carrier
    return FIELD in request.fields and request.method == "POST" and is_plain

"""One request with its answer. Handlers write here; a wire (wire.py) carries it to the client."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import unquote

import msgspec

from ..policy.decision import Decision
from .coding import accepts_gzip, compress, pays
from .errors import MESSAGES_SHAPE, ApiError, ErrorShape
from .quota import NOBODY, GiveWay, Lease
from .wire import Header, Wire

if TYPE_CHECKING:
    from .observe.timing import Timing

JSON_TYPE = ("content-type", "application/json")
DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
MONTHS = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split()
EVENT_STREAM = "text/event-stream; charset=utf-8"
STREAM_HEADERS = (("cache-control", "no-cache"), ("x-accel-buffering", "no"))
"""The second makes proxies such as nginx pass each event on at once."""
REQUEST_ID_BYTES = 12

RELAYED_LENGTH_BYTES = 4
NOT_OF_A_TARGET = re.compile(rb"[\x00-\x20\x7f]")
NOT_OF_A_NAME = re.compile(rb"[\x00-\x20\x7f]")
NOT_OF_A_VALUE = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
IDENTIFIER = re.compile(r"[a-z]+_([0-9a-f]{2})[0-9a-f]{22}", re.ASCII)


class _Sequence:
    """Identifiers that are unique without a draw of randomness each."""

    def __init__(self) -> None:
        self.prefix = secrets.token_hex(REQUEST_ID_BYTES // 2)
        """Of this process."""
        self._next = secrets.randbits(REQUEST_ID_BYTES * 2)

    def take(self) -> str:
        self._next += 1
        return f"{self.prefix}{self._next & 0xFFFFFFFFFFFF:012x}"


_identifiers = _Sequence()


def name_process(worker: int) -> None:
    """Of several workers: from now on identifiers tell which one has made them."""
    if not 0 <= worker <= 0xFF:
        raise ValueError("a worker's number has two digits")
    _identifiers.prefix = f"{worker:02x}{_identifiers.prefix[2:]}"


def worker_of(identifier: str) -> int | None:
    """Who has made it, if it was one of several workers; None for what is no identifier of ours."""
    match = IDENTIFIER.fullmatch(identifier)
    return None if match is None else int(match[1], 16)


def new_identifier(kind: str) -> str:
    """req_... or msg_...: unique, not secret."""
    return f"{kind}_{_identifiers.take()}"


class Request:
    """What the client asked. `target` is the raw request target; path and query come from it."""

    __slots__ = ("body", "fields", "method", "path", "query", "target")

    def __init__(self, method: str, target: bytes, fields: dict[bytes, bytes]) -> None:
        self.method = method
        self.target = target
        self.fields = fields
        raw, _, query = target.decode("latin-1").partition("?")
        if not raw.startswith("/"):
            # The absolute form names a host, which is never used.
            _, found, rest = raw.partition("://")
            raw = "/" + rest.partition("/")[2] if found else raw
        self.path = raw
        self.query = query
        self.body = b""

    def segments(self) -> list[str]:
        """Decoded parts of the path; %2F stays inside its part."""
        return [unquote(part) for part in self.path.split("/")[1:]]

    def field(self, name: bytes) -> str:
        return self.fields.get(name, b"").decode("latin-1")

    def check(self) -> None:
        """Raises ApiError for bytes that would mean something else in another protocol: in a line
        of HTTP/1.1, of a log, or of a stream. Not every transport refuses them."""
        names, values = b"".join(self.fields), b"".join(self.fields.values())
        if NOT_OF_A_TARGET.search(self.target) or NOT_OF_A_NAME.search(names):
            raise ApiError("malformed_request")
        if NOT_OF_A_VALUE.search(values):
            raise ApiError("malformed_request")


class RelayedHead(msgspec.Struct, frozen=True, array_like=True):
    """The head of a request that another edge hands on (relay.py), in binary form: nothing that a
    client wrote can become another part of it."""

    method: str
    target: bytes
    fields: tuple[tuple[bytes, bytes], ...]
    base_url: str
    """URL of the server as the request's connection reached it."""
    streams: bool | None
    """As Exchange's."""
    body_bytes: int | None
    """None: the body comes in chunks."""

    def encoded(self) -> bytes:
        data = msgspec.msgpack.encode(self)
        return len(data).to_bytes(RELAYED_LENGTH_BYTES, "big") + data


def relayed_head(data: bytes) -> tuple[RelayedHead, bytes] | None:
    """The head and what follows it, once it is whole."""
    end = RELAYED_LENGTH_BYTES + int.from_bytes(data[:RELAYED_LENGTH_BYTES], "big")
    if len(data) < max(end, RELAYED_LENGTH_BYTES + 1):
        return None
    head = msgspec.msgpack.decode(data[RELAYED_LENGTH_BYTES:end], type=RelayedHead)
    return head, data[end:]


class BodySink(Protocol):
    """Where the body of a request goes while it arrives, if not into memory."""

    def feed(self, data: bytes) -> bool:
        """More of it, decoded. False: the connection is not read until `resume_body` is called."""
        ...

    def close(self) -> None:
        """The exchange has ended. Idempotent."""
        ...


class Exchange:
    """One request and the writer of its answer. On the event loop's thread only."""

    is_of_call = False
    """A call of gRPC asks, whose errors are told in its own way."""

    __slots__ = (
        "answered",
        "batch",
        "body_bytes",
        "chunked",
        "decision",
        "error_code",
        "error_shape",
        "fallback_ns",
        "give_way",
        "handler",
        "is_carrier",
        "is_kept_here",
        "is_relayed",
        "lease",
        "on_gone",
        "owner",
        "refusal",
        "request",
        "request_id",
        "sink",
        "standing_headers",
        "started_seconds",
        "status",
        "stream_type",
        "streaming",
        "streams",
        "timing",
        "was_cancelled",
        "was_noted",
        "was_slow",
        "wire",
    )

    def __init__(self, wire: Wire, request: Request) -> None:
        self.wire = wire
        self.chunked = wire.chunked
        """How pieces of a stream are framed."""
        self.request = request
        self.request_id = new_identifier("req")
        self.started_seconds = time.monotonic()
        self.body_bytes = 0
        """Of one for an answer."""
        self.sink: BodySink | None = None
        """Takes the body in place of `request.body`; closed when the exchange ends."""
        self.refusal: ApiError | None = None
        """Set by the head alone; handlers never see such a request."""
        self.error_code = ""
        """Of the error that it was answered with."""
        self.handler: Any = None
        """The handler of the matched route. It takes the server and the exchange."""
        self.error_shape: ErrorShape = MESSAGES_SHAPE
        """Of the surface whose path this is; of the answer, once that streams."""
        self.owner = NOBODY
        """Whose API key was accepted."""
        self.batch = ""
        """Id of the batch that it is one request of."""
        self.give_way: GiveWay | None = None
        """Ends it for a request of its owner that would find no place otherwise; None: it stays."""
        self.lease: Lease | None = None
        """What the owner's limits were charged for it."""
        self.is_kept_here = False
        """This worker keeps its answer, because the one that its idempotency key selects does not
        run."""
        self.is_relayed = False
        """Another edge of this server has handed it on (relay.py)."""
        self.is_carrier = False
        """Of a call of gRPC, which has an exchange of its own: logs and counters are that one's."""
        self.standing_headers: list[Header] = []
        """Headers of every answer on this exchange."""
        self.status = 0
        """0 until the head of the answer is written."""
        self.streams: bool | None = None
        """Whether the answer is a stream, where its transport has to know; None: the body says."""
        self.stream_type = ""
        """Content type of its answer, if that was a stream."""
        self.streaming = False
        self.answered = False
        self.was_noted = False
        """In log and counters, though it was never answered."""
        self.was_slow = False
        self.was_cancelled = False
        """Its client has said that it wants no answer; one whose connection is lost has not."""
        self.timing: Timing | None = None
        """Of an answer that the engine makes, from when its body was there."""
        self.decision: Decision | None = None
        """What the policy says of it, once its prompt is there."""
        self.fallback_ns = 0
        """When it was given to the fallback, on the monotonic clock; 0: it was not."""
        self.on_gone: Callable[[], None] | None = None
        """Called once when the client has gone before the answer was complete."""

    @property
    def tenant_key(self) -> bytes:
        """Names the owner in what is kept per tenant."""
        return self.owner.key

    # ---- whole answers -------------------------------------------------------------------------
    def send(self, status: int, headers: list[Header], body: bytes) -> None:
        """Head and body at once."""
        if self.answered:
            return
        if pays(len(body)):
            headers = [*headers, ("vary", "accept-encoding")]
            if accepts_gzip(self.request.field(b"accept-encoding")):
                body = compress(body)
                headers.append(("content-encoding", "gzip"))
        headers = self._fields(status, [*headers, ("content-length", str(len(body)))])
        self.pass_on(status, headers, body)

    def pass_on(self, status: int, fields: Sequence[Header], body: bytes) -> None:
        """A whole answer that was made elsewhere: all of its head is there."""
        if self.answered:
            raise RuntimeError("an answer ends once")
        self.status = status
        self._begin_end()
        self.wire.whole(status, fields, b"" if self.request.method == "HEAD" else body)
        self._end()

    def pass_on_stream(self, status: int, fields: Sequence[Header], frames: bytes) -> None:
        """The beginning of a stream that is made elsewhere."""
        if self.streaming or self.answered:
            raise RuntimeError("an answer has one head")
        self.status, self.streaming = status, True
        self.wire.begin(status, fields, self.framed(frames) if frames else b"")

    def send_json(self, status: int, body: bytes, headers: list[Header] | None = None) -> None:
        self.send(status, [JSON_TYPE, *(headers or [])], body)

    def fail(self, error: ApiError) -> None:
        """An error in the envelope; on a stream that has begun, as its last event."""
        if self.answered:
            return
        self.error_code = error.code
        if self.streaming:
            event = self.framed(self.error_shape.event(error, self.request_id))
            self.finish(event, self.error_shape.trailers(error, self.request_id))
            return
        if error.kind.close:
            self.wire.last()
        body = self.error_shape.body(error, self.request_id)
        fields = self.error_shape.fields(error, self.request_id)
        self.send(self.error_shape.status(error), fields, body)

    # ---- streams -------------------------------------------------------------------------------
    def start_stream(
        self, headers: list[Header], data: bytes, content_type: str = EVENT_STREAM
    ) -> bool:
        """The head of a stream of events, and its first bytes; as `write`."""
        if self.streaming or self.answered:
            raise RuntimeError("an answer has one head")
        self.streaming, self.stream_type = True, content_type
        stream = [("content-type", content_type), *STREAM_HEADERS, *headers]
        return self.wire.begin(200, self._fields(200, stream), data)

    def write(self, data: bytes) -> bool:
        """Bytes of a stream, framed. True: all of it is with the kernel, nothing waits here."""
        if not self.streaming:
            raise RuntimeError("a stream begins with its head and ends with `finish`")
        return self.wire.send(data)

    def finish(self, data: bytes = b"", trailers: Sequence[Header] = ()) -> None:
        """The last bytes of a stream, framed, and the fields behind it where its wire has such."""
        if self.answered:
            return
        self._begin_end()
        self.wire.finish(data, trailers)
        self._end()

    def framed(self, frames: bytes) -> bytes:
        """Events as this stream carries them."""
        return self.wire.framed(frames)

    def descriptor(self) -> int:
        """Of the socket, for who may write to it while nothing waits here; -1 if nobody may."""
        return self.wire.descriptor

    def _begin_end(self) -> None:
        self.answered = True
        self.on_gone = None

    def _end(self) -> None:
        self._close_sink()
        self.streaming = False
        self.wire.answered(self)

    def _fields(self, status: int, headers: list[Header]) -> list[Header]:
        """Of the answer's head, all but what its wire adds."""
        self.status = status
        return [
            ("date", _date()),
            *[(name, self.request_id) for name in self.error_shape.id_headers],
            *self.standing_headers,
            *headers,
        ]

    # ---- the other end -------------------------------------------------------------------------
    @property
    def gone(self) -> bool:
        """The client has closed before the answer was complete."""
        return self.wire.is_closing and not self.answered

    def client_gone(self, *, cancelled: bool = False) -> None:
        """From the wire: it is lost, or its client has cancelled this request."""
        self.was_cancelled |= cancelled
        callback, self.on_gone = self.on_gone, None
        if callback is not None and not self.answered:
            callback()
        self._close_sink()

    def _close_sink(self) -> None:
        if self.sink is not None:
            self.sink.close()

    def resume_body(self) -> None:
        """From the sink: there is room for more."""
        self.wire.resume_body()

    def cut(self) -> None:
        """End the connection, or its stream, at once: its client takes nothing."""
        self.was_slow = True
        self.wire.cut()

    def probe(self, interim: bytes, comment: bytes) -> None:
        """From the wire: send bytes that mean nothing, before the head or in a stream of events."""
        if self.status == 0 and self.chunked:
            self.wire.send(interim)
        elif self.streaming and self.stream_type == EVENT_STREAM:
            self.write(self.framed(comment))

    def slow_reader(self) -> None:
        """From the wire: the client leaves too much unread and is cut off."""
        self.was_slow = True

    def base_url(self) -> str:
        """Of this server as the client reached it, by address: a host field may say anything."""
        return self.wire.base_url()

    def unsent_bytes(self) -> int:
        return self.wire.unsent_bytes()


class _Clock:
    """The date header, made once a second."""

    second = -1
    text = ""


def _http_date(seconds: int) -> str:
    """IMF-fixdate of RFC 9110, 5.6.7, whatever the locale."""
    at = time.gmtime(seconds)
    day, month = DAYS[at.tm_wday], MONTHS[at.tm_mon - 1]
    clock = f"{at.tm_hour:02}:{at.tm_min:02}:{at.tm_sec:02}"
    return f"{day}, {at.tm_mday:02} {month} {at.tm_year:04} {clock} GMT"


def _date() -> str:
    now = int(time.time())
    if now != _Clock.second:
        _Clock.second = now
        _Clock.text = _http_date(now)
    return _Clock.text

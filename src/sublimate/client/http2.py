"""gRPC over HTTP/2 by grpcio: one channel to a server. On the network's loop only.

defines: Http2Channel, leaf_certificate
"""

from __future__ import annotations

import asyncio
import hashlib
import ssl
from collections.abc import Callable, Sequence
from typing import Any, cast

import grpc.aio

from ..wire.frames import LENGTH_BYTES
from .calls import Answer, Call, Field
from .events import Decoder
from .library import CarrierError
from .mapping import (
    DETAILS,
    JSON_TYPE,
    METHODS,
    Ended,
    SseOfMessages,
    body_of,
    events_head,
    fields_of,
    http_error,
    message_of,
    shown_fields,
)
from .pipe import Pipe
from .report import Used

OPTIONS: list[tuple[str, int]] = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),  # a client closes its own connections and no other's
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),  # a server that restarts is back within seconds
    ("grpc.enable_http_proxy", 0),  # through a proxy all is the HTTP library's
]
_LIBRARY: Any = grpc
END = _LIBRARY.aio.EOF
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE


def leaf_certificate(host: str, port: int, pin_sha256: str) -> bytes:
    """The certificate (PEM) on a port, if it is the one that is pinned; else nothing. Blocks."""
    try:
        pem = ssl.get_server_certificate((host, port), timeout=5)
    except OSError:
        return b""
    if hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem)).hexdigest() != pin_sha256:
        return b""
    return pem.encode()


class Http2Channel:
    """A connection, made again by the library when it is lost."""

    def __init__(self, target: str, roots: bytes | None) -> None:
        """target: host:port. roots: certificates (PEM) that the server's follows from; None: it
        speaks in clear."""
        library: Any = grpc.aio
        if roots is None:
            self._channel = library.insecure_channel(target, OPTIONS)
        else:
            credentials = grpc.ssl_channel_credentials(roots)
            self._channel = library.secure_channel(target, credentials, OPTIONS)
        self._loop = asyncio.get_running_loop()
        self._reading: set[asyncio.Task[None]] = set()

    async def ready(self) -> None:
        """The handshake is complete."""
        await self._channel.channel_ready()

    async def close(self) -> None:
        for task in [*self._reading]:
            task.cancel()
        await asyncio.gather(*self._reading, return_exceptions=True)
        await self._channel.close()

    async def exchange(self, call: Call, used: Used) -> Answer:
        """Until the head of the answer is there. Raises CarrierError."""
        ask = self._stream if call.kind == "stream" else self._whole
        try:
            async with asyncio.timeout(call.read_seconds):
                return await ask(call, tuple(fields_of(call)), used)
        except TimeoutError:
            raise CarrierError("ReadTimeout", "No answer in time.") from None

    async def _whole(self, call: Call, metadata: Sequence[Field], used: Used) -> Answer:
        method = self._channel.unary_unary(METHODS[call.kind])
        rpc = method(message_of(call), metadata=metadata)
        try:
            message = await rpc
        except grpc.aio.AioRpcError as error:
            return _failed(_ended_of(error), used)
        except asyncio.CancelledError:
            rpc.cancel()
            raise
        body = body_of(call.kind, message)
        headers = shown_fields(_text(await rpc.initial_metadata()), JSON_TYPE, len(body))
        return Answer(200, headers, Pipe.of(body), used)

    async def _stream(self, call: Call, metadata: Sequence[Field], used: Used) -> Answer:
        method = self._channel.unary_stream(METHODS[call.kind])
        rpc = method(message_of(call), metadata=metadata)
        try:
            first = await rpc.read()
            if first is END:
                raise CarrierError("RemoteProtocolError", "The stream is empty.")
            headers = events_head(_text(await rpc.initial_metadata()))
        except grpc.aio.AioRpcError as error:
            return _failed(_ended_of(error), used)
        except asyncio.CancelledError:
            rpc.cancel()
            raise
        reader = _Reader(rpc, self._loop)
        task = asyncio.ensure_future(reader.run(first))
        self._reading.add(task)
        task.add_done_callback(self._reading.discard)
        decoder: Decoder = SseOfMessages(lambda: reader.ended, has_flags=False)
        return Answer(200, headers, reader.pipe, used, decoder)


class _Reader:
    """Takes a stream's messages while there is room for them."""

    def __init__(self, rpc: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._rpc = rpc
        self._loop = loop
        self._has_room = asyncio.Event()
        self._has_room.set()
        self.ended: Ended | None = None
        self.pipe = Pipe(self._hold, lambda: self._on_loop(rpc.cancel))

    def _on_loop(self, function: Callable[[], object]) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function)

    def _hold(self, hold: bool) -> None:
        self._on_loop(self._has_room.clear if hold else self._has_room.set)

    async def run(self, message: Any) -> None:
        try:
            while message is not END:
                self.pipe.feed(len(message).to_bytes(LENGTH_BYTES, "big") + message)
                await self._has_room.wait()
                message = await self._rpc.read()
            trailers = _text(await self._rpc.trailing_metadata())
            self.ended = Ended(0, "", b"", trailers)
            self.pipe.end()
        except grpc.aio.AioRpcError as error:
            self.ended = _ended_of(error)
            self.pipe.end()
        except asyncio.CancelledError:
            self._rpc.cancel()
            self.pipe.end(CarrierError("ReadError", "The client was closed."))
            raise


def _text(metadata: Any) -> list[Field]:
    pairs = cast(Sequence[tuple[str, Any]], metadata or ())
    return [(name, value) for name, value in pairs if isinstance(value, str)]


def _ended_of(error: grpc.aio.AioRpcError) -> Ended:
    trailers = [*(error.initial_metadata() or ()), *(error.trailing_metadata() or ())]
    details = dict(trailers).get(DETAILS, b"")
    code: int = error.code().value[0]
    return Ended(
        code,
        error.details() or "",
        details if isinstance(details, bytes) else b"",
        [(name, value) for name, value in trailers if isinstance(value, str)],
    )


def _failed(ended: Ended, used: Used) -> Answer:
    """An error of the server's as HTTP has it; raises CarrierError for one of the connection's."""
    if ended.code == UNAVAILABLE.value[0] and not ended.details:
        raise CarrierError("ReadError", f"The connection was lost: {ended.text}.")
    status, headers, body = http_error(ended)
    return Answer(status, headers, Pipe.of(body), used)

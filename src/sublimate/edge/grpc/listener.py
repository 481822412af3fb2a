"""gRPC over HTTP/2, by grpcio: a listener of its own, with bytes in and bytes out.

Each call is one coroutine, which reads the client's messages and then writes what the call wants
sent. What waits to be written is bounded by the call; grpcio takes a message when the client's
window has room for it, so a client that does not read costs that bound and no more.

defines: GrpcListener
"""

from __future__ import annotations

import asyncio
import functools
import re
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import grpc

from ...config import DRAIN_SECONDS_MAX
from ...errors import ListenError
from .. import limits
from ..errors import ApiError
from ..http import FIELD_OVERHEAD_BYTES, SINGLE_FIELDS
from ..wire import Header
from .call import Call
from .status import Status

if TYPE_CHECKING:
    from ..app import EdgeServer

CODES = {code.value[0]: code for code in grpc.StatusCode}
DETAILS = "grpc-status-details-bin"
BINARY = "-bin"
CONTROL = re.compile(rb"[\0\r\n]")
"""What would end a line where the value is written into another protocol."""
MILLISECONDS = 1000
_LIBRARY: Any = grpc  # whose stubs know less than it has
AS_BYTES = _LIBRARY.stream_stream_rpc_method_handler
END_OF_MESSAGES = _LIBRARY.aio.EOF
TIMEOUT_DIGITS_MAX = 8
Certificate = tuple[bytes, bytes]
"""Key and chain, in PEM."""


class _Carrier:
    """What one call wants sent, until its coroutine sends it."""

    protocol = "gRPC over HTTP/2"

    def __init__(self, url: str, task: asyncio.Task[Any] | None) -> None:
        self.status: Status | None = None
        self.is_writing = False
        """Its coroutine waits for room in the client's window."""
        self._url = url
        self._task = task
        self._wanted = asyncio.Event()
        self._fields: Sequence[Header] | None = None
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0

    # ---- from the call -------------------------------------------------------------------------
    def head(self, fields: Sequence[Header]) -> None:
        self._fields = fields

    def messages(self, messages: Sequence[bytes]) -> None:
        self._queue += messages
        self._queued_bytes += sum(map(len, messages))
        self._wanted.set()

    def end(self, status: Status) -> None:
        if status.code:
            # Who reads too slowly would have to read all of it to learn why.
            self._queue.clear()
            self._queued_bytes = 0
            if self.is_writing and self._task is not None:
                self._task.cancel()
        self.status = status
        self._wanted.set()

    def unsent_bytes(self) -> int:
        return self._queued_bytes

    def base_url(self) -> str:
        return self._url

    # ---- to grpcio -----------------------------------------------------------------------------
    async def flush(self, context: Any) -> None:
        """Send all that waits."""
        fields, self._fields = self._fields, None
        if fields is not None:
            await context.send_initial_metadata(tuple(fields))
        while self._queue:
            message = self._queue.popleft()
            self._queued_bytes -= len(message)
            self.is_writing = True
            try:
                await context.write(message)
            finally:
                self.is_writing = False

    async def run(self, context: Any) -> None:
        """Send until the call has ended, and all of it is sent."""
        while self.status is None or self._queue:
            await self._wanted.wait()
            self._wanted.clear()
            await self.flush(context)


class GrpcListener(grpc.GenericRpcHandler):
    """All calls on one port. A Part of its server."""

    def __init__(self, server: EdgeServer) -> None:
        self._server = server
        self._grpc: Any = None
        self._certificate: Certificate | None = None
        self._renewed: Certificate | None = None
        """That no handshake has heard of."""
        self._stopping: set[asyncio.Task[None]] = set()
        self.url = ""

    async def listen(self, address: str, certificate: Certificate | None) -> int:
        """Listen on host:port, in the clear without a certificate. Returns the port. Raises
        ListenError."""
        if self._grpc is not None:
            raise RuntimeError("it listens already")
        self._grpc = grpc.aio.server(
            handlers=(self,),
            options=self._options(),
            maximum_concurrent_rpcs=limits.GRPC_CALLS_MAX,
        )
        self._certificate = certificate
        try:
            if certificate is None:
                port = self._grpc.add_insecure_port(address)
            else:
                credentials = grpc.dynamic_ssl_server_credentials(
                    grpc.ssl_server_certificate_configuration([certificate]), self._changed
                )
                port = self._grpc.add_secure_port(address, credentials)
        except RuntimeError:
            raise ListenError(f"gRPC cannot listen on {address}.") from None
        host = address.rpartition(":")[0]
        self.url = f"{'http' if certificate is None else 'https'}://{host}:{port}"
        await self._grpc.start()
        return port

    def _options(self) -> list[tuple[str, int]]:
        most = self._server.limits
        seconds = {
            "grpc.keepalive_time_ms": limits.GRPC_PING_SECONDS,
            "grpc.keepalive_timeout_ms": limits.GRPC_PING_ANSWER_SECONDS,
            "grpc.http2.min_ping_interval_without_data_ms": limits.GRPC_PINGS_APART_SECONDS,
            "grpc.max_connection_idle_ms": most.keep_alive_seconds,
            "grpc.max_connection_age_ms": limits.GRPC_CONNECTION_SECONDS,
            "grpc.max_connection_age_grace_ms": limits.GRPC_CONNECTION_GRACE_SECONDS,
        }
        return [
            ("grpc.so_reuseport", 1),  # the supervisor holds the port, see supervisor/listen.py
            ("grpc.max_receive_message_length", most.body_bytes_max),
            ("grpc.max_send_message_length", -1),
            ("grpc.max_metadata_size", most.header_bytes_max),
            ("grpc.absolute_max_metadata_size", most.header_bytes_max),
            ("grpc.http2.hpack_table_size.decoder", 0),  # a byte would stand for four thousand
            ("grpc.max_concurrent_streams", limits.GRPC_STREAMS_MAX),
            *((name, int(value * MILLISECONDS)) for name, value in seconds.items()),
        ]

    # ---- certificate ---------------------------------------------------------------------------
    def reload(self, certificate: Certificate) -> None:
        """Connections from now on get it."""
        if certificate != self._certificate:
            self._certificate = self._renewed = certificate

    def _changed(self) -> Any:
        """Called by grpcio at each handshake, on a thread of its own. What it gets replaces what
        other handshakes use meanwhile, and they may crash: so it is given once, when it is new."""
        certificate, self._renewed = self._renewed, None
        if certificate is None:
            return None
        return grpc.ssl_server_certificate_configuration([certificate])

    # ---- calls ---------------------------------------------------------------------------------
    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """Of any path: which methods there are, the call knows."""
        path: str = handler_call_details.method
        return AS_BYTES(functools.partial(self._answer, path))

    async def _answer(self, path: str, requests: Any, context: Any) -> None:
        del requests  # an iterator over what `context.read` gives
        carrier = _Carrier(self.url, asyncio.current_task())
        refusal = None
        try:
            fields = self._fields(context)
        except ApiError as error:
            fields, refusal = {}, error
        call = Call(self._server, carrier, path, fields)
        if refusal is not None:
            call.fail(refusal)
        try:
            call.begin()
            await _read(call, carrier, context)
            await carrier.run(context)
        except asyncio.CancelledError:
            if carrier.status is None:
                call.cancelled()
                raise
            # The call has ended while its coroutine waited for a client that does not read.
        except grpc.aio.BaseError:
            call.cancelled()  # the connection is lost
            return
        _end(carrier.status or Status(), context)

    def _fields(self, context: Any) -> dict[bytes, bytes]:
        """Metadata as header fields. Raises ApiError."""
        metadata: Sequence[tuple[str, str | bytes]] = context.invocation_metadata() or ()
        most = self._server.limits
        size = sum(len(name) + len(value) + FIELD_OVERHEAD_BYTES for name, value in metadata)
        if size > most.header_bytes_max or len(metadata) > most.header_fields_max:
            raise ApiError(
                "headers_too_large", maximum=most.header_bytes_max, fields=most.header_fields_max
            )
        # The host that a client named is not told to Python: it is as if that were the address.
        fields = {b"host": self.url.partition("//")[2].encode()}
        for name, value in metadata:
            if name.endswith(BINARY) or isinstance(value, bytes):
                continue  # no header field of the HTTP API is binary
            key, raw = name.encode(), value.encode("latin-1", "replace")
            if CONTROL.search(raw):
                raise ApiError("malformed_request")  # the library lets them pass
            if key in fields:
                if key in SINGLE_FIELDS:
                    raise ApiError("malformed_request")
                raw = fields[key] + b", " + raw
            fields[key] = raw
        seconds: float | None = context.time_remaining()
        if seconds is not None:
            milliseconds = str(int(seconds * MILLISECONDS))
            if len(milliseconds) <= TIMEOUT_DIGITS_MAX:
                fields[b"grpc-timeout"] = milliseconds.encode() + b"m"
        return fields

    # ---- Part ----------------------------------------------------------------------------------
    def drain(self) -> None:
        """Connections are told that nothing new is taken; calls go on."""
        self._stop(DRAIN_SECONDS_MAX)

    def close(self) -> None:
        self._stop(0)

    def _stop(self, grace_seconds: float) -> None:
        """Let calls go on for so long. The shortest that was ever given counts."""
        if self._grpc is not None:
            stopping = self._server.loop.create_task(self._grpc.stop(grace_seconds))
            self._stopping.add(stopping)

    async def wait_closed(self) -> None:
        """After `close`: until no call is left."""
        await asyncio.gather(*self._stopping)
        self._stopping.clear()


async def _read(call: Call, carrier: _Carrier, context: Any) -> None:
    """Give the call what its client says, and send what it answers meanwhile."""
    while carrier.status is None:
        message: Any = await context.read()
        if message is END_OF_MESSAGES:
            call.end_of_messages()
            return
        call.message(message)
        await carrier.flush(context)


def _end(status: Status, context: Any) -> None:
    """What grpcio sends when the coroutine returns."""
    trailers: list[tuple[str, str | bytes]] = [*status.trailers]
    if status.code:
        context.set_code(CODES[status.code])
        context.set_details(status.text)
    if status.details:
        trailers.append((DETAILS, status.details))
    context.set_trailing_metadata(tuple(trailers))

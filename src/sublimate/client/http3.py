"""A call over a QUIC connection: as it is over HTTP/3, or as gRPC.

defines: Sent, send, exchange
"""

from __future__ import annotations

import asyncio
import binascii
import dataclasses
from dataclasses import dataclass

from .calls import IDEMPOTENCY_KEY, Answer, Call, Field
from .choice import OVER_GRPC, Carrier
from .events import FRAMES_TYPE, decoder_of
from .library import CarrierError
from .pipe import Pipe
from .quic import QuicSession, QuicStream
from .report import Used

TOO_EARLY = 425
METHOD_OF_CALLS = "POST"


@dataclass(frozen=True, slots=True)
class Sent:
    """A call on a connection."""

    session: QuicSession
    stream: QuicStream
    call: Call

    def take_back(self) -> None:
        """It goes another way: a server that it has reached stops working for it."""
        self.session.cancel(self.stream.number)


def send(session: QuicSession, call: Call, carrier: Carrier) -> Sent:
    """Raises CarrierError."""
    key = [(IDEMPOTENCY_KEY, call.key)] if call.key else []
    if carrier in OVER_GRPC:
        from . import mapping

        target = mapping.METHODS[call.kind]
        fields = [
            ("content-type", mapping.TYPE),
            ("te", "trailers"),
            *mapping.fields_of(call),
            *key,
        ]
        body = mapping.framed(mapping.message_of(call))
        return Sent(session, session.open(METHOD_OF_CALLS, target, call, fields, body), call)
    fields = call.headers
    if call.kind == "stream":
        fields = [*(field for field in fields if field[0] != "accept"), ("accept", FRAMES_TYPE)]
    fields = [*fields, *key]
    return Sent(session, session.open(call.method, call.target, call, fields, call.body), call)


async def exchange(session: QuicSession, call: Call, used: Used, sent: Sent | None) -> Answer:
    """Until the head of the answer is there. sent: it went with the handshake, which may have been
    another's (then it is not this call). Raises CarrierError."""
    carrier: Carrier = "grpc-h3" if used.protocol == "grpc-h3" else "h3"
    if sent is None or sent.session is not session or sent.call is not call:
        sent = send(session, call, carrier)
    stream = sent.stream
    status, fields = await _head(session, stream, call)
    if status == TOO_EARLY and stream.was_early:
        await asyncio.shield(session.established)
        stream = send(session, call, carrier).stream
        status, fields = await _head(session, stream, call)
    early = stream.was_early and session.early_data_accepted
    used = dataclasses.replace(used, early_data=early)
    if carrier == "grpc-h3":
        if not dict(fields).get("content-type", "").startswith("application/grpc"):
            session.cancel(stream.number)
            text = "The server has no gRPC over HTTP/3."
            raise CarrierError("ConnectError", text, unsent=True, reason="no grpc over h3")
        return await _of_grpc(stream, call, fields, used)
    decoder, shown = decoder_of(call.kind == "stream", fields)
    return Answer(status, shown, stream.body, used, decoder)


async def _head(session: QuicSession, stream: QuicStream, call: Call) -> tuple[int, list[Field]]:
    try:
        async with asyncio.timeout(call.read_seconds):
            return await asyncio.shield(stream.head)
    except TimeoutError:
        session.cancel(stream.number)
        raise CarrierError("ReadTimeout", "No answer in time.") from None
    except asyncio.CancelledError:
        session.cancel(stream.number)
        raise


async def _of_grpc(stream: QuicStream, call: Call, fields: list[Field], used: Used) -> Answer:
    from . import mapping

    def ended() -> mapping.Ended | None:
        return mapping.Ended.of(stream.trailers, _decoded)

    failed = mapping.Ended.of(fields, _decoded)
    if failed is None and call.kind == "stream":
        shown = mapping.events_head(fields)
        decoder = mapping.SseOfMessages(ended, has_flags=True)
        return Answer(200, shown, stream.body, used, decoder)
    message = b""
    if failed is None:
        cutter = mapping.FlagCutter()
        while data := await stream.body.read_async(call.read_seconds):
            message += cutter.feed(data)
        failed = ended()
        if failed is None:
            raise CarrierError("RemoteProtocolError", "The call ended without a status.")
    if failed.code:
        status, shown, body = mapping.http_error(failed)
        return Answer(status, shown, Pipe.of(body), used)
    body = mapping.body_of(call.kind, message[mapping.LENGTH_BYTES :])
    shown = mapping.shown_fields(fields, mapping.JSON_TYPE, len(body))
    return Answer(200, shown, Pipe.of(body), used)


def _decoded(value: str) -> bytes:
    """Of a -bin field: base64, whose padding may be left out."""
    try:
        return binascii.a2b_base64(value + "=" * (-len(value) % 4))
    except (binascii.Error, ValueError):
        return b""

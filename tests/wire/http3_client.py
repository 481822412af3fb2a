"""A client of HTTP/3 that does what clients should not: it drops datagrams, moves to another port,
keeps its tickets, sends requests early, and leaves without a word.

defines: Answer, Client
"""

import random
import socket
import ssl
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import msgspec
from aioquic.h3.connection import H3Connection
from aioquic.h3.events import DataReceived, HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.events import ConnectionTerminated, HandshakeCompleted, StreamReset
from aioquic.tls import SessionTicket

WAIT_SECONDS = 15.0


@dataclass
class Answer:
    """What came on one stream."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    trailers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    is_complete: bool = False
    reset_code: int | None = None
    arrivals: list[float] = field(default_factory=list)

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)

    @property
    def is_over(self) -> bool:
        return self.is_complete or self.reset_code is not None


class Client:
    """One connection over a blocking socket. `loss`: share of datagrams dropped, both ways."""

    alive: ClassVar[list["Client"]] = []
    """All that were made, for who ends them."""

    def __init__(
        self,
        port: int,
        certificate: Path,
        *,
        ticket: SessionTicket | None = None,
        loss: float = 0.0,
        seed: int = 1,
        **configuration: Any,
    ) -> None:
        self.tickets: list[SessionTicket] = []
        settings = QuicConfiguration(
            is_client=True,
            alpn_protocols=["h3"],
            server_name="localhost",
            cafile=str(certificate),
            verify_mode=ssl.CERT_REQUIRED,
            session_ticket=ticket,
            **configuration,
        )
        self.quic = QuicConnection(
            configuration=settings, session_ticket_handler=self.tickets.append
        )
        self.port = port
        self.handshake: HandshakeCompleted | None = None
        self.ended: ConnectionTerminated | None = None
        self.answers: dict[int, Answer] = {}
        self._draw = random.Random(seed)
        self._loss = loss
        self._socket = self._connected()
        self.quic.connect(("127.0.0.1", port), now=time.monotonic())
        self.h3 = H3Connection(self.quic)
        self.alive.append(self)

    def _connected(self) -> socket.socket:
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.connect(("127.0.0.1", self.port))
        return sock

    def rebind(self) -> None:
        """Another port, as a NAT that forgot the old one gives."""
        self._socket.close()
        self._socket = self._connected()

    # ---- requests ------------------------------------------------------------------------------
    def begin(
        self, method: str, path: str, body: bytes | None = None, is_end: bool = True, **more: str
    ) -> int:
        """The stream of a request; nothing is sent yet."""
        stream_id = self.quic.get_next_available_stream_id()
        head = [
            *((b":method", method.encode()), (b":scheme", b"https")),
            *((b":authority", b"localhost"), (b":path", path.encode())),
            *((name.replace("_", "-").encode(), value.encode()) for name, value in more.items()),
        ]
        self.answers[stream_id] = Answer()
        self.h3.send_headers(stream_id, head, body is None and is_end)
        if body is not None:
            self.h3.send_data(stream_id, body, is_end)
        return stream_id

    def ask(self, method: str, path: str, body: Any = None, **more: str) -> Answer:
        """One whole exchange."""
        data = body if body is None or isinstance(body, bytes) else msgspec.json.encode(body)
        stream_id = self.begin(method, path, data, **more)
        answer = self.answers[stream_id]
        self.run(lambda: answer.is_over)
        return answer

    # ---- datagrams -----------------------------------------------------------------------------
    def run(self, until: Any, seconds: float = WAIT_SECONDS) -> None:
        """Exchange datagrams until it holds; fails the test if it never does."""
        begun = time.monotonic()
        self.send()
        while not until():
            now = time.monotonic()
            assert now - begun < seconds, "it never came"
            assert self.ended is None or until(), self.ended
            self.turn(0.05)

    def linger(self, seconds: float) -> None:
        """Be there for a while."""
        begun = time.monotonic()
        while time.monotonic() - begun < seconds:
            self.turn(0.02)

    def turn(self, seconds: float) -> None:
        """Wait so long at most for a datagram or a timer."""
        now = time.monotonic()
        due = self.quic.get_timer()
        wait = seconds if due is None else min(seconds, max(0.0, due - now))
        self._socket.settimeout(max(0.0005, wait))
        try:
            data = self._socket.recv(65536)
        except (TimeoutError, ConnectionRefusedError):
            data = b""
        now = time.monotonic()
        if data and self._draw.random() >= self._loss:
            self.quic.receive_datagram(data, ("127.0.0.1", self.port), now)
        if due is not None and now >= due:
            self.quic.handle_timer(now)
        while (event := self.quic.next_event()) is not None:
            self._on_event(event)
        self.send()

    def send(self) -> None:
        for data, _ in self.quic.datagrams_to_send(time.monotonic()):
            if self._draw.random() >= self._loss:
                self._socket.send(data)

    def _on_event(self, event: Any) -> None:
        if isinstance(event, HandshakeCompleted):
            self.handshake = event
        elif isinstance(event, ConnectionTerminated):
            self.ended = event
        elif isinstance(event, StreamReset) and event.stream_id in self.answers:
            self.answers[event.stream_id].reset_code = event.error_code
        for part in self.h3.handle_event(event):
            answer = self.answers.get(getattr(part, "stream_id", -1))
            if answer is None:
                continue
            if isinstance(part, HeadersReceived):
                told = {name.decode(): value.decode() for name, value in part.headers}
                if ":status" not in told:
                    answer.trailers = told
                elif int(told[":status"]) >= 200:
                    answer.status, answer.headers = int(told[":status"]), told
            elif isinstance(part, DataReceived):
                answer.body += part.data
                answer.arrivals.append(time.monotonic())
            answer.is_complete = answer.is_complete or part.stream_ended

    def close(self) -> None:
        """Idempotent."""
        if self._socket.fileno() >= 0:
            self.quic.close()
            self.send()
            self._socket.close()

    def may_begin(self) -> bool:
        """The server allows one more stream."""
        stream_id = self.quic.get_next_available_stream_id()
        return stream_id // 4 < self.quic._remote_max_streams_bidi

    @property
    def is_told_to_end(self) -> bool:
        """The server has closed it; the library says so in `ended` some time later."""
        return self.quic._close_event is not None

    def vanish(self) -> None:
        """No word is said."""
        self._socket.close()

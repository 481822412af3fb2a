"""`sublimate rollout quic`: can a server be reached by HTTP/3 from here, how fast, and with 0-RTT?

Two connections by aioquic: the first makes a handshake and is given a ticket, the second sends its
request with the first flight. What a network in between does to UDP is found out by waiting.

defines: QuicCheck, parse_target, check_quic
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import socket
import ssl
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from ..errors import ConfigError, PeerError

PATH = "/.well-known/sublimate"
DEFAULT_PORT = 8443
TICKET_SECONDS = 1.0
DATAGRAM_BYTES_MAX = 65536
MS_PER_S = 1e3
TRUST = "A certificate that the system does not trust is named by --cacert FILE."
VERSIONS = {0x00000001: "1 (RFC 9000)", 0x6B3343CF: "2 (RFC 9369)"}


class QuicCheck(msgspec.Struct, frozen=True, kw_only=True):
    """What was found. Times in milliseconds; 0 where it did not come to that."""

    host: str
    port: int
    address: str = ""
    reachable: bool = False
    why: str = ""
    """If not, what would help."""
    version: str = ""
    protocol: str = ""
    cipher: str = ""
    handshake_ms: float = 0.0
    round_trip_ms: float = 0.0
    """Of a ping, after the handshake."""
    status: int = 0
    """Of a request for /.well-known/sublimate."""
    first_byte_ms: float = 0.0
    """Of a new connection, from its first packet."""
    ticket: bool = False
    early_accepted: bool = False
    early_first_byte_ms: float = 0.0
    server_version: str = ""
    certificate_sha256: str = ""
    """As the server tells it."""


class _Visit(msgspec.Struct):
    """One connection."""

    handshake_ms: float = 0.0
    first_byte_ms: float = 0.0
    round_trip_ms: float = 0.0
    status: int = 0
    body: bytes = b""
    early: bool = False
    protocol: str = ""
    version: int = 0
    cipher: str = ""
    ended: str = ""


def parse_target(text: str) -> tuple[str, int]:
    """Host and port of HOST, HOST:PORT, an IPv6 address with or without brackets, or an https URL.
    Raises ConfigError that says what is wrong."""
    given = text.strip()
    if "://" not in given:
        is_bare = given.count(":") > 1 and not given.startswith("[")
        given = f"https://[{given}]" if is_bare else f"https://{given}"
    try:
        parts = urlsplit(given)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigError(f"{text!r} is no HOST, HOST:PORT or URL: {error}.") from None
    if parts.scheme != "https":
        raise ConfigError(f"{text!r}: HTTP/3 is asked by https, not by {parts.scheme}.")
    if not host or port == 0 or any(character.isspace() for character in host):
        raise ConfigError(f"{text!r} is no HOST, HOST:PORT or URL.")
    return host, DEFAULT_PORT if port is None else port


def check_quic(
    host: str,
    port: int,
    *,
    certificate: Path | None = None,
    insecure: bool = False,
    timeout_seconds: float = 3.0,
) -> QuicCheck:
    """certificate: PEM to trust in place of the system's. insecure: trust anyone. Never raises for
    what the network or the server does. Raises ConfigError, PeerError for a host that is none."""
    if timeout_seconds <= 0:
        raise ConfigError("--timeout: more than 0 s.")
    if certificate is not None and not certificate.is_file():
        raise ConfigError(f"--cacert {certificate}: there is no such file.")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
        importlib.import_module("aioquic.asyncio")
    except OSError:
        raise PeerError(f"{host} is no host that can be found.") from None
    except ImportError:
        raise ConfigError("HTTP/3 needs the package aioquic.") from None
    address: tuple[Any, ...] = found[0][4]
    logging.getLogger("quic").setLevel(logging.CRITICAL)  # what failed is in the report
    checker = _Checker(host, address, certificate, insecure, timeout_seconds)
    return asyncio.run(checker.check())


class _WellKnown(msgspec.Struct):
    """What is used of /.well-known/sublimate."""

    version: str = ""
    certificate_sha256: str | None = None


class _Checker:
    def __init__(
        self,
        host: str,
        address: tuple[Any, ...],
        certificate: Path | None,
        insecure: bool,
        timeout_seconds: float,
    ) -> None:
        self._host = host
        self._address = address
        self._certificate = certificate
        self._insecure = insecure
        self._timeout_seconds = timeout_seconds
        self._tickets: list[Any] = []

    async def check(self) -> QuicCheck:
        port = int(self._address[1])
        known: dict[str, Any] = {
            "host": self._host,
            "port": port,
            "address": str(self._address[0]),
        }
        first = await self._visit(None)
        if not first.handshake_ms:
            return QuicCheck(**known, why=self._reason(first))
        early = await self._visit(self._tickets[0]) if self._tickets else _Visit()
        said = _WellKnown()
        with contextlib.suppress(msgspec.DecodeError):  # another server says something else
            said = msgspec.json.decode(first.body, type=_WellKnown)
        return QuicCheck(
            **known,
            reachable=True,
            why="" if first.status else f"No answer to GET {PATH}. {first.ended}".strip(),
            version=VERSIONS.get(first.version, hex(first.version)),
            protocol=first.protocol,
            cipher=first.cipher,
            handshake_ms=first.handshake_ms,
            round_trip_ms=first.round_trip_ms,
            status=first.status,
            first_byte_ms=first.first_byte_ms,
            ticket=bool(self._tickets),
            early_accepted=early.early,
            early_first_byte_ms=early.first_byte_ms if early.early else 0.0,
            server_version=said.version,
            certificate_sha256=said.certificate_sha256 or "",
        )

    def _reason(self, visit: _Visit) -> str:
        if visit.ended:
            help = "" if self._certificate or self._insecure else " " + TRUST
            return f"The handshake failed: {visit.ended}.{help}"
        return (
            f"Nothing came back by UDP within {self._timeout_seconds:g} s: nobody listens there "
            "(`sublimate serve --tls` does), or a firewall drops UDP. Clients fall back to TCP."
        )

    def _configuration(self, ticket: Any) -> Any:
        module: Any = importlib.import_module("aioquic.quic.configuration")
        configuration = module.QuicConfiguration(
            is_client=True,
            alpn_protocols=["h3"],
            server_name=self._host,
            max_datagram_frame_size=DATAGRAM_BYTES_MAX,
            session_ticket=ticket,
            verify_mode=ssl.CERT_NONE if self._insecure else ssl.CERT_REQUIRED,
        )
        if self._certificate is not None:
            configuration.load_verify_locations(str(self._certificate))
        return configuration

    async def _visit(self, ticket: Any) -> _Visit:
        """One connection and one request on it; with a ticket the request goes out first."""
        visit = _Visit()
        connections: Any = importlib.import_module("aioquic.quic.connection")
        connection = connections.QuicConnection(
            configuration=self._configuration(ticket), session_ticket_handler=self._tickets.append
        )
        protocol_class = _protocol(visit)
        loop = asyncio.get_running_loop()
        any_address = "::" if len(self._address) > 2 else "0.0.0.0"  # noqa: S104 - a client's end
        transport, protocol = await loop.create_datagram_endpoint(
            lambda: protocol_class(connection), local_addr=(any_address, 0)
        )
        try:
            async with asyncio.timeout(self._timeout_seconds):
                protocol.begin(self._address, ticket is not None, self._authority())
                await protocol.handshaken
                if ticket is None:
                    protocol.ask(self._authority())
                await protocol.answered
                begun = time.perf_counter()
                await protocol.ping()
                visit.round_trip_ms = (time.perf_counter() - begun) * MS_PER_S
                visit.version = int(getattr(connection, "_version", 0))
                async with asyncio.timeout(TICKET_SECONDS):
                    while ticket is None and not self._tickets:
                        await protocol.ping()
        except (TimeoutError, ConnectionError):
            pass  # what is not there says it
        finally:
            protocol.close()
            await asyncio.sleep(0)
            transport.close()
        return visit

    def _authority(self) -> bytes:
        name = f"[{self._host}]" if ":" in self._host else self._host
        return f"{name}:{self._address[1]}".encode()


def _protocol(visit: _Visit) -> Any:
    """A protocol of aioquic's that writes down what happens."""
    base: Any = importlib.import_module("aioquic.asyncio").QuicConnectionProtocol
    h3: Any = importlib.import_module("aioquic.h3.connection")
    h3_events: Any = importlib.import_module("aioquic.h3.events")
    events: Any = importlib.import_module("aioquic.quic.events")

    class Protocol(base):
        """One connection of the check."""

        def __init__(self, connection: Any) -> None:
            super().__init__(connection)  # pyright: ignore[reportUnknownMemberType]
            loop = asyncio.get_running_loop()
            self.handshaken: asyncio.Future[None] = loop.create_future()
            self.answered: asyncio.Future[None] = loop.create_future()
            self._h3 = h3.H3Connection(connection)
            self._begun = time.perf_counter()

        def begin(self, address: Any, early: bool, authority: bytes) -> None:
            self._begun = time.perf_counter()
            self.connect(address, transmit=not early)
            if early:
                self.ask(authority)

        def ask(self, authority: bytes) -> None:
            stream = self._quic.get_next_available_stream_id()
            fields = [(b":method", b"GET"), (b":scheme", b"https"), (b":authority", authority)]
            self._h3.send_headers(stream, [*fields, (b":path", PATH.encode())], end_stream=True)
            self.transmit()

        def quic_event_received(self, event: Any) -> None:
            if isinstance(event, events.HandshakeCompleted):
                visit.handshake_ms = (time.perf_counter() - self._begun) * MS_PER_S
                visit.early = bool(event.early_data_accepted)
                visit.protocol = str(event.alpn_protocol)
                suite = getattr(getattr(self._quic, "tls", None), "key_schedule", None)
                visit.cipher = str(getattr(getattr(suite, "cipher_suite", None), "name", ""))
                _finish(self.handshaken)
            elif isinstance(event, events.ConnectionTerminated):
                visit.ended = str(event.reason_phrase) or hex(event.error_code)
                for future in (self.handshaken, self.answered):
                    _break(future)
            for said in self._h3.handle_event(event):
                self._take(said)

        def _take(self, said: Any) -> None:
            if isinstance(said, h3_events.HeadersReceived):
                visit.status = int(dict(said.headers).get(b":status", b"0"))
            elif isinstance(said, h3_events.DataReceived):
                visit.first_byte_ms = (
                    visit.first_byte_ms or (time.perf_counter() - self._begun) * MS_PER_S
                )
                visit.body += said.data
            if getattr(said, "stream_ended", False):
                _finish(self.answered)

    return Protocol


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _break(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_exception(ConnectionError("the connection ended"))
        future.exception()  # seen: nobody need wait for both

"""The UDP socket of HTTP/3: which connection a datagram belongs to, and who may begin a new one.

Datagrams are read and written here, not by the event loop's transport: what the kernel has no room
for is dropped, which the protocol repairs, instead of waiting in a queue without a bound.

defines: QuicListener
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import logging
import os
import socket
import struct
import time
from collections import Counter
from pathlib import Path
from typing import Any

from aioquic._buffer import Buffer
from aioquic.quic.configuration import SMALLEST_MAX_DATAGRAM_SIZE
from aioquic.quic.events import HandshakeCompleted
from aioquic.quic.packet import (
    QuicHeader,
    QuicPacketType,
    encode_quic_retry,
    encode_quic_version_negotiation,
    pull_quic_header,
)
from aioquic.quic.retry import QuicRetryTokenHandler

from .. import limits
from ..siblings import Siblings
from .connection import Flight, Http3Application, Http3Connection
from .tickets import Tickets
from .transport import RESET_TOKEN_BYTES, Transport, configuration_of, reset_token

SOL_UDP, UDP_SEGMENT = 17, 103
"""Of linux/udp.h, which the socket module does not have."""
SEGMENTS_MAX = 40
CANNOT_SEGMENT = (errno.EIO, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOPROTOOPT)
LABEL_BYTES = 8
"""Of a connection id, ours and those that a retry invents."""
FIRST_LABEL_BYTES_MIN = 8
"""Of the connection id that a client invents for its first datagram (RFC 9000, 7.2)."""
RESET_BYTES, RESET_BYTES_MIN = 43, 21
"""Of a stateless reset: as long as a short packet, and no shorter than one can be."""

# What hostile datagrams make the library say is not for the operator of this server.
for _name in ("quic", "http3"):
    logging.getLogger(_name).setLevel(logging.CRITICAL)


def _secret_of(key: str) -> bytes:
    """For stateless resets. The file of the private key is what an edge has in common with the one
    that takes its place."""
    return hashlib.blake2b(Path(key).read_bytes(), person=b"stateless reset").digest()


class QuicListener:
    """All HTTP/3 connections of a server. On the event loop's thread only."""

    def __init__(
        self,
        application: Http3Application,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        certificate: str,
        key: str,
        siblings: Siblings | None = None,
    ) -> None:
        """From files that server_context (tls.py) has taken."""
        if sock.type != socket.SOCK_DGRAM:
            raise ValueError("HTTP/3 needs a UDP socket")
        self.application = application
        self.loop = loop
        host, port = sock.getsockname()[:2]
        self.base_url = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
        self.tickets = Tickets(limits.QUIC_TICKETS_MAX, limits.QUIC_TICKET_SECONDS)
        self._configuration = configuration_of(certificate, key)
        self._reset_secret = _secret_of(key or certificate)
        self._tokens = QuicRetryTokenHandler()
        self._by_label: dict[bytes, Http3Connection] = {}
        self._labels: dict[Http3Connection, set[bytes]] = {}
        self._half_open: set[Http3Connection] = set()
        self._resets: Counter[bytes] = Counter()
        """Resets sent in this second, by the unknown label that caused them."""
        self._reset_second = 0
        self._ticker: asyncio.TimerHandle | None = None
        self._socket = sock
        self._siblings = siblings
        if siblings is not None:
            siblings.on_datagram = lambda data, address: self._take(data, address, is_handed=True)
        self._takes_segments = True
        """Until the kernel or the network card says that it does not."""
        sock.setblocking(False)
        for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            sock.setsockopt(socket.SOL_SOCKET, option, limits.QUIC_SOCKET_BUFFER_BYTES)
        loop.add_reader(sock.fileno(), self._read)

    @property
    def connections(self) -> int:
        """Open, closing ones included."""
        return len(self._labels)

    def reload(self, certificate: str, key: str) -> None:
        """Connections from now on get this certificate; nobody resumes one that another vouched
        for."""
        self._configuration = configuration_of(certificate, key)
        self._reset_secret = _secret_of(key or certificate)
        self.tickets.clear()

    def stop_reading(self) -> None:
        """Another edge reads the socket now, and hands on what is of the connections here."""
        self.loop.remove_reader(self._socket.fileno())

    def close(self) -> None:
        """End all connections at once. Idempotent."""
        if self._socket.fileno() < 0:
            return
        for connection in list(self._labels):
            connection.close()
        if self._ticker is not None:
            self._ticker.cancel()
        self.loop.remove_reader(self._socket.fileno())
        self._socket.close()

    # ---- datagrams -----------------------------------------------------------------------------
    def _read(self) -> None:
        end = time.monotonic() + limits.QUIC_TURN_SECONDS
        for _ in range(limits.QUIC_DATAGRAMS_PER_TURN):
            try:
                data, address = self._socket.recvfrom(limits.QUIC_DATAGRAM_BYTES_MAX + 1)
            except OSError:
                return  # no more, or an ICMP message about a client that is gone
            if len(data) <= limits.QUIC_DATAGRAM_BYTES_MAX:
                self._take(data, address)
            if time.monotonic() > end:
                return

    def send_flight(self, flight: Flight) -> None:
        """Datagrams of one size, the last of them perhaps shorter, are one call of the kernel's."""
        begin = 0
        while begin < len(flight):
            first, address = flight[begin]
            end = begin + 1
            while (
                self._takes_segments
                and end < len(flight)
                and end - begin < SEGMENTS_MAX
                and flight[end][1] == address
                and len(flight[end - 1][0]) == len(first) >= len(flight[end][0])
            ):
                end += 1
            if end - begin > 1:
                self._send_segments([data for data, _ in flight[begin:end]], address)
            else:
                self.send(first, address)
            begin = end

    def _send_segments(self, segments: list[bytes], address: Any) -> None:
        size = struct.pack("=H", len(segments[0]))
        try:
            self._socket.sendmsg(segments, [(SOL_UDP, UDP_SEGMENT, size)], 0, address)
        except OSError as error:
            if error.errno not in CANNOT_SEGMENT:
                return  # lost, as any datagram may be
            self._takes_segments = False
            for data in segments:
                self.send(data, address)

    def send(self, data: bytes, address: Any) -> None:
        try:
            self._socket.sendto(data, address)
        except OSError:
            return  # lost, as any datagram may be

    def _take(self, data: bytes, address: Any, *, is_handed: bool = False) -> None:
        """is_handed: by another edge, which knows it no better."""
        if not data:
            return
        if not data[0] & 0x80:  # a short header: the label follows at once
            label = data[1 : 1 + LABEL_BYTES]
            connection = self._by_label.get(label)
            if connection is not None:
                connection.datagram_received(data, address)
            elif is_handed or not self._hand_on(label, data, address):
                self._reset(label, len(data), address)
            return
        try:
            header = pull_quic_header(Buffer(data=data), host_cid_length=LABEL_BYTES)
        except ValueError:
            return
        connection = self._by_label.get(header.destination_cid)
        if connection is None and not is_handed:
            if self._hand_on(header.destination_cid, data, address):
                return
        if connection is None:
            connection = self._greet(header, len(data), address)
        if connection is not None:
            connection.datagram_received(data, address)

    def _hand_on(self, label: bytes, data: bytes, address: Any) -> bool:
        """To the edge whose number the label begins with: its client has another address now, or
        the socket another reader."""
        if self._siblings is None or not label or not self._siblings.knows(label[0]):
            return False
        self._siblings.hand_datagram(label[0], data, address)
        return True

    def _reset(self, label: bytes, size: int, address: Any) -> None:
        """Of a connection that an edge before this one had, or that is over: its client learns it
        at once, and not by silence. An answer is smaller than what asked for it, so that two
        servers do not go on telling each other."""
        size = min(size - 1, RESET_BYTES)
        if size < RESET_BYTES_MIN:
            return
        second = int(time.monotonic())
        if second != self._reset_second:
            self._reset_second = second
            self._resets.clear()
        self._resets[label] += 1
        if (
            self._resets[label] > limits.QUIC_RESETS_PER_LABEL
            or len(self._resets) > limits.QUIC_RESETS_PER_SECOND
        ):
            return  # part of a flood
        noise = bytearray(os.urandom(size - RESET_TOKEN_BYTES))
        noise[0] = noise[0] & 0x3F | 0x40  # as any packet of a connection looks
        self.send(bytes(noise) + reset_token(self._reset_secret, label), address)

    def _greet(self, header: QuicHeader, size: int, address: Any) -> Http3Connection | None:
        """A datagram of no known connection: a new one, or an answer that keeps nothing here."""
        if header.packet_type == QuicPacketType.VERSION_NEGOTIATION:
            return None
        if size < SMALLEST_MAX_DATAGRAM_SIZE:
            return None  # an answer could be larger than what asked for it
        versions = self._configuration.supported_versions
        if header.version not in versions:
            self.send(
                encode_quic_version_negotiation(
                    source_cid=header.destination_cid,
                    destination_cid=header.source_cid,
                    supported_versions=versions,
                ),
                address,
            )
            return None
        if header.packet_type != QuicPacketType.INITIAL:
            return None
        if len(header.destination_cid) < FIRST_LABEL_BYTES_MIN:
            return None
        if header.token:
            try:
                original = self._tokens.validate_token(
                    address=address,
                    destination_cid=header.destination_cid,
                    token=header.token,
                    now=time.monotonic(),
                )
            except ValueError:
                return None
            return self._open(original, header.destination_cid, retried=True)
        if len(self._half_open) >= limits.QUIC_HALF_OPEN_MAX:
            self._ask_again(header, address)
            return None
        return self._open(header.destination_cid, header.destination_cid, retried=False)

    def _ask_again(self, header: QuicHeader, address: Any) -> None:
        """A token that only who has this address can show; nothing is kept until then."""
        if header.version is None:
            return
        label = os.urandom(LABEL_BYTES)
        token = self._tokens.create_token(
            address=address,
            original_destination_connection_id=header.destination_cid,
            retry_source_connection_id=label,
            now=time.monotonic(),
        )
        self.send(
            encode_quic_retry(
                version=header.version,
                source_cid=label,
                destination_cid=header.source_cid,
                original_destination_cid=header.destination_cid,
                retry_token=token,
            ),
            address,
        )

    def _open(self, original: bytes, label: bytes, *, retried: bool) -> Http3Connection | None:
        transport = Transport(
            self._reset_secret,
            self._siblings.place.number if self._siblings is not None else 0,
            configuration=self._configuration,
            original_destination_connection_id=original,
            retry_source_connection_id=label if retried else None,
            session_ticket_fetcher=self.tickets.take,
            session_ticket_handler=self.tickets.put,
        )
        connection = Http3Connection(self, transport)
        if not self.application.connection_opened(connection):
            return None  # silence: there is TCP, which can say why
        self._labels[connection] = set()
        self._half_open.add(connection)
        if self._ticker is None:  # first of all: it ends whatever goes no further than here
            self._ticker = self.loop.call_later(limits.TICK_SECONDS, self._tick)
        self.know(label, connection)
        self.know(transport.host_cid, connection)
        return connection

    # ---- connections ---------------------------------------------------------------------------
    def know(self, label: bytes, connection: Http3Connection) -> None:
        """Datagrams with this label are the connection's, wherever they come from."""
        if self._by_label.setdefault(label, connection) is not connection:
            raise RuntimeError("two connections have one label")
        self._labels[connection].add(label)
        self.application.kernel.label_given(label)

    def forget(self, label: bytes) -> None:
        """It was retired."""
        connection = self._by_label.pop(label, None)
        if connection is not None:
            self._labels[connection].discard(label)
            self.application.kernel.label_retired(label)

    def handshake_done(self, connection: Http3Connection, event: HandshakeCompleted) -> None:
        """The client is who it was at the first flight, and has its address."""
        self._half_open.discard(connection)
        self.application.handshake_done(
            time.monotonic() - connection.began_seconds,
            resumed=event.session_resumed,
            early=event.early_data_accepted,
        )

    def closed(self, connection: Http3Connection) -> None:
        """Nothing of it comes or goes any more."""
        for label in self._labels.pop(connection, ()):
            self._by_label.pop(label, None)
        self._half_open.discard(connection)
        self.application.connection_closed(connection)

    def _tick(self) -> None:
        """Once a second while there are connections. What one of them raises stops no clock."""
        self._ticker = None
        if self._labels:
            self._ticker = self.loop.call_later(limits.TICK_SECONDS, self._tick)
        now = time.monotonic()
        for connection in list(self._labels):
            connection.tick(now)

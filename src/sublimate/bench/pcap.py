"""Packets out of a capture file: what `tcpdump -w` writes, and of each packet what is counted.

The file format is that of https://www.tcpdump.org/manpages/pcap-savefile.5.html, of little-endian
machines; links are Ethernet (loopback is one) and bare IP (a TUN device is one).

defines: Packet, read_packets, TCP, UDP
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import msgspec

MAGIC_US, MAGIC_NS = 0xA1B2C3D4, 0xA1B23C4D
FILE_HEADER, PACKET_HEADER = struct.Struct("<IHHiIII"), struct.Struct("<IIII")
LINK_ETHERNET, LINK_RAW, LINK_IPV4 = 1, 101, 228
ETHERNET_BYTES = 14
PACKET_BYTES_MAX = 1 << 18
TCP, UDP = 6, 17
UDP_HEADER_BYTES = 8
SYN, ACK = 0x02, 0x10
TLS_HANDSHAKE, CLIENT_HELLO = 22, 1
RECORD_HEADER_BYTES = 5
QUIC_LONG, QUIC_TYPE_MASK, QUIC_INITIAL = 0x80, 0x30, 0x00


class Packet(msgspec.Struct, frozen=True):
    """One IP packet of TCP or UDP."""

    at_seconds: float
    """Since the epoch."""
    protocol: int
    source_port: int
    target_port: int
    bytes: int
    """On the wire, from the IP header on."""
    flags: int
    """Of TCP."""
    payload: bytes
    """What the capture kept of it."""

    @property
    def begins_connection(self) -> bool:
        return self.protocol == TCP and self.flags & (SYN | ACK) == SYN

    @property
    def begins_tls(self) -> bool:
        """A ClientHello, at the beginning of a record and of a packet, where clients put it."""
        head = self.payload[: RECORD_HEADER_BYTES + 1]
        return (
            self.protocol == TCP
            and len(head) > RECORD_HEADER_BYTES
            and (head[0], head[RECORD_HEADER_BYTES]) == (TLS_HANDSHAKE, CLIENT_HELLO)
        )

    @property
    def quic_initial_id(self) -> bytes:
        """The destination's connection id of an Initial packet; empty for all else."""
        if self.protocol != UDP or len(self.payload) < RECORD_HEADER_BYTES + 2:
            return b""
        first = self.payload[0]
        if not first & QUIC_LONG or first & QUIC_TYPE_MASK != QUIC_INITIAL:
            return b""
        size = self.payload[RECORD_HEADER_BYTES]
        return self.payload[RECORD_HEADER_BYTES + 1 : RECORD_HEADER_BYTES + 1 + size]


def read_packets(data: bytes) -> Iterator[Packet]:
    """Of a whole file, or as much of it as was written; what is neither TCP nor UDP is passed over.
    Raises ValueError for what is no capture."""
    if len(data) < FILE_HEADER.size:
        raise ValueError("a capture begins with its header")
    magic, _, _, _, _, _, link = FILE_HEADER.unpack_from(data)
    if magic not in (MAGIC_US, MAGIC_NS):
        raise ValueError("this is no capture, or one of a big-endian machine")
    if link not in (LINK_ETHERNET, LINK_RAW, LINK_IPV4):
        raise ValueError(f"packets of link type {link} are not understood")
    skipped = ETHERNET_BYTES if link == LINK_ETHERNET else 0
    unit = 1e-9 if magic == MAGIC_NS else 1e-6
    at = FILE_HEADER.size
    while at + PACKET_HEADER.size <= len(data):
        seconds, fraction, kept, _ = PACKET_HEADER.unpack_from(data, at)
        if kept > PACKET_BYTES_MAX:
            raise ValueError("a packet of the capture has no sane size")
        at += PACKET_HEADER.size
        packet = _packet(seconds + fraction * unit, data[at + skipped : at + kept])
        if packet is not None:
            yield packet
        at += kept


def _packet(at_seconds: float, data: bytes) -> Packet | None:
    version = data[0] >> 4 if data else 0
    if version == 4 and len(data) >= 20:
        header, protocol = (data[0] & 15) * 4, data[9]
        size = int.from_bytes(data[2:4], "big")
    elif version == 6 and len(data) >= 40:
        header, protocol = 40, data[6]
        size = 40 + int.from_bytes(data[4:6], "big")
    else:
        return None
    body = data[header:]
    if protocol not in (TCP, UDP) or len(body) < UDP_HEADER_BYTES:
        return None
    source, target = struct.unpack_from("!HH", body)
    flags, payload_at = 0, UDP_HEADER_BYTES
    if protocol == TCP:
        if len(body) < 20:
            return None
        flags, payload_at = body[13], (body[12] >> 4) * 4
    # A capture cannot keep more than there is: padding of short frames is not counted either.
    payload = body[payload_at : max(0, size - header)]
    return Packet(at_seconds, protocol, source, target, size, flags, payload)

"""QUIC by hand, for what no client's library would send: frames in packets of a connection that a
library has opened, and first packets of connections that nobody has."""

import os
import socket

from aioquic.buffer import Buffer, encode_uint_var
from aioquic.quic.crypto import CryptoPair
from aioquic.quic.packet import QuicProtocolVersion
from aioquic.tls import Epoch

from http3_client import Client

CRYPTO, STREAM, PING = 0x06, 0x0E, 0x01
PACKET_BYTES = 1200
LABEL_BYTES = 8


def crypto(offset: int, data: bytes = b"x") -> bytes:
    return bytes([CRYPTO]) + encode_uint_var(offset) + encode_uint_var(len(data)) + data


def stream(stream_id: int, offset: int, data: bytes = b"x") -> bytes:
    numbers = b"".join(map(encode_uint_var, (stream_id, offset, len(data))))
    return bytes([STREAM]) + numbers + data


def packets(frames: list[bytes], frames_max: int = 1000) -> list[bytes]:
    """Contents of packets, each as full as it can be."""
    contents: list[bytes] = []
    pending: list[bytes] = []
    size = 0
    for one in frames:
        if size + len(one) > PACKET_BYTES - 64 or len(pending) == frames_max:
            contents.append(b"".join(pending))
            pending, size = [], 0
        pending.append(one)
        size += len(one)
    return [*contents, b"".join(pending)]


def send(client: Client, content: bytes) -> None:
    """One packet of an established connection, past its library."""
    quic = client.quic
    number = quic._packet_number
    quic._packet_number += 1
    head = b"\x41" + quic._peer_cid.cid + (number & 0xFFFF).to_bytes(2, "big")
    content = content.ljust(4, b"\0")
    client._socket.send(quic._cryptos[Epoch.ONE_RTT].encrypt_packet(head, content, number))


class Stranger:
    """First packets of one connection whose client has no library."""

    def __init__(self, port: int) -> None:
        self.label = os.urandom(LABEL_BYTES)
        self._pair = CryptoPair()
        version = QuicProtocolVersion.VERSION_1
        self._pair.setup_initial(cid=self.label, is_client=True, version=version)
        self._number = 0
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.connect(("127.0.0.1", port))

    def send(self, content: bytes) -> None:
        content = content.ljust(PACKET_BYTES - 64, b"\0")
        buf = Buffer(capacity=PACKET_BYTES)
        buf.push_uint8(0xC1)
        buf.push_uint32(QuicProtocolVersion.VERSION_1)
        for label in (self.label, self.label):
            buf.push_uint8(len(label))
            buf.push_bytes(label)
        buf.push_uint_var(0)
        buf.push_uint16(0x4000 | 2 + len(content) + 16)
        buf.push_uint16(self._number)
        data = self._pair.encrypt_packet(buf.data, content, self._number)
        self._number += 1
        self._socket.send(data.ljust(PACKET_BYTES, b"\0"))

    def close(self) -> None:
        self._socket.close()

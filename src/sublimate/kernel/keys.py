"""How a connection is called in the kernel's maps: as core/bpf/maps.h has it.

defines: KEY_BYTES, NO_KEY, packed_address, tcp_key, quic_key, address_of,
         described
"""

from __future__ import annotations

import socket
import struct
from typing import Any, cast

KEY = struct.Struct("=I16s16sHH")
KEY_BYTES = KEY.size
NO_KEY = b""
"""Of a connection that the kernel cannot tell from others."""
MAPPED = bytes(10) + b"\xff\xff"
CONNECTION_ID_BYTES = 8
WORD_BYTES, ADDRESS_BYTES = 4, 16
REMOTE = WORD_BYTES + ADDRESS_BYTES
TCP = struct.pack("=I", socket.IPPROTO_TCP)


def packed_address(address: str) -> bytes:
    """16 bytes: an IPv6 address, or an IPv4 one mapped into it. Raises OSError if it is neither."""
    if ":" in address:
        return socket.inet_pton(socket.AF_INET6, address.partition("%")[0])
    return MAPPED + socket.inet_pton(socket.AF_INET, address)


def tcp_key(local: Any, remote: Any) -> bytes:
    """Of the two ends as sockets tell them; NO_KEY for what is no TCP over IP."""
    if not isinstance(local, tuple) or not isinstance(remote, tuple):
        return NO_KEY
    here, there = cast("tuple[Any, ...]", local), cast("tuple[Any, ...]", remote)
    ends = packed_address(here[0]), packed_address(there[0])
    return KEY.pack(socket.IPPROTO_TCP, *ends, here[1], there[1])


def quic_key(connection_id: bytes) -> bytes:
    """Of a connection id that the server gave out; 8 bytes or more, the first 8 count."""
    if len(connection_id) < CONNECTION_ID_BYTES:
        raise ValueError(f"a connection id has {CONNECTION_ID_BYTES} bytes or more here")
    return KEY.pack(socket.IPPROTO_UDP, connection_id[:CONNECTION_ID_BYTES], b"", 0, 0)


def address_of(key: bytes) -> bytes:
    """The client's, packed; empty where the key has none."""
    if not key or key[:WORD_BYTES] != TCP:
        return b""
    return key[REMOTE : REMOTE + ADDRESS_BYTES]


def described(key: bytes) -> str:
    """For people."""
    if len(key) != KEY_BYTES:
        raise ValueError(f"a key has {KEY_BYTES} bytes")
    protocol, local, remote, local_port, remote_port = KEY.unpack(key)
    if protocol == socket.IPPROTO_UDP:
        return f"quic {local[:CONNECTION_ID_BYTES].hex()}"
    return f"tcp {_address(remote)}:{remote_port} to {_address(local)}:{local_port}"


def _address(packed: bytes) -> str:
    if packed.startswith(MAPPED):
        return socket.inet_ntop(socket.AF_INET, packed[len(MAPPED) :])
    return f"[{socket.inet_ntop(socket.AF_INET6, packed)}]"

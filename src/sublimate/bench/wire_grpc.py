"""gRPC over HTTP/2 for `sublimate wire-compare`, by grpcio.

The request is written by hand: field 1 of CreateMessageRequest holds the Messages API's JSON
(proto/sublimate/v1/messages.proto), and what comes is counted, not read.

defines: Grpc, METHOD, request_message
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import PeerError
from .wire_order import OK_STATUS, TIMEOUT_SECONDS, Counts, Order, Timing, timed

METHOD = "/sublimate.v1.Messages/StreamMessage"
JSON_BODY_TAG = 1 << 3 | 2
LOW_BITS, MORE = 0x7F, 0x80
NAME = "localhost"
"""In the certificate, whatever the address."""


class Grpc:
    """One channel."""

    def __init__(self, order: Order) -> None:
        self.counts = Counts()
        self._place = f"{order.address}:{order.ports['grpc']}"
        self._trust = Path(order.certificate).read_bytes()
        self._channel: Any = None
        try:
            self._library: Any = importlib.import_module("grpc")
        except ImportError:
            raise PeerError("grpcio is not installed.") from None

    def ask(self, body: bytes) -> Timing:
        begun = time.perf_counter()
        channel = self._channel or self._connect()
        call: Iterator[bytes] = channel.unary_stream(METHOD)(
            request_message(body), timeout=TIMEOUT_SECONDS
        )
        first, size = 0.0, 0
        try:
            for message in call:
                first = first or time.perf_counter()
                size += len(message)
        except self._library.RpcError as error:
            raise PeerError(f"The call ended with {error.code()}.") from None
        return timed(begun, OK_STATUS, first, size)

    def hang_up(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _connect(self) -> Any:
        credentials = self._library.ssl_channel_credentials(self._trust)
        options = [
            ("grpc.ssl_target_name_override", NAME),
            ("grpc.use_local_subchannel_pool", 1),  # else a closed channel lends its connection
        ]
        self._channel = self._library.secure_channel(self._place, credentials, options)
        self.counts.handshakes += 1
        return self._channel


def request_message(body: bytes) -> bytes:
    """The call's one message, of a body of the Messages API."""
    return bytes([JSON_BODY_TAG]) + _varint(len(body)) + body


def _varint(value: int) -> bytes:
    if value < 0:
        raise ValueError("a length is not negative")
    digits = bytearray()
    while value > LOW_BITS:
        digits.append(value & LOW_BITS | MORE)
        value >>= 7
    digits.append(value)
    return bytes(digits)

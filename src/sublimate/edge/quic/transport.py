"""A QUIC connection of the library with limits of ours: windows, streams, pacing.

The library doubles a window whenever half of it is used, so whoever sends decides how much is
buffered here; ours moves with what was taken. All that reaches into the library's insides is here
and in messages.py.

defines: configuration_of, Pacer, Transport
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, cast

from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.packet import QuicFrameType
from aioquic.quic.packet_builder import QuicPacketBuilder
from aioquic.quic.recovery import QuicPacketPacer, QuicPacketSpace
from aioquic.quic.stream import QuicStream
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from ...errors import ConfigError
from .. import limits

APPLICATION_PROTOCOLS = ["h3"]
PRIVATE_KEY = re.compile(
    rb"-----BEGIN ([A-Z ]*)PRIVATE KEY-----.*?-----END \1PRIVATE KEY-----", re.DOTALL
)
FRAME_ROOM_BYTES = 40
"""With less left in a packet a stream's next piece waits for another one."""
LIMIT_FRAME_BYTES = 1 + 2 * 8
"""A frame type and two numbers of variable length."""
PACE_SECONDS_MIN = 0.0005
"""Between packets; an event loop's timers are no finer than twice this."""


def configuration_of(certificate: str, key: str) -> QuicConfiguration:
    """From the PEM files that the TCP side has loaded already; the key may lie in the
    certificate's (key empty)."""
    configuration = QuicConfiguration(
        is_client=False,
        alpn_protocols=APPLICATION_PROTOCOLS,
        idle_timeout=limits.QUIC_IDLE_SECONDS,
        max_data=limits.QUIC_CONNECTION_WINDOW_BYTES,
        max_stream_data=limits.QUIC_STREAM_WINDOW_BYTES,
    )
    # The library looks for one kind of PEM block only.
    found = PRIVATE_KEY.search(Path(key or certificate).read_bytes())
    cast(Any, configuration).load_cert_chain(certificate)
    if found is None:
        raise ConfigError(f"{key or certificate} holds no private key.")
    configuration.private_key = cast(Any, load_pem_private_key(found.group(), None))
    return configuration


NO_PACE = cast(float, None)
"""As the library says that nothing has to wait, though it declares a number."""


class Pacer(QuicPacketPacer):
    """Paces what timers can pace. Where packets would follow each other faster, waiting for a timer
    is a pause: there the congestion window alone decides."""

    def next_send_time(self, now: float) -> float:
        if self.packet_time is None or self.packet_time < PACE_SECONDS_MIN:
            return NO_PACE
        return super().next_send_time(now)


class Transport(QuicConnection):
    """The server's end of one connection."""

    def __init__(self, **named: Any) -> None:
        super().__init__(**named)
        if self._is_client:
            raise ValueError("a server's end was to be made")
        for limit, value in (
            (self._local_max_streams_bidi, limits.QUIC_STREAMS_MAX),
            (self._local_max_streams_uni, limits.QUIC_UNIDIRECTIONAL_STREAMS_MAX),
        ):
            limit.value = limit.sent = value
        self._loss._pacer = Pacer(  # pyright: ignore[reportPrivateUsage]
            max_datagram_size=self._max_datagram_size
        )

    @property
    def is_closing(self) -> bool:
        """From either side: nothing that is sent now arrives."""
        return self._close_event is not None

    @property
    def has_peer(self) -> bool:
        """One datagram at least made sense: there is an address to answer to."""
        return bool(self._network_paths)

    @property
    def has_unsent(self) -> bool:
        """Something that was written is not acknowledged."""
        return any(self.unsent_bytes(stream_id) for stream_id in self._streams)

    def unsent_bytes(self, stream_id: int) -> int:
        """Of a stream: what was written and not acknowledged."""
        stream = self._streams.get(stream_id)
        if stream is None:
            return 0
        return len(stream.sender._buffer)  # pyright: ignore[reportPrivateUsage]

    def has_stream(self, stream_id: int) -> bool:
        """It is open in one direction at least, or never was."""
        return stream_id in self._streams

    def grant(self, stream_id: int) -> None:
        """What came on the stream so far was taken: its window moves on."""
        stream = self._streams.get(stream_id)
        if stream is None or not stream.max_stream_data_local:
            return
        window = limits.QUIC_STREAM_WINDOW_BYTES
        end = stream.receiver.highest_offset + window
        if end - stream.max_stream_data_local >= window // 2:
            stream.max_stream_data_local = end

    def stop_stream(self, stream_id: int, error_code: int) -> None:
        """Ask for no more of a stream, if there is more to come."""
        stream = self._streams.get(stream_id)
        if stream is not None and not stream.receiver.is_finished:
            stream.receiver.stop(error_code)

    def _write_stream_frame(
        self,
        builder: QuicPacketBuilder,
        space: QuicPacketSpace,
        stream: QuicStream,
        max_offset: int,
    ) -> int:
        """The library asks all streams again for each packet, full or not, and those that have had
        their turn. A packet that is full is made as long as the others, so that the kernel takes a
        flight at once (listener.py)."""
        if builder.remaining_flight_space < FRAME_ROOM_BYTES:
            builder._datagram_needs_padding = True  # pyright: ignore[reportPrivateUsage]
            return 0
        used = super()._write_stream_frame(builder, space, stream, max_offset)
        sender = stream.sender
        has_more = sender._pending_eof or sender._pending[:1]  # pyright: ignore[reportPrivateUsage]
        if not has_more:
            sender.buffer_is_empty = True
        return used

    def _write_stream_limits(
        self, builder: QuicPacketBuilder, space: QuicPacketSpace, stream: QuicStream
    ) -> None:
        """The library's own would double the window first."""
        if stream.max_stream_data_local_sent == stream.max_stream_data_local:
            return
        frame = builder.start_frame(
            QuicFrameType.MAX_STREAM_DATA,
            capacity=LIMIT_FRAME_BYTES,
            handler=self._on_max_stream_data_delivery,
            handler_args=(stream,),
        )
        frame.push_uint_var(cast(int, stream.stream_id))
        frame.push_uint_var(stream.max_stream_data_local)
        stream.max_stream_data_local_sent = stream.max_stream_data_local

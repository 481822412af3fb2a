# pyright: reportPrivateUsage=false
"""A QUIC connection of the library with limits of ours: windows, streams, pacing.

The library doubles a window whenever half of it is used, so whoever sends decides how much is
buffered here; ours moves with what was taken. All that reaches into the library's insides is here
and in messages.py.

defines: configuration_of, reset_token, Pacer, Transport
"""

from __future__ import annotations

import hashlib
import re
import struct
from pathlib import Path
from typing import Any, cast

from aioquic._buffer import Buffer
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import (
    QuicConnection,
    QuicConnectionError,
    QuicNetworkPath,
    QuicReceiveContext,
)
from aioquic.quic.crypto import NoCallback
from aioquic.quic.packet import QuicErrorCode, QuicFrameType, QuicPacketType
from aioquic.quic.packet_builder import QuicDeliveryState, QuicPacketBuilder, QuicPacketBuilderStop
from aioquic.quic.recovery import QuicPacketPacer, QuicPacketSpace
from aioquic.quic.stream import QuicStream, QuicStreamSender
from aioquic.tls import Epoch
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from ...errors import ConfigError
from .. import limits
from .ranges import Ranges, Streams, TooManyGapsError, bound

APPLICATION_PROTOCOLS = ["h3"]
PRIVATE_KEY = re.compile(
    rb"-----BEGIN ([A-Z ]*)PRIVATE KEY-----.*?-----END \1PRIVATE KEY-----", re.DOTALL
)
FRAME_ROOM_BYTES = 40
"""With less left in a packet a stream's next piece waits for another one."""
PIECE_HEAD = struct.Struct(">BIIH")
"""Of a STREAM frame: type, stream (4 bytes), offset (4 bytes), length (2 bytes)."""
PIECE_TYPE = QuicFrameType.STREAM_BASE | 4 | 2
NUMBER_4, NUMBER_2 = 0x8000_0000, 0x4000
"""What marks numbers of variable length that have 4 and 2 bytes."""
NUMBER_4_END = 1 << 30
REQUEST_STREAM_MASK = 3
"""The low bits of a stream's number: 0 where a client began it and both write."""
LIMIT_FRAME_BYTES = 1 + 2 * 8
"""A frame type and two numbers of variable length."""
LAZY_ACK_SECONDS = 0.015
"""Well within the 25 ms that the client was told to expect."""
RESET_TOKEN_BYTES = 16
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


def reset_token(secret: bytes, label: bytes) -> bytes:
    """What tells a client that its connection, known to it by this label, is known here no more."""
    if not secret or not label:
        raise ValueError("a token that anybody can make ends everybody's connections")
    return hashlib.blake2b(label, digest_size=RESET_TOKEN_BYTES, key=secret).digest()


def _excess(code: QuicErrorCode, frame_type: int, reason: str) -> QuicConnectionError:
    """Ends the connection."""
    return QuicConnectionError(error_code=code, frame_type=frame_type, reason_phrase=reason)


NO_PACE = cast(float, None)
"""As the library says that nothing has to wait, though it declares a number."""


class Pacer(QuicPacketPacer):
    """Paces what timers can pace. Where packets would follow each other faster, waiting for a timer
    is a pause: there the congestion window alone decides."""

    def next_send_time(self, now: float) -> float:
        if self.packet_time is None or self.packet_time < PACE_SECONDS_MIN:
            return NO_PACE
        return super().next_send_time(now)


Piece = tuple[QuicStreamSender, int, int]
"""Bytes of a stream from one offset to another."""


class _Pieces:
    """What one packet carries of which streams, as it is put together."""

    __slots__ = ("frames", "pieces", "room")

    def __init__(self, room: int = 0) -> None:
        self.room = room
        self.frames: list[bytes | bytearray] = []
        self.pieces: list[Piece] = []

    def add(self, sender: QuicStreamSender, start: int, stop: int) -> int:
        """One frame. The offset up to which there was room."""
        stop = min(stop, start + self.room - PIECE_HEAD.size)
        size, begin = stop - start, start - sender._buffer_start
        stream_id = cast(int, sender._stream_id)
        self.frames += (
            PIECE_HEAD.pack(PIECE_TYPE, NUMBER_4 | stream_id, NUMBER_4 | start, NUMBER_2 | size),
            sender._buffer[begin : begin + size],
        )
        self.pieces.append((sender, start, stop))
        self.room -= PIECE_HEAD.size + size
        return stop

    def content(self) -> bytes:
        """Padded where nothing more would have had room."""
        content = b"".join(self.frames)
        is_full = self.room < FRAME_ROOM_BYTES
        return content + bytes(self.room) if is_full else content


class Transport(QuicConnection):
    """The server's end of one connection."""

    def __init__(self, reset_secret: bytes, number: int = 0, **named: Any) -> None:
        """reset_secret: of which the tokens of its labels are made (reset_token). number: the first
        byte of its labels, by which the edges of a server tell whose they are."""
        super().__init__(**named)
        if self._is_client:
            raise ValueError("a server's end was to be made")
        self._reset_secret = reset_secret
        self._number = bytes([number])
        first = self._host_cids[0]
        first.cid = self.host_cid = self._number + first.cid[1:]
        self._local_initial_source_connection_id = first.cid
        first.stateless_reset_token = reset_token(reset_secret, first.cid)
        for limit, value in (
            (self._local_max_streams_bidi, limits.QUIC_STREAMS_MAX),
            (self._local_max_streams_uni, limits.QUIC_UNIDIRECTIONAL_STREAMS_MAX),
        ):
            limit.value = limit.sent = value
        self._streams = Streams(limits.QUIC_GAPS_MAX)
        self._frames_left = limits.QUIC_FRAMES_BURST
        self._count_frames()
        self._fresh: dict[QuicStream, int] = {}
        """Streams with the offset from which on they have bytes that were never sent and that the
        library does not know of yet as something to send."""
        self._has_bytes = False
        """Of a stream, in the datagram that is read."""
        self._loss._pacer = Pacer(max_datagram_size=self._max_datagram_size)

    def _initialize(self, peer_cid: bytes) -> None:
        super()._initialize(peer_cid)
        for stream in self._crypto_streams.values():
            bound(stream, limits.QUIC_GAPS_MAX)
        for space in self._spaces.values():
            space.ack_queue = Ranges()

    def _count_frames(self) -> None:
        """Each frame is counted before it is handled, whatever it is."""
        handlers: dict[int, tuple[Any, Any]] = cast(Any, self)._QuicConnection__frame_handlers

        def counted(handle: Any) -> Any:
            def counting(context: QuicReceiveContext, frame_type: int, buf: Buffer) -> None:
                self._frames_left -= 1
                if self._frames_left < 0:
                    raise _excess(QuicErrorCode.INTERNAL_ERROR, frame_type, "too many frames")
                try:
                    handle(context, frame_type, buf)
                except TooManyGapsError:
                    is_crypto = frame_type == QuicFrameType.CRYPTO
                    raise _excess(
                        QuicErrorCode.CRYPTO_BUFFER_EXCEEDED
                        if is_crypto
                        else QuicErrorCode.INTERNAL_ERROR,
                        frame_type,
                        "too many gaps",
                    ) from None

            return counting

        for frame_type, (handle, epochs) in handlers.items():
            handlers[frame_type] = counted(handle), epochs

    def _replenish_connection_ids(self) -> None:
        """As the library's, with tokens that the next server knows too."""
        super()._replenish_connection_ids()
        for label in self._host_cids:
            if not label.was_sent:
                label.cid = self._number + label.cid[1:]
                label.stateless_reset_token = reset_token(self._reset_secret, label.cid)

    def break_cycles(self) -> None:
        """Call it once the connection has ended. The library's objects refer to each other in
        cycles; a full collection of what thousands of short connections leave would hold the event
        loop for tens of milliseconds."""
        library = cast(Any, self)
        library._QuicConnection__frame_handlers.clear()
        library._loss._send_probe = None
        for space in self._spaces.values():
            space.sent_packets.clear()
        for pair in (*self._cryptos.values(), *self._cryptos_initial.values()):
            for crypto in (pair.recv, pair.send):
                crypto._setup_cb = crypto._teardown_cb = NoCallback
        if hasattr(self, "tls"):
            vars(self.tls).clear()

    @property
    def is_closing(self) -> bool:
        """From either side: nothing that is sent now arrives."""
        return self._close_event is not None

    @property
    def has_peer(self) -> bool:
        """One datagram at least made sense: there is an address to answer to."""
        return bool(self._network_paths)

    @property
    def has_shown_address(self) -> bool:
        """It has answered from where it says it is, so it may be sent as much as there is."""
        return any(path.is_validated for path in self._network_paths)

    @property
    def has_unsent(self) -> bool:
        """Something that was written is not acknowledged."""
        return any(self.unsent_bytes(stream_id) for stream_id in self._streams)

    def unsent_bytes(self, stream_id: int) -> int:
        """Of a stream: what was written and not acknowledged."""
        stream = self._streams.get(stream_id)
        if stream is None:
            return 0
        return len(stream.sender._buffer)

    def has_stream(self, stream_id: int) -> bool:
        """It is open in one direction at least, or never was."""
        return stream_id in self._streams

    def is_wanted(self, stream_id: int) -> bool:
        """What is sent on the stream: neither end has said that there will be no more of it."""
        stream = self._streams.get(stream_id)
        return stream is not None and stream.sender._reset_error_code is None

    def is_receiving(self, stream_id: int) -> bool:
        """More may come on the stream."""
        stream = self._streams.get(stream_id)
        return stream is not None and not stream.receiver.is_finished

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
        if self.is_receiving(stream_id):
            self._streams[stream_id].receiver.stop(error_code)

    def receive_datagram(self, data: bytes, addr: Any, now: float) -> None:
        """As the library's, which acknowledges all within a millisecond. Where no bytes of a stream
        came, which their sender would wait with, that may ride with the next flight."""
        space = self._spaces.get(Epoch.ONE_RTT)
        was_due = space is not None and space.ack_at is not None
        self._has_bytes = False
        self._frames_left = min(
            self._frames_left + limits.QUIC_FRAMES_PER_DATAGRAM, limits.QUIC_FRAMES_BURST
        )
        super().receive_datagram(data, addr, now)
        if space is None or space.ack_at is None or not self._handshake_confirmed:
            return
        if self._has_bytes:
            space.ack_at = min(space.ack_at, now + self._ack_delay)
        elif not was_due:
            space.ack_at = now + LAZY_ACK_SECONDS

    def _handle_ack_frame(self, context: QuicReceiveContext, frame_type: int, buf: Buffer) -> None:
        """The library takes an ACK of what was never sent (RFC 9000, 13.1)."""
        begin = buf.tell()
        if buf.pull_uint_var() >= self._packet_number:
            raise _excess(QuicErrorCode.PROTOCOL_VIOLATION, frame_type, "it was never sent")
        buf.seek(begin)
        super()._handle_ack_frame(context, frame_type, buf)

    def _handle_crypto_frame(
        self, context: QuicReceiveContext, frame_type: int, buf: Buffer
    ) -> None:
        """The library bounds what waits, and nothing bounds what its TLS puts together."""
        begin = buf.tell()
        if buf.pull_uint_var() + buf.pull_uint_var() > limits.QUIC_CRYPTO_BYTES_MAX:
            raise _excess(QuicErrorCode.CRYPTO_BUFFER_EXCEEDED, frame_type, "too much of it")
        buf.seek(begin)
        super()._handle_crypto_frame(context, frame_type, buf)

    def _handle_stream_frame(
        self, context: QuicReceiveContext, frame_type: int, buf: Buffer
    ) -> None:
        self._has_bytes = True
        super()._handle_stream_frame(context, frame_type, buf)

    # ---- sending -------------------------------------------------------------------------------
    def send_stream_data(self, stream_id: int, data: bytes, end_stream: bool = False) -> None:
        """As the library's. What a request's stream gets when nothing of it waits is fresh: it is
        written by `_write_fresh`; all else is the library's. What nobody wants is dropped: the
        library knows it once the datagram that says so is read, and who writes a bit later."""
        stream = None if stream_id & REQUEST_STREAM_MASK else self._streams.get(stream_id)
        if stream is None:
            super().send_stream_data(stream_id, data, end_stream)
            return
        sender = stream.sender
        if sender._reset_error_code is not None:
            return
        is_open = sender._buffer_fin is None
        if sender.buffer_is_empty and is_open and not end_stream and self._handshake_confirmed:
            if data:
                self._fresh.setdefault(stream, sender._buffer_stop)
                sender._buffer += data
                sender._buffer_stop += len(data)
        else:
            self._settle(stream, self._fresh.pop(stream, sender._buffer_stop))
            sender.write(data, end_stream)

    def _settle(self, stream: QuicStream, start: int) -> None:
        """From this offset on a stream's fresh bytes are the library's to send."""
        sender = stream.sender
        if start < sender._buffer_stop and sender._reset_error_code is None:
            sender._pending.add(start, sender._buffer_stop)
            sender.buffer_is_empty = False

    def _write_application(
        self, builder: QuicPacketBuilder, network_path: QuicNetworkPath, now: float
    ) -> None:
        """The library walks over all streams for each packet, and makes a frame in a dozen calls.
        Here fresh bytes come first, of the streams that have some, and the library's own writing
        finds whatever else there is to say or to say again: all, if the peer's address or its being
        there at all is in doubt."""
        if self._fresh:
            fresh, self._fresh = self._fresh, {}
            if network_path.is_validated and not self._probe_pending:
                self._write_fresh(builder, fresh, now)
            else:
                for stream, start in fresh.items():
                    self._settle(stream, start)
        super()._write_application(builder, network_path, now)

    def _write_fresh(
        self, builder: QuicPacketBuilder, fresh: dict[QuicStream, int], now: float
    ) -> None:
        """Packets of STREAM frames, all but the last of one length, so that the kernel takes a
        flight at once (listener.py). What has no room, in a window or altogether, is settled."""
        packet = _Pieces()
        is_blocked = False
        for stream, start in fresh.items():
            sender = stream.sender
            if is_blocked or not self._may_send(stream, start):
                self._settle(stream, start)
                continue
            stop = sender._buffer_stop
            while start < stop:
                if packet.room < FRAME_ROOM_BYTES:
                    self._end_packet(builder, packet, now)
                    packet = _Pieces(self._begin_packet(builder, now))
                    if packet.room < FRAME_ROOM_BYTES:
                        is_blocked = True
                        self._settle(stream, start)
                        break
                start = packet.add(sender, start, stop)
            self._remote_max_data_used += start - sender.highest_offset
            sender.highest_offset = start
        self._end_packet(builder, packet, now)

    def _may_send(self, stream: QuicStream, start: int) -> bool:
        """All of a stream's fresh bytes."""
        sender = stream.sender
        if sender.highest_offset != start:
            raise RuntimeError("something of a stream was left out")
        stop = sender._buffer_stop
        used: int = cast(Any, self)._remote_max_data_used
        return (
            sender.buffer_is_empty
            and sender._reset_error_code is None
            and not stream.is_blocked
            and stop <= stream.max_stream_data_remote
            and stop - start <= self._remote_max_data - used
            and max(stop, cast(int, stream.stream_id)) < NUMBER_4_END
        )

    def _begin_packet(self, builder: QuicPacketBuilder, now: float) -> int:
        """Its room in bytes, 0 if none may be sent now."""
        self._pacing_at = self._loss._pacer.next_send_time(now)
        if self._pacing_at is not NO_PACE:
            return 0
        space = self._spaces[Epoch.ONE_RTT]
        try:
            builder.start_packet(QuicPacketType.ONE_RTT, self._cryptos[Epoch.ONE_RTT])
            if space.ack_at is not None:
                self._write_ack_frame(builder, space, now)
        except QuicPacketBuilderStop:
            return 0
        return builder.remaining_flight_space

    def _end_packet(self, builder: QuicPacketBuilder, packet: _Pieces, now: float) -> None:
        if not packet.pieces:
            return
        content = packet.content()
        frame = builder.start_frame(
            PIECE_TYPE, len(content), self._on_pieces_delivery, (packet.pieces,)
        )
        frame.push_bytes(content[1:])
        self._loss._pacer.update_after_send(now)

    def _on_pieces_delivery(self, delivery: QuicDeliveryState, pieces: list[Piece]) -> None:
        """As a stream's own `on_data_delivery`, in short where all before was delivered too."""
        for sender, start, stop in pieces:
            is_next = start == sender._buffer_start and not len(sender._acked)
            is_open = sender._buffer_fin is None and sender._reset_error_code is None
            if delivery is QuicDeliveryState.ACKED and is_next and is_open:
                del sender._buffer[: stop - start]
                sender._buffer_start = stop
            else:
                sender.on_data_delivery(delivery, start, stop, False)

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
            builder._datagram_needs_padding = True
            return 0
        used = super()._write_stream_frame(builder, space, stream, max_offset)
        sender = stream.sender
        has_more = sender._pending_eof or sender._pending[:1]
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

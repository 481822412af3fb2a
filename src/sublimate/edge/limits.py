"""Every bound of the HTTP edge, each with its reason. Bounds of the core are in core/limits.h.

The numbers that a person may want to change are fields of HttpLimits; SUBLIMATE_HTTP_<FIELD> in the
environment overrides them.

defines: HttpLimits, limits_from_environment, and constants
"""

from __future__ import annotations

import resource
from collections.abc import Mapping

import msgspec

from .. import _core
from ..errors import ConfigError

KIB = 1024
MIB = 1024 * KIB

# ---- JSON ----------------------------------------------------------------------------------------
JSON_DEPTH_MAX = 64
"""Nesting; checked before decoding, so that the limit is ours and not the decoder's stack."""
JSON_OBJECT_KEYS_MAX = 10_000
"""Keys of one object."""
JSON_KEYS_MAX = 200_000
"""Keys of one body."""
JSON_STRINGS_MAX = 500_000
"""Strings of one body, names included."""
JSON_ELEMENTS_MAX = 500_000
"""Elements of arrays and members of objects of one body, whatever they are: each becomes an object
of the interpreter while its lock is held. Several times the tokens of the longest context."""
JSON_CONTAINERS_MAX = 200_000
"""Objects and arrays of one body, each of which becomes an object of the interpreter."""

# ---- protobuf ------------------------------------------------------------------------------------
MESSAGE_FIELDS_MAX = 50_000
"""Fields of one message and of those within; checked before it is parsed, since each becomes an
object of the interpreter while its lock is held."""

# ---- Messages API --------------------------------------------------------------------------------
STOP_SEQUENCES_MAX = _core.LIMITS["STOP_STRINGS_MAX"]
STOP_SEQUENCE_BYTES_MAX = _core.LIMITS["STOP_STRING_BYTES_MAX"]
CHOICES_MAX = 128
"""Answers to one request: as many as an engine runs at once."""
TEMPERATURE_MAX = 2.0
PENALTY_MAX = 2.0
REPETITION_PENALTY_MAX = 10.0
LOGIT_BIAS_VALUE_MAX = 100.0
SEED_BITS = 64
IDENTIFIER_CHARACTERS_MAX = 256
"""Of a model id in a request or a path."""
PAGE_LIMIT_DEFAULT = 20
PAGE_LIMIT_MAX = 1000

# ---- debugging -----------------------------------------------------------------------------------
STORIES_MAX = 512
"""Requests that have ended and can still be asked for; about 1 KiB each without a trace."""
STORY_BYTES_MAX = MIB
"""Traced records of one request: some eight thousand steps."""
STORY_RECORDS_BYTES_MAX = 16 * MIB
"""Of all of them; the oldest lose theirs first."""
FOLLOWERS_MAX = 8
"""Debuggers that follow at once: each is sent all that happens."""
FOLLOWERS_PER_KEY_MAX = 4
"""Of one API key, so that it leaves places to others."""
FOLLOW_SECONDS = 2.0
"""How long the loop goes on tracing for an edge that says no more."""
TRACE_READ_SECONDS = 0.1
"""A second of full batches fits into the ring: late reads still miss nothing."""
FOLLOW_PING_SECONDS = 1.0
"""Silence on a follower's stream; a broken connection is noticed by it."""

# ---- connections ---------------------------------------------------------------------------------
PIPELINED_REQUESTS_MAX = 16
"""Requests that may wait behind the one being answered on a connection."""
PIPELINED_BYTES_MAX = 64 * KIB
"""Bytes that may arrive while one is being answered; then the connection is cut."""
TURN_SECONDS = 0.004
"""Time in each turn of the event loop for bytes received over HTTP/1.1 and HTTP/2."""
SLICE_BYTES_MIN, SLICE_BYTES_MAX = 512, 64 * KIB
"""Bytes parsed between two readings of the clock; more than the minimum only inside a body. The
minimum holds about twenty small requests."""
UNSENT_WRITES_MAX = 4
"""A stream may leave this many times its largest write unread, if that is more than the usual
bound: a single event may be larger than the bound."""
LINGER_SECONDS = 5.0
"""After the last answer of a connection: how long what the client still sends is read and dropped,
so that it sees the answer and not a reset. Most clients send all of a body before they read."""
LINGER_BYTES_MAX = 64 * MIB
"""The same in bytes: twice the largest body, so that one somewhat too large still gets its 413.
Dropped bytes cost a read each and no memory."""
LINGER_SILENCE_SECONDS = 0.25
"""After an error over TLS the connection is closed once the client has sent nothing for so long."""
SEND_STALL_SECONDS = 60.0
"""From when on answers wait in our memory: their client takes them within this or is cut off."""
PROBE_SECONDS = 0.25
"""After a client has closed its sending side, a byte without meaning is sent this often to learn
whether it still reads. Most answers are complete before the first."""
PROBE_LOOKS = 4
"""Looks for the reset that such a byte may bring, in the same time."""
CHUNK_OVERHEAD_BYTES_MIN = 100_000
"""From this many body bytes on the wire, chunk framing may not exceed the next share of them."""
CHUNK_OVERHEAD_SHARE_MAX = 0.8
DESCRIPTORS_RESERVED = 64
"""Descriptors that connections leave to everything else."""
REFUSED_CONNECTIONS_MAX = 16
"""Connections beyond the cap that may linger to read their refusal, out of those descriptors; more
are closed at once, which can take the refusal from a client that has sent something."""
SOCKET_SEND_BUFFER_BYTES = 128 * KIB
"""Kernel memory of one connection; without it the kernel takes megabytes of a stream that nobody
reads before the budget of unsent bytes is even touched."""

# ---- gRPC ----------------------------------------------------------------------------------------
GRPC_STREAMS_MAX = 256
"""Calls at once on one connection; clients wait for their turn."""
GRPC_CALLS_MAX = 4096
"""Calls at once on the port of gRPC; further ones are refused."""
GRPC_INFLATED_BYTES_MAX = 4 * MIB
"""Decompressed size of a message: more would hold up the event loop."""
HTTP2_FRAME_BYTES_MAX = 16 * KIB
"""The protocol's own."""
HTTP2_STREAM_WINDOW_BYTES = 256 * KIB
HTTP2_CONNECTION_WINDOW_BYTES = 1 * MIB
HTTP2_HEAD_FACTOR = 2
"""An encoded head this many times the limit ends the connection; below, its call is refused."""
HTTP2_CONTINUATIONS_MAX = 16
"""Frames of one head. Clients fill them."""
HTTP2_BUDGET_SECONDS = 10.0
HTTP2_RESETS_MAX = 2 * GRPC_STREAMS_MAX
"""Streams that may be reset or refused in so long: twice all that can be open at once."""
HTTP2_REFUSED_HEAD_RESETS = 16
"""What a head that is too large counts as."""
HTTP2_CONTROL_FRAMES_MAX = 2000
HTTP2_CONTROL_FRAMES_PER_DATA = 4
"""Frames that carry nothing: so many in so long, and some for each one of data that is sent, which
clients answer by windows and pings."""
HTTP2_USEFUL_BYTES_MIN = 64
"""A frame of data earns those only from this size on, unless it is the last: a client with a window
of one byte would earn them with each byte."""
HTTP2_BODIES_BYTES_MAX = 64 * MIB
"""Bytes of all incomplete calls of one connection: twice the largest call."""
HTTP2_LINGER_SECONDS, HTTP2_LINGER_BYTES_MAX = 1.0, 1 * MIB
"""When a client's fault has ended its connection, what still comes is read and dropped."""
HTTP2_TICK_IDLE_SECONDS = 10.0
"""How often a connection without a call is looked at."""
HTTP2_WRITE_BUFFER_BYTES = 64 * KIB
"""Write buffer of a connection, beyond its streams' own."""
GRPC_PING_SECONDS = 60.0
"""A connection that is silent for so long is asked whether it lives, and ends without an answer."""
GRPC_PING_ANSWER_SECONDS = 20.0
GRPC_CONNECTION_SECONDS = 3600.0
"""Then a connection takes no new calls and its client makes another one, so that those of a fleet
do not all stay with the server that was there first."""
GRPC_CONNECTION_GRACE_SECONDS = 3600.0
"""For the calls that are under way by then. It ends those that nobody reads, too."""

# ---- QUIC ----------------------------------------------------------------------------------------
QUIC_STREAMS_MAX = 100
"""Requests that one connection may have open; the least that clients expect."""
QUIC_UNIDIRECTIONAL_STREAMS_MAX = 16
"""HTTP/3 needs three; clients open others to see whether they are ignored."""
QUIC_STREAM_WINDOW_BYTES = 256 * KIB
"""What a client may send of a request beyond what was taken; also what a paused upload holds."""
QUIC_CONNECTION_WINDOW_BYTES = 1 * MIB
"""At first, of all streams together; the library doubles it as it is used."""
CONNECTION_UNSENT_BYTES_MAX = 4 * MIB
"""Of all answers on a connection that the client has not taken; beyond it no request is begun."""
QUIC_UNSENT_BYTES_MIN = 16 * KIB
"""A complete answer of which no more is left is not watched any longer: the idle timeout is
enough."""
QUIC_IDLE_SECONDS = 60.0
"""Without a word from the client. Answers under way are pinged, so that a client that is there has
something to acknowledge."""
QUIC_PING_SECONDS = 15.0
QUIC_RESETS_MAX = 200
QUIC_RESET_WINDOW_SECONDS = 10.0
"""So many streams may be reset in so long: twice all that can be open at once."""
QUIC_GAPS_MAX = 256
"""Pieces between which bytes of a stream are missing. A full window of packets of which each second
one is lost has 110."""
QUIC_CRYPTO_BYTES_MAX = 16 * KIB
"""Bytes of a client's side of the handshake: a hello and a ticket have 3 KiB."""
QUIC_FRAMES_BURST = 2048
QUIC_FRAMES_PER_DATAGRAM = 32
"""Frames that one connection may send, on average and at once: clients have few in a datagram,
while one of pings alone could have 1,400."""
H3_FRAMES_MIN = 1000
H3_FRAME_BYTES_MIN = 8
"""After this many HTTP/3 frames, those of a connection must average this many bytes."""
H3_CONTROL_BYTES_MAX = 4 * KIB
"""Bytes of an incomplete frame on a control stream."""
QUIC_DATAGRAM_BYTES_MAX = 2 * KIB
"""What networks carry. A datagram of the largest size would be as much work as thirty."""
QUIC_RESETS_PER_SECOND, QUIC_RESETS_PER_LABEL = 4096, 8
"""Stateless resets sent in a second, in all and for each connection."""
QUIC_HALF_OPEN_MAX = 64
"""Handshakes under way; beyond it a client has to show first that it has its address."""
QUIC_TICKETS_MAX = 4096
QUIC_TICKET_SECONDS = 3600.0
"""How long a client may come back without a handshake's round trip."""
QUIC_DATAGRAMS_PER_TURN = 64
QUIC_TURN_SECONDS = 0.004
"""Read in a row, whichever ends first, before other work of the event loop gets its turn."""
QUIC_SOCKET_BUFFER_BYTES = 2 * MIB
"""Asked of the kernel, which may give less: all connections share one socket."""
ALTERNATIVE_SECONDS = 3600
"""How long a client may remember that this server speaks HTTP/3."""

# ---- idempotency keys ----------------------------------------------------------------------------
OUTCOME_SECONDS = 600.0
"""How long the answer to a POST with an idempotency-key is kept."""
OUTCOME_BYTES_MAX = 8 * MIB
"""Of all answers kept for one tenant; the oldest go first."""
OUTCOMES_MAX = 1000
"""The same in number."""
OUTCOME_GRACE_SECONDS = 5.0
"""How long an answer goes on without its client, which may come back for it."""

# ---- content codings -----------------------------------------------------------------------------
GZIP_BYTES_MIN = 8 * KIB
"""Larger whole answers are compressed for clients that accept it. For smaller ones the transfer
costs less than the work."""
GZIP_BYTES_MAX = 4 * MIB
"""Above, the event loop would stand still for tens of milliseconds."""

# ---- pacing --------------------------------------------------------------------------------------
PING_SECONDS = 8.0
"""Silence after which a stream gets a ping: with the timer's period below the promised 10 s."""
SIBLING_SECONDS = 2.0
"""In which another edge tells its figures."""
LEAVING_IDLE_SECONDS = 5.0
"""After another process has taken over: then connections on which nothing is asked are closed."""
TICK_SECONDS = 1.0
IDLE_LOOK_SECONDS, IDLE_LOOKS_MAX = 1.0, 10
"""How often a server that has just started looks whether nobody waits for an answer, to load what
few requests need (later.py); after so many looks it does so all the same. The libraries let nothing
else run for some tenths of a second."""
OFFLOAD_BYTES_MIN = 16 * KIB
"""Bodies from here on are prepared on a worker thread, so that streams keep their pace.

Up to a point: decoding a body and searches in its text are single calls that hold the interpreter's
lock, and the event loop waits for each: some milliseconds per MiB. Checks of the bytes
(json_bounds.py) and the tokenizer do not hold the lock."""
PREPARE_THREADS = 2
"""Of requests that are about to be submitted."""
THREAD_STACK_BYTES = 64 * MIB
"""Address space of each thread. The grammar library follows the references of a schema by
recursion, and may need a quarter of this for as many schemas as one request may have."""
ASIDE_THREADS = 2
"""Of work for which no stream waits: counting, tokenising, reading batches."""
COUNT_BYTES_MIN = MIB
"""Rendered prompts up to here are counted whatever the context: a quarter of a second. Longer ones
as far as the longest prompt of the served context may go."""
LARGE_BODY_BYTES = 4 * MIB
"""Bodies from here on are read one at a time."""
TRIM_BYTES_MIN = MIB
"""Bodies from here on leave memory behind that is given back to the system."""
OVERLOAD_RETRY_SECONDS = 1
ENGINE_LOST_RETRY_SECONDS = 1
TRIPPED_RETRY_SECONDS = 5
"""Of an engine that is to recover first: a GPU does not cool down in less."""
LOAD_RETRY_SECONDS = 5
"""After a model could not be loaded."""
LOAD_SECONDS_MAX = 300.0
"""That a request waits for its model: as long as a large one takes, and others that go first."""
RESTING_TEXTS_MAX = 3
"""Tokenizers of models that are out of memory: some ten MB each, and a moment saved when they come
back."""


class HttpLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What a connection and its requests may take; settings change some."""

    header_bytes_max: int = 16 * KIB
    header_fields_max: int = 100
    header_seconds: float = 10.0
    """From accept, or from the first byte of a later request; absolute."""
    body_seconds: float = 60.0
    body_bytes_max: int = 32 * MIB
    keep_alive_seconds: float = 180.0
    """Idle connections. Longer than any client's pool keeps one (120 s)."""
    unsent_bytes_max: int = 256 * KIB
    connections_max: int = 0
    """0: as many as the descriptor limit allows."""
    messages_max: int = 10_000
    tools_max: int = 128
    ping_seconds: float = PING_SECONDS

    def connection_cap(self) -> int:
        """Connections that may be open at once, below RLIMIT_NOFILE."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        room = max(1, soft - DESCRIPTORS_RESERVED)
        return min(self.connections_max or room, room)


def limits_from_environment(environment: Mapping[str, str]) -> HttpLimits:
    """Defaults, overridden by SUBLIMATE_HTTP_*. Raises ConfigError that names the variable."""
    chosen: dict[str, float] = {}
    for field in msgspec.structs.fields(HttpLimits):
        variable = f"SUBLIMATE_HTTP_{field.name.upper()}"
        text = environment.get(variable, "")
        if not text:
            continue
        try:
            value = int(text) if field.type is int else float(text)
        except ValueError:
            value = -1
        if not 0 <= value < float("inf"):
            raise ConfigError(f"{variable} = {text!r}: expected a number that is not negative.")
        chosen[field.name] = value
    return msgspec.convert(chosen, HttpLimits)

"""The control channel between the supervisor and its children: typed messages and descriptors.

A socketpair(AF_UNIX, SOCK_SEQPACKET) per child; one JSON object per datagram, tagged by "op";
descriptors travel beside it as SCM_RIGHTS. Low volume: nothing of a request passes here.
"""

from __future__ import annotations

import array
import os
import socket
from typing import Any, Generic, Literal, TypeVar

import msgspec

from ..config import EdgeSettings, EngineSettings, LogSettings
from ..kernel.reason import Reason
from .measured import Measured

DATAGRAM_BYTES_MAX = 128 * 1024
DESCRIPTORS_MAX = 16
LOOP_THREAD, COMPUTE_THREAD = "loop", "compute"
"""Names of the engine's threads that make steps (core/cpu/threads.cpp names its own)."""


class Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="op"):
    """Base of all control messages; `op` on the wire is the tag."""


# ---- supervisor -> engine ----
class Load(Message, frozen=True, tag="load"):
    """Load a model (or, with settings.script, the scripted engine) and answer Ready or Failed.

    `prefix_secret`: 64 bits that the engines of a server share, so that one PrefixHasher serves for
    all of them; 0: a secret of the engine's own. A descriptor beside it: what an engine before it
    sent with Weights. `cpus`: where all its threads stay; empty: wherever they may run. `engines`:
    how many share the machine's memory, `kv_parts` into how many parts what keys and values may
    have of it falls beyond that. `measured`: by the engine before it. `remembers`: the folder where
    engines keep what they have measured, for other servers; empty: nowhere.
    """

    settings: EngineSettings
    model_path: str
    prefix_secret: int = 0
    cpus: tuple[int, ...] = ()
    engines: int = 1
    kv_parts: int = 1
    measured: Measured | None = None
    remembers: str = ""


class Attach(Message, frozen=True, tag="attach"):
    """Serve the region whose memory, submission bell and token bell travel with this message."""

    edge: int


class Detach(Message, frozen=True, tag="detach"):
    """Cancel everything of that edge and forget its region."""

    edge: int


class Stop(Message, frozen=True, tag="stop"):
    """End now. Also for the edge."""


# ---- engine -> supervisor ----
class Progress(Message, frozen=True, tag="progress"):
    """Part of the load that is done, 0 to 1."""

    fraction: float


class Weights(Message, frozen=True, tag="weights"):
    """The engine has packed the model. If it did so into memory that others can map, that travels
    with this message, for their Load. Before Ready, which takes some time more."""


class Ready(Message, frozen=True, tag="ready"):
    """The engine serves. `info` is Model.info. Its PrefixTable travels with this message.
    `measured`: for the Load of the one after it; None: nothing was."""

    info: dict[str, Any]
    measured: Measured | None = None


class Failed(Message, frozen=True, tag="failed"):
    """The load failed; an edge that says so ends. `reason` is a stable word, `message` is for a
    person."""

    message: str
    reason: str = "load_failed"


class Attached(Message, frozen=True, tag="attached"):
    """The region of that Attach is served. A Detach is followed without a word."""

    edge: int


# ---- supervisor -> edge ----
class ModelPlace(msgspec.Struct, frozen=True, kw_only=True):
    """One model that an edge can serve."""

    name: str
    path: str
    tool_format: str = ""
    file_bytes: int = 0
    adapters: tuple[str, ...] = ()
    """Names, in the order of the settings of its engines."""


class Start(Message, frozen=True, tag="start"):
    """Begin to answer on the listening socket that travels with this message, and with TLS on the
    second one if there are two. `grpc_address`: host:port for gRPC, which the supervisor holds for
    this; empty: none."""

    settings: EdgeSettings
    log: LogSettings
    model_path: str
    model_name: str
    grpc_address: str = ""
    number: int = 0
    """Unlike that of any other edge that runs."""
    worker: int = 0
    workers: int = 1
    secret: bytes = b""
    """The server's, the same for all its edges: signatures and tenants come from it."""
    prefix_secret: int = 0
    """That of its engines, as in Load."""
    adapters: tuple[str, ...] = ()
    """Names of those of the model, in the order of the settings of its engines."""
    waits: bool = False
    """It takes over from another: it listens once there is an engine."""
    stays: bool = False
    """A model file that cannot be read is no reason to end: say so to every request."""
    loads: bool = False
    """Models are loaded when one asks for them (ModelWanted), and may be gone in between."""
    model_bytes: int = 0
    """Of the main model's files."""
    more_models: tuple[ModelPlace, ...] = ()
    """Beside the one named above, the main one."""
    extras: tuple[str, ...] = ()
    """Names of the descriptors behind the sockets: inbox, that of this edge (edge/siblings.py);
    quotas, memory of all edges (edge/ledger.py)."""


class Sibling(Message, frozen=True, tag="sibling"):
    """Another edge of the server runs; its inbox travels with this message."""

    number: int
    worker: int


class SiblingGone(Message, frozen=True, tag="sibling_gone"):
    """It has ended."""

    number: int


class KernelMemory(Message, frozen=True, tag="kernel_memory"):
    """What the kernel remembers of connections (kernel/connections.py). `names`: of the descriptors
    that travel with this message; none: `reason` says why. Behind them those of steering
    (kernel/steering.py), if `steering` says that it is loaded."""

    reason: Reason
    names: tuple[str, ...] = ()
    secret: bytes = b""
    hook: str = ""
    sees_quic: bool = False
    row: int = 0
    """Of the counters, this edge's."""
    worker: int = 0
    steering: Reason = "off"


class EngineUp(Message, frozen=True, tag="engine_up"):
    """An engine serves the region whose three descriptors travel with this message; behind them
    that of its PrefixTable.

    `edge` names the pair, as in Attach; RegionBroken says it again. `engine` names the engine,
    `worker` whose it is, `model` what it computes; empty: the main one.
    """

    info: dict[str, Any]
    model: str = ""
    edge: int = 0
    engine: int = 0
    worker: int = 0


class EngineLost(Message, frozen=True, tag="engine_lost"):
    """The engine ended: fail what is in flight there; without another one answer 503 until the next
    EngineUp.

    `reason` is not empty when it will not come back (`serve --stay`): the body of the 503.
    """

    engine: int = 0
    reason: str = ""
    message: str = ""


class Health(Message, frozen=True, tag="health"):
    """What the watchdog found of an engine, when it changes and with each EngineUp.

    `state` and `fault` are words of guard/watchdog.py. Tripped: give it nothing new; what it has
    goes on, unless EngineLost comes too."""

    engine: int = 0
    state: Literal["ok", "tripped", "hung"] = "ok"
    fault: Literal["", "no_turn", "no_step", "starved", "gpu_hot", "gpu_idle"] = ""


class EdgeHealth(Message, frozen=True, tag="edge_health"):
    """What the watchdog found of an edge, when it changes and when an edge starts.

    `trips`, `restarts`: so far, of the edges in that place."""

    worker: int = 0
    state: Literal["ok", "tripped", "hung"] = "ok"
    trips: int = 0
    restarts: int = 0


class Ping(Message, frozen=True, tag="ping"):
    """Answer Pong from the event loop. `sent_seconds`: of the monotonic clock."""

    sent_seconds: float


class EngineLeaving(Message, frozen=True, tag="engine_leaving"):
    """Give that engine nothing more, and say EngineIdle when it has nothing left to do here."""

    engine: int


class ModelFailed(Message, frozen=True, tag="model_failed"):
    """That model could not be loaded; ask again for another try. Who waits for it gets a 503."""

    model: str
    reason: str
    message: str


class ModelChanged(Message, frozen=True, tag="model_changed"):
    """The model's file is another one now: what was read of it holds no more for the engines that
    come. Those before them are gone by then."""

    model: str


class Reload(Message, frozen=True, tag="reload"):
    """Read the keys file again; what is being answered goes on."""


class Drain(Message, frozen=True, tag="drain"):
    """Accept nothing new, let streams finish within `seconds`, then answer Drained.

    `serves`: another edge has taken over. What still comes on open connections is served, and
    their clients are told to go.
    """

    seconds: float
    serves: bool = False


# ---- edge -> supervisor ----
class EdgeReady(Message, frozen=True, tag="ready"):
    """The edge accepts connections. `info`: what the start-up screen shows (template, ...).
    `refuses`: it cannot read the model, and says so to all of them. `answers_pings`: its event
    loop is watched."""

    info: dict[str, Any] = {}
    refuses: bool = False
    answers_pings: bool = False


class Pong(Message, frozen=True, tag="pong"):
    """The event loop turns."""


class RegionBroken(Message, frozen=True, tag="region_broken"):
    """That pair's region cannot be used (any more), and what was in flight has got its error:
    another one is needed. The engine may well live."""

    edge: int


class EngineIdle(Message, frozen=True, tag="engine_idle"):
    """That engine leaves, and has nothing in flight here any more."""

    engine: int


class ModelWanted(Message, frozen=True, tag="model_wanted"):
    """Requests wait here for an engine of that model. It is not taken away before ModelTaken."""

    model: str


class ModelTaken(Message, frozen=True, tag="model_taken"):
    """Nobody waits here any more: their requests were handed over, or have given up."""

    model: str


class ModelStop(Message, frozen=True, tag="model_stop"):
    """Somebody who may wants that model out of memory, once what it has is done."""

    model: str


class Drained(Message, frozen=True, tag="drained"):
    """No request is in flight any more."""


ToEngine = Load | Attach | Detach | Stop
FromEngine = Progress | Weights | Ready | Failed | Attached
ToEdge = (
    Start
    | Sibling
    | SiblingGone
    | KernelMemory
    | EngineUp
    | EngineLost
    | EngineLeaving
    | ModelFailed
    | ModelChanged
    | Health
    | EdgeHealth
    | Ping
    | Reload
    | Drain
    | Stop
)
FromEdge = (
    EdgeReady
    | Failed
    | Pong
    | RegionBroken
    | EngineIdle
    | ModelWanted
    | ModelTaken
    | ModelStop
    | Drained
)

WORD_BYTES = array.array("i").itemsize
RIGHTS_BYTES = socket.CMSG_SPACE(DESCRIPTORS_MAX * WORD_BYTES)

Incoming = TypeVar("Incoming")


class Received(msgspec.Struct, Generic[Incoming], frozen=True):
    """One message with the descriptors that came beside it; the receiver owns them."""

    message: Incoming
    fds: tuple[int, ...]


class Channel(Generic[Incoming]):
    """One end of a control channel. `incoming` is the union of messages that may arrive here.

    Not for several threads at once, except that `send` may be called from any thread.
    """

    def __init__(self, sock: socket.socket, incoming: Any) -> None:
        self._socket = sock
        self._decoder: msgspec.json.Decoder[Incoming] = msgspec.json.Decoder(incoming)
        self._encoder = msgspec.json.Encoder()

    @classmethod
    def from_fd(cls, fd: int, incoming: Any) -> Channel[Incoming]:
        """Take over an inherited descriptor (checked to be a SEQPACKET socket)."""
        sock = socket.socket(fileno=fd)
        if sock.family != socket.AF_UNIX or sock.type != socket.SOCK_SEQPACKET:
            sock.close()
            raise ValueError("the control descriptor is not a unix SEQPACKET socket")
        return cls(sock, incoming)

    def fileno(self) -> int:
        return self._socket.fileno()

    def setblocking(self, blocking: bool) -> None:
        self._socket.setblocking(blocking)

    def send(self, message: Message, fds: tuple[int, ...] = ()) -> None:
        """Send one datagram; never blocks. BlockingIOError if the other side reads nothing,
        OSError if it is gone."""
        data = self._encoder.encode(message)
        if len(data) > DATAGRAM_BYTES_MAX:
            raise ValueError("a control message exceeds the datagram limit")
        flags = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
        rights: list[tuple[int, int, bytes]] = []
        if fds:
            rights.append((socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds).tobytes()))
        self._socket.sendmsg([data], rights, flags)

    def receive(self) -> Received[Incoming] | None:
        """The next message; None when the other side is gone.

        Raises BlockingIOError on an empty non-blocking channel, msgspec.DecodeError (or its
        ValidationError) on a message that is not in the union.
        """
        try:
            # Not socket.recv_fds: in Python 3.11 it passes no flags on.
            data, ancillary, flags, _ = self._socket.recvmsg(
                DATAGRAM_BYTES_MAX, RIGHTS_BYTES, socket.MSG_CMSG_CLOEXEC
            )
        except ConnectionResetError:
            return None
        fds = _descriptors(ancillary)
        if not data:
            return None
        try:
            if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
                raise msgspec.DecodeError("a control message was truncated")
            return Received(self._decoder.decode(data), fds)
        except msgspec.DecodeError:
            for fd in fds:
                os.close(fd)
            raise

    def close(self) -> None:
        self._socket.close()


def _descriptors(ancillary: list[tuple[int, int, bytes]]) -> tuple[int, ...]:
    """All descriptors that came; they are ours to close."""
    fds = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % WORD_BYTES])
    return tuple(fds)

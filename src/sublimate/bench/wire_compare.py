"""`sublimate wire-compare`: what a request costs on the wire, old layer against new.

One server with the old layer beside it answers from a script, a token each step, so that the model
takes the same time in all columns and what differs is the wire. Server and client are two hosts of
a network of their own (delay.py), so that nobody else's packets are in the capture; without a round
trip both are on the server's loopback. Subjects take turns within each round.

defines: Plan, Row, Comparison, compare
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from .. import _core
from ..errors import ConfigError, EngineError, PeerError
from ..model.source import metadata_of
from ..model.tokenizer import tokenizer_from_metadata
from .capture import Capture
from .delay import INTERFACE, DelayNetwork
from .figures import Spread, percentile
from .http import Exchange, Target, exchange
from .pcap import UDP, Packet
from .processes import own_server
from .wire_client import NEGOTIATE, SUBJECTS
from .wire_order import MESSAGES, Order, Outcome

OLD, TWIN = "old", "uvicorn"
GATEWAY, MODEL_ADDRESS = "gateway", "model address"
CLIENT_HOPS = (GATEWAY, MODEL_ADDRESS)
LOOPBACK = "lo"
LOCAL_ADDRESS = "127.0.0.1"
STEP_US_PER_MS = 1000
ASK_SECONDS = 20.0
FOUND_STATUS = 302
DELTA = b"event: content_block_delta"
AFTER_DELTAS = b"event: content_block_stop"
H3_NAMES = ("h3", "quic", "http3")
"""As /.well-known/sublimate may name the port of HTTP/3."""
Note = Callable[[str], None]


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What is measured. Raises ConfigError for what cannot be."""

    model_path: str
    model_name: str
    subjects: tuple[str, ...]
    """Empty: all that this server offers."""
    requests: int
    rounds: int
    generate_tokens: int
    step_ms: float
    round_trip_ms: float
    loss: float
    twin: Path | None
    certificate: Path
    """With its key, for all that speak TLS."""
    key: Path

    def __post_init__(self) -> None:
        unknown = [name for name in self.subjects if name not in SUBJECTS]
        if unknown:
            raise ConfigError(f"--subject {unknown[0]}: there are {', '.join(SUBJECTS)}.")
        if self.requests < 1 or self.rounds < 1:
            raise ConfigError("--requests and --rounds: at least 1.")
        if self.generate_tokens < 2:
            raise ConfigError("--generate: at least 2.")
        if self.step_ms < 0:
            raise ConfigError("--step-ms: at least 0.")


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One subject with or without kept connections; per request, medians of the rounds."""

    subject: str
    title: str
    kept: bool
    packets: Spread
    """Of all hops."""
    client_packets: float
    """Those alone that the client sends and gets."""
    hops: dict[str, float]
    """Packets by who talks to whom."""
    connections: float
    handshakes: float
    """Secure ones."""
    resumed_share: float
    """Of those."""
    early_share: float
    """Requests in the first flight."""
    wire_bytes: Spread
    body_bytes: int
    first_byte_ms: Spread
    """Median over all requests; the least and the greatest of the rounds' medians."""
    whole_ms: Spread
    packets_of_old: Spread
    """The old layer's packets over these, round by round; NaN without it."""


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """One run."""

    version: str
    cpu: str
    cores: int
    model: str
    round_trip_ms: float
    loss: float
    generate_tokens: int
    step_ms: float
    requests: int
    rounds: int
    rows: list[Row]
    notes: list[str] = []


class _Turn(msgspec.Struct, frozen=True):
    """One subject in one round."""

    outcome: Outcome
    packets: list[Packet]


class _Client:
    """The process that asks."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "sublimate.bench.wire_client"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def carry_out(self, order: Order) -> Outcome:
        """Raises PeerError."""
        if self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError("the client has pipes")
        self._process.stdin.write(msgspec.json.encode(order) + b"\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise PeerError("The client ended in a measurement.")
        outcome = msgspec.json.decode(line, type=Outcome)
        if outcome.error:
            raise PeerError(f"{SUBJECTS[order.subject][0]}: {outcome.error}")
        return outcome

    def close(self) -> None:
        self._process.communicate()


def compare(plan: Plan, version: str, note: Note) -> Comparison:
    """Raises ConfigError, EngineError, PeerError."""
    distant = plan.round_trip_ms > 0 or plan.loss > 0
    with (
        tempfile.TemporaryDirectory(prefix="sublimate-wire-") as folder,
        DelayNetwork(plan.round_trip_ms, loss=plan.loss) as network,
        contextlib.ExitStack() as stack,
    ):
        address = network.server_address if distant else LOCAL_ADDRESS
        note("starting the server and the old layer")
        with network.server():
            ports, notes = stack.enter_context(_servers(plan, Path(folder), address))
            inner = stack.enter_context(Capture(LOOPBACK))
        captures = [inner]
        with network.client() if distant else network.server():
            if distant:
                captures.append(stack.enter_context(Capture(INTERFACE)))
            client = _Client()
        stack.callback(client.close)
        outcomes = _rounds(plan, client, address, ports, note)
        # Captures are whole when their blocks have ended, which takes the servers with them.
        stack.close()
        packets = sorted(
            (packet for capture in captures for packet in capture.packets),
            key=lambda packet: packet.at_seconds,
        )
    turns = {
        cell: [_turn(outcome, packets) for outcome in found] for cell, found in outcomes.items()
    }
    probe = _core.probe()
    return Comparison(
        version=version,
        cpu=str(probe["cpu"]),
        cores=int(probe["cores"]),
        model=plan.model_name,
        round_trip_ms=plan.round_trip_ms,
        loss=plan.loss,
        generate_tokens=plan.generate_tokens,
        step_ms=plan.step_ms,
        requests=plan.requests,
        rounds=plan.rounds,
        rows=[_row(cell, turns, ports) for cell in turns],
        notes=notes,
    )


_Cell = tuple[str, bool]
"""(subject, whether connections are kept)"""


def _rounds(
    plan: Plan, client: _Client, address: str, ports: dict[str, int], note: Note
) -> dict[_Cell, list[Outcome]]:
    offered = [name for name, (_, needed) in SUBJECTS.items() if set(needed) <= ports.keys()]
    for name in plan.subjects:
        if name not in offered:
            raise ConfigError(f"--subject {name}: this server does not offer it.")
    names = [name for name in offered if not plan.subjects or name in plan.subjects]
    outcomes: dict[_Cell, list[Outcome]] = {}
    for kept in (False, True):
        for number in range(plan.rounds):
            for name in names if number % 2 == 0 else reversed(names):
                how = "kept connections" if kept else "new connections"
                note(f"{SUBJECTS[name][0]}, {how}, round {number + 1}")
                order = Order(
                    subject=name,
                    kept=kept,
                    requests=plan.requests,
                    address=address,
                    ports=ports,
                    certificate=str(plan.certificate),
                    body=_body(plan.generate_tokens).decode(),
                )
                outcomes.setdefault((name, kept), []).append(client.carry_out(order))
    return {cell: outcomes[cell] for kept in (False, True) for cell in outcomes if cell[1] == kept}


def _body(tokens: int) -> bytes:
    asked = [{"role": "user", "content": "Why is the sky blue?"}]
    body = {"model": "default", "max_tokens": tokens, "stream": True, "messages": asked}
    return msgspec.json.encode(body)


# ---- servers -------------------------------------------------------------------------------------
@contextlib.contextmanager
def _servers(plan: Plan, folder: Path, address: str) -> Generator[tuple[dict[str, int], list[str]]]:
    """(ports by name, notes); all of this thread's side of the network."""
    metadata = metadata_of(plan.model_path)
    script = folder / "script.json"
    script.write_bytes(msgspec.json.encode(_script(plan, metadata)))
    command = ["-m", "sublimate", "serve", "--json", "--log-level", "error", "--no-stay"]
    command += ["--model", plan.model_path, "--script", str(script), "--host", address]
    command += ["--port", "0", "--tls-port", "0", "--legacy-layer", "--legacy-port", "0"]
    command += ["--tls-certificate", str(plan.certificate), "--tls-key", str(plan.key)]
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(own_server(command, "supervisor"))
        ports = _ports(server.url)
        sent = _ask(server.url, NEGOTIATE, b'{"model":"default"}').body()
        ports["model"] = Target.parse(msgspec.json.decode(sent)["address"]).port
        notes: list[str] = []
        if plan.twin is None:
            notes.append("No uvicorn twin: it needs bench/uvicorn_twin.py of a source tree.")
        else:
            frames = folder / "frames.json"
            answer = _ask(server.url, MESSAGES, _body(plan.generate_tokens)).body()
            frames.write_bytes(msgspec.json.encode(_frames(answer)))
            twin = [str(plan.twin), str(frames), "--step-ms", str(plan.step_ms), "--host", address]
            twin += ["--certificate", str(plan.certificate), "--key", str(plan.key)]
            ports["twin"] = Target.parse(stack.enter_context(own_server(twin, TWIN)).url).port
        yield ports, notes


def _script(plan: Plan, metadata: dict[str, Any]) -> dict[str, Any]:
    """An engine that answers everything with words, one each step."""
    tokenizer = tokenizer_from_metadata(metadata)
    pieces = tokenizer.token_bytes
    words = [at for at, text in enumerate(pieces) if text[:1] == b" " and text[1:].isalpha()]
    if not words:
        raise EngineError("The model's vocabulary has no words to script an answer of.")
    spread = [words[at * len(words) // plan.generate_tokens] for at in range(plan.generate_tokens)]
    return {
        "answers": [[[], spread]],
        "vocabulary": len(tokenizer),
        "step_delay_us": int(plan.step_ms * STEP_US_PER_MS),
    }


def _ports(url: str) -> dict[str, int]:
    """Of /.well-known/sublimate, that of HTTP/3 by one name. Raises PeerError."""
    known = _ask(url, "/.well-known/sublimate").body()
    ports = msgspec.json.decode(known)["ports"]
    named = {name: int(port) for name, port in ports.items() if port}
    for name in H3_NAMES:
        if name in named:
            named["h3"] = named[name]
    return named


def _ask(url: str, path: str, body: bytes = b"") -> Exchange:
    """One request in the clear, from this thread. Raises PeerError."""
    target = Target.parse(url)
    method = "POST" if body else "GET"
    headers = {"content-type": "application/json"}
    got = asyncio.run(exchange(target, method, path, body, headers, ASK_SECONDS))
    if got.status not in (200, FOUND_STATUS):
        raise PeerError(f"{path} of the server to measure answered {got.status} {got.error}.")
    return got


def _frames(answer: bytes) -> dict[str, Any]:
    """An answer as uvicorn_twin.py takes it. Raises EngineError."""
    first, found, rest = answer.partition(DELTA)
    deltas, ended, last = rest.partition(AFTER_DELTAS)
    if not found or not ended:
        raise EngineError("The scripted server's answer had no text to give to its twin.")
    pieces = [found + piece for piece in deltas.split(DELTA)]
    return {
        "first": first.decode(),
        "deltas": [piece.decode() for piece in pieces],
        "last": (ended + last).decode(),
    }


# ---- figures -------------------------------------------------------------------------------------
def _turn(outcome: Outcome, packets: Sequence[Packet]) -> _Turn:
    """Raises EngineError if the capture has nothing of it."""
    begin, end = outcome.begin_seconds, outcome.end_seconds
    own = [packet for packet in packets if begin <= packet.at_seconds <= end]
    if not own:
        raise EngineError("The capture holds no packet of a measurement.")
    return _Turn(outcome, own)


def _hop(packet: Packet, ports: dict[str, int]) -> str:
    """Who talks to whom, by the port of the one that listens."""
    names = {
        ports.get("https", 0): GATEWAY,
        ports.get("model", 0): MODEL_ADDRESS,
        ports.get("http", 0): "executor",
    }
    for port in (packet.source_port, packet.target_port):
        if port in names:
            return names[port]
    return "broker"


def _row(cell: _Cell, turns: dict[_Cell, list[_Turn]], ports: dict[str, int]) -> Row:
    subject, kept = cell
    own, old = turns[cell], turns.get((OLD, kept), [])
    requests = len(own[0].outcome.timings)
    count = requests * len(own)
    hops: dict[str, float] = {}
    if subject == OLD:
        for packet in (packet for turn in own for packet in turn.packets):
            name = _hop(packet, ports)
            hops[name] = hops.get(name, 0.0) + 1 / count
    ours = Spread.of([len(turn.packets) / requests for turn in own])
    handshakes = sum(turn.outcome.counts.handshakes for turn in own)
    resumed = sum(turn.outcome.counts.resumed for turn in own)
    ratios = [
        len(theirs.packets) / len(ours.packets) for theirs, ours in zip(old, own, strict=False)
    ]
    return Row(
        subject=subject,
        title=SUBJECTS[subject][0],
        kept=kept,
        packets=ours,
        client_packets=_client_packets(subject, hops, ours),
        hops=hops,
        connections=sum(map(_connections, own)) / count,
        handshakes=handshakes / count,
        resumed_share=resumed / handshakes if handshakes else 0.0,
        early_share=sum(turn.outcome.counts.early for turn in own) / count,
        wire_bytes=Spread.of(
            [sum(packet.bytes for packet in turn.packets) / requests for turn in own]
        ),
        body_bytes=int(
            percentile([one.body_bytes for turn in own for one in turn.outcome.timings], 0.5)
        ),
        first_byte_ms=_times([[one.first_byte_ms for one in turn.outcome.timings] for turn in own]),
        whole_ms=_times([[one.whole_ms for one in turn.outcome.timings] for turn in own]),
        packets_of_old=Spread.of(ratios),
    )


def _client_packets(subject: str, hops: dict[str, float], all_packets: Spread) -> float:
    if subject != OLD:
        return all_packets.median
    return sum(hops.get(name, 0.0) for name in CLIENT_HOPS)


def _times(rounds: list[list[float]]) -> Spread:
    medians = [percentile(times, 0.5) for times in rounds]
    overall = percentile([one for times in rounds for one in times], 0.5)
    return Spread(overall, min(medians), max(medians))


def _connections(turn: _Turn) -> int:
    """TCP's SYNs, and ports from which an Initial packet of QUIC came first."""
    opened = sum(packet.begins_connection for packet in turn.packets)
    quic: set[int] = set()
    for packet in turn.packets:
        if packet.protocol == UDP and packet.quic_initial_id:
            if packet.target_port not in quic:
                quic.add(packet.source_port)
    return opened + len(quic)

"""Figure 1: an engine that answers from a script, so that all that is left is the server.

Three loads at each concurrency. Answers of one token tell the cost of a request, answers of the
plan's length how many tokens a second go out at most, and long answers at a fixed pace (every
stream gets a token each step, as a fast model would bring them) the cost of an event: the processor
time of a window in which no request begins or ends. A plain uvicorn application that streams the
same bytes stands beside it, in turn.

defines: Ceiling, Idle, measure_ceiling
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import re
import tempfile
import threading
import time
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ..config import QUEUE_DEFAULT, QUEUE_MAX
from ..errors import EngineError
from .figures import Spread
from .http import Exchange
from .machine import native_text
from .processes import Server, cpu_seconds, own_server
from .tax import Note, Workbench, numbered, streams_to

NUMBER_MARK = b"000000000"
PROMPTS = 32
STEP_MS = 5
"""Of the paced load: 200 tokens a second for each stream."""
BEGIN_SECONDS = 0.6
"""Of the paced load, until all its streams run."""
IDLE_LOADS = 4
"""Times the plan's seconds of a load."""
SETTLE_SECONDS = 1.5
MICROSECONDS, MILLISECONDS, NS_PER_S = 1e6, 1e3, 1e9
OK_STATUS = 200
DELTA = b"event: content_block_delta"
FRAME_END = b"\n\n"
TEXT_FIELD, TEXT_END = b'"text":"', b'"}}'
CLAIM = re.compile(rb'"output_tokens":(\d+)')
OURS, TWIN, ENGINE, TOTAL = "sublimate", "uvicorn", "engine", "total"


class Ceiling(msgspec.Struct, frozen=True, kw_only=True):
    """One server at one concurrency; medians of the rounds. Costs are processor time of the
    server's processes by their role, and "total"."""

    server: str
    concurrency: int
    rounds: int
    requests_per_s: Spread
    """Answers of one token."""
    request_us: dict[str, float]
    tokens_per_s: Spread
    """Answers of the plan's length, as fast as they go."""
    tokens_per_event: float
    token_us: dict[str, float]
    """Of the same, the share of the request included."""
    event_us: dict[str, float]
    """Of the paced load."""
    event_spread_us: Spread
    """Of the total without the engine."""
    paced_events_per_s: float
    client_cores: float
    """Cores that the load generator took beside the second load."""


class Idle(msgspec.Struct, frozen=True, kw_only=True):
    """A server that nobody asks anything."""

    cpu_share: float
    """Of one core, all its processes together."""
    native_ns_per_token: float
    """Detokenising, escaping and framing in native code, at the fixed pace."""


class _Pair(msgspec.Struct, frozen=True):
    """A server as fast as it goes, and one at a fixed pace."""

    free: Server
    paced: Server


class _Round(msgspec.Struct, frozen=True, kw_only=True):
    """One round of the three loads."""

    requests_per_s: float
    request_us: dict[str, float]
    tokens_per_s: float
    tokens_per_event: float
    token_us: dict[str, float]
    event_us: dict[str, float]
    paced_events_per_s: float
    client_cores: float


def measure_ceiling(bench: Workbench, note: Note) -> tuple[list[Ceiling], Idle]:
    """All concurrencies, both servers in turn. Raises EngineError, PeerError."""
    plan = bench.plan
    cells: dict[tuple[str, int], list[_Round]] = {}
    with tempfile.TemporaryDirectory(prefix="sublimate-tax-") as name:
        folder = Path(name)
        words = _words(bench)
        with _mock(bench, words, folder) as own, _twin(bench, words, own.free, folder) as twin:
            note("figure 1: idle")
            idle_share = _idle_share(own.free, IDLE_LOADS * plan.seconds)
            servers = {OURS: own, **({TWIN: twin} if twin else {})}
            for concurrency in plan.ceiling_concurrencies:
                for number in range(plan.rounds):
                    turns = list(servers) if number % 2 == 0 else list(reversed(servers))
                    for server in turns:
                        note(f"figure 1: {server}, {concurrency} at once, round {number + 1}")
                        one = _round(bench, servers[server], server, concurrency)
                        cells.setdefault((server, concurrency), []).append(one)
            seconds, tokens = asyncio.run(native_text(own.paced.url))
    found = [_ceiling(name, count, rounds) for (name, count), rounds in cells.items()]
    return found, Idle(
        cpu_share=idle_share, native_ns_per_token=seconds / tokens * NS_PER_S if tokens else 0.0
    )


# ---- servers -----------------------------------------------------------------------------------
def _paced_tokens(bench: Workbench) -> int:
    """Long enough for the paced load's window."""
    seconds = BEGIN_SECONDS + bench.plan.seconds
    return int(2 * seconds * MILLISECONDS / STEP_MS)


def _words(bench: Workbench) -> list[int]:
    """The answer to everything: tokens that are whole words."""
    words = [
        token
        for token, text in enumerate(bench.tokenizer.token_bytes)
        if text[:1] == b" " and text[1:].isalpha()
    ]
    if not words:
        raise EngineError("The model's vocabulary has no words to script an answer of.")
    count = max(bench.plan.generate_tokens, _paced_tokens(bench))
    return [words[index * len(words) // count] for index in range(count)]


@contextlib.contextmanager
def _mock(bench: Workbench, words: list[int], folder: Path) -> Generator[_Pair]:
    """Our server with a scripted engine."""
    queue = min(QUEUE_MAX, max(QUEUE_DEFAULT, *bench.plan.ceiling_concurrencies))
    with contextlib.ExitStack() as stack:
        servers: list[Server] = []
        for delay_us in (0, STEP_MS * 1000):
            script = folder / f"script{delay_us}.json"
            body = {
                "answers": [[[], words]],
                "vocabulary": len(bench.tokenizer),
                "step_delay_us": delay_us,
            }
            script.write_bytes(msgspec.json.encode(body))
            flags = ["--script", str(script), "--log-level", "error", "--queue-max", str(queue)]
            servers.append(stack.enter_context(bench.serving(*flags)))
        yield _Pair(*servers)


@contextlib.contextmanager
def _twin(bench: Workbench, words: list[int], own: Server, folder: Path) -> Generator[_Pair | None]:
    """The uvicorn application with the frames of our answers; None where it cannot run."""
    if bench.plan.twin is None or importlib.util.find_spec("uvicorn") is None:
        yield None
        return
    frames = folder / "frames.json"
    frames.write_bytes(msgspec.json.encode(_frames(bench, words, own)))
    command = [str(bench.plan.twin), str(frames)]
    with (
        own_server(command, TWIN) as free,
        own_server([*command, "--step-ms", str(STEP_MS)], TWIN) as paced,
    ):
        yield _Pair(free, paced)


def _frames(bench: Workbench, words: list[int], own: Server) -> dict[str, Any]:
    """An answer of ours as first frames, a frame per token, and last frames."""
    body = bench.body(bench.prompts().make(), 1)
    with streams_to(own.url) as (streams, path):
        answer = streams.run(path, iter([body]), 1)[0]
    first, found, rest = answer.body().partition(DELTA)
    delta, end, last = (found + rest).partition(FRAME_END)
    head, is_text, _ = delta.partition(TEXT_FIELD)
    if not (found and end and is_text):
        raise EngineError("The scripted server's answer had no text to give to its twin.")
    texts = [bench.tokenizer.token_bytes[word] for word in words]
    deltas = [head + is_text + text + TEXT_END + end for text in texts]
    return {
        "first": first.decode(),
        "deltas": [delta.decode() for delta in deltas],
        "last": last.decode(),
    }


def _idle_share(server: Server, seconds: float) -> float:
    time.sleep(SETTLE_SECONDS)
    before, begin = sum(map(cpu_seconds, server.pids)), time.perf_counter()
    time.sleep(seconds)
    return (sum(map(cpu_seconds, server.pids)) - before) / (time.perf_counter() - begin)


# ---- loads -------------------------------------------------------------------------------------
class _Sums:
    """Adds up answers as they end."""

    def __init__(self, server: str) -> None:
        self.requests = self.events = self.tokens = 0
        self._server = server

    def add(self, answer: Exchange) -> None:
        body = b"".join(piece for _, piece in answer.arrivals)
        claims = CLAIM.findall(body)
        if answer.error or answer.status != OK_STATUS or not claims:
            raise EngineError(
                f"An answer of {self._server} failed under load: "
                f"{answer.error or answer.status} {body[:200].decode(errors='replace')}"
            )
        events = body.count(DELTA)
        self.requests += 1
        self.events += events
        # The twin repeats the usage of a recorded answer; each of its events is one token.
        self.tokens += events if self._server == TWIN else max(map(int, claims))


def _round(bench: Workbench, pair: _Pair, name: str, concurrency: int) -> _Round:
    short, seconds, cpu, _ = _load(bench, pair.free, name, concurrency, 1)
    long, long_seconds, long_cpu, client = _load(
        bench, pair.free, name, concurrency, bench.plan.generate_tokens
    )
    events_per_s, event_us = _paced(bench, pair.paced, concurrency)
    return _Round(
        requests_per_s=short.requests / seconds,
        request_us=_each(cpu, short.requests),
        tokens_per_s=long.tokens / long_seconds,
        tokens_per_event=long.tokens / max(1, long.events),
        token_us=_each(long_cpu, long.tokens),
        event_us=event_us,
        paced_events_per_s=events_per_s,
        client_cores=client / long_seconds,
    )


def _bodies(bench: Workbench, tokens: int) -> list[bytes]:
    """Prompts whose number is put in as they are sent, so that each is new to every cache."""
    makers = bench.prompts()
    prompts = [makers.make().split(" ", 1)[1] for _ in range(PROMPTS)]
    return [bench.body(f"{NUMBER_MARK.decode()} {prompt}", tokens) for prompt in prompts]


def _load(
    bench: Workbench, server: Server, name: str, concurrency: int, tokens: int
) -> tuple[_Sums, float, dict[str, float], float]:
    """Answers, wall time, processor time by role, and of this client."""
    sums = _Sums(name)
    bodies = numbered(_bodies(bench, tokens), NUMBER_MARK)
    with streams_to(server.url) as (streams, path):
        warm = (next(bodies) for _ in range(concurrency))
        streams.run(path, warm, concurrency)
        before, client, begin = server.cpu_seconds(), time.process_time(), time.perf_counter()
        streams.run(path, bodies, concurrency, seconds=bench.plan.seconds, done=sums.add)
        seconds = time.perf_counter() - begin
        client = time.process_time() - client
    return sums, seconds, _since(before, server), client


def _since(before: dict[str, float], server: Server) -> dict[str, float]:
    after = server.cpu_seconds()
    return {role: after[role] - before[role] for role in before}


def _paced(bench: Workbench, server: Server, concurrency: int) -> tuple[float, dict[str, float]]:
    """Events per second, and the processor time of each, in a window of running streams."""
    window: list[tuple[float, dict[str, float]]] = []

    def watch() -> None:
        time.sleep(BEGIN_SECONDS)
        window.append((time.perf_counter(), server.cpu_seconds()))
        time.sleep(bench.plan.seconds)
        window.append((time.perf_counter(), server.cpu_seconds()))

    bodies = numbered(_bodies(bench, _paced_tokens(bench)), NUMBER_MARK)
    first = (next(bodies) for _ in range(concurrency))
    watcher = threading.Thread(target=watch)
    with streams_to(server.url) as (streams, path):
        streams.connect(concurrency)
        watcher.start()
        cut_seconds = BEGIN_SECONDS + bench.plan.seconds
        answers = streams.run(path, first, concurrency, cut_seconds=cut_seconds)
        watcher.join()
    (begin, before), (end, after) = window
    events = sum(
        piece.count(DELTA)
        for answer in answers
        for at, piece in answer.arrivals
        if begin <= at < end
    )
    if events == 0:
        raise EngineError(f"No event came from {server.url} within {end - begin:.1f} s.")
    cpu = {role: after[role] - before[role] for role in before}
    return events / (end - begin), _each(cpu, events)


# ---- figures -----------------------------------------------------------------------------------
def _each(cpu: dict[str, float], count: int) -> dict[str, float]:
    """Microseconds by role, and in total."""
    costs = {role: seconds / max(1, count) * MICROSECONDS for role, seconds in cpu.items()}
    return {**costs, TOTAL: sum(costs.values())}


def without_engine(costs: dict[str, float]) -> float:
    """What is left of a cost when the mock engine's own process is taken off."""
    return costs[TOTAL] - costs.get(ENGINE, 0.0)


def _median(values: Sequence[float]) -> float:
    return Spread.of(values).median


def _medians(costs: Sequence[dict[str, float]]) -> dict[str, float]:
    return {role: _median([one[role] for one in costs]) for role in costs[0]}


def _ceiling(name: str, concurrency: int, rounds: Sequence[_Round]) -> Ceiling:
    return Ceiling(
        server=name,
        concurrency=concurrency,
        rounds=len(rounds),
        requests_per_s=Spread.of([one.requests_per_s for one in rounds]),
        request_us=_medians([one.request_us for one in rounds]),
        tokens_per_s=Spread.of([one.tokens_per_s for one in rounds]),
        tokens_per_event=_median([one.tokens_per_event for one in rounds]),
        token_us=_medians([one.token_us for one in rounds]),
        event_us=_medians([one.event_us for one in rounds]),
        event_spread_us=Spread.of([without_engine(one.event_us) for one in rounds]),
        paced_events_per_s=_median([one.paced_events_per_s for one in rounds]),
        client_cores=_median([one.client_cores for one in rounds]),
    )

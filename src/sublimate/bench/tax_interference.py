"""Figure 4: the same load while other processes keep every core busy.

A server cannot keep all of its throughput then, and need not: what it should keep is the share that
a fair scheduler leaves to its threads, given what each of them used when it was alone.

defines: Load, Interference, fair_share, measure_interference
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator, Sequence

import msgspec

from ..errors import EngineError
from .apis import MESSAGES
from .figures import Spread, percentile
from .http import Exchange, Target
from .load import Peer, read_sample
from .processes import Server, busy_loops, listening_processes, thread_seconds
from .streams import CUT
from .tax import Note, Workbench, streams_to

LOADS = 5.0
"""Of the plan's seconds, each load takes so many; one without any token is tried again, longer."""
LONGER = 3.0
TRIES = 4
READY = 64
"""Requests that are made before a load begins."""


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """One load on one server, quiet or beside busy processes."""

    tokens_per_s: float
    first_token_p50_ms: float
    first_token_p99_ms: float
    cores: float
    """That the server's threads had."""
    demand: list[float]
    """Of each of its threads, in cores; those that did something."""
    client_cores: float


class Interference(msgspec.Struct, frozen=True, kw_only=True):
    """One server; medians of the rounds."""

    server: str
    concurrency: int
    busy_processes: int
    cores: int
    quiet_tokens_per_s: Spread
    busy_tokens_per_s: Spread
    kept: float
    """Throughput beside busy processes over that alone."""
    fair_share: float
    """Of the processor time of the quiet load, what a fair scheduler leaves."""
    kept_of_fair_share: float
    cpu_kept: float
    """Of the processor time of the quiet load, what the scheduler did leave."""
    first_token_p50_ratio: float
    first_token_p99_ratio: float
    quiet_first_token_p99_ms: float
    busy_first_token_p99_ms: float


def fair_share(demand: Sequence[float], others: Sequence[float], cores: int) -> float:
    """Share of its demand that a server gets. Each thread asks for a part of a core; a fair
    scheduler gives each what it asks for up to a common most, such that the cores are used up."""
    if cores < 1 or min([*demand, *others], default=0.0) < 0:
        raise ValueError("a machine has cores, and nobody asks for less than nothing")
    asked = [*demand, *others]
    if not demand or sum(asked) <= cores:
        return 1.0
    left, most = float(cores), 0.0
    waiting = sorted(asked)
    while waiting:
        most = left / len(waiting)
        if waiting[0] > most:
            break
        left -= waiting.pop(0)
    return sum(min(one, most) for one in demand) / sum(demand)


def measure_interference(
    bench: Workbench, server: Server, peer: Peer | None, note: Note
) -> list[Interference]:
    """Our server, and the peer if there is one. Raises EngineError, PeerError."""
    found = [_measure(bench, "sublimate", server, None, note)]
    if peer is not None:
        others = listening_processes(Target.parse(peer.url).port)
        found.append(_measure(bench, peer.url, Server(url=peer.url, processes=others), peer, note))
    return found


def _measure(
    bench: Workbench, name: str, server: Server, peer: Peer | None, note: Note
) -> Interference:
    plan = bench.plan
    cores = len(os.sched_getaffinity(0))
    loops = plan.busy_processes or cores
    prompts = _bodies(bench, peer)
    _load(bench, server, peer, prompts, warm_up=True)
    quiet: list[Load] = []
    busy: list[Load] = []
    for number in range(plan.rounds):
        note(f"figure 4: {name}, quiet, round {number + 1}")
        quiet.append(_load(bench, server, peer, prompts))
        note(f"figure 4: {name}, beside {loops} busy processes, round {number + 1}")
        with busy_loops(loops):
            busy.append(_load(bench, server, peer, prompts))
    if not all(one.tokens_per_s > 0 and one.cores > 0 for one in quiet):
        raise EngineError(f"The processor time of {name} cannot be seen.")
    kept = _median([b.tokens_per_s / q.tokens_per_s for q, b in zip(quiet, busy, strict=True)])
    fair = _median([fair_share(q.demand, [q.client_cores, *[1.0] * loops], cores) for q in quiet])
    return Interference(
        server=name,
        concurrency=plan.interference_concurrency,
        busy_processes=loops,
        cores=cores,
        quiet_tokens_per_s=Spread.of([one.tokens_per_s for one in quiet]),
        busy_tokens_per_s=Spread.of([one.tokens_per_s for one in busy]),
        kept=kept,
        fair_share=fair,
        kept_of_fair_share=kept / fair,
        cpu_kept=_median([one.cores for one in busy]) / _median([one.cores for one in quiet]),
        first_token_p50_ratio=_median([one.first_token_p50_ms for one in busy])
        / _median([one.first_token_p50_ms for one in quiet]),
        first_token_p99_ratio=_median([one.first_token_p99_ms for one in busy])
        / _median([one.first_token_p99_ms for one in quiet]),
        quiet_first_token_p99_ms=_median([one.first_token_p99_ms for one in quiet]),
        busy_first_token_p99_ms=_median([one.first_token_p99_ms for one in busy]),
    )


def _median(values: Sequence[float]) -> float:
    return Spread.of(values).median


def _bodies(bench: Workbench, peer: Peer | None) -> Iterator[bytes]:
    """Distinct prompts without end."""
    makers, tokens = bench.prompts(), bench.plan.generate_tokens
    while True:
        prompt = makers.make()
        yield bench.body(prompt, tokens) if peer is None else bench.peer_body(peer, prompt, tokens)


def _load(
    bench: Workbench,
    server: Server,
    peer: Peer | None,
    bodies: Iterator[bytes],
    *,
    warm_up: bool = False,
) -> Load:
    seconds = 0.0 if warm_up else LOADS * bench.plan.seconds
    for _ in range(TRIES):
        load = _load_once(bench, server, peer, bodies, seconds)
        if load is not None:
            return load
        seconds *= LONGER
    raise EngineError(f"{server.url}: no stream had a token within {seconds / LONGER:.0f} s.")


def _load_once(
    bench: Workbench, server: Server, peer: Peer | None, bodies: Iterator[bytes], seconds: float
) -> Load | None:
    """seconds: until the answers are cut; 0: one whole answer of each stream. None if no stream
    had a token by then."""
    concurrency = bench.plan.interference_concurrency
    # What is made ahead costs no time below.
    ready = [next(bodies) for _ in range(max(READY, concurrency) if seconds else concurrency)]
    source = itertools.chain(ready, bodies) if seconds else iter(ready)
    api = MESSAGES if peer is None else peer.api
    with streams_to(server.url, api) as (streams, path):
        streams.connect(concurrency)
        before, client = thread_seconds(server.pids), time.process_time()
        begin = time.perf_counter()
        answers = streams.run(path, source, concurrency, cut_seconds=seconds)
        wall = time.perf_counter() - begin
        after, client = thread_seconds(server.pids), time.process_time() - client
    return _figures(bench, answers, wall, before, after, client)


def _figures(
    bench: Workbench,
    answers: Sequence[Exchange],
    wall: float,
    before: dict[tuple[int, int], float],
    after: dict[tuple[int, int], float],
    client: float,
) -> Load | None:
    """Of the answers of a load, those that were cut at its end included."""
    samples = [read_sample(answer, bench.count) for answer in answers]
    failed = [sample.error for sample in samples if sample.error not in ("", CUT)]
    if failed:
        raise EngineError(f"An answer failed under load: {failed[0]}.")
    begun = [sample for sample in samples if sample.tokens > 0]
    if not begun:
        return None
    firsts = [sample.first_token_ms for sample in begun]
    used = [(at - before.get(thread, 0.0)) / wall for thread, at in after.items()]
    return Load(
        tokens_per_s=sum(sample.tokens for sample in begun) / wall,
        first_token_p50_ms=percentile(firsts, 0.5),
        first_token_p99_ms=percentile(firsts, 0.99),
        cores=sum(used),
        demand=[one for one in used if one > 0],
        client_cores=client / wall,
    )

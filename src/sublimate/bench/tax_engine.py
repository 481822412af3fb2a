"""Figure 2: the same prompts, forced lengths and batches through HTTP and in this process.

A wave is so many requests at once, and the next begins when all have ended; the server and the
in-process engine take turns at the same waves. Both engines see the same token ids in the same
order, so that their prefix caches are in the same state.

defines: Side, Tax, Waves, measure_tax, side_of_answers, side_of_completions
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import msgspec

from ..engine.inprocess import Engine
from ..engine.results import Completion
from ..errors import EngineError
from .http import Exchange
from .load import Peer, Sample, read_sample
from .tax import Note, Tail, Workbench, streams_to

MILLISECONDS = 1000.0
WAVES_OF_ONE = 12
STREAMS_MIN = 16


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """What one side showed. Times in milliseconds."""

    first_token_ms: Tail
    per_token_ms: Tail
    """Of a stream: (last - first) / (tokens - 1)."""
    gap_ms: Tail
    """Between arrivals of one stream; tokens that came together have no gap."""
    requests: int
    tokens: int
    cached_tokens: float
    """Prompt tokens from the prefix cache, mean over the requests."""


class Tax(msgspec.Struct, frozen=True, kw_only=True):
    """(server - in-process) / in-process at one concurrency, and both sides."""

    concurrency: int
    prompt_tokens: float
    generate_tokens: int
    first_token: Tail
    """Ratios, not milliseconds: 0.05 is 5 % more. Of the quantiles."""
    per_token: Tail
    gap: Tail
    server: Side
    in_process: Side
    peer: Side | None = None


class Waves(msgspec.Struct, frozen=True):
    """The answers of the server at one concurrency, for the ledger."""

    concurrency: int
    answers: list[Exchange]


def measure_tax(
    bench: Workbench, url: str, engine: Engine, peer: Peer | None, note: Note
) -> tuple[list[Tax], list[Waves]]:
    """All concurrencies. Raises EngineError, PeerError."""
    taxes: list[Tax] = []
    waves: list[Waves] = []
    for concurrency in bench.plan.tax_concurrencies:
        tax, answers = _measure(bench, url, engine, peer, concurrency, note)
        taxes.append(tax)
        waves.append(Waves(concurrency, answers))
    return taxes, waves


def wave_count(concurrency: int, rounds: int) -> int:
    """Waves of a concurrency: more of the small ones, so that each has some streams."""
    return rounds * max(1, -(-STREAMS_MIN // concurrency))


def _measure(
    bench: Workbench,
    url: str,
    engine: Engine,
    peer: Peer | None,
    concurrency: int,
    note: Note,
) -> tuple[Tax, list[Exchange]]:
    makers = bench.prompts()
    tokens = bench.plan.generate_tokens
    served: list[Exchange] = []
    local: list[Completion] = []
    others: list[Exchange] = []
    sizes: list[int] = []

    def wave(prompts: list[str], number: int, keep: bool) -> None:
        ids = [bench.ids(prompt) for prompt in prompts]

        def through_http() -> None:
            bodies = [bench.body(prompt, tokens) for prompt in prompts]
            answers = streams.run(path, iter(bodies), concurrency)
            served.extend(answers if keep else [])

        def in_process() -> None:
            done = engine.generate(ids, tokens, ignore_eos=True)
            local.extend(done if keep else [])

        def through_peer() -> None:
            if peer is None:
                return
            bodies = [bench.peer_body(peer, prompt, tokens) for prompt in prompts]
            with streams_to(peer.url, peer.api) as (to_peer, peer_path):
                answers = to_peer.run(peer_path, iter(bodies), concurrency)
            others.extend(answers if keep else [])

        turns: list[Callable[[], None]] = [through_http, in_process, through_peer]
        for turn in turns if number % 2 == 0 else reversed(turns):
            turn()
        sizes.extend(map(len, ids))

    with streams_to(url) as (streams, path):
        streams.connect(concurrency)
        count = wave_count(concurrency, bench.plan.rounds)
        for number in range(count + 1):  # the first one warms up
            note(f"figure 2: {concurrency} at once, wave {number} of {count}")
            wave([makers.make() for _ in range(concurrency)], number, keep=number > 0)
    server = side_of_answers(served, bench.count, tokens)
    own = side_of_completions(local)
    tax = Tax(
        concurrency=concurrency,
        prompt_tokens=sum(sizes) / len(sizes),
        generate_tokens=tokens,
        first_token=ratios(server.first_token_ms, own.first_token_ms),
        per_token=ratios(server.per_token_ms, own.per_token_ms),
        gap=ratios(server.gap_ms, own.gap_ms),
        server=server,
        in_process=own,
        peer=side_of_answers(others, bench.count, 0) if peer is not None else None,
    )
    return tax, served


def ratios(server: Tail, own: Tail) -> Tail:
    """(server - own) / own, quantile by quantile."""

    def ratio(above: float, below: float) -> float:
        return (above - below) / below if below else 0.0

    return Tail(
        ratio(server.p50, own.p50), ratio(server.p99, own.p99), ratio(server.p999, own.p999)
    )


def side_of_answers(
    answers: Sequence[Exchange], count: Callable[[str], int], forced_tokens: int
) -> Side:
    """What a client saw. forced_tokens: what each answer must have, 0: as many as are counted.
    Raises EngineError."""
    if not answers:
        raise EngineError("A side without answers has no figures.")
    samples = [read_sample(answer, count) for answer in answers]
    for sample in samples:
        if sample.error or (forced_tokens and sample.claimed_tokens != forced_tokens):
            raise EngineError(
                f"An answer failed: {sample.error or f'{sample.claimed_tokens} tokens'}."
            )
    tokens = [forced_tokens or sample.tokens for sample in samples]
    return Side(
        first_token_ms=Tail.of([sample.first_token_ms for sample in samples]),
        per_token_ms=Tail.of([_per_token(s, n) for s, n in zip(samples, tokens, strict=True)]),
        gap_ms=Tail.of([gap for sample in samples for gap in sample.gaps_ms]),
        requests=len(samples),
        tokens=sum(tokens),
        cached_tokens=sum(sample.cached_tokens for sample in samples) / max(1, len(samples)),
    )


def _per_token(sample: Sample, tokens: int) -> float:
    return (sample.last_token_ms - sample.first_token_ms) / max(1, tokens - 1)


def side_of_completions(completions: Sequence[Completion]) -> Side:
    """What the engine did, by the clock of its records."""
    if not all(one.arrivals_seconds for one in completions):
        raise EngineError("An in-process answer had no token.")
    times = [[at * MILLISECONDS for at in one.arrivals_seconds] for one in completions]
    pairs = list(zip(completions, times, strict=True))
    gaps = [later - at for each in times for at, later in pairwise(each)]
    return Side(
        first_token_ms=Tail.of([one.first_token_seconds * MILLISECONDS for one in completions]),
        per_token_ms=Tail.of([_mean_gap(each, len(one.token_ids)) for one, each in pairs]),
        gap_ms=Tail.of(gaps),
        requests=len(completions),
        tokens=sum(len(one.token_ids) for one in completions),
        cached_tokens=sum(one.cached_tokens for one in completions) / max(1, len(completions)),
    )


def _mean_gap(times_ms: Sequence[float], tokens: int) -> float:
    return (times_ms[-1] - times_ms[0]) / max(1, tokens - 1) if times_ms else 0.0

"""Rounds against one server, or against two in turn, and their figures.

defines: Figures, figures_of, Comparison, bench_one, bench_two
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable

import msgspec

from .figures import Percentiles, Spread
from .load import Load, Peer, Round, Sample, run_round
from .prompts import Counter, PromptMaker

RoundDone = Callable[[str, int, Round], None]
"""(url, number of the round from 0, the round)"""

ERRORS_SHOWN = 3


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What the rounds against one server showed together."""

    url: str
    api: str
    model: str
    test: str
    batch: int
    rounds: int
    requests: int
    tok_s: float
    """Generated tokens per second of wall time: median of the rounds."""
    tok_s_least: float
    tok_s_greatest: float
    first_token_ms: Percentiles
    between_tokens_ms: Percentiles
    """Gaps between arrivals of text, of all streams together."""
    per_token_ms: Percentiles
    """Per stream: (last - first) / (tokens - 1)."""
    largest_gap_ms: float
    input_tokens: float
    output_tokens: float
    counted_by: str
    """tokenizer, or usage where no tokenizer was given and the server had to be believed."""
    length_forced: bool
    errors: int
    error_texts: dict[str, int]


def figures_of(peer: Peer, load: Load, rounds: list[Round], counted: bool) -> Figures:
    """Figures of all rounds together; percentiles over all their streams."""
    samples = [sample for one in rounds for sample in one.good]
    failed = [sample for one in rounds for sample in one.samples if sample.error]
    gaps = [gap for sample in samples for gap in sample.gaps_ms]
    speed = Spread.of([one.tokens_per_second for one in rounds])
    texts = Tally(sample.error for sample in failed)
    return Figures(
        url=peer.url,
        api=peer.api.style,
        model=peer.model,
        test=f"pp{load.prompt_tokens}+tg{load.generate_tokens}",
        batch=load.concurrency,
        rounds=len(rounds),
        requests=len(samples) + len(failed),
        tok_s=speed.median,
        tok_s_least=speed.least,
        tok_s_greatest=speed.greatest,
        first_token_ms=Percentiles.of([sample.first_token_ms for sample in samples]),
        between_tokens_ms=Percentiles.of(gaps),
        per_token_ms=Percentiles.of([_per_token(s) for s in samples if s.tokens > 1]),
        largest_gap_ms=max(gaps, default=0.0),
        input_tokens=_mean([sample.input_tokens for sample in samples]),
        output_tokens=_mean([sample.tokens for sample in samples]),
        counted_by="tokenizer" if counted else "usage",
        length_forced="ignore_eos" in peer.forcing or "min_tokens" in peer.forcing,
        errors=len(failed),
        error_texts=dict(texts.most_common(ERRORS_SHOWN)),
    )


def _per_token(sample: Sample) -> float:
    return (sample.last_token_ms - sample.first_token_ms) / (sample.tokens - 1)


def _mean(values: list[int]) -> float:
    return sum(values) / len(values) if values else 0.0


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """First server against second, round by round. Above 1: the first is better."""

    tok_s: Spread
    """first / second"""
    first_token: Spread
    """second's p50 / first's p50"""
    between_tokens: Spread
    """second's p50 per token / first's"""


async def bench_one(
    peer: Peer, load: Load, rounds: int, counter: Counter | None, seed: int, done: RoundDone
) -> Figures:
    """Warm up, then measure. The warm-up round is not counted."""
    prompts = PromptMaker(load.prompt_tokens, counter, seed)
    await _warm_up(peer, load, prompts, counter)
    results = list[Round]()
    for number in range(rounds):
        results.append(await run_round(peer, load, prompts, counter))
        done(peer.url, number, results[-1])
    return figures_of(peer, load, results, counter is not None)


async def bench_two(
    peers: tuple[Peer, Peer],
    load: Load,
    rounds: int,
    counter: Counter | None,
    seed: int,
    done: RoundDone,
) -> tuple[Figures, Figures, Comparison]:
    """Both servers in turn, each round; who goes first alternates. Both get the same prompts."""
    makers = [PromptMaker(load.prompt_tokens, counter, seed) for _ in peers]
    for peer, prompts in zip(peers, makers, strict=True):
        await _warm_up(peer, load, prompts, counter)
    results: tuple[list[Round], list[Round]] = ([], [])
    for number in range(rounds):
        for which in (0, 1) if number % 2 == 0 else (1, 0):
            one = await run_round(peers[which], load, makers[which], counter)
            results[which].append(one)
            done(peers[which].url, number, one)
    first, second = (
        figures_of(peer, load, each, counter is not None)
        for peer, each in zip(peers, results, strict=True)
    )
    return first, second, compare(results[0], results[1])


def compare(first: list[Round], second: list[Round]) -> Comparison:
    """Ratios of the rounds that belong together."""
    pairs = list(zip(first, second, strict=True))
    return Comparison(
        tok_s=_ratios([(a.tokens_per_second, b.tokens_per_second) for a, b in pairs]),
        first_token=_ratios([(_first_token(b), _first_token(a)) for a, b in pairs]),
        between_tokens=_ratios([(_token_time(b), _token_time(a)) for a, b in pairs]),
    )


def _ratios(pairs: list[tuple[float, float]]) -> Spread:
    return Spread.of([above / below for above, below in pairs if below > 0])


def _first_token(one: Round) -> float:
    return Percentiles.of([sample.first_token_ms for sample in one.good]).p50


def _token_time(one: Round) -> float:
    return Percentiles.of([_per_token(s) for s in one.good if s.tokens > 1]).p50


async def _warm_up(peer: Peer, load: Load, prompts: PromptMaker, counter: Counter | None) -> None:
    few = msgspec.structs.replace(load, requests=load.concurrency)
    await run_round(peer, few, prompts, counter)

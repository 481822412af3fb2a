"""One round of load against one server, and what it showed.

defines: Load, Peer, discover, Sample, Round, run_round
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import msgspec

from ..errors import PeerError
from .apis import (
    APIS,
    CHAT,
    MESSAGES,
    WELL_KNOWN,
    Api,
    headers,
    read_event,
    request_body,
    required_profile,
)
from .http import Exchange, Target, body_events, exchange
from .prompts import Counter, PromptMaker

OK_STATUS = 200
MISSING_STATUSES = frozenset({404, 405, 501})
PROBE_TOKENS = 2
PROBE_SECONDS = 120.0
MILLISECONDS = 1000.0
ERROR_CHARACTERS = 200


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What a round sends."""

    concurrency: int
    requests: int
    prompt_tokens: int
    generate_tokens: int
    extra: dict[str, Any] = {}
    api_key: str = ""
    timeout_seconds: float = 600.0


class Peer(msgspec.Struct, frozen=True, kw_only=True):
    """A server under test: its API, model and how it is made to generate an exact length."""

    url: str
    target: Target
    api: Api
    model: str
    forcing: dict[str, Any]
    profile: str = ""
    """Execution profile that it wants to be named; empty: none."""


async def discover(url: str, style: str, model: str, load: Load) -> Peer:
    """Find out which API the server speaks, with a short request. Raises PeerError."""
    target = Target.parse(url)
    choices = [APIS[style]] if style else [MESSAGES, CHAT]
    for api in choices:
        if target.path.endswith(api.path):
            prefix = target.path.removesuffix(api.path)
            target, choices = msgspec.structs.replace(target, path=prefix), [api]
    if target.path.endswith("/v1"):
        target = msgspec.structs.replace(target, path=target.path.removesuffix("/v1"))
    model = model or await _first_model(target, load)
    well_known = await exchange(target, "GET", target.path + WELL_KNOWN, b"", {}, PROBE_SECONDS)
    profile = required_profile(well_known.body()) if well_known.status == OK_STATUS else ""
    sent = headers(load.api_key, profile)
    lengths = {"ignore_eos": True, "min_tokens": PROBE_TOKENS}
    failure = ""
    for api in choices:
        for names in (("ignore_eos", "min_tokens"), ("ignore_eos",), ("min_tokens",), ()):
            forcing = {name: lengths[name] for name in names}
            body = request_body(api, model, "Hello", PROBE_TOKENS, {**forcing, **load.extra})
            result = await exchange(
                target, "POST", target.path + api.path, body, sent, PROBE_SECONDS
            )
            if result.status == OK_STATUS and not result.error:
                return Peer(
                    url=url, target=target, api=api, model=model, forcing=forcing, profile=profile
                )
            failure = _explain(result)
            if result.status in MISSING_STATUSES or result.status == 0:
                break
    raise PeerError(f"{url} does not answer a short request: {failure}")


async def _first_model(target: Target, load: Load) -> str:
    path = target.path + "/v1/models"
    result = await exchange(target, "GET", path, b"", headers(load.api_key), PROBE_SECONDS)
    if result.status == 0:
        where = f"{target.host}:{target.port}"
        raise PeerError(f"Nothing answers at {where}: {result.error or 'no reply'}.")
    try:
        listed = msgspec.json.decode(result.body(), type=_Models)
    except msgspec.DecodeError:
        return "default"
    return listed.data[0].id if listed.data else "default"


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model] = []


def _explain(result: Exchange) -> str:
    text = result.body()[:ERROR_CHARACTERS].decode("utf-8", errors="replace").strip()
    return " ".join(part for part in (str(result.status or ""), result.error, text) if part)


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One request. Times in milliseconds from when it was sent."""

    first_token_ms: float
    last_token_ms: float
    gaps_ms: list[float]
    """Between arrivals of text; text that arrives together has no gap."""
    tokens: int
    input_tokens: int
    claimed_tokens: int
    cached_tokens: int = 0
    error: str = ""


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """All samples of one round."""

    samples: list[Sample]
    wall_seconds: float

    @property
    def good(self) -> list[Sample]:
        return [sample for sample in self.samples if not sample.error]

    @property
    def tokens_per_second(self) -> float:
        tokens = sum(sample.tokens for sample in self.good)
        return tokens / self.wall_seconds if self.wall_seconds > 0 else 0.0


async def run_round(peer: Peer, load: Load, prompts: PromptMaker, counter: Counter | None) -> Round:
    """Send the load, `concurrency` at once. Bytes are parsed when all streams have ended."""
    forcing = dict(peer.forcing)
    if "min_tokens" in forcing:
        forcing["min_tokens"] = load.generate_tokens
    extra = {**forcing, **load.extra}
    bodies = [
        request_body(peer.api, peer.model, prompts.make(), load.generate_tokens, extra)
        for _ in range(load.requests)
    ]
    path, sent = peer.target.path + peer.api.path, headers(load.api_key, peer.profile)
    queue, results = iter(bodies), list[Exchange]()

    async def worker() -> None:
        for body in queue:
            results.append(
                await exchange(peer.target, "POST", path, body, sent, load.timeout_seconds)
            )

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(worker()) for _ in range(load.concurrency)]
    del tasks
    begin = min(result.started_seconds for result in results)
    end = max(result.ended_seconds for result in results)
    samples = [read_sample(result, counter) for result in results]
    return Round(samples=samples, wall_seconds=end - begin)


def read_sample(result: Exchange, counter: Counter | None) -> Sample:
    """What the stored bytes of a stream say. Without a counter the server's count is taken."""
    texts, times = list[str](), list[float]()
    error = result.error
    input_tokens = claimed = cached = 0
    if result.status != OK_STATUS and not error:
        error = _explain(result)
    elif result.status == OK_STATUS:
        for at, data in body_events(result):
            delta = read_event(data)
            error = error or delta.error
            input_tokens = max(input_tokens, delta.input_tokens)
            claimed = max(claimed, delta.output_tokens)
            cached = max(cached, delta.cached_tokens)
            if delta.text:
                texts.append(delta.text)
                times.append((at - result.started_seconds) * MILLISECONDS)
    if not texts and not error:
        error = "the stream held no text"
    return Sample(
        first_token_ms=times[0] if times else 0.0,
        last_token_ms=times[-1] if times else 0.0,
        gaps_ms=_gaps(times),
        tokens=counter("".join(texts)) if counter else claimed,
        input_tokens=input_tokens,
        claimed_tokens=claimed,
        cached_tokens=cached,
        error=error,
    )


def _gaps(times: Sequence[float]) -> list[float]:
    distinct = sorted(set(times))
    return [later - earlier for earlier, later in pairwise(distinct)]

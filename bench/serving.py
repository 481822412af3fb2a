"""Two figures of the whole server, from `sublimate serve` processes that this starts itself.

usage: python bench/serving.py first [--starts 10]
       python bench/serving.py profiles [--rounds 3]

first: time to the first token of the first request after each fresh start, against later requests
of the same shape. profiles: for each execution profile its own figure beside the other two: first
token of requests that arrive into load (low-latency), tokens per second of many clients
(high-throughput), gap between tokens while a long prompt is read (long-context). Rounds are
interleaved; medians and ranges are printed.

defines: Stream, stream, serving, first, profiles, main
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise

PROFILES = ("low-latency", "high-throughput", "long-context")
WORDS = "house river stone cloud window garden market bridge paper silver".split()
PROBES = 8
BACKGROUND = 24
CLIENTS = 96
LONG_PROMPT_WORDS = 5500
GAP_STREAMS = 4


class Stream:
    """When the pieces of one streamed answer arrived, in seconds from its start."""

    def __init__(self) -> None:
        self.arrivals: list[float] = []
        self.tokens = 0
        self.began = asyncio.Event()

    @property
    def first_ms(self) -> float:
        return self.arrivals[0] * 1e3

    def gaps_ms(self) -> list[float]:
        return [(b - a) * 1e3 for a, b in pairwise(self.arrivals)]


async def stream(port: int, words: int, tokens: int, profile: str, result: Stream) -> Stream:
    """One request with a prompt that shares no prefix with others."""
    text = f"{random.randrange(10**9)} " + " ".join(random.choices(WORDS, k=words))
    body = json.dumps(
        {
            "model": "default",
            "max_tokens": tokens,
            "stream": True,
            "temperature": 0,
            "ignore_eos": True,
            "execution_profile": profile,
            "messages": [{"role": "user", "content": text}],
        }
    ).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    start = time.perf_counter()
    head = f"POST /v1/messages HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n"
    writer.write(head.encode() + b"connection: close\r\n\r\n" + body)
    while line := await reader.readline():
        if b'"content_block_delta"' in line and line.startswith(b"data:"):
            result.arrivals.append(time.perf_counter() - start)
            result.began.set()
        elif line.startswith(b"data:") and b'"message_delta"' in line:
            result.tokens = json.loads(line[5:])["usage"]["output_tokens"]
    writer.close()
    if not result.arrivals:
        raise SystemExit("a request got no text")
    return result


@contextlib.contextmanager
def serving() -> Iterator[int]:
    """A fresh server; its port."""
    command = [sys.executable, "-m", "sublimate", "serve", "--port", "0", "--json"]
    process = subprocess.Popen([*command, "--log-level", "error"], stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        for line in process.stdout:
            event = json.loads(line)
            if event["event"] == "ready":
                yield int(event["url"].rsplit(":", 1)[1])
                return
        raise SystemExit("the server did not start")
    finally:
        process.terminate()
        process.wait()


def show(name: str, values: list[float], unit: str) -> str:
    low, high = min(values), max(values)
    return f"{name:28} {statistics.median(values):9.1f} {unit}   ({low:.1f} to {high:.1f})"


def first(starts: int) -> None:
    """The first request of a fresh server against its twenty later ones."""
    firsts: list[float] = []
    later: list[float] = []
    for _ in range(starts):
        with serving() as port:
            times = [
                asyncio.run(stream(port, 60, 2, "low-latency", Stream())).first_ms
                for _ in range(21)
            ]
        firsts.append(times[0])
        later.append(statistics.median(times[1:]))
    print(show("first request", firsts, "ms"))
    print(show("later requests", later, "ms"))
    print(f"ratio of medians {statistics.median(firsts) / statistics.median(later):.2f}")


async def into_load(port: int, profile: str) -> float:
    """Median first token of short requests, one after another, beside streams that decode."""
    others = [Stream() for _ in range(BACKGROUND)]
    tasks = [asyncio.create_task(stream(port, 20, 4000, profile, one)) for one in others]
    for one in others:
        await one.began.wait()
    probes = [(await stream(port, 90, 2, profile, Stream())).first_ms for _ in range(PROBES)]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return statistics.median(probes)


async def many(port: int, profile: str) -> float:
    """Tokens per second of many clients that come at once."""
    start = time.perf_counter()
    done = await asyncio.gather(*(stream(port, 40, 64, profile, Stream()) for _ in range(CLIENTS)))
    return sum(one.tokens for one in done) / (time.perf_counter() - start)


async def beside_long(port: int, profile: str) -> float:
    """99th percentile gap between tokens of a few streams while a long prompt is read."""
    others = [Stream() for _ in range(GAP_STREAMS)]
    tasks = [asyncio.create_task(stream(port, 20, 4000, profile, one)) for one in others]
    for one in others:
        await one.began.wait()
    before = [len(one.arrivals) for one in others]
    await stream(port, LONG_PROMPT_WORDS, 2, profile, Stream())
    gaps = sorted(g for one, n in zip(others, before, strict=True) for g in one.gaps_ms()[n:])
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return gaps[int(0.99 * (len(gaps) - 1))]


def profiles(rounds: int) -> None:
    """Each figure under each profile."""
    figures = {
        "first token into load": (into_load, "ms"),
        "many clients": (many, "tokens/s"),
        "p99 gap beside long prompt": (beside_long, "ms"),
    }
    found: dict[tuple[str, str], list[float]] = {}
    with serving() as port:
        for _ in range(rounds):
            for name, (measure, _unit) in figures.items():
                for profile in PROFILES:
                    value = asyncio.run(measure(port, profile))
                    found.setdefault((name, profile), []).append(value)
    for name, (_measure, unit) in figures.items():
        print(name)
        for profile in PROFILES:
            print(show("  " + profile, found[name, profile], unit))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("figure", choices=("first", "profiles"))
    parser.add_argument("--starts", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    if arguments.figure == "first":
        first(arguments.starts)
    else:
        profiles(arguments.rounds)


if __name__ == "__main__":
    main()

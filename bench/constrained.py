"""What a grammar costs: streams held to a JSON schema against plain ones, and plain streams beside
either.

usage: python bench/constrained.py [--streams 1,8] [--tokens 96] [--rounds 5] [--heavy]

Starts one `sublimate serve` with the default model. Each round takes turns: N plain streams, then N
held to a schema whose answers are longer than the budget (--heavy: with 2,000 values and patterns);
a fourth of as many plain streams, one at least, run beside both with the same prompts, so that they
say the same, and their time per token is the neighbours' figure. All read their prompts from the
cache: a run that counts for nothing computed them. Rates are tokens per second of the
N; the ratio is that of the pairs.

defines: request, run, paired, main
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import time
import urllib.request
from typing import Any

from serving import WORDS, serving, show

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "list": {
            "type": "array",
            "minItems": 50,
            "items": {
                "type": "object",
                "properties": {
                    "name": {"type": "string", "maxLength": 40},
                    "kind": {"enum": ["river", "bridge", "market", "garden"]},
                    "size": {"type": "integer", "minimum": 0, "maximum": 5000},
                },
                "required": ["name", "kind", "size"],
                "additionalProperties": False,
            },
        }
    },
    "required": ["list"],
    "additionalProperties": False,
}
ITEM: dict[str, object] = SCHEMA["properties"]["list"]["items"]["properties"]
HEAVY_ITEM = {
    **ITEM,
    "kind": {
        "enum": [f"{kind}-{number}" for kind in ("river", "bridge") for number in range(1000)]
    },
    "name": {"type": "string", "pattern": "^[A-Z][a-z]{2,12}( [A-Z][a-z]{2,12}){0,3}$"},
}
NEIGHBOURS_SHARE = 4


class Times:
    """When the chunks of one answer came, in seconds, and its tokens."""

    def __init__(self) -> None:
        self.arrivals: list[float] = []
        self.tokens = 0


async def request(port: int, tokens: int, held: bool, times: Times, seed: str) -> None:
    """One streamed chat completion; equal seeds ask the same."""
    draw = random.Random(seed)
    text = f"{draw.randrange(10**9)} list " + " ".join(draw.choices(WORDS, k=30))
    fields: dict[str, object] = {
        "model": "default",
        "max_tokens": tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0,
        "messages": [{"role": "user", "content": text}],
    }
    if held:
        fields["response_format"] = {
            "type": "json_schema",
            "json_schema": {"name": "list", "schema": SCHEMA, "strict": True},
        }
    else:
        fields["ignore_eos"] = True
    body = json.dumps(fields).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n"
    head += f"content-length: {len(body)}\r\n"
    writer.write(head.encode() + b"connection: close\r\n\r\n" + body)
    while line := await reader.readline():
        if b'"content":' in line:
            times.arrivals.append(time.perf_counter())
        if b'"completion_tokens":' in line and line.startswith(b"data:"):
            times.tokens = json.loads(line[5:])["usage"]["completion_tokens"]
    writer.close()
    if not times.tokens:
        raise SystemExit("a request got no answer")


async def run(port: int, streams: int, tokens: int, held: bool, seed: str) -> tuple[float, float]:
    """(tokens per second of the streams, mean ms per token of plain neighbours)."""
    asked = [Times() for _ in range(streams)]
    beside = [Times() for _ in range(-(-streams // NEIGHBOURS_SHARE))]
    shorter = tokens // 2  # so that no neighbour is ever alone
    await asyncio.gather(
        *(request(port, tokens, held, one, f"{seed} {i}") for i, one in enumerate(asked)),
        *(request(port, shorter, False, one, f"{seed} -{i}") for i, one in enumerate(beside)),
    )
    # From the first token on: prompts are the same for both.
    begin = min(one.arrivals[0] for one in asked)
    end = max(one.arrivals[-1] for one in asked)
    gaps = [(one.arrivals[-1] - one.arrivals[0]) * 1e3 / (one.tokens - 1) for one in beside]
    rate = sum(one.tokens for one in asked) / (end - begin)
    return rate, statistics.mean(gaps)


def mask_waits(port: int) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as reply:
        lines = reply.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("sublimate_mask_waits"))


def paired(port: int, streams: int, tokens: int, rounds: int) -> None:
    figures: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    late = mask_waits(port)
    for round_ in range(rounds):
        seed = f"{streams} {round_}"
        asyncio.run(run(port, streams, tokens, False, seed))  # all prompts are in the cache then
        for held in (False, True) if round_ % 2 else (True, False):
            figures[held].append(asyncio.run(run(port, streams, tokens, held, seed)))
    for held, name in ((False, "plain"), (True, "held to a schema")):
        print(show(f"{streams:3} {name}", [rate for rate, _ in figures[held]], "tok/s"))
    pairs = list(zip(figures[True], figures[False], strict=True))
    print(show("    ratio of rates, %", [100 * a[0] / b[0] for a, b in pairs], "%"))
    print(show("    neighbours' token beside", [b[1] for _, b in pairs], "ms plain"))
    print(show("    neighbours' token beside", [a[1] for a, _ in pairs], "ms held"))
    print(show("    ratio of these, %", [100 * a[1] / b[1] for a, b in pairs], "%"))
    print(f"    rows computed before their mask was there: {mask_waits(port) - late:.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--streams", default="1,8")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--heavy", action="store_true")
    chosen = parser.parse_args()
    if chosen.heavy:
        ITEM.update(HEAVY_ITEM)
    with serving() as port:
        asyncio.run(run(port, 1, 8, True, "first"))
        asyncio.run(run(port, 1, 8, False, "first"))
        for streams in map(int, chosen.streams.split(",")):
            paired(port, streams, chosen.tokens, chosen.rounds)


if __name__ == "__main__":
    main()

"""What ten times too many requests do to those that are taken, against a server that this starts.

usage: python bench/overload.py [--times 10] [--seconds 10] [--scripted | --model NAME]
                                [--prompt-words 100] [--tokens 64] [--target SECONDS] [--json]
                                [--clients 32]

First the server's saturation is found: the fewest clients, each with one request at a time, that
reach 95 % of the best rate of tokens. Then requests arrive at `times` that rate, whether others are
answered or not. Reported of both: time to the first token of requests that were taken, tokens a
second, and how many were refused (529) with which retry-after. Times and rates are of the last two
thirds of each: an overload begins as a crowd, which waits until it has turned out to be more than
that; p99 of all requests, with those of the beginning, is printed behind it. --scripted takes an engine without
weights whose rows take a while, so that the machine's cores are the clients' alone.

defines: Answer, Load, Phase, saturation, overload, main
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from serving import WORDS

from sublimate.bench.figures import percentile
from sublimate.bench.processes import own_server

DELTA = b'"content_block_delta"'
CLIENTS = (8, 16, 32, 64, 128)
ENOUGH = 0.95
OVERLOADED = 529
FIND_SECONDS = 6.0
SCRIPT = {"step_delay_us": 4000, "prefill_delay_us_per_token": 100, "kv_pages": 16_384}
SCRIPT_VOCABULARY = 49_152
CONNECTIONS_MAX = 4000


@dataclass
class Answer:
    """One request. Times on the clock of time.perf_counter."""

    began: float
    status: int = 0
    first: float = 0.0
    ended: float = 0.0
    retry_after: int = 0
    deltas: list[float] = field(default_factory=list)


@dataclass
class Load:
    """What every request asks."""

    url: str
    words: int
    tokens: int

    async def request(self) -> Answer:
        """Ask once, on a connection of its own."""
        where = urlsplit(self.url)
        text = f"{random.randrange(10**9)} " + " ".join(random.choices(WORDS, k=self.words))  # noqa: S311
        body = json.dumps(
            {
                "model": "default",
                "max_tokens": self.tokens,
                "stream": True,
                "ignore_eos": True,
                "temperature": 0.8,
                "messages": [{"role": "user", "content": text}],
            }
        ).encode()
        head = f"POST /v1/messages HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n"
        answer = Answer(time.perf_counter())
        try:
            reader, writer = await asyncio.open_connection(where.hostname, where.port)
        except OSError:
            return answer
        try:
            writer.write(head.encode() + b"connection: close\r\n\r\n" + body)
            await self._read(reader, answer)
        finally:
            writer.close()
        answer.ended = time.perf_counter()
        return answer

    async def _read(self, reader: asyncio.StreamReader, answer: Answer) -> None:
        try:
            fields = (await reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
            answer.status = int(fields[0].split()[1])
            for line in fields:
                if line.startswith("retry-after:"):
                    answer.retry_after = int(line.partition(":")[2])
            while data := await reader.read(1 << 16):
                now = time.perf_counter()
                answer.deltas += [now] * data.count(DELTA)
                if answer.deltas and not answer.first:
                    answer.first = answer.deltas[0]
        except (OSError, asyncio.IncompleteReadError):
            answer.status = 0


@dataclass
class Phase:
    """Of some seconds."""

    name: str
    clients: int
    offered: float
    """Requests a second."""
    taken: int
    refused: int
    failed: int
    first_p50: float
    """Seconds, as the next."""
    first_p99: float
    first_max: float
    first_p99_of_all: float
    """With those that came at the beginning."""
    tokens_per_second: float
    requests_per_second: float
    retry_after: tuple[int, int] = (0, 0)
    """Least and most."""

    @classmethod
    def of(cls, name: str, clients: int, answers: list[Answer], begin: float, end: float) -> Phase:
        taken = [one for one in answers if one.first]
        waits = [(one.began, one.first - one.began) for one in taken]
        firsts = sorted(wait for began, wait in waits if begin <= began < end)
        of_all = sorted(wait for _, wait in waits)
        refused = [one for one in answers if one.status == OVERLOADED]
        deltas = sum(begin <= at < end for one in taken for at in one.deltas)
        retries = [one.retry_after for one in refused] or [0]
        return cls(
            name=name,
            clients=clients,
            offered=len(answers) / (end - begin),
            taken=len(taken),
            refused=len(refused),
            failed=len(answers) - len(taken) - len(refused),
            first_p50=percentile(firsts, 0.5) if firsts else 0.0,
            first_p99=percentile(firsts, 0.99) if firsts else 0.0,
            first_max=firsts[-1] if firsts else 0.0,
            first_p99_of_all=percentile(of_all, 0.99) if of_all else 0.0,
            tokens_per_second=deltas / (end - begin),
            requests_per_second=sum(begin <= one.ended < end for one in taken) / (end - begin),
            retry_after=(min(retries), max(retries)),
        )


async def closed(load: Load, clients: int, seconds: float) -> Phase:
    """So many clients, each with one request at a time."""
    begin = time.perf_counter()
    end = begin + seconds
    answers: list[Answer] = []

    async def client(number: int) -> None:
        # One after the other: those that begin together also end together, again and again, and
        # what is counted depends on which part of their common wave the time falls into.
        await asyncio.sleep(number / clients * seconds / 3)
        while time.perf_counter() < end:
            answer = await load.request()
            answers.append(answer)
            if answer.status == OVERLOADED:
                await asyncio.sleep(answer.retry_after)

    async with asyncio.TaskGroup() as group:
        for number in range(clients):
            group.create_task(client(number))
    # Not the beginning, in which streams only begin.
    return Phase.of("saturation", clients, answers, begin + seconds / 3, end)


async def saturation(load: Load, seconds: float) -> Phase:
    """The fewest clients that are enough, for `seconds`."""
    found: list[Phase] = []
    for clients in CLIENTS:
        found.append(await closed(load, clients, max(FIND_SECONDS, seconds / 3)))
        print(shown(found[-1]), file=sys.stderr)
    best = max(phase.tokens_per_second for phase in found)
    enough = next(phase for phase in found if phase.tokens_per_second >= ENOUGH * best)
    return await closed(load, enough.clients, seconds)


async def overload(load: Load, rate: float, seconds: float) -> Phase:
    """Requests that arrive at a rate, at random, answered or not."""
    begin = time.perf_counter()
    end = begin + seconds
    running: set[asyncio.Task[Answer]] = set()
    answers: list[Answer] = []

    def ended(task: asyncio.Task[Answer]) -> None:
        running.discard(task)
        answers.append(task.result())

    due = begin
    while (now := time.perf_counter()) < end:
        if now < due or len(running) >= CONNECTIONS_MAX:
            await asyncio.sleep(min(0.05, max(0.0, due - now)))
            continue
        due += random.expovariate(rate)
        task = asyncio.create_task(load.request())
        running.add(task)
        task.add_done_callback(ended)
    while running:
        await asyncio.wait(running)
    return Phase.of("overload", 0, answers, begin + seconds / 3, end)


def command(arguments: argparse.Namespace, folder: Path) -> list[str]:
    """Of the server."""
    words = ["-m", "sublimate", "serve", "--port", "0", "--json", "--log-level", "error"]
    if arguments.target:
        words += ["--first-token-target", str(arguments.target)]
    if arguments.model:
        words += ["--model", arguments.model]
    if arguments.scripted:
        path = folder / "script.json"
        answers = [[[], [1000 + index % 500 for index in range(arguments.tokens)]]]
        path.write_text(json.dumps({"answers": answers, "vocabulary": SCRIPT_VOCABULARY, **SCRIPT}))
        words += ["--script", str(path)]
    return words


async def measure(arguments: argparse.Namespace, url: str) -> list[Phase]:
    load = Load(url, arguments.prompt_words, arguments.tokens)
    if arguments.clients:
        steady = await closed(load, arguments.clients, arguments.seconds)
    else:
        steady = await saturation(load, arguments.seconds)
    if not steady.requests_per_second:
        raise SystemExit("No request ended in that time: more --seconds, or a quiet machine.")
    rate = arguments.times * steady.requests_per_second
    return [steady, await overload(load, rate, 2 * arguments.seconds)]


def shown(phase: Phase) -> str:
    load = f"{phase.clients} clients" if phase.clients else f"{phase.offered:.0f} requests/s"
    return (
        f"{phase.name:10} {load:>15}  first token p50 {phase.first_p50:6.2f} s"
        f"  p99 {phase.first_p99:6.2f} s  max {phase.first_max:6.2f} s"
        f" (of all: p99 {phase.first_p99_of_all:.2f} s)"
        f"  {phase.tokens_per_second:6.0f} tokens/s  taken {phase.taken}"
        f"  refused {phase.refused} (retry after {phase.retry_after[0]}-{phase.retry_after[1]} s)"
        f"  failed {phase.failed}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=float, default=10.0)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--clients", type=int, default=0, help="that saturate it; 0: found out")
    parser.add_argument("--model", default="")
    parser.add_argument("--scripted", action="store_true")
    parser.add_argument("--prompt-words", type=int, default=100)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--target", type=float, default=0.0)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        with own_server(command(arguments, Path(folder))) as server:
            steady, over = asyncio.run(measure(arguments, server.url))
    later = over.first_p99 / steady.first_p99
    kept = over.tokens_per_second / steady.tokens_per_second
    if arguments.json:
        figures = {"first_p99_ratio": later, "goodput_ratio": kept}
        print(json.dumps({"phases": [asdict(steady), asdict(over)], **figures}))
    else:
        print(shown(steady), shown(over), sep="\n")
        print(f"p99 of the first token x {later:.2f}, tokens/s x {kept:.2f}")
    sys.exit(later > 2.0 or kept < 0.9)


if __name__ == "__main__":
    main()

"""gRPC over HTTP/3 beside gRPC over HTTP/2, both with TLS: streams a second that our client reads,
and what an event costs the server.

    python bench/grpc_streams.py [--tokens 64] [--step-ms 2] [--seconds 1.5] [--rounds 3]

The engine answers from a script in this process, a token of each stream in each step; tokens that
came together are one event. Counted is the processor time of all threads of the server but the
engine's. Each carrier has a client process of its own, with one connection; all cells take turns.

defines: Cell, ask, serve_orders, server_seconds, main
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import statistics
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests"), str(ROOT / "tests/api")]

from harness import body, serve  # noqa: E402
from sublimate.cli.certificate import own_certificate  # noqa: E402
from sublimate.client import async_http_client  # noqa: E402
from sublimate.config import EdgeSettings  # noqa: E402

CARRIERS = ("grpc-h2", "grpc-h3")
AT_ONCE = (1, 32)
EVENT, END = b"event: content_block_delta", b"event: message_stop"
MICROSECONDS, NANOSECONDS = 1e6, 1e9
CLIENT_SECONDS = 60.0


@dataclass(frozen=True)
class Cell:
    """One measurement."""

    streams: int
    events: int
    seconds: float
    server_seconds: float = 0.0


async def ask(http: Any, url: str, request: dict[str, Any]) -> int:
    """Events of one stream."""
    data = bytearray()
    async with http.stream("POST", f"{url}/v1/messages", json=request) as response:
        async for piece in response.aiter_raw():
            data += piece
    if response.status_code != 200 or END not in data:
        raise SystemExit(f"a stream broke: {response.status_code} {bytes(data[-200:])!r}")
    return data.count(EVENT)


async def _measured(http: Any, url: str, request: dict[str, Any], at_once: int, s: float) -> Cell:
    begun = time.monotonic()
    events: list[int] = []

    async def one_after_the_other() -> None:
        while time.monotonic() - begun < s:
            events.append(await ask(http, url, request))

    await asyncio.gather(*(one_after_the_other() for _ in range(at_once)))
    return Cell(len(events), sum(events), time.monotonic() - begun)


def serve_orders(carrier: str, url: str, request: dict[str, Any], orders: Any) -> None:
    """A client process: (streams at once, seconds) in, a Cell out, until None."""

    async def run() -> None:
        async with async_http_client(carriers=(carrier,), timeout=CLIENT_SECONDS) as http:
            await ask(http, url, request)
            orders.send(http.report().last.protocol)  # type: ignore[attr-defined]
            while (order := orders.recv()) is not None:
                orders.send(await _measured(http, url, request, *order))

    asyncio.run(run())


def server_seconds(engine: int) -> float:
    """Processor time of this process's threads but this one and the engine's."""
    spent = 0
    for task in Path("/proc/self/task").iterdir():
        if int(task.name) not in (engine, threading.get_native_id()):
            spent += int((task / "schedstat").read_text().split()[0])
    return spent / NANOSECONDS


def _rounds(url: str, request: dict[str, Any], options: Any) -> dict[tuple[str, int], list[Cell]]:
    (engine,) = (one.native_id or 0 for one in threading.enumerate() if one.name == "loop")
    clients: dict[str, Any] = {}
    for carrier in CARRIERS:
        clients[carrier], end = multiprocessing.Pipe()
        process = multiprocessing.Process(target=serve_orders, args=(carrier, url, request, end))
        process.start()
        if (used := clients[carrier].recv()) != carrier:
            raise SystemExit(f"{carrier}: it went over {used}")
    found: dict[tuple[str, int], list[Cell]] = {}
    for number in range(options.rounds):
        for at_once in AT_ONCE:
            for carrier in CARRIERS if number % 2 == 0 else reversed(CARRIERS):
                before = server_seconds(engine)
                clients[carrier].send((at_once, options.seconds))
                got = clients[carrier].recv()
                spent = server_seconds(engine) - before
                cell = Cell(got.streams, got.events, got.seconds, spent)
                found.setdefault((carrier, at_once), []).append(cell)
    for client in clients.values():
        client.send(None)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--step-ms", type=float, default=2.0)
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    multiprocessing.set_start_method("spawn")
    request = body("count", stream=True, max_tokens=options.tokens, seed=1)
    with tempfile.TemporaryDirectory() as folder:
        certificate, key = own_certificate(Path(folder))
        settings = EdgeSettings(tls_certificate=str(certificate), tls_key=str(key), data_dir=folder)
        step_us = int(options.step_ms * 1000)
        with serve(settings=settings, grpc=True, http3=True, step_delay_us=step_us) as served:
            found = _rounds(served.url, request, options)
    print(f"{options.tokens} tokens, one each {options.step_ms:g} ms; medians of {options.rounds}")
    for (carrier, at_once), cells in found.items():
        rates = sorted(cell.streams / cell.seconds for cell in cells)
        costs = sorted(cell.server_seconds / cell.events * MICROSECONDS for cell in cells)
        per_stream = sum(cell.events for cell in cells) / sum(cell.streams for cell in cells)
        print(
            f"{carrier:8} {at_once:3} at once: {statistics.median(rates):6.1f} streams/s "
            f"({rates[0]:.1f} to {rates[-1]:.1f}), {per_stream:.0f} events each, "
            f"{statistics.median(costs):5.1f} us/event ({costs[0]:.1f} to {costs[-1]:.1f})"
        )


if __name__ == "__main__":
    main()

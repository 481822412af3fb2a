"""What carrying streams costs: processor time of the edge per event over HTTP/3 and over HTTP/1.1
with TLS, with the same number of streams at the same pace, in turn.

    python bench/http3.py [--streams 32] [--rounds 3] [--step-ms 10] [--tokens 300]

The engine answers from a script in this process; what is measured is the thread of the edge's
loop. The clients are processes of their own, libcurl for both. HTTP/3: one connection with all
streams, as one client would have them. HTTP/1.1: a connection per stream, as that has to be.

defines: ask, edge_seconds, measure, main
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests"), str(ROOT / "tests/api")]

import msgspec  # noqa: E402
import pycurl  # noqa: E402

from harness import Served, body, serve  # noqa: E402
from sublimate.cli.certificate import own_certificate  # noqa: E402
from sublimate.config import EdgeSettings  # noqa: E402

VERSIONS = {"http/1.1": pycurl.CURL_HTTP_VERSION_1_1, "h3": 31}
PIPEWAIT_ONE = 1
MICROSECONDS = 1e6
SETTLE_SECONDS = 0.5


def ask(version: str, url: str, certificate: str, streams: int, request: bytes, told: Any) -> None:
    """All streams at once; the events that came, when they have ended."""
    multi = pycurl.CurlMulti()
    multi.setopt(pycurl.M_PIPELINING, pycurl.PIPE_MULTIPLEX)
    got = [bytearray() for _ in range(streams)]
    handles: list[Any] = []
    for part in got:
        curl = pycurl.Curl()
        curl.setopt(pycurl.URL, url)
        curl.setopt(pycurl.HTTP_VERSION, VERSIONS[version])
        curl.setopt(pycurl.PIPEWAIT, PIPEWAIT_ONE if version == "h3" else 0)
        curl.setopt(pycurl.CAINFO, certificate)
        curl.setopt(pycurl.POSTFIELDS, request)
        curl.setopt(pycurl.HTTPHEADER, ["content-type: application/json"])
        curl.setopt(pycurl.WRITEFUNCTION, part.extend)
        multi.add_handle(curl)
        handles.append(curl)
    open_handles = 1
    while open_handles:
        _, open_handles = multi.perform()
        multi.select(0.1)
    whole = sum(part.count(b"message_stop") > 0 for part in got)
    told.put((whole, sum(part.count(b"content_block_delta") // 2 for part in got)))


def edge_seconds(served: Served) -> float:
    """Processor time of the thread that the edge's loop runs on."""
    clock = served.call(threading.get_ident)
    return time.clock_gettime(time.pthread_getcpuclockid(clock))


def measure(served: Served, version: str, certificate: str, options: Any) -> tuple[float, float]:
    """(microseconds of the edge per event, events a second) while all streams run."""
    request = msgspec.json.encode(body("count", stream=True, max_tokens=options.tokens, seed=1))
    told: Any = multiprocessing.Queue()
    url = f"https://localhost:{served.server.ports['https']}/v1/messages"
    client = multiprocessing.Process(
        target=ask, args=(version, url, certificate, options.streams, request, told)
    )
    client.start()
    while served.region.stats()["running"] < options.streams:
        time.sleep(0.01)
    time.sleep(SETTLE_SECONDS)
    before = served.stats()["generated_tokens"], edge_seconds(served), time.monotonic()
    while served.region.stats()["running"] == options.streams:
        time.sleep(0.01)
        if time.monotonic() - before[2] > options.seconds:
            break
    tokens = served.stats()["generated_tokens"] - before[0]
    spent, elapsed = edge_seconds(served) - before[1], time.monotonic() - before[2]
    whole, _ = told.get()
    client.join()
    if whole != options.streams:
        raise SystemExit(f"{version}: {whole} of {options.streams} streams were whole")
    return spent / tokens * MICROSECONDS, tokens / elapsed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, value in (("streams", 32), ("rounds", 3), ("step-ms", 10), ("tokens", 400)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--seconds", type=float, default=2.0, help="Of a measurement.")
    options = parser.parse_args()
    multiprocessing.set_start_method("fork")
    with tempfile.TemporaryDirectory() as folder:
        certificate, key = own_certificate(Path(folder))
        settings = EdgeSettings(tls_certificate=str(certificate), tls_key=str(key), data_dir=folder)
        with serve(settings=settings, http3=True, step_delay_us=options.step_ms * 1000) as served:
            found: dict[str, list[float]] = {version: [] for version in VERSIONS}
            for number in range(options.rounds):
                turns = list(VERSIONS) if number % 2 == 0 else list(reversed(VERSIONS))
                for version in turns:
                    cost, rate = measure(served, version, str(certificate), options)
                    found[version].append(cost)
                    print(f"{version:8} {cost:6.1f} us/event at {rate:.0f} events/s", flush=True)
    ratios = [h3 / h1 for h3, h1 in zip(found["h3"], found["http/1.1"], strict=True)]
    for version, costs in found.items():
        print(f"{version:8} median {statistics.median(costs):.1f} us of processor time per event")
    spread = f"{min(ratios):.2f}-{max(ratios):.2f}"
    print(f"HTTP/3 to HTTP/1.1 over TLS: {statistics.median(ratios):.2f} ({spread})")


if __name__ == "__main__":
    main()

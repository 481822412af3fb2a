"""What several workers do, measured on servers of its own with the real model: how much of a
conversation's prompt is read from the cache when every turn comes on a new connection, with routing
and without; QUIC under NAT rebinding; what a kill takes with it; what a reload loses.

    python bench/workers.py [--model NAME] [--turns N] [--conversations N]

defines: main
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import sys
import tempfile
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import httpx

sys.path[:0] = [str(Path(__file__).parents[1] / "tests" / place) for place in ("processes", "wire")]
from servers import Server  # noqa: E402

from http3_client import Client  # noqa: E402

EDGE, ENGINE = "sublimate.edge", "sublimate.engine"
STORY = "There was a river, a mill and a miller who counted his sacks. " * 12
REBINDS = 12
CLIENTS = 8


def serving(folder: str, model: str, *flags: str) -> Server:
    command = ["-m", "sublimate", "serve", "--port", "0", "--json", "--log-level", "error"]
    more = ("--model", model, "--data-dir", folder, "--threads", "1", "--tls", "--tls-port", "0")
    # The kernel would send one client's connections to one worker, as it would not those of many.
    more = (*more, "--grpc", "off", "--no-kernel-state", "--workers", "2")
    return Server([*command, *more, *flags])


def ask(url: str, messages: list[dict[str, Any]], tokens: int = 24) -> dict[str, Any]:
    """On a connection of its own, as behind one proxy that opens one per request."""
    body = {"model": "default", "max_tokens": tokens, "temperature": 0, "messages": messages}
    with httpx.Client(timeout=120) as client:
        reply = client.post(f"{url}/v1/messages", json=body)
        reply.raise_for_status()
        return reply.json()


def cached_share(url: str, turns: int, name: str) -> list[float]:
    """Of the prompt tokens that the turns before it have already brought, of each turn after the
    first, the share that came from the cache."""
    messages: list[dict[str, Any]] = []
    shares: list[float] = []
    known = 0
    for turn in range(turns):
        messages.append({"role": "user", "content": f"{name}, part {turn}. {STORY}"})
        told = ask(url, messages)
        cached = told["usage"]["cache_read_input_tokens"]
        total = cached + told["usage"]["input_tokens"]
        if known:
            shares.append(min(1.0, cached / known))
        known = total
        messages.append({"role": "assistant", "content": told["content"][0]["text"]})
    return shares


def report(what: str, figure: str) -> None:
    print(f"{what:<66} {figure}", flush=True)


def conversations(server: Server, count: int, turns: int) -> float:
    """Mean share over the turns of all, one conversation after the other."""
    shares = [cached_share(server.url, turns, f"Story {number}") for number in range(count)]
    return statistics.mean(share for each in shares for share in each)


def rebinding(server: Server, https: str, certificate: Path) -> tuple[int, int]:
    """Requests that were answered after the client's address had changed, of how many."""
    port = int(https.rpartition(":")[2])
    client = Client(port, certificate)
    client.run(lambda: client.handshake is not None)
    answered = 0
    for _ in range(REBINDS):
        client.rebind()
        answered += client.ask("GET", "/livez").status == 200
    client.close()
    return answered, REBINDS


def under_load(server: Server, action: Any, seconds: float) -> tuple[int, int]:
    """(requests that failed, requests) of clients that ask one after the other meanwhile."""
    ends: list[bool] = []
    until = threading.Event()

    def client(number: int) -> None:
        tokens = 64 if number % 2 else 4
        while not until.is_set():
            try:
                ask(server.url, [{"role": "user", "content": f"Count, {number}."}], tokens)
                ends.append(True)
            except httpx.HTTPError:
                ends.append(False)
                time.sleep(0.1)

    threads = [threading.Thread(target=client, args=(number,)) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    time.sleep(1.0)
    action()
    time.sleep(seconds)
    until.set()
    for thread in threads:
        thread.join()
    return ends.count(False), len(ends)


def reloaded(server: Server) -> None:
    server.signal(signal.SIGUSR2)
    failure = server.event("reloaded", 120.0)["failure"]
    if failure:
        raise RuntimeError(failure)


def killed(server: Server, module: str) -> None:
    os.kill(server.pids()[module][0], signal.SIGKILL)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="default")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--conversations", type=int, default=6)
    given = parser.parse_args()
    cached = "read from cache, of what the turns before it had brought"
    with tempfile.TemporaryDirectory() as folder:
        with serving(folder, given.model, "--routing", "off") as server:
            server.ready()
            share = conversations(server, given.conversations, given.turns)
            report(f"{cached}, routing off", f"{share:.1%}")
        with serving(folder, given.model) as server:
            https = server.ready()["edge"]["https"]
            share = conversations(server, given.conversations, given.turns)
            report(cached, f"{share:.1%}")
            answered, asked = rebinding(server, https, Path(folder, "tls", "certificate.pem"))
            report("answered after NAT rebinding, over QUIC", f"{answered} of {asked}")
            failed, asked = under_load(server, lambda: reloaded(server), 1.0)
            report("requests lost by a reload", f"{failed} of {asked}")
            for module in (ENGINE, EDGE):
                failed, asked = under_load(server, partial(killed, server, module), 3.0)
                report(
                    f"lost by kill -9 of one {module}, {CLIENTS} at once", f"{failed} of {asked}"
                )
                server.ready()


if __name__ == "__main__":
    main()

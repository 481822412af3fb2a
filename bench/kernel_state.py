"""What the kernel's memory of connections costs, and what the same table in Redis would.

    python bench/kernel_state.py            costs: touch, lookup, update, beside Redis (if installed)
    python bench/kernel_state.py server     requests of a server with it and without, in turn

As root. Figures are CPU time per operation, of all processes that take part, and wall time; medians
of rounds. docs/kernel.md has those of one machine and what follows from them.

defines: touches, edge_calls, redis_calls, server_turns
"""

import argparse
import contextlib
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import numpy as np

from sublimate import _core
from sublimate.kernel.connections import LAST_USE, VALUE, Connections
from sublimate.kernel.keys import KEY_BYTES, tcp_key

ROUNDS = 5
PAIRS = 8_000
CALLS = 8_000
ENTRIES = 65_536
SECRET = b"the secret of this measurement.."
OWNER = b"owner"
REQUESTS = 120
ANSWER = {"answers": [[[], [1000 + n for n in range(8)]]], "vocabulary": 49152}


@contextlib.contextmanager
def connection() -> Iterator[tuple[socket.socket, socket.socket]]:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as client,
        listener.accept()[0] as server,
    ):
        yield client, server


def loaded() -> Connections:
    memory = Connections.load(SECRET, ENTRIES)
    if not memory.loaded:
        sys.exit(f"It cannot be loaded here: {memory.reason} (docs/kernel.md)")
    return memory


def pairs_ns(client: socket.socket, server: socket.socket) -> float:
    """Of one send and its receive over loopback, wall time."""
    begin = time.perf_counter_ns()
    for _ in range(PAIRS):
        client.send(b"x")
        server.recv(1)
    return (time.perf_counter_ns() - begin) / PAIRS


# ---- programs ------------------------------------------------------------------------------------
def run_ns(memory: Connections, work: Callable[[], object]) -> float:
    """Mean of a run of the programs at the socket calls while it works."""
    names = ("sent", "received")
    before = [memory.cost()[name] for name in names]
    counting = _core.enable_statistics()
    work()
    os.close(counting)
    after = [memory.cost()[name] for name in names]
    spent = sum(b[0] - a[0] for a, b in zip(before, after, strict=True))
    return spent / max(1, sum(b[1] - a[1] for a, b in zip(before, after, strict=True)))


def touches() -> None:
    known: list[float] = []
    unknown: list[float] = []
    without: list[float] = []
    with_it: list[float] = []
    with connection() as (client, server):
        pairs_ns(client, server)
        for _ in range(ROUNDS):
            without.append(pairs_ns(client, server))
            memory = loaded()
            unknown.append(run_ns(memory, lambda: pairs_ns(client, server)))
            for ends in (server, client):
                key = tcp_key(ends.getsockname(), ends.getpeername())
                memory._uses.update(key, LAST_USE.pack(0))
            known.append(run_ns(memory, lambda: pairs_ns(client, server)))
            with_it.append(pairs_ns(client, server))
            memory.close()
    say("a socket call on a known connection, in our program", known)
    say("a socket call on any other, in our program", unknown)
    say("send and receive over loopback, without", without)
    say("send and receive over loopback, both touching", with_it)


# ---- calls of the edge ---------------------------------------------------------------------------
def measured(name: str, work: Callable[[], object], others: Callable[[], int] = lambda: 0) -> None:
    """CPU of this process and of others, and wall time, per call."""
    cpu: list[float] = []
    wall: list[float] = []
    for _ in range(ROUNDS):
        begun = time.process_time_ns() + others(), time.perf_counter_ns()
        for _ in range(CALLS):
            work()
        ended = time.process_time_ns() + others(), time.perf_counter_ns()
        cpu.append((ended[0] - begun[0]) / CALLS)
        wall.append((ended[1] - begun[1]) / CALLS)
    say(f"{name}, CPU", cpu)
    say(f"{name}, wall", wall)


def edge_calls() -> None:
    memory = loaded()
    key = tcp_key(("127.0.0.1", 8000), ("127.0.0.1", 50_000))
    value = VALUE.pack(0, 10, bytes(320))
    for number in range(ENTRIES // 2):  # of a table in use
        memory._digests.update(number.to_bytes(KEY_BYTES, "little"), value)
    memory._digests.update(key, value)
    measured("lookup in the kernel", lambda: memory._digests.lookup(key))
    measured("update in the kernel", lambda: memory._digests.update(key, value))
    for tokens in (200, 2_000):
        ids = np.arange(tokens, dtype=np.int32)
        use = memory.begin(key, OWNER, ids)
        if use is None:
            sys.exit("It was refused.")
        memory.end(use, 0)
        measured(
            f"begin of a request of {tokens:,} tokens",
            lambda ids=ids: memory.begin(key, OWNER, ids),
        )
        measured(f"end of a request of {tokens:,} tokens", lambda use=use: memory.end(use, 0))
    memory.close()


# ---- Redis ---------------------------------------------------------------------------------------
def redis_calls() -> None:
    if shutil.which("redis-server") is None:
        print("redis-server is not installed: no comparison")
        return
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/socket"
        command = ["redis-server", "--port", "0", "--unixsocket", path, "--save", ""]
        command += [
            "--appendonly",
            "no",
            "--maxmemory",
            "64mb",
            "--maxmemory-policy",
            "allkeys-lru",
        ]
        with subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL) as server:
            try:
                _redis_calls(path, server.pid)
            finally:
                server.terminate()


def _redis_calls(path: str, process_id: int) -> None:
    key, value = bytes(KEY_BYTES), bytes(VALUE.size)
    with socket.socket(socket.AF_UNIX) as client:
        deadline = time.monotonic() + 5
        while True:
            try:
                client.connect(path)
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)

        def call(*words: bytes) -> bytes:
            parts = b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)
            client.sendall(b"*%d\r\n%b" % (len(words), parts))
            return client.recv(4096)

        def used_ns() -> int:
            return sum(
                int((task / "schedstat").read_text().split()[0])
                for task in Path(f"/proc/{process_id}/task").iterdir()
            )

        for number in range(ENTRIES // 2):
            call(b"SET", number.to_bytes(KEY_BYTES, "little"), value)
        call(b"SET", key, value)
        measured("GET of Redis (unix socket)", lambda: call(b"GET", key), used_ns)
        measured("SET of Redis (unix socket)", lambda: call(b"SET", key, value), used_ns)


# ---- a server ------------------------------------------------------------------------------------
@contextlib.contextmanager
def serving(folder: str, *flags: str) -> Iterator[httpx.Client]:
    script = Path(folder) / "script.json"
    script.write_text(json.dumps(ANSWER))
    command = [sys.executable, "-m", "sublimate", "serve", "--port", "0", "--json", "--script"]
    command += [str(script), "--data-dir", folder, "--log-level", "error", *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as server:
        try:
            lines = (json.loads(line) for line in server.stdout or ())
            url = next(line["url"] for line in lines if line["event"] == "ready")
            with httpx.Client(base_url=url, timeout=30) as client:
                yield client
        finally:
            server.terminate()


def ask(client: httpx.Client) -> float:
    text = "Of all that was said before, what matters most? " * 150
    body = {"model": "default", "max_tokens": 4, "messages": [{"role": "user", "content": text}]}
    begin = time.perf_counter_ns()
    answer = client.post("/v1/messages", json=body)
    if answer.status_code != 200:
        sys.exit(answer.text)
    return float(time.perf_counter_ns() - begin)


def server_turns() -> None:
    """Requests of some 1,600 tokens on one connection; what engines compute is scripted."""
    with (
        tempfile.TemporaryDirectory() as one,
        tempfile.TemporaryDirectory() as other,
        serving(one) as with_it,
        serving(other, "--no-kernel-state") as without,
    ):
        times: dict[str, list[float]] = {"with": [], "without": []}
        for client in (with_it, without):
            for _ in range(10):
                ask(client)
        for _ in range(REQUESTS):
            times["with"].append(ask(with_it))
            times["without"].append(ask(without))
        told = with_it.get("/metrics").text
    for name, each in times.items():
        say(f"a request, {name} it", each)
    print("\n".join(line for line in told.splitlines() if line.startswith("sublimate_kernel_")))


def say(name: str, figures: list[float]) -> None:
    low, high = min(figures), max(figures)
    print(f"{name:62} {statistics.median(figures):12,.0f} ns  ({low:,.0f} to {high:,.0f})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="?", choices=("costs", "server"), default="costs")
    if parser.parse_args().what == "server":
        server_turns()
        return
    touches()
    edge_calls()
    redis_calls()


if __name__ == "__main__":
    main()

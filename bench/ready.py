"""How long `sublimate serve` takes from its execution to the first 200 of /readyz, and where
that time goes: the median of many starts, in turn, of one model.

usage: python bench/ready.py [--model FILE] [--rounds 10] [OPTION OF SERVE ...]

Without --model the default one is packed (`sublimate convert`) into a folder that goes afterwards. A
first start, which is not counted, brings everything into the page cache. What a start measures is
kept between the rounds, as it is between starts anywhere (docs/convert.md).

Times are from just before the command is executed. Processor time is what each process has had
when the server was ready: on a machine with other work it says more than the times do.

defines: Start, start, packed, main
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

DEFAULT = "smollm2-135m-instruct"
LIMIT_SECONDS = 60.0
LOOK_SECONDS = 0.001
SCRIPT = Path(sys.executable).with_name("sublimate")
COMMAND = [str(SCRIPT)] if SCRIPT.exists() else [sys.executable, "-m", "sublimate"]
PROCESSES = {"sublimate": "command", "sublimate.edge": "edge", "sublimate.engine": "engine"}


@dataclass
class Start:
    """One start. Seconds, from its begin."""

    ready: float
    parts: dict[str, float] = field(default_factory=dict)
    """When each part of each process was done."""
    spent: dict[str, float] = field(default_factory=dict)
    """Processor time of each process."""
    measured: bool = False
    """Its engine had to: nothing that it could go by was kept (engine/remember.py)."""


def environment(folder: str) -> dict[str, str]:
    """Modules are compiled once, as those of an installed package are, whatever the caller's own
    environment says."""
    kept = {name: text for name, text in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    more = {"SUBLIMATE_DATA_DIR": folder, "PYTHONPYCACHEPREFIX": f"{folder}/compiled"}
    return {**kept, **more}


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def is_ready(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_SECONDS)
    with contextlib.closing(connection), contextlib.suppress(OSError, http.client.HTTPException):
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200
    return False


def processes(parent: int) -> Iterator[tuple[str, int]]:
    """Name and id of a server's processes."""
    yield "sublimate", parent
    for path in Path(f"/proc/{parent}/task").glob("*/children"):
        for child in map(int, path.read_text().split()):
            words = Path(f"/proc/{child}/cmdline").read_bytes().decode().split("\0")
            yield words[words.index("-m") + 1], child


def spent_seconds(process_id: int) -> float:
    """On processors, of all its threads that live."""
    tasks = Path(f"/proc/{process_id}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


def start(model: str, options: list[str], data: str) -> Start:
    """Starts a server, and ends it."""
    port = free_port()
    command = [*COMMAND, "serve", "--model", model, "--port", str(port), "--json", *options]
    variables = environment(data)
    began = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=variables)
    try:
        while not is_ready(port):
            if process.poll() is not None or time.monotonic() - began > LIMIT_SECONDS:
                raise SystemExit("the server did not start")
            time.sleep(LOOK_SECONDS)
        result = Start(time.monotonic() - began)
        for name, process_id in processes(process.pid):
            result.spent[PROCESSES[name]] = spent_seconds(process_id)
        assert process.stdout is not None
        events = (json.loads(line) for line in process.stdout)
        event = next(event for event in events if event["event"] == "ready")
        result.measured = not event["engine"].get("measured_before", True)
        for name, told in (
            ("command", event),
            ("edge", event["edge"]),
            ("engine", event["engine"]),
        ):
            for part, at in told["stamps"].items():
                result.parts[f"{name}: {part}"] = at - began
        return result
    finally:
        process.terminate()
        process.communicate()


@contextlib.contextmanager
def packed(model: str) -> Iterator[tuple[str, str]]:
    """A packed model, and a data folder."""
    with tempfile.TemporaryDirectory(prefix="ready-") as folder:
        path = model or f"{folder}/default.sublimate"
        if not model:
            command = [*COMMAND, "convert", DEFAULT, path]
            subprocess.run(command, check=True, env=environment(folder))
        yield path, folder


def shown(name: str, seconds: list[float]) -> str:
    low, middle, high = min(seconds), statistics.median(seconds), max(seconds)
    return f"{name:28} {middle * 1e3:7.0f} ms   ({low * 1e3:.0f} to {high * 1e3:.0f})"


def main() -> None:
    parser = argparse.ArgumentParser(description="Times the starts of a server.")
    parser.add_argument("--model", default="", help="file; else the default model, packed")
    parser.add_argument("--rounds", type=int, default=10)
    given, options = parser.parse_known_args()
    with packed(given.model) as (model, data):
        start(model, options, data)
        starts = [start(model, options, data) for _ in range(given.rounds)]
    print(f"{given.rounds} starts; load of the machine {os.getloadavg()[0]:.1f}")
    if count := sum(one.measured for one in starts):
        print(f"{count} engines measured: with other work beside them the outcome is not kept")
    for name in sorted(starts[0].parts, key=starts[0].parts.__getitem__):
        print(shown(name, [one.parts[name] for one in starts]))
    print(shown("ready", [one.ready for one in starts]))
    for name in PROCESSES.values():
        print(shown(f"processor time, {name}", [one.spent[name] for one in starts]))


if __name__ == "__main__":
    main()

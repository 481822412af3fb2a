"""The soak: one server, mixed requests over all carriers, clients that leave, kills and reloads.

In the first half engine and edge are killed again and again; in the second nothing is, and memory
and descriptors must be flat. Each few seconds all clients rest: then no request, slot or reserved
page may be left.

    PYTHONPATH=tests/processes python tests/soak/soak.py --minutes 30 --picture docs/soak.svg

defines: main
"""

import argparse
import contextlib
import json
import os
import random
import signal
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import figures
import visitors
from servers import Server, wait_until

from sublimate import _core
from sublimate.config import Settings, cache_folder
from sublimate.edge.limits import OUTCOMES_MAX
from sublimate.model.files import fetch

STEP_US = 500
START_SECONDS, REST_SECONDS = 180.0, 60.0
"""It may run beside others, with what processor time they leave."""
RESTS, RELOADS = 120, 90
"""In all of a run: every 15 and every 20 s in one of half an hour."""
ENGINE_KILLS, EDGE_KILLS = 15, 6
"""In the first half."""
RENEWALS = 4
"""There too: all workers are replaced, one at a time, as `sublimate reload` does."""
SETTLE_SHARE = 0.2
"""Of the run, after its first half, until figures count; at the earliest once all is full."""
FILL_SHARE = 1.2
"""Answers that are asked for after the last kill, of those that all edges keep for clients that ask
once more: clients alone would take longer to fill them than memory is looked at."""
AT_REST = ("num_requests_running", "num_requests_waiting", "slots_in_use", "answers_open")
AT_REST_TOO = ("kv_pages_reserved",)


class Soak:
    """One run. findings: what must not have been."""

    def __init__(self, minutes: float, folder: Path, workers: int) -> None:
        self.seconds = minutes * 60
        self.folder, self.workers = folder, workers
        self.samples: list[figures.Sample] = []
        self.kills: list[tuple[float, str]] = []
        self.findings: list[str] = []
        self.rests = self.reloads = self.renewals = 0
        self.tally = visitors.Tally()
        self._began = self._full_at = 0.0

    def run(self) -> None:
        with self._server() as server:
            ready = server.ready(START_SECONDS)
            answers = visitors.learn(server.url)
            crowd = [self._visitor(carrier, server, ready, answers) for carrier in CROWD]
            for visitor in crowd:
                visitor.start()
            self._began = time.monotonic()
            try:
                self._follow(server, crowd)
            finally:
                for visitor in crowd:
                    visitor.ended = True
                for visitor in crowd:
                    visitor.join(visitors.TIMEOUT_SECONDS + 5)
            server.signal(signal.SIGTERM)
            status = server.wait(30)
            if status != 0:
                self.findings.append(f"the server ended with {status}")
        self.findings += [f"unexplained: {one}" for one in self.tally.unexplained[:20]]
        self.findings += [f"wrong: {one}" for one in self.tally.wrong[:20]]

    def _server(self) -> Server:
        model = fetch("default", cache_folder(Settings()))
        vocabulary = len(_core.Gguf(str(model.path)).metadata["tokenizer.ggml.tokens"])
        script = self.folder / "script.json"
        script.write_text(
            json.dumps({"answers": [], "vocabulary": vocabulary, "step_delay_us": STEP_US})
        )
        command = ["-m", "sublimate", "serve", "--port", "0", "--json", "--log-level", "error"]
        command += ["--script", str(script), "--data-dir", str(self.folder / "data")]
        command += ["--tls", "--tls-port", "0", "--grpc-port", "0", "--watchdog-seconds", "5"]
        if self.workers > 1:
            command += ["--workers", str(self.workers)]
        return Server(command)

    def _visitor(
        self, carrier: str, server: Server, ready: dict[str, Any], answers: dict[str, str]
    ) -> visitors.Visitor:
        url = server.url if carrier == "http/1.1" else ready["edge"]["https"]
        certificate = self.folder / "data" / "tls" / "certificate.pem"
        return visitors.Visitor(carrier, url, certificate, answers, self.tally)

    def _follow(self, server: Server, crowd: list[visitors.Visitor]) -> None:
        half = self.seconds / 2
        plan = sorted(
            [(self.seconds * n / RESTS, "rest") for n in range(1, RESTS + 1)]
            + [(self.seconds * n / RELOADS, "reload") for n in range(1, RELOADS + 1)]
            + [(half * n / (ENGINE_KILLS + 1), "engine") for n in range(1, ENGINE_KILLS + 1)]
            + [(half * n / (EDGE_KILLS + 1) + 3, "edge") for n in range(1, EDGE_KILLS + 1)]
            + [(half * (n - 0.4) / RENEWALS, "renewal") for n in range(1, RENEWALS + 1)]
            + [(half + 1, "fill")]
        )
        for at, what in plan:
            time.sleep(max(0.0, self._began + at - time.monotonic()))
            if server.process.poll() is not None:
                self.findings.append("the supervisor ended")
                return
            if what == "rest":
                self._rest(server, crowd)
            elif what == "reload":
                server.signal(signal.SIGHUP)
                self.reloads += 1
            elif what == "renewal":
                server.signal(signal.SIGUSR2)
                self.renewals += 1
            elif what == "fill":
                self._fill(server)
            else:
                self._kill(server, what)

    def _fill(self, server: Server) -> None:
        failed = visitors.fill(server.url, round(FILL_SHARE * OUTCOMES_MAX * self.workers))
        if failed:
            self.findings.append(f"{failed} requests failed that were to fill what is kept")
        self._full_at = time.monotonic() - self._began

    def _kill(self, server: Server, what: str) -> None:
        victims = [pid for role, pid in children(server.process.pid) if role.startswith(what)]
        if victims:
            self.tally.killed()
            self.kills.append((time.monotonic() - self._began, what))
            os.kill(random.choice(victims), signal.SIGKILL)

    def _rest(self, server: Server, crowd: list[visitors.Visitor]) -> None:
        """All clients wait; then nothing is in flight, and what is left the server needs."""
        for visitor in crowd:
            visitor.resting.clear()
            visitor.rest.set()
        waiting = visitors.TIMEOUT_SECONDS + 5
        late = [visitor.name for visitor in crowd if not visitor.resting.wait(waiting)]
        self.findings += [f"a request over {name} never ended" for name in late]
        at = time.monotonic() - self._began
        with contextlib.suppress(AssertionError):
            wait_until(lambda: at_rest(server.url), REST_SECONDS)
        if not at_rest(server.url):
            self.findings.append(f"at {at:.0f} s, at rest: {gauges(server.url)}")
        for role, pid in [("supervisor", server.process.pid), *children(server.process.pid)]:
            with contextlib.suppress(OSError):  # it has just been replaced
                self.samples.append(figures.sample(role, pid, at))
        self.rests += 1
        for visitor in crowd:
            visitor.rest.clear()

    def report(self) -> str:
        """Markdown. Adds what grows to the findings."""
        roles = sorted({one.role for one in self.samples})
        since = max(self.seconds * (0.5 + SETTLE_SHARE), self._full_at)
        trends: list[figures.Trend] = []
        for role in roles:
            begin = 0.0 if role == "supervisor" else since
            with contextlib.suppress(ValueError):
                trends.append(figures.trend(self.samples, role, begin))
        self.findings += [f"{one.role} grows" for one in trends if one.grows]
        outcomes: dict[str, int] = {}
        for name, count in self.tally.counts.items():
            kind = name.rpartition(", ")[0] or name
            outcomes[kind] = outcomes.get(kind, 0) + count
        lines = [f"{self.tally.requests} requests in {self.seconds / 60:.1f} minutes over "]
        lines[0] += f"{', '.join(dict.fromkeys(CROWD))}; {len(self.kills)} kills "
        lines[0] += f"({sum(who == 'engine' for _, who in self.kills)} of the engine), "
        lines[0] += f"{self.renewals} renewals, {self.reloads} reloads, {self.rests} rests."
        lines += ["", "| outcome | requests |", "|---|---|"]
        lines += [f"| {name} | {count} |" for name, count in sorted(outcomes.items())]
        lines += ["", figures.table(trends), ""]
        lines += [f"- {finding}" for finding in self.findings] or ["Nothing was found."]
        return "\n".join(lines)


CROWD = visitors.CARRIERS


def children(supervisor: int) -> Iterator[tuple[str, int]]:
    """(role, process id) of edges and engines; numbered if there are several."""
    found: dict[str, list[int]] = {"edge": [], "engine": []}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, IndexError):
            fields = path.read_text(errors="replace").rpartition(")")[2].split()
            words = (path.parent / "cmdline").read_bytes().split(b"\0")
            if int(fields[1]) == supervisor and fields[0] not in "ZX" and len(words) > 2:
                name = words[2].decode().rpartition(".")[2]
                if name in found:
                    found[name].append(int(path.parent.name))
    for name, pids in found.items():
        for number, pid in enumerate(sorted(pids)):
            yield (name if len(pids) == 1 else f"{name} {number}"), pid


def gauges(url: str) -> dict[str, float]:
    """Sums over engines of what must be zero at rest; empty while nobody answers."""
    try:
        with urllib.request.urlopen(f"{url}/metrics", timeout=5) as reply:
            text = reply.read().decode()
    except OSError:
        return {}
    sums: dict[str, float] = {}
    for line in text.splitlines():
        name = line.partition("{")[0].removeprefix("sublimate_")
        if name in AT_REST or name in AT_REST_TOO:
            sums[name] = sums.get(name, 0.0) + float(line.rpartition(" ")[2])
    return sums


def at_rest(url: str) -> bool:
    found = gauges(url)
    return len(found) == len(AT_REST) + len(AT_REST_TOO) and not any(found.values())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--report", type=Path, default=None, help="Markdown of the run")
    parser.add_argument("--picture", type=Path, default=None, help="SVG of the memory")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        soak = Soak(arguments.minutes, Path(folder), arguments.workers)
        soak.run()
    report = soak.report()
    sys.stdout.write(report + "\n")
    if arguments.report is not None:
        arguments.report.write_text(report + "\n")
    if arguments.picture is not None:
        arguments.picture.write_text(figures.picture(soak.samples, soak.kills))
    return 1 if soak.findings else 0


if __name__ == "__main__":
    sys.exit(main())

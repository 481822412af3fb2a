"""Storms: a server under thousands of sockets that misbehave, and beside them one client that does
not. Memory must not follow the sockets, descriptors come back, and the good client's slowest
answers take at most as many times as long as verdict.py says for each storm.

    PYTHONPATH=tests/processes:tests/wire python tests/storm/storm.py [--sockets 2000]

defines: Storm, main
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import attacks
import httpx
import probes
from servers import Server
from verdict import HEADER, Figures, Seen, findings, row

from sublimate import _core
from sublimate.config import Settings, cache_folder
from sublimate.model.files import fetch

START_SECONDS, SETTLE_SECONDS = 180.0, 30.0
STARTED_SECONDS = 5.0
"""After this an edge has loaded what it leaves for later, which holds up a stream for a moment."""
ANSWER_TOKENS, STEP_US = 400, 1000
PAUSE_SECONDS = 0.01
IN_CLEAR = ("HTTP/2 rapid resets", *(name for name in attacks.FLOODS if "HTTP/2" in name))
"""Of storms, those on a server without TLS."""


class Good:
    """The client that behaves: short requests, one after the other, over one connection."""

    def __init__(self, url: str) -> None:
        self._client = httpx.Client(base_url=url, timeout=60)
        self.failures: list[str] = []

    def run(self, seconds: float, stop: threading.Event | None = None) -> list[float]:
        """Milliseconds of each answer."""
        took: list[float] = []
        end = time.monotonic() + seconds
        asked = {"model": "default", "max_tokens": 4, "temperature": 0}
        asked["messages"] = [{"role": "user", "content": "hello"}]
        while time.monotonic() < end and not (stop and stop.is_set()):
            begun = time.monotonic()
            try:
                reply = self._client.post("/v1/messages", json=asked)
                if reply.status_code != 200:
                    self.failures.append(f"{reply.status_code}: {reply.text[:100]}")
            except httpx.HTTPError as error:
                self.failures.append(f"{type(error).__name__} after {len(took)} answers")
            took.append((time.monotonic() - begun) * 1000)
            time.sleep(PAUSE_SECONDS)
        return took

    def close(self) -> None:
        self._client.close()


class Storm:
    """A server to storm."""

    def __init__(self, folder: Path, sockets: int, seconds: float) -> None:
        self._folder, self._sockets, self._seconds = folder, sockets, seconds
        self._certificate = folder / "data" / "tls" / "certificate.pem"

    def server(self, tls: bool) -> Server:
        """With gRPC, which is in the clear where nothing is TLS."""
        model = fetch("default", cache_folder(Settings()))
        vocabulary = len(_core.Gguf(str(model.path)).metadata["tokenizer.ggml.tokens"])
        script = self._folder / "script.json"
        answer = [1000 + n % 500 for n in range(ANSWER_TOKENS)]
        body = {"answers": [[[], answer]], "vocabulary": vocabulary, "step_delay_us": STEP_US}
        script.write_text(json.dumps(body))
        command = ["-m", "sublimate", "serve", "--port", "0", "--json", "--log-level", "error"]
        command += ["--script", str(script), "--data-dir", str(self._folder / "data")]
        command += ["--grpc", "on", "--grpc-port", "0"]
        return Server([*command, *(["--tls", "--tls-port", "0"] if tls else [])])

    def run(self, server: Server, name: str) -> Figures:
        ports = self._ports(server)
        edge = server.children()["sublimate.edge"]
        good = Good(server.url)
        time.sleep(STARTED_SECONDS)
        quiet = self._probe(ports, self._seconds / 2)
        calm = good.run(self._seconds / 2)
        before, held = memory_kib(edge), descriptors(edge)
        kibs, counts = [before], [held]
        command = [sys.executable, attacks.__file__, name, json.dumps(ports), str(self._sockets)]
        command += [str(self._seconds), str(self._certificate)]
        attacker = subprocess.Popen(command, stdout=subprocess.PIPE)
        over = threading.Event()
        seen = Seen()
        probing = threading.Thread(
            target=lambda: seen.add(quiet, self._probe(ports, self._seconds))
        )
        probing.start()

        def watch() -> None:
            while attacker.poll() is None:
                kibs.append(memory_kib(edge))
                counts.append(descriptors(edge))
                time.sleep(0.1)
            over.set()

        watcher = threading.Thread(target=watch)
        watcher.start()
        took = good.run(self._seconds + 120, over)
        watcher.join()
        probing.join()
        assert attacker.stdout is not None
        did = json.loads(attacker.stdout.read() or b"{}")
        attacker.stdout.close()
        end = time.monotonic() + SETTLE_SECONDS
        while descriptors(edge) > held and time.monotonic() < end:
            time.sleep(0.1)
        good.close()
        after = (held, max(counts), descriptors(edge))
        figures = Figures(
            name, calm, took, did, before, max(kibs), memory_kib(edge), after, good.failures, seen
        )
        if server.children().get("sublimate.edge") != edge:
            figures.failures.append("the edge was replaced")
        return figures

    def _probe(self, ports: dict[str, int], seconds: float) -> dict[str, list[float]]:
        """What probes.py sees in so long; nothing where it failed."""
        command = [sys.executable, probes.__file__, json.dumps(ports), str(seconds)]
        told = subprocess.run([*command, str(self._certificate)], stdout=subprocess.PIPE)
        return json.loads(told.stdout) if not told.returncode else {}

    def _ports(self, server: Server) -> dict[str, int]:
        told: dict[str, Any] = httpx.get(f"{server.url}/.well-known/sublimate").json()
        return told["ports"]


def memory_kib(pid: int) -> int:
    """RssAnon and VmSwap; 0 if it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    wanted = [line.split() for line in lines if line.startswith(("RssAnon:", "VmSwap:"))]
    return sum(int(words[1]) for words in wanted)


def descriptors(pid: int) -> int:
    try:
        return len(list(Path(f"/proc/{pid}/fd").iterdir()))
    except OSError:
        return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sockets", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=15.0, help="of each storm")
    parser.add_argument("--storm", choices=list(attacks.ATTACKS), action="append")
    parser.add_argument("--floods", action="store_true", help="those that attacks.FLOODS names")
    arguments = parser.parse_args()
    found: list[str] = []
    sys.stdout.write(HEADER)
    with tempfile.TemporaryDirectory() as folder:
        storm = Storm(Path(folder), arguments.sockets, arguments.seconds)
        chosen = list(attacks.FLOODS if arguments.floods else attacks.ATTACKS)
        for name in arguments.storm or chosen:
            with storm.server(tls=name not in IN_CLEAR) as server:
                server.ready(START_SECONDS)
                figures = storm.run(server, name)
            sys.stdout.write(row(figures) + "\n")
            sys.stdout.flush()
            found += findings(figures, arguments.sockets)
    sys.stdout.write("\n".join(found or ["Nothing was found."]) + "\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

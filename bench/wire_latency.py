"""What a connection's first answer costs over a long wire: our client over HTTP/3, with and without
a ticket of an earlier connection, beside the HTTP library over TLS and TCP.

    python bench/wire_latency.py [--round-trip-ms 20] [--rounds 31] [--model FILE]

Milliseconds from the call to the first byte of its answer, medians: of a token count, and of a
streamed message, whose engine answers from a script, a token each millisecond. All subjects take
turns. Needs the rights of sublimate/bench/delay.py: root, or
`unshare --user --net --map-root-user`.

defines: REQUESTS, measure, leave, subjects, wait_for, scripted, main
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from sublimate import _core
from sublimate.bench.delay import DelayNetwork
from sublimate.cli.certificate import own_certificate
from sublimate.client import http_client
from sublimate.client.library import load_library
from sublimate.config import Settings, cache_folder
from sublimate.model.files import fetch
from sublimate.model.tokenizer import tokenizer_from_metadata

PORT = 8443
START_SECONDS = 60.0
ASKED: dict[str, Any] = {"model": "any", "messages": [{"role": "user", "content": "hello"}]}
TOKENS = 4
COUNT, MESSAGE = "/v1/messages/count_tokens", "/v1/messages"
REQUESTS: dict[str, dict[str, Any]] = {
    COUNT: ASKED,
    MESSAGE: {**ASKED, "stream": True, "max_tokens": TOKENS},
}
STEP_US = 1000


def measure(client: Any, url: str, model: str, path: str) -> float:
    """Milliseconds to the first byte of one answer's body."""
    begun, first = time.perf_counter(), 0.0
    with client.stream("POST", url + path, json={**REQUESTS[path], "model": model}) as response:
        for _ in response.iter_raw():
            first = first or time.perf_counter()
        if response.status_code != 200:
            raise SystemExit(f"the server said {response.status_code}")
    return (first - begun) * 1e3


def leave(client: Any) -> None:
    """End the connections of a client of ours, but for its tickets."""
    network = client._transport._core.network
    for session in list(network._all):
        session.on_loop(session.leave)
    while network._all:
        time.sleep(0.001)


def subjects(url: str, model: str, path: str) -> dict[str, Callable[[], float]]:
    """Each opens a connection and measures one request on it."""
    library = load_library()
    ours = http_client(carriers=("h3",), verify=False)
    measure(ours, url, model, path)
    (origin,) = ours._transport._core._origins.values()  # type: ignore[attr-defined]

    def over_tcp() -> float:
        with library.Client(verify=False) as client:
            return measure(client, url, model, path)

    def over_quic() -> float:
        leave(ours)
        origin.tickets = []
        return measure(ours, url, model, path)

    def early() -> float:
        until = time.monotonic() + 5
        while not origin.tickets and time.monotonic() < until:
            time.sleep(0.001)
        leave(ours)
        milliseconds = measure(ours, url, model, path)
        if not ours.report().last.early_data:  # type: ignore[attr-defined]
            raise SystemExit("the server took no early data")
        return milliseconds

    return {"TLS over TCP": over_tcp, "HTTP/3, new": over_quic, "HTTP/3, 0-RTT": early}


def wait_for(url: str, process: subprocess.Popen[bytes]) -> str:
    """The served model's name."""
    library = load_library()
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until and process.poll() is None:
        try:
            with library.Client(verify=False) as client:
                if client.get(url + "/readyz").status_code == 200:
                    return client.get(url + "/v1/models").json()["data"][0]["id"]
        except library.HTTPError:
            pass
        time.sleep(0.2)
    raise SystemExit("the server did not start")


def scripted(model: str) -> dict[str, Any]:
    """An engine that answers with a word again and again."""
    tokenizer = tokenizer_from_metadata(_core.Gguf(model).metadata)
    word = next(at for at, text in enumerate(tokenizer.token_bytes) if text == b" the")
    answers = [[[], [word] * TOKENS]]
    return {"answers": answers, "vocabulary": len(tokenizer), "step_delay_us": STEP_US}


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--round-trip-ms", type=float, default=20.0)
    options.add_argument("--rounds", type=int, default=31)
    options.add_argument("--model", default="")
    chosen = options.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        DelayNetwork(round_trip_ms=chosen.round_trip_ms) as network,
    ):
        certificate, key = own_certificate(Path(folder))
        model = chosen.model or str(fetch("default", cache_folder(Settings())).path)
        script = Path(folder) / "script.json"
        script.write_bytes(msgspec.json.encode(scripted(model)))
        command = [sys.executable, "-m", "sublimate", "serve", "--host", network.server_address]
        command += ["--tls", "--tls-port", str(PORT), "--tls-certificate", str(certificate)]
        command += ["--tls-key", str(key), "--data-dir", folder, "--kv-memory", "64M"]
        command += ["--model", model, "--script", str(script)]
        with network.server():
            quiet = subprocess.DEVNULL
            process = subprocess.Popen(command, stdout=quiet, stderr=quiet)
        try:
            with network.client():
                show(f"https://{network.server_address}:{PORT}", process, chosen)
        finally:
            process.terminate()
            process.wait()


def show(url: str, process: subprocess.Popen[bytes], chosen: argparse.Namespace) -> None:
    model = wait_for(url, process)
    times: dict[tuple[str, str], list[float]] = {}
    ways = {
        (path, name): way for path in REQUESTS for name, way in subjects(url, model, path).items()
    }
    for _ in range(chosen.rounds):
        for cell, way in ways.items():
            times.setdefault(cell, []).append(way())
    print(f"{chosen.rounds} new connections each, round trip {chosen.round_trip_ms:g} ms")
    for (path, name), found in times.items():
        low, middle, high = statistics.quantiles(found, n=4)
        print(f"{path:26} {name:14} first byte {middle:6.1f} ms ({low:.1f} to {high:.1f})")
    for path in REQUESTS:
        over_tcp, early = times[path, "TLS over TCP"], times[path, "HTTP/3, 0-RTT"]
        ratio = statistics.median(over_tcp) / statistics.median(early)
        print(f"{path}: TLS over TCP takes {ratio:.2f} times what 0-RTT does")


if __name__ == "__main__":
    main()

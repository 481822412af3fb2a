"""What a connection's first answer costs over a long wire: our client over HTTP/3, with and without
a ticket of an earlier connection, beside the HTTP library over TLS and TCP.

    python bench/wire_latency.py [--round-trip-ms 20] [--rounds 31] [--model FILE]

Milliseconds from the call to the first byte of its answer, medians; a token count, so that the
engine has no part in it. All subjects take turns. Needs the rights of bench/delay.py: root, or
`unshare --user --net --map-root-user`.

defines: main
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

from sublimate.bench.delay import DelayNetwork
from sublimate.cli.certificate import own_certificate
from sublimate.client import http_client
from sublimate.client.library import load_library

PORT = 8443
START_SECONDS = 60.0
PATH = "/v1/messages/count_tokens"
ASKED = {"model": "any", "messages": [{"role": "user", "content": "hello"}]}


def measure(client: Any, url: str, model: str) -> float:
    """Milliseconds to the first byte of one answer."""
    begun = time.perf_counter()
    with client.stream("POST", url + PATH, json={**ASKED, "model": model}) as response:
        first = time.perf_counter()
        if response.status_code != 200:
            raise SystemExit(f"the server said {response.status_code}: {response.read()!r}")
        response.read()
    return (first - begun) * 1e3


def leave(client: Any) -> None:
    """End the connections of a client of ours, but for its tickets."""
    network = client._transport._core.network
    for session in list(network._all):
        session.on_loop(session.leave)
    while network._all:
        time.sleep(0.001)


def subjects(url: str, model: str) -> dict[str, Callable[[], float]]:
    """Each opens a connection and measures one request on it."""
    library = load_library()
    ours = http_client(carriers=("h3",), verify=False)
    measure(ours, url, model)
    (origin,) = ours._transport._core._origins.values()  # type: ignore[attr-defined]

    def over_tcp() -> float:
        with library.Client(verify=False) as client:
            return measure(client, url, model)

    def over_quic() -> float:
        leave(ours)
        origin.tickets = []
        return measure(ours, url, model)

    def early() -> float:
        until = time.monotonic() + 5
        while not origin.tickets and time.monotonic() < until:
            time.sleep(0.001)
        leave(ours)
        milliseconds = measure(ours, url, model)
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
        command = [sys.executable, "-m", "sublimate", "serve", "--host", network.server_address]
        command += ["--tls", "--tls-port", str(PORT), "--tls-certificate", str(certificate)]
        command += ["--tls-key", str(key), "--data-dir", folder, "--kv-memory", "64M"]
        command += ["--model", chosen.model] if chosen.model else []
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
    times: dict[str, list[float]] = {}
    ways = subjects(url, wait_for(url, process))
    for _ in range(chosen.rounds):
        for name, way in ways.items():
            times.setdefault(name, []).append(way())
    print(f"{chosen.rounds} new connections each, round trip {chosen.round_trip_ms:g} ms")
    for name, found in times.items():
        low, middle, high = statistics.quantiles(found, n=4)
        print(f"{name:14} first byte {middle:6.1f} ms ({low:.1f} to {high:.1f})")
    ratio = statistics.median(times["TLS over TCP"]) / statistics.median(times["HTTP/3, 0-RTT"])
    print(f"TLS over TCP takes {ratio:.2f} times what 0-RTT does")


if __name__ == "__main__":
    main()

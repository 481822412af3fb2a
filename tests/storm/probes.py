"""What a client that behaves sees of each port while others do not: how long /livez takes, and the
gaps of a stream that runs. In a process of its own, so that nothing else delays it.

    python probes.py PORTS SECONDS CERTIFICATE  # prints JSON: {"http": [ms, ...], "gaps": [...]}
"""

import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import grpc
import httpx

from http3_client import Client

PAUSE_SECONDS = 0.01
PATIENCE_SECONDS = 60.0
SETTLE_SECONDS = 0.5
HEALTH = "/grpc.health.v1.Health/Check"


def by_http(url: str, verify: str | bool) -> Callable[[], None]:
    client = httpx.Client(base_url=url, timeout=PATIENCE_SECONDS, verify=verify)
    return lambda: client.get("/livez").raise_for_status() and None


def by_http3(port: int, certificate: Path) -> Callable[[], None]:
    client = Client(port, certificate)

    def ask() -> None:
        if client.ask("GET", "/livez").status != 200:
            raise RuntimeError("no answer over HTTP/3")

    return ask


def by_grpc(port: int, certificate: Path | None) -> Callable[[], None]:
    """The same question in gRPC's words."""
    target = f"localhost:{port}"
    if certificate is None:
        channel = grpc.insecure_channel(target)
    else:
        proof = grpc.ssl_channel_credentials(certificate.read_bytes())
        channel = grpc.secure_channel(target, proof)
    check = channel.unary_unary(HEALTH)

    def ask() -> None:
        check(b"", timeout=PATIENCE_SECONDS)

    return ask


def gaps_of_stream(url: str, end: float, gaps: list[float]) -> None:
    """Milliseconds between pieces of answers, one after the other."""
    asked = {"model": "default", "max_tokens": 400, "stream": True}
    asked["messages"] = [{"role": "user", "content": "Tell a long story."}]
    with httpx.Client(base_url=url, timeout=PATIENCE_SECONDS) as client:
        while time.monotonic() < end:
            with client.stream("POST", "/v1/messages", json=asked) as reply:
                last = 0.0
                for _ in reply.iter_raw():
                    now = time.monotonic()
                    if last:
                        gaps.append((now - last) * 1000)
                    last = now


def main() -> None:
    ports: dict[str, int] = json.loads(sys.argv[1])
    certificate = Path(sys.argv[3])
    url = f"http://127.0.0.1:{ports['http']}"
    has_tls = "https" in ports
    asks: dict[str, Callable[[], None]] = {"http": by_http(url, False)}
    asks["grpc"] = by_grpc(ports["grpc"], certificate if has_tls else None)
    if has_tls:
        asks["https"] = by_http(f"https://localhost:{ports['https']}", str(certificate))
        asks["h3"] = by_http3(ports["h3"], certificate)
    for ask in asks.values():
        ask()
    took: dict[str, list[float]] = {name: [] for name in asks}
    took["gaps"] = []
    end = time.monotonic() + float(sys.argv[2])
    streaming = threading.Thread(target=gaps_of_stream, args=(url, end, took["gaps"]))
    streaming.start()
    time.sleep(SETTLE_SECONDS)
    while time.monotonic() < end:
        for name, ask in asks.items():
            begun = time.monotonic()
            ask()
            took[name].append((time.monotonic() - begun) * 1000)
        time.sleep(PAUSE_SECONDS)
    streaming.join()
    sys.stdout.write(json.dumps(took))


if __name__ == "__main__":
    main()

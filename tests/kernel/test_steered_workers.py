"""Two workers whose clients the kernel steers: over QUIC a client whose address changes with every
request stays with its edge, over TCP a client comes to the edge beside its engine."""

import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from servers import Server
from test_serve import model as model
from test_serve import script as script

from http3_client import Client

REQUESTS, CONNECTIONS = 12, 4
BODY = {"model": "default", "max_tokens": 2, "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
def server(script: Path, tmp_path: Path) -> Iterator[Server]:
    flags = ["--script", str(script), "--data-dir", str(tmp_path), "--workers", "2"]
    ports = ["--port", "0", "--tls", "--tls-port", "0", "--grpc", "off"]
    command = ["-m", "sublimate", "serve", "--json", "--log-level", "error", *ports, *flags]
    with Server(command) as running:
        running.ready()
        if (reason := re.search(r'part="steering",reason="(\w+)"', told(running))) is None:
            pytest.fail("steering has no state")
        if reason.group(1) != "loaded":
            pytest.skip(f"steering is not loaded here: {reason.group(1)}")
        yield running


def told(server: Server) -> str:
    with urllib.request.urlopen(server.url + "/metrics", timeout=10) as reply:
        return reply.read().decode()


def steered(server: Server) -> dict[str, float]:
    found = re.findall(r'sublimate_kernel_steered_total{[^}]*by="(\w+)"[^}]*} (\S+)', told(server))
    return {by: float(count) for by, count in found}


def test_clients_stay_with_their_worker(server: Server, tmp_path: Path) -> None:
    with urllib.request.urlopen(server.url + "/.well-known/sublimate", timeout=10) as reply:
        port = int(re.findall(rb'"h3":\s*(\d+)', reply.read())[0])
    certificate = tmp_path / "tls" / "certificate.pem"
    for _ in range(CONNECTIONS):
        client = Client(port, certificate)
        for _ in range(REQUESTS):
            assert client.ask("POST", "/v1/messages", BODY).status == 200
            client.rebind()
        client.close()
    after = steered(server)
    assert after["connection_id"] >= CONNECTIONS * REQUESTS and after["away"] == 0
    for _ in range(4):
        with httpx.Client(base_url=server.url, timeout=10) as one:
            assert one.post("/v1/messages", json=BODY).status_code == 200
    assert steered(server)["address"] >= 3

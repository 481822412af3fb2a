"""`sublimate serve` with what an operator sets: HTTPS, named keys, batches that survive kills."""

import os
import signal
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import msgspec
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from servers import Server, wait_until
from test_serve import model as model
from test_serve import script as script
from test_serve import serving

from sublimate.client import http_client
from sublimate.keys import KeyLimits, add_key
from sublimate.v1 import frames_pb2, messages_pb2

SECONDS = 20.0


@pytest.fixture
def server(script: Path, tmp_path: Path) -> Iterator[Server]:
    keys = tmp_path / "keys.toml"
    add_key(keys, "first", KeyLimits())
    ports = ("--tls", "--tls-port", "0", "--grpc-port", "0")
    more = ("--data-dir", str(tmp_path), "--keys-file", str(keys))
    with serving("--script", str(script), *ports, *more) as running:
        running.ready()
        yield running


def ask(url: str, key: str, trust: ssl.SSLContext | None = None) -> int:
    """Status of a small request."""
    body: dict[str, Any] = {"model": "default", "max_tokens": 3}
    body["messages"] = [{"role": "user", "content": "hi"}]
    headers = {"x-api-key": key, "content-type": "application/json"}
    request = urllib.request.Request(
        f"{url}/v1/messages", msgspec.json.encode(body), headers, method="POST"
    )
    try:
        with urllib.request.urlopen(request, timeout=SECONDS, context=trust) as reply:
            return reply.status
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_https_with_its_own_certificate_and_keys_that_change(
    server: Server, tmp_path: Path
) -> None:
    assert ask(server.url, "unknown") == 401
    key = add_key(tmp_path / "keys.toml", "second", KeyLimits())
    assert ask(server.url, key) == 401
    server.signal(signal.SIGHUP)
    wait_until(lambda: ask(server.url, key) == 200, SECONDS)
    request = urllib.request.Request(server.url + "/.well-known/sublimate")
    request.add_header("x-api-key", key)
    with urllib.request.urlopen(request, timeout=SECONDS) as reply:
        told = msgspec.json.decode(reply.read())
    trust = ssl.create_default_context(cafile=str(tmp_path / "tls" / "certificate.pem"))
    secure = f"https://127.0.0.1:{told['ports']['https']}"
    assert ask(secure, key, trust) == 200
    certificate = (tmp_path / "tls" / "certificate.pem").read_bytes()
    assert call_by_grpc(told["ports"]["grpc"], key, certificate).content
    server.signal(signal.SIGTERM)
    assert server.wait() == 0


def test_who_reads_over_quic_learns_that_the_edge_is_gone(script: Path, tmp_path: Path) -> None:
    """From the edge that takes its place, which does not know the connection."""
    asked: dict[str, Any] = {"model": "default", "max_tokens": 500}
    asked["messages"] = [{"role": "user", "content": "hi"}]
    more = ("--tls", "--tls-port", "0", "--data-dir", str(tmp_path))
    trust = str(tmp_path / "tls" / "certificate.pem")
    with serving("--script", str(script), *more) as running:
        url = running.ready()["edge"]["https"] + "/v1/messages"
        with http_client(carriers=("h3",), verify=trust, library="httpx", timeout=SECONDS) as http:
            with http.stream("POST", url, json={**asked, "stream": True}) as reply:
                pieces = reply.iter_raw()
                next(pieces)
                assert reply.extensions["sublimate"].protocol == "h3"
                begun = time.monotonic()
                os.kill(running.children()["sublimate.edge"], signal.SIGKILL)
                with pytest.raises(httpx.RemoteProtocolError, match="does not know"):
                    list(pieces)
                assert time.monotonic() - begun < 6.0
            assert http.post(url, json=asked).status_code == 200
        running.signal(signal.SIGTERM)
        assert running.wait() == 0


def call_by_grpc(port: int, key: str, certificate: bytes) -> frames_pb2.Message:
    """The answer to a small request."""
    request = messages_pb2.CreateMessageRequest(model="default", max_tokens=3)
    request.messages.add(role="user", text="hi")
    credentials = grpc.ssl_channel_credentials(certificate)
    with grpc.secure_channel(f"127.0.0.1:{port}", credentials) as channel:
        method = channel.unary_unary(
            "/sublimate.v1.Messages/CreateMessage",
            request_serializer=messages_pb2.CreateMessageRequest.SerializeToString,
            response_deserializer=frames_pb2.Message.FromString,
        )
        return method(request, timeout=SECONDS, metadata=(("x-api-key", key),))


def test_grpc_in_the_clear_survives_its_edge(script: Path, tmp_path: Path) -> None:
    """Each edge binds the port that the supervisor holds; without --grpc on there is none."""
    more = ("--grpc", "on", "--grpc-port", "0", "--data-dir", str(tmp_path))
    with serving("--script", str(script), *more) as running:
        url = running.ready()["edge"]["grpc"]
        patience = [("grpc.max_reconnect_backoff_ms", 200), ("grpc.min_reconnect_backoff_ms", 200)]
        with grpc.insecure_channel(url.removeprefix("http://"), patience) as channel:
            health = health_pb2_grpc.HealthStub(channel)
            assert is_serving(health)
            os.kill(running.children()["sublimate.edge"], signal.SIGKILL)
            wait_until(lambda: is_serving(health), SECONDS)
        running.signal(signal.SIGTERM)
        assert running.wait() == 0


def is_serving(health: Any) -> bool:
    try:
        answer = health.Check(health_pb2.HealthCheckRequest(), timeout=1.0)
    except grpc.RpcError:
        return False
    return answer.status == health_pb2.HealthCheckResponse.SERVING


# ---- batches -------------------------------------------------------------------------------------
BATCH = 1000


def call(url: str, path: str, sent: Any = None) -> bytes:
    """Body of a GET, or of a POST of JSON."""
    data = None if sent is None else msgspec.json.encode(sent)
    request = urllib.request.Request(url + path, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=SECONDS) as reply:
        return reply.read()


def counts(url: str, identifier: str) -> dict[str, int]:
    """Of a batch; empty while nobody answers."""
    try:
        got = msgspec.json.decode(call(url, f"/v1/messages/batches/{identifier}"))
    except OSError:
        return {}
    return got["request_counts"]


def kill_all(server: Server) -> None:
    """Supervisor and children at once, as a power cut or the memory killer would."""
    for pid in (server.process.pid, *server.children().values()):
        os.kill(pid, signal.SIGKILL)
    server.process.wait()


def test_a_batch_of_1000_survives_kills_with_no_request_lost_or_doubled(
    script: Path, tmp_path: Path
) -> None:
    quick = msgspec.json.decode(script.read_bytes())
    script.write_bytes(msgspec.json.encode({**quick, "step_delay_us": 500}))
    start = ("--script", str(script), "--data-dir", str(tmp_path), "--batch-concurrency", "32")
    message = {"model": "default", "max_tokens": 4, "messages": [{"role": "user", "content": "?"}]}
    requests = [{"custom_id": f"r{i}", "params": message} for i in range(BATCH)]
    with serving(*start) as first:
        first.ready()
        made = call(first.url, "/v1/messages/batches", {"requests": requests})
        identifier = msgspec.json.decode(made)["id"]
        wait_until(lambda: counts(first.url, identifier).get("succeeded", 0) > 50, SECONDS)
        os.kill(first.children()["sublimate.edge"], signal.SIGKILL)
        wait_until(lambda: counts(first.url, identifier).get("succeeded", 0) > 200, SECONDS)
        kept = counts(first.url, identifier)["succeeded"]
        kill_all(first)
    with serving(*start) as second:
        second.ready()
        assert counts(second.url, identifier)["succeeded"] >= kept
        wait_until(lambda: counts(second.url, identifier).get("succeeded") == BATCH, 60)
        lines = call(second.url, f"/v1/messages/batches/{identifier}/results").splitlines()
    results = [msgspec.json.decode(line) for line in lines]
    assert [result["custom_id"] for result in results] == [f"r{i}" for i in range(BATCH)]
    assert len({result["result"]["message"]["id"] for result in results}) == BATCH

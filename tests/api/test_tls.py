"""HTTPS beside HTTP, with real sockets and the standard library's TLS."""

import hashlib
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import msgspec
import pytest

from harness import Served, body, exchange_bytes, http_post, is_closed, read_reply, serve
from sublimate import _core
from sublimate.cli.certificate import own_certificate
from sublimate.config import EdgeSettings
from sublimate.edge import limits
from sublimate.edge.limits import HttpLimits
from sublimate.edge.tls import fingerprint
from sublimate.keys import KeyLimits, add_key


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return own_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def served(pair: tuple[Path, Path]) -> Iterator[Served]:
    settings = EdgeSettings(tls_certificate=str(pair[0]), tls_key=str(pair[1]))
    with serve(settings=settings, tls=True, limits=HttpLimits(header_seconds=1.0)) as running:
        yield running


@pytest.fixture
def trust(pair: tuple[Path, Path]) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(pair[0]))


def said(stream: str) -> str:
    """The text of a stream, however it was cut into events."""
    frames = [line[6:] for line in stream.splitlines() if line.startswith("data: ")]
    events = [msgspec.json.decode(frame) for frame in frames]
    return "".join(event["delta"].get("text", "") for event in events if "delta" in event)


def url(served: Served) -> str:
    return f"https://localhost:{served.server.ports['https']}"


def connect(served: Served, trust: ssl.SSLContext) -> ssl.SSLSocket:
    sock = socket.create_connection(("127.0.0.1", served.server.ports["https"]), timeout=10)
    return trust.wrap_socket(sock, server_hostname="127.0.0.1")


def test_answers_and_streams_are_those_of_http(served: Served, trust: ssl.SSLContext) -> None:
    with httpx.Client(base_url=url(served), verify=trust) as client:
        whole = client.post("/v1/messages", json=body())
        assert whole.json()["content"][0]["text"] == "Hello there!"
        request = body("count", stream=True, max_tokens=4000, seed=1)
        secure = client.post("/v1/messages", json=request).text
        clear = served.client.post("/v1/messages", json=request).text
        assert said(secure) == said(clear) and len(said(secure)) > 3000
        document = client.get("/openapi.json").json()
        assert document["servers"][0]["url"].startswith("https://127.0.0.1:")


def test_no_socket_is_lent_to_the_core(
    served: Served, trust: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    lent: list[int] = []
    engine = served.server.engine
    assert engine is not None
    monkeypatch.setattr(engine, "lend_socket", lambda ticket, descriptor: lent.append(descriptor))
    request = body("count", stream=True, max_tokens=4000)
    with httpx.Client(base_url=url(served), verify=trust) as client:
        assert "message_stop" in client.post("/v1/messages", json=request).text
    assert not lent
    assert "message_stop" in served.client.post("/v1/messages", json=request).text
    assert lent


def test_connections_are_kept_and_bodies_may_be_large(
    served: Served, trust: ssl.SSLContext
) -> None:
    with connect(served, trust) as sock:
        assert sock.selected_alpn_protocol() is None and sock.version() == "TLSv1.3"
        for _ in range(3):
            assert exchange_bytes(sock, http_post(body())).status == 200
        large = exchange_bytes(sock, http_post(b" " * (4 << 20) + b"{}"))
        assert large.status == 400


def test_the_end_of_a_connection_is_the_end_of_its_answer(
    served: Served, trust: ssl.SSLContext
) -> None:
    request = http_post(body("count", stream=True, max_tokens=300))
    begun = time.monotonic()
    with connect(served, trust) as sock:
        sock.sendall(request.replace(b"HTTP/1.1", b"HTTP/1.0", 1))
        data = b""
        while more := sock.recv(65536):
            data += more
    assert b"message_stop" in data and time.monotonic() - begun < 4.5
    with connect(served, trust) as sock:
        reply = exchange_bytes(sock, b"NONSENSE\r\n\r\n")
        assert reply.status == 400 and is_closed(sock)


def test_what_is_no_handshake_ends(served: Served, trust: ssl.SSLContext) -> None:
    port = served.server.ports["https"]
    with socket.create_connection(("127.0.0.1", port), timeout=5) as plain:
        plain.sendall(http_post(body()))
        assert b"HTTP/1.1" not in plain.recv(4096)
    with socket.create_connection(("127.0.0.1", port), timeout=5) as silent:
        begun = time.monotonic()
        assert silent.recv(1) == b"" and time.monotonic() - begun < 8
    with connect(served, trust) as sock:
        assert exchange_bytes(sock, http_post(body())).status == 200


def test_a_client_that_leaves_cancels(served: Served, trust: ssl.SSLContext) -> None:
    with connect(served, trust) as sock:
        sock.sendall(http_post(body("count", stream=True, max_tokens=8000)))
        assert b"message_start" in sock.recv(4096)
    deadline = time.monotonic() + 5
    while not served.idle():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_where_it_listens_and_what_to_expect_is_told(
    served: Served, pair: tuple[Path, Path]
) -> None:
    told = served.client.get("/.well-known/sublimate").json()
    der = ssl.PEM_cert_to_DER_cert(pair[0].read_text())
    assert told["certificate_sha256"] == hashlib.sha256(der).hexdigest()
    assert told["ports"] == {"http": served.port, "https": served.server.ports["https"]}
    assert told["policy"] == _core.POLICY_DIGEST


def test_a_renewed_certificate_is_read_at_reload(tmp_path: Path) -> None:
    pair = own_certificate(tmp_path)
    settings = EdgeSettings(tls_certificate=str(pair[0]), tls_key=str(pair[1]))
    with serve(settings=settings, tls=True) as served:
        old = ssl.create_default_context(cafile=str(pair[0]))
        with connect(served, old) as kept:
            pair[0].unlink()
            own_certificate(tmp_path)
            served.call(served.server.reload)
            assert exchange_bytes(kept, http_post(body())).status == 200, "streams go on"
        with pytest.raises(ssl.SSLError):
            connect(served, old)
        new = ssl.create_default_context(cafile=str(pair[0]))
        with connect(served, new) as sock:
            sock.sendall(http_post(body()))
            assert read_reply(sock).status == 200
        told = served.client.get("/.well-known/sublimate").json()
        assert told["certificate_sha256"] == fingerprint(str(pair[0])), "clients pin it"


def test_keys_and_certificate_are_read_again_each_for_itself(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What breaks one is told, and is no matter for the other."""
    pair, keys = own_certificate(tmp_path), tmp_path / "keys.toml"
    key = add_key(keys, "alice", KeyLimits())
    settings = EdgeSettings(
        tls_certificate=str(pair[0]),
        tls_key=str(pair[1]),
        keys_file=str(keys),
        data_dir=str(tmp_path),
    )

    def status(key: str) -> int:
        return served.client.get("/v1/models", headers={"x-api-key": key}).status_code

    with serve(settings=settings, tls=True) as served:
        good = keys.read_bytes()
        keys.write_bytes(b"[keys")
        pair[0].unlink()
        own_certificate(tmp_path)
        served.call(served.server.reload)
        assert served.server.tls_info["certificate_sha256"] == fingerprint(str(pair[0]))
        assert "Keys could not be read again." in caplog.text and status(key) == 200
        keys.write_bytes(good)
        added = add_key(keys, "bob", KeyLimits())
        pair[0].write_text("no certificate")
        served.call(served.server.reload)
        assert "The certificate could not be read again." in caplog.text
        assert status(added) == 200


@pytest.mark.parametrize(
    ("port", "sent", "told"),
    [
        ("grpc", b"GET / HTTP/1.1\r\n\r\n", b"this port speaks HTTP/2"),
        ("https", b"GET / HTTP/1.1\r\n\r\n", b"The HTTP request is malformed."),
    ],
)
def test_an_error_ends_with_its_connection(
    pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, port: str, sent: bytes, told: bytes
) -> None:
    """Its client need not wait as long as one that still sends."""
    for name in ("LINGER_SECONDS", "HTTP2_LINGER_SECONDS"):
        monkeypatch.setattr(limits, name, 600.0)
    settings = EdgeSettings(tls_certificate=str(pair[0]), tls_key=str(pair[1]))
    trust = ssl.create_default_context(cafile=str(pair[0]))
    with serve(settings=settings, tls=True, grpc=True) as served:
        address = ("127.0.0.1", served.server.ports[port])
        with socket.create_connection(address, timeout=10) as raw:
            secure = trust.wrap_socket(raw, server_hostname="127.0.0.1", suppress_ragged_eofs=False)
            with secure as sock:
                sock.sendall(sent)
                received = b""
                while piece := sock.recv(65536):
                    received += piece
        assert told in received


def test_chat_trusts_a_certificate_that_is_named(pair: tuple[Path, Path]) -> None:
    settings = EdgeSettings(tls_certificate=str(pair[0]), tls_key=str(pair[1]))
    with serve(settings=settings, tls=True) as served:
        url = f"https://localhost:{served.server.ports['https']}"
        command = [sys.executable, "-m", "sublimate", "chat", "--url", url, "say hello"]
        trusting = [*command, "--cacert", str(pair[0])]
        shown = subprocess.run(trusting, capture_output=True, text=True, timeout=60)
        assert shown.returncode == 0 and "Hello there!" in shown.stdout, shown.stderr
        refused = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert refused.returncode and "certificate" in refused.stderr, refused.stderr

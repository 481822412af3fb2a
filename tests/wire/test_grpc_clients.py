"""Other people's gRPC clients: buf over HTTP/2 and HTTP/3, connectrpc over HTTP/2. Skipped where
they are not installed, as `make test-grpc` does."""

import asyncio
import json
import os
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from harness import Served, serve, wait_until
from sublimate.cli.certificate import own_certificate
from sublimate.config import EdgeSettings
from sublimate.v1 import frames_pb2
from sublimate.v1.messages_pb2 import CreateMessageRequest

SECONDS = 30
SERVICE = "sublimate.v1.Messages"
SAID = {"model": "tiny", "maxTokens": 64, "messages": [{"role": "user", "text": "say hello"}]}
OVER_HTTP2, OVER_HTTP3 = "gRPC over HTTP/2", "gRPC over HTTP/3"


@pytest.fixture(scope="module")
def served(pair: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    data = tmp_path_factory.mktemp("data")
    certificate, key = map(str, pair)
    settings = EdgeSettings(tls_certificate=certificate, tls_key=key, data_dir=str(data))
    with serve(settings=settings, grpc=True, http3=True) as running:
        yield running
        wait_until(running.idle)


def ends(served: Served) -> dict[tuple[str, str], int]:
    return served.call(lambda: dict(served.server.metrics.calls))


# ---- buf -----------------------------------------------------------------------------------------
def buf(served: Served, pair: tuple[Path, Path], over: str, path: str, asked: Any) -> Any:
    """(exit code, messages, standard error) of `buf curl`. It knows methods by reflection."""
    program = os.environ.get("BUF") or shutil.which("buf")
    if program is None:
        pytest.skip("buf is not installed")
    more, port = (["--http3"], "h3") if over == OVER_HTTP3 else ([], "grpc")
    url = f"https://localhost:{served.server.ports[port]}/{path}"
    command = [program, "curl", "--protocol", "grpc", "--cacert", str(pair[0]), *more]
    done = subprocess.run(
        [*command, "-d", json.dumps(asked), url], capture_output=True, text=True, timeout=SECONDS
    )
    decoder, text, told = json.JSONDecoder(), done.stdout.strip(), []
    while text:
        one, end = decoder.raw_decode(text)
        told.append(one)
        text = text[end:].lstrip()
    return done.returncode, told, done.stderr


@pytest.mark.parametrize("over", [OVER_HTTP2, OVER_HTTP3], ids=["h2", "h3"])
def test_buf(served: Served, pair: tuple[Path, Path], over: str) -> None:
    before = ends(served)
    code, told, _ = buf(served, pair, over, f"{SERVICE}/CreateMessage", SAID)
    assert code == 0 and told[0]["content"] == [{"text": {"text": "Hello there!"}}]
    code, told, _ = buf(served, pair, over, f"{SERVICE}/StreamMessage", SAID)
    assert code == 0 and "messageStart" in told[0] and told[-1] == {"messageStop": {}}
    deltas = [one["contentBlockDelta"]["text"] for one in told if "contentBlockDelta" in one]
    assert "".join(deltas) == "Hello there!"
    code, told, error = buf(served, pair, over, f"{SERVICE}/CreateMessage", {})
    assert code != 0 and not told
    said = json.loads(error)
    assert (said["code"], said["message"]) == ("invalid_argument", "model: field required")
    assert said["details"][0]["type"] == "sublimate.v1.Error"
    assert ends(served)[over, "ok"] >= before.get((over, "ok"), 0) + 2


# ---- connectrpc ----------------------------------------------------------------------------------
@pytest.fixture
def connect() -> Iterator[Any]:
    """In the clear: its TLS takes no certificate that is its own authority."""
    client = pytest.importorskip("connectrpc.client")
    compat = pytest.importorskip("connectrpc.compat")
    pyqwest = pytest.importorskip("pyqwest")
    protocol = pytest.importorskip("connectrpc.protocol").ProtocolType.GRPC
    transport = pyqwest.SyncHTTPTransport(http_version=pyqwest.HTTPVersion.HTTP2)
    codec = compat.google_protobuf_binary_codec()
    with serve(grpc=True) as served, transport:
        url = f"http://127.0.0.1:{served.server.ports['grpc']}"
        http = pyqwest.SyncClient(transport)
        one = client.ConnectClientSync(url, codec=codec, protocol=protocol, http_client=http)
        with one:
            yield one
        assert ends(served)[OVER_HTTP2, "ok"] == 2
        wait_until(served.idle)


def method(name: str, answer: type, kind: str) -> Any:
    method = pytest.importorskip("connectrpc.method")
    return method.MethodInfo(
        name=name,
        service_name=SERVICE,
        input=CreateMessageRequest,
        output=answer,
        idempotency_level=method.IdempotencyLevel.UNKNOWN,
        stream_type=getattr(method.StreamType, kind),
    )


def test_connectrpc(connect: Any) -> None:
    request = CreateMessageRequest(model="tiny", max_tokens=64)
    request.messages.add(role="user", text="say hello")
    create = method("CreateMessage", frames_pb2.Message, "UNARY")
    answer = connect.execute_unary(request=request, method=create)
    assert answer.content[0].text.text == "Hello there!"
    stream = method("StreamMessage", frames_pb2.StreamEvent, "SERVER_STREAM")
    events = list(connect.execute_server_stream(request=request, method=stream))
    assert "".join(event.content_block_delta.text for event in events) == "Hello there!"
    errors = pytest.importorskip("connectrpc.errors")
    with pytest.raises(errors.ConnectError, match="model: field required"):
        connect.execute_unary(request=CreateMessageRequest(), method=create)


# ---- certificate ---------------------------------------------------------------------------------
def test_a_renewed_certificate_is_that_of_the_next_connection(tmp_path: Path) -> None:
    certificate, key = own_certificate(tmp_path / "tls")
    settings = EdgeSettings(
        tls_certificate=str(certificate), tls_key=str(key), data_dir=str(tmp_path / "data")
    )
    with serve(settings=settings, grpc=True, http3=True) as served:
        address = ("127.0.0.1", served.server.ports["grpc"])
        first = ssl.get_server_certificate(address)
        assert first.strip() == certificate.read_text().strip()
        for path, renewed in zip((certificate, key), own_certificate(tmp_path / "b"), strict=True):
            path.write_bytes(renewed.read_bytes())
        assert ssl.get_server_certificate(address) == first, "not before it is told"
        served.call(served.server.reload)
        assert ssl.get_server_certificate(address).strip() == certificate.read_text().strip()
        certificate.write_text("nonsense")
        served.call(served.server.reload)
        assert ssl.get_server_certificate(address) != first, "what was known holds"


def test_handshakes_that_fail_crash_nothing(tmp_path: Path) -> None:
    certificate, key = own_certificate(tmp_path / "tls")
    settings = EdgeSettings(
        tls_certificate=str(certificate), tls_key=str(key), data_dir=str(tmp_path / "data")
    )
    with serve(settings=settings, grpc=True) as served:
        address = ("127.0.0.1", served.server.ports["grpc"])
        for _ in range(300):
            with socket.create_connection(address, timeout=5) as in_clear:
                in_clear.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        assert ssl.get_server_certificate(address).strip() == certificate.read_text().strip()
        served.call(served.server.reload)
        assert ssl.get_server_certificate(address).strip() == certificate.read_text().strip()


# ---- grpcio, as coroutines -----------------------------------------------------------------------
def test_coroutines(served: Served, pair: tuple[Path, Path]) -> None:
    """Unary calls and streams beside each other; one is left by its client."""

    async def run() -> list[str]:
        credentials = grpc.ssl_channel_credentials(pair[0].read_bytes())
        target = f"localhost:{served.server.ports['grpc']}"
        request = CreateMessageRequest(model="tiny", max_tokens=64)
        request.messages.add(role="user", text="say hello")
        async with grpc.aio.secure_channel(target, credentials) as channel:
            stream = channel.unary_stream(
                f"/{SERVICE}/StreamMessage",
                request_serializer=CreateMessageRequest.SerializeToString,
                response_deserializer=frames_pb2.StreamEvent.FromString,
            )

            async def text() -> str:
                events = [event async for event in stream(request)]
                return "".join(event.content_block_delta.text for event in events)

            left = stream(request)
            await left.read()
            left.cancel()
            return await asyncio.gather(*[text() for _ in range(16)])

    # On the loop that the server's side of grpcio runs on: it knows one loop in a process.
    future = asyncio.run_coroutine_threadsafe(run(), served.loop)
    assert future.result(SECONDS) == ["Hello there!"] * 16
    wait_until(served.idle)

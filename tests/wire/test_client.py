"""The client in front of a whole server: what the SDK gets through it, and what other servers are
asked."""

import contextlib
import gc
import http.server
import os
import threading
import weakref
from collections.abc import Iterator

import anthropic
import pytest

from harness import Served, serve
from sublimate.client import Used, async_http_client, core, http_client
from sublimate.client.core import Core
from sublimate.client.library import load_library

USER = {"role": "user", "content": "say hello"}


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with serve() as served:
        yield served
        assert served.idle()


def used(response: object) -> Used:
    return response.extensions["sublimate"]  # type: ignore[attr-defined]


def test_the_sdk_takes_it_and_it_says_what_it_used(server: Served) -> None:
    http = http_client()
    with anthropic.Anthropic(base_url=server.url, api_key="x", http_client=http) as client:
        message = client.messages.create(model="tiny", max_tokens=64, messages=[USER])
        assert message.content[0].text == "Hello there!"
        report = http.report()  # type: ignore[attr-defined]
        assert report.requests == {"http/1.1": 1} and report.fallbacks == {"first": 1}
        assert report.handshakes == 1 and report.last is not None and not report.last.reused
        raw = client.messages.with_raw_response.create(model="tiny", max_tokens=64, messages=[USER])
        assert used(raw.http_response).fallback == "" and used(raw.http_response).reused
        assert http.report().handshakes == 1  # type: ignore[attr-defined]


async def test_the_async_sdk_takes_it(server: Served) -> None:
    async with anthropic.AsyncAnthropic(
        base_url=server.url, api_key="x", http_client=async_http_client()
    ) as client:
        async with client.messages.stream(model="tiny", max_tokens=64, messages=[USER]) as stream:
            assert "".join([text async for text in stream.text_stream]) == "Hello there!"
            assert not used(stream.response).reused
        async with client.messages.stream(model="tiny", max_tokens=64, messages=[USER]) as stream:
            assert [text async for text in stream.text_stream]
            assert used(stream.response).reused


class Other(http.server.BaseHTTPRequestHandler):
    """A server of somebody else, that keeps what it is asked."""

    seen: list[str]

    def do_POST(self) -> None:
        length = int(self.headers["content-length"])
        body = self.rfile.read(length)
        self.seen.append(f"{self.path} {sorted(name.lower() for name in self.headers)} {body!r}")
        self.send_response(200)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, format: str, *args: object) -> None:
        del format, args


@contextlib.contextmanager
def other_server(kind: type[Other] = Other, **more: object) -> Iterator[tuple[str, list[str]]]:
    seen: list[str] = []
    handler = type("Handler", (kind,), {"seen": seen, **more})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as made:
        running = threading.Thread(target=made.serve_forever)
        running.start()
        try:
            yield f"http://127.0.0.1:{made.server_port}", seen
        finally:
            made.shutdown()
            running.join()


def test_another_server_gets_what_the_library_alone_would_send() -> None:
    """And nothing else."""
    with other_server() as (url, seen):
        for client in (load_library().Client(), http_client()):
            with client:
                for _ in range(2):
                    client.post(f"{url}/v1/messages", json={"stream": True})
        assert len(seen) == 4 and len(set(seen)) == 1
        assert not [thread for thread in threading.enumerate() if thread.name == "sublimate-client"]


class Endless(Other):
    """Says of itself without an end: in pieces of so many bytes, at once or one by one."""

    piece: bytes
    told: threading.Event

    def do_GET(self) -> None:
        self.seen.append(self.path)
        self.send_response(200)
        self.send_header("x-layer", "test")
        self.end_headers()
        with contextlib.suppress(OSError):
            while not self.told.wait(0.0 if len(self.piece) > 1 else 0.02):
                self.wfile.write(self.piece)


@pytest.mark.parametrize("piece", [b" ", b" " * 8192], ids=["slow", "large"])
def test_a_server_that_never_ends_to_say_what_it_is(
    piece: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request waits for that no longer than it has to."""
    monkeypatch.setattr(core, "DISCOVERY_SECONDS", 0.3 if len(piece) == 1 else 60.0)
    told = threading.Event()
    with other_server(Endless, piece=piece, told=told) as (url, seen):
        with http_client(carriers=("h3",), timeout=10.0) as client:
            assert client.post(f"{url}/v1/messages", json={}).status_code == 200
            told.set()
    assert seen[0] == "/.well-known/sublimate" and seen[1].startswith("/v1/messages")


def test_a_body_that_is_a_stream_goes_through(server: Served) -> None:
    def pieces() -> Iterator[bytes]:
        yield b'{"model":"tiny","max_tokens":64,'
        yield b'"messages":[{"role":"user","content":"say hello"}]}'

    with http_client() as client:
        for _ in range(2):
            answer = client.post(
                f"{server.url}/v1/messages",
                content=pieces(),
                headers={"content-type": "application/json"},
            )
            assert answer.json()["content"][0]["text"] == "Hello there!"


def test_a_fork_has_connections_of_its_own(server: Served) -> None:
    with http_client() as client:
        assert client.get(f"{server.url}/v1/models").status_code == 200
        child = os.fork()
        if child == 0:
            code = 1
            try:
                code = client.get(f"{server.url}/v1/models").status_code != 200
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert client.get(f"{server.url}/v1/models").status_code == 200


def test_a_child_does_not_end_its_parents_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """A channel of gRPC that is collected in a child hangs there."""
    core = Core(load_library(), (), True, {})
    network = weakref.ref(core.network)
    monkeypatch.setattr(core, "process", -1)
    assert core.after_fork() and not core.after_fork()
    gc.collect()
    assert network() is not None and network() is not core.network


def test_a_client_that_is_forgotten_leaves_nothing(server: Served) -> None:
    client = http_client(carriers=("h3", "http/1.1"))
    assert client.get(f"{server.url}/v1/models").status_code == 200
    named = [thread for thread in threading.enumerate() if thread.name == "sublimate-client"]
    assert len(named) == 1, "it has asked what the server is"
    client.close()
    del client
    gc.collect()
    assert not named[0].is_alive()


def test_debug_prints_decisions(
    server: Served, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUBLIMATE_DEBUG", "1")
    with http_client() as client:
        client.get(f"{server.url}/v1/models")
    assert f"GET {server.url}/v1/models: http/1.1 first" in capsys.readouterr().err

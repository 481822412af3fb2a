"""A whole server in this process: scripted loop on one thread, edge with uvloop on another, real
sockets between it and the test.

defines: Served, serve, post, Reply, exchange_bytes, is_closed,
is_cut, wait_until
"""

import asyncio
import contextlib
import functools
import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx
import msgspec
import uvloop

from sublimate import _core
from sublimate.api.routes import ROUTES
from sublimate.cli.certificate import own_certificate
from sublimate.client import http_client
from sublimate.config import EdgeSettings
from sublimate.edge.app import EdgeServer
from sublimate.edge.limits import HttpLimits
from sublimate.edge.loading import OnDemand
from sublimate.edge.observe.answer_metrics import AnswerMetrics
from sublimate.edge.routes import Routes
from sublimate.edge.server import create_server
from sublimate.edge.textmodel import TextModel
from sublimate.supervisor.listen import bind_udp_each
from tiny_model import STOP, ids, tiny_model

WAIT_SECONDS = 10.0
CARRIER = os.environ.get("SUBLIMATE_TEST_CLIENT", "")
"""What carries the requests of the tests' clients, SDKs among them; empty: the HTTP library."""
CONTEXT_TOKENS = 8192
PAGES = 4096

Value = TypeVar("Value")

# A request whose text holds the key is answered with the value; see `script`.
ANSWERS: dict[str, str | bytes] = {
    "say hello": "Hello there!",
    "say stop": "A B STOP C",
    "say utf8": '😸 你好 é\\ "q"\n\ttab',
    "say nothing": "",
    "say broken": b"ab\xf0\x9f\x98",
    "count": "".join(f"{number} " for number in range(1000)),
}


def script(answers: dict[str, str | bytes]) -> list[tuple[list[int], list[int]]]:
    return [(ids(asked), ids(said)) for asked, said in answers.items()]


@dataclass
class Served:
    """A running server."""

    url: str
    port: int
    server: EdgeServer
    loop: asyncio.AbstractEventLoop
    engine: _core.LoopEngine
    region: _core.Region
    info: dict[str, Any]
    client: httpx.Client = field(repr=False)

    def call(self, function: Callable[[], Value]) -> Value:
        """Run on the edge's loop; its result."""

        async def run() -> Value:
            return function()

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(WAIT_SECONDS)

    @property
    def metrics(self) -> AnswerMetrics:
        """Of the answers of its model."""
        return self.server.models.main.metrics

    def stats(self) -> dict[str, int]:
        return self.engine.stats()

    def idle(self) -> bool:
        """Nothing runs, nothing waits, nothing is owned."""
        stats = self.region.stats()
        return stats["running"] == stats["waiting"] == 0 and not self.call(
            lambda: self.server.engine.in_flight if self.server.engine else 0
        )

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=WAIT_SECONDS)

    def message(self, content: Any = "say hello", **fields: Any) -> httpx.Response:
        return self.client.post("/v1/messages", json=body(content, **fields))


def body(content: Any = "say hello", **fields: Any) -> dict[str, Any]:
    """A messages request."""
    chosen = {
        "model": "tiny",
        "max_tokens": 64,
        "messages": [{"role": "user", "content": content}],
        **fields,
    }
    return {name: value for name, value in chosen.items() if value is not ...}


def client_of(url: str) -> httpx.Client:
    """Of the library, or ours over one carrier."""
    if not CARRIER:
        return httpx.Client(base_url=url, timeout=WAIT_SECONDS)
    made = http_client(carriers=(CARRIER,), library="httpx", base_url=url, timeout=WAIT_SECONDS)
    made.follow_redirects = False
    return made


@contextlib.contextmanager
def serve(
    *,
    settings: EdgeSettings | None = None,
    answers: dict[str, str | bytes] | None = None,
    extra_script: Sequence[tuple[list[int], list[int]]] = (),
    limits: HttpLimits | None = None,
    model: TextModel | None = None,
    context_tokens: int = CONTEXT_TOKENS,
    pages: int = PAGES,
    step_delay_us: int = 0,
    prefill_delay_us_per_token: int = 0,
    info: dict[str, Any] | None = None,
    tls: bool = False,
    grpc: bool = False,
    http3: bool = False,
    constrains: bool = True,
    routes: Routes = ROUTES,
    on_demand: OnDemand | None = None,
    adapters: tuple[str, ...] = (),
) -> Iterator[Served]:
    """A server for a with block. constrains: answers are held to their schemas, or to nothing."""
    settings, grpc, http3 = _carried(settings, grpc, http3)
    model = model or tiny_model()
    if not constrains:
        model.grammars.constraint, model.grammars.is_ready = lambda _: None, lambda _: True
    engine = _core.LoopEngine.with_script(
        [*extra_script, *script(ANSWERS if answers is None else answers)],
        vocabulary=len(model.tokenizer),
        context_length=context_tokens,
        kv_pages=pages,
        stop_token=STOP,
        step_delay_us=step_delay_us,
        prefill_delay_us_per_token=prefill_delay_us_per_token,
        adapters=len(adapters),
    )
    region = _core.Region.create(len(model.tokenizer))
    engine.attach(region)
    engine_info = {"context_length": context_tokens, "kv_pages": pages, **(info or {})}
    sock = socket.create_server(("127.0.0.1", 0))
    port = sock.getsockname()[1]
    tls_sock = socket.create_server(("127.0.0.1", 0)) if tls or http3 else None
    starting = create_server(
        settings,
        model,
        routes,
        sock,
        tls_sock=tls_sock,
        grpc_address="127.0.0.1:0" if grpc else "",
        udp_sock=bind_udp_each([tls_sock])[0] if tls_sock and http3 else None,
        http_limits=limits,
        region=_core.Region.attach(*region.fds),
        engine_info=engine_info,
        on_demand=on_demand,
        adapters=adapters,
    )
    url = f"http://127.0.0.1:{port}"
    # The loop ends before its client: closing connections would meet a loop that closes.
    with sock, _running(engine), client_of(url) as client, _event_loop() as loop:
        server = asyncio.run_coroutine_threadsafe(starting, loop).result(WAIT_SECONDS)
        served = Served(url, port, server, loop, engine, region, engine_info, client)
        try:
            yield served
        finally:
            served.call(server.close)
            closing = server.wait_closed()
            asyncio.run_coroutine_threadsafe(closing, loop).result(WAIT_SECONDS)
            served.call(lambda: _abort(server))


def _abort(server: EdgeServer) -> None:
    """End what a client still holds, as the end of a process does: the loop could not close."""
    for connection in [*server._connections, *server._refused]:
        if hasattr(connection.transport, "abort"):  # QUIC's has ended
            connection.transport.abort()


@contextlib.contextmanager
def _thread(target: Callable[[], None], name: str, stop: Callable[[], object]) -> Iterator[None]:
    """Stopped whatever fails meanwhile. A daemon: if it does not end, the process still can."""
    thread = threading.Thread(target=target, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop()
        thread.join(WAIT_SECONDS)
        assert not thread.is_alive(), f"the thread {name} did not end"


@contextlib.contextmanager
def _running(engine: _core.LoopEngine) -> Iterator[None]:
    with _thread(engine.run, "loop", engine.stop):
        yield


@contextlib.contextmanager
def _event_loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = uvloop.new_event_loop()
    stop = functools.partial(loop.call_soon_threadsafe, loop.stop)
    with _thread(lambda: _run_loop(loop), "edge", stop):
        yield loop


def _carried(
    settings: EdgeSettings | None, grpc: bool, http3: bool
) -> tuple[EdgeSettings, bool, bool]:
    """What a server needs besides for the tests' carrier."""
    folder = Path(tempfile.mkdtemp(prefix="sublimate-test-"))
    settings = settings or EdgeSettings(data_dir=str(folder))
    if CARRIER in ("h3", "grpc-h3") and not settings.tls_certificate:
        made = own_certificate(folder)
        settings = msgspec.structs.replace(
            settings, tls_certificate=str(made[0]), tls_key=str(made[1])
        )
        http3 = True
    return settings, grpc or CARRIER == "grpc-h2", http3


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()


@dataclass
class Reply:
    """A parsed HTTP response of a raw socket."""

    status: int
    headers: dict[str, str]
    body: bytes
    closed: bool

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)


def exchange_bytes(sock: socket.socket, data: bytes) -> Reply:
    """Send, then read one whole response."""
    if data:
        sock.sendall(data)
    return read_reply(sock)


def read_reply(sock: socket.socket, received: bytes = b"") -> Reply:
    while b"\r\n\r\n" not in received:
        more = sock.recv(1 << 16)
        if not more:
            raise ConnectionError(f"closed after {received!r}")
        received += more
    head, _, rest = received.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {}
    for line in lines:
        name, _, value = line.partition(": ")
        headers[name.lower()] = value
    status = int(first.split()[1])
    if headers.get("transfer-encoding") == "chunked":
        while not rest.endswith(b"0\r\n\r\n"):
            more = sock.recv(1 << 16)
            if not more:
                break
            rest += more
        return Reply(status, headers, unchunk(rest), False)
    length = int(headers.get("content-length", "0"))
    while len(rest) < length:
        rest += sock.recv(1 << 16)
    return Reply(status, headers, rest[:length], headers.get("connection") == "close")


def unchunk(data: bytes) -> bytes:
    result = b""
    while data:
        size, _, data = data.partition(b"\r\n")
        count = int(size, 16)
        result, data = result + data[:count], data[count + 2 :]
    return result


def is_closed(sock: socket.socket) -> bool:
    """The server has ended the connection in order (waits for it): a reset is no such end."""
    try:
        while sock.recv(1 << 16):
            pass
    except (TimeoutError, ConnectionError):
        return False
    return True


def is_cut(sock: socket.socket) -> bool:
    """The server has ended the connection, in order or by a reset (waits for it)."""
    try:
        while sock.recv(1 << 16):
            pass
    except TimeoutError:
        return False
    except ConnectionError:
        return True
    return True


def wait_until(condition: Callable[[], bool], seconds: float = WAIT_SECONDS) -> float:
    """Seconds until the condition holds. Fails the test if it does not."""
    begun = time.monotonic()
    while not condition():
        assert time.monotonic() - begun < seconds, "the condition never held"
        time.sleep(0.002)
    return time.monotonic() - begun


def http_post(payload: Any, path: str = "/v1/messages", **headers: str) -> bytes:
    """Bytes of a POST."""
    data = payload if isinstance(payload, bytes) else msgspec.json.encode(payload)
    lines = [f"POST {path} HTTP/1.1", "host: localhost", f"content-length: {len(data)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + data


def http_get(path: str, method: str = "GET", **headers: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "host: localhost"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode()

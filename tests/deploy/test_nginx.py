"""deploy/nginx/sublimate.conf in a real nginx, between clients and two servers."""

import contextlib
import itertools
import re
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from harness import Served, body, http_post, serve, wait_until
from house import ROOT
from sublimate.cli.certificate import own_certificate
from sublimate.config import EdgeSettings
from sublimate.edge.limits import MIB, HttpLimits

CONF = ROOT / "deploy" / "nginx" / "sublimate.conf"
STEP_US = 20_000
ANSWERS: dict[str, str | bytes] = {
    "count": "".join(f"{number} " for number in range(60)),
    "say hello": "Hello there!",
}
FALLBACK_ANSWERS: dict[str, str | bytes] = {"say hello": "From the second."}
KEY = {"x-api-key": "key-one"}


@dataclass
class Fronted:
    """nginx with what is behind it."""

    url: str
    port: int
    client: httpx.Client
    trust: ssl.SSLContext
    first: Served
    second: Served
    log: Path


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return sock.getsockname()[1]


def replaced(text: str, *pairs: tuple[str, str]) -> str:
    """Each of them is there just once."""
    for old, new in pairs:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[Served, Served]]:
    """The first has room for three requests; without a key it would look at the name asked for."""
    settings = EdgeSettings(queue_max=2, api_keys=("key-one",))
    other = EdgeSettings(api_keys=("key-one",))
    small = {"pages": 16, "context_tokens": 512}
    with (
        serve(settings=settings, answers=ANSWERS, step_delay_us=STEP_US, **small) as first,
        serve(
            settings=other, answers=FALLBACK_ANSWERS, info={"compute_path": "direct-kernel"}
        ) as second,
    ):
        yield first, second


@pytest.fixture(scope="module")
def fronted(
    servers: tuple[Served, Served],
    tool: Callable[[str], str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Fronted]:
    nginx = tool("nginx")
    folder = tmp_path_factory.mktemp("nginx")
    certificate, key = own_certificate(folder / "tls")
    port = free_port()
    first, second = servers
    text = replaced(
        CONF.read_text(),
        ("127.0.0.1:8000", f"127.0.0.1:{first.port}"),
        ("127.0.0.1:8001", f"127.0.0.1:{second.port}"),
        ("listen 443 ssl", f"listen 127.0.0.1:{port} ssl"),
        ("/etc/ssl/llm.example/chain.pem", str(certificate)),
        ("/etc/ssl/llm.example/key.pem", str(key)),
        ("/var/log/nginx/sublimate.log", str(folder / "access.log")),
    )
    (folder / "sublimate.conf").write_text(text)
    paths = "".join(
        f"{name}_temp_path {folder}/{name};"
        for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (folder / "nginx.conf").write_text(
        f"daemon off; master_process off; pid {folder}/pid; error_log stderr warn;"
        f"events {{ worker_connections 512; }}"
        f"http {{ {paths} access_log off; include {folder}/sublimate.conf; }}"
    )
    command = [nginx, "-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", "stderr"]
    checked = subprocess.run([*command, "-t"], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
    assert "warn" not in checked.stderr, checked.stderr
    trust = ssl.create_default_context(cafile=str(certificate))
    url = f"https://localhost:{port}"
    running = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        with httpx.Client(base_url=url, verify=trust, timeout=20, headers=KEY) as client:
            wait_until(lambda: listens(port))
            log = folder / "access.log"
            yield Fronted(url, port, client, trust, first, second, log)
    finally:
        running.terminate()
        running.wait(10)


@contextlib.contextmanager
def plain_proxy(nginx: str, folder: Path, upstream: int) -> Iterator[str]:
    """nginx with its defaults and one proxy_pass."""
    port = free_port()
    paths = "".join(
        f"{name}_temp_path {folder}/{name};"
        for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (folder / "nginx.conf").write_text(
        f"daemon off; master_process off; pid {folder}/pid; error_log stderr warn;"
        f"events {{ worker_connections 512; }}"
        f"http {{ {paths} access_log off; server {{ listen 127.0.0.1:{port};"
        f"location / {{ proxy_pass http://127.0.0.1:{upstream}; }} }} }}"
    )
    command = [nginx, "-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", "stderr"]
    running = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: listens(port))
        yield f"http://127.0.0.1:{port}"
    finally:
        running.terminate()
        running.wait(10)


@pytest.mark.parametrize(
    ("path", "accept"),
    [
        ("/v1/messages", "text/event-stream"),
        ("/v1/messages", "application/octet-stream"),
        ("/v1/chat/completions", "*/*"),
        ("/api/chat", "*/*"),
    ],
)
def test_f17_streams_pass_a_default_nginx(
    tool: Callable[[str], str], tmp_path: Path, path: str, accept: str
) -> None:
    with (
        serve(answers=ANSWERS, step_delay_us=STEP_US) as served,
        plain_proxy(tool("nginx"), tmp_path, served.port) as url,
        httpx.stream(
            "POST",
            url + path,
            json=body("count", max_tokens=30, stream=True),
            headers={"accept": accept},
            timeout=20,
        ) as reply,
    ):
        assert reply.status_code == 200
        arrivals = [time.monotonic() for _ in reply.iter_raw()]
    assert len(arrivals) >= 15, "pieces come one by one"
    assert arrivals[-1] - arrivals[0] > 15 * STEP_US / 1e6


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def test_streams_pass_event_by_event(fronted: Fronted) -> None:
    arrivals: list[float] = []
    with fronted.client.stream(
        "POST", "/v1/messages", json=body("count", max_tokens=30, stream=True)
    ) as reply:
        assert reply.status_code == 200
        for line in reply.iter_lines():
            if "content_block_delta" in line and line.startswith("event"):
                arrivals.append(time.monotonic())
    assert len(arrivals) >= 20
    gaps = [later - earlier for earlier, later in itertools.pairwise(arrivals)]
    step = STEP_US / 1e6
    assert sorted(gaps)[len(gaps) // 2] > step / 2, "they came together"
    assert max(gaps) < 20 * step
    assert arrivals[-1] - arrivals[0] > 15 * step


def test_a_client_that_leaves_ends_its_request(fronted: Fronted) -> None:
    with socket.create_connection(("127.0.0.1", fronted.port)) as raw:
        with fronted.trust.wrap_socket(raw, server_hostname="localhost") as sock:
            request = httpx.Request(
                "POST",
                fronted.url + "/v1/messages",
                json=body("count", max_tokens=60, stream=True),
                headers={**KEY, "host": "localhost"},
            )
            head = "".join(f"{name}: {value}\r\n" for name, value in request.headers.items())
            sock.sendall(f"POST /v1/messages HTTP/1.1\r\n{head}\r\n".encode() + request.content)
            assert b"200 OK" in sock.recv(1 << 14)
            wait_until(lambda: fronted.first.region.stats()["running"] == 1)
            before = fronted.first.region.stats()
    took = wait_until(lambda: fronted.first.region.stats()["running"] == 0)
    assert took < 1, "the answer would have gone on for longer"
    after = fronted.first.region.stats()
    assert after["cancelled_decode"] - before["cancelled_decode"] == 1


def test_what_the_first_server_has_no_room_for_goes_to_the_second(fronted: Fronted) -> None:
    def ask() -> httpx.Response:
        return fronted.client.post("/v1/messages", json=body("say hello", max_tokens=400))

    assert ask().json()["content"][0]["text"] == "Hello there!"
    streams = [fronted.first.connect() for _ in range(3)]
    for sock in streams:
        accepted = fronted.first.region.stats()["accepted"]
        sock.sendall(http_post(body("count", max_tokens=400, stream=True), x_api_key="key-one"))
        wait_until(lambda n=accepted: fronted.first.region.stats()["accepted"] == n + 1)
    wait_until(lambda: fronted.first.region.stats()["waiting"] == 2)
    direct = fronted.first.client.post(
        "/v1/messages", json=body("say hello", max_tokens=400), headers=KEY
    )
    assert direct.status_code == 529, "the first server itself"
    reply = ask()
    assert reply.status_code == 200 and reply.headers["x-compute-path"] == "fallback"
    assert reply.json()["content"][0]["text"] == "From the second."
    refused = fronted.client.post("/v1/messages", json=body(max_tokens=-1))
    assert refused.status_code == 400, "a client's fault is not asked twice"
    for sock in streams:
        sock.close()
    wait_until(fronted.first.idle)
    assert ask().json()["content"][0]["text"] == "Hello there!"


def test_the_log_has_the_address_of_the_client_behind_another_proxy(fronted: Fronted) -> None:
    headers = {"x-forwarded-for": "203.0.113.7"}
    reply = fronted.client.post("/v1/messages", json=body("say hello"), headers=headers)
    identity = reply.headers["request-id"]
    wait_until(lambda: identity in fronted.log.read_text())
    (line,) = [line for line in fronted.log.read_text().splitlines() if identity in line]
    assert line.startswith("203.0.113.7 ") and "upstream_status=200" in line


def test_one_address_has_limits_and_they_answer_as_the_api_does(fronted: Fronted) -> None:
    asked = {"x-forwarded-for": "203.0.113.9"}
    replies = [fronted.client.get("/v1/models", headers=asked) for _ in range(80)]
    refused = [reply for reply in replies if reply.status_code == 429]
    assert refused and replies[0].status_code == 200
    error = refused[0].json()
    assert error["error"]["type"] == "rate_limit_error" and refused[0].headers["retry-after"] == "1"
    assert fronted.client.get("/v1/models").status_code == 200, "another address is not held back"


def test_the_server_itself_answers_what_is_too_large() -> None:
    megabytes = int(re.findall(r"client_max_body_size (\d+)m;", CONF.read_text())[0])
    assert megabytes * MIB > HttpLimits().body_bytes_max


def test_what_is_for_operators_is_not_for_clients(fronted: Fronted) -> None:
    reply = fronted.client.get("/v1/debug/requests", headers={"x-forwarded-for": "203.0.113.8"})
    assert reply.status_code == 403, "not for who is elsewhere"


def test_a_first_server_that_is_gone_is_no_error(fronted: Fronted) -> None:
    """Last of them: it takes the first server away."""
    fronted.first.call(fronted.first.server.close)
    wait_until(lambda: not listens(fronted.first.port))
    reply = fronted.client.post("/v1/messages", json=body("say hello"))
    assert reply.json()["content"][0]["text"] == "From the second."

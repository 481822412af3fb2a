"""A server whose connections the kernel remembers: what it says of a prompt that was there."""

import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from harness import Served, body, http_post, serve, wait_until
from http3_client import Client
from sublimate.cli.certificate import own_certificate
from sublimate.config import EdgeSettings
from sublimate.kernel.connections import Connections

PAGES = 96
PROMPT = "The same long story that was told before. " * 12


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return own_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def served(pair: tuple[Path, Path], tmp_path: Path) -> Iterator[Served]:
    memory = Connections.load(b"s" * 32, 256)
    if not memory.loaded:
        pytest.skip(f"the memory of connections is not loaded here: {memory.reason}")
    settings = EdgeSettings(
        data_dir=str(tmp_path), tls_certificate=str(pair[0]), tls_key=str(pair[1])
    )
    with serve(settings=settings, http3=True, pages=PAGES, context_tokens=2048) as running:
        running.server.kernel = memory
        yield running
        wait_until(running.idle)
    memory.close()


def asked(client: httpx.Client, content: str) -> str:
    """The request's id."""
    answer = client.post("/v1/messages", json=body(content, max_tokens=4))
    assert answer.status_code == 200, answer.text
    return answer.headers["request-id"]


def told(served: Served, request_id: str) -> tuple[int, int, str]:
    """Tokens expected and found, and what is said of it."""
    story = served.client.get(f"/v1/debug/requests/{request_id}").json()
    answer = story["answer"]
    lines = " ".join(line["text"] for line in story["lines"])
    return answer["expected_tokens"], answer["cached_tokens"], lines


def test_a_story_says_when_what_was_computed_has_gone(served: Served) -> None:
    with (
        httpx.Client(base_url=served.url, timeout=10) as one,
        httpx.Client(base_url=served.url, timeout=10) as another,
    ):
        first = told(served, asked(one, PROMPT))
        again = told(served, asked(one, PROMPT))
        assert first[0] == 0 and again[0] == again[1] > 0
        for number in range(8):  # until the engine has no page of it any more
            asked(another, f"{number} is quite another story. " * 16)
        gone = told(served, asked(one, PROMPT))
        assert gone[0] == again[0] and gone[1] == 0
        assert "computed before" in gone[2] and "computed before" not in again[2]
        counters = served.server.kernel.counters()
        assert counters["expected_tokens"] == 2 * again[0]
        assert counters["found_tokens"] == again[0]
    wait_until(lambda: served.server.kernel.counters()["removes"] == 2)
    assert served.server.kernel._digests.read() == (b"", b"")


def test_a_connection_of_quic_is_known_by_its_id(served: Served, pair: tuple[Path, Path]) -> None:
    memory = served.server.kernel
    client = Client(served.server.ports["h3"], pair[0])
    expected = []
    for _ in range(2):
        answer = client.ask("POST", "/v1/messages", body(PROMPT, max_tokens=4))
        expected.append(told(served, answer.headers["request-id"])[0])
    assert expected[0] == 0 and expected[1] > 0
    keys, _ = memory._uses.read()
    assert keys[:4] == (17).to_bytes(4, "little") and len(keys) == 40
    if memory.sees_quic:
        assert memory.touches()["ingress"] > 0
    client.close()
    wait_until(lambda: memory.counters()["removes"] == 1, 20)


def test_a_client_that_leaves_is_forgotten() -> None:
    memory = Connections.load(b"s" * 32, 256)
    if not memory.loaded:
        pytest.skip(f"the memory of connections is not loaded here: {memory.reason}")
    with serve(step_delay_us=3000) as running:
        running.server.kernel = memory
        with running.connect() as sock:
            sock.sendall(http_post(body("count", stream=True, max_tokens=500)))
            told = b""
            while b"content_block_delta" not in told:
                told += sock.recv(1 << 16)
            # Not by a word that comes before the end, but by a reset.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        wait_until(running.idle)
        counters = memory.counters()
        assert counters["lookups"] == 1 and counters["inserts"] == counters["removes"]
        assert memory._digests.read() == (b"", b"")
    memory.close()


def test_a_connection_that_asks_for_no_answer_is_not_remembered(served: Served) -> None:
    assert served.client.get("/v1/models").status_code == 200
    assert served.client.post("/v1/messages", json={"model": "tiny"}).status_code == 400
    counters = served.server.kernel.counters()
    assert counters["lookups"] == counters["inserts"] == 0

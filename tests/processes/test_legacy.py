"""The old layer as `serve --legacy-layer` starts it: its flow, its ends, and that it is no one's
unless asked for."""

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from servers import Server, alive, wait_until

from sublimate import _core
from sublimate.config import Settings, cache_folder
from sublimate.model.files import fetch

ANSWER_TOKENS, LONG_ANSWER_TOKENS = 12, 4000
STEP_MICROSECONDS = 2000
NEGOTIATE = "/v1/layer/negotiate"
LEGACY = "sublimate.legacy"

needs_redis = pytest.mark.skipif(
    shutil.which("redis-server") is None, reason="redis-server is not installed"
)


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Serves scripted answers."""
    model = fetch("default", cache_folder(Settings()))
    vocabulary = len(_core.Gguf(str(model.path)).metadata["tokenizer.ggml.tokens"])
    script = tmp_path_factory.mktemp("legacy") / "script.json"
    words = [1000 + index % 500 for index in range(LONG_ANSWER_TOKENS)]
    body = {
        "answers": [[[], words]],
        "vocabulary": vocabulary,
        "step_delay_us": STEP_MICROSECONDS,
    }
    script.write_bytes(msgspec.json.encode(body))
    command = ["-m", "sublimate", "serve", "--port", "0", "--json", "--log-level", "error"]
    return [*command, "--script", str(script), "--legacy-layer", "--legacy-port", "0"]


@pytest.fixture(scope="module")
def server(command: list[str]) -> Iterator[Server]:
    with Server(command) as running:
        running.ready()
        yield running


@pytest.fixture
def client(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=10) as made:
        yield made


def body(tokens: int = ANSWER_TOKENS, **more: Any) -> dict[str, Any]:
    asked = [{"role": "user", "content": "hi"}]
    return {"model": "default", "max_tokens": tokens, "messages": asked, **more}


def lease(client: httpx.Client) -> str:
    """An address to ask at."""
    reply = client.post(NEGOTIATE, json={"model": "default"})
    assert reply.status_code == 302, reply.text
    return reply.headers["location"]


def without_ids(text: str) -> str:
    text = re.sub(r'"cache_\w+_input_tokens":\d+,?|"input_tokens":\d+,?', "", text)
    return re.sub(r"(msg|req)_\w+", r"\1", text)


def in_one_piece(text: str) -> tuple[str, str]:
    """(a stream without its pieces of text, all of them): how many tokens a piece has is a matter
    of time."""
    pieces = re.findall(r'"text_delta","text":"((?:[^"\\]|\\.)*)"', text)
    return re.sub(r"event: content_block_delta\n.*\n\n", "", without_ids(text)), "".join(pieces)


@needs_redis
def test_it_sends_a_client_away_and_answers_there(client: httpx.Client, server: Server) -> None:
    reply = client.post(NEGOTIATE, json={"model": "default"})
    assert reply.status_code == 302 and reply.json()["address"] == reply.headers["location"]
    location = httpx.URL(reply.headers["location"])
    assert location.port != httpx.URL(server.url).port and location.path == "/v1/messages"
    answer = client.post(location, json=body(stream=True))
    direct = client.post("/v1/messages", json=body(stream=True))
    assert answer.status_code == direct.status_code == 200
    assert answer.headers["content-type"] == direct.headers["content-type"]
    assert in_one_piece(answer.text)[1], "text was streamed"
    assert in_one_piece(answer.text) == in_one_piece(direct.text), "the same answer, two ways"
    for told in (reply, answer):
        assert told.headers["sunset"].endswith("GMT") and told.headers["deprecation"][0] == "@"
        link, _, relation = told.headers["link"].partition(">; ")
        assert relation == 'rel="deprecation"'
        page = client.get(httpx.URL(server.url).join(link.removeprefix("<")))
        assert page.status_code == 200 and "POST the same body to /v1/messages" in page.text
    assert "sunset" not in direct.headers, "what stays is not going away"


@needs_redis
def test_whole_answers_and_errors_pass_as_they_are(client: httpx.Client) -> None:
    whole = client.post(lease(client), json=body())
    assert whole.status_code == 200 and whole.json()["usage"]["output_tokens"] == ANSWER_TOKENS
    refused = client.post(lease(client), json=body(top_k="many"))
    assert refused.status_code == 400 and "top_k" in refused.json()["error"]["message"]
    assert refused.json()["request_id"] == refused.headers["request-id"]


@needs_redis
def test_a_lease_holds_once_and_only_here(client: httpx.Client) -> None:
    address = lease(client)
    assert client.post(address, json=body()).status_code == 200
    bare = address.partition("?")[0]
    for wrong in (address, bare + "?lease=guessed", bare):
        reply = client.post(wrong, json=body())
        assert reply.status_code == 404 and NEGOTIATE in reply.json()["error"]["message"], wrong
    assert client.get(address).status_code == 405
    assert client.post(bare.replace("/messages", "/nothing"), json=body()).status_code == 404


@needs_redis
def test_the_gateway_reads_its_body_like_any_other(client: httpx.Client) -> None:
    unknown = client.post(NEGOTIATE, json={"model": "gpt-none"})
    assert unknown.status_code == 404 and "gpt-none" in unknown.json()["error"]["message"]
    missing = client.post(NEGOTIATE, json={"max_tokens": 1})
    assert missing.status_code == 400 and missing.json()["error"]["message"].startswith("model: ")
    assert client.post(NEGOTIATE, content=b"{").status_code == 400
    assert client.get(NEGOTIATE).status_code == 405


@needs_redis
def test_a_client_that_leaves_cancels_through_all_hops(client: httpx.Client) -> None:
    def count(name: str) -> float:
        found = re.search(rf"sublimate_{name}\{{.*\}} (\S+)", client.get("/metrics").text)
        return float(found.group(1)) if found else 0.0

    before = count("cancelled_in_decode_total")
    long = body(LONG_ANSWER_TOKENS, stream=True)
    with client.stream("POST", lease(client), json=long) as reply:
        next(reply.iter_bytes())
    wait_until(lambda: count("cancelled_in_decode_total") > before)
    wait_until(lambda: count("num_requests_running") == 0)


@needs_redis
def test_many_at_once_are_not_mixed(client: httpx.Client) -> None:
    async def ask(shared: httpx.AsyncClient, tokens: int) -> int:
        reply = await shared.post(NEGOTIATE, json={"model": "default"})
        answer = await shared.post(reply.headers["location"], json=body(tokens))
        return answer.json()["usage"]["output_tokens"]

    async def all_of_them(counts: list[int]) -> list[int]:
        async with httpx.AsyncClient(base_url=client.base_url, timeout=20) as shared:
            return list(await asyncio.gather(*(ask(shared, count) for count in counts)))

    counts = list(range(1, 17))
    assert asyncio.run(all_of_them(counts)) == counts


@needs_redis
def test_without_its_broker_it_says_so_and_the_server_goes_on(command: list[str]) -> None:
    with Server(command) as running, httpx.Client(timeout=10) as client:
        running.ready()
        client.base_url = running.url
        address = lease(client)
        broker = [pid for pid in child_pids(running) if name_of(pid) == "redis-server"]
        os.kill(broker[0], signal.SIGKILL)
        wait_until(lambda: not alive(broker[0]))
        # The model address learns it by the end of its connection, a moment later.
        wait_until(lambda: client.post(address, json=body()).status_code == 503)
        reply = client.post(NEGOTIATE, json={"model": "default"})
        assert reply.status_code == 503 and "broker" in reply.json()["error"]["message"]
        wait_until(lambda: "scheduler of the old layer has ended" in "".join(running.errors))
        assert client.post("/v1/messages", json=body()).status_code == 200


@needs_redis
def test_its_processes_end_with_the_server(command: list[str]) -> None:
    with Server(command) as running:
        running.ready()
        assert LEGACY in running.children()
        everything = child_pids(running)
        assert len(everything) == 5, "broker, scheduler, model address, engine, edge"
        running.signal(signal.SIGKILL)
        wait_until(lambda: not any(alive(pid) for pid in everything))


def child_pids(server: Server) -> list[int]:
    return [
        int(path.parent.name)
        for path in Path("/proc").glob("[0-9]*/stat")
        if (fields := stat_fields(path)) and int(fields[1]) == server.process.pid
    ]


def stat_fields(path: Path) -> list[str]:
    try:
        return path.read_text().rpartition(")")[2].split()
    except OSError:
        return []


def name_of(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


def test_without_redis_it_is_refused_with_what_to_do(command: list[str], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, *command],
        env={**os.environ, "PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 2 and "apt-get install redis-server" in done.stderr


def test_without_the_flag_nothing_of_it_is_there(command: list[str]) -> None:
    with Server(command[: command.index("--legacy-layer")]) as running:
        running.ready()
        begun = time.monotonic()
        reply = httpx.post(running.url + NEGOTIATE, json={"model": "default"})
        assert reply.status_code == 404 and time.monotonic() - begun < 5
        assert LEGACY not in running.children()
    code = (
        "import sys, sublimate.cli.serve; sys.exit(any('legacy' in name for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0

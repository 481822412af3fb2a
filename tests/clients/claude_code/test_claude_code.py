"""Claude Code itself against a server: run by `make test-clients`, where loopback is all the
network there is. Nothing of the client's own prompts is kept.
"""

import contextlib
import json
import logging
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from servers import Server

from harness import body, serve, wait_until
from sublimate.cli.launch import environment
from sublimate.cli.peer import Peer
from tiny_model import ids

pytestmark = [pytest.mark.clients, pytest.mark.timeout(3000)]

HERE = Path(__file__).parent
PINNED = HERE / "node_modules/.bin/claude"
NEWEST = HERE.parent / "agents/node_modules/.bin/claude"
CONTEXT_TOKENS = 131_072
SHORT_CONTEXT_TOKENS = 90_000
"""Enough for the prompt in the tokens of the test's vocabulary."""
PAGES = 24_576
SECRET = "zebra-4711"
CLIENT_SECONDS = 1200
ATTEMPTS = 4


class Requests(logging.Handler):
    """The access log: path and status of each request."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.seen: list[tuple[str, int]] = []

    def emit(self, record: logging.LogRecord) -> None:
        fields: dict[str, Any] = record.__dict__.get("fields", {})
        self.seen.append((record.getMessage(), fields.get("status", 0)))

    def count(self, path: str) -> int:
        return sum(message == f"POST {path}" for message, _ in self.seen)


@pytest.fixture
def requests() -> Iterator[Requests]:
    handler, logger = Requests(), logging.getLogger("sublimate.request")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(level)


def prepared(
    program: Path, url: str, folder: Path, *words: str
) -> tuple[list[str], dict[str, str]]:
    """Command and environment of the client in print mode."""
    home = folder / "home"
    home.mkdir(exist_ok=True)
    variables = {
        **environment(Peer(url), Peer(url).model()),
        "HOME": str(home),
        "PATH": os.environ["PATH"],
    }
    return [str(program), *words, "--output-format", "json"], variables


def claude(program: Path, url: str, folder: Path, *words: str) -> dict[str, Any]:
    """The result that print mode reports."""
    command, variables = prepared(program, url, folder, *words)
    done = subprocess.run(
        command,
        env=variables,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=CLIENT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-1000:]
    assert b"AUTO_COMPACT_WINDOW" not in done.stderr, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(params=[PINNED, NEWEST], ids=["pinned", "F63-newest"])
def program(request: pytest.FixtureRequest) -> Path:
    return request.param


def test_a_file_is_read_and_what_it_says_is_answered(
    program: Path, tmp_path: Path, requests: Requests
) -> None:
    path = tmp_path / "notes.txt"
    path.write_text(f"{SECRET}\n")
    arguments = json.dumps({"file_path": str(path)}, separators=(", ", ": "))
    call = f'<tool_call>\n{{"name": "Read", "arguments": {arguments}}}\n</tool_call>'
    answers = [
        (ids(SECRET), ids("The file says so.")),
        (ids("read notes.txt aloud"), ids(f"I read it.\n{call}")),
    ]
    with serve(
        answers={}, extra_script=answers, context_tokens=CONTEXT_TOKENS, pages=PAGES
    ) as served:
        result = claude(program, served.url, tmp_path, "-p", "read notes.txt aloud")
        assert result["result"] == "The file says so." and not result["is_error"]
        assert result["num_turns"] == 2
        assert requests.count("/v1/messages") == 2, requests.seen
        assert all(status == 200 for _, status in requests.seen), requests.seen
        usage = result["usage"]
        # Of both turns together: the second reads the first, so half of all came from the cache.
        assert usage["cache_read_input_tokens"] >= 0.95 * usage["input_tokens"]


def test_f63_a_short_context_needs_no_warning(
    program: Path, tmp_path: Path, requests: Requests
) -> None:
    with serve(
        answers={"say hello": "Hello there!"}, context_tokens=SHORT_CONTEXT_TOKENS, pages=PAGES
    ) as served:
        assert claude(program, served.url, tmp_path, "-p", "say hello")["result"] == "Hello there!"
        assert requests.count("/v1/messages") == 1, requests.seen


def test_the_next_prompt_reads_the_one_before_from_the_cache(
    program: Path, tmp_path: Path, requests: Requests
) -> None:
    with serve(
        answers={"say hello": "Hello there!"}, context_tokens=CONTEXT_TOKENS, pages=PAGES
    ) as served:
        first = claude(program, served.url, tmp_path, "-p", "say hello")["usage"]
        second = claude(program, served.url, tmp_path, "-p", "--continue", "say hello again")[
            "usage"
        ]
        before = first["input_tokens"] + first["cache_read_input_tokens"]
        assert second["cache_read_input_tokens"] >= 0.95 * before, (first, second)
        assert requests.count("/v1/messages") == 2, requests.seen


def test_counting_returns_while_a_stream_runs(
    program: Path, tmp_path: Path, requests: Requests
) -> None:
    with serve(context_tokens=CONTEXT_TOKENS, pages=PAGES, step_delay_us=100_000) as served:
        ended: list[float] = []

        def stream() -> None:
            request = body("count", max_tokens=400, stream=True)
            with served.client.stream("POST", "/v1/messages", json=request) as reply:
                assert sum(len(piece) for piece in reply.iter_bytes()) > 0
            ended.append(time.monotonic())

        running = threading.Thread(target=stream)
        running.start()
        wait_until(lambda: served.region.stats()["running"] == 1)
        result = claude(program, served.url, tmp_path, "-p", "/context")
        assert not ended, "the stream still runs"
        assert not result["is_error"] and requests.count("/v1/messages/count_tokens") > 0
        assert all(status == 200 for _, status in requests.seen), requests.seen
        running.join()


def asked(running: Server) -> list[dict[str, Any]]:
    """The log's lines of requests that generate, so far."""
    lines = [json.loads(line) for line in list(running.errors) if line.startswith("{")]
    return [line for line in lines if line.get("message") == "POST /v1/messages"]


def turn(running: Server, folder: Path, *words: str, seconds: float) -> dict[str, Any]:
    """The first request of a turn, by the log. A model of this size may go on up to its budget,
    behind which the client asks for more: the client is ended there, and after `seconds`."""
    before = len(asked(running))
    command, variables = prepared(PINNED, running.url, folder, *words)
    with subprocess.Popen(command, env=variables, cwd=folder, stdin=subprocess.DEVNULL) as client:
        end = time.monotonic() + seconds
        while len(asked(running)) == before and time.monotonic() < end and client.poll() is None:
            time.sleep(1)
        if client.poll() is None and (lines := asked(running)[before:]):
            with contextlib.suppress(subprocess.TimeoutExpired):
                client.wait(20 if lines[0]["end"] == "end_turn" else 0)
        is_whole = client.poll() == 0
        client.kill()
    wait_until(lambda: len(asked(running)) > before, 60)
    return {**asked(running)[before], "requests": len(asked(running)) - before, "whole": is_whole}


def test_two_turns_with_the_default_model(tmp_path: Path) -> None:
    """The real prompt of some 20,000 tokens, on the real model: no retry, and no second prefill."""
    command = ["-m", "sublimate", "serve", "--port", "0", "--json", "--log-format", "json"]
    more = ["--context-length", "32768", "--rope-scaling", "yarn"]
    with Server([*command, *more]) as running:
        running.url = running.event("ready", 120)["url"]
        for attempt in range(ATTEMPTS):
            begin = time.monotonic()
            first = turn(running, tmp_path, "-p", "Say hello.", seconds=CLIENT_SECONDS)
            print(f"first turn, {attempt}: {time.monotonic() - begin:.1f} s, {first}")
            assert first["status"] == 200 and first["prompt_tokens"] > 10_000
            if first["end"] == "end_turn":
                break
        assert first["end"] == "end_turn" and first["whole"] and first["requests"] == 1
        begin = time.monotonic()
        second = turn(running, tmp_path, "-p", "--continue", "Say goodbye.", seconds=120)
        print(f"second turn: {time.monotonic() - begin:.1f} s, {second}")
        assert second["requests"] == 1
        assert second["cached_tokens"] >= 0.95 * second["prompt_tokens"]
        assert second["prompt_tokens"] > first["prompt_tokens"]

"""`sublimate serve` as a person starts it: start-up, kills under load, drain, restart."""

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from servers import Server, alive, wait_until

from ring_reference import HEARTBEAT, layout
from sublimate import _core
from sublimate.config import Settings, cache_folder
from sublimate.edge.coding import FRAMES_TYPE
from sublimate.model.files import ModelFile, fetch
from sublimate.model.tokenizer import tokenizer_from_metadata
from sublimate.wire.frames import FrameDecoder, encode_sse

ENGINE, EDGE = "sublimate.engine", "sublimate.edge"
CLIENTS = 24
ANSWER_TOKENS = 200
STEP_MICROSECONDS = 5000
LONG_ANSWER_TOKENS = 6000
EDGE_LOST = HEARTBEAT + 8
"""Byte offset of the word in which the loop says that it gave an edge up."""


@pytest.fixture(scope="session")
def model() -> ModelFile:
    return fetch("default", cache_folder(Settings()))


@pytest.fixture
def script(tmp_path: Path, model: ModelFile) -> Path:
    """Answers every prompt with the same long text, some 1 s of it."""
    vocabulary = len(_core.Gguf(str(model.path)).metadata["tokenizer.ggml.tokens"])
    path = tmp_path / "script.json"
    body = {
        "answers": [[[], [1000 + index % 500 for index in range(ANSWER_TOKENS)]]],
        "vocabulary": vocabulary,
        "step_delay_us": STEP_MICROSECONDS,
    }
    path.write_bytes(msgspec.json.encode(body))
    return path


def serving(*more: str) -> Server:
    command = ["-m", "sublimate", "serve", "--port", "0", "--json", "--log-level", "error"]
    return Server([*command, *more])


@pytest.fixture
def server(script: Path) -> Iterator[Server]:
    with serving("--script", str(script), "--drain-seconds", "20") as running:
        running.ready()
        yield running


class Stream:
    """One streamed request and how it ended. Framed: it asks for binary frames, without chunks
    around them, and `body` has the same events as text."""

    def __init__(self, framed: bool = False) -> None:
        self._framed = framed
        self._head = b""
        self._frames = FrameDecoder()
        self.status = 0
        self.body = b""
        self.ended_at = 0.0
        self.first_text = asyncio.Event()

    @property
    def whole(self) -> bool:
        return b"event: message_stop" in self.body

    @property
    def failed(self) -> bool:
        """Told of an error, by a status or by an event, or cut."""
        return self.status != 200 or b"event: error" in self.body or not self.whole

    async def run(self, url: str, max_tokens: int) -> None:
        host, _, port = url.removeprefix("http://").partition(":")
        body = msgspec.json.encode(
            {
                "model": "default",
                "max_tokens": max_tokens,
                "temperature": 0,
                "stream": True,
                "messages": [{"role": "user", "content": f"Hello {id(self)}"}],
            }
        )
        head = (
            f"POST /v1/messages HTTP/{'1.0' if self._framed else '1.1'}\r\n"
            f"accept: {FRAMES_TYPE if self._framed else '*/*'}\r\n"
            f"host: {host}\r\ncontent-type: application/json\r\n"
            f"x-api-key: k\r\nanthropic-version: 2023-06-01\r\ncontent-length: {len(body)}\r\n"
            "connection: close\r\n\r\n"
        )
        writer: asyncio.StreamWriter | None = None
        try:
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(head.encode() + body)
            while data := await reader.read(1 << 16):
                if not self.status:
                    self.status = int(data.split(b" ")[1])
                self.body += self._told(data) if self._framed else data
                if b"text_delta" in self.body:
                    self.first_text.set()
        except OSError:
            pass  # a closed connection is one of the ways to be told
        finally:
            self.ended_at = time.monotonic()
            if writer is not None:
                writer.transport.abort()

    def _told(self, data: bytes) -> bytes:
        if not self._head.endswith(b"\r\n\r\n"):
            head, found, data = (self._head + data).partition(b"\r\n\r\n")
            self._head = head + found
        is_stream = FRAMES_TYPE.encode() in self._head and self.status == 200
        return b"".join(map(encode_sse, self._frames.feed(data))) if is_stream else data


async def load_and(url: str, action: Any, max_tokens: int = ANSWER_TOKENS) -> list[Stream]:
    """Streams of many clients; the action is called when all have text."""
    streams = [Stream(framed=number % 2 == 1) for number in range(CLIENTS)]
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        tasks = [group.create_task(stream.run(url, max_tokens)) for stream in streams]
        for stream in streams:
            await stream.first_text.wait()
        action()
    assert len(tasks) == CLIENTS
    return streams


def answers_again(server: Server) -> Stream:
    """A whole answer, within the time that clients would retry."""
    stream = Stream()

    def whole() -> bool:
        nonlocal stream
        stream = Stream()
        asyncio.run(stream.run(server.url, 5))
        return stream.whole

    wait_until(whole, 10)
    return stream


def test_a_killed_engine_under_load_fails_its_clients_and_comes_back(server: Server) -> None:
    engine = server.children()[ENGINE]
    killed_at = 0.0

    def kill() -> None:
        nonlocal killed_at
        killed_at = time.monotonic()
        os.kill(engine, signal.SIGKILL)

    streams = asyncio.run(load_and(server.url, kill))
    assert all(stream.failed for stream in streams)
    assert max(stream.ended_at for stream in streams) - killed_at < 2.0
    # The edge lives, so its clients are told and not just cut.
    assert all(b"event: error" in stream.body for stream in streams)
    answers_again(server)
    assert server.children()[ENGINE] != engine


def test_a_killed_edge_under_load_closes_its_clients_and_comes_back(server: Server) -> None:
    children = server.children()
    killed_at = 0.0

    def kill() -> None:
        nonlocal killed_at
        killed_at = time.monotonic()
        os.kill(children[EDGE], signal.SIGKILL)

    streams = asyncio.run(load_and(server.url, kill))
    assert all(stream.failed for stream in streams)
    assert max(stream.ended_at for stream in streams) - killed_at < 2.0
    answers_again(server)
    assert server.children()[ENGINE] == children[ENGINE], "the engine survives its edge"


@contextmanager
def region_memory(server: Server) -> Generator[int]:
    """The memory that edge and engine share, as a descriptor of ours."""
    folder = Path(f"/proc/{server.children()[EDGE]}/fd")
    targets = {link: str(link.readlink()) for link in folder.iterdir()}
    memory = [link for link, to in targets.items() if "memfd:sublimate-region" in to]
    assert len(memory) == 1, "the edge has one region"
    fd = os.open(memory[0], os.O_RDWR)
    try:
        yield fd
    finally:
        os.close(fd)


def test_a_broken_region_under_load_fails_its_clients_and_is_replaced(
    server: Server, script: Path
) -> None:
    children = server.children()
    vocabulary = msgspec.json.decode(script.read_bytes())["vocabulary"]

    def spoil() -> None:
        os.kill(children[EDGE], signal.SIGSTOP)
        time.sleep(0.1)  # records are there that the edge has not read
        # What an engine with a bug could write: no record of the ring is one.
        with region_memory(server) as fd:
            ring_bytes = _core.LIMITS["TOKEN_RING_WORDS"] * 4
            os.pwrite(fd, b"\xff" * ring_bytes, layout(vocabulary)["tokens"])
        os.kill(children[EDGE], signal.SIGCONT)

    streams = asyncio.run(load_and(server.url, spoil))
    assert all(b"event: error" in stream.body for stream in streams)
    assert server.event("lost")["who"] == "region"
    answers_again(server)
    assert server.children() == children, "no process had to go"


def test_an_edge_that_was_given_up_tells_its_clients_and_serves_again(
    tmp_path: Path, script: Path
) -> None:
    """Nobody reads the ring for longer than the loop waits for room in it."""
    body = msgspec.json.decode(script.read_bytes())
    long_answer = [1000 + index % 500 for index in range(LONG_ANSWER_TOKENS)]
    fast = tmp_path / "fast.json"
    # Steps that take no time soon fill the ring.
    changes = {"answers": [[[], long_answer]], "step_delay_us": 0, "kv_pages": 16_384}
    fast.write_bytes(msgspec.json.encode({**body, **changes}))
    with serving("--script", str(fast)) as server:
        server.ready()
        children = server.children()

        def stop_reading() -> None:
            os.kill(children[EDGE], signal.SIGSTOP)
            with region_memory(server) as fd:
                wait_until(lambda: any(os.pread(fd, 4, EDGE_LOST)), 25)
            os.kill(children[EDGE], signal.SIGCONT)

        streams = asyncio.run(load_and(server.url, stop_reading, LONG_ANSWER_TOKENS))
        assert all(b"event: error" in stream.body for stream in streams)
        assert server.event("lost")["who"] == "region"
        answers_again(server)
        assert server.children() == children, "no process had to go"


def test_a_hung_engine_under_load_fails_its_clients_and_is_restarted(script: Path) -> None:
    with serving("--script", str(script), "--watchdog-seconds", "3") as server:
        server.ready()
        engine = server.children()[ENGINE]
        stopped_at = 0.0

        def stop() -> None:
            nonlocal stopped_at
            stopped_at = time.monotonic()
            os.kill(engine, signal.SIGSTOP)

        streams = asyncio.run(load_and(server.url, stop))
        assert all(b"event: error" in stream.body for stream in streams)
        assert max(stream.ended_at for stream in streams) - stopped_at < 3.0
        with pytest.raises(urllib.error.HTTPError, match="503"):
            server.get("/readyz")
        assert alive(engine)
        assert "stood still" in server.event("lost")["why"]
        answers_again(server)
        assert server.children()[ENGINE] != engine


def test_while_an_engine_hangs_another_server_answers(script: Path) -> None:
    with serving("--script", str(script)) as other:
        other.ready()
        more = ("--watchdog-seconds", "4", "--fallback", other.url)
        with serving("--script", str(script), *more) as server:
            server.ready()
            os.kill(server.children()[ENGINE], signal.SIGSTOP)
            answers: list[Stream] = []

            def is_elsewhere() -> bool:
                stream = Stream()
                asyncio.run(stream.run(server.url, 5))
                answers.append(stream)
                return b"x-compute-path: fallback" in stream.body.lower()

            wait_until(is_elsewhere, 10)
            assert answers[-1].whole and not answers[-1].failed
            with pytest.raises(urllib.error.HTTPError, match="503"):
                server.get("/readyz")
            server.event("lost")
            server.ready()


def test_without_an_engine_requests_are_503_with_retry_after(server: Server) -> None:
    os.kill(server.children()[ENGINE], signal.SIGSTOP)
    stopped = server.children()[ENGINE]
    os.kill(stopped, signal.SIGKILL)
    server.event("lost")
    statuses: list[Stream] = []

    def seen() -> bool:
        stream = Stream()
        asyncio.run(stream.run(server.url, 5))
        statuses.append(stream)
        return stream.whole

    wait_until(seen, 10)
    refused = [stream for stream in statuses if not stream.whole]
    assert all(stream.status == 503 for stream in refused)
    assert all(b"retry-after" in stream.body.lower() for stream in refused)


def test_sigterm_lets_streams_finish_and_refuses_new_ones(server: Server) -> None:
    children = server.children()
    streams = asyncio.run(load_and(server.url, lambda: server.signal(signal.SIGTERM)))
    broken = [stream.body[-300:] for stream in streams if stream.failed]
    assert not broken
    assert server.wait() == 0
    assert not any(alive(pid) for pid in children.values())


def test_while_draining_new_requests_are_told_to_go_elsewhere(server: Server) -> None:
    late = Stream()

    async def run() -> None:
        stream = Stream()
        async with asyncio.timeout(20), asyncio.TaskGroup() as group:
            task = group.create_task(stream.run(server.url, ANSWER_TOKENS))
            await stream.first_text.wait()
            server.signal(signal.SIGTERM)
            await asyncio.sleep(0.2)
            await late.run(server.url, 5)
            await task
        assert stream.whole

    asyncio.run(run())
    assert late.status == 529 and b"retry-after" in late.body.lower()


def test_a_drain_that_takes_too_long_ends_its_streams(script: Path) -> None:
    with serving("--script", str(script), "--drain-seconds", "0.3") as server:
        server.ready()
        begin = time.monotonic()
        streams = asyncio.run(load_and(server.url, lambda: server.signal(signal.SIGTERM)))
        assert server.wait() == 0 and time.monotonic() - begin < 6
        assert all(stream.failed for stream in streams)


def test_a_second_interrupt_ends_at_once(server: Server) -> None:
    def interrupt() -> None:
        server.signal(signal.SIGINT)
        server.event("draining")
        server.signal(signal.SIGINT)

    streams = asyncio.run(load_and(server.url, interrupt))
    assert server.wait(2) == 130
    assert all(stream.failed for stream in streams)


def test_the_default_model_is_ready_within_three_seconds(model: ModelFile) -> None:
    with serving("--model", str(model.path)) as server:
        event = server.ready()
        # Other work on the machine is not the server's fault.
        busy = os.getloadavg()[0] > len(os.sched_getaffinity(0)) / 2
        assert event["seconds"] < (30.0 if busy else 3.0)
        assert event["engine"]["isa"] and event["engine"]["kv_pages"] > 0
        # Measured, unless there was nothing to choose.
        for steps in ("few_rows", "many_rows"):
            how = event["engine"][steps]
            assert 1 <= how["threads"] <= event["engine"]["threads"] and how["isa"]
            assert len(how["measured"]) != 1 and all(one["least_ms"] > 0 for one in how["measured"])
        stream = Stream()
        asyncio.run(stream.run(server.url, 8))
        assert stream.whole and b"text_delta" in stream.body


def test_with_stay_every_request_is_told_why(tmp_path: Path, model: ModelFile) -> None:
    script = tmp_path / "script.json"
    script.write_text('{"answers":[[[],[700]]],"vocabulary":100}')
    with serving("--script", str(script), "--stay") as server:
        event = server.event("unavailable")
        assert event["reason"] == "load_failed"
        stream = Stream()
        asyncio.run(stream.run(event["url"], 5))
        assert stream.status == 503
        answer = msgspec.json.decode(stream.body.partition(b"\r\n\r\n")[2])
        assert answer["reason"] == "load_failed"
        assert server.process.poll() is None


def test_a_file_that_is_no_model_is_a_message_and_exit_code_3(tmp_path: Path) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"GGUF" + b"\xff" * 100)
    with serving("--model", str(path)) as server:
        assert server.wait(20) == 3
        wait_until(lambda: any("broken.gguf" in line for line in server.errors))
        assert not any("Traceback" in line for line in server.errors), "".join(server.errors)


def test_a_model_without_a_known_tokenizer_is_a_message_and_exit_code_3(tmp_path: Path) -> None:
    """The header is well-formed, so only the edge can see it."""
    path = tmp_path / "bare.gguf"
    path.write_bytes(b"GGUF" + (3).to_bytes(4, "little") + bytes(16))
    script = tmp_path / "script.json"
    script.write_text('{"answers":[],"vocabulary":100}')
    with serving("--model", str(path), "--script", str(script)) as server:
        assert server.wait(20) == 3
        wait_until(lambda: any("tokenizer" in line for line in server.errors))


def test_an_instruction_set_that_is_not_here_is_exit_code_4(model: ModelFile) -> None:
    runs = _core.probe()["isas"]
    absent = [isa for isa in ("amx", "avx512", "avx2") if isa not in runs]
    if not absent:
        pytest.skip("every instruction set runs here")
    with serving("--model", str(model.path), "--isa", absent[0]) as server:
        assert server.wait(20) == 4
        wait_until(lambda: any(f"cannot run {absent[0]}" in line for line in server.errors))


def test_a_machine_that_nothing_runs_on_says_so_to_every_request(
    model: ModelFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No exit and no restarts, also without --stay: an orchestrator sees what stands in the way."""
    recorded = Path(__file__).parents[1] / "fixtures/probe/aarch64.json"
    monkeypatch.setenv("SUBLIMATE_PROBE_FACTS", str(recorded))
    with serving("--model", str(model.path)) as server:
        event = server.event("unavailable")
        assert event["reason"] == "hardware_not_supported"
        stream = Stream()
        asyncio.run(stream.run(event["url"], 5))
        answer = msgspec.json.decode(stream.body.partition(b"\r\n\r\n")[2])
        assert stream.status == 503 and answer["reason"] == "hardware_not_supported"
        assert "The kernels are for x86_64; this is aarch64." in answer["finding"]
        assert server.process.poll() is None


@pytest.mark.parametrize(
    "environment", [{}, {"SUBLIMATE_API_KEYS": "of-the-environment,second"}], ids=str
)
def test_chat_starts_a_server_of_its_own_and_ends_it(
    tmp_path: Path, script: Path, model: ModelFile, environment: dict[str, str]
) -> None:
    """Whatever the settings say about keys and other clients, the chat is let in."""
    variables = {
        **os.environ,
        "SUBLIMATE_PORT": "1",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        **environment,
    }
    config = tmp_path / "named.toml"
    config.write_text(
        f'model = "{model.path}"\nscript = "{script}"\nhost = "0.0.0.0"\nstay = true\n'
        'api_keys = ["of-the-file"]\nprofile_contract = "strict"\n'
    )
    result = subprocess.run(
        [sys.executable, "-m", "sublimate", "chat", "--max-tokens", "5", "--config", str(config)],
        input="Hello\n",
        capture_output=True,
        text=True,
        env=variables,
        timeout=60,
    )
    assert result.returncode == 0, result.stderr
    assert "starting a server for this chat" in result.stderr
    assert "401" not in result.stderr
    ids = msgspec.json.decode(script.read_bytes())["answers"][0][1][:5]
    text = _core.Vocabulary(token_bytes(model)).decode(ids).decode()
    assert result.stdout == text + "\n", "the answer alone (F59)"
    running = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline")]
    assert not any(str(config).encode() in line for line in running), "its server has ended"


def token_bytes(model: ModelFile) -> list[bytes]:
    return tokenizer_from_metadata(_core.Gguf(str(model.path)).metadata).token_bytes


def address(url: str) -> tuple[str, int]:
    host, _, port = url.removeprefix("http://").partition(":")
    return host, int(port)


def memory_of(process_ids: list[int]) -> set[int]:
    """Inodes of the memory without a name (memfd) that processes hold."""
    found: set[int] = set()
    for folder in (Path(f"/proc/{process_id}/fd") for process_id in process_ids):
        with contextlib.suppress(OSError):
            for entry in folder.iterdir():
                with contextlib.suppress(OSError):
                    if os.readlink(entry).startswith("/memfd:"):
                        found.add(entry.stat().st_ino)
    return found


def everyone() -> list[int]:
    return [int(path.name) for path in Path("/proc").glob("[0-9]*")]


def test_what_a_killed_server_leaves_goes_with_the_next_start(script: Path, tmp_path: Path) -> None:
    """Its children die with it, and their memory and port with them; its record is all there is."""
    flags = ("--script", str(script), "--data-dir", str(tmp_path / "data"))
    with serving(*flags) as killed:
        port = killed.ready()["port"]
        children = killed.children()
        regions = memory_of([*children.values()])
        assert regions and set(children) == {ENGINE, EDGE}
        record = next((tmp_path / "data/runs").iterdir())
        entered = [msgspec.json.decode(line) for line in record.read_bytes().splitlines()]
        names = {one["name"]: one["process_id"] for one in entered if "name" in one}
        assert names == {"sublimate": killed.process.pid, **children}
        killed.process.kill()
        wait_until(lambda: not any(alive(pid) for pid in children.values()))
        assert not regions & memory_of(everyone())
    with serving(*flags, "--port", str(port)) as server:
        orphan = server.event("orphan")
        assert orphan["kind"] == "lock" and orphan["is_cleaned"]
        assert str(killed.process.pid) in orphan["what"]
        assert server.ready()["port"] == port
        with urllib.request.urlopen(server.url + "/metrics") as response:
            text = response.read().decode()
        assert re.search(r'sublimate_orphans_total\{[^}]*kind="lock",[^}]*"cleaned"\} 1', text)
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
    assert list((tmp_path / "data/runs").iterdir()) == [], "a run that ends well leaves nothing"

"""The edge as its own process, with the test as its supervisor."""

import contextlib
import os
import select
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from grammar import check_stream
from harness import body, http_post, read_reply, script, wait_until
from sublimate import _core
from sublimate.config import EdgeSettings, LogSettings
from sublimate.control import channel
from sublimate.control.child import spawn
from sublimate.edge.textmodel import load_text_model
from sublimate.errors import ExitCode, ModelError
from tiny_file import write_tiny
from tiny_model import STOP, tiny_metadata

WAIT_SECONDS = 15.0


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A GGUF file with the tiny tokenizer and hardly anything else."""
    return write_tiny(tmp_path_factory.mktemp("model") / "tiny.gguf")


@dataclass
class Edge:
    process: subprocess.Popen[bytes]
    control: channel.Channel[Any]
    client: httpx.Client
    port: int

    def await_message(self, kind: type) -> Any:
        ready, _, _ = select.select([self.control.fileno()], [], [], WAIT_SECONDS)
        assert ready, f"no {kind.__name__} came"
        received = self.control.receive()
        assert received is not None and isinstance(received.message, kind), received
        return received.message

    def post(self, **fields: Any) -> httpx.Response:
        return self.client.post("/v1/messages", json=body("say hello", **fields))


@contextlib.contextmanager
def edge(model_path: str, **settings: Any) -> Iterator[Edge]:
    process, control = spawn("sublimate.edge", channel.FromEdge)
    with socket.create_server(("127.0.0.1", 0)) as sock:
        start = channel.Start(
            settings=EdgeSettings(**settings),
            log=LogSettings(log_level="warning"),
            model_path=model_path,
            model_name="tiny",
        )
        control.send(start, (sock.fileno(),))
        port = sock.getsockname()[1]
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=WAIT_SECONDS) as client:
            try:
                yield Edge(process, control, client, port)
            finally:
                control.close()
                process.kill()
                process.wait(WAIT_SECONDS)


@contextlib.contextmanager
def scripted(step_delay_us: int = 0) -> Iterator[_core.LoopEngine]:
    answers = script({"say hello": "Hello there!", "count": "0123456789" * 50})
    vocabulary = len(tiny_metadata()["tokenizer.ggml.tokens"])
    engine = _core.LoopEngine.with_script(
        answers, vocabulary=vocabulary, stop_token=STOP, step_delay_us=step_delay_us
    )
    thread = threading.Thread(target=engine.run)
    thread.start()
    try:
        yield engine
    finally:
        engine.stop()
        thread.join()


def bring_up(running: Edge, engine: _core.LoopEngine) -> _core.Region:
    region = _core.Region.create(len(tiny_metadata()["tokenizer.ggml.tokens"]))
    engine.attach(region)
    info = {"context_length": 8192, "compute_path": "direct-kernel", "resident_loop": True}
    running.control.send(channel.EngineUp(info=info), region.fds)
    wait_until(lambda: running.client.get("/readyz").status_code == 200)
    return region


def test_a_whole_life(model_path: str) -> None:
    with edge(model_path) as running, scripted() as engine:
        ready = running.await_message(channel.EdgeReady)
        assert "in-place" in ready.info["template"]
        assert running.client.get("/livez").status_code == 200
        with ThreadPoolExecutor() as pool:
            early = pool.submit(running.post)  # it waits for the first engine
            region = bring_up(running, engine)
            assert early.result(WAIT_SECONDS).status_code == 200
        reply = running.post()
        assert reply.json()["content"][0]["text"] == "Hello there!"
        assert reply.headers["x-compute-path"] == "direct-kernel"
        assert check_stream(running.post(stream=True).content).text == "Hello there!"
        running.control.send(channel.EngineLost())
        wait_until(lambda: running.post().status_code == 503)
        second = bring_up(running, engine)
        assert running.post().status_code == 200
        assert region.fds != second.fds
        running.control.send(channel.Drain(seconds=5))
        running.await_message(channel.Drained)
        assert running.post().status_code == 529
        running.control.send(channel.Stop())
        assert running.process.wait(WAIT_SECONDS) == 0


def test_streams_finish_while_it_drains(model_path: str) -> None:
    with edge(model_path) as running, scripted(step_delay_us=3000) as engine:
        running.await_message(channel.EdgeReady)
        region = bring_up(running, engine)
        with socket.create_connection(("127.0.0.1", running.port), WAIT_SECONDS) as sock:
            sock.sendall(http_post(body("count", stream=True, max_tokens=100)))
            wait_until(lambda: region.stats()["running"] == 1)
            running.control.send(channel.Drain(seconds=30))
            folded = check_stream(read_reply(sock).body)
        assert folded.message["stop_reason"] == "max_tokens" and len(folded.text) == 100
        running.await_message(channel.Drained)


def test_hardware_that_is_not_supported(model_path: str) -> None:
    with edge(model_path) as running:
        running.await_message(channel.EdgeReady)
        lost = channel.EngineLost(reason="hardware_not_supported", message="No AVX2 here.")
        running.control.send(lost)
        wait_until(lambda: running.post().json().get("reason") == "hardware_not_supported")
        assert running.post().json()["finding"] == "No AVX2 here."


def test_it_ends_with_its_supervisor(model_path: str) -> None:
    with edge(model_path) as running:
        running.await_message(channel.EdgeReady)
        running.control.close()
        assert running.process.wait(WAIT_SECONDS) == 0


def test_settings_reach_it(model_path: str) -> None:
    with edge(model_path, api_keys=("k",), execution_profile="low-latency") as running:
        running.await_message(channel.EdgeReady)
        assert running.post().status_code == 401
        assert running.client.get("/readyz").status_code == 503


def test_a_model_that_cannot_be_read_ends_it_with_its_code(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF")
    with edge(str(broken)) as running:
        assert running.process.wait(WAIT_SECONDS) == ExitCode.MODEL
    with pytest.raises(ModelError):
        load_text_model(str(broken))


def test_it_is_ready_soon(model_path: str) -> None:
    begun = time.monotonic()
    with edge(model_path) as running:
        running.await_message(channel.EdgeReady)
        assert time.monotonic() - begun < 5, "some 0.4 s on a quiet machine"
        assert os.path.exists(f"/proc/{running.process.pid}")

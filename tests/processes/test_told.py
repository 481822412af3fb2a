"""What an operator is told: what a reload did not take, and why nothing is served."""

import asyncio
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from servers import wait_until
from test_serve import Stream, serving

from sublimate import _core
from sublimate.config import Settings, cache_folder
from sublimate.model.files import fetch


@pytest.fixture
def stranger() -> Iterator[None]:
    """A process whose name is not UTF-8, as one that the kernel cut."""
    name = b"import time; open('/proc/self/comm', 'wb').write(b'\\xd0'); print(flush=True)"
    command = [sys.executable, "-c", name + b"; time.sleep(600)"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"\n"
        yield
        process.kill()


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """For an engine beside the default model's text."""
    model = fetch("default", cache_folder(Settings()))
    vocabulary = len(_core.Gguf(str(model.path)).metadata["tokenizer.ggml.tokens"])
    path = tmp_path / "script.json"
    path.write_bytes(msgspec.json.encode({"answers": [[[], [1000]]], "vocabulary": vocabulary}))
    return path


@pytest.mark.usefixtures("stranger")
def test_reload_says_what_it_did_not_take_and_why_it_failed(tmp_path: Path, script: Path) -> None:
    """And not until its limit: the server tells how each one ended."""
    config = tmp_path / "config.toml"
    config.write_text("port = 0\ntls_port = 8443\nqueue_max = 5\n")
    flags = ("--script", str(script), "--config", str(config), "--data-dir", str(tmp_path / "data"))

    def reload(code: int, *words: str) -> str:
        command = [sys.executable, "-m", "sublimate", "reload", *words]
        variables = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=60)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    with serving(*flags) as server:
        server.ready()
        config.write_text("port = 0\ntls_port = 9443\nworkers = 2\nqueue_max = 6\n")
        note = "Only a restart takes workers = 2 (in force: 1), tls_port = 9443 (in force: 8443)."
        told = reload(0, "--data-dir", str(tmp_path / "data"))
        assert note in told and "1 worker was replaced" in told
        assert server.event("noted")["text"] == note
        config.write_text('profile = "fastest"\n')
        told = reload(6, "--pid", str(server.process.pid))
        assert "Not reloaded. profile = 'fastest'" in told and "restart" not in told


def answer_of(url: str) -> tuple[int, bytes]:
    """Status and body of a GET."""
    try:
        with urllib.request.urlopen(url, timeout=10) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


@pytest.mark.parametrize("damage", ["header", "tokenizer"])
def test_with_stay_a_damaged_model_file_is_told_to_every_request(
    tmp_path: Path, damage: str
) -> None:
    """One that is no model at all, and one that only the edge can see is none: the script is there
    for an engine that does load."""
    path = tmp_path / "broken.gguf"
    flags = ["--model", str(path), "--stay"]
    path.write_bytes(b"GGUF" + b"\xff" * 100)
    if damage == "tokenizer":
        path.write_bytes(b"GGUF" + (3).to_bytes(4, "little") + bytes(16))
        (tmp_path / "script.json").write_text('{"answers":[],"vocabulary":100}')
        flags += ["--script", str(tmp_path / "script.json")]
    with serving(*flags) as server:
        event = server.event("unavailable")
        assert event["reason"] == "load_failed"
        stream = Stream()
        asyncio.run(stream.run(event["url"], 5))
        told = stream.body.partition(b"\r\n\r\n")[2]
        for status, data in ((stream.status, told), answer_of(event["url"] + "/v1/models")):
            answer = msgspec.json.decode(data)
            assert status == 503 and answer["reason"] == "load_failed"
            # What the engine says of it, or where to read what the edge has said.
            assert "broken.gguf" in answer["finding"] or "log" in answer["finding"]
        status, data = answer_of(event["url"] + "/readyz")
        assert status == 503 and b"load_failed" in data
        assert answer_of(event["url"] + "/livez")[0] == 200
        assert server.process.poll() is None
        said = "tokenizer" if damage == "tokenizer" else "broken.gguf"
        wait_until(lambda: any(said in line for line in server.errors))
        server.signal(signal.SIGTERM)
        assert server.wait() == 0

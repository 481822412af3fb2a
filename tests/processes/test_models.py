"""`sublimate serve` with several models: each an engine process of its own, loaded when it is asked
for."""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from servers import Server, alive, wait_until

from sublimate import _core
from sublimate.config import Settings, cache_folder
from sublimate.model.files import ModelFile, fetch

ANSWER_TOKENS = 150
STEP_MICROSECONDS = 10_000


@pytest.fixture(scope="module")
def model() -> ModelFile:
    return fetch("default", cache_folder(Settings()))


def serving(config: Path, *more: str) -> Server:
    command = ["-m", "sublimate", "serve", "--port", "0", "--json", "--log-level", "error"]
    return Server([*command, "--config", str(config), *more])


def asked(server: Server, model: str, **fields: Any) -> httpx.Response:
    body = {"model": model, "max_tokens": 8, "temperature": 0, **fields}
    body["messages"] = [{"role": "user", "content": "Say hello."}]
    return httpx.post(f"{server.url}/v1/messages", json=body, timeout=60)


@contextlib.contextmanager
def streamed(server: Server, model: str) -> Iterator[Iterator[str]]:
    body: dict[str, Any] = {"model": model, "max_tokens": ANSWER_TOKENS, "stream": True}
    body["messages"] = [{"role": "user", "content": "Say hello."}]
    with httpx.stream("POST", f"{server.url}/v1/messages", json=body, timeout=60) as response:
        yield response.iter_lines()


def states(server: Server) -> dict[str, str]:
    data = httpx.get(f"{server.url}/v1/models").json()["data"]
    return {one["id"]: one["state"] for one in data if not one["id"].startswith("claude-")}


def test_two_models_take_turns_where_one_has_room(tmp_path: Path, model: ModelFile) -> None:
    """The default model under two names."""
    config = tmp_path / "config.toml"
    tables = "".join(
        f'[[models]]\nname = "{name}"\npath = "{model.path}"\n' for name in ("one", "two")
    )
    config.write_text('models_memory = "150MiB"\nkv_memory = "40MiB"\n' + tables)
    with serving(config) as server:
        server.ready()
        answers = [asked(server, name) for name in ("one", "two", "one")]
        assert [answer.status_code for answer in answers] == [200] * 3
        assert [answer.json()["model"] for answer in answers] == ["one", "two", "one"]
        assert len({answer.json()["content"][0]["text"] for answer in answers}) == 1
        assert states(server) == {"one": "loaded", "two": "unloaded"}
        told = httpx.get(f"{server.url}/v1/models/one").json()
        assert told["memory_bytes"] < 150 << 20


def tables(folder: Path, model: ModelFile, *names: str) -> str:
    """Of the settings: the default model's text, and scripts that say one token each, for some
    1.5 s."""
    vocabulary = len(_core.Gguf(str(model.path)).metadata["tokenizer.ggml.tokens"])
    written = ""
    for number, name in enumerate(names):
        script = folder / f"{name}.json"
        said = [1000 + number] * ANSWER_TOKENS
        body = {
            "answers": [[[], said]],
            "vocabulary": vocabulary,
            "step_delay_us": STEP_MICROSECONDS,
        }
        script.write_bytes(msgspec.json.encode(body))
        written += f'[[models]]\nname = "{name}"\npath = "{model.path}"\nscript = "{script}"\n'
    return written


@pytest.fixture
def scripted(tmp_path: Path, model: ModelFile) -> Iterator[Server]:
    """Two models."""
    config = tmp_path / "config.toml"
    config.write_text(f'data_dir = "{tmp_path}"\n' + tables(tmp_path, model, "one", "two"))
    with serving(config, "--workers", "2", "--worker-cpus", "none") as server:
        server.ready()
        yield server


def test_each_models_engines_are_its_own(scripted: Server) -> None:
    """One model's are killed under load, and the edges replaced: nothing of the other is lost."""
    assert asked(scripted, "two").status_code == 200
    assert states(scripted) == {"one": "loaded", "two": "loaded"}
    engines = sorted(scripted.pids()["sublimate.engine"])
    assert len(engines) == 4, "two workers of two models"
    theirs = engines[2:]

    def kill() -> None:
        for engine in theirs:
            os.kill(engine, signal.SIGKILL)

    answers = while_both_answer(scripted, kill)
    assert answers["one"].status_code == 200
    assert answers["two"].status_code == 500 and "lost" in answers["two"].text
    wait_until(lambda: states(scripted)["two"] == "loaded", 20)
    assert asked(scripted, "two").status_code == 200
    assert not any(alive(engine) for engine in theirs)
    before = scripted.pids()
    answers = while_both_answer(scripted, lambda: scripted.signal(signal.SIGUSR2))
    assert [answer.status_code for answer in answers.values()] == [200, 200]
    assert scripted.event("reloaded")["failure"] == ""
    after = scripted.pids()
    assert after["sublimate.engine"] == before["sublimate.engine"]
    assert not set(after["sublimate.edge"]) & set(before["sublimate.edge"])
    assert asked(scripted, "two").status_code == 200


def test_a_reload_makes_two_models_of_one_and_one_of_two(tmp_path: Path, model: ModelFile) -> None:
    """What runs then is finished by the engine that has it."""
    config = tmp_path / "config.toml"

    def write(*names: str) -> None:
        config.write_text(f'data_dir = "{tmp_path}"\n' + tables(tmp_path, model, *names))

    write("zero")
    with serving(config) as server:
        server.ready()
        for old, names in (("zero", ("one", "two")), ("one", ("two",))):
            write(*names)
            with streamed(server, old) as lines:
                assert any("content_block_delta" in line for line in lines)
                server.signal(signal.SIGUSR2)
                assert any("message_stop" in line for line in lines)
            assert server.event("reloaded")["failure"] == ""
            assert [asked(server, name).status_code for name in names] == [200] * len(names)
            wait_until(lambda names=names: len(server.pids()["sublimate.engine"]) == len(names), 20)


def while_both_answer(server: Server, action: Callable[[], None]) -> dict[str, httpx.Response]:
    """One long answer of each model, and the action in the middle of both."""
    answers: dict[str, httpx.Response] = {}

    def ask(name: str) -> None:
        answers[name] = asked(server, name, max_tokens=ANSWER_TOKENS)

    threads = [threading.Thread(target=ask, args=(name,)) for name in ("one", "two")]
    for thread in threads:
        thread.start()
    wait_until(lambda: requests(server) == {"one": 1, "two": 1})
    action()
    for thread in threads:
        thread.join()
    return answers


def requests(server: Server) -> dict[str, int]:
    data = httpx.get(f"{server.url}/v1/models").json()["data"]
    return {one["id"]: one["requests"] for one in data if not one["id"].startswith("claude-")}

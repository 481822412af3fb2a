"""Several models of one server, at the edge: who asks for one that is not loaded waits for it. The
tests are its supervisor."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from harness import WAIT_SECONDS, Served, body, script, serve, wait_until
from sublimate import _core
from sublimate.config import EdgeSettings
from sublimate.control import channel
from sublimate.control.channel import ModelPlace
from sublimate.edge import limits, loading
from sublimate.edge.loading import OnDemand
from tiny_file import write_tiny
from tiny_model import STOP, TINY_TEMPLATE, tiny_model

OTHER_TEMPLATE = TINY_TEMPLATE.replace("You are a test", "You are another one")
ANSWER = "I am the other."


class Several:
    """The main model, `tiny`, is there; `other` and `third` are files of their own."""

    def __init__(self, folder: Path) -> None:
        self.told: list[channel.Message] = []
        self.folder = folder
        paths = {
            name: write_tiny(folder / f"{name}.gguf", chat_template=OTHER_TEMPLATE)
            for name in ("other", "third")
        }
        self.on_demand = OnDemand(
            main=ModelPlace(name="tiny", path=write_tiny(folder / "tiny.gguf")),
            more=tuple(
                ModelPlace(name=name, path=path, adapters=(f"{name}-adapter",))
                for name, path in paths.items()
            ),
            tell=self.told.append,
        )
        self.served: Served
        self._engines: list[tuple[_core.LoopEngine, threading.Thread]] = []
        self._pool = ThreadPoolExecutor(8)

    def bring(self, name: str = "other", number: int = 1, *, step_delay_us: int = 0) -> None:
        """An engine of that model is there."""
        vocabulary = len(tiny_model().tokenizer)
        engine = _core.LoopEngine.with_script(
            script({"say": ANSWER}),
            vocabulary=vocabulary,
            context_length=4096,
            kv_pages=512,
            stop_token=STOP,
            step_delay_us=step_delay_us,
        )
        region = _core.Region.create(vocabulary)
        engine.attach(region)
        thread = threading.Thread(target=engine.run)
        thread.start()
        self._engines.append((engine, thread))
        theirs = _core.Region.attach(*region.fds)
        info = {"context_length": 4096, "kv_pages": 512, "weight_bytes": 1000, "kv_bytes": 24}
        server = self.served.server
        self.served.call(lambda: server.engine_up(theirs, info, model=name, engine=number))

    def ask(self, model: str = "other", **fields: Any) -> Future[httpx.Response]:
        return self._pool.submit(lambda: self.served.message("say what", model=model, **fields))

    def said(self, kind: type[Any]) -> list[str]:
        return [told.model for told in list(self.told) if isinstance(told, kind)]

    def wanted(self, *names: str) -> None:
        wait_until(lambda: self.said(channel.ModelWanted) == list(names))

    def taken(self, *names: str) -> None:
        wait_until(lambda: self.said(channel.ModelTaken) == list(names))

    def state(self, name: str = "other") -> str:
        return self.served.client.get(f"/v1/models/{name}").json()["state"]

    def close(self) -> None:
        self._pool.shutdown()
        for engine, thread in self._engines:
            engine.stop()
            thread.join()


@contextlib.contextmanager
def opened(folder: Path, settings: EdgeSettings | None = None) -> Iterator[Several]:
    several = Several(folder)
    with serve(on_demand=several.on_demand, settings=settings) as served:
        several.served = served
        try:
            yield several
        finally:
            served.call(served.server.models.close)
            several.close()


@pytest.fixture
def several(tmp_path: Path) -> Iterator[Several]:
    with opened(tmp_path) as made:
        yield made


def text_of(response: httpx.Response) -> str:
    assert response.status_code == 200, response.text
    return response.json()["content"][0]["text"]


# ---- who asks waits ------------------------------------------------------------------------------
def test_requests_wait_for_one_load_and_are_answered_by_their_model(several: Several) -> None:
    waiting = [several.ask() for _ in range(3)]
    several.wanted("other")
    assert several.ask("tiny").result(WAIT_SECONDS).status_code == 200, "others do not wait"
    assert not any(one.done() for one in waiting) and several.said(channel.ModelTaken) == []
    several.bring()
    answers = [one.result(WAIT_SECONDS) for one in waiting]
    assert [text_of(answer) for answer in answers] == [ANSWER] * 3
    assert {answer.json()["model"] for answer in answers} == {"other"}
    several.taken("other")
    assert text_of(several.ask().result(WAIT_SECONDS)) == ANSWER
    assert several.said(channel.ModelWanted) == ["other"], "it is there now"
    assert text_of(several.served.message("say hello")) == "Hello there!"


CHAT = {"messages": [{"role": "user", "content": "say what"}]}
SURFACES: dict[str, tuple[str, dict[str, Any], Callable[[Any], str]]] = {
    "chat": ("/v1/chat/completions", CHAT, lambda made: made["choices"][0]["message"]["content"]),
    "completion": (
        "/v1/completions",
        {"prompt": "say what", "max_tokens": 50},
        lambda made: made["choices"][0]["text"],
    ),
    "response": (
        "/v1/responses",
        {"input": "say what"},
        lambda made: made["output"][0]["content"][0]["text"],
    ),
    "ollama": ("/api/chat", {**CHAT, "stream": False}, lambda made: made["message"]["content"]),
    "generate": (
        "/api/generate",
        {"prompt": "say what", "stream": False},
        lambda made: made["response"],
    ),
}


def test_every_surface_waits(several: Several) -> None:
    post = several.served.client.post
    with ThreadPoolExecutor(len(SURFACES)) as pool:
        waiting = {
            name: pool.submit(post, path, json={"model": "other", **fields})
            for name, (path, fields, _) in SURFACES.items()
        }
        several.wanted("other")
        several.bring()
        for name, (_, _, read) in SURFACES.items():
            reply = waiting[name].result(WAIT_SECONDS)
            assert reply.status_code == 200, (name, reply.text)
            assert read(reply.json()) == ANSWER, name
    several.taken("other")


def test_an_adapter_waits_for_its_model(several: Several) -> None:
    waiting = several.ask("third-adapter")
    several.wanted("third")
    server = several.served.server
    several.served.call(lambda: server.models.failed("third", "load_failed", "No."))
    reply = waiting.result(WAIT_SECONDS)
    assert reply.status_code == 503 and reply.json()["finding"] == "No."


def test_ollama_loads_and_unloads_without_a_prompt(several: Several) -> None:
    post = several.served.client.post
    with ThreadPoolExecutor(1) as pool:
        loading = pool.submit(post, "/api/generate", json={"model": "other:latest"})
        several.wanted("other")
        several.bring()
        assert loading.result(WAIT_SECONDS).json()["done_reason"] == "load"
    reply = post("/api/generate", json={"model": "other", "keep_alive": 0})
    assert reply.json()["done_reason"] == "unload"
    assert several.said(channel.ModelStop) == ["other"]


def test_counting_reads_the_file_and_needs_no_engine(several: Several) -> None:
    client = several.served.client
    asked = {"messages": [{"role": "user", "content": "say what"}]}
    counts = [
        client.post("/v1/messages/count_tokens", json={"model": name, **asked}).json()
        for name in ("tiny", "other")
    ]
    more = len("You are another one") - len("You are a test")
    assert counts[1]["input_tokens"] - counts[0]["input_tokens"] == more
    reply = client.post("/tokenize", json={"model": "third", "prompt": "abc"}).json()
    assert reply["count"] == 3
    assert several.told == []


# ---- what does not come --------------------------------------------------------------------------
def test_a_model_that_cannot_be_loaded_is_a_503_and_tried_again(several: Several) -> None:
    waiting = several.ask()
    several.wanted("other")
    server = several.served.server
    several.served.call(lambda: server.models.failed("other", "load_failed", "It is too large."))
    reply = waiting.result(WAIT_SECONDS)
    assert reply.status_code == 503 and int(reply.headers["retry-after"]) > 0
    assert reply.json()["finding"] == "It is too large." and "other" in reply.text
    again = several.ask()
    several.wanted("other", "other")
    several.bring()
    assert text_of(again.result(WAIT_SECONDS)) == ANSWER
    several.taken("other")


def test_a_file_that_cannot_be_read_is_a_503(several: Several) -> None:
    (several.folder / "other.gguf").write_bytes(b"no model")
    reply = several.ask().result(WAIT_SECONDS)
    assert reply.status_code == 503 and reply.json()["reason"] == "load_failed"
    assert several.ask("tiny").result(WAIT_SECONDS).status_code == 200


def test_one_whose_file_cannot_be_read_is_wanted_no_more(several: Several) -> None:
    """Its engine may load: then nobody uses it, and its memory is for others again."""
    for _ in range(2):
        (several.folder / "other.gguf").write_bytes(b"GGUF")
        assert several.ask().result(WAIT_SECONDS).status_code == 503
    count = len(several.said(channel.ModelWanted))
    assert count > 0
    several.taken(*["other"] * count)


def test_whatever_a_reader_raises_nobody_waits_for_it(
    several: Several, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: str) -> None:
        raise RecursionError

    monkeypatch.setattr(loading, "load_text_model", broken)
    reply = several.ask().result(WAIT_SECONDS)
    assert reply.status_code == 503 and reply.json()["reason"] == "load_failed"


def test_nobody_waits_for_ever(several: Several, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LOAD_SECONDS_MAX", 0.3)
    reply = several.ask().result(WAIT_SECONDS)
    assert reply.status_code == 503 and reply.json()["reason"] == "not_in_time"
    several.taken("other")


def test_no_more_wait_than_may(tmp_path: Path) -> None:
    with opened(tmp_path, EdgeSettings(queue_max=2, data_dir=str(tmp_path))) as several:
        waiting = [several.ask() for _ in range(2)]
        several.wanted("other")
        wait_until(lambda: several.ask().result(WAIT_SECONDS).status_code == 529)
        several.bring()
        assert [text_of(one.result(WAIT_SECONDS)) for one in waiting] == [ANSWER] * 2


def test_a_server_that_ends_tells_who_waits(several: Several) -> None:
    waiting = several.ask()
    several.wanted("other")
    server = several.served.server
    several.served.call(lambda: server.drain(10.0, lambda: None))
    reply = waiting.result(WAIT_SECONDS)
    assert reply.status_code == 529 and "shutting down" in reply.text
    several.taken("other")


# ---- it leaves -----------------------------------------------------------------------------------
def test_what_leaves_ends_what_it_has_and_who_asks_meanwhile_waits(several: Several) -> None:
    several.bring(step_delay_us=20_000)
    running = several.ask()
    server = several.served.server
    wait_until(lambda: several.served.call(lambda: server.answers_open) == 1)
    idle: list[float] = []
    several.served.call(lambda: server.models.leave(1, lambda: idle.append(time.monotonic())))
    later = several.ask()
    several.wanted("other")
    assert not idle and not running.done()
    assert text_of(running.result(WAIT_SECONDS)) == ANSWER
    wait_until(lambda: len(idle) == 1)
    several.served.call(lambda: server.engine_lost(engine=1))
    assert several.state() == "unloaded" and not later.done()
    several.bring(number=2)
    assert text_of(later.result(WAIT_SECONDS)) == ANSWER


def test_a_lost_engine_is_its_models_matter_alone(several: Several) -> None:
    several.bring(step_delay_us=20_000)
    wait_until(lambda: several.state() == "loaded")
    running, server = several.ask(), several.served.server
    wait_until(lambda: several.served.call(lambda: server.answers_open) == 1)
    several.served.call(lambda: server.engine_lost(engine=1))
    assert running.result(WAIT_SECONDS).status_code == 500
    reply = several.ask().result(WAIT_SECONDS)
    assert reply.status_code == 503, "it comes back by itself, and nobody waits for that"
    assert several.state() == "lost" and several.said(channel.ModelWanted) == []
    client = several.served.client
    assert text_of(several.served.message("say hello")) == "Hello there!"
    assert [client.get(path).status_code for path in ("/health", "/readyz")] == [200, 200]


def test_a_lost_engine_that_leaves_before_it_is_back_is_loaded_anew(several: Several) -> None:
    """As when nobody has used the model meanwhile, or its file is gone."""
    several.bring()
    wait_until(lambda: several.state() == "loaded")
    server = several.served.server
    several.served.call(lambda: server.engine_lost(engine=1))
    assert several.state() == "lost"
    idle: list[int] = []
    several.served.call(lambda: server.models.leave(1, lambda: idle.append(1)))
    assert idle == [1] and several.state() == "unloaded"
    later = several.ask()
    several.wanted("other")
    several.bring(number=2)
    assert text_of(later.result(WAIT_SECONDS)) == ANSWER
    assert text_of(several.served.message("say hello")) == "Hello there!"


def test_an_engine_that_is_lost_as_its_model_comes_is_loaded_anew(several: Several) -> None:
    """Of two workers' engines it was the first; then the other one is given up as well."""
    several.bring()
    wait_until(lambda: several.state() == "loaded")
    server = several.served.server
    several.served.call(lambda: server.engine_lost(engine=1))
    several.served.call(lambda: server.models.failed("other", "load_failed", "It ended."))
    later = several.ask()
    several.wanted("other")
    several.bring(number=2)
    assert text_of(later.result(WAIT_SECONDS)) == ANSWER


def test_what_is_told_of_unknown_engines_and_models_is_nothing(several: Several) -> None:
    """As an edge hears it that is older than a reload."""
    server = several.served.server
    idle: list[int] = []
    several.served.call(lambda: server.models.leave(9, lambda: idle.append(9)))
    several.served.call(lambda: server.models.failed("newer", "load_failed", "It is too large."))
    several.served.call(lambda: server.models.file_changed("newer"))
    assert idle == [9]
    assert text_of(several.served.message("say hello")) == "Hello there!"


def test_a_main_model_that_rests_is_no_fault(several: Several) -> None:
    client, server = several.served.client, several.served.server
    several.served.call(lambda: server.models.leave(0, lambda: None))
    several.served.call(lambda: server.engine_lost(engine=0))
    assert [client.get(path).status_code for path in ("/health", "/readyz")] == [200, 200]
    assert client.get("/version").json()["model"] == "tiny"
    waiting = several.ask("default")
    several.wanted("tiny")
    several.bring("tiny", number=3)
    assert text_of(waiting.result(WAIT_SECONDS)) == ANSWER


def test_another_file_is_read_anew(several: Several) -> None:
    asked = {"model": "other", "messages": [{"role": "user", "content": "say what"}]}
    counted = "/v1/messages/count_tokens"
    before = several.served.client.post(counted, json=asked).json()["input_tokens"]
    write_tiny(several.folder / "other.gguf")
    several.served.call(lambda: several.served.server.models.file_changed("other"))
    after = several.served.client.post(counted, json=asked).json()["input_tokens"]
    assert after == before - len("You are another one") + len("You are a test")


def test_an_engine_may_come_before_anybody_has_asked(several: Several) -> None:
    """As when an edge is started again."""
    several.bring()
    wait_until(lambda: several.state() == "loaded")
    assert text_of(several.ask().result(WAIT_SECONDS)) == ANSWER
    assert several.told == []


# ---- what is told --------------------------------------------------------------------------------
def test_all_are_listed_with_their_state(several: Several) -> None:
    several.bring()
    wait_until(lambda: several.state() == "loaded")
    assert several.ask().result(WAIT_SECONDS).status_code == 200
    client = several.served.client
    data = client.get("/v1/models").json()["data"]
    states = {one["id"]: one["state"] for one in data if one["parent"] is None}
    named = {"tiny": "loaded", "other": "loaded", "third": "unloaded"}
    assert states == named | {f"claude-{name}": state for name, state in named.items()}
    other, third = data[2], data[4]
    assert (other["id"], other["memory_bytes"], other["max_tokens"]) == ("other", 1024, 4096)
    assert other["idle_seconds"] is not None and third["max_tokens"] is None
    tags = client.get("/api/tags").json()["models"]
    names = [one["name"] for one in tags if "adapter" not in one["name"]]
    assert names == ["tiny:latest", "other:latest", "third:latest"]
    running = client.get("/api/ps").json()["models"]
    assert [one["name"] for one in running][:2] == ["tiny:latest", "other:latest"]
    assert not any("third" in one["name"] for one in running)
    shown = client.post("/api/show", json={"model": "third"})
    assert shown.status_code == 200 and shown.json()["model_info"]["general.name"] == "Tiny Test"
    assert several.told == [], "nothing was loaded for it"


def test_a_name_is_of_one_model_and_an_alias_of_any(tmp_path: Path) -> None:
    settings = EdgeSettings(aliases=("claude-opus-9=other",), data_dir=str(tmp_path))
    with opened(tmp_path, settings) as several:
        several.bring()
        for name in ("other", "claude-other", "claude-opus-9"):
            assert text_of(several.ask(name).result(WAIT_SECONDS)) == ANSWER
        for name in ("tiny", "default", "claude-sonnet-4-5"):
            reply = several.ask(name).result(WAIT_SECONDS)
            assert reply.status_code == 200 and reply.json()["model"] == "tiny"
        assert several.ask("nope").result(WAIT_SECONDS).status_code == 404


def test_numbers_are_told_with_the_name_of_their_model(several: Several) -> None:
    several.bring()
    assert several.ask().result(WAIT_SECONDS).status_code == 200
    assert several.served.message("say hello").status_code == 200
    text = several.served.client.get("/metrics").text
    for name in ("tiny", "other"):
        labels = f'model_name="{name}"'
        lines = [line for line in text.splitlines() if labels in line]
        ended = next(line for line in lines if line.startswith("sublimate_request_success_total"))
        assert 'finished_reason="end_turn"' in ended and ended.endswith(" 1.0")
        assert any(line.startswith("sublimate_num_requests_running{") for line in lines)
    helps = [line for line in text.splitlines() if line.startswith("# HELP")]
    assert len(helps) == len(set(helps)), "each family once"


def test_a_body_that_is_wrong_loads_nothing(several: Several) -> None:
    reply = several.served.client.post("/v1/messages", json=body(model="other", max_tokens="x"))
    assert reply.status_code == 400 and several.told == []

"""Requests that come while the first engine loads wait for it, on every surface."""

import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from harness import Served, body, serve, wait_until
from test_grpc import connected, typed
from test_operations import come_back

MESSAGES = [{"role": "user", "content": "say hello"}]
SURFACES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/messages", {"max_tokens": 16, "messages": MESSAGES}),
    ("/v1/messages", {"max_tokens": 16, "messages": MESSAGES, "stream": True}),
    ("/v1/chat/completions", {"messages": MESSAGES}),
    ("/v1/chat/completions", {"messages": MESSAGES, "stream": True}),
    ("/v1/completions", {"prompt": "say hello", "max_tokens": 8}),
    ("/v1/responses", {"input": "say hello"}),
    ("/v1/responses", {"input": "say hello", "stream": True}),
    ("/api/chat", {"messages": MESSAGES}),
    ("/api/generate", {"prompt": "say hello", "stream": False}),
    ("/api/generate", {}),
]


@pytest.fixture
def loading() -> Iterator[Served]:
    """A server whose first engine is not there yet."""
    with serve(grpc=True) as served:

        def begin() -> None:
            served.server.engine_lost()
            engines = served.server.models.main.engines
            engines.context_tokens = 0
            engines.is_first_awaited = True

        served.call(begin)
        yield served


def waiting(served: Served) -> int:
    return served.call(lambda: served.server.models.loading.waiting)


def test_f34_requests_wait_for_the_first_engine(loading: Served) -> None:
    replies: list[httpx.Response] = []
    texts: list[str] = []

    def ask(path: str, asked: dict[str, Any]) -> None:
        reply = httpx.post(loading.url + path, json={"model": "tiny", **asked}, timeout=60)
        replies.append(reply)

    def call() -> None:
        with connected(loading) as client:
            texts.append(client.CreateMessage(typed(), timeout=60).content[0].text.text)
            texts.append(client.stream(typed(), timeout=60).folded().text)

    threads = [threading.Thread(target=ask, args=one) for one in SURFACES * 2]
    threads.append(threading.Thread(target=call))
    for thread in threads:
        thread.start()
    wait_until(lambda: waiting(loading) == len(threads))
    assert not replies
    for path in ("/readyz", "/health"):
        assert loading.client.get(path).status_code == 503
    assert loading.client.get("/livez").status_code == 200
    come_back(loading)
    for thread in threads:
        thread.join()
    assert [reply.status_code for reply in replies] == [200] * len(SURFACES) * 2
    assert texts == ["Hello there!"] * 2
    assert waiting(loading) == 0


def test_f34_an_engine_that_cannot_come_ends_the_wait(loading: Served) -> None:
    replies: list[httpx.Response] = []
    thread = threading.Thread(target=lambda: replies.append(loading.message()))
    thread.start()
    wait_until(lambda: waiting(loading) == 1)
    loading.call(lambda: loading.server.engine_lost("load_failed", "It is broken."))
    thread.join()
    assert replies[0].status_code == 503 and replies[0].json()["finding"] == "It is broken."
    assert loading.message().status_code == 503, "at once"


def test_f34_a_server_that_ends_does_not_let_them_wait(loading: Served) -> None:
    replies: list[httpx.Response] = []
    thread = threading.Thread(target=lambda: replies.append(loading.message()))
    thread.start()
    wait_until(lambda: waiting(loading) == 1)
    loading.call(lambda: loading.server.drain(30, lambda: None))
    thread.join()
    assert replies[0].status_code == 529


def test_f34_one_that_leaves_waits_no_longer(loading: Served) -> None:
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(loading.url + "/v1/messages", json=body(stream=True), timeout=0.5)
    wait_until(lambda: waiting(loading) == 0)
    come_back(loading)
    assert loading.message().status_code == 200
    assert loading.region.stats()["accepted"] == 1


def test_f33_lists_invent_no_context(loading: Served) -> None:
    names = ("max_input_tokens", "max_tokens", "context_length", "max_model_len")
    for context in (None, 8192):
        for entry in (
            *loading.client.get("/v1/models").json()["data"],
            loading.client.get("/v1/models/tiny").json(),
        ):
            assert [entry[name] for name in names] == [context] * 4
            assert entry["meta"] == {"n_ctx": context}
        reply = loading.client.post("/tokenize", json={"model": "tiny", "prompt": "a"})
        assert reply.json()["max_model_len"] == context
        if context is None:
            assert loading.client.get("/api/ps").json() == {"models": []}
            come_back(loading)

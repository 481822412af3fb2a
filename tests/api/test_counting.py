"""Counting and tokenising: bounded, and in nobody's way."""

import ctypes
import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any

import httpx
import msgspec
import pytest

from harness import Served, body, serve
from sublimate.edge import limits, memory
from test_errors import check_error

TOO_LONG = re.compile(r"prompt is too long: (\d+) tokens > 8192 maximum")
COUNT = "/v1/messages/count_tokens"


def told(reply: httpx.Response) -> int:
    """The number in the error of a prompt that is too long."""
    assert reply.status_code == 400, reply.text
    found = TOO_LONG.fullmatch(reply.json()["error"]["message"])
    assert found, reply.text
    return int(found[1])


def test_beyond_the_context_is_counted_and_beyond_the_bound_refused(shared: Served) -> None:
    text = "x" * (limits.COUNT_BYTES_MIN - 1000)
    counted = shared.client.post(COUNT, json=body(text)).json()["input_tokens"]
    assert len(text) < counted < len(text) + 100
    ids = shared.client.post("/tokenize", json={"prompt": text}).json()
    assert ids["count"] == len(text)

    beyond = "x" * (limits.COUNT_BYTES_MIN + 1)
    exact = len(beyond)
    said = told(shared.message(beyond))
    assert abs(said - exact) < exact // 100
    assert told(shared.client.post(COUNT, json=body(beyond))) == said
    messages = body(beyond)["messages"]
    assert told(shared.client.post("/tokenize", json={"messages": messages})) == said
    assert abs(told(shared.client.post("/tokenize", json={"prompt": beyond})) - exact) < 100


def test_bytes_count_and_not_characters(shared: Served) -> None:
    text = "好" * (limits.COUNT_BYTES_MIN // 2)
    assert told(shared.client.post(COUNT, json=body(text))) > len(text)
    assert told(shared.client.post("/tokenize", json={"prompt": text})) > len(text)


def test_what_is_edited_away_is_estimated_where_it_is_long(shared: Served) -> None:
    long = "x" * (limits.COUNT_BYTES_MIN + 1)
    use = {"type": "tool_use", "id": "toolu_1", "name": "get", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": long}
    trigger = {"type": "input_tokens", "value": 1}
    keep = {"type": "tool_uses", "value": 0}
    edit = {"type": "clear_tool_uses_20250919", "keep": keep, "trigger": trigger}
    request = {
        "model": "tiny",
        "tools": [{"name": "get", "input_schema": {"type": "object"}}],
        "messages": [
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": [use]},
            {"role": "user", "content": [result]},
        ],
        "context_management": {"edits": [edit]},
    }
    got = shared.client.post(COUNT + "?beta=true", json=request).json()
    original = got["context_management"]["original_input_tokens"]
    assert got["input_tokens"] < 8192 and abs(original - len(long)) < len(long) // 100


@contextmanager
def occupied(pool: ThreadPoolExecutor, threads: int) -> Iterator[None]:
    """All threads of a pool have something to do."""
    go_on, begun = threading.Event(), threading.Semaphore(0)

    def work() -> None:
        begun.release()
        go_on.wait(30)

    busy = [pool.submit(work) for _ in range(threads)]
    for _ in busy:
        assert begun.acquire(timeout=10)
    try:
        yield
    finally:
        go_on.set()
        wait(busy, 10)


def test_requests_for_answers_and_counts_do_not_wait_for_each_other() -> None:
    long = "say hello" + " " * limits.OFFLOAD_BYTES_MIN
    with serve(context_tokens=32_768, pages=2048) as served:
        with occupied(served.server.aside, limits.ASIDE_THREADS):
            reply = served.message("x" * limits.OFFLOAD_BYTES_MIN)
            assert reply.status_code == 200, reply.text
        with occupied(served.server.workers, limits.PREPARE_THREADS):
            counted = served.client.post(COUNT, json=body(long))
            assert counted.json()["input_tokens"] > limits.OFFLOAD_BYTES_MIN
            ids = served.client.post("/tokenize", json={"prompt": long}).json()["tokens"]
            back = served.client.post("/detokenize", json={"tokens": ids})
            assert back.json() == {"prompt": long}


def test_large_bodies_are_not_even_checked_on_the_event_loop(
    shared: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []

    def noted(body: bytes) -> bytes:
        threads.append(threading.current_thread().name)
        return body

    monkeypatch.setattr("sublimate.api.tokenise.checked_json", noted)
    long = "x" * limits.OFFLOAD_BYTES_MIN
    for path, asked in (
        ("/tokenize", {"prompt": long}),
        ("/tokenize", {"messages": body(long)["messages"]}),
        ("/detokenize", {"tokens": [99] * limits.OFFLOAD_BYTES_MIN}),
    ):
        reply = shared.client.post(path, json=asked)
        assert reply.status_code == 200, reply.text
    assert len(threads) == 3 and all(name.startswith("aside") for name in threads)


def test_arrays_beyond_the_bound_are_refused(shared: Served) -> None:
    many = b"1," * (limits.JSON_ELEMENTS_MAX + 1) + b"1"
    text = "The JSON body has too many keys, elements or containers"
    detokenise = b'{"tokens":[' + many + b"]}"
    check_error(shared.client.post("/detokenize", content=detokenise), 400, text)
    tools = msgspec.json.encode([{"name": "a", "input_schema": {"enum": "HERE"}}])
    request = msgspec.json.encode(body())[:-1] + b',"tools":' + tools + b"}"
    request = request.replace(b'"HERE"', b"[" + many + b"]")
    check_error(shared.client.post("/v1/messages", content=request), 400, text)


def test_memory_of_large_bodies_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    class Library:
        def malloc_trim(self, pad: ctypes.c_size_t) -> None:
            calls.append(pad.value)

    monkeypatch.setattr(memory, "_LIBRARY", Library())
    assert memory.trimmed(lambda: 7, limits.TRIM_BYTES_MIN - 1) == 7 and not calls
    assert memory.trimmed(lambda: 8, limits.TRIM_BYTES_MIN) == 8 and calls == [0]
    with pytest.raises(ZeroDivisionError):
        memory.trimmed(lambda: 1 // 0, limits.TRIM_BYTES_MIN)
    assert calls == [0, 0]
    monkeypatch.setattr(memory, "_LIBRARY", object())  # another C library
    assert memory.trimmed(lambda: 9, limits.TRIM_BYTES_MIN) == 9


def test_large_bodies_are_read_one_at_a_time() -> None:
    """Each holds the interpreter's lock for long; small ones do not wait for them."""
    running: list[int] = []

    def read() -> int:
        running.append(1)
        time.sleep(0.05)
        count = len(running)
        running.pop()
        return count

    with ThreadPoolExecutor(4) as threads:
        large = [threads.submit(memory.trimmed, read, limits.LARGE_BODY_BYTES) for _ in range(3)]
        assert [one.result() for one in large] == [1, 1, 1]
        blocked = threading.Event()
        waiting = threads.submit(memory.trimmed, blocked.wait, limits.LARGE_BODY_BYTES)
        assert threads.submit(memory.trimmed, lambda: 7, 1).result(10) == 7
        blocked.set()
        assert waiting.result(10)


@pytest.mark.parametrize("role", ["user", "assistant"])
def test_what_is_too_long_is_not_rendered_whole(
    shared: Served, monkeypatch: pytest.MonkeyPatch, role: str
) -> None:
    """A template holds the interpreter's lock for as long as it takes."""
    text = "x y\n" * (limits.COUNT_BYTES_MIN // 2)
    messages = [{"role": "user", "content": "a"}, {"role": role, "content": text}]
    template = type(shared.server.models.main.text.template)
    rendered, render = list[int](), template.render

    def noted(*given: Any, **named: Any) -> Any:
        result = render(*given, **named)
        rendered.append(len(result.text))
        return result

    monkeypatch.setattr(template, "render", noted)
    found = told(shared.client.post(COUNT, json={"model": "tiny", "messages": messages}))
    assert abs(found - len(text)) < len(text) // 50 and max(rendered) < len(text) * 2 // 3

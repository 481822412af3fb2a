"""What every surface does within a stream besides its text: pings while nothing comes, and one
error of its own form at the end of an answer that breaks, with and without tools."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from harness import Served, exchange_bytes, http_post, serve, wait_until
from sublimate.edge.limits import HttpLimits
from sublimate.edge.stream import Answer

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
LOST = "The model engine was lost during this request."
COUNTED = "".join(f"{number} " for number in range(1000))


def chat(content: str, tools: bool) -> dict[str, Any]:
    tool = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
    asked = {"messages": [{"role": "user", "content": content}]}
    return {**asked, "tools": [tool]} if tools else asked


def message(content: str, tools: bool) -> dict[str, Any]:
    asked = chat(content, False) | {"max_tokens": 4000}
    return {**asked, "tools": [{"name": "weather", "input_schema": SCHEMA}]} if tools else asked


def response(content: str, tools: bool) -> dict[str, Any]:
    tool = {"type": "function", "name": "weather", "parameters": SCHEMA}
    return {"input": content, **({"tools": [tool]} if tools else {})}


def prompt(content: str, tools: bool) -> dict[str, Any]:
    del tools
    return {"prompt": content, "max_tokens": 4000}


REQUESTS: dict[str, Callable[[str, bool], dict[str, Any]]] = {
    "/v1/messages": message,
    "/v1/chat/completions": chat,
    "/v1/completions": prompt,
    "/v1/responses": response,
    "/api/chat": chat,
    "/api/generate": prompt,
}
CASES = [
    pytest.param(path, tools, id=f"{path}-{'tools' if tools else 'text'}")
    for path, make in REQUESTS.items()
    for tools in ((False,) if make is prompt else (False, True))
]


def asked(path: str, content: str, tools: bool) -> dict[str, Any]:
    return {"model": "tiny", "stream": True, **REQUESTS[path](content, tools)}


def frames(path: str, text: str) -> list[dict[str, Any]]:
    """The objects of a stream."""
    lines = text.splitlines()
    if not path.startswith("/api/"):
        data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
        lines = [line for line in data if line != "[DONE]"]
    return [msgspec.json.decode(line) for line in lines if line]


def text_of(path: str, told: list[dict[str, Any]]) -> str:
    match path:
        case "/v1/messages":
            return "".join(one.get("delta", {}).get("text", "") for one in told)
        case "/v1/chat/completions":
            deltas = [one["choices"][0]["delta"] for one in told if one.get("choices")]
            return "".join(delta.get("content") or "" for delta in deltas)
        case "/v1/completions":
            return "".join(one["choices"][0]["text"] for one in told if one.get("choices"))
        case "/v1/responses":
            kind = "response.output_text.delta"
            return "".join(one["delta"] for one in told if one["type"] == kind)
        case "/api/chat":
            return "".join(one["message"]["content"] for one in told if "message" in one)
        case _:
            return "".join(one.get("response", "") for one in told)


def error_text(path: str, told: list[dict[str, Any]]) -> str:
    """Of the one error, which ends the stream."""
    if path == "/v1/responses":
        error, failed = told[-2:]
        assert failed["type"] == "response.failed"
        assert failed["response"]["error"]["message"] == error["message"]
        return error["message"]
    assert [one for one in told if "error" in one] == [told[-1]]
    error = told[-1]["error"]
    return error if path.startswith("/api/") else error["message"]


def is_complete(path: str, text: str) -> bool:
    """It says that it is whole."""
    if path.startswith("/api/"):
        return any(one.get("done") for one in frames(path, text))
    marks = ("message_stop", "[DONE]", "response.completed", '"finish_reason":"stop"')
    return any(mark in text for mark in marks)


# ---- an answer that breaks -----------------------------------------------------------------------
@pytest.fixture(scope="module")
def slow() -> Iterator[Served]:
    with serve(step_delay_us=3000, constrains=False) as served:
        yield served
        wait_until(served.idle)


def end_in_the_engine(served: Served) -> None:
    """The engine ends what runs, and no client has asked for that."""
    engine = served.server.engine
    assert engine is not None
    for answer in served.server._answers:
        assert answer._ticket is not None
        engine.cancel(answer._ticket)


@pytest.mark.parametrize(("path", "tools"), CASES)
def test_a_stream_that_breaks_ends_with_one_error_of_its_surface(
    slow: Served, path: str, tools: bool
) -> None:
    pieces: list[str] = []
    with slow.client.stream("POST", path, json=asked(path, "count", tools)) as reply:
        assert reply.status_code == 200
        for piece in reply.iter_text():
            pieces.append(piece)
            if len(text_of(path, frames_so_far(path, "".join(pieces)))) > 3:
                slow.call(lambda: end_in_the_engine(slow))
    text = "".join(pieces)
    told = frames(path, text)
    assert error_text(path, told) == LOST
    said = text_of(path, told)
    assert 3 < len(said) < len(COUNTED) and COUNTED.startswith(said.lstrip())
    assert not is_complete(path, text)
    wait_until(slow.idle)


@pytest.mark.parametrize(("path", "tools"), CASES)
def test_a_whole_answer_that_breaks_says_when_to_try_again(
    slow: Served, path: str, tools: bool
) -> None:
    replies: list[Any] = []
    request = {**asked(path, "count", tools), "stream": False}
    asking = threading.Thread(target=lambda: replies.append(slow.client.post(path, json=request)))
    before = slow.stats()["generated_tokens"]
    asking.start()
    wait_until(lambda: slow.stats()["generated_tokens"] > before + 3)
    slow.call(lambda: end_in_the_engine(slow))
    asking.join()
    (reply,) = replies
    assert reply.status_code == 500 and LOST in reply.text
    assert int(reply.headers["retry-after"]) >= 1 and reply.headers["x-should-retry"] == "true"
    wait_until(slow.idle)


def frames_so_far(path: str, text: str) -> list[dict[str, Any]]:
    """Whole lines only."""
    return frames(path, text[: text.rfind("\n") + 1])


@pytest.mark.parametrize(("path", "tools"), CASES)
def test_what_the_last_event_brings_is_shown_before_its_error(
    slow: Served, path: str, tools: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens and the failure may come in one event."""
    tokens: list[int] = []
    on_event = Answer.on_event

    def failing(answer: Answer, event: Any, now_seconds: float) -> None:
        if event.output_tokens > 5 and not tokens:
            tokens.append(event.output_tokens)
            end_in_the_engine(slow)
            event = Failed(event)
        on_event(answer, event, now_seconds)

    monkeypatch.setattr(Answer, "on_event", failing)
    # A lent socket has what the core wrote by itself before any event tells of it.
    monkeypatch.setattr("sublimate.edge.engine.EngineLink.lend_socket", lambda *_: None)
    reply = slow.client.post(path, json=asked(path, "count", tools))
    assert reply.status_code == 200
    told = frames(path, reply.text)
    assert error_text(path, told) == "The model could not complete this answer."
    said = text_of(path, told)
    # A blank at the end may belong to what comes next.
    assert said.rstrip() == COUNTED[: tokens[0]].rstrip() and not is_complete(path, reply.text)
    wait_until(slow.idle)


class Failed:
    """An event of the engine, as if the request had failed in the same step."""

    finished, stop_reason, refuse_reason = True, "failed", ""

    def __init__(self, event: Any) -> None:
        self._event = event

    def __getattr__(self, name: str) -> Any:
        return getattr(self._event, name)


@pytest.mark.parametrize(("path", "tools"), CASES)
@pytest.mark.parametrize("stream", [False, True], ids=("whole", "stream"))
def test_an_answer_that_breaks_before_its_first_token_is_a_plain_error(
    slow: Served, path: str, tools: bool, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full queue of the engine, in each form: with the time to come back."""
    on_event = Answer.on_event

    def refusing(answer: Answer, event: Any, now_seconds: float) -> None:
        refused = Failed(event)
        refused.stop_reason, refused.refuse_reason = "refused", "queue_full"
        for name in ("admitted", "data", "pieces", "output_tokens", "logprob_ids"):
            setattr(refused, name, type(getattr(event, name))())
        on_event(answer, refused, now_seconds)

    monkeypatch.setattr(Answer, "on_event", refusing)
    reply = slow.client.post(path, json={**asked(path, "say hello", tools), "stream": stream})
    is_theirs = path != "/v1/messages"
    assert reply.status_code == (503 if is_theirs else 529)
    assert int(reply.headers["retry-after"]) >= 1 and reply.headers["x-should-retry"] == "true"
    wait_until(slow.idle)


# ---- pings ---------------------------------------------------------------------------------------
def pings(path: str, text: str) -> int:
    if path == "/v1/messages":
        return text.count('event: ping\ndata: {"type": "ping"}\n\n')
    if path.startswith("/v1/"):
        return text.count(": ping\n\n")
    parts = [one for one in frames(path, text) if not one["done"]]
    return sum(text_of(path, [one]) == "" for one in parts)


@pytest.mark.parametrize("tools", [False, True], ids=("text", "tools"))
def test_every_stream_has_pings_while_nothing_comes(tools: bool) -> None:
    """While its prompt is read, and between tokens; all surfaces at once."""
    told: dict[str, str] = {}
    limits = HttpLimits(ping_seconds=0.2)
    answers: dict[str, str | bytes] = {"say": "Hi"}
    with serve(answers=answers, step_delay_us=1_500_000, limits=limits, constrains=False) as served:

        def ask(path: str) -> None:
            with served.connect() as sock:
                sock.settimeout(60)
                reply = exchange_bytes(sock, http_post(asked(path, "say", tools), path))
                told[path] = reply.body.decode()

        threads = [threading.Thread(target=ask, args=(path,)) for path in REQUESTS]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for path, text in told.items():
        assert pings(path, text) >= 2, path
        assert text_of(path, frames(path, text)) == "Hi", path

"""A server whose engine is down or full, and another one that answers in its place: one that serves
well, one that breaks, one that is not there."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import msgspec
import pytest

from grammar import check_stream, parse_events
from harness import Served, body, serve, wait_until
from sublimate import _core
from sublimate.api.fallback import Fallback
from sublimate.config import EdgeSettings
from sublimate.errors import ConfigError
from sublimate.guard.upstream import address_of, check_key
from sublimate.keys import KeyLimits, add_key
from sublimate.v1.messages_pb2 import CreateMessageRequest
from sublimate.wire.frames import FrameDecoder, event_json, message_json
from test_grpc import connected

SAID = {"say hello": "From the other one.", "count": "1 2 3 " * 300}
FALLBACK = "fallback"


@pytest.fixture(scope="module")
def other() -> Iterator[Served]:
    """What the fallback is."""
    with serve(answers=SAID, step_delay_us=1000) as served:  # type: ignore[arg-type]
        yield served


@pytest.fixture(scope="module")
def messages(other: Served) -> Iterator[Served]:
    with serve(settings=EdgeSettings(fallback=other.url)) as served:
        yield served


@pytest.fixture(scope="module")
def chat(other: Served) -> Iterator[Served]:
    with serve(settings=EdgeSettings(fallback=other.url + "/v1/chat/completions")) as served:
        yield served


@contextlib.contextmanager
def down(served: Served) -> Iterator[None]:
    """Without its engine for a while."""
    served.call(lambda: served.server.engine_lost())
    try:
        yield
    finally:
        up(served)
        fallback = fallback_of(served)
        served.call(fallback.engine_circuit.succeeded)
        served.call(fallback.circuit.succeeded)


def up(served: Served) -> None:
    region = _core.Region.create(len(served.server.model.tokenizer))
    served.engine.attach(region)
    attached = _core.Region.attach(*region.fds)
    served.call(lambda: served.server.engine_up(attached, served.info))


def fallback_of(served: Served) -> Fallback:
    return served.call(lambda: served.server.part(Fallback))


def counted(served: Served, name: str, *labels: str) -> float:
    for line in served.client.get("/metrics").text.splitlines():
        if line.startswith(f"sublimate_{name}{{") and all(label in line for label in labels):
            return float(line.rpartition(" ")[2])
    return 0.0


def text_of(reply: httpx.Response) -> str:
    return "".join(block.get("text", "") for block in reply.json()["content"])


def streamed(served: Served, **more: Any) -> httpx.Response:
    return served.message("say hello", stream=True, **more)


def check_fallback_story(told: dict[str, Any], decided: str) -> None:
    """decided: about a request whose prompt was there; empty: it was not prepared."""
    *_, last = told["stages"]
    assert last["name"] == FALLBACK and last["ms"] > 0
    names = [stage["name"] for stage in told["stages"]]
    assert "admit" not in names and "handle" not in names
    total = sum(stage["end_ns"] - stage["begin_ns"] for stage in told["stages"])
    assert total == told["ended_ns"] - told["began_ns"]
    lines = [line["text"] for line in told["lines"]]
    assert any(line.startswith("fallback: another server has answered it") for line in lines)
    if decided:
        assert any("shard decision: " in line and decided in line for line in lines)
        assert told["answer"]["prompt_tokens"] > 0


# ---- an engine that is down ----------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["messages", "chat"])
def test_f54_an_engine_that_is_down_is_stood_in_for(kind: str, request: Any) -> None:
    served: Served = request.getfixturevalue(kind)
    before = counted(served, "layer_fallback_total", 'reason="engine_unavailable"', 'to="server"')
    assert text_of(served.message()) == "Hello there!"
    with down(served):
        whole = served.message()
        assert whole.status_code == 200 and text_of(whole) == SAID["say hello"]
        assert whole.headers["x-compute-path"] == FALLBACK and "x-layer-zero" not in whole.headers
        assert whole.json()["usage"]["output_tokens"] > 0
        stream = streamed(served)
        assert stream.headers["x-compute-path"] == FALLBACK
        assert stream.headers["content-type"].startswith("text/event-stream")
        events = parse_events(stream.content)
        if kind == "messages":
            check_stream(stream.content)  # of the other form, counts are known at the end alone
        texts = [e.data["delta"]["text"] for e in events if e.type == "content_block_delta"]
        assert "".join(texts) == SAID["say hello"]
        assert events[-2].data["delta"]["stop_reason"] == "end_turn"
        assert events[-2].data["usage"]["output_tokens"] > len(texts), "several come at once"
        assert events[-1].type == "message_stop"
        told = served.client.get(f"/v1/debug/requests/{whole.headers['request-id']}").json()
        check_fallback_story(told, "")
    after = counted(served, "layer_fallback_total", 'reason="engine_unavailable"', 'to="server"')
    assert after == before + 2
    assert text_of(served.message()) == "Hello there!", "it is back"


def test_frames_and_idempotency_keys_work_as_ever(messages: Served, other: Served) -> None:
    with down(messages):
        accept = {"accept": "application/octet-stream"}
        framed = messages.client.post(
            "/v1/messages", json=body(stream=True), headers=accept
        ).content
        events = [event_json(event) for event in FrameDecoder().feed(framed)]
        assert events[0]["type"] == "message_start" and events[-1]["type"] == "message_stop"
        texts = [e["delta"]["text"] for e in events if e["type"] == "content_block_delta"]
        assert "".join(texts) == SAID["say hello"]
        key, before = {"idempotency-key": "once"}, other.stats()["accepted"]
        replies = [messages.client.post("/v1/messages", json=body(), headers=key) for _ in range(3)]
        assert len({reply.content for reply in replies}) == 1
        assert other.stats()["accepted"] == before + 1, "asked once"


def test_chat_completions_go_through_as_they_are(chat: Served, messages: Served) -> None:
    asked = {"model": "tiny", "messages": [{"role": "user", "content": "say hello"}]}
    with down(chat):
        reply = chat.client.post("/v1/chat/completions", json=asked)
        assert reply.json()["choices"][0]["message"]["content"] == SAID["say hello"]
        assert reply.headers["x-compute-path"] == FALLBACK
        stream = chat.client.post("/v1/chat/completions", json={**asked, "stream": True}).text
        *chunks, end = stream.removesuffix("\n\n").split("\n\n")
        deltas = [msgspec.json.decode(one[6:])["choices"][0]["delta"] for one in chunks]
        assert "".join(delta.get("content", "") for delta in deltas) == SAID["say hello"]
        assert end == "data: [DONE]"
    with down(messages):
        reply = messages.client.post("/v1/chat/completions", json=asked)
        assert reply.status_code == 503, "its fallback speaks another API"


def test_what_came_from_a_fallback_goes_to_none(messages: Served) -> None:
    with down(messages):
        hop = {"x-sublimate-fallback": "1"}
        reply = messages.client.post("/v1/messages", json=body(), headers=hop)
        assert reply.status_code == 503 and int(reply.headers["retry-after"]) >= 1


def test_a_request_that_the_other_does_not_take_is_a_400_from_our_table(messages: Served) -> None:
    with down(messages):
        reply = messages.message("say hello", max_tokens=-1)
        assert reply.status_code == 400
        assert "fallback server" in reply.json()["error"]["message"]
        assert reply.json()["error"]["type"] == "invalid_request_error"
        assert fallback_of(messages).circuit.state == "closed", "it is well"


def test_an_engine_that_is_back_is_tried_by_one_request_first(messages: Served) -> None:
    fallback = fallback_of(messages)
    with down(messages):
        messages.message()
        assert fallback.engine_circuit.state == "open"
        up(messages)
        assert messages.message().headers["x-compute-path"] == FALLBACK, "not at once"
        wait_until(lambda: fallback.engine_circuit.would_let(time.monotonic()))
        assert text_of(messages.message()) == "Hello there!"
        wait_until(lambda: fallback.engine_circuit.state == "closed")
        assert counted(messages, "circuit_state", 'to="engine"', 'state="closed"') == 1


def tried_at_once(fallback: Fallback) -> None:
    """The wait of the engine's circuit is over."""
    assert fallback.engine_circuit.state == "open"
    fallback.engine_circuit._opens_at_seconds = 0.0


def test_a_request_that_is_refused_tries_no_engine(messages: Served) -> None:
    fallback = fallback_of(messages)
    with down(messages):
        messages.message()
        messages.call(lambda: tried_at_once(fallback))
        assert messages.message().headers["x-compute-path"] == FALLBACK
        up(messages)
        assert messages.message(max_tokens=-1).status_code == 400
        assert messages.client.post("/v1/messages", content=b"{").status_code == 400
        assert fallback.engine_circuit.state == "open", "nobody owes a word"
        assert text_of(messages.message()) == "Hello there!"
        wait_until(lambda: fallback.engine_circuit.state == "closed")


def test_a_client_that_leaves_while_it_tries_the_engine_lets_the_next_one_try(
    other: Served,
) -> None:
    with serve(settings=EdgeSettings(fallback=other.url), step_delay_us=2000) as served:
        fallback = fallback_of(served)
        with down(served):
            served.message()
            up(served)
            served.call(lambda: tried_at_once(fallback))
            with served.client.stream(
                "POST", "/v1/messages", json=body("count", stream=True, max_tokens=4000)
            ) as stream:
                lines = stream.iter_lines()
                next(lines)
                assert fallback.engine_circuit.state == "half_open"
                assert served.message().headers["x-compute-path"] == FALLBACK, "one is enough"
            wait_until(lambda: fallback.engine_circuit.state == "open")
            assert text_of(served.message()) == "Hello there!"


def test_an_engine_that_ends_beside_another_opens_nothing(other: Served) -> None:
    region = _core.Region.create(len(other.server.model.tokenizer))
    with serve(settings=EdgeSettings(fallback=other.url), step_delay_us=2000) as served:
        fallback = fallback_of(served)
        with served.client.stream(
            "POST", "/v1/messages", json=body("count", stream=True, max_tokens=4000)
        ) as stream:
            lines = stream.iter_lines()
            next(lines)
            second = _core.Region.attach(*region.fds)
            served.call(lambda: served.server.engine_up(second, served.info, engine=1, worker=1))
            served.call(lambda: served.server.engine_lost(engine=0))
            assert "event: error" in list(lines)
        assert fallback.engine_circuit.state == "closed"
        served.call(lambda: served.server.engine_lost(engine=1))
        assert served.message().headers["x-compute-path"] == FALLBACK
        assert fallback.engine_circuit.state == "open"


def test_one_answer_that_fails_opens_nothing(messages: Served) -> None:
    fallback = fallback_of(messages)
    failed: Any = SimpleNamespace(stop_reason="failed", is_broken=True)
    messages.call(lambda: fallback.ended(failed))
    assert fallback.engine_circuit.state == "closed"
    messages.call(lambda: fallback.engine_circuit.trip(0.0))
    messages.call(lambda: fallback.begun(failed))
    assert fallback.engine_circuit.state == "half_open"
    messages.call(lambda: fallback.ended(failed))
    assert fallback.engine_circuit.state == "open", "it was the one that tried"
    messages.call(fallback.engine_circuit.succeeded)


def test_calls_of_grpc_are_answered_too(other: Served) -> None:
    request = CreateMessageRequest(json_body=msgspec.json.encode(body()))
    with (
        serve(settings=EdgeSettings(fallback=other.url), grpc=True) as served,
        connected(served) as client,
        down(served),
    ):
        reply = client.CreateMessage(request, timeout=10)
        assert message_json(reply)["content"][0]["text"] == SAID["say hello"]
        kinds = [event_json(event)["type"] for event in client.stream(request, timeout=10)]
        assert kinds[0] == "message_start" and kinds[-1] == "message_stop"


# ---- an engine that is full ----------------------------------------------------------------------
def test_overflow_is_answered_by_the_other(other: Served) -> None:
    cost = {"step_ps": 0, "decode_row_ps": 0, "prompt_row_ps": 1_000_000_000}
    settings = EdgeSettings(fallback=other.url, first_token_target=0.1)
    with (
        serve(settings=settings, prefill_delay_us_per_token=1000, info={"step_cost": cost}) as own,
        ThreadPoolExecutor(30) as pool,
    ):
        asked = [
            pool.submit(
                own.client.post, "/v1/messages", json=body(f"{n} say hello", stream=n % 2 == 0)
            )
            for n in range(30)
        ]
        replies = [one.result() for one in asked]
        assert {reply.status_code for reply in replies} == {200}
        elsewhere = [r for r in replies if r.headers.get("x-compute-path") == FALLBACK]
        assert 0 < len(elsewhere) < 30
        told = counted(own, "layer_fallback_total", 'reason="overload"', 'to="server"')
        assert told == len(elsewhere) and counted(own, "fallback_requests") == 0


def test_what_would_fill_the_memory_past_its_threshold_goes_to_the_other(other: Served) -> None:
    settings = EdgeSettings(fallback=other.url)
    with serve(settings=settings, pages=32, step_delay_us=2000) as own:
        assert text_of(own.message(max_tokens=16)) == "Hello there!"
        tokens = 32 * _core.LIMITS["PAGE_TOKENS"]
        with own.client.stream(
            "POST", "/v1/messages", json=body("count", stream=True, max_tokens=tokens // 2)
        ) as running:
            lines = running.iter_lines()
            next(lines)
            wait_until(lambda: own.region.stats()["pages_reserved"] > 0)
            large = own.message("say hello", max_tokens=tokens // 2)
            assert large.headers["x-compute-path"] == FALLBACK
            told = own.client.get(f"/v1/debug/requests/{large.headers['request-id']}").json()
            check_fallback_story(told, "server (oom)")
            small = own.message("say hello", max_tokens=16)
            assert text_of(small) == "Hello there!"
        assert counted(own, "layer_fallback_total", 'reason="oom"', 'to="server"') == 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_keys_limits_are_charged_what_the_other_has_counted(
    other: Served, tmp_path: Path, stream: bool
) -> None:
    path = tmp_path / "keys.toml"
    key = {"x-api-key": add_key(path, "alice", KeyLimits(tokens_per_minute=30))}
    settings = EdgeSettings(fallback=other.url, keys_file=str(path))
    with serve(settings=settings) as own, down(own):

        def ask(max_tokens: int) -> int:
            asked = body(stream=stream, max_tokens=max_tokens)
            return own.client.post("/v1/messages", json=asked, headers=key).status_code

        assert ask(-1) == 400 and ask(64) == 200, "what was refused there costs nothing"
        assert ask(64) == 429, "some forty tokens are gone"


# ---- a fallback that is not well -----------------------------------------------------------------
@contextlib.contextmanager
def odd_server(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """Speaks with each connection as it is told, after it has read something."""
    with socket.create_server(("127.0.0.1", 0)) as listen:

        def run() -> None:
            while True:
                try:
                    connection, _ = listen.accept()
                except OSError:
                    return
                with connection, contextlib.suppress(OSError):
                    connection.recv(1 << 16)
                    answer(connection)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listen.getsockname()[1]}"
        finally:
            listen.shutdown(socket.SHUT_RDWR)
            thread.join()


HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
START = {"type": "message_start", "message": {"id": "m", "type": "message", "usage": {}}}


def sse(event: dict[str, Any]) -> bytes:
    return f"event: {event['type']}\ndata: ".encode() + msgspec.json.encode(event) + b"\n\n"


def breaks_off(connection: socket.socket) -> None:
    connection.sendall(HEAD + sse(START) + b"event: content_bl")


def says_error(connection: socket.socket) -> None:
    error = {"type": "error", "error": {"type": "api_error", "message": "a secret of its own"}}
    connection.sendall(HEAD + sse(START) + sse(error))


def ends_early(connection: socket.socket) -> None:
    """Between two events, and the connection ends as it would behind the last one."""
    connection.sendall(HEAD + sse(START))


@pytest.mark.parametrize(
    "answer", [breaks_off, says_error, ends_early], ids=lambda one: one.__name__
)
def test_a_stream_that_breaks_ends_with_an_event_from_our_table(
    answer: Callable[[socket.socket], None],
) -> None:
    with (
        odd_server(answer) as url,
        serve(settings=EdgeSettings(fallback=url)) as served,
        down(served),
    ):
        events = parse_events(streamed(served).content)
        assert [event.type for event in events] == ["message_start", "error"]
        assert "fallback server was lost" in events[-1].data["error"]["message"]
        assert counted(served, "fallback_ends_total", 'end="failed"') == 1


@pytest.mark.parametrize(
    "said",
    [
        b"HTTP/1.1 529 Overloaded\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 401 No\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n{odd}",
        b"HTTP/1.1 200 OK\r\nx: " + b"a" * 70_000,
        b"SSH-2.0\r\n",
        b"",
    ],
    ids=("full", "key", "moved", "short", "no_json", "long_head", "no_http", "closed"),
)
def test_a_fallback_that_fails_leaves_the_error_as_it_was(said: bytes) -> None:
    with (
        odd_server(lambda connection: connection.sendall(said)) as url,
        serve(settings=EdgeSettings(fallback=url)) as served,
        down(served),
    ):
        reply = served.message()
        assert reply.status_code == 503 and int(reply.headers["retry-after"]) >= 1
        assert reply.json()["error"]["type"] == "overloaded_error"


CHUNK = {"choices": [{"index": 0, "delta": {"content": "Hi"}, "finish_reason": None}]}
LAST = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}


def chunks(*said: object) -> bytes:
    return HEAD + b"".join(b"data: " + msgspec.json.encode(one) + b"\n\n" for one in said)


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/chat/completions"])
@pytest.mark.parametrize(
    ("said", "is_whole"),
    [
        (chunks(CHUNK), False),
        (chunks(CHUNK, LAST), True),
        (chunks(CHUNK) + b"data: [DONE]\n\n", True),
        (chunks(CHUNK, LAST) + b"data: [DONE]\n\ndata: [DONE]\n\n", True),
    ],
    ids=("none", "reason", "done", "twice"),
)
def test_a_stream_of_chunks_is_whole_with_its_end(said: bytes, is_whole: bool, path: str) -> None:
    with (
        odd_server(lambda connection: connection.sendall(said)) as url,
        serve(settings=EdgeSettings(fallback=url + "/v1/chat/completions")) as served,
        down(served),
    ):
        text = served.client.post(path, json=body(stream=True)).text
        assert "Hi" in text and ("fallback server was lost" in text) is not is_whole
        if path == "/v1/messages":
            assert text.count("event: message_stop") == is_whole
        end = "ok" if is_whole else "failed"
        assert counted(served, "fallback_ends_total", f'end="{end}"') == 1


def whole(said: object) -> bytes:
    encoded = msgspec.json.encode(said)
    return f"HTTP/1.1 200 OK\r\ncontent-length: {len(encoded)}\r\n\r\n".encode() + encoded


ODD_USAGE = {"prompt_tokens": [], "completion_tokens": 1e300, "prompt_tokens_details": "odd"}


@pytest.mark.parametrize(
    ("said", "status"),
    [
        (whole({"choices": [{"message": {"content": "Hi"}}], "usage": ODD_USAGE}), 200),
        (whole({"choices": [{"message": {"content": 5}}]}), 503),
        (whole({"choices": [{"message": {"tool_calls": [{"id": 5, "function": 7}]}}]}), 503),
        (whole({"choices": {"message": []}}), 503),
    ],
    ids=("usage", "text", "call", "choices"),
)
def test_values_of_odd_types_are_a_failure_of_who_sent_them(said: bytes, status: int) -> None:
    with (
        odd_server(lambda connection: connection.sendall(said)) as url,
        serve(settings=EdgeSettings(fallback=url + "/v1/chat/completions")) as served,
        down(served),
    ):
        assert served.message().status_code == status
        end = "ok" if status == 200 else "failed"
        assert counted(served, "fallback_ends_total", f'end="{end}"') == 1
        assert counted(served, "fallback_ends_total", 'end="client_gone"') == 0


@pytest.mark.parametrize(
    ("event", "end"),
    [({"type": "odd"}, "failed"), ({"type": "message_start", "message": "odd"}, "inexpressible")],
)
def test_events_that_no_frame_can_hold_are_a_failure_too(event: dict[str, Any], end: str) -> None:
    with (
        odd_server(lambda connection: connection.sendall(HEAD + sse(event))) as url,
        serve(settings=EdgeSettings(fallback=url)) as served,
        down(served),
    ):
        accept = {"accept": "application/octet-stream"}
        reply = served.client.post("/v1/messages", json=body(stream=True), headers=accept)
        assert reply.status_code == 503
        assert counted(served, "fallback_ends_total", f'end="{end}"') == 1


def test_odd_bodies_of_clients_say_nothing_of_the_other(chat: Served) -> None:
    odd = [[], {"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]}]
    odd += [{"messages": [], "tool_choice": {"type": []}}]
    with down(chat):
        for asked in odd:
            assert chat.client.post("/v1/messages", json=asked).status_code == 503
        assert counted(chat, "fallback_ends_total", 'end="failed"') == 0
        assert fallback_of(chat).circuit.state == "closed"


def test_a_fallback_that_is_down_as_well_is_left_alone_until_a_probe() -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    with serve(settings=EdgeSettings(fallback=f"http://127.0.0.1:{port}")) as served, down(served):
        fallback = fallback_of(served)
        for _ in range(3):
            assert served.message().status_code == 503
        assert fallback.circuit.state == "open"
        assert counted(served, "circuit_state", 'to="fallback"', 'state="open"') == 1
        before = counted(served, "layer_fallback_total", 'to="none"')
        assert served.message().status_code == 503, "and it is not asked"
        assert counted(served, "layer_fallback_total", 'to="none"') == before + 1
        with socket.create_server(("127.0.0.1", port)) as back:
            wait_until(lambda: fallback.circuit.would_let(time.monotonic()))
            with ThreadPoolExecutor(1) as pool:
                asked = pool.submit(served.message)
                connection, _ = back.accept()
                with connection:
                    connection.recv(1 << 16)
                    message = msgspec.json.encode({"type": "message", "content": []})
                    head = f"HTTP/1.1 200 OK\r\ncontent-length: {len(message)}\r\n\r\n".encode()
                    connection.sendall(head + message)
                    assert asked.result().json() == {"type": "message", "content": []}
        wait_until(lambda: fallback.circuit.state == "closed")


def test_who_leaves_says_nothing_of_the_request_that_tries_the_other(messages: Served) -> None:
    """It was begun before, while all was well."""
    with down(messages), contextlib.ExitStack() as second:
        fallback = fallback_of(messages)
        asked = {"method": "POST", "url": "/v1/messages", "json": body("count", stream=True)}
        with messages.client.stream(**asked) as reply:
            lines = reply.iter_lines()  # held: one that is let go closes the answer
            assert next(lines)
            messages.call(lambda: fallback.circuit.trip(0.0))
            tries = second.enter_context(messages.client.stream(**asked)).iter_lines()
            assert next(tries) and fallback.circuit.state == "half_open"
            assert fallback.under_way == 2
        wait_until(lambda: fallback.under_way == 1)
        assert fallback.circuit.state == "half_open", "one at a time tries it"
        assert any("message_stop" in line for line in tries)
        wait_until(lambda: fallback.circuit.state == "closed")


def test_a_fallback_that_says_nothing_is_given_up() -> None:
    silent = threading.Event()
    with (
        odd_server(lambda _: (silent.wait(10), None)[1]) as url,
        serve(settings=EdgeSettings(fallback=url)) as served,
        down(served),
    ):
        fallback_of(served)._upstream._silent_seconds = 0.2
        begin = time.monotonic()
        assert served.message().status_code == 503
        assert time.monotonic() - begin < 5.0
        silent.set()


def test_a_client_that_leaves_ends_the_request_there_too(messages: Served, other: Served) -> None:
    with down(messages):
        for _ in range(5):
            with messages.client.stream(
                "POST", "/v1/messages", json=body("count", stream=True, max_tokens=600)
            ) as stream:
                assert stream.headers["x-compute-path"] == FALLBACK
                lines = stream.iter_lines()
                next(lines)
                assert fallback_of(messages).under_way >= 1
        wait_until(lambda: fallback_of(messages).under_way == 0 and other.idle())
        assert counted(messages, "fallback_ends_total", 'end="client_gone"') >= 5
        assert fallback_of(messages).circuit.state == "closed"


# ---- where it goes -------------------------------------------------------------------------------
ODD_URLS = (
    *("a:1", "ftp://a", "http://", "http://u:secret@a", "ftp://:secret@a", "http://a?x=1"),
    *("http://a:99999", "http://a:0", "http://a:b", "http://[::1", "http://a#x", "http://a b"),
    *("http://a\r\nx-evil: 1", "http://a/\nb", "http://a\t", " http://a", "http://ä", "http://a\0"),
)


def test_the_address_is_the_operators_and_a_plain_one() -> None:
    assert address_of("http://a:1/v1").speaks_chat is False
    assert address_of("https://a/x/v1/chat/completions").speaks_chat is True
    assert address_of("https://a").port == 443 and address_of("http://a").port == 80
    assert address_of("http://[::1]:8/x/v1/messages").host == "::1"
    for url in ODD_URLS:
        with pytest.raises(ConfigError, match="fallback") as refused:
            address_of(url)
        assert "secret" not in str(refused.value)
    for key in ("a b", "a\r\nx: y", "ä"):
        with pytest.raises(ConfigError, match="fallback_key") as refused:
            check_key(key)
        assert key not in str(refused.value)

"""A POST with an idempotency key is run once: repeats get its answer, whole or as a stream."""

import gc
import string
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest

from grammar import check_stream
from harness import Served, body, exchange_bytes, http_post, serve, wait_until
from sublimate.api.routes import SHAPES
from sublimate.config import EdgeSettings
from sublimate.edge import limits
from sublimate.edge.coding import FRAMES_TYPE
from sublimate.edge.errors import TABLE as ERRORS
from sublimate.edge.errors import ApiError
from sublimate.edge.exchange import Exchange, Request
from sublimate.edge.idempotency import Outcomes
from sublimate.edge.routes import Routes
from sublimate.keys import KeyLimits, add_key
from sublimate.v1.messages_pb2 import CreateMessageRequest
from sublimate.wire.frames import FrameDecoder, event_json, message_json
from test_errors import check_error
from test_grpc import connected, fails

COUNT = {"stream": True, "max_tokens": 4000, "seed": 1}
FIELD = "idempotency-key"
KEYED = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def slow() -> Iterator[Served]:
    with serve(step_delay_us=200, grpc=True) as served:
        yield served
        wait_until(served.idle)


def ask(served: Served, key: str, content: str = "say hello", **fields: Any) -> Any:
    headers = {"idempotency-key": key}
    return served.client.post("/v1/messages", json=body(content, **fields), headers=headers)


def accepted(served: Served) -> int:
    return served.stats()["accepted"]


def test_a_repeat_gets_the_same_answer_and_costs_nothing(slow: Served) -> None:
    before = accepted(slow)
    first, again = ask(slow, "a"), ask(slow, "a")
    assert first.status_code == again.status_code == 200 and first.content == again.content
    assert first.headers["request-id"] == again.headers["request-id"]
    assert "idempotency-replayed" not in first.headers
    assert again.headers["idempotency-replayed"] == "true"
    assert accepted(slow) == before + 1
    assert ask(slow, "b").json()["id"] != first.json()["id"]


def test_streams_are_repeated_whole_also_while_they_run(slow: Served) -> None:
    before, told = accepted(slow), []
    asking = [
        threading.Thread(target=lambda: told.append(ask(slow, "s", "count", **COUNT)))
        for _ in range(3)
    ]
    for one in asking:
        one.start()
    for one in asking:
        one.join()
    told.append(ask(slow, "s", "count", **COUNT))
    assert accepted(slow) == before + 1
    assert {answer.content for answer in told} == {told[0].content}
    assert len(check_stream(told[0].content).text) > 3000


def test_a_key_that_is_none_or_anothers_is_refused(slow: Served) -> None:
    assert ask(slow, "m").status_code == 200
    check_error(ask(slow, "m", "say stop"), 422, "This idempotency-key was used for another")
    for wrong in ("k" * 256, "", "k\u00e9".encode()):
        headers = {FIELD: wrong}
        reply = slow.client.post("/v1/messages", json=body(), headers=headers)
        check_error(reply, 400, "idempotency-key: expected 1 to 255")
    assert ask(slow, "k" * 255).status_code == 200
    check_error(ask(slow, "wrong", max_tokens=-1), 400, "max_tokens")
    check_error(ask(slow, "wrong", max_tokens=-1), 400, "max_tokens")


def test_who_was_cut_off_may_come_back(slow: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    before = accepted(slow)
    request = body("count", **COUNT)
    with slow.connect() as sock:
        sock.sendall(http_post(request, idempotency_key="back"))
        assert b"message_start" in sock.recv(65536)
    assert check_stream(ask(slow, "back", "count", **COUNT).content).text
    assert accepted(slow) == before + 1
    monkeypatch.setattr(limits, "OUTCOME_GRACE_SECONDS", 0.05)
    with slow.connect() as sock:
        sock.sendall(http_post(request, idempotency_key="gone"))
        assert b"message_start" in sock.recv(65536)
    wait_until(slow.idle)
    assert accepted(slow) == before + 2


# ---- one key in several forms --------------------------------------------------------------------
FORMS = ("events", "frames", "call")


def events_of(served: Served, form: str, key: str, *, check: bool = True) -> list[Any]:
    """Of one stream, as JSON."""
    asked = body("count", stream=True, max_tokens=500)
    if form == "call":
        with connected(served) as client:
            call = client.stream(
                CreateMessageRequest(json_body=msgspec.json.encode(asked)), metadata=[(FIELD, key)]
            )
            return [event_json(event) for event in call]
    headers = {FIELD: key, "accept": FRAMES_TYPE if form == "frames" else "*/*"}
    reply = served.client.post("/v1/messages", json=asked, headers=headers)
    assert reply.status_code == 200
    if form == "frames":
        assert reply.headers["content-type"] == FRAMES_TYPE
        return [event_json(event) for event in FrameDecoder().feed(reply.content)]
    assert reply.headers["content-type"].startswith("text/event-stream")
    if check:
        check_stream(reply.content)
    lines = [line for line in reply.content.splitlines() if line.startswith(b"data: ")]
    return [msgspec.json.decode(line.removeprefix(b"data: ")) for line in lines]


@pytest.mark.parametrize("first", FORMS)
def test_one_key_in_any_form(slow: Served, first: str) -> None:
    """While the answer is made, and after."""
    before, told = accepted(slow), {}
    threads = [
        threading.Thread(target=lambda form=form: told.update({form: events_of(slow, form, first)}))
        for form in (first, *(form for form in FORMS if form != first))
    ]
    for thread in threads:
        thread.start()
        wait_until(lambda: accepted(slow) == before + 1)
    for thread in threads:
        thread.join()
    told |= {f"{form} again": events_of(slow, form, first) for form in FORMS}
    assert len(told[first]) > 5, "a busy machine tells many tokens at once"
    for form, events in told.items():
        assert events == told[first], form
    assert accepted(slow) == before + 1


def test_a_call_and_a_request_share_their_answer_and_their_error(slow: Served) -> None:
    before, asked = accepted(slow), body()
    with connected(slow) as client:
        request = CreateMessageRequest(json_body=msgspec.json.encode(asked))
        answer, call = client.CreateMessage.with_call(request, metadata=[(FIELD, "both")])
        whole = slow.client.post(
            "/v1/messages", content=request.json_body, headers=KEYED | {FIELD: "both"}
        )
        assert message_json(answer) == whole.json()
        assert whole.headers["idempotency-replayed"] == "true"
        assert dict(call.initial_metadata())["request-id"] == whole.headers["request-id"]
        again, call = client.CreateMessage.with_call(request, metadata=[(FIELD, "both")])
        assert again == answer and dict(call.initial_metadata())["idempotency-replayed"] == "true"
        assert accepted(slow) == before + 1
        fails(
            lambda: list(client.stream(request, metadata=[(FIELD, "both")])),
            grpc.StatusCode.INVALID_ARGUMENT,
            "The answer under this idempotency-key is a whole message. Ask for it so, or take a new"
            " key.",
        )
        for key, text in [
            ("bad", msgspec.json.encode(body(max_tokens=-1))),
            ("deep", b'{"a":' + b"[" * 9999),
        ]:
            wrong = CreateMessageRequest(json_body=text)
            first = slow.client.post(
                "/v1/messages", content=wrong.json_body, headers=KEYED | {FIELD: key}
            )
            assert first.status_code == 400
            for _ in range(2):
                fails(
                    partial(client.CreateMessage, wrong, metadata=[(FIELD, key)]),
                    grpc.StatusCode.INVALID_ARGUMENT,
                    first.json()["error"]["message"],
                )


def test_an_error_within_a_stream_is_told_in_each_form() -> None:
    """The engine is lost while three read one answer."""
    told: dict[str, Any] = {}
    with serve(step_delay_us=5000, grpc=True) as served:

        def read(form: str) -> None:
            try:
                told[form] = events_of(served, form, "lost", check=False)[-1]["error"]["message"]
            except grpc.RpcError as error:
                told[form] = error.details()

        threads = [threading.Thread(target=read, args=(form,)) for form in FORMS]
        for thread in threads:
            thread.start()
        outcomes = served.call(lambda: served.server.part(Outcomes))
        wait_until(lambda: served.call(lambda: len(readers(outcomes, "lost")) == len(FORMS)))
        served.call(served.server.engine_lost)
        for thread in threads:
            thread.join()
    assert told == dict.fromkeys(FORMS, "The model engine was lost during this request.")


def readers(outcomes: Any, key: str) -> list[Any]:
    """Whose streams have begun."""
    kept = [mine[key.encode()] for mine in outcomes._known.values() if key.encode() in mine]
    return [reader for outcome in kept for reader in outcome._readers if reader.streaming]


def test_what_would_succeed_at_another_try_is_not_kept(
    slow: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise ApiError("overloaded").after(1)

    with monkeypatch.context() as patch:
        patch.setattr(slow.server, "engine_or_refuse", refuse)
        assert ask(slow, "later").status_code == 529
    assert ask(slow, "later").status_code == 200


@pytest.mark.parametrize("stream", [False, True], ids=("whole", "stream"))
def test_a_key_belongs_to_its_tenant(tmp_path: Path, stream: bool) -> None:
    """Named keys, keys of the settings, and whatever they ask for: nobody reads another's answer,
    learns that there is one, or keeps another from theirs."""
    path = tmp_path / "keys.toml"
    keys = [add_key(path, name, KeyLimits()) for name in ("alice", "bob")] + ["plain", "other"]
    settings = EdgeSettings(keys_file=str(path), api_keys=("plain", "other"))

    def ask_as(key: str, content: str) -> Any:
        headers = {FIELD: "the same", "x-api-key": key}
        asked = body(content, stream=stream)
        return served.client.post("/v1/messages", json=asked, headers=headers)

    with serve(settings=settings) as served:
        told = [ask_as(key, "say hello") for key in keys]
        assert [one.status_code for one in told] == [200] * len(keys)
        assert not any("idempotency-replayed" in one.headers for one in told)
        assert len({one.headers["request-id"] for one in told}) == len(keys)
        assert accepted(served) == len(keys)
        for key, first in zip(keys, told, strict=True):
            again = ask_as(key, "say hello")
            assert again.content == first.content and FIELD not in again.headers
            assert again.headers["idempotency-replayed"] == "true"
            check_error(ask_as(key, "say stop"), 422, "This idempotency-key was used for another")
        assert accepted(served) == len(keys)


def test_a_key_is_of_one_path(slow: Served) -> None:
    """A body may mean something at several of them."""
    asked, headers = body(), {FIELD: "one path"}
    assert slow.client.post("/v1/messages", json=asked, headers=headers).status_code == 200
    for path in ("/v1/chat/completions", "/v1/messages/count_tokens", "/v1/messages?beta=true"):
        reply = slow.client.post(path, json=asked, headers=headers)
        assert reply.status_code == 422 and "another request" in reply.text, path


def test_the_room_of_what_was_dropped_is_free_again(
    slow: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = len(ask(slow, "size").content)
    monkeypatch.setattr(limits, "OUTCOMES_MAX", 2)
    monkeypatch.setattr(limits, "OUTCOME_BYTES_MAX", 4 * size)
    for number in range(12):
        ids = {ask(slow, f"room {number}").json()["id"] for _ in range(2)}
        assert len(ids) == 1, number


KEPT_STATUSES = (400, 404, 405, 413, 422)
"""Statuses of errors that a retry would get again."""


def test_of_every_row_of_the_table_only_what_lasts_is_kept() -> None:
    calls: dict[str, int] = {}

    def raise_once(server: Any, exchange: Exchange) -> None:
        code = exchange.request.segments()[-1]
        calls[code] = calls.get(code, 0) + 1
        if calls[code] == 1:
            names = [name for _, name, _, _ in string.Formatter().parse(ERRORS[code].text) if name]
            raise ApiError(code, **dict.fromkeys(names, 7))
        exchange.send_json(200, b"{}")

    with serve(routes=Routes({"/v1/messages/{code}": {"POST": raise_once}}, SHAPES)) as served:
        for code, kind in ERRORS.items():
            replies = [
                served.client.post(f"/v1/messages/{code}", headers={FIELD: code}) for _ in range(2)
            ]
            assert replies[0].status_code == kind.status
            is_kept = kind.status in KEPT_STATUSES
            assert replies[1].status_code == (kind.status if is_kept else 200), code
            assert calls[code] == (1 if is_kept else 2), code


def test_bytes_number_and_age_are_bounded(slow: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "OUTCOMES_MAX", 2)
    ids = {key: ask(slow, key).json()["id"] for key in ("x", "y", "z")}
    assert ask(slow, "z").json()["id"] == ids["z"]
    assert ask(slow, "x").json()["id"] != ids["x"]
    monkeypatch.setattr(limits, "OUTCOME_BYTES_MAX", 10)
    assert ask(slow, "large").json()["id"] != ask(slow, "large").json()["id"]
    monkeypatch.undo()
    monkeypatch.setattr(limits, "OUTCOME_SECONDS", 0.0)
    assert ask(slow, "old").json()["id"] != ask(slow, "old").json()["id"]


def test_what_is_kept_holds_no_request(slow: Served) -> None:
    """Neither whole answers and streams, nor errors, with where they were raised."""

    def at_work() -> int:
        gc.collect()
        # Not isinstance, for which lazy objects of other packages load what they stand for.
        return sum(type(one) in (Request, Exchange) for one in gc.get_objects())

    def pieces(key: bytes) -> list[bytes]:
        outcomes = slow.server.part(Outcomes)
        return next(mine[key]._content for mine in outcomes._known.values() if key in mine)

    before = at_work()
    for number in range(10):
        assert ask(slow, f"whole-{number}").status_code == 200
        assert ask(slow, f"stream-{number}", "count", stream=True).status_code == 200
        assert ask(slow, f"wrong-{number}", max_tokens=-1).status_code == 400
    assert at_work() <= before + 2
    assert len(slow.call(lambda: pieces(b"stream-9"))) == 1


def test_http_1_0_gets_it_unframed(slow: Served) -> None:
    data = http_post(body(), idempotency_key="v0").replace(b"HTTP/1.1", b"HTTP/1.0")
    for _ in range(2):
        with slow.connect() as sock:
            assert exchange_bytes(sock, data).status == 200


def test_who_comes_back_and_leaves_again_has_all_of_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ends: list[Any] = []
    monkeypatch.setattr(Outcomes, "later", lambda _, end: ends.append(end))
    key = {"idempotency-key": "twice"}
    with serve(step_delay_us=5000) as served:
        for times in (1, 2):
            asked = body("count", **COUNT)
            with served.client.stream("POST", "/v1/messages", json=asked, headers=key) as reply:
                next(reply.iter_raw())
            wait_until(lambda times=times: len(ends) == times)
        served.call(ends[0])
        told = served.stats()["generated_tokens"]
        wait_until(lambda: served.stats()["generated_tokens"] > told + 5)
        assert not served.idle(), "the first time is over, the second is not"
        served.call(ends[1])
        wait_until(served.idle)

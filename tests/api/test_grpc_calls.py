"""Calls without a transport: what the mapping does by itself, told by a carrier that writes down
what it is given."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from harness import Served, serve, wait_until
from sublimate.edge.errors import TABLE, ApiError
from sublimate.edge.grpc.call import Call, check_call, is_call
from sublimate.edge.grpc.status import Status
from sublimate.edge.wire import Header
from sublimate.v1 import frames_pb2
from sublimate.v1.messages_pb2 import CreateMessageRequest

CREATE = "/sublimate.v1.Messages/CreateMessage"
STREAM = "/sublimate.v1.Messages/StreamMessage"


class Written:
    """A carrier."""

    protocol = "written"

    def __init__(self) -> None:
        self.fields: Sequence[Header] | None = None
        self.told: list[bytes] = []
        self.status: Status | None = None
        self.unsent = 0

    def head(self, fields: Sequence[Header]) -> None:
        assert self.fields is None and self.status is None
        self.fields = fields

    def messages(self, messages: Sequence[bytes]) -> None:
        assert self.fields is not None and self.status is None
        self.told += messages

    def end(self, status: Status) -> None:
        assert self.status is None, "a call ends once"
        self.status = status

    def unsent_bytes(self) -> int:
        return self.unsent

    def base_url(self) -> str:
        return "https://127.0.0.1:1"


@pytest.fixture(scope="module")
def slow() -> Iterator[Served]:
    with serve(step_delay_us=3000) as served:
        yield served
        assert served.idle()


def request(text: str = "say hello") -> bytes:
    message = CreateMessageRequest(model="tiny", max_tokens=64)
    message.messages.add(role="user", text=text)
    return message.SerializeToString()


def begun(served: Served, path: str, messages: Sequence[bytes], **fields: bytes) -> Any:
    """(call, carrier) of a call whose client has said all."""
    carrier = Written()
    named = {name.replace("_", "-").encode(): value for name, value in fields.items()}

    def begin() -> Call:
        call = Call(served.server, carrier, path, named)
        call.begin()
        for message in messages:
            call.message(message)
        call.end_of_messages()
        return call

    return served.call(begin), carrier


def ended(served: Served, carrier: Written) -> Status:
    wait_until(lambda: carrier.status is not None)
    wait_until(served.idle)
    assert carrier.status is not None
    return carrier.status


def test_an_answer_and_a_stream(slow: Served) -> None:
    _, carrier = begun(slow, CREATE, [request()])
    assert ended(slow, carrier) == Status()
    answer = frames_pb2.Message.FromString(carrier.told[0])
    assert len(carrier.told) == 1 and answer.content[0].text.text == "Hello there!"
    _, carrier = begun(slow, STREAM, [request()])
    assert ended(slow, carrier) == Status()
    events = [frames_pb2.StreamEvent.FromString(told) for told in carrier.told]
    assert events[0].HasField("message_start") and events[-1].HasField("message_stop")
    names = [name for name, _ in carrier.fields or ()]
    assert "request-id" in names and "content-type" not in names


def test_a_deadline_is_the_servers_too(slow: Served) -> None:
    _, carrier = begun(slow, STREAM, [request("count")], grpc_timeout=b"60m")
    status = ended(slow, carrier)
    assert (status.code, status.text) == (4, TABLE["call_deadline"].text)
    assert carrier.told, "the stream had begun"
    _, carrier = begun(slow, CREATE, [request()], grpc_timeout=b"1n")
    assert ended(slow, carrier).code == 4
    _, carrier = begun(slow, CREATE, [request()], grpc_timeout=b"1 second")
    assert ended(slow, carrier).text.startswith("grpc-timeout: expected")


def test_a_coding_of_messages_is_refused(slow: Served) -> None:
    _, carrier = begun(slow, CREATE, [request()], grpc_encoding=b"br")
    assert ended(slow, carrier).code == 12
    _, carrier = begun(slow, CREATE, [request()], grpc_encoding=b"identity")
    assert ended(slow, carrier).code == 0


def test_another_content_type_is_415() -> None:
    for kind in (b"application/grpc", b"application/grpc+proto", b"application/grpc; a=b"):
        assert is_call({b"content-type": kind})
        check_call("POST", {b"content-type": kind})
    for verb, kind in (("GET", b"application/grpc"), ("POST", b"application/grpc+json")):
        with pytest.raises(ApiError) as caught:
            check_call(verb, {b"content-type": kind})
        assert caught.value.kind.status == 415
    assert not is_call({b"content-type": b"application/json"}) and not is_call({})


def test_a_cancel_at_every_point(slow: Served) -> None:
    """Nothing is sent after it, and nothing runs on."""

    def never(call: Call) -> None: ...

    def headed(call: Call) -> None:
        call.begin()

    def said(call: Call) -> None:
        call.begin()
        call.message(request("count"))

    def asked(call: Call) -> None:
        said(call)
        call.end_of_messages()

    steps: list[Callable[[Call], None]] = [never, headed, said, asked]
    for step in steps:
        carrier = Written()

        def run(step: Callable[[Call], None] = step, carrier: Written = carrier) -> Call:
            call = Call(slow.server, carrier, STREAM, {})
            step(call)
            call.cancelled()
            call.cancelled()
            asked(call)
            return call

        assert slow.call(run).has_ended
        wait_until(slow.idle)
        assert carrier.status is None and not carrier.told


def test_a_long_message_is_read_aside_and_may_be_cancelled_meanwhile(slow: Served) -> None:
    tasks = slow.call(lambda: len(asyncio.all_tasks(slow.loop)))
    long = request("é" * 50_000)
    _, carrier = begun(slow, "/sublimate.v1.Messages/CountTokens", [long])
    assert ended(slow, carrier).code == 0
    _, carrier = begun(slow, CREATE, [request("x" * 50_000)])
    assert ended(slow, carrier).text.startswith("prompt is too long")
    carrier = Written()

    def leave() -> None:
        call = Call(slow.server, carrier, "/sublimate.v1.Messages/CountTokens", {})
        call.begin()
        call.message(long)
        call.end_of_messages()
        call.cancelled()

    slow.call(leave)
    wait_until(lambda: slow.call(lambda: len(asyncio.all_tasks(slow.loop))) == tasks)
    assert carrier.status is None


def test_a_bug_in_a_method_is_an_internal_error(
    slow: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sublimate.edge.grpc.route.Request", None)
    _, carrier = begun(slow, CREATE, [request()])
    status = ended(slow, carrier)
    assert (status.code, status.text) == (13, TABLE["internal"].text)

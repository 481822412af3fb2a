"""How a streamed answer ends that did not complete: its last text, then the table's error."""

from typing import Any, cast

import msgspec
import numpy as np
import pytest

from sublimate.api.messages.answers import StreamedMessage
from sublimate.edge.errors import TABLE, ApiError, error_event
from sublimate.edge.exchange import Exchange, Request
from sublimate.edge.framing import Http1Wire
from sublimate.edge.generation import Generation, Prompt
from sublimate.edge.observe.answer_metrics import AnswerMetrics
from sublimate.edge.observe.timing import Timing
from sublimate.edge.sampling import SamplingFields, check_sampling
from sublimate.edge.stream import Answer
from sublimate.model.turns import said

TEXT = b'event: content_block_delta\ndata: {"type":"content_block_delta"}\n\n'


class Wire:
    """An exchange that keeps what was written."""

    request_id = "req_1"
    started_seconds = 0.0

    def __init__(self, broken: bool = False) -> None:
        self.streaming = False
        self.written: list[bytes] = []
        self.errors: list[ApiError] = []
        self._broken = broken

    def start_stream(self, headers: Any, data: bytes, content_type: str) -> bool:
        del headers, content_type
        self.streaming = True
        return self.write(data)

    def write(self, data: bytes) -> bool:
        self.written.append(data)
        return False

    def fail(self, error: ApiError) -> None:
        if self._broken:
            raise RuntimeError("planted")
        self.errors.append(error)
        if self.streaming:
            self.written.append(error_event(error, self.request_id))


class Event:
    """What the core says of a request that failed."""

    key, cached_tokens, bucket_rows, output_tokens = 1, 0, 8, 3
    finished, stop_sequence, text = True, None, ""
    submitted_ns = admitted_ns = first_sent_ns = 0

    def __init__(self, reason: str, data: bytes, admitted: bool, refuse_reason: str = "") -> None:
        self.stop_reason, self.refuse_reason = reason, refuse_reason
        self.data, self.admitted = data, admitted


def answer_of(wire: Wire, ended: list[Answer]) -> StreamedMessage:
    sampling = check_sampling(
        SamplingFields(max_tokens=9), vocabulary=9, stop_ids_max=1, bias_max=1
    )
    generation = Generation(
        model_name="tiny", turns=(said("user", "a"),), sampling=sampling, profile="low-latency"
    )
    return StreamedMessage(
        cast(Exchange, wire),
        AnswerMetrics(),
        Timing(0.0),
        Prompt(generation, np.zeros(3, np.int32), (0, 0, 0)),
        message_id="msg_1",
        ping_seconds=8.0,
        headers=lambda: [],
        on_end=ended.append,
    )


@pytest.mark.parametrize("reason", ["failed", "cancelled", "refused"])
def test_the_last_text_comes_before_the_one_error(reason: str) -> None:
    wire, ended = Wire(), []
    answer = answer_of(wire, ended)
    answer.on_event(cast(Any, Event(reason, TEXT, admitted=True)), 1.0)
    assert wire.written[0] == TEXT and len(wire.written) == 2
    name, _, payload = wire.written[1].partition(b"\ndata: ")
    assert name == b"event: error"
    error = msgspec.json.decode(payload)
    assert error["request_id"] == "req_1"
    assert error["error"]["message"] in [kind.text for kind in TABLE.values()]
    assert ended == [answer]


def test_before_the_stream_began_it_is_a_plain_error() -> None:
    wire, ended = Wire(), []
    answer = answer_of(wire, ended)
    answer.on_event(cast(Any, Event("refused", b"", False, "queue_full")), 1.0)
    assert not wire.written and [error.code for error in wire.errors] == ["overloaded"]
    assert ended == [answer]


def test_an_answer_whose_error_cannot_be_written_ends_too() -> None:
    wire, ended = Wire(broken=True), []
    answer = answer_of(wire, ended)
    with pytest.raises(RuntimeError):
        answer.broken()
    assert ended == [answer]
    answer.broken()
    assert ended == [answer], "once"


class Connection:
    """A connection that keeps what was sent."""

    descriptor = -1
    standing = ()

    def __init__(self) -> None:
        self.sent = b""

    def send(self, data: bytes) -> bool:
        self.sent += data
        return False

    def answered(self, exchange: Exchange, keep_alive: bool) -> None:
        del exchange
        assert keep_alive


def test_a_stream_has_one_head_and_nothing_before_or_after_it() -> None:
    connection = Connection()
    wire = Http1Wire(cast(Any, connection), True, True)
    exchange = Exchange(wire, Request("POST", b"/", {}))
    with pytest.raises(RuntimeError):
        exchange.write(b"x")
    exchange.start_stream([], exchange.framed(b"first"))
    with pytest.raises(RuntimeError):
        exchange.start_stream([], b"")
    exchange.write(exchange.framed(b"second"))
    exchange.finish(exchange.framed(b"last"))
    exchange.finish(b"never")
    with pytest.raises(RuntimeError):
        exchange.write(b"x")
    with pytest.raises(RuntimeError):
        exchange.start_stream([], b"")
    head, _, rest = connection.sent.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ") and b"transfer-encoding: chunked" in head
    assert rest == b"5\r\nfirst\r\n6\r\nsecond\r\n4\r\nlast\r\n0\r\n\r\n"

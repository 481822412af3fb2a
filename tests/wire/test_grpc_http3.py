"""gRPC over HTTP/3: the same calls as over HTTP/2, byte by byte as they lie in the body, with their
status behind it or, where nothing was said before, in the head."""

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from aioquic.h3.connection import ErrorCode
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from grammar import Folded, check_stream
from harness import Served, serve, wait_until
from http3_client import Answer, Client
from sublimate.config import EdgeSettings
from sublimate.edge import limits
from sublimate.edge.grpc.framing import MessageReader, framed_message
from sublimate.edge.limits import HttpLimits
from sublimate.v1 import frames_pb2, messages_pb2
from sublimate.v1.messages_pb2 import CreateMessageRequest
from sublimate.wire.frames import encode_sse
from test_early_data import early, ticket_of

SERVICE = "/sublimate.v1.Messages"
MANY = 4000


@pytest.fixture
def client(served: Served, pair: tuple[Path, Path]) -> Iterator[Client]:
    one = Client(served.server.ports["h3"], pair[0])
    yield one
    one.close()
    wait_until(served.idle)


def message(text: str = "say hello", max_tokens: int = 64) -> bytes:
    request = CreateMessageRequest(model="tiny", max_tokens=max_tokens)
    request.messages.add(role="user", text=text)
    return framed_message(request.SerializeToString())


HEAD = {"content_type": "application/grpc+proto", "te": "trailers"}


def call(client: Client, path: str, body: bytes, **more: str) -> Answer:
    return client.ask("POST", path, body, **{**HEAD, **more})


def told(answer: Answer, kind: Any) -> list[Any]:
    """The messages of an answer that ended well."""
    assert answer.status == 200 and answer.headers["content-type"] == "application/grpc+proto"
    assert answer.trailers["grpc-status"] == "0", answer.trailers
    reader = MessageReader(1 << 20)
    messages = reader.feed(answer.body)
    assert reader.is_between
    return [kind.FromString(one) for one in messages]


def failure(answer: Answer, *, begun: bool = False) -> tuple[int, str]:
    """(code, text) of an error; without messages before it all of it is in the head."""
    assert answer.status == 200
    if not begun:
        assert not answer.trailers and not answer.body, "Trailers-Only"
    fields = answer.trailers if begun else answer.headers
    code, text = int(fields["grpc-status"]), unquote(fields["grpc-message"])
    encoded = fields["grpc-status-details-bin"]
    raw = base64.b64decode(encoded + "=" * (-len(encoded) % 4))
    status, error = messages_pb2.Status.FromString(raw), frames_pb2.Error()
    assert (status.code, status.message) == (code, text)
    assert status.details[0].Unpack(error) and error.request_id.startswith("req_")
    return code, text


def folded(answer: Answer) -> Folded:
    return check_stream(b"".join(map(encode_sse, told(answer, frames_pb2.StreamEvent))))


# ---- answers -------------------------------------------------------------------------------------
def test_a_whole_answer_and_a_stream(served: Served, client: Client) -> None:
    answer = call(client, f"{SERVICE}/CreateMessage", message())
    (whole,) = told(answer, frames_pb2.Message)
    assert whole.content[0].text.text == "Hello there!"
    assert answer.headers["request-id"].startswith("req_") and answer.headers["x-layer"]
    stream = call(client, f"{SERVICE}/StreamMessage", message())
    assert folded(stream).text == "Hello there!"
    transport = "gRPC over HTTP/3"
    counts = served.call(lambda: dict(served.server.metrics.calls))
    assert counts[transport, "ok"] >= 2
    assert served.call(lambda: served.server.metrics.protocols[transport]) >= 2


def test_one_answer_may_be_larger_than_what_may_wait_unread(pair: tuple[Path, Path]) -> None:
    long = "".join(f"{number} " for number in range(4000))
    assert len(long) > limits.QUIC_UNSENT_BYTES_MIN
    settings = EdgeSettings(tls_certificate=str(pair[0]), tls_key=str(pair[1]))
    more: Any = {"answers": {"go on": long}, "limits": HttpLimits(unsent_bytes_max=1024)}
    more |= {"context_tokens": 65_536, "step_delay_us": 20}
    with serve(settings=settings, http3=True, **more) as served:
        one = Client(served.server.ports["h3"], pair[0])
        answer = call(one, f"{SERVICE}/CreateMessage", message("go on", 32_000))
        assert told(answer, frames_pb2.Message)[0].content[0].text.text == long
        one.close()


def test_other_methods(client: Client) -> None:
    empty = framed_message(b"")
    (page,) = told(call(client, f"{SERVICE}/ListModels", empty), messages_pb2.ListModelsResponse)
    assert page.data[0].id == "tiny"
    counted = call(client, f"{SERVICE}/CountTokens", message())
    assert told(counted, messages_pb2.CountTokensResponse)[0].input_tokens > 0
    checked = call(client, "/grpc.health.v1.Health/Check", empty)
    (health,) = told(checked, health_pb2.HealthCheckResponse)
    assert health.status == health_pb2.HealthCheckResponse.SERVING


def test_reflection_answers_while_the_client_asks(client: Client) -> None:
    kind = reflection_pb2.ServerReflectionRequest
    first = framed_message(kind(list_services="").SerializeToString())
    path = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
    stream_id = client.begin("POST", path, first, is_end=False, **HEAD)
    answer = client.answers[stream_id]
    client.run(lambda: bool(answer.body))
    assert not answer.is_over
    second = framed_message(kind(file_containing_symbol="nope").SerializeToString())
    client.h3.send_data(stream_id, second, True)
    client.run(lambda: answer.is_over)
    kinds = [
        one.WhichOneof("message_response")
        for one in told(answer, reflection_pb2.ServerReflectionResponse)
    ]
    assert kinds == ["list_services_response", "error_response"]


# ---- errors --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("path", "body", "more", "expected"),
    [
        (f"{SERVICE}/CreateMessage", framed_message(b""), {}, (3, "model: field required")),
        (f"{SERVICE}/Nope", framed_message(b""), {}, (12, "There is no such gRPC method here.")),
        (f"{SERVICE}/CreateMessage", b"", {}, (12, "This method takes one message.")),
        (f"{SERVICE}/CreateMessage", message() * 2, {}, (12, "This method takes one message.")),
        (
            f"{SERVICE}/CreateMessage",
            message()[:-1],
            {},
            (13, "The messages of the call are cut wrong."),
        ),
        (f"{SERVICE}/CreateMessage", b"\x01" + message()[1:], {}, (13, "A message is marked as")),
        (f"{SERVICE}/CreateMessage", b"\0\xff\xff\xff\xff", {}, (8, "A message may have 33554432")),
        (f"{SERVICE}/CreateMessage", message(), {"grpc_encoding": "br"}, (12, "grpc-encoding:")),
        (f"{SERVICE}/CreateMessage", message(), {"grpc_timeout": "1s"}, (3, "grpc-timeout:")),
        (f"{SERVICE}/CreateMessage", message(), {"origin": "https://x.example"}, (7, "This serv")),
        (f"{SERVICE}/CreateMessage", message("a", 10**9), {"x_a": "b"}, (0, "")),
    ],
    ids=lambda value: "" if not isinstance(value, str) else value.rpartition("/")[2],
)
def test_errors(
    client: Client, path: str, body: bytes, more: dict[str, str], expected: tuple[int, str]
) -> None:
    answer = call(client, path, body, **more)
    if expected[0] == 0:
        assert told(answer, frames_pb2.Message)
        return
    code, text = failure(answer)
    assert code == expected[0] and text.startswith(expected[1])


def test_a_special_text_and_another_content_type(client: Client) -> None:
    name = "\t\nUnicode ☺ 😈 100%"
    request = CreateMessageRequest(model=name, max_tokens=1)
    request.messages.add(role="user", text="a")
    body = framed_message(request.SerializeToString())
    answer = call(client, f"{SERVICE}/CreateMessage", body)
    code, text = failure(answer)
    assert code == 5 and text.startswith(f"model: {name} is not served here.")
    path = f"{SERVICE}/CreateMessage"
    for verb, kind in (("POST", "application/grpc+json"), ("PUT", "application/grpc")):
        assert client.ask(verb, path, message(), content_type=kind).status == 415
    assert client.ask("POST", path, {}, content_type="application/json").status == 404


# ---- other ends ----------------------------------------------------------------------------------
def test_a_deadline_within_a_stream(served: Served, client: Client) -> None:
    answer = call(client, f"{SERVICE}/StreamMessage", message("count", MANY), grpc_timeout="1n")
    assert failure(answer) == (4, "The deadline of the call has passed.")
    wait_until(served.idle)


@pytest.mark.parametrize("after_first", [False, True])
def test_a_cancel_frees_its_slot(served: Served, client: Client, after_first: bool) -> None:
    before = served.call(lambda: dict(served.server.metrics.calls))
    key = ("gRPC over HTTP/3", "cancelled")
    body = message("count", MANY)
    if not after_first:
        body = body[:-1]  # of which the end never comes
    stream_id = client.begin("POST", f"{SERVICE}/StreamMessage", body, is_end=after_first, **HEAD)
    answer = client.answers[stream_id]
    if after_first:
        client.run(lambda: bool(answer.body) or answer.is_over)
    else:
        client.linger(0.1)
    client.quic.reset_stream(stream_id, ErrorCode.H3_REQUEST_CANCELLED) if not after_first else None
    client.quic.stop_stream(stream_id, ErrorCode.H3_REQUEST_CANCELLED)
    client.linger(0.2)
    wait_until(served.idle)
    ended = served.call(lambda: dict(served.server.metrics.calls))
    new = {outcome for outcome in ended if ended[outcome] != before.get(outcome)}
    # An answer may be faster than the cancel.
    assert new == {key} or (after_first and new == {("gRPC over HTTP/3", "ok")})


def test_a_client_that_vanishes_leaves_nothing(served: Served, pair: tuple[Path, Path]) -> None:
    one = Client(served.server.ports["h3"], pair[0])
    for _ in range(4):
        one.begin("POST", f"{SERVICE}/StreamMessage", message("count", MANY), **HEAD)
    one.linger(0.05)
    one.close()
    wait_until(served.idle)


def test_a_body_that_stops_has_a_deadline(client: Client) -> None:
    stream_id = client.begin(
        "POST", f"{SERVICE}/CreateMessage", message()[:4], is_end=False, **HEAD
    )
    answer = client.answers[stream_id]
    client.run(lambda: answer.is_over)
    assert failure(answer) == (4, "The request body did not arrive in time.")


def test_what_the_proto_calls_safe_is_answered_early(
    served: Served, pair: tuple[Path, Path]
) -> None:
    path = f"{SERVICE}/CountTokens"
    client, answer = early(served, pair, ticket_of(served, pair), "POST", path, message(), **HEAD)
    assert client.handshake is not None and client.handshake.early_data_accepted
    assert told(answer, messages_pb2.CountTokensResponse)[0].input_tokens > 0
    client.close()
    path = f"{SERVICE}/CreateMessage"
    client, answer = early(served, pair, ticket_of(served, pair), "POST", path, message(), **HEAD)
    assert failure(answer)[0] == 14, "UNAVAILABLE: clients repeat it"
    assert told(call(client, path, message()), frames_pb2.Message)
    client.close()
    keyed = {**HEAD, "idempotency_key": "early call"}
    client, answer = early(served, pair, ticket_of(served, pair), "POST", path, message(), **keyed)
    assert told(answer, frames_pb2.Message) and client.handshake.early_data_accepted
    client.close()

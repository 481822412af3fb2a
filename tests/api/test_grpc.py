"""The Messages API by gRPC over HTTP/2, called with grpcio: answers, errors, ends of every kind."""

import asyncio
import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from grammar import Folded, check_stream
from harness import WAIT_SECONDS, Served, body, serve, wait_until
from sublimate.config import EdgeSettings
from sublimate.edge.errors import TABLE, ApiError
from sublimate.edge.limits import HttpLimits
from sublimate.v1 import frames_pb2, layer_pb2, messages_pb2
from sublimate.v1.messages_pb2 import CreateMessageRequest
from sublimate.wire.frames import FrameDecoder, encode_sse, event_json, message_json

Code = grpc.StatusCode
SERVICE = "/sublimate.v1.Messages"
METHODS: dict[str, tuple[Any, Any]] = {
    "CreateMessage": (CreateMessageRequest, frames_pb2.Message),
    "CountTokens": (CreateMessageRequest, messages_pb2.CountTokensResponse),
    "ListModels": (messages_pb2.ListModelsRequest, messages_pb2.ListModelsResponse),
    "GetModel": (messages_pb2.GetModelRequest, messages_pb2.Model),
}


class Checked:
    """The events of a stream. One that ends well is checked by the grammar of the API's streams."""

    def __init__(self, call: Any) -> None:
        self.call = call
        self.events: list[frames_pb2.StreamEvent] = []

    def __iter__(self) -> Iterator[frames_pb2.StreamEvent]:
        for event in self.call:
            self.events.append(event)
            yield event
        assert self.call.code() is Code.OK
        check_stream(b"".join(map(encode_sse, self.events)))

    def folded(self) -> Folded:
        """All of it, put together."""
        return check_stream(b"".join(map(encode_sse, self)))


class Client:
    """A channel to a served gRPC port, and its methods by name."""

    def __init__(self, served: Served, **options: int) -> None:
        target = f"127.0.0.1:{served.server.ports['grpc']}"
        chosen = [(f"grpc.{name.replace('__', '.')}", value) for name, value in options.items()]
        self.channel = grpc.insecure_channel(target, options=chosen)

    def stream(self, request: CreateMessageRequest, **options: Any) -> Any:
        method = self.channel.unary_stream(
            f"{SERVICE}/StreamMessage",
            request_serializer=CreateMessageRequest.SerializeToString,
            response_deserializer=frames_pb2.StreamEvent.FromString,
        )
        return Checked(method(request, **options))

    def __getattr__(self, name: str) -> Any:
        request, answer = METHODS[name]
        return self.channel.unary_unary(
            f"{SERVICE}/{name}",
            request_serializer=request.SerializeToString,
            response_deserializer=answer.FromString,
        )


@contextlib.contextmanager
def connected(served: Served, **options: int) -> Iterator[Client]:
    client = Client(served, **options)
    with client.channel:
        yield client


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    info = {"compute_path": "direct-kernel", "resident_loop": True}
    with serve(grpc=True, info=info) as served:
        at_rest = tasks(served)
        yield served
        wait_until(served.idle)
        wait_until(lambda: tasks(served) == at_rest)
        assert served.engine.audit() == ""


def tasks(served: Served) -> int:
    return served.call(lambda: len(asyncio.all_tasks(served.loop)))


@pytest.fixture(scope="module")
def client(served: Served) -> Iterator[Client]:
    with connected(served) as client:
        yield client


def typed(text: str = "say hello", **fields: Any) -> CreateMessageRequest:
    request = CreateMessageRequest(model="tiny", **{"max_tokens": 64, **fields})
    request.messages.add(role="user", text=text)
    return request


def as_json(content: Any = "say hello", **fields: Any) -> CreateMessageRequest:
    return CreateMessageRequest(json_body=json.dumps(body(content, **fields)).encode())


def fails(call: Callable[[], Any], code: Code, text: str) -> Any:
    """The error of a call, looked at as a whole: status, text, details, request id."""
    with pytest.raises(grpc.RpcError) as caught:
        call()
    error: Any = caught.value
    assert (error.code(), error.details()) == (code, text)
    trailers = dict(error.trailing_metadata())
    status = messages_pb2.Status.FromString(trailers["grpc-status-details-bin"])
    assert (status.code, status.message) == (code.value[0], text)
    told = frames_pb2.Error()
    assert status.details[0].Unpack(told) and told.message == text
    assert told.request_id.startswith("req_")
    assert trailers.get("request-id", told.request_id) == told.request_id
    return error


def ends(served: Served, *, since: dict[tuple[str, str], int] | None = None) -> dict[Any, int]:
    """Calls by how they ended."""
    now = served.call(lambda: dict(served.server.metrics.calls))
    return {key: count - (since or {}).get(key, 0) for key, count in now.items()}


# ---- answers -------------------------------------------------------------------------------------
def test_a_whole_answer_and_its_headers(client: Client) -> None:
    answer, call = client.CreateMessage.with_call(typed())
    assert [block.text.text for block in answer.content] == ["Hello there!"]
    assert answer.stop_reason == frames_pb2.STOP_REASON_END_TURN
    assert answer.id.startswith("msg_") and answer.model == "tiny"
    assert answer.usage.output_tokens == len("Hello there!") + 1
    head = dict(call.initial_metadata())
    assert head["request-id"].startswith("req_") and head["x-compute-path"] == "direct-kernel"
    assert "content-length" not in head and call.code() is Code.OK


def test_the_answer_is_that_of_http(served: Served, client: Client) -> None:
    for fields in ({}, {"max_tokens": 3}, {"stop_sequences": ["the"]}, {"stream": True}):
        told = client.CreateMessage(as_json(**fields))
        reply = served.message(**{**fields, "stream": False}).json()
        assert [block.text.text for block in told.content] == [
            block["text"] for block in reply["content"]
        ]
        name = frames_pb2.StopReason.Name(told.stop_reason)
        assert name == f"STOP_REASON_{reply['stop_reason'].upper()}"
        assert told.usage.output_tokens == reply["usage"]["output_tokens"]
        assert told.HasField("stop_sequence") == (reply["stop_sequence"] is not None)


@pytest.mark.parametrize("text", ["say hello", "say utf8", "say nothing", "say broken", "count"])
def test_a_stream_equals_the_whole_answer_and_that_of_http(
    served: Served, client: Client, text: str
) -> None:
    whole = message_json(client.CreateMessage(typed(text)))
    folded = client.stream(typed(text)).folded()
    for name in ("content", "stop_reason", "stop_sequence"):
        assert folded.message[name] == whole[name]
    theirs = check_stream(served.message(text, stream=True).content)
    assert theirs.message == {**folded.message, "id": theirs.message["id"]}


def test_events_come_one_by_one_as_the_core_writes_them(served: Served, client: Client) -> None:
    stream = client.stream(typed("say hello"))
    told = [event_json(event) for event in stream]
    assert dict(stream.call.initial_metadata())["x-compute-path"] == "direct-kernel"
    frames = served.client.post(
        "/v1/messages",
        json=body(stream=True),
        headers={"accept": "application/octet-stream"},
    ).content
    assert [event["type"] for event in told][:3] == [
        "message_start",
        "content_block_start",
        "content_block_delta",
    ]
    theirs = [event_json(event) for event in FrameDecoder().feed(frames)]
    text, same = ("".join(e["delta"].get("text", "") for e in events if "delta" in e)
                  for events in (told, theirs))  # fmt: skip
    assert text == same == "Hello there!"


def test_tokens_are_counted_and_models_listed(served: Served, client: Client) -> None:
    expected = served.client.post("/v1/messages/count_tokens", json=body()).json()
    assert client.CountTokens(typed()).input_tokens == expected["input_tokens"]
    page = served.client.get("/v1/models").json()
    told = client.ListModels(messages_pb2.ListModelsRequest())
    assert [model.id for model in told.data] == [entry["id"] for entry in page["data"]]
    assert (told.first_id, told.last_id, told.has_more) == ("tiny", page["last_id"], False)
    first = client.ListModels(messages_pb2.ListModelsRequest(limit=1))
    assert [model.id for model in first.data] == ["tiny"] and first.has_more
    model = client.GetModel(messages_pb2.GetModelRequest(model_id="tiny"))
    entry = served.client.get("/v1/models/tiny").json()
    for field in ("id", "display_name", "created_at", "max_tokens", "lifecycle", "template"):
        assert getattr(model, field) == entry[field]
    assert model.capabilities["thinking"]["supported"] is False


def test_the_policy_is_the_servers(served: Served, client: Client) -> None:
    call = client.channel.unary_unary(
        "/sublimate.v1.Layer/GetPolicy",
        request_serializer=layer_pb2.GetPolicyRequest.SerializeToString,
        response_deserializer=layer_pb2.GetPolicyResponse.FromString,
    )
    told = call(layer_pb2.GetPolicyRequest())
    assert told.digest == served.client.get("/livez").headers["x-layer-config"]
    assert told.policy.max_tokens_per_shard > 0


def test_a_large_message(served: Served, client: Client) -> None:
    """large_unary: read on a worker thread, within the context of a counting request."""
    text = "é" * 150_000
    counted = client.CountTokens(typed(text)).input_tokens
    reply = served.client.post("/v1/messages/count_tokens", json=body(text)).json()
    assert counted == reply["input_tokens"] > 300_000


# ---- errors --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("request_message", "text"),
    [
        (CreateMessageRequest(), "model: field required"),
        (
            CreateMessageRequest(json_body=b"{"),
            "The request body is not valid JSON: it ends too early, at byte 1.",
        ),
        (CreateMessageRequest(json_body=b"\xef\xbb\xbf{}"), "model: field required"),
        (
            CreateMessageRequest(json_body=b"{}", model="tiny"),
            "json_body: excludes all other fields",
        ),
        (CreateMessageRequest(model="tiny", max_tokens=1), "messages: field required"),
        (typed(temperature=3.0), "temperature: expected a number from 0 to 2"),
        (typed(temperature=float("nan")), "temperature: expected a finite number"),
    ],
    ids=["empty", "json", "F20 mark", "both", "messages", "range", "nan"],
)
def test_status_code_and_message(
    client: Client, request_message: CreateMessageRequest, text: str
) -> None:
    error = fails(lambda: client.CreateMessage(request_message), Code.INVALID_ARGUMENT, text)
    assert not error.initial_metadata(), "Trailers-Only"
    assert dict(error.trailing_metadata())["x-layer"]


def test_special_status_message(client: Client) -> None:
    name = "\t\ntest with whitespace\r\nand Unicode BMP ☺ and non-BMP 😈 100%\t\n"
    request = CreateMessageRequest(model=name, max_tokens=1)
    request.messages.add(role="user", text="a")
    text = ApiError("unknown_model", model=name, served="tiny").text
    fails(lambda: client.CreateMessage(request), Code.NOT_FOUND, text)


def test_unimplemented_method_and_service(client: Client) -> None:
    for path in (f"{SERVICE}/Nope", "/grpc.testing.UnimplementedService/UnimplementedCall"):
        call = client.channel.unary_unary(path)
        fails(lambda call=call: call(b""), Code.UNIMPLEMENTED, "There is no such gRPC method here.")


def test_what_is_no_message_of_the_method(client: Client) -> None:
    call = client.channel.unary_unary(f"{SERVICE}/CreateMessage")
    fails(lambda: call(b"\xff"), Code.INTERNAL, "The message is not one of this method's.")


@pytest.mark.parametrize("count", [0, 2])
def test_one_message_is_taken(client: Client, count: int) -> None:
    call = client.channel.stream_unary(
        f"{SERVICE}/CreateMessage", request_serializer=CreateMessageRequest.SerializeToString
    )
    requests = [typed()] * count
    fails(lambda: call(iter(requests)), Code.UNIMPLEMENTED, "This method takes one message.")


def test_a_message_beyond_the_bound() -> None:
    with serve(grpc=True, limits=HttpLimits(body_bytes_max=1000)) as served:
        with connected(served) as client:
            with pytest.raises(grpc.RpcError) as caught:
                client.CreateMessage(typed("x" * 2000))
            error: Any = caught.value
            assert error.code() is Code.RESOURCE_EXHAUSTED
            assert client.CreateMessage(typed()).content
        assert served.idle()


def test_keys_limits_and_what_a_client_is_told(tmp_path: Any) -> None:
    settings = EdgeSettings(api_keys=("secret",), data_dir=str(tmp_path))
    with serve(grpc=True, settings=settings) as served, connected(served) as client:
        text = "A valid API key is needed, in x-api-key or as Authorization: Bearer."
        error = fails(lambda: client.CreateMessage(typed()), Code.UNAUTHENTICATED, text)
        assert dict(error.trailing_metadata())["x-should-retry"] == "false"
        for name, value in (("x-api-key", "secret"), ("authorization", "Bearer secret")):
            assert client.CreateMessage(typed(), metadata=((name, value),)).content
        twice = (("authorization", "Bearer a"), ("authorization", "Bearer b"))
        fails(
            lambda: client.CreateMessage(typed(), metadata=twice),
            Code.INVALID_ARGUMENT,
            "The HTTP request is malformed.",
        )
        many = tuple((f"x-field-{index}", "1") for index in range(101))
        with pytest.raises(grpc.RpcError) as caught:
            client.CreateMessage(typed(), metadata=many)
        assert caught.value.code() is Code.RESOURCE_EXHAUSTED  # type: ignore[attr-defined]
        health = health_pb2_grpc.HealthStub(client.channel)
        assert health.Check(health_pb2.HealthCheckRequest()).status == SERVING, "open, as /readyz"
        with pytest.raises(grpc.RpcError) as caught:
            list(ProtoReflectionDescriptorDatabase(client.channel).get_services())
        assert caught.value.code() is Code.UNAUTHENTICATED  # type: ignore[attr-defined]
        served.call(lambda: served.server.engine_lost())
        error = fails(
            lambda: client.CreateMessage(typed(), metadata=(("x-api-key", "secret"),)),
            Code.UNAVAILABLE,
            "The model engine is not available now. Try again soon.",
        )
        assert dict(error.trailing_metadata())["retry-after"] == "1"


def test_a_foreign_origin_and_a_profile(client: Client) -> None:
    fails(
        lambda: client.CreateMessage(typed(), metadata=(("origin", "https://elsewhere.example"),)),
        Code.PERMISSION_DENIED,
        TABLE["origin_refused"].text,
    )
    assert client.CreateMessage(typed(execution_profile="low-latency")).content
    fails(
        lambda: client.CreateMessage(typed(execution_profile="fast")),
        Code.INVALID_ARGUMENT,
        "execution_profile: expected one of low-latency, high-throughput, long-context",
    )


def test_compressed_messages_of_a_client_are_read(client: Client) -> None:
    assert client.CreateMessage(typed(), compression=grpc.Compression.Gzip).content


# ---- other ends ----------------------------------------------------------------------------------
@pytest.fixture
def slow() -> Iterator[Served]:
    with serve(grpc=True, step_delay_us=5000) as served:
        yield served


def test_a_deadline_ends_the_request_in_the_engine(slow: Served) -> None:
    """timeout_on_sleeping_server"""
    with connected(slow) as client:
        with pytest.raises(grpc.RpcError) as caught:
            client.CreateMessage(typed("count"), timeout=0.1)
        assert caught.value.code() is Code.DEADLINE_EXCEEDED  # type: ignore[attr-defined]
        wait_until(slow.idle)
        stats = slow.region.stats()
        assert stats["cancelled_decode"] + stats["cancelled_prefill"] == 1
        assert sum(ends(slow).values()) == 1 and ("gRPC over HTTP/2", "ok") not in ends(slow)


def test_cancel_after_begin(slow: Served) -> None:
    with connected(slow) as client:
        call = client.CreateMessage.future(typed("count"))
        wait_until(lambda: not slow.idle())
        call.cancel()
        wait_until(slow.idle)
        assert call.code() is Code.CANCELLED
        wait_until(lambda: ends(slow) == {("gRPC over HTTP/2", "cancelled"): 1})
        assert slow.call(lambda: dict(slow.metrics.ends)) == {"client_gone": 1}


def test_cancel_after_first_response(slow: Served) -> None:
    with connected(slow) as client:
        stream = client.stream(typed("count"))
        events = iter(stream)
        assert next(events).HasField("message_start")
        stream.call.cancel()
        wait_until(slow.idle)
        with pytest.raises(grpc.RpcError) as caught:
            list(events)
        assert caught.value.code() is Code.CANCELLED  # type: ignore[attr-defined]
        wait_until(lambda: ends(slow) == {("gRPC over HTTP/2", "cancelled"): 1})


def test_a_deadline_within_a_stream(slow: Served) -> None:
    with connected(slow) as client:
        stream = client.stream(typed("count"), timeout=0.3)
        with pytest.raises(grpc.RpcError) as caught:
            list(stream)
        assert stream.events and caught.value.code() is Code.DEADLINE_EXCEEDED  # type: ignore
        wait_until(slow.idle)


def test_a_lost_engine_within_a_stream(slow: Served) -> None:
    with connected(slow) as client:
        stream = client.stream(typed("count"))
        events = iter(stream)
        next(events)
        slow.call(lambda: slow.server.engine_lost())
        error = fails(
            lambda: list(events),
            Code.INTERNAL,
            "The model engine was lost during this request.",
        )
        assert dict(error.trailing_metadata())["x-should-retry"] == "true"
        assert not any(event.HasField("error") for event in stream.events)


def test_a_client_that_does_not_read_costs_a_bound() -> None:
    """Its stream ends, its slot is free, and what waits for it stays within the bound."""
    long = "".join(f"{number} " for number in range(1500))
    bound = HttpLimits(unsent_bytes_max=4096)
    answers: dict[str, str | bytes] = {"go on": long}
    with serve(grpc=True, answers=answers, limits=bound, step_delay_us=100) as served:
        with connected(served, http2__bdp_probe=0, http2__lookahead_bytes=1024) as client:
            stream = client.stream(typed("go on", max_tokens=8000))
            wait_until(lambda: ("gRPC over HTTP/2", "call_slow_reader") in ends(served))
            wait_until(served.idle)
            assert served.call(lambda: dict(served.metrics.ends)) == {"slow_reader": 1}
            assert client.CreateMessage(typed("anything else", max_tokens=1)).id
            error = fails(
                lambda: list(stream),
                Code.RESOURCE_EXHAUSTED,
                "The answer was not read, and as much of it waits as may.",
            )
            assert error.code() is Code.RESOURCE_EXHAUSTED


def test_one_answer_may_be_larger_than_what_may_wait_unread() -> None:
    """Unary answers are one message: their client takes it as its windows open."""
    long = "".join(f"{number} " for number in range(1500))
    bound = HttpLimits(unsent_bytes_max=1024)
    with serve(grpc=True, answers={"go on": long}, limits=bound) as served:
        with connected(served) as client:
            answer = client.CreateMessage(typed("go on", max_tokens=8000))
            assert answer.content[0].text.text == long


def test_a_lost_connection_ends_its_calls(slow: Served) -> None:
    client = Client(slow)
    calls = [client.CreateMessage.future(typed("count")) for _ in range(4)]
    wait_until(lambda: slow.region.stats()["running"] == 4)
    client.channel.close()
    wait_until(slow.idle)
    assert all(call.code() is Code.CANCELLED for call in calls)


def test_draining_lets_calls_end_and_takes_no_more(slow: Served) -> None:
    drained = threading.Event()
    with connected(slow) as client:
        call = client.CreateMessage.future(typed("say hello"))
        wait_until(lambda: not slow.idle())
        slow.call(lambda: slow.server.drain(WAIT_SECONDS, drained.set))
        assert call.result(WAIT_SECONDS).content
        assert drained.wait(WAIT_SECONDS)
        with pytest.raises(grpc.RpcError) as caught:
            client.CreateMessage(typed())
        assert caught.value.code() is Code.UNAVAILABLE  # type: ignore[attr-defined]


# ---- health and reflection -----------------------------------------------------------------------
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


def test_health(client: Client) -> None:
    health = health_pb2_grpc.HealthStub(client.channel)
    for service in ("", "sublimate.v1.Messages", "grpc.health.v1.Health"):
        assert health.Check(health_pb2.HealthCheckRequest(service=service)).status == SERVING
    listed = health.List(health_pb2.HealthListRequest())
    assert listed.statuses["sublimate.v1.Messages"].status == SERVING
    unknown = health_pb2.HealthCheckRequest(service="nope")
    fails(lambda: health.Check(unknown), Code.NOT_FOUND, "There is no service of this name.")
    watching = health.Watch(unknown)
    assert next(watching).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
    watching.cancel()


def test_health_follows_readiness() -> None:
    with serve(grpc=True) as served, connected(served) as client:
        watching = health_pb2_grpc.HealthStub(client.channel).Watch(
            health_pb2.HealthCheckRequest(service="sublimate.v1.Messages")
        )
        assert next(watching).status == SERVING
        served.call(lambda: served.server.engine_lost())
        assert next(watching).status == NOT_SERVING
        watching.cancel()
        wait_until(lambda: ends(served) == {("gRPC over HTTP/2", "cancelled"): 1})


def test_reflection_describes_what_can_be_called(client: Client) -> None:
    described = ProtoReflectionDescriptorDatabase(client.channel)
    assert set(described.get_services()) == {
        "sublimate.v1.Messages",
        "sublimate.v1.Layer",
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
    }
    found = described.FindFileContainingSymbol("sublimate.v1.Messages.CreateMessage")
    assert found.name == "sublimate/v1/messages.proto"
    assert described.FindFileByName("sublimate/v1/frames.proto").package == "sublimate.v1"


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
def test_reflection_answers_in_order(client: Client, version: str) -> None:
    """ping_pong, with errors among the answers; empty_stream."""
    talk = client.channel.stream_stream(
        f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
        request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )
    Request = reflection_pb2.ServerReflectionRequest  # noqa: N806 - a class
    asked = [
        Request(list_services=""),
        Request(file_by_filename="sublimate/v1/frames.proto"),
        Request(file_by_filename="prompt.proto"),
        Request(file_containing_symbol="sublimate.v1.Nope"),
        Request(all_extension_numbers_of_type="google.protobuf.MethodOptions"),
        Request(),
    ]
    told = list(talk(iter(asked)))
    assert [answer.original_request for answer in told] == asked
    kinds = [answer.WhichOneof("message_response") for answer in told]
    error = "error_response"
    assert kinds[:4] == ["list_services_response", "file_descriptor_response", error, error]
    assert told[2].error_response.error_code == Code.NOT_FOUND.value[0]
    assert kinds[5] == error
    assert list(talk(iter(()))) == []


def test_reflection_tells_no_file_that_no_service_needs(client: Client) -> None:
    stub = reflection_pb2_grpc.ServerReflectionStub(client.channel)
    ask = reflection_pb2.ServerReflectionRequest
    asked = [ask(file_containing_symbol="google.protobuf.Timestamp")]
    (answer,) = stub.ServerReflectionInfo(iter(asked))
    assert answer.WhichOneof("message_response") == "error_response"


# ---- cost ----------------------------------------------------------------------------------------
def test_calls_side_by_side_leave_nothing(served: Served, client: Client) -> None:
    before = ends(served)
    futures = [client.CreateMessage.future(typed()) for _ in range(100)]
    assert all(future.result(WAIT_SECONDS).content for future in futures)
    wait_until(served.idle)
    assert ends(served, since=before)[("gRPC over HTTP/2", "ok")] == 100

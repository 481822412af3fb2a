"""The mapping without a transport: messages, timeouts and texts on the wire, typed requests."""

import json
import random
import subprocess
import sys
from typing import Any

import msgspec
import pytest
from google.protobuf.json_format import ParseDict
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from sublimate.api.grpc.bounds import check_fields
from sublimate.api.grpc.json_form import to_json
from sublimate.api.grpc.services import SERVICES, methods
from sublimate.api.messages.normalise import Policy, normalise
from sublimate.api.messages.schema import decode_request
from sublimate.api.messages.tools import read_tools
from sublimate.edge import limits
from sublimate.edge.errors import GRPC_CODES, TABLE, ApiError, grpc_code
from sublimate.edge.grpc.framing import (
    MessageReader,
    framed_message,
    percent_encoded,
    split_frames,
    timeout_seconds,
)
from sublimate.edge.grpc.status import status_of
from sublimate.v1 import frames_pb2, messages_pb2
from sublimate.v1.messages_pb2 import CreateMessageRequest

MOST = 1000


# ---- messages on the wire ------------------------------------------------------------------------
@given(st.lists(st.binary(max_size=MOST), max_size=6), st.randoms(use_true_random=False))
def test_messages_are_read_however_they_are_cut(
    messages: list[bytes], chooser: random.Random
) -> None:
    data = b"".join(map(framed_message, messages))
    reader, told = MessageReader(MOST), list[bytes]()
    while data:
        size = chooser.randint(1, max(1, len(data) // 3))
        told += reader.feed(data[:size])
        data = data[size:]
    assert told == messages and reader.is_between


@given(st.lists(st.binary(max_size=MOST), max_size=6))
def test_frames_of_a_stream_are_taken_apart(messages: list[bytes]) -> None:
    frames = b"".join(len(message).to_bytes(4, "big") + message for message in messages)
    assert split_frames(frames) == messages
    if frames:
        with pytest.raises(ValueError, match="whole"):
            split_frames(frames[:-1] if messages[-1] else frames[:-2])


@pytest.mark.parametrize(
    ("prefix", "code"),
    [
        (b"\x01\0\0\0\1a", "call_compressed"),
        (b"\x02\0\0\0\1a", "call_framing"),
        (b"\0\0\0\x03\xe9", "call_too_large"),
        (b"\0\xff\xff\xff\xff", "call_too_large"),
    ],
)
def test_a_prefix_is_refused_before_anything_is_kept(prefix: bytes, code: str) -> None:
    reader = MessageReader(MOST)
    assert reader.feed(framed_message(b"one")) == [b"one"]
    with pytest.raises(ApiError) as caught:
        reader.feed(prefix)
    assert caught.value.code == code


def test_a_request_that_ends_within_a_message_is_seen() -> None:
    reader = MessageReader(MOST)
    for data, is_between in ((b"\0", False), (b"\0\0\0\2a", False), (b"b", True)):
        reader.feed(data)
        assert reader.is_between == is_between


@pytest.mark.parametrize(
    ("text", "seconds"),
    [(b"1H", 3600), (b"2M", 120), (b"3S", 3), (b"00000010m", 0.01), (b"5u", 5e-6), (b"99n", 99e-9)],
)
def test_timeouts(text: bytes, seconds: float) -> None:
    assert timeout_seconds(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", [b"", b"1", b"S", b"-1S", b"1.5S", b"123456789S", b"1s", b"1 S"])
def test_what_is_no_timeout(text: bytes) -> None:
    with pytest.raises(ApiError, match="call_timeout_field"):
        timeout_seconds(text)


@given(st.text())
def test_texts_are_percent_encoded(text: str) -> None:
    from urllib.parse import unquote

    encoded = percent_encoded(text)
    assert encoded.isascii() and encoded.isprintable() and unquote(encoded) == text
    assert percent_encoded("50% \t☺") == "50%25 %09%E2%98%BA"


# ---- errors --------------------------------------------------------------------------------------
def test_every_row_has_a_code_of_grpc() -> None:
    for code, kind in TABLE.items():
        assert 1 <= grpc_code(kind) <= 16, code
        overloaded = kind.type == "overloaded_error"
        assert not overloaded or grpc_code(kind) == 14, "clients repeat it"
    assert {kind.status for kind in TABLE.values()} <= GRPC_CODES.keys()


def test_details_are_a_status_of_google_rpc() -> None:
    status_pb2 = pytest.importorskip("google.rpc.status_pb2")
    status = status_of(ApiError("tool_name_conflict", path="tools.1", name="f"), "req_1")
    told = status_pb2.Status.FromString(status.details)
    assert (told.code, told.message) == (status.code, status.text) == (3, told.message)
    error = frames_pb2.Error()
    assert told.details[0].Unpack(error)
    assert error.error_code == "tool_name_conflict" and error.request_id == "req_1"


# ---- typed requests ------------------------------------------------------------------------------
def object_of(request: CreateMessageRequest) -> dict[str, Any]:
    return msgspec.json.decode(msgspec.json.encode(to_json(request)))


def typed(**fields: Any) -> CreateMessageRequest:
    return ParseDict(fields, CreateMessageRequest())


SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1}},
    "required": ["city"],
}
CALL = {"id": "toolu_1", "name": "weather", "input": {"city": "Köln", "days": 2}}
TYPED = typed(
    model="m",
    max_tokens=7,
    system="Be brief.",
    temperature=0.5,
    stop_sequences=["END"],
    seed=1 << 60,
    metadata={"user_id": "u"},
    tools=[
        {"name": "weather", "description": "Tells it.", "input_schema": SCHEMA},
        {"name": "ordered", "input_schema_json": '{"type": "object", "z": 1.0, "a": 2}'},
        {"name": "bash", "type": "bash_20250124"},
    ],
    tool_choice={"type": "auto", "disable_parallel_tool_use": True},
    thinking={"type": "enabled", "budget_tokens": 1024},
    output_config={"effort": "low"},
    messages=[
        {"role": "user", "text": "How is it?"},
        {
            "role": "assistant",
            "content": [
                {"thinking": {"thinking": "", "signature": "s"}},
                {"text": {"text": "Let me look."}},
                {"tool_use": {**CALL, "input": json.dumps(CALL["input"])}},
                {"tool_use": {"id": "toolu_2", "name": "bash"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"tool_result": {"tool_use_id": "toolu_1", "text": "Fine."}},
                {
                    "tool_result": {
                        "tool_use_id": "toolu_2",
                        "content": [{"text": {"text": "no"}}],
                        "is_error": True,
                    }
                },
                {"document": {"source": {"text": {"data": "Notes"}}, "title": "T"}},
                {"image": {"source": {"base64": {"data": "QQ==", "media_type": "image/png"}}}},
                {"block_json": '{"type":"search_result","source":"s","title":"t","content":[]}'},
            ],
        },
    ],
)
EXPECTED = {
    "model": "m",
    "max_tokens": 7,
    "system": "Be brief.",
    "temperature": 0.5,
    "stop_sequences": ["END"],
    "seed": 1 << 60,
    "metadata": {"user_id": "u"},
    "tools": [
        {"name": "weather", "description": "Tells it.", "input_schema": SCHEMA},
        {"name": "ordered", "input_schema": {"type": "object", "z": 1.0, "a": 2}},
        {"type": "bash_20250124", "name": "bash"},
    ],
    "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
    "thinking": {"type": "enabled", "budget_tokens": 1024},
    "output_config": {"effort": "low"},
    "messages": [
        {"role": "user", "content": "How is it?"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "", "signature": "s"},
                {"type": "text", "text": "Let me look."},
                {"type": "tool_use", **CALL},
                {"type": "tool_use", "id": "toolu_2", "name": "bash", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": "Fine."},
                {
                    "type": "tool_result",
                    "tool_use_id": "toolu_2",
                    "content": [{"type": "text", "text": "no"}],
                    "is_error": True,
                },
                {
                    "type": "document",
                    "source": {"type": "text", "data": "Notes", "media_type": ""},
                    "title": "T",
                },
                {
                    "type": "image",
                    "source": {"type": "base64", "data": "QQ==", "media_type": "image/png"},
                },
                {"type": "search_result", "source": "s", "title": "t", "content": []},
            ],
        },
    ],
}


def test_a_typed_request_is_the_json_of_its_names() -> None:
    told = object_of(TYPED)
    assert told == EXPECTED
    decode_request(msgspec.json.encode(told))
    ordered = msgspec.json.encode(to_json(TYPED)).decode()
    assert '{"type": "object", "z": 1.0, "a": 2}' in ordered, "as it was written"


def test_an_answer_goes_back_as_it_came() -> None:
    answer = ParseDict(
        {
            "content": [
                {"thinking": {"thinking": "Hm.", "signature": "s"}},
                {"text": {"text": "Hello"}},
                {"tool_use": {"id": "1", "name": "f", "input": '{"a":1}'}},
            ]
        },
        frames_pb2.Message(),
    )
    blocks = [
        messages_pb2.InputBlock.FromString(block.SerializeToString()) for block in answer.content
    ]
    assert [block.WhichOneof("block") for block in blocks] == ["thinking", "text", "tool_use"]
    request = typed(model="m", messages=[{"role": "assistant"}])
    request.messages[0].content.extend(blocks)
    (message,) = object_of(request)["messages"]
    assert message["content"][2] == {"type": "tool_use", "id": "1", "name": "f", "input": {"a": 1}}


def test_members_of_a_struct_have_one_order() -> None:
    """So equal requests have equal prompts, whatever process made them."""
    names = [f"member {index}" for index in range(50)]
    texts = set()
    for seed in range(5):
        random.Random(seed).shuffle(names)
        schema = {"type": "object", "properties": {name: {"type": "string"} for name in names}}
        request = typed(model="m", tools=[{"name": "f", "input_schema": schema}])
        texts.add(msgspec.json.encode(to_json(request)))
    assert len(texts) == 1


def test_whole_numbers_of_a_struct_are_integers() -> None:
    numbers = [1, -2, 0.5, 1e300, 2**53, None, True, "1"]
    request = typed(model="m", tools=[{"name": "f", "input_schema": {"enum": numbers}}])
    (tool,) = object_of(request)["tools"]
    told = tool["input_schema"]["enum"]
    assert told == numbers and [type(one) for one in told] == [type(one) for one in numbers]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        (
            {"messages": [{"role": "user", "text": "a", "content": [{"text": {"text": "b"}}]}]},
            "messages.0.text: expected text or content, and not both",
        ),
        ({"messages": [{"role": "user", "content": [{}]}]}, "messages.0.content.0.type: field"),
        (
            {"messages": [{"role": "user", "content": [{"block_json": "{"}]}]},
            "messages.0.content.0: expected the text of a JSON value",
        ),
        (
            {"tools": [{"name": "f", "input_schema": {}, "input_schema_json": "{}"}]},
            "tools.0.input_schema: given twice, as a message and as JSON",
        ),
        (
            {"tools": [{"name": "f", "input_schema": {"minimum": float("inf")}}]},
            "tools.0.input_schema: expected finite numbers",
        ),
        (
            {"messages": [{"role": "a", "content": [{"tool_use": {"input": "{}, 1"}}]}]},
            "messages.0.content.0.input: expected the text of a JSON value",
        ),
    ],
)
def test_what_has_no_json_is_refused_by_its_place(fields: dict[str, Any], text: str) -> None:
    request = CreateMessageRequest(model="m")
    if "tools" in fields and (schema := fields["tools"][0].get("input_schema")):
        fields = {}
        tool = request.tools.add(name="f")
        tool.input_schema["minimum"] = schema["minimum"]
    ParseDict(fields, request)
    with pytest.raises(ApiError) as caught:
        to_json(request)
    assert caught.value.text.startswith(text)


@pytest.mark.parametrize("blocks", [False, True])
def test_typed_and_json_requests_are_one_conversation(blocks: bool) -> None:
    """What the model reads, in both forms: text, calls with their results, thinking."""
    typed_form = to_json(TYPED)
    json_form: dict[str, Any] = json.loads(json.dumps(EXPECTED))
    for request in (typed_form, json_form):
        last = request["messages"][-1]
        last["content"] = last["content"][:2] if not blocks else [*last["content"][:3]]
    policy = Policy("m", 100)
    told = []
    for request in (typed_form, json_form):
        decoded = decode_request(msgspec.json.encode(request))
        told.append(normalise(decoded, read_tools(decoded.tools or [], tools_max=9), policy))
    assert told[0].turns == told[1].turns


# ---- the table -----------------------------------------------------------------------------------
def test_every_method_of_every_service_can_be_called() -> None:
    pool = messages_pb2.DESCRIPTOR.pool
    known = methods()
    described = {
        f"/{service}/{method.name}"
        for service in SERVICES
        for method in pool.FindServiceByName(service).methods
    }
    assert described == {path for path in known if ".reflection.v1." not in path}


def test_a_server_without_grpc_loads_nothing_of_it() -> None:
    code = (
        "import sys, sublimate.api.routes, sublimate.edge.process, sublimate.cli.serve\n"
        "print([name for name in sys.modules if name.partition('.')[0] in ('grpc', 'grpc_health')"
        " or name.startswith(('google.protobuf', 'sublimate.edge.grpc', 'sublimate.api.grpc'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# ---- fields of a message -------------------------------------------------------------------------
EMPTY_MESSAGE = b"\x22\0"
"""The field `messages` of a CreateMessageRequest, with nothing in it."""


def protobuf_varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def nested(number: int, content: bytes) -> bytes:
    """A field that holds bytes or a message."""
    return protobuf_varint(number << 3 | 2) + protobuf_varint(len(content)) + content


def listed(content: bytes) -> bytes:
    """Of extra_body, a member that is a list."""
    return nested(100, nested(1, nested(1, b"k") + nested(2, nested(6, content))))


@pytest.mark.parametrize("kind", ["messages", "fields of a tool", "values of a list"])
def test_fields_of_a_message_are_counted_before_it_is_parsed(kind: str) -> None:
    most = limits.MESSAGE_FIELDS_MAX

    def spoken(count: int) -> bytes:
        if kind == "messages":
            return EMPTY_MESSAGE * count
        many = nested(1, b"") * count
        return nested(10, many) if kind == "fields of a tool" else listed(many)

    check_fields(CreateMessageRequest.DESCRIPTOR, spoken(most - 10))
    for count in (most + 1, 40 * most):
        with pytest.raises(ApiError) as raised:
            methods()["/sublimate.v1.Messages/CountTokens"].read(spoken(count))  # type: ignore
        assert raised.value.code == "message_fields"


def test_text_is_one_field_however_long() -> None:
    request = CreateMessageRequest(json_body=EMPTY_MESSAGE * limits.MESSAGE_FIELDS_MAX)
    check_fields(CreateMessageRequest.DESCRIPTOR, request.SerializeToString())


@given(st.binary(max_size=60))
def test_what_the_runtime_parses_is_counted(data: bytes) -> None:
    """Nothing else is refused as malformed, but groups."""
    try:
        CreateMessageRequest.FromString(data)
    except DecodeError:
        return
    if not any(byte & 7 in (3, 4) for byte in data):
        check_fields(CreateMessageRequest.DESCRIPTOR, data)

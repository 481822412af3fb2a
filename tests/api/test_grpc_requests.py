"""A typed request and the JSON that it stands for are one request: the same tokens, the same
answer, the same refusal. So are calls of tools, over gRPC and over HTTP."""

import json
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.protobuf.json_format import ParseDict

from harness import Served, serve, wait_until
from sublimate.v1.messages_pb2 import CreateMessageRequest
from sublimate.wire.frames import message_json
from test_blocks_served import ANSWERS
from test_grpc import Client, as_json, connected

SCHEMA = {"properties": {"path": {"type": "string"}}, "type": "object"}
TOOL = {"name": "put", "description": "Puts it.", "input_schema": SCHEMA}
CALL: dict[str, Any] = {"id": "toolu_1", "name": "put", "input": {"path": "a"}}


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with serve(grpc=True, answers=ANSWERS, constrains=False) as served, connected(served) as one:
        yield one
        wait_until(served.idle)


def typed(**fields: Any) -> CreateMessageRequest:
    return ParseDict({"model": "tiny", "max_tokens": 400, **fields}, CreateMessageRequest())


def spoken(request: CreateMessageRequest, **fields: Any) -> tuple[Any, Any]:
    """Both forms of one request."""
    told = {"model": "tiny", "max_tokens": 400, **fields}
    return request, CreateMessageRequest(json_body=json.dumps(told).encode())


TURNS = [
    {"role": "user", "text": "Put it."},
    {
        "role": "assistant",
        "content": [
            {"thinking": {"thinking": "Hm.", "signature": ""}},
            {"tool_use": {**CALL, "input": json.dumps(CALL["input"])}},
        ],
    },
    {
        "role": "user",
        "content": [
            {"tool_result": {"tool_use_id": "toolu_1", "text": "Done."}},
            {"text": {"text": "wombat"}},
        ],
    },
]
JSON_TURNS = [
    {"role": "user", "content": "Put it."},
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "Hm.", "signature": ""},
            {"type": "tool_use", **CALL},
        ],
    },
    {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "toolu_1", "content": "Done."},
            {"type": "text", "text": "wombat"},
        ],
    },
]
FORMS = {
    "text": spoken(
        typed(system="Be brief.", messages=[{"role": "user", "text": "wombat"}]),
        system="Be brief.",
        messages=[{"role": "user", "content": "wombat"}],
    ),
    "tools": spoken(typed(tools=[TOOL], messages=TURNS), tools=[TOOL], messages=JSON_TURNS),
    "thinking": spoken(
        typed(
            max_tokens=2000,
            thinking={"type": "enabled", "budget_tokens": 1024},
            messages=[{"role": "user", "text": "weasel"}],
        ),
        max_tokens=2000,
        thinking={"type": "enabled", "budget_tokens": 1024},
        messages=[{"role": "user", "content": "weasel"}],
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_both_forms_have_the_same_tokens_and_the_same_answer(client: Client, form: str) -> None:
    counts = {client.CountTokens(request).input_tokens for request in FORMS[form]}
    assert len(counts) == 1
    answers = [message_json(client.CreateMessage(request)) for request in FORMS[form]]
    for answer in answers:
        prompt = answer["usage"]
        assert prompt["input_tokens"] + prompt["cache_read_input_tokens"] == counts.copy().pop()
        for block in answer["content"]:
            block.pop("id", None)
    assert answers[0]["content"] == answers[1]["content"] != []
    assert answers[0]["stop_reason"] == answers[1]["stop_reason"]
    kinds = [block["type"] for block in answers[0]["content"]]
    assert form != "tools" or kinds == ["text", "tool_use"]


@pytest.mark.parametrize("form", FORMS)
def test_a_stream_of_each_is_its_answer(client: Client, form: str) -> None:
    for request in FORMS[form]:
        whole = message_json(client.CreateMessage(request))
        folded = client.stream(request).folded().message
        for message in (whole, folded):
            for block in message["content"]:
                block.pop("id", None)
        assert folded["content"] == whole["content"]
        assert folded["stop_reason"] == whole["stop_reason"]


def test_images_are_refused_by_the_same_words(client: Client) -> None:
    source = {"data": "QQ==", "media_type": "image/png"}
    request = typed(
        messages=[{"role": "user", "content": [{"image": {"source": {"base64": source}}}]}]
    )
    block = {"type": "image", "source": {"type": "base64", **source}}
    texts = []
    for form in (request, as_json([block])):
        with pytest.raises(grpc.RpcError) as caught:
            client.CreateMessage(form)
        error: Any = caught.value
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        texts.append(error.details())
    assert texts[0] == texts[1] and texts[0].startswith("messages.0.content.0")


def test_extra_members_and_the_field_that_wins() -> None:
    with serve(grpc=True) as served, connected(served) as client:
        request = typed(messages=[{"role": "user", "text": "say hello"}])
        request.extra_body.update({"max_tokens": 1, "stop_sequences": ["th"]})
        assert client.CreateMessage(request).stop_sequence == "th"
        request.extra_body.update({"n": 2})
        with pytest.raises(grpc.RpcError, match="n: this server gives one answer per request"):
            client.CreateMessage(request)
        assert_idle(served)


def assert_idle(served: Served) -> None:
    wait_until(served.idle)
    assert served.engine.audit() == ""

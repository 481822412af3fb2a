"""OpenAI's SDK against /v1/responses: events in their order, items, and what is kept."""

from collections.abc import Iterator
from typing import Any

import msgspec
import openai
import pytest

from harness import Served, serve, wait_until
from sublimate.api.messages.fingerprints import Fingerprints
from sublimate.api.openai.response_store import OVERHEAD_BYTES, ResponseStore
from sublimate.config import EdgeSettings
from sublimate.edge.errors import ApiError
from sublimate.model.turns import said
from test_openai import SAID
from tiny_model import tiny_metadata, tiny_model

TOOL = {
    "type": "function",
    "name": "weather",
    "description": "d",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": False,
}
THOUGHT = {"think first": "<think>\nhm\n</think>\n\nYes."}


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    settings = EdgeSettings(api_keys=("sk-test", "sk-other"))
    model = tiny_model(chat_template=tiny_metadata()["tokenizer.chat_template"] + "{# <think> #}")
    answers = {**THOUGHT, **SAID}
    with serve(settings=settings, model=model, answers=answers, step_delay_us=300) as served:
        yield served
        wait_until(served.idle)
        assert served.engine.audit() == ""


def connected(server: Served, key: str = "sk-test") -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0)


@pytest.fixture
def client(server: Served) -> Iterator[openai.OpenAI]:
    with connected(server) as made:
        yield made


def events_of(server: Served, **body: Any) -> list[dict[str, Any]]:
    """Of a stream, each checked to say its type twice and its number."""
    headers = {"authorization": "Bearer sk-test"}
    asked = {"model": "tiny", "stream": True, **body}
    reply = server.client.post("/v1/responses", json=asked, headers=headers)
    frames = reply.text.removesuffix("\n\n").split("\n\n")
    events: list[dict[str, Any]] = []
    for number, frame in enumerate(frames):
        name, data = frame.split("\n")
        events.append(msgspec.json.decode(data.removeprefix("data: ")))
        assert name == "event: " + events[-1]["type"]
        assert events[-1]["sequence_number"] == number
    return events


def folded(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Items as the deltas say them; each `done` is checked against its deltas."""
    items: list[dict[str, Any]] = []
    text = ""
    for event in events:
        match event["type"]:
            case "response.output_item.added":
                assert (
                    event["output_index"] == len(items) and event["item"]["status"] == "in_progress"
                )
                items.append(event["item"])
                text = ""
            case "response.content_part.added":
                assert event["part"]["text"] == "" and event["item_id"] == items[-1]["id"]
            case (
                "response.output_text.delta"
                | "response.reasoning_text.delta"
                | "response.function_call_arguments.delta"
            ):
                assert event["item_id"] == items[-1]["id"] and event["delta"]
                text += event["delta"]
            case "response.output_text.done" | "response.reasoning_text.done":
                assert event["text"] == text
            case "response.function_call_arguments.done":
                assert event["arguments"] == text
                items[-1]["arguments"] = text
            case "response.content_part.done":
                items[-1]["content"] = [event["part"]]
            case "response.output_item.done":
                items[-1]["status"] = "completed"
                assert event["item"] == items[-1]
            case _:
                pass
    return items


def without_ids(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in item.items() if k not in ("id", "call_id")} for item in items]


# ---- answers -------------------------------------------------------------------------------------
def test_response(client: openai.OpenAI) -> None:
    made = client.responses.create(model="tiny", input="say hello", instructions="Be kind")
    assert made.output_text == "Hello there!" and made.status == "completed"
    assert made.usage.output_tokens == 13 and made.instructions == "Be kind"
    assert made.usage.total_tokens == made.usage.input_tokens + 13
    assert made.id.startswith("resp_") and made._request_id.startswith("req_")


def test_events_come_in_their_order(server: Served) -> None:
    events = events_of(server, input="say hello")
    types = [event["type"].removeprefix("response.") for event in events]
    deltas = types.count("output_text.delta")
    assert types == [
        *("created", "in_progress", "output_item.added", "content_part.added"),
        *["output_text.delta"] * deltas,
        *("output_text.done", "content_part.done", "output_item.done", "completed"),
    ]
    assert deltas and events[0]["response"]["output"] == []


@pytest.mark.parametrize("text", ["say hello", "say utf8", "call it", "call twice", "think first"])
def test_a_stream_folds_to_the_whole(server: Served, client: openai.OpenAI, text: str) -> None:
    whole = client.responses.create(model="tiny", input=text, tools=[TOOL], store=False)
    events = events_of(server, input=text, tools=[TOOL], store=False)
    items = folded(events)
    final = events[-1]["response"]
    assert events[-1]["type"] == "response.completed" and final["output"] == items
    plain = [item.model_dump(exclude_unset=True) for item in whole.output]
    assert without_ids(items) == without_ids(plain)
    assert final["usage"]["output_tokens"] == whole.usage.output_tokens
    kinds = [item["type"] for item in items]
    assert (
        kinds
        == {
            "say hello": ["message"],
            "say utf8": ["message"],
            "call it": ["message", "function_call"],
            "call twice": ["function_call", "function_call"],
            "think first": ["reasoning", "message"],
        }[text]
    )


def test_stream_helper(client: openai.OpenAI) -> None:
    with client.responses.stream(model="tiny", input="call it", tools=[TOOL]) as stream:
        final = stream.get_final_response()
    (call,) = [item for item in final.output if item.type == "function_call"]
    assert final.output_text == "Let me see." and call.name == "weather"
    assert msgspec.json.decode(call.arguments) == {"city": "Bern", "days": [1, 2]}


def test_cut_and_empty_answers(server: Served, client: openai.OpenAI) -> None:
    cut = client.responses.create(model="tiny", input="say hello", max_output_tokens=5)
    assert cut.status == "incomplete" and cut.output_text == "Hello"
    assert cut.incomplete_details.reason == "max_output_tokens"
    assert events_of(server, input="say hello", max_output_tokens=5)[-1]["type"] == (
        "response.incomplete"
    )
    empty = events_of(server, input="say nothing")
    assert [event["type"] for event in empty][-1] == "response.completed"
    assert empty[-1]["response"]["output"] == []


def test_schema_and_logprobs(client: openai.OpenAI) -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    format = {"type": "json_schema", "name": "place", "schema": schema}
    made = client.responses.create(model="tiny", input="as json", text={"format": format})
    assert msgspec.json.decode(made.output_text) == {"city": "Bern"}
    assert made.text.format.name == "place"
    asked = {"model": "tiny", "input": "say hello", "top_logprobs": 2}
    asked["include"] = ["message.output_text.logprobs"]
    scores = client.responses.create(**asked).output[0].content[0].logprobs
    assert "".join(score.token for score in scores) == "Hello there!"
    assert all(len(score.top_logprobs) == 2 for score in scores)
    deltas = [e for e in client.responses.create(**asked, stream=True) if "text.delta" in e.type]
    assert [s.logprob for e in deltas for s in e.logprobs] == [s.logprob for s in scores]


# ---- conversations -------------------------------------------------------------------------------
def test_a_tool_loop_by_items_and_by_id(client: openai.OpenAI) -> None:
    first = client.responses.create(model="tiny", input="call twice", tools=[TOOL])
    outputs = [
        {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
        for call in first.output
    ]
    items = [{"role": "user", "content": "call twice"}, *first.output, *outputs]
    by_items = client.responses.create(model="tiny", input=items, tools=[TOOL], store=False)
    by_id = client.responses.create(
        model="tiny", input=outputs, tools=[TOOL], previous_response_id=first.id
    )
    assert by_id.usage.input_tokens == by_items.usage.input_tokens > first.usage.input_tokens
    assert by_id.output_text == by_items.output_text and by_id.previous_response_id == first.id
    on = client.responses.create(
        model="tiny", input="go on", tools=[TOOL], previous_response_id=first.id
    )
    assert on.usage.input_tokens > first.usage.input_tokens, "a call without a result stops nothing"


def test_instructions_are_of_one_response_alone(client: openai.OpenAI) -> None:
    first = client.responses.create(model="tiny", input="say hello", instructions="X" * 100)
    plain = client.responses.create(model="tiny", input="say hello")
    both = [
        client.responses.create(model="tiny", input="again", previous_response_id=before.id)
        for before in (first, plain)
    ]
    assert both[0].usage.input_tokens == both[1].usage.input_tokens


def test_responses_are_kept_for_their_owner(client: openai.OpenAI, server: Served) -> None:
    made = client.responses.create(model="tiny", input="say hello")
    assert client.responses.retrieve(made.id).output_text == "Hello there!"
    with connected(server, "sk-other") as other:
        with pytest.raises(openai.NotFoundError):
            other.responses.retrieve(made.id)
        with pytest.raises(openai.NotFoundError):
            other.responses.create(model="tiny", input="a", previous_response_id=made.id)
    client.responses.delete(made.id)
    for again in (client.responses.retrieve, client.responses.delete):
        with pytest.raises(openai.NotFoundError) as gone:
            again(made.id)
        assert gone.value.param is None and "previous_response_id" not in gone.value.message
    unkept = client.responses.create(model="tiny", input="say hello", store=False)
    with pytest.raises(openai.NotFoundError) as missing:
        client.responses.create(model="tiny", input="a", previous_response_id=unkept.id)
    assert missing.value.code == "previous_response_not_found"


def test_a_continued_answer_is_kept_whole(client: openai.OpenAI) -> None:
    items = [{"role": "user", "content": "say hello"}, {"role": "assistant", "content": "Well, "}]
    made = client.responses.create(model="tiny", input=items)
    after = client.responses.create(model="tiny", input="so", previous_response_id=made.id)
    items[1]["content"] = "Well, " + made.output_text
    whole = client.responses.create(model="tiny", input=[*items, {"role": "user", "content": "so"}])
    assert after.usage.input_tokens == whole.usage.input_tokens


def test_the_store_is_bounded() -> None:
    turns = [said("user", "a" * 1000)]
    size = 2 * OVERHEAD_BYTES + 1000
    store = ResponseStore(kept_max=3, bytes_max=10 * size)
    for number in range(5):
        store.keep(b"", f"resp_{number}", b"", turns)
    assert len(store) == 3 and store.bytes == 3 * size
    assert store.find(b"", "resp_2").turns == tuple(turns)
    store.keep(b"", "resp_5", b"", turns)
    assert store.find(b"", "resp_2"), "it was used after resp_3"
    with pytest.raises(ApiError):
        store.find(b"", "resp_3")
    store = ResponseStore(kept_max=99, bytes_max=2 * size)
    store.keep(b"", "big", b"b" * 2 * size, turns)
    assert len(store) == 0 == store.bytes
    for number in range(4):
        store.keep(b"", f"resp_{number}", b"", turns)
    assert len(store) == 2 and store.bytes <= 2 * size
    store.forget(b"", "resp_3")
    store.forget(b"", "resp_2")
    assert store.bytes == 0


@pytest.mark.parametrize(("kept_max", "most_bytes"), [(8, 100), (99, 8)])
def test_no_tenant_loses_a_response_for_one_who_keeps_more(kept_max: int, most_bytes: int) -> None:
    turns = [said("user", "a" * 1000)]
    store = ResponseStore(kept_max=kept_max, bytes_max=most_bytes * (2 * OVERHEAD_BYTES + 1000))
    for number in range(3):
        store.keep(b"small", f"resp_{number}", b"", turns)
    for number in range(50):
        store.keep(b"large", f"resp_{number}", b"", turns)
    assert all(store.find(b"small", f"resp_{number}") for number in range(3))
    assert len(store) == 8 and store.find(b"large", "resp_45")
    with pytest.raises(ApiError):
        store.find(b"large", "resp_44")
    store.keep(b"large", "resp_49", b"", turns)
    assert len(store) == 8, "one that is kept again is there once"
    for number in range(3, 50):
        store.keep(b"small", f"resp_{number}", b"", turns)
    assert store.find(b"large", "resp_49"), "now the other one keeps as much"


def test_worker_threads_find_parts_that_were_made_at_the_start(server: Served) -> None:
    assert {ResponseStore, Fingerprints} <= server.server._parts.keys()


# ---- errors --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("param", "fields"),
    [
        ("background", {"background": True}),
        ("conversation", {"conversation": "conv_1"}),
        ("truncation", {"truncation": "some"}),
        ("max_output_tokens", {"max_output_tokens": -5}),
        ("tools.0.type", {"tools": [{"type": "telepathy"}]}),
        ("text.format.schema", {"text": {"format": {"type": "json_schema", "name": "a"}}}),
        ("reasoning.effort", {"reasoning": {"effort": "much"}}),
        ("input", {"input": []}),
        ("input.0.type", {"input": [{"type": "computer_call"}]}),
        ("input.0.content.0", {"input": [{"role": "user", "content": [{"type": "input_image"}]}]}),
        ("input.0.call_id", {"input": [{"type": "function_call_output", "call_id": "x"}]}),
        ("include", {"include": ["message.output_text.logprobs"], "tools": [TOOL]}),
        ("previous_response_id", {"previous_response_id": "resp_none"}),
    ],
)
def test_what_cannot_be_served_is_named(client: openai.OpenAI, param: str, fields: Any) -> None:
    with pytest.raises(openai.APIStatusError) as refused:
        client.responses.create(**{"model": "tiny", "input": "a", **fields})
    assert refused.value.param == param and f"{param}: " in refused.value.message


def test_a_broken_stream_says_so() -> None:
    with serve(step_delay_us=5000) as served, connected(served) as client:
        seen = []
        for event in client.responses.create(model="tiny", input="count", stream=True):
            seen.append(event)
            if event.type == "response.output_text.delta":
                served.call(served.server.engine_lost)
        assert [event.type for event in seen[-2:]] == ["error", "response.failed"]
        assert seen[-1].response.status == "failed" and seen[-1].response.error.message
        assert [event.sequence_number for event in seen] == list(range(len(seen)))


def test_input_items_are_what_a_response_was_an_answer_to(client: openai.OpenAI) -> None:
    call = {
        "type": "function_call",
        "call_id": "c1",
        "name": "weather",
        "arguments": '{"city":"B"}',
    }
    given: list[Any] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "say hello"},
        call,
        {"type": "function_call_output", "call_id": "c1", "output": "12C"},
    ]
    first = client.responses.create(model="tiny", input=given, tools=[TOOL], max_output_tokens=8)
    items = client.responses.input_items.list(first.id, order="asc").data
    assert [item.type for item in items] == [
        *("message", "message", "function_call", "function_call_output")
    ]
    assert items[1].content[0].text == "say hello" and items[2].call_id == "c1"
    assert items[3].output == "12C" and len({item.id for item in items}) == 4
    second = client.responses.create(
        model="tiny", input="and then?", previous_response_id=first.id, max_output_tokens=8
    )
    paged = [item.id for item in client.responses.input_items.list(second.id, limit=2)]
    whole = client.responses.input_items.list(second.id, order="asc").data
    assert paged == [item.id for item in reversed(whole)] and whole[-1].content[0].text
    texts = [part.text for item in whole if item.type == "message" for part in item.content]
    assert texts[-1] == "and then?" and first.output_text in texts
    with pytest.raises(openai.BadRequestError, match="order"):
        client.responses.input_items.list(first.id, order="up")  # pyright: ignore
    with pytest.raises(openai.NotFoundError):
        client.responses.input_items.list("resp_none")

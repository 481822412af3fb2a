"""The Messages API in terms of chat completions and back, without a server."""

from typing import Any

import msgspec
import pytest

from grammar import check_stream
from sublimate.guard.chat_form import (
    ChatEvents,
    UnmappableError,
    chat_request,
    message_of_chat,
    tokens_of,
)

TOOL = {"name": "weather", "description": "Of a city.", "input_schema": {"type": "object"}}
IMAGE = {"type": "base64", "media_type": "image/png", "data": "aGk="}


def body(*messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"model": "m", "max_tokens": 9, "messages": list(messages), **more}


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def test_a_conversation_with_tools_has_the_same_turns() -> None:
    called = {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Bonn"}}
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "s"}
    asked = chat_request(
        body(
            user([{"type": "text", "text": "Look"}, {"type": "image", "source": IMAGE}]),
            {"role": "assistant", "content": [thought, {"type": "text", "text": "I ask."}, called]},
            user([{"type": "tool_result", "tool_use_id": "t1", "content": "rain"},
                  {"type": "text", "text": "And?"}]),
            system=[{"type": "text", "text": "Be brief."}],
            tools=[TOOL],
            tool_choice={"type": "any", "disable_parallel_tool_use": True},
            stop_sequences=["END"],
            temperature=0.5,
            stream=True,
        ),
        "other",
    )  # fmt: skip
    assert asked["model"] == "other" and asked["max_tokens"] == 9 and asked["temperature"] == 0.5
    assert asked["stop"] == ["END"] and asked["tool_choice"] == "required"
    assert asked["parallel_tool_calls"] is False
    assert asked["stream"] and asked["stream_options"] == {"include_usage": True}
    system, first, answer, result, last = asked["messages"]
    assert system == {"role": "system", "content": "Be brief."}
    assert first["content"][1]["image_url"]["url"] == "data:image/png;base64,aGk="
    assert answer["content"] == "I ask." and answer["tool_calls"][0]["id"] == "t1"
    arguments = answer["tool_calls"][0]["function"]["arguments"]
    assert msgspec.json.decode(arguments) == {"city": "Bonn"}
    assert result == {"role": "tool", "tool_call_id": "t1", "content": "rain"}
    assert last == {"role": "user", "content": "And?"}
    assert asked["tools"][0]["function"]["parameters"] == {"type": "object"}


@pytest.mark.parametrize(
    "more",
    [
        {"context_management": {"edits": []}},
        {"output_config": {"format": {"type": "json_schema", "schema": {}}}},
        {"tools": [{"type": "computer_20250124", "name": "computer"}]},
        {"tool_choice": {"type": "odd"}},
        {"tool_choice": "auto"},
        {"messages": [user([{"type": "document", "source": {}}])]},
        {"messages": [user([{"type": "image", "source": {"type": "url", "url": "http://a"}}])]},
        {"messages": [user([{"type": "image"}])]},
        {"messages": "hello"},
        {"messages": [user(["hello"])]},
        {"system": [{"type": "image"}]},
        {"top_k": 5},
        {"top_k": False},
        {"messages": [user([{"type": "text", "text": 5}])]},
        {"tool_choice": {"type": []}},
    ],
    ids=str,
)
def test_what_has_no_counterpart_is_not_asked(more: dict[str, Any]) -> None:
    with pytest.raises(UnmappableError):
        chat_request({**body(user("hello")), **more}, "m")


def test_texts_side_by_side_are_joined_as_for_an_engine_here() -> None:
    texts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    asked = chat_request(body(user(texts), system=texts), "m")
    assert [message["content"] for message in asked["messages"]] == ["a\nb", "a\nb"]


def test_a_tool_that_failed_is_told_as_templates_tell_it() -> None:
    result = {"type": "tool_result", "tool_use_id": "t1", "content": "no such city"}
    told = [
        chat_request(body(user([{**result, "is_error": failed}])), "m")["messages"][0]["content"]
        for failed in (True, False)
    ]
    assert told == ["Error: no such city", "no such city"]


@pytest.mark.parametrize("top_k", [None, 0])
def test_no_limit_of_candidates_is_one_that_is_left_out(top_k: int | None) -> None:
    assert "top_k" not in chat_request(body(user("hello"), top_k=top_k, metadata={}), "m")


def test_counts_that_are_none_count_nothing() -> None:
    odd: list[Any] = [None, "9", [], -1, 1e300, 1 << 40]
    assert [tokens_of(one) for one in (*odd, True, 7)] == [0, 0, 0, 0, 0, 0, 0, 7]


def test_a_filtered_answer_is_a_refusal_and_not_an_end() -> None:
    chat = {"choices": [{"message": {"content": ""}, "finish_reason": "content_filter"}]}
    assert message_of_chat(chat, "msg_1", "m")["stop_reason"] == "refusal"
    events = ChatEvents("msg_1", "m")
    events.chunk(chunk("content_filter"))
    assert events.end()[-2]["delta"]["stop_reason"] == "refusal"


def test_a_whole_answer_is_a_message() -> None:
    call = {"id": "c1", "function": {"name": "weather", "arguments": '{"city":"Bonn"}'}}
    said = {"role": "assistant", "content": "I ask.", "tool_calls": [call]}
    usage = {"prompt_tokens": 10, "completion_tokens": 4}
    usage["prompt_tokens_details"] = {"cached_tokens": 6}  # type: ignore[assignment]
    chat = {"choices": [{"message": said, "finish_reason": "tool_calls"}], "usage": usage}
    message = message_of_chat(chat, "msg_1", "m")
    assert message["content"] == [
        {"type": "text", "text": "I ask."},
        {"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Bonn"}},
    ]
    assert message["stop_reason"] == "tool_use" and message["id"] == "msg_1"
    assert message["usage"]["input_tokens"] == 4
    assert message["usage"]["cache_read_input_tokens"] == 6
    assert message["usage"]["output_tokens"] == 4
    for broken in ({}, {"choices": []}, {"choices": [{"message": None}]}):
        with pytest.raises(UnmappableError):
            message_of_chat(broken, "msg_1", "m")


def chunk(finish: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def test_a_stream_of_chunks_is_one_of_events() -> None:
    chat = ChatEvents("msg_1", "m")
    first = {"index": 0, "id": "c1", "function": {"name": "weather", "arguments": ""}}
    events = chat.chunk(chunk(role="assistant", content=""))
    for piece in (
        chunk(content="I "),
        chunk(content="ask."),
        chunk(tool_calls=[first]),
        chunk(tool_calls=[{"index": 0, "function": {"arguments": '{"a":1}'}}]),
        chunk(tool_calls=[{**first, "index": 1, "id": "c2"}]),
        chunk("tool_calls"),
        {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 5}},
    ):
        events += chat.chunk(piece)
    events += chat.end()
    assert [event["type"].removeprefix("content_block_") for event in events] == [
        *("message_start", "start", "delta", "delta", "stop", "start", "delta", "stop"),
        *("start", "stop", "message_delta", "message_stop"),
    ]
    assert [event["index"] for event in events if "index" in event] == [0] * 4 + [1] * 3 + [2] * 2
    assert events[-2]["delta"]["stop_reason"] == "tool_use"
    assert events[-2]["usage"]["output_tokens"] == 5
    with pytest.raises(UnmappableError):
        ChatEvents("msg_1", "m").end()
    with pytest.raises(UnmappableError):
        ChatEvents("msg_1", "m").chunk({"odd": 1})


# ---- what other servers stream -------------------------------------------------------------------
def fragment(index: int, arguments: str = "", **named: Any) -> dict[str, Any]:
    function = {"arguments": arguments, **({"name": n} if (n := named.pop("name", "")) else {})}
    return {"index": index, "function": function, **named}


def events_of(*chunks: dict[str, Any]) -> list[dict[str, Any]]:
    chat = ChatEvents("msg_1", "m")
    return [event for each in chunks for event in chat.chunk(each)] + chat.end()


def message_of(events: list[dict[str, Any]]) -> dict[str, Any]:
    """By the grammar that this server's own streams have."""
    events[0]["message"]["usage"] = {**events[-2]["usage"], "output_tokens": 0}
    sse = b"".join(
        b"event: %b\ndata: %b\n\n" % (event["type"].encode(), msgspec.json.encode(event))
        for event in events
    )
    return check_stream(sse).message


def calls_in(message: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(b["name"], b["input"]) for b in message["content"] if b["type"] == "tool_use"]


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_f50_fragments_of_two_calls_become_one_block_after_the_other(size: int) -> None:
    texts = ['{"a": "}{\\"", "n": [1, {"b": 2}]}', '{"c": "d"}']
    pieces = [[text[at : at + size] for at in range(0, len(text), size)] for text in texts]
    chunks = [
        chunk(tool_calls=[fragment(0, name="one", id="c0"), fragment(1, name="two", id="c1")])
    ]
    for place in range(max(map(len, pieces))):
        each = [fragment(n, p[place]) for n, p in enumerate(pieces) if place < len(p)]
        chunks.append(chunk(tool_calls=each))
    made = message_of(events_of(*chunks, chunk("tool_calls")))
    assert calls_in(made) == [("one", {"a": '}{"', "n": [1, {"b": 2}]}), ("two", {"c": "d"})]
    assert made["stop_reason"] == "tool_use"


def test_f50_the_reason_beside_calls_is_tool_use() -> None:
    call = fragment(0, "{}", name="one", id="c0")
    assert (
        message_of(events_of(chunk(tool_calls=[call]), chunk("stop")))["stop_reason"] == "tool_use"
    )
    whole = {"id": "c0", "function": {"name": "one", "arguments": "{}"}}
    said = {"content": None, "tool_calls": [whole]}
    chat = {"choices": [{"message": said, "finish_reason": "stop"}]}
    assert message_of_chat(chat, "msg_1", "m")["stop_reason"] == "tool_use"


def test_f50_arguments_that_never_close_are_an_error_unless_they_were_cut() -> None:
    begun = chunk(tool_calls=[fragment(0, '{"a": 1', name="one", id="c0")])
    with pytest.raises(UnmappableError):
        events_of(begun, chunk("tool_calls"))
    assert events_of(begun, chunk("length"))[-2]["delta"]["stop_reason"] == "max_tokens"
    nameless = chunk(tool_calls=[fragment(0, "{}", id="c0")])
    with pytest.raises(UnmappableError):
        events_of(nameless, chunk("tool_calls"))
    for arguments in ('{"a": 1', "[1]"):
        call = {"id": "c0", "function": {"name": "one", "arguments": arguments}}
        chat = {"choices": [{"message": {"tool_calls": [call]}, "finish_reason": "stop"}]}
        with pytest.raises(UnmappableError):
            message_of_chat(chat, "msg_1", "m")


def test_f50_a_call_without_an_id_gets_one() -> None:
    late = [fragment(0, name="one"), fragment(0, "{}")]
    made = message_of(events_of(*(chunk(tool_calls=[each]) for each in late), chunk("tool_calls")))
    (block,) = made["content"]
    assert block["id"].startswith("toolu_") and block["name"] == "one"
    call = {"function": {"name": "one", "arguments": "{}"}}
    chat = {"choices": [{"message": {"tool_calls": [call]}, "finish_reason": "tool_calls"}]}
    assert message_of_chat(chat, "msg_1", "m")["content"][0]["id"].startswith("toolu_")


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_f50_reasoning_is_thinking(name: str) -> None:
    made = message_of(
        events_of(chunk(**{name: "Hm"}), chunk(**{name: "."}), chunk(content="Yes."), chunk("stop"))
    )
    assert [block["type"] for block in made["content"]] == ["thinking", "text"]
    assert made["content"][0]["thinking"] == "Hm." and made["content"][1]["text"] == "Yes."
    chat = {"choices": [{"message": {name: "Hm.", "content": "Yes."}, "finish_reason": "stop"}]}
    whole = message_of_chat(chat, "msg_1", "m")
    assert [block["type"] for block in whole["content"]] == ["thinking", "text"]

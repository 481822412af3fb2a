"""One form for every way to say the same."""

import itertools
import time
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sublimate.api.messages.normalise import (
    IMAGE_NOTE,
    NO_RESULT,
    UNSERVED,
    Conversation,
    Policy,
    normalise,
)
from sublimate.api.messages.schema import decode_request
from sublimate.api.messages.tools import read_tools
from sublimate.edge.errors import ApiError
from sublimate.model.tool_formats import Tool, ToolCall, ToolResult
from sublimate.model.turns import Text, Thinking, ToolList, Turn, said

Said = st.text(min_size=1, max_size=10)
POLICY = Policy("m", 10_000)


def conversation(*messages: Any, policy: Policy = POLICY, **fields: Any) -> Conversation:
    body = {"model": "m", "messages": list(messages), **fields}
    request = decode_request(msgspec.json.encode(body))
    return normalise(request, read_tools(request.tools or [], tools_max=9), policy)


def turns(*messages: Any, **fields: Any) -> list[Turn]:
    return conversation(*messages, **fields).turns


def refusal(*messages: Any, **fields: Any) -> str:
    with pytest.raises(ApiError) as caught:
        turns(*messages, **fields)
    return caught.value.text


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(content: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content}


def block(text: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": text, **more}


def test_ten_thousand_calls_with_results_take_the_time_of_their_number() -> None:
    count = 10_000
    calls = [{"type": "tool_use", "id": f"t{n}", "name": "f", "input": {}} for n in range(count)]
    texts = [block("word " * 100) for _ in range(count)]
    results = [{"type": "tool_result", "tool_use_id": call["id"]} for call in reversed(calls)]
    begin_seconds = time.thread_time()
    _, answer, answered, last = turns(
        user("q"), assistant([*texts, *calls]), user([*results, *texts])
    )
    assert time.thread_time() - begin_seconds < 3
    assert len(answer.calls) == len(answered.blocks) == count
    assert last.text == answer.text and answered.blocks[0] == ToolResult("t0", "")


@given(Said)
def test_string_block_and_cached_block_are_equal(text: str) -> None:
    expected = [said("system", text), said("user", text)]
    for content in (text, [block(text)], [block(text, cache_control={"type": "ephemeral"})]):
        assert turns(user(content), system=content) == expected


ATTRIBUTION = "x-anthropic-billing-header:"


@given(st.lists(st.tuples(st.sampled_from(["user", "assistant", "system"]), Said), min_size=1))
def test_neighbours_have_different_roles_and_nothing_is_lost(pairs: list[Any]) -> None:
    made = turns(*({"role": role, "content": text} for role, text in pairs))
    assert all(a.role != b.role for a, b in itertools.pairwise(made))
    joined = "".join(turn.text for turn in made)
    assert sum(len(text) for _, text in pairs) <= len(joined)
    place = 0
    for _, text in pairs:
        place = joined.index(text, place) + len(text)


def test_blocks_and_neighbours_are_joined() -> None:
    assert turns(user([block("a"), block(""), block("b")])) == [said("user", "a\nb")]
    assert turns(user("a"), user("b")) == [said("user", "a\n\nb")]


def test_lines_of_attribution_are_dropped_from_system_text_alone() -> None:
    line = ATTRIBUTION + " cc_version=1; x=2"
    plain = [said("system", "S"), said("user", "u")]
    for system in (
        [block(line), block("S")],
        [block("S"), block(line)],
        f"{line}\nS",
        f"{line}\r\n\r\nS",
        f"S\n  {line}",
    ):
        assert turns(user("u"), system=system) == plain
    assert turns(user("u"), {"role": "system", "content": line}) == [said("user", "u")]
    assert turns(user("u"), system=line) == [said("user", "u")]
    assert turns(user(line)) == [said("user", line)]
    assert refusal({"role": "system", "content": line}).startswith("messages: at least one")


def test_countdowns_of_the_system_text_move_behind_the_conversation() -> None:
    for line in (
        "<total_tokens>184000 tokens left</total_tokens>",
        "<system_warning>Token usage: 3000/200000; 197000 remaining</system_warning>",
        "<budget:token_budget>200000</budget:token_budget>",
        "Token usage: 3000/200000; 197000 remaining",
        "Context left: 12%",
        "12,345 tokens remaining.",
    ):
        made = turns(user("a"), assistant("b"), user("c"), system=f"S\n{line}\nT")
        assert [turn.text for turn in made] == ["S\nT", "a", "b", "c", line]
        assert made[-1].role == "system"
        begun = turns(user("a"), assistant("b"), system=line)
        assert [turn.text for turn in begun] == ["a", line, "b"]
        assert turns(user(line), system="S")[1].text == line
    kept = "Tokens are words. Use at most 100 of them.\nThere are 3 tokens left in the jar."
    assert turns(user("a"), system=kept)[0].text == kept


def test_system_turns_stay_where_they_are() -> None:
    made = turns(user("a"), {"role": "system", "content": "s"}, assistant("b"), system="S")
    assert [turn.role for turn in made] == ["system", "user", "system", "assistant"]
    first = turns({"role": "system", "content": "s"}, user("a"), system="S")
    assert first[0] == said("system", "S\n\ns")


def test_empty_turns() -> None:
    assert turns(user("a"), assistant("")) == [said("user", "a")]
    assert turns(user("a"), assistant([])) == [said("user", "a")]
    assert refusal(user("")) == "messages.0.content: must not be empty"
    assert refusal(user("a"), assistant(""), user("b")).startswith("messages.1.content: ")
    assert refusal(assistant("")).startswith("messages: ")
    assert refusal().startswith("messages: at least one")


# ---- calls and results ---------------------------------------------------------------------------
TOOLS = [
    {"name": "get_weather", "description": "d", "input_schema": {"type": "object"}},
    {"name": "later", "input_schema": {}, "defer_loading": True},
]


def use(name: str, call_id: str, **given: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": name, "input": given}


def result(call_id: str, content: Any = "r", **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content, **more}


def test_results_stand_behind_their_calls_in_the_order_of_these() -> None:
    calls = [block("I look."), use("f", "a", x=1), use("g", "b")]
    made = turns(
        user("q"),
        assistant(calls),
        {"role": "system", "content": "s"},
        user([block("note"), result("b", "2"), result("a", [block("1"), block("one")])]),
    )
    assert made == [
        said("user", "q"),
        Turn(
            "assistant", (Text("I look."), ToolCall("a", "f", '{"x": 1}'), ToolCall("b", "g", "{}"))
        ),
        Turn("tool", (ToolResult("a", "1\none"), ToolResult("b", "2"))),
        said("system", "s"),
        said("user", "note"),
    ]
    assert turns(user("q"), assistant(calls), user([result("a"), result("b", None)]))[-1] == Turn(
        "tool", (ToolResult("a", "r"), ToolResult("b", ""))
    )


def test_calls_and_results_belong_together() -> None:
    call, empty = assistant([use("f", "a")]), [user("q")]
    for more in ([call], [call, user("x")], [call, assistant("x")]):
        shown = refusal(*empty, *more)
        assert shown == "messages.1: `tool_use` without a `tool_result` in the next message: a"
    stray = refusal(*empty, call, user([result("z")]))
    assert stray.startswith("messages.2.content.0.tool_use_id: no `tool_use`")
    twice = refusal(*empty, call, user([result("a"), result("a")]))
    assert twice.startswith("messages.2.content.1.tool_use_id: this `tool_use` has a result")
    later = refusal(*empty, call, user([result("a")]), assistant("b"), user([result("a")]))
    assert later.startswith("messages.4.content.0.tool_use_id: no `tool_use`")
    assert refusal(*empty, assistant([use("f g", "a")])).startswith("messages.1.content.0.name: ")


def test_a_deferred_tool_is_told_where_it_is_named() -> None:
    reference = {"type": "tool_reference", "tool_name": "later"}
    made = turns(
        user("q"), assistant([use("f", "a")]), user([result("a", [reference])]), tools=TOOLS
    )
    assert made[-1] == Turn("tool", (ToolResult("a", ""), ToolList((Tool("later"),))))
    unknown = {"type": "tool_reference", "tool_name": "nothing"}
    shown = refusal(user("q"), assistant([use("f", "a")]), user([result("a", [unknown])]))
    assert shown == (
        "messages.2.content.0.content.0.tool_name: no tool of this request has this name"
    )


def test_tools_come_and_go_in_system_turns() -> None:
    definition = {"name": "new", "input_schema": {}, "description": "d"}
    changes = [
        {"type": "tool_addition", "tool": {"type": "tool_reference", "name": "later"}},
        {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": definition}},
        {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "get_weather"}},
    ]
    made = conversation(user("q"), {"role": "system", "content": changes}, tools=TOOLS)
    assert made.turns[1].blocks[:2] == (ToolList((Tool("later"),)), ToolList((Tool("new", "d"),)))
    assert "get_weather" in made.turns[1].text and made.withdrawn == {"get_weather"}
    back = {"type": "tool_addition", "tool": {"type": "tool_reference", "name": "get_weather"}}
    messages = [{"role": "system", "content": [*changes, back]}]
    assert not conversation(user("q"), *messages, tools=TOOLS).withdrawn
    wrong = {**changes[1], "tool": {"type": "tool_definition", "definition": {"name": 1}}}
    shown = refusal(user("q"), {"role": "system", "content": [wrong]})
    assert shown == "messages.1.content.0.tool.definition: not the definition of a tool"


def test_calls_that_another_server_ran_are_calls_too() -> None:
    blocks = [
        block("a"),
        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"q": "x"}},
        {"type": "web_search_tool_result", "tool_use_id": "s", "content": [{"url": "u"}]},
        block("b"),
        {"type": "server_tool_use", "id": "t", "name": "web_search", "input": {}},
    ]
    made = turns(user("q"), assistant(blocks), user("go on"))
    assert [turn.role for turn in made] == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "tool",
        "user",
    ]
    assert made[2] == Turn("tool", (ToolResult("s", '[{"url": "u"}]'),))
    assert made[4] == Turn("tool", (ToolResult("t", NO_RESULT),))


# ---- other contents ------------------------------------------------------------------------------
def test_thinking_is_a_block_and_what_cannot_be_read_is_none() -> None:
    thinking = {"type": "thinking", "thinking": "hm", "signature": "of somebody else"}
    hidden = {"type": "thinking", "thinking": "", "signature": "x"}
    redacted = {"type": "redacted_thinking", "data": "x"}
    made = turns(user("a"), assistant([thinking, redacted, hidden, block("b")]), user("c"))
    assert made[1] == Turn("assistant", (Thinking("hm"), Text("b")))
    assert [t.role for t in turns(user("a"), assistant([redacted]), user("c"))] == ["user"]


def test_documents_and_search_results_are_text() -> None:
    plain = {"type": "text", "media_type": "text/plain", "data": "D"}
    document = {"type": "document", "source": plain, "title": "T", "context": "C"}
    parts = {"type": "content", "content": [block("e"), block("f")]}
    search = {"type": "search_result", "source": "u", "title": "t", "content": [block("g")]}
    made = turns(user([document, {"type": "document", "source": parts}, search, block("q")]))
    assert made == [said("user", "Document: T\nC\nD\nDocument:\ne\nf\nt\nu\ng\nq")]
    called = turns(
        user("q"), assistant([use("f", "a")]), user([result("a", [document, search, block("x")])])
    )
    assert called[-1] == Turn("tool", (ToolResult("a", "Document: T\nC\nD\nt\nu\ng\nx"),))
    for source, reason in (
        ({"type": "base64", "media_type": "application/pdf", "data": "x"}, "documents as text"),
        ({"type": "url", "url": "http://x"}, "fetches no URLs"),
    ):
        shown = refusal(user([block("a"), {"type": "document", "source": source}]))
        assert shown.startswith("messages.0.content.1.source.type: ") and reason in shown
    named = refusal(user([{"type": "document", "source": {"type": "file", "file_id": "x"}}]))
    assert named == "messages.0.content.0.source.file_id: there are no files here"
    empty = refusal(user([{"type": "document", "source": {**plain, "data": ""}}]))
    assert empty == "messages.0.content.0.source: must not be empty"


def test_images_are_refused_or_noted() -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "x"}}
    shown = refusal(user([image]))
    assert shown == "messages.0.content.0: model m does not support image input"
    called = (user("q"), assistant([use("f", "a")]), user([result("a", [block("see"), image])]))
    assert refusal(*called).startswith("messages.2.content.0.content.1: model m does not")
    noted = conversation(*called, policy=Policy("m", 9, image_notes=True)).turns[-1]
    assert noted == Turn("tool", (ToolResult("a", f"see\n{IMAGE_NOTE}", is_error=True),))
    inside = {"type": "document", "source": {"type": "content", "content": [image]}}
    assert refusal(user([inside])).startswith("messages.0.content.0.source.content.0: model m")


@pytest.mark.parametrize("kind", UNSERVED)
def test_blocks_that_are_not_served_are_named(kind: str) -> None:
    inside = [result("a", [{"type": kind}])] if kind == "browser_state" else [{"type": kind}]
    shown = refusal(user("a"), assistant([use("f", "a")]), user(inside))
    assert UNSERVED[kind] in shown and shown.startswith("messages.2.content.0")


def test_blocks_in_a_place_that_is_not_theirs_are_named() -> None:
    for role, wrong in (
        ("user", use("f", "a")),
        ("system", use("f", "a")),
        ("user", {"type": "thinking", "thinking": "x"}),
        ("assistant", result("a")),
        ("system", result("a")),
        ("user", {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "x"}}),
    ):
        shown = refusal(user("a"), {"role": role, "content": [wrong]})
        assert shown.startswith("messages.1.content.0: "), shown
    assert refusal(user([{"type": "new_thing"}])) == (
        "messages.0.content.0.type: unknown block type"
    )


def test_paths_of_system_blocks_count_from_the_request() -> None:
    line = block(ATTRIBUTION)
    shown = refusal(user("a"), system=[line, block("S"), {"type": "image"}])
    assert shown.startswith("system.2.type: ")


def test_the_number_of_messages_is_bounded() -> None:
    messages = [user("a")] * 6
    assert len(conversation(*messages, policy=Policy("m", 6)).turns) == 1
    with pytest.raises(ApiError, match="field"):
        conversation(*messages, policy=Policy("m", 5))


def test_no_messages_are_enough_where_there_are_tools() -> None:
    assert conversation(tools=TOOLS).turns == []
    assert refusal().startswith("messages: at least one")

"""Tools of a request, edits of its context, thinking budgets."""

from typing import Any

import msgspec
import pytest

from sublimate.api.messages.edits import CLEARED, apply_edits
from sublimate.api.messages.read import _thinking
from sublimate.api.messages.schema import MessagesRequest, decode_request
from sublimate.api.messages.tools import CLIENT_TOOLS, ToolParam, read_tool, read_tools
from sublimate.edge.errors import ApiError
from sublimate.edge.generation import ThinkingBudget
from sublimate.edge.sampling import check_sampling
from sublimate.model.tool_formats import Tool, ToolCall, ToolResult
from sublimate.model.turns import Text, Thinking, Turn, said


def request(**fields: Any) -> MessagesRequest:
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], **fields}
    return decode_request(msgspec.json.encode(body))


def refusal(*tools: dict[str, Any]) -> ApiError:
    with pytest.raises(ApiError) as caught:
        read_tools(request(tools=list(tools)).tools or [], tools_max=3)
    return caught.value


def test_own_tools_are_taken_with_their_schema() -> None:
    schema = {"properties": {"a": {"type": "string"}}, "additionalProperties": False}
    more = {"cache_control": {"type": "ephemeral"}, "input_examples": [{}], "strict": True}
    tool = {"name": "f", "description": "d", "input_schema": schema, **more}
    assert read_tools(request(tools=[tool]).tools or [], tools_max=1).told == {
        "f": Tool("f", "d", {"type": "object", **schema}, strict=True)
    }
    deferred = {**tool, "name": "g", "type": "custom", "defer_loading": True}
    tools = read_tools(request(tools=[tool, deferred]).tools or [], tools_max=2)
    assert list(tools.told) == ["f"] and list(tools.deferred) == ["g"]
    assert tools.find("g") is tools.deferred["g"] and tools.find("h") is None


@pytest.mark.parametrize("kind", CLIENT_TOOLS)
def test_tools_that_clients_run_bring_their_schema(kind: str) -> None:
    tool = read_tool(ToolParam(type=kind, name="whatever"), "tools.0")
    assert tool.schema["type"] == "object" and tool.description
    assert set(tool.schema.get("required", ())) <= set(tool.schema["properties"])
    commands = tool.schema["properties"]["command"].get("enum", ())
    assert ("str_replace" in commands) == (tool.name != "bash")


@pytest.mark.parametrize(
    ("tool", "text"),
    [
        ({"input_schema": {}}, "tools.0.name: field required"),
        ({"name": "a b", "input_schema": {}}, "tools.0.name: expected 1 to 128"),
        ({"name": "a"}, "tools.0.input_schema: field required"),
        ({"name": "a", "input_schema": {"type": "array"}}, "tools.0.input_schema.type: expected"),
        (
            {"type": "telepathy_20300101", "name": "t"},
            'tools.0.type: "telepathy_20300101" is unknown',
        ),
    ],
)
def test_other_tools_are_refused_by_path(tool: dict[str, Any], text: str) -> None:
    assert refusal(tool).text.startswith(text)


def test_two_tools_with_a_name_and_too_many_tools() -> None:
    tool = {"name": "f", "input_schema": {}}
    clash = refusal(tool, {**tool, "defer_loading": True})
    assert clash.text == "tools.1.name: two tools have the name f"
    assert clash.kind.error_code == "tool_name_conflict"
    assert refusal(*({**tool, "name": f"f{n}"} for n in range(4))).text == (
        "tools: at most 3 are taken"
    )


# ---- edits ---------------------------------------------------------------------------------------
def loop(count: int) -> list[Turn]:
    turns = [said("user", "q")]
    for number in range(count):
        call = ToolCall(str(number), "fg"[number % 2], '{"x": 1}')
        turns += [
            Turn("assistant", (Thinking("t"), Text("a"), call)),
            Turn("tool", (ToolResult(call.id, "long" * 10),)),
        ]
    return turns


def size(turns: Any) -> int:
    return len(msgspec.json.encode(list(turns)))


def edited(turns: list[Turn], **edit: Any) -> tuple[list[Turn], list[dict[str, Any]], int]:
    management = request(context_management={"edits": [edit]}).context_management
    assert management is not None
    return apply_edits(turns, management.edits or [], size)


def test_old_results_are_cleared_beyond_the_trigger() -> None:
    turns, kind = loop(5), "clear_tool_uses_20250919"
    trigger = {
        "trigger": {"type": "tool_uses", "value": 4},
        "keep": {"type": "tool_uses", "value": 2},
    }
    made, applied, original = edited(turns, type=kind, **trigger)
    texts = [b.text for t in made for b in t.blocks if isinstance(b, ToolResult)]
    assert texts == [CLEARED] * 3 + ["long" * 10] * 2 and original == size(turns)
    assert applied == [
        {"type": kind, "cleared_tool_uses": 3, "cleared_input_tokens": size(turns) - size(made)}
    ]
    assert edited(turns, type=kind)[:2] == (turns, []), "a short conversation stays as it is"
    below = {**trigger, "trigger": {"type": "tool_uses", "value": 5}}
    assert edited(turns, type=kind, **below)[1] == []
    least = {"clear_at_least": {"type": "input_tokens", "value": 10_000}}
    assert edited(turns, type=kind, **trigger, **least)[1] == []
    some = edited(turns, type=kind, **trigger, exclude_tools=["f"], clear_tool_inputs=True)[0]
    assert [call.arguments for turn in some for call in turn.calls] == [
        *('{"x": 1}', "{}", '{"x": 1}', '{"x": 1}', '{"x": 1}')
    ]


def test_old_thinking_is_cleared_and_its_turns_stay() -> None:
    turns, kind = loop(3), "clear_thinking_20251015"
    made, applied, _ = edited(turns, type=kind, keep={"type": "thinking_turns", "value": 1})
    thoughts = [any(isinstance(b, Thinking) for b in t.blocks) for t in made]
    assert thoughts.count(True) == 1 and thoughts[-2] and len(made) == len(turns)
    assert applied[0]["cleared_thinking_turns"] == 2
    for keep in ("all", {"type": "all"}):
        assert edited(turns, type=kind, keep=keep)[:2] == (turns, [])


# ---- thinking ------------------------------------------------------------------------------------
def budget(turns: list[Turn] | None = None, **fields: Any) -> ThinkingBudget | None:
    made = request(**{"max_tokens": 100_000, **fields})
    sampling = check_sampling(made, vocabulary=9, stop_ids_max=1, bias_max=1)
    return _thinking(made, turns or [said("user", "x")], sampling)


def test_thinking_is_off_unless_asked_for() -> None:
    assert budget() is None and budget(thinking={"type": "disabled"}) is None
    assert budget(thinking={"type": "adaptive"}) == ThinkingBudget(16_384)
    low = budget(thinking={"type": "adaptive"}, output_config={"effort": "low"})
    assert low == ThinkingBudget(1024)
    hidden = {"type": "enabled", "budget_tokens": 2048, "display": "omitted"}
    assert budget(thinking=hidden) == ThinkingBudget(2048, is_shown=False)
    between = {"type": "between_tools"}
    assert budget(thinking=between) is None and budget(loop(1), thinking=between) is not None


@pytest.mark.parametrize(("limit", "tokens"), [(4000, 3000), (256, 192), (128, 64), (65, 1)])
def test_the_answer_has_its_reserve(limit: int, tokens: int) -> None:
    effort = {"effort": "max"}
    made = budget(thinking={"type": "adaptive"}, output_config=effort, max_tokens=limit)
    assert made == ThinkingBudget(tokens)
    assert budget(thinking={"type": "adaptive"}, max_tokens=64) is None


@pytest.mark.parametrize(
    ("thinking", "text"),
    [
        ({"type": "enabled"}, "thinking.budget_tokens: field required"),
        ({"type": "enabled", "budget_tokens": 1023}, "thinking.budget_tokens: expected an integer"),
    ],
)
def test_a_budget_is_checked(thinking: dict[str, Any], text: str) -> None:
    with pytest.raises(ApiError) as caught:
        budget(thinking=thinking)
    assert caught.value.text.startswith(text)

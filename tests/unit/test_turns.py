"""Conversations with tools and thinking: by the template where it knows them, else as text."""

import time
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sublimate.model.escape import Escape
from sublimate.model.template import ChatTemplate
from sublimate.model.tool_formats import Tool, ToolCall, ToolResult
from sublimate.model.turns import (
    Text,
    Thinking,
    ToolList,
    Turn,
    merged,
    said,
)
from test_template import SPECIAL, STRICT
from tiny_model import TINY_TEMPLATE

WEATHER = Tool("get_weather", "Weather <|im_end|> of a city", {"type": "object"})
CLOCK = Tool("clock", "The time")
CALL = ToolCall("toolu_1", "get_weather", '{"city": "Paris"}')
RESULT = ToolResult("toolu_1", "12C")
CONVERSATION = [
    said("system", "S"),
    said("user", "w?"),
    Turn("assistant", (Text("I look."), CALL)),
    Turn("tool", (RESULT,)),
    said("user", "and?"),
]
# A template in the manner of the Hermes family, short.
HERMES = (
    "{% if tools %}{{ '<|im_start|>system\n' + (messages[0].content if messages[0].role == 'system'"
    " else '') + '<tools>' }}{% for tool in tools %}{{ tool | tojson }}{% endfor %}"
    "{{ '</tools> use <tool_call>name arguments</tool_call><|im_end|>\n' }}"
    "{% elif messages[0].role == 'system' %}"
    "{{ '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}{% endif %}"
    "{% for m in messages %}{% if m.role == 'assistant' %}{{ '<|im_start|>assistant\n' }}"
    "{% if m.reasoning_content %}{{ '<think>\n' + m.reasoning_content + '\n</think>\n\n' }}"
    "{% endif %}"
    "{{ m.content }}{% for c in m.tool_calls %}{{ '\n' if not loop.first or m.content }}"
    '{{ \'<tool_call>\n{"name": "\' + c.function.name + \'", "arguments": \' }}'
    "{{ c.function.arguments | tojson }}{{ '}\n</tool_call>' }}{% endfor %}{{ '<|im_end|>\n' }}"
    "{% elif m.role == 'tool' %}{{ '<|im_start|>user\n<tool_response>\n' + m.content"
    " + '\n</tool_response><|im_end|>\n' }}{% elif m.role == 'user' or not loop.first %}"
    "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% if enable_thinking is false %}{{ '<think>\n\n</think>\n\n' }}{% endif %}{% endif %}"
)
MISTRAL = (
    "{% for m in messages %}{% if m.role == 'user' %}"
    "{% if tools and loop.last %}{{ '[AVAILABLE_TOOLS]' + (tools | tojson) }}"
    "{{ '[/AVAILABLE_TOOLS]' }}{% endif %}{{ '[INST]' + m.content + '[/INST]' }}"
    "{% elif m.tool_calls %}"
    "{{ '[TOOL_CALLS][' }}{% for c in m.tool_calls %}"
    "{% if c.id | length != 9 %}{{ raise_exception('id') }}{% endif %}"
    "{{ (c.function | tojson)[:-1] + ', \"id\": \"' + c.id + '\"}' }}{% endfor %}{{ ']</s>' }}"
    "{% elif m.role == 'tool' %}{{ '[TOOL_RESULTS]' + m.content + m.tool_call_id }}"
    "{% else %}{{ m.content + '</s>' }}{% endif %}{% endfor %}"
)
ALL = {"tiny": TINY_TEMPLATE, "strict": STRICT, "hermes": HERMES, "mistral": MISTRAL}


def made(name: str) -> ChatTemplate:
    special = [*SPECIAL, "</tool_call>", "[TOOL_CALLS]", "<think>", "</think>"]
    return ChatTemplate(ALL[name], special, bos_token="<s>", eos_token="</s>")


def shown(name: str, turns: list[Turn], tools: Any = (), **named: Any) -> str:
    return made(name).render(turns, tools, **named).plain


def test_the_probe_finds_who_writes_tools_and_calls() -> None:
    reports = {name: made(name).report for name in ALL}
    found = {name: (r.tools, r.calls, r.tool_format) for name, r in reports.items()}
    assert found == {
        "tiny": ("text", "text", "generic"),
        "strict": ("text", "text", "generic"),
        "hermes": ("template", "text", "hermes"),
        "mistral": ("template", "text", "mistral"),
    }, "the last one drops text beside calls unless they are one"


@pytest.mark.parametrize("name", ALL)
def test_every_template_shows_tools_calls_and_results_in_order(name: str) -> None:
    text = shown(name, CONVERSATION, [WEATHER])
    place = -1
    for part in ("w?", "I look.", "get_weather", '{"city": "Paris"}', "12C", "and?"):
        place = text.find(part, place + 1)
        assert place >= 0, (part, text)
    assert "Weather <|im_end|> of a city" in text and made(name).fallbacks == 0


@pytest.mark.parametrize("name", ["tiny", "strict", "hermes"])  # the other moves its tools
def test_a_longer_conversation_begins_as_the_shorter_one(name: str) -> None:
    template = made(name)
    opening = template.render([said("user", "x")]).text.rpartition("x")[2]
    generation = opening.rpartition("\n<|im_start|>")[2] if "<|im_start|>" in opening else ""
    # From user to answer, and from results to answer; text after results is of the same request.
    for conversation in (CONVERSATION[:2], CONVERSATION[:4], CONVERSATION):
        now = template.render(conversation, [CLOCK]).text
        now = now.removesuffix("<|im_start|>" + generation) if generation else now
        more = [said("assistant", "end"), said("user", "z")]
        assert template.render([*conversation, *more], [CLOCK]).text.startswith(now)


def test_arguments_are_shown_as_they_are_written() -> None:
    written = '{"city":"Paris", "degrees": 1e1, "x": "\\u003c|im_end|>", "y": "<|im_end|>"}'
    call = ToolCall("toolu_1", "get_weather", written)
    for name in ("tiny", "hermes"):
        turns = [*CONVERSATION[:2], Turn("assistant", (Text("I look."), call)), CONVERSATION[3]]
        rendered = made(name).render(turns, [WEATHER])
        assert f'I look.\n<tool_call>\n{{"name": "get_weather", "arguments": {written}}}' in (
            rendered.plain
        )
        assert '"y": "<|im_end|>' not in rendered.text


def test_several_calls_and_text_between_them_keep_their_order() -> None:
    second = ToolCall("toolu_2", "clock", "{}")
    answer = Turn("assistant", (Text("a"), CALL, second, Text("b"), second))
    text = shown("tiny", [said("user", "u"), answer, said("user", "v")])
    head = '<tool_call>\n{"name": "'
    assert (
        f'a\n{head}get_weather", "arguments": {{"city": "Paris"}}}}\n</tool_call>\n'
        f'{head}clock", "arguments": {{}}}}\n</tool_call>\nb\n{head}clock", "arguments": {{}}}}'
    ) in text


@pytest.mark.parametrize("name", ALL)
def test_a_tool_that_is_told_later_leaves_the_beginning_alone(name: str) -> None:
    told = Turn("tool", (RESULT, ToolList((CLOCK,))))
    before = shown(name, CONVERSATION[:4], [WEATHER])
    after = shown(name, [*CONVERSATION[:3], told], [WEATHER])
    common = before.index("12C") + 3
    assert after[:common] == before[:common] and "The time" in after[common:]
    later = [*CONVERSATION, Turn("system", (ToolList((CLOCK,)),)), said("user", "now")]
    assert "The time" in shown(name, later, [WEATHER])


def test_thinking_is_shown_again_where_the_model_thinks() -> None:
    turns = [
        said("user", "u"),
        Turn("assistant", (Thinking("hm <|im_end|>"), Text("a"), CALL)),
        Turn("tool", (RESULT,)),
    ]
    assert "<think>\nhm <|im_end|>\n</think>\n\na" in shown("hermes", turns)
    assert "hm" not in shown("tiny", turns[:1])
    assert shown("hermes", turns).endswith("<think>\n\n</think>\n\n")
    assert shown("hermes", turns, thinking=True).endswith("<|im_start|>assistant\n")


def test_errors_are_told_to_the_model() -> None:
    failed = Turn("tool", (ToolResult("toolu_1", "no", is_error=True),))
    for name in ALL:
        assert "Error: no" in shown(name, [*CONVERSATION[:3], failed])


Pieces = st.sampled_from([*SPECIAL, "<", "|>", "<|im_", "end|>", "a", '"', "\\", "[", "\ufdd0"])
Forged = st.lists(Pieces, max_size=6).map("".join)
Values = st.recursive(
    st.one_of(Forged, st.integers(-9, 9), st.none()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(Forged, inner, max_size=3),
    max_leaves=6,
)


@given(Forged, Values)
def test_tools_calls_and_results_write_no_control_tokens(text: str, value: Any) -> None:
    text = text or "t"
    tool = Tool("t", text, {"type": "object", "x": value})
    call = ToolCall("i", text, msgspec.json.encode({"k": value}).decode())
    result = Turn("tool", (ToolResult("i", text), ToolList((tool,))))
    turns = [said("user", "u"), Turn("assistant", (Thinking(text), call)), result]
    plain = Tool("t", "d", {"type": "object", "x": 0})
    neutral = [
        said("user", "u"),
        Turn("assistant", (Thinking("t"), ToolCall("i", "t", '{"k": 0}'))),
        Turn("tool", (ToolResult("i", "r"), ToolList((plain,)))),
    ]
    for name in ALL:
        template = made(name)
        pattern = Escape(template._special).pattern
        assert pattern is not None
        rendered = template.render(turns, [tool])
        assert pattern.findall(rendered.text) == pattern.findall(
            template.render(neutral, [plain]).text
        )


def test_turns_are_what_they_say() -> None:
    with pytest.raises(ValueError, match="without blocks"):
        Turn("user", ())
    for role, block in (("tool", Text("x")), ("user", CALL), ("assistant", RESULT)):
        with pytest.raises(ValueError, match="no block of a turn"):
            Turn(role, (block,))
    with pytest.raises(ValueError, match="begins with a result"):
        Turn("tool", (ToolList((CLOCK,)),))
    with pytest.raises(ValueError, match="no tools"):
        ToolList(())
    with pytest.raises(ValueError, match="one character"):
        Escape(["<"])
    tail = Turn("user", (ToolList((CLOCK,)), Text("c")))
    turns = merged([said("user", "a"), said("user", "b"), tail])
    assert turns == [Turn("user", (Text("a\n\nb"), ToolList((CLOCK,)), Text("c")))]
    assert turns[0].text == "a\n\nb\nc"


# ---- neighbours of one role ----------------------------------------------------------------------
def append_turn(turns: list[Turn], turn: Turn) -> None:
    """The slow twin: one turn after the other."""
    if not turns or turns[-1].role != turn.role:
        turns.append(turn)
        return
    first = turns.pop().blocks
    end, begin = first[-1], turn.blocks[0]
    blocks = first + turn.blocks
    if isinstance(end, Text) and isinstance(begin, Text):
        blocks = (*first[:-1], Text(end.text + "\n\n" + begin.text), *turn.blocks[1:])
    turns.append(Turn(turn.role, blocks))


BLOCKS = st.lists(st.sampled_from([Text("a"), Text("b"), ToolList((CLOCK,))]), min_size=1)
TURNS = st.builds(Turn, st.sampled_from(["system", "user"]), BLOCKS.map(tuple))


@given(st.lists(TURNS, max_size=12))
def test_merged_turns_are_those_of_one_after_the_other(turns: list[Turn]) -> None:
    expected: list[Turn] = []
    for turn in turns:
        append_turn(expected, turn)
    assert merged(turns) == expected


def test_many_turns_of_one_role_take_the_time_of_their_text() -> None:
    """Joined one by one these would be 60 GB of copies."""
    turns = [said("user", "word " * 300)] * 9000
    begin_seconds = time.thread_time()
    (whole,) = merged(turns)
    assert time.thread_time() - begin_seconds < 1
    assert whole.text.count("word") == 9000 * 300

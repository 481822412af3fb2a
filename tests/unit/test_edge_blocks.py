"""From a model's formats to the text path, and from its pieces to a message."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grammar import check_stream
from ring_reference import STOP_TOKEN
from sublimate.edge.blocks import block_format, fold_pieces
from sublimate.model.template import ChatTemplate
from sublimate.model.thinking import ThinkingFormat
from sublimate.model.tool_formats import FORMATS, Tool, ToolCall, ToolResult, canonical_json
from sublimate.model.turns import Text, Turn, said
from test_text import Stream, run
from tool_templates import TEMPLATES

THINK = ThinkingFormat("<think>", "</think>")
TOKENS = [b"", b"hm", b"", b"So:", b"", b"get", b"", b'{"a": [1]}', b"", b"end"]
SPECIAL = {"<think>": 0, "</think>": 2, "[TOOL_CALLS]": 4, "[ARGS]": 6, "</s>": 8}
MISTRAL = FORMATS["mistral-named"]


def whole(mode: str, **settings: Any) -> Stream:
    form = block_format(MISTRAL, THINK, SPECIAL, callable_tools=[Tool("get")], **settings)
    stream = Stream(TOKENS, form=mode, blocks=form)
    run(stream, len(TOKENS), [3], STOP_TOKEN)
    return stream


@pytest.mark.parametrize("omit", [False, True])
@pytest.mark.parametrize("eager", [False, True])
def test_pieces_fold_to_what_the_stream_says(eager: bool, omit: bool) -> None:
    streamed = whole("sse", eager=eager, omit_thinking=omit)
    message = check_stream(streamed.data.replace(b'"m\\"1"', b'"msg_1"')).message
    for mode in ("blocks", "text"):
        content = fold_pieces(whole(mode, eager=eager, omit_thinking=omit).pieces)
        assert msgspec.json.decode(msgspec.json.encode(content)) == message["content"]
    kinds = [block["type"] for block in message["content"]]
    assert kinds == ["thinking", "text", "tool_use", "text"]
    assert message["content"][2]["input"] == {"a": [1]}


def test_nothing_to_take_apart_needs_no_format() -> None:
    assert block_format(MISTRAL, None, SPECIAL) is None
    assert block_format(MISTRAL, THINK, SPECIAL) is not None
    assert block_format(MISTRAL, None, {}, callable_tools=[Tool("get")]) is not None


def test_a_continued_text_is_no_bare_call() -> None:
    call = FORMATS["llama3"].call_text(ToolCall("1", "get", "{}"))
    for begins_in, kinds in (("", ["tool_use"]), ("text", ["text"])):
        form = block_format(
            FORMATS["llama3"], None, {}, callable_tools=[Tool("get")], begins_in=begins_in
        )
        stream = Stream([call.encode()], form="text", blocks=form)
        run(stream, 1, [], STOP_TOKEN)
        assert [block["type"] for block in fold_pieces(stream.pieces)] == kinds


def test_pieces_without_their_end_are_a_bug() -> None:
    assert fold_pieces([]) == []
    with pytest.raises(ValueError, match="end"):
        fold_pieces([("text", "a", "")])


# ---- there and back -----------------------------------------------------------------------------

JSON_TEXTS = st.sampled_from(
    ["{}", '{"a": 1}', '{"path": "/x", "lines": ["é\\n", ""], "deep": {"b": [null, 1.5]}}']
)
CALLS = st.lists(st.tuples(st.sampled_from(["get", "put"]), JSON_TEXTS), max_size=2)
TEXTS = st.sampled_from(["", "So.", "a < b\n\n```\nx\n```"])


@given(st.sampled_from([n for n in FORMATS if n != "mistral"]), TEXTS, CALLS, st.booleans())
def test_what_was_taken_apart_renders_as_the_model_wrote_it(
    name: str, text: str, calls: list[tuple[str, str]], eager: bool
) -> None:
    """Prompt of turn N and its answer are how the prompt of turn N+1 begins."""
    family, tools = FORMATS[name], (Tool("get"), Tool("put"))
    if family.bare and text:
        calls = []
    if not family.parallel:
        calls = calls[:1]
    if not text and not calls:
        return
    special = ["<|im_start|>", "<|im_end|>", "[TOOL_CALLS]", "[ARGS]", "<start_of_turn>"]
    template = ChatTemplate(TEMPLATES[name], special)
    question = said("user", "q")
    made = [ToolCall(f"call{i:05}", tool, arguments) for i, (tool, arguments) in enumerate(calls)]
    answer = text + (family.text_separator if text and made else "")
    answer += family.calls_text(made) if made else ""

    form = block_format(family, None, {}, callable_tools=tools, eager=eager)
    stream = Stream([answer.encode()], form="text", blocks=form)
    run(stream, 1, [], STOP_TOKEN)
    blocks: list[Any] = []
    for block in fold_pieces(stream.pieces):
        if block["type"] == "text":
            blocks.append(Text(block["text"]))
        else:
            arguments = canonical_json(msgspec.json.decode(block["input"]))
            blocks.append(ToolCall(f"call{len(made):05}", block["name"], arguments))
    turns = [question, Turn("assistant", tuple(blocks))]
    results = [ToolResult(b.id, "r") for b in blocks if isinstance(b, ToolCall)]
    turns.append(Turn("tool", tuple(results)) if results else said("user", "x"))
    # A prompt that turns thinking off says so once more than its next turn does.
    before = template.render([question], tools, thinking=True).plain
    after = template.render(turns, tools).plain
    assert after.startswith(before + answer)

"""From a model's formats to the text path, and from its pieces to a message."""

from typing import Any

import msgspec
import pytest

from grammar import check_stream
from ring_reference import STOP_TOKEN
from sublimate.edge.blocks import block_format, fold_pieces
from sublimate.model.thinking import ThinkingFormat
from sublimate.model.tool_formats import FORMATS, ToolCall
from test_text import Stream, run

THINK = ThinkingFormat("<think>", "</think>")
TOKENS = [b"", b"hm", b"", b"So:", b"", b"get", b"", b'{"a": [1]}', b"", b"end"]
SPECIAL = {"<think>": 0, "</think>": 2, "[TOOL_CALLS]": 4, "[ARGS]": 6, "</s>": 8}
MISTRAL = FORMATS["mistral-named"]


def whole(mode: str, **settings: Any) -> Stream:
    form = block_format(MISTRAL, THINK, SPECIAL, tool_names=["get"], **settings)
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
    assert block_format(MISTRAL, None, {}, tool_names=["get"]) is not None


def test_a_continued_text_is_no_bare_call() -> None:
    call = FORMATS["llama3"].call_text(ToolCall("1", "get", "{}"))
    for begins_in, kinds in (("", ["tool_use"]), ("text", ["text"])):
        form = block_format(FORMATS["llama3"], None, {}, tool_names=["get"], begins_in=begins_in)
        stream = Stream([call.encode()], form="text", blocks=form)
        run(stream, 1, [], STOP_TOKEN)
        assert [block["type"] for block in fold_pieces(stream.pieces)] == kinds


def test_pieces_without_their_end_are_a_bug() -> None:
    assert fold_pieces([]) == []
    with pytest.raises(ValueError, match="end"):
        fold_pieces([("text", "a", "")])

"""Between a generation and the text path: how its answer falls into blocks, and the blocks whole.

`block_format` goes into the Submission. Then an answer of format "sse" has frames of all kinds of
blocks, made in the core; one of format "blocks" gives pieces per poll to whoever frames them
himself; and one of format "text" gives the pieces of the whole answer with its last event, which
`fold_pieces` makes the content of a message. All three show the same blocks.

defines: block_format, fold_pieces
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from .. import _core
from ..model.thinking import ThinkingFormat
from ..model.tool_formats import (
    LENIENT_MARKERS,
    Tool,
    ToolFormat,
    marker_tokens,
    string_parameters,
)

Piece = tuple[str, str, str]
"""(kind, text, id) of StreamEvent.pieces."""


def block_format(
    tools: ToolFormat,
    thinking: ThinkingFormat | None,
    special: Mapping[str, int],
    *,
    callable_tools: Sequence[Tool] = (),
    eager: bool = False,
    lenient: bool = False,
    several: bool = True,
    begins_in: str = "",
    omit_thinking: bool = False,
) -> _core.BlockFormat | None:
    """How the answer of one request is taken apart; None: it is one text.

    `special` is Tokenizer.special. `callable_tools`: those that may be called now. `eager`: the
    grammar holds the model to valid arguments, so they go out as they come. `lenient`: the model
    chooses between text and calls, so an answer that ends with calls in another spelling than
    its family's has calls, or one if not `several`. `begins_in`: "text" for a continued assistant
    turn, "thinking" if the rendered prompt has opened it. The thinking of a model that has been
    told not to is taken apart all the same.
    """
    if not callable_tools and thinking is None:
        return None
    markers = (*(tools.markers if callable_tools else ()), *(thinking.markers if thinking else ()))
    return _core.BlockFormat(
        tool_names=[tool.name for tool in callable_tools],
        openings=tools.openings,
        closing=tools.closing,
        name_end=tools.name_end,
        id_opening=tools.id_opening,
        name_key=tools.name_key,
        arguments_key=tools.arguments_key,
        bare=tools.bare,
        eager=eager,
        thinking_opening=thinking.opening if thinking else "",
        thinking_closing=thinking.closing if thinking else "",
        omit_thinking=omit_thinking,
        begins_in=begins_in,
        marker_tokens=list(marker_tokens(markers, special).items()),
        lenient=lenient,
        several=several,
        lenient_markers=LENIENT_MARKERS if lenient else (),
        string_parameters=string_parameters(callable_tools) if lenient else (),
    )


def fold_pieces(pieces: Iterable[Piece]) -> list[dict[str, Any]]:
    """Content of a message, as the stream's frames fold: text, thinking and tool_use blocks."""
    content: list[dict[str, Any]] = []
    gathered: list[str] = []
    for kind, text, identifier in pieces:
        if kind == "tool_start":
            content.append({"type": "tool_use", "id": identifier, "name": text, "input": {}})
        elif kind == "stop":
            _end(content, "".join(gathered), text)
            gathered.clear()
        else:
            if not gathered and kind != "arguments":
                content.append({"type": kind, kind: ""})
            gathered.append(text)
    if gathered:
        raise ValueError("a block without its end")
    return content


def _end(content: list[dict[str, Any]], text: str, signature: str) -> None:
    if signature and not text:
        content.append({"type": "thinking", "thinking": ""})  # omitted
    block = content[-1]
    if block["type"] == "tool_use":
        block["input"] = msgspec.Raw(text.encode())
    else:
        block[block["type"]] = text
    if signature:
        block["signature"] = signature

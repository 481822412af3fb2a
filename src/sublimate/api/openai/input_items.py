"""What a kept response was an answer to, as items with ids: GET /v1/responses/{id}/input_items.

defines: input_items, page_of_items
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import parse_qs

from ...edge.errors import field_error
from ...model.tool_formats import ToolCall, ToolResult
from ...model.turns import Block, Role, Text, Thinking, Turn
from ..pages import page_body, page_of

Json = dict[str, Any]


def input_items(response_id: str, turns: Sequence[Turn]) -> list[Json]:
    """In order: of the whole conversation, with what responses before this one said. The ids are
    the same whenever they are asked for."""
    own = response_id.partition("_")[2]
    blocks = [(turn, block) for turn in turns for block in turn.blocks]
    return [
        _item(f"{own}i{place:02d}", turn.role, block) for place, (turn, block) in enumerate(blocks)
    ]


def _item(own: str, role: Role, block: Block) -> Json:
    match block:
        case Text(text=text) if role == "assistant":
            part: Json = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
            said = {"role": role, "content": [part]}
            return {"id": f"msg_{own}", "type": "message", "status": "completed", **said}
        case Text(text=text):
            said = {"role": role, "content": [{"type": "input_text", "text": text}]}
            return {"id": f"msg_{own}", "type": "message", "status": "completed", **said}
        case Thinking(text=text):
            content = [{"type": "reasoning_text", "text": text}]
            return {"id": f"rs_{own}", "type": "reasoning", "summary": [], "content": content}
        case ToolCall(id=call_id, name=name, arguments=arguments):
            called = {"call_id": call_id, "name": name, "arguments": arguments}
            return {"id": f"fc_{own}", "type": "function_call", "status": "completed", **called}
        case ToolResult(call_id=call_id, text=text):
            made = {"call_id": call_id, "output": text, "status": "completed"}
            return {"id": f"fco_{own}", "type": "function_call_output", **made}
        case _:
            raise TypeError("no item of this API tells of tools on the way")


def page_of_items(items: Sequence[Json], query: str) -> Json:
    """The list that a query (after, limit, order) asks for. Raises ApiError."""
    order = parse_qs(query).get("order", ["desc"])[-1]
    if order not in ("asc", "desc"):
        raise field_error("order", "expected asc or desc")
    by_id = {item["id"]: item for item in (items if order == "asc" else reversed(items))}
    shown, has_more = page_of(list(by_id), query, after_name="after")
    entries = [by_id[identifier] for identifier in shown]
    return {"object": "list", **page_body(shown, entries, has_more)}

"""Items of kept responses, each with its id: what a response was an answer to, as
GET /v1/responses/{id}/input_items lists it, and what a request refers to by an id.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

import msgspec

from ...edge.errors import ApiError, field_error
from ...edge.limits import IDENTIFIER_CHARACTERS_MAX
from ...model.tool_formats import ToolCall, ToolResult
from ...model.turns import Block, Role, Text, Thinking, Turn
from ..pages import page_body, page_of
from .response_store import ResponseStore, not_elsewhere

if TYPE_CHECKING:
    from ...edge.app import EdgeServer
    from ...edge.exchange import Exchange

Json = dict[str, Any]
ITEM_ID = re.compile(r"[a-z]+_([0-9a-f]{24})i?[0-9]+", re.ASCII)
"""The id of an item holds that of its response."""


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


class KeptItems:
    """Items that one request may refer to: those of its owner's kept responses, each read once."""

    def __init__(self, server: EdgeServer, exchange: Exchange) -> None:
        self._server = server
        self._exchange = exchange
        self._by_response: dict[str, dict[str, Json]] = {}

    def find(self, path: str, identifier: str) -> Json:
        """Raises ApiError (404); ElsewhereError if another worker keeps it."""
        if match := ITEM_ID.fullmatch(identifier):
            items = self._items_of(f"resp_{match[1]}")
            if identifier in items:
                return items[identifier]
        shown = identifier[:IDENTIFIER_CHARACTERS_MAX]
        raise ApiError("item_not_found", path=path, identifier=shown)

    def _items_of(self, response_id: str) -> dict[str, Json]:
        known = self._by_response.get(response_id)
        if known is None:
            not_elsewhere(self._server, self._exchange, response_id)
            owner, store = self._exchange.tenant_key, self._server.part(ResponseStore)
            kept = store.find_or_none(owner, response_id)
            items: list[Json] = []
            if kept is not None:
                items = [
                    *input_items(response_id, kept.inputs),
                    *msgspec.json.decode(kept.body)["output"],
                ]
            known = self._by_response[response_id] = {item["id"]: item for item in items}
        return known

"""GET /v1/models and /v1/models/{id}: one entry that clients of both API families can read.

defines: list_models, retrieve_model, no_embeddings, entry
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from ..edge.errors import ApiError
from ..edge.exchange import Exchange
from ..edge.models import VENDOR_PREFIX
from .pages import page_body, page_of

if TYPE_CHECKING:
    from ..edge.app import EdgeServer
    from ..edge.served import Served

NO: dict[str, Any] = {"supported": False}
YES: dict[str, Any] = {"supported": True}
EFFORTS = ("low", "medium", "high", "xhigh", "max")


def capabilities(thinks: bool) -> dict[str, Any]:
    """What the API lets a client do with this model. Only a model that thinks has an effort."""
    thinking = YES if thinks else NO
    return {
        "batch": YES,
        "citations": NO,
        "code_execution": NO,
        "context_management": {
            "supported": True,
            "clear_tool_uses_20250919": YES,
            "clear_thinking_20251015": YES,
            "compact_20260112": NO,
        },
        "effort": {"supported": thinks, **dict.fromkeys(EFFORTS, thinking)},
        "image_input": NO,
        "pdf_input": NO,
        "server_tools": {"supported": False, "code_execution": NO, "web_search": NO},
        "structured_outputs": YES,
        "thinking": {
            "supported": thinks,
            "types": {"adaptive": thinking, "enabled": thinking},
        },
    }


def entry(served: Served, identifier: str) -> dict[str, Any]:
    """The union of the fields that clients look for. Token counts are what is served, not what was
    trained; null before the model was loaded for the first time. parent: of an adapter and of
    another name, the model behind it."""
    text = served.text_if_read
    created = datetime.fromtimestamp(served.created_seconds, UTC)
    context = served.context_tokens or None
    is_alias = identifier not in (served.name, VENDOR_PREFIX + served.name)
    thinks = text is not None and text.template.thinking_format is not None
    told = {
        "type": "model",
        "id": identifier,
        "display_name": served.name if served.adapter else served.display_name,
        "created_at": created.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "lifecycle": "active",
        "line": None,
        "max_input_tokens": context,
        "max_tokens": context,
        "context_length": context,
        "max_model_len": context,
        "meta": {"n_ctx": context},
        "capabilities": capabilities(thinks),
        "deprecated_at": None,
        "retires_at": None,
        "object": "model",
        "created": served.created_seconds,
        "owned_by": "sublimate",
        "parent": served.parent or (served.name if is_alias else None),
        "template": str(text.template.report) if text is not None else "",
    }
    return {**told, **_standing(served)} if served.loads else told


def _standing(served: Served) -> dict[str, Any]:
    """Of one that is not always in memory."""
    used = served.used_seconds()
    idle = None if not used else round(max(0.0, time.monotonic() - used), 1)
    return {
        "state": served.state,
        "memory_bytes": served.memory_bytes(),
        "requests": served.requests(),
        "idle_seconds": idle,
    }


def list_models(server: EdgeServer, exchange: Exchange) -> None:
    """A page of models. Raises ApiError."""
    listed = server.models.listed
    shown, has_more = page_of(tuple(listed), exchange.request.query)
    page = page_body(shown, [entry(listed[each], each) for each in shown], has_more)
    exchange.send_json(200, msgspec.json.encode({**page, "object": "list"}))


def retrieve_model(server: EdgeServer, exchange: Exchange) -> None:
    """One model by id or alias. Raises ApiError."""
    requested = exchange.request.segments()[-1]
    served = server.models.resolve(requested)
    exchange.send_json(200, msgspec.json.encode(entry(served, requested)))


def no_embeddings(server: EdgeServer, exchange: Exchange) -> None:
    """Raises ApiError: no family of models here has them."""
    del server, exchange
    raise ApiError("embeddings")

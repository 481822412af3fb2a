"""POST /api/chat and /api/generate.

defines: chat, generate_text, CHAT, GENERATE
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

import msgspec

from ...edge.dialect import surface
from ...edge.exchange import Exchange
from ...edge.generate import generate
from .frames import ChatDialect, GenerateDialect, now_text
from .request import model_of, read_chat, read_generate

if TYPE_CHECKING:
    from ...edge.app import EdgeServer

CHAT = surface(read_chat, ChatDialect, "ollama")
GENERATE = surface(read_generate, GenerateDialect, "ollama")
LOAD_BYTES_MAX = 512
"""Of a body that asks for nothing but that the model be loaded."""


class LoadRequest(msgspec.Struct):
    """Without a prompt and without messages it asks for the model alone."""

    model: str
    prompt: str | None = None
    messages: list[Any] | None = None
    system: str | None = None
    images: list[Any] | None = None
    keep_alive: str | float | None = None


DECODER = msgspec.json.Decoder(LoadRequest)


def chat(server: EdgeServer, exchange: Exchange) -> Awaitable[None] | None:
    """Raises ApiError."""
    if _answer_load(server, exchange, {"message": {"role": "assistant", "content": ""}}):
        return None
    return generate(server, exchange, CHAT)


def generate_text(server: EdgeServer, exchange: Exchange) -> Awaitable[None] | None:
    """Raises ApiError."""
    if _answer_load(server, exchange, {"response": ""}):
        return None
    return generate(server, exchange, GENERATE)


def _answer_load(server: EdgeServer, exchange: Exchange, part: dict[str, Any]) -> bool:
    """Whether the request was one to load or to unload the model, which always is loaded."""
    body = exchange.request.body
    if len(body) > LOAD_BYTES_MAX:
        return False
    try:
        request = DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False  # the reader of a whole request says what is wrong
    if request.prompt or request.messages or request.system or request.images:
        return False
    server.engine_or_refuse(model_of(server, request.model))
    reason = "unload" if request.keep_alive in (0, "0") else "load"
    head = {"model": request.model, "created_at": now_text()}
    exchange.send_json(
        200, msgspec.json.encode({**head, **part, "done": True, "done_reason": reason})
    )
    return True

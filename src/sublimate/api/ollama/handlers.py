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
from .request import read_chat, read_generate

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
    if (request := _load_request(exchange)) is not None:
        part = {"message": {"role": "assistant", "content": ""}}
        return _answer_load(server, exchange, request, part)
    return generate(server, exchange, CHAT)


def generate_text(server: EdgeServer, exchange: Exchange) -> Awaitable[None] | None:
    """Raises ApiError."""
    if (request := _load_request(exchange)) is not None:
        return _answer_load(server, exchange, request, {"response": ""})
    return generate(server, exchange, GENERATE)


def _load_request(exchange: Exchange) -> LoadRequest | None:
    """If the request is one to load or to unload a model."""
    body = exchange.request.body
    if len(body) > LOAD_BYTES_MAX:
        return None
    try:
        request = DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None  # the reader of a whole request says what is wrong
    if request.prompt or request.messages or request.system or request.images:
        return None
    return request


def _answer_load(
    server: EdgeServer, exchange: Exchange, request: LoadRequest, part: dict[str, Any]
) -> Awaitable[None] | None:
    """A model that always is loaded stays so. Others' memory is this machine's user's to give."""
    served = server.models.resolve(request.model)
    is_unload = request.keep_alive in (0, "0")

    def answer() -> None:
        reason = "unload" if is_unload else "load"
        head = {"model": request.model, "created_at": now_text()}
        whole = {**head, **part, "done": True, "done_reason": reason}
        exchange.send_json(200, msgspec.json.encode(whole))

    async def there() -> None:
        server.engine_or_refuse(served)

    async def load() -> None:
        await server.models.once_loaded(exchange, there, needs_engine=True)
        answer()

    if is_unload and server.models.loads:
        if server.access.is_loopback and not server.access.needs_key:
            server.models.loading.stop(served)
        answer()
        return None
    if served.is_coming:
        return load()
    server.engine_or_refuse(served)
    answer()
    return None

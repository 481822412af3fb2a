"""POST /v1/chat/completions, /v1/completions and /v1/responses; GET and DELETE of a response,
GET of what it was an answer to.

defines: chat_completions, completions, create_response, retrieve_response, list_input_items,
         delete_response, CHAT, COMPLETIONS, RESPONSES
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING

import msgspec

from ...edge.dialect import surface
from ...edge.errors import ApiError
from ...edge.exchange import Exchange
from ...edge.generate import generate, prepared
from ...edge.generation import Prompt
from .chat import read_chat
from .chat_frames import ChatDialect
from .choices import split
from .completions import CompletionDialect, read_completion
from .input_items import input_items, page_of_items
from .response_frames import ResponsesDialect
from .response_store import ResponseStore, not_elsewhere
from .responses import read_response

if TYPE_CHECKING:
    from ...edge.app import EdgeServer

CHAT = surface(read_chat, ChatDialect, "chatcmpl", split)
COMPLETIONS = surface(read_completion, CompletionDialect, "cmpl", split)
RESPONSES = surface(read_response, ResponsesDialect, "resp")


def chat_completions(server: EdgeServer, exchange: Exchange) -> Awaitable[None] | None:
    """Raises ApiError."""
    return generate(server, exchange, CHAT)


def completions(server: EdgeServer, exchange: Exchange) -> Awaitable[None] | None:
    """Raises ApiError."""
    return generate(server, exchange, COMPLETIONS)


def create_response(server: EdgeServer, exchange: Exchange) -> Awaitable[None] | None:
    """Raises ApiError."""
    return generate(server, exchange, RESPONSES)


def count_input_tokens(server: EdgeServer, exchange: Exchange) -> Awaitable[None] | None:
    """The tokens of a request, without an answer. Raises ApiError."""

    def send(prompt: Prompt) -> None:
        counted = {"object": "response.input_tokens", "input_tokens": len(prompt.ids)}
        exchange.send_json(200, msgspec.json.encode(counted))

    return prepared(
        server, exchange, lambda body: read_response(server, exchange, body), send, is_counted=True
    )


def no_compaction(server: EdgeServer, exchange: Exchange) -> None:
    """Raises ApiError."""
    del server, exchange
    raise ApiError("compaction")


def no_batches(server: EdgeServer, exchange: Exchange) -> None:
    """Raises ApiError: an OpenAI batch is a file with requests to several APIs."""
    del server, exchange
    raise ApiError("batches_elsewhere")


def retrieve_response(server: EdgeServer, exchange: Exchange) -> None:
    """One that was kept. Raises ApiError (404)."""
    identifier = exchange.request.segments()[-1]
    not_elsewhere(server, exchange, identifier)
    exchange.send_json(200, server.part(ResponseStore).find(exchange.tenant_key, identifier).body)


def list_input_items(server: EdgeServer, exchange: Exchange) -> None:
    """Of one that was kept. Raises ApiError."""
    identifier = exchange.request.segments()[-2]
    not_elsewhere(server, exchange, identifier)
    kept = server.part(ResponseStore).find(exchange.tenant_key, identifier)
    page = page_of_items(input_items(identifier, kept.inputs), exchange.request.query)
    exchange.send_json(200, msgspec.json.encode(page))


def delete_response(server: EdgeServer, exchange: Exchange) -> None:
    """Raises ApiError (404)."""
    identifier = exchange.request.segments()[-1]
    not_elsewhere(server, exchange, identifier)
    server.part(ResponseStore).forget(exchange.tenant_key, identifier)
    shown = {"id": identifier, "object": "response", "deleted": True}
    exchange.send_json(200, msgspec.json.encode(shown))

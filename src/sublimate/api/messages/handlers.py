"""POST /v1/messages and /v1/messages/count_tokens.

defines: create_message, count_tokens, MESSAGES
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

import msgspec

from ...edge.coding import accepts_frames
from ...edge.exchange import Exchange
from ...edge.generate import generate, prepared
from ...edge.generation import Prompt, Surface
from .answers import CollectedMessage, StreamedMessage
from .fingerprints import Fingerprints
from .framed import FramedMessage
from .read import MessagesGeneration, read_count, read_message

if TYPE_CHECKING:
    from ...edge.app import EdgeServer
    from ...edge.stream import Answer


def _begun(server: EdgeServer, answer: Answer) -> None:
    """A later request may name this message as the one before it."""
    generation = answer.generation
    if isinstance(generation, MessagesGeneration) and generation.fingerprint is not None:
        entry = msgspec.structs.replace(generation.fingerprint, tokens=answer.prompt_tokens)
        if generation.miss_reason:
            metrics = server.models.of(generation.model_name).metrics
            metrics.divergences[generation.miss_reason] += 1
        known = server.part(Fingerprints)
        known.remember(answer.exchange.tenant_key, answer.message_id, entry)


def _streamed(exchange: Exchange, *arguments: Any, **named: Any) -> StreamedMessage:
    """In frames for a client that asks for them."""
    is_framed = accepts_frames(exchange.request.field(b"accept"))
    kind = FramedMessage if is_framed else StreamedMessage
    return kind(exchange, *arguments, **named)


MESSAGES = Surface(read=read_message, streamed=_streamed, collected=CollectedMessage, begun=_begun)


def create_message(server: EdgeServer, exchange: Exchange) -> Awaitable[None] | None:
    """Answer with a message, streamed or whole. Raises ApiError."""
    return generate(server, exchange, MESSAGES)


def count_tokens(server: EdgeServer, exchange: Exchange) -> Awaitable[None] | None:
    """The prompt tokens of a request: same renderer and tokenizer, no engine; also beyond the
    context, up to a bound. Raises ApiError."""
    return prepared(
        server,
        exchange,
        lambda body: read_count(server, body, exchange.tenant_key),
        lambda prompt: _send_count(exchange, prompt),
        is_counted=True,
    )


def _send_count(exchange: Exchange, prompt: Prompt) -> None:
    generation = prompt.generation
    result: dict[str, Any] = {"input_tokens": len(prompt.ids)}
    if isinstance(generation, MessagesGeneration) and generation.original_tokens is not None:
        result["context_management"] = {"original_input_tokens": generation.original_tokens}
    exchange.send_json(200, msgspec.json.encode(result))

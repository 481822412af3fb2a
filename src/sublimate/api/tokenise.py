"""POST /tokenize and /detokenize, in the shapes that vLLM gave them.

Text never becomes a control token here, as nowhere else; a conversation is rendered as
/v1/messages would.

defines: tokenize, detokenize
"""

from __future__ import annotations

from array import array
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import msgspec

from ..edge import limits
from ..edge.errors import field_error
from ..edge.exchange import Exchange
from ..edge.generate import prepared
from ..edge.generation import Prompt
from ..edge.guard import check_json
from ..model.tokenizer import Tokenizer
from .decode import decode_body
from .messages.read import read_count

if TYPE_CHECKING:
    from ..edge.app import EdgeServer

LONGEST_PROMPT_CONTEXTS = 1024
"""Counting has no limit of context; this one keeps a number in range."""


class TokenizeBody(msgspec.Struct):
    """A text or a conversation."""

    model: str = "default"
    prompt: str | None = None
    messages: list[Any] | None = None
    add_special_tokens: bool = True
    return_token_strs: bool = False


class DetokenizeBody(msgspec.Struct):
    tokens: list[int]
    model: str = "default"


_TOKENIZE = msgspec.json.Decoder(TokenizeBody)
_DETOKENIZE = msgspec.json.Decoder(DetokenizeBody)
ENCODE = msgspec.json.Encoder().encode


def tokenize(server: EdgeServer, exchange: Exchange) -> Awaitable[None] | None:
    """Ids of a text, or of a conversation with its generation prompt. Raises ApiError."""
    body = exchange.request.body
    check_json(body)
    asked = decode_body(_TOKENIZE, body)
    server.model.resolve(asked.model)
    if asked.messages is not None:
        if asked.prompt is not None:
            raise field_error("prompt", "give either prompt or messages")
        return _conversation(server, exchange, asked)
    prompt = asked.prompt
    if prompt is None:
        raise field_error("prompt", "field required")

    def work() -> bytes:
        tokenizer = server.model.tokenizer
        ids = tokenizer.encode(prompt)
        if asked.add_special_tokens and tokenizer.leading_bos(array("i", ids).tobytes()):
            ids.insert(0, tokenizer.bos_id)
        return _answer(server, ids, asked)

    return _answered(server, exchange, work)


def _answered(
    server: EdgeServer, exchange: Exchange, work: Callable[[], bytes]
) -> Awaitable[None] | None:
    """At once, or for a long body on a worker thread, so that no stream waits for it."""
    if len(exchange.request.body) < limits.OFFLOAD_BYTES_MIN:
        exchange.send_json(200, work())
        return None

    async def elsewhere() -> None:
        exchange.send_json(200, await server.loop.run_in_executor(server.workers, work))

    return elsewhere()


def _conversation(
    server: EdgeServer, exchange: Exchange, asked: TokenizeBody
) -> Awaitable[None] | None:
    request = {"model": asked.model, "messages": asked.messages}
    exchange.request.body = ENCODE(request)

    def send(prompt: Prompt) -> None:
        ids = [int(token) for token in prompt.ids]
        exchange.send_json(200, _answer(server, ids, asked))

    return prepared(
        server,
        exchange,
        lambda body: read_count(server, body, exchange.tenant_key),
        LONGEST_PROMPT_CONTEXTS * max(1, server.context_tokens),
        send,
    )


def _answer(server: EdgeServer, ids: list[int], asked: TokenizeBody) -> bytes:
    tokenizer = server.model.tokenizer
    texts = [_shown(tokenizer, token) for token in ids] if asked.return_token_strs else None
    answer = {
        "count": len(ids),
        "max_model_len": server.context_tokens,
        "tokens": ids,
        "token_strs": texts,
    }
    return ENCODE(answer)


def _shown(tokenizer: Tokenizer, token: int) -> str:
    """One token alone: part of a character is shown as U+FFFD."""
    return tokenizer.special_text(token) or tokenizer.token_bytes[token].decode(errors="replace")


def detokenize(server: EdgeServer, exchange: Exchange) -> Awaitable[None] | None:
    """The text of ids; control tokens as they are written. Raises ApiError."""
    body = exchange.request.body
    check_json(body)

    def work() -> bytes:
        asked = decode_body(_DETOKENIZE, body)
        server.model.resolve(asked.model)
        tokenizer = server.model.tokenizer
        for index, token in enumerate(asked.tokens):
            if not 0 <= token < len(tokenizer):
                raise field_error(f"tokens.{index}", "not a token of this model")
        pieces = [
            tokenizer.special_text(token).encode() or tokenizer.token_bytes[token]
            for token in asked.tokens
        ]
        return ENCODE({"prompt": b"".join(pieces).decode(errors="replace")})

    return _answered(server, exchange, work)

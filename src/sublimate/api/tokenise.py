"""POST /tokenize and /detokenize, in the shapes that vLLM gave them.

Text never becomes a control token here, as nowhere else. A conversation, in the shape of chat
completions or of the Messages API, is rendered with its tools as a request for an answer would be.
What is too long even to be counted is refused as there.

defines: tokenize, detokenize
"""

from __future__ import annotations

from array import array
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, cast

import msgspec

from ..edge import limits
from ..edge.errors import field_error
from ..edge.exchange import Exchange
from ..edge.generate import NeedsThreadError, check_length, prepare
from ..edge.generation import Generation
from ..edge.json_bounds import checked_json
from ..edge.memory import trimmed
from ..edge.served import NotLoadedError
from ..model.template import Rendered
from ..model.tokenizer import Tokenizer
from .decode import decode_body
from .messages.read import read_count
from .openai.chat import read_chat

if TYPE_CHECKING:
    from ..edge.app import EdgeServer
    from ..edge.served import Served


class TokenizeBody(msgspec.Struct):
    """A text or a conversation. Fields that only a conversation has are read by its own API."""

    model: str = "default"
    prompt: str | None = None
    messages: list[Any] | None = None
    tools: list[Any] | None = None
    system: Any = None
    add_special_tokens: bool = True
    return_token_strs: bool = False


class DetokenizeBody(msgspec.Struct):
    tokens: list[int]
    model: str = "default"


_OBJECT = msgspec.json.Decoder(dict[str, Any])
_TOKENIZE = msgspec.json.Decoder(TokenizeBody)
_DETOKENIZE = msgspec.json.Decoder(DetokenizeBody)
ENCODE = msgspec.json.Encoder().encode


def tokenize(server: EdgeServer, exchange: Exchange) -> Awaitable[None] | None:
    """Ids of a text, or of a conversation with its generation prompt. Raises ApiError."""
    owner = exchange.tenant_key

    def work(body: bytes) -> bytes:
        asked = decode_body(_TOKENIZE, body)
        served = server.models.resolve(asked.model)
        if asked.messages is None:
            return _answer(served, _of_text(served, asked), asked)
        if asked.prompt is not None:
            raise field_error("prompt", "give either prompt or messages")
        generation = _read_conversation(server, exchange, asked, body)
        return _answer(served, _ids_of(generation, served, owner), asked)

    return _answered(server, exchange, work)


def _answered(
    server: EdgeServer, exchange: Exchange, work: Callable[[bytes], bytes]
) -> Awaitable[None] | None:
    """At once, or for a long body on a worker thread, so that neither a stream nor a request for
    an answer waits for it."""
    body, exchange.request.body = exchange.request.body, b""

    def make() -> bytes:
        return work(checked_json(body))

    async def made() -> bytes:
        return await server.loop.run_in_executor(server.aside, lambda: trimmed(make, len(body)))

    async def elsewhere() -> None:
        exchange.send_json(200, await server.models.once_loaded(exchange, made))

    if len(body) >= limits.OFFLOAD_BYTES_MIN:
        return elsewhere()
    try:
        answer = make()
    except (NeedsThreadError, NotLoadedError):
        return elsewhere()
    exchange.send_json(200, answer)
    return None


def _of_text(served: Served, asked: TokenizeBody) -> list[int]:
    if asked.prompt is None:
        raise field_error("prompt", "field required")
    tokenizer = served.text.tokenizer
    check_length(Rendered(asked.prompt, ""), tokenizer, served.prompt_tokens_max, is_counted=True)
    ids = tokenizer.encode_pieces(tokenizer.begun([asked.prompt], []))[0]
    bos = tokenizer.leading_bos(ids) if asked.add_special_tokens else b""
    return array("i", bos + ids).tolist()


BLOCKS_OF_MESSAGES = ("tool_use", "tool_result", "thinking", "redacted_thinking", "document")
"""Types of content that the Messages API alone has."""


def _is_of_messages(asked: TokenizeBody) -> bool:
    """Whether the conversation has the shape of the Messages API; else it has that of chat
    completions. What is plain means the same in both."""
    types = [
        cast(dict[str, Any], block).get("type")
        for message in asked.messages or ()
        if isinstance(message, dict)
        and isinstance(blocks := cast(dict[str, Any], message).get("content"), list)
        for block in cast(list[Any], blocks)
        if isinstance(block, dict)
    ]
    return (
        asked.system is not None
        or any(isinstance(tool, dict) and "input_schema" in tool for tool in asked.tools or ())
        or any(kind in BLOCKS_OF_MESSAGES for kind in types)
    )


def _read_conversation(
    server: EdgeServer, exchange: Exchange, asked: TokenizeBody, body: bytes
) -> Generation:
    """Raises ApiError."""
    request = ENCODE({**decode_body(_OBJECT, body), "model": asked.model})
    if _is_of_messages(asked):
        return read_count(server, request, exchange.tenant_key)
    return read_chat(server, exchange, request)


def _ids_of(generation: Generation, served: Served, owner: bytes) -> list[int]:
    prompt = prepare(
        generation,
        served.text,
        context_tokens=served.prompt_tokens_max,
        owner=owner,
        is_counted=True,
    )
    return prompt.ids.tolist()


def _answer(served: Served, ids: list[int], asked: TokenizeBody) -> bytes:
    tokenizer = served.text.tokenizer
    texts = [_shown(tokenizer, token) for token in ids] if asked.return_token_strs else None
    answer = {
        "count": len(ids),
        "max_model_len": served.context_tokens or None,
        "tokens": ids,
        "token_strs": texts,
    }
    return ENCODE(answer)


def _shown(tokenizer: Tokenizer, token: int) -> str:
    """One token alone: part of a character is shown as U+FFFD."""
    return tokenizer.special_text(token) or tokenizer.token_bytes[token].decode(errors="replace")


def detokenize(server: EdgeServer, exchange: Exchange) -> Awaitable[None] | None:
    """The text of ids; control tokens as they are written. Raises ApiError."""

    def work(body: bytes) -> bytes:
        asked = decode_body(_DETOKENIZE, body)
        tokenizer = server.models.resolve(asked.model).text.tokenizer
        for index, token in enumerate(asked.tokens):
            if not 0 <= token < len(tokenizer):
                raise field_error(f"tokens.{index}", "not a token of this model")
        pieces = [
            tokenizer.special_text(token).encode() or tokenizer.token_bytes[token]
            for token in asked.tokens
        ]
        return ENCODE({"prompt": b"".join(pieces).decode(errors="replace")})

    return _answered(server, exchange, work)

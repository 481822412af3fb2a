"""From the bytes of a body to token ids: decode, normalise, render, tokenise.

defines: Prompt, decode, prepare
"""

from __future__ import annotations

import time

import msgspec
import numpy as np
from numpy.typing import NDArray

from ...edge.errors import ApiError
from ...edge.guard import check_json
from ...edge.textmodel import TextModel
from ...model.template import TemplateLimitError
from .normalise import normalise
from .schema import MessagesRequest, check_offered, decode_request

SAMPLE_CHARACTERS = 1 << 16
"""Of a prompt that cannot fit, whose tokens are estimated from its beginning."""


class Prompt(msgspec.Struct, frozen=True):
    """A request whose conversation is token ids."""

    request: MessagesRequest
    model_name: str
    ids: NDArray[np.int32]
    """(prompt_tokens)"""
    ends_ns: tuple[int, int, int]
    """When parse, template and tokenise ended, on the monotonic clock (see timing.py)."""


def prepare(
    body: bytes, model: TextModel, *, messages_max: int, context_tokens: int, owner: bytes = b""
) -> Prompt:
    """Everything that can be done without the engine. `owner`: whose conversations this one may
    continue. Raises ApiError."""
    check_json(body)
    request = decode_request(body)
    model_name = model.resolve(request.model)
    check_offered(request)
    turns = normalise(request, messages_max=messages_max)
    parsed_ns = time.monotonic_ns()
    try:
        rendered = model.template.render(turns)
    except TemplateLimitError:
        raise ApiError("template_limit") from None
    rendered_ns = time.monotonic_ns()
    tokenizer = model.tokenizer
    length = len(rendered.text)
    if length > context_tokens * tokenizer.longest_token_bytes:
        # Even made of the longest token alone it could not fit, so there is no need to know the
        # exact number: the beginning tells the rate.
        sample = tokenizer.encode_rendered(rendered.text[:SAMPLE_CHARACTERS], rendered.marker)
        estimate = max(context_tokens + 1, len(sample) * length // SAMPLE_CHARACTERS)
        raise ApiError("prompt_too_long", tokens=estimate, maximum=context_tokens)
    ids = model.conversations.encode(rendered, owner)
    if len(ids) > context_tokens:
        raise ApiError("prompt_too_long", tokens=len(ids), maximum=context_tokens)
    return Prompt(request, model_name, ids, (parsed_ns, rendered_ns, time.monotonic_ns()))

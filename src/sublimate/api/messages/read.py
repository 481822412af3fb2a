"""From a body of the Messages API to a Generation.

defines: MessagesGeneration, read_message, read_count
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...config import Profile
from ...edge.exchange import Exchange
from ...edge.generate import choose_profile
from ...edge.generation import Generation
from ...edge.sampling import SamplingFields
from .normalise import normalise
from .schema import MessagesRequest, check_offered, decode_request

if TYPE_CHECKING:
    from ...edge.app import EdgeServer


class MessagesGeneration(Generation, frozen=True, kw_only=True):
    """With what only this API asks for."""

    edits_context: bool = False
    """The request names edits of its context, so the answer tells what came of them."""


def read_message(server: EdgeServer, exchange: Exchange, body: bytes) -> Generation:
    """Of POST /v1/messages. Raises ApiError."""
    del exchange
    request = decode_request(body)
    profile = choose_profile(request.execution_profile, server.settings)
    return _generation(server, request, request, profile)


def read_count(server: EdgeServer, body: bytes) -> Generation:
    """Of POST /v1/messages/count_tokens, whose body says nothing of sampling. Raises ApiError."""
    counted = SamplingFields(max_tokens=0)
    return _generation(server, decode_request(body), counted, server.settings.profile)


def _generation(
    server: EdgeServer, request: MessagesRequest, sampling: SamplingFields, profile: Profile
) -> MessagesGeneration:
    model_name = server.model.resolve(request.model)
    check_offered(request)
    turns = normalise(request, messages_max=server.limits.messages_max)
    return MessagesGeneration(
        model_name=model_name,
        turns=tuple(turns),
        sampling=server.checked_sampling(sampling),
        profile=profile,
        stream=bool(request.stream),
        edits_context=request.context_management is not None,
    )

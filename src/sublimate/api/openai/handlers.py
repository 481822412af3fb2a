"""POST /v1/chat/completions and /v1/completions.

defines: chat_completions, completions, CHAT, COMPLETIONS
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING

from ...edge.dialect import surface
from ...edge.exchange import Exchange
from ...edge.generate import generate
from .chat import read_chat
from .chat_frames import ChatDialect
from .completions import CompletionDialect, read_completion

if TYPE_CHECKING:
    from ...edge.app import EdgeServer

CHAT = surface(read_chat, ChatDialect, "chatcmpl")
COMPLETIONS = surface(read_completion, CompletionDialect, "cmpl")


def chat_completions(server: EdgeServer, exchange: Exchange) -> Awaitable[None] | None:
    """Raises ApiError."""
    return generate(server, exchange, CHAT)


def completions(server: EdgeServer, exchange: Exchange) -> Awaitable[None] | None:
    """Raises ApiError."""
    return generate(server, exchange, COMPLETIONS)

"""Long bodies sent piece by piece, no faster than the client reads.

defines: send_body
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

from ..edge import limits
from ..edge.exchange import Exchange, Header

PIECE_BYTES = 64 * limits.KIB
WAIT_SECONDS = 0.01


async def send_body(
    exchange: Exchange, content_type: str, headers: list[Header], parts: AsyncIterator[bytes]
) -> None:
    """200 with the parts as its body. A client that takes nothing for a minute is cut off."""
    if exchange.request.method == "HEAD":
        exchange.send(200, [("content-type", content_type), *headers], b"")
        return
    exchange.start_stream(headers, b"", content_type)
    async for part in parts:
        for begin in range(0, len(part), PIECE_BYTES):
            if not await _has_room(exchange):
                return
            exchange.write(exchange.framed(part[begin : begin + PIECE_BYTES]))
    exchange.finish()


async def _has_room(exchange: Exchange) -> bool:
    """Wait until the client has taken most of it; False if it is gone."""
    deadline = time.monotonic() + limits.SEND_STALL_SECONDS
    left = exchange.unsent_bytes()
    while left > PIECE_BYTES and not exchange.gone:
        await asyncio.sleep(WAIT_SECONDS)
        now_left = exchange.unsent_bytes()
        if now_left < left:
            left, deadline = now_left, time.monotonic() + limits.SEND_STALL_SECONDS
        elif time.monotonic() > deadline:
            exchange.cut()
    return not exchange.gone

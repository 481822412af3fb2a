"""How much memory models take, and may take: packed weights, keys and values.

What a model takes is known exactly once it has been loaded; before that it is estimated by its file
and by what its keys and values may have.

defines: limit_bytes, kv_parts, estimated_bytes, needed_bytes
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .. import _core
from .launch import Launch

MEMORY_SHARE_OF_LIMIT = 2
"""Without a limit of one's own: half of the machine's memory."""
SLACK = 16
"""Of the limit that share is left: packed weights are not quite what the file is."""
MODELS_AT_ONCE = 4
"""So many are to have room beside each other, whatever their number."""


def _memory_bytes() -> int:
    return int(_core.probe()["memory_bytes"])


def _kv_bytes() -> int:
    """The share of memory that is for keys and values."""
    return _memory_bytes() // int(_core.LIMITS["KV_MEMORY_SHARE"])


def limit_bytes(fleet: Launch) -> int:
    """Of all models together."""
    return fleet.settings.server.models_memory or _memory_bytes() // MEMORY_SHARE_OF_LIMIT


def kv_parts(fleet: Launch, launch: Launch) -> int:
    """Into how many parts the memory for keys and values falls, beyond the workers, so that several
    models have room, and this one beside its weights.

    fleet: of who is added now; launch: of engines of one model.
    """
    if not fleet.loads:
        return 1
    parts = min(len(fleet.names), MODELS_AT_ONCE)
    room = _kv_room(limit_bytes(fleet), launch.model_bytes, parts)
    if room <= 0:
        return parts
    return max(parts, -(-_kv_bytes() // room))


def _kv_room(limit: int, weights: int, parts: int) -> int:
    """Bytes for keys and values of one model, so that as many such models fit into the limit; if
    its weights are too many for that, a part of what they leave."""
    shared = limit // parts - limit // SLACK - weights
    alone = (limit - weights) // parts
    return shared if shared >= alone // 2 else alone


def estimated_bytes(fleet: Launch, launch: Launch, workers: int) -> int:
    """What it will take at most, before it was loaded for the first time: never more than there is
    for all, for then it is tried alone."""
    kv_bytes = launch.settings.engine.kv_memory * workers
    if not kv_bytes:
        kv_bytes = _kv_bytes() // kv_parts(fleet, launch)
    return min(limit_bytes(fleet), launch.model_bytes + kv_bytes)


def needed_bytes(infos: Iterable[dict[str, Any]]) -> int:
    """What the engines of one model have taken, as they tell it; weights are shared."""
    told = list(infos)
    weights = max((int(info.get("weight_bytes", 0)) for info in told), default=0)
    return weights + sum(int(info.get("kv_bytes", 0)) for info in told)

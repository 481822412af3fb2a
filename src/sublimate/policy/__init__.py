"""The scheduling policy for who asks: `decide` says how a request should run, without asking a
server, and `digest` names the policy that said so.

decision (the one decision function, with names), options (the descriptor's policy and its digest).
Names are loaded when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .decision import Border as Border
    from .decision import Decision as Decision
    from .decision import Hardware as Hardware
    from .decision import Headroom as Headroom
    from .decision import Request as Request
    from .decision import decide as decide
    from .decision import headroom_of as headroom_of
    from .decision import message_borders as message_borders
    from .options import call_policy as call_policy
    from .options import digest as digest
    from .options import layer_policy as layer_policy

_DECISION = ("Border", "Decision", "Hardware", "Headroom", "Request", "decide", "headroom_of")
_HOMES = {
    **dict.fromkeys((*_DECISION, "message_borders"), "decision"),
    **dict.fromkeys(("call_policy", "digest", "layer_policy"), "options"),
}
__all__ = [
    "Border",
    "Decision",
    "Hardware",
    "Headroom",
    "Request",
    "call_policy",
    "decide",
    "digest",
    "headroom_of",
    "layer_policy",
    "message_borders",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f".{_HOMES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""What an edge loads once it serves and nobody waits for an answer: what requests of some kinds
need, and no start. Whoever needs one of these before imports it where it is used.

defines: LATER, Later
"""

from __future__ import annotations

import gc
import logging
from importlib import import_module
from typing import TYPE_CHECKING

from . import limits

if TYPE_CHECKING:
    from .app import EdgeServer

LATER = (
    "sublimate.model.library",  # text that is not ASCII
    "numpy",  # masks, routing by prefix, scores
    "llguidance",  # grammars
    "prometheus_client.exposition",  # /metrics
)

LOG = logging.getLogger("sublimate.edge")


class Later:
    """Part of a server, which begins with it to look for an idle moment."""

    def __init__(self, server: EdgeServer) -> None:
        self._server = server
        self._looks_left = limits.IDLE_LOOKS_MAX
        self._timer = server.loop.call_later(limits.IDLE_LOOK_SECONDS, self._look)

    def _look(self) -> None:
        self._looks_left -= 1
        if self._server.is_busy and self._looks_left:
            self._timer = self._server.loop.call_later(limits.IDLE_LOOK_SECONDS, self._look)
            return
        self._server.aside.submit(_load)
        if (text := self._server.models.main.text_if_read) is not None:
            self._server.workers.submit(text.warm_up)

    def drain(self) -> None:
        """Nothing that begins now would be of use to anybody."""
        self._timer.cancel()

    def close(self) -> None:
        self._timer.cancel()


def _load() -> None:
    for name in LATER:
        try:
            import_module(name)
        except ImportError:
            LOG.exception("%s cannot be loaded", name)
    gc.freeze()  # as what was there before: no collection need walk it

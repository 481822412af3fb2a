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
    from .textmodel import TextModel

LATER = (
    "numpy",  # masks, routing by prefix, scores
    "prometheus_client.exposition",  # /metrics
)
"""Beside what a text model loads (TextModel.warm_up)."""
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
        # Not on a thread that yields to others: a request that needs the same waits for this one.
        self._server.workers.submit(_load, self._server.models.main.text_if_read)

    def drain(self) -> None:
        """Nothing that begins now would be of use to anybody."""
        self._timer.cancel()

    def close(self) -> None:
        self._timer.cancel()


def _load(text: TextModel | None) -> None:
    try:
        if text is not None:
            text.warm_up()
        for name in LATER:
            import_module(name)
    except Exception:
        LOG.exception("what requests may need cannot be loaded")
    gc.freeze()  # as what was there before: no collection need walk it

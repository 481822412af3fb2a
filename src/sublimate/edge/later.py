"""What an edge loads once it serves, while nobody waits: what requests of some kinds need, and no
start. Whoever needs one of these imports it where it is used, which then costs nothing.

defines: LATER, load_later
"""

from __future__ import annotations

import gc
import logging
from importlib import import_module

LATER = (
    "sublimate.model.library",  # text that is not ASCII
    "numpy",  # masks, routing by prefix, scores
    "llguidance",  # grammars
    "prometheus_client.exposition",  # /metrics
)

LOG = logging.getLogger("sublimate.edge")


def load_later() -> None:
    """All of them; on a thread that is in nobody's way."""
    for name in LATER:
        try:
            import_module(name)
        except ImportError:
            LOG.exception("%s cannot be loaded", name)
    gc.freeze()  # as what was there before: no collection need walk it

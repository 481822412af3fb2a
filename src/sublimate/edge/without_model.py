"""An edge whose model file cannot be read, where the server stays to say so (`serve --stay`).

defines: stand_in, EdgeWithoutModel
"""

from __future__ import annotations

from typing import Any

import msgspec

from ..config import EdgeSettings
from ..model.byte_level import byte_characters
from .app import QUIET_PATHS, EdgeServer
from .exchange import Exchange
from .textmodel import TextModel, text_model_from_metadata

REASON = "load_failed"
"""As of an engine that cannot load the file."""
FINDING = "The edge cannot read the model file; the server's log says why."
PAIR = "QQ"
"""A vocabulary has a merge, and this one is for nobody to see."""


def stand_in(name: str) -> TextModel:
    """For an edge that tokenises nothing: a token for each byte."""
    tokens = [*map(chr, byte_characters()), PAIR]
    metadata: dict[str, Any] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.merges": [" ".join(PAIR)],
    }
    return text_model_from_metadata(name, metadata)


class EdgeWithoutModel(EdgeServer):
    """Answers every request with what is wrong (503), or lets the fallback answer it."""

    def __init__(self, settings: EdgeSettings, *given: Any) -> None:
        """As EdgeServer, with a stand-in. Aliases are left out: one may name what the file does."""
        super().__init__(msgspec.structs.replace(settings, aliases=()), *given)
        self.engines.lost(0, REASON, FINDING)

    def engine_up(self, *region: Any, **about: Any) -> None:
        """An engine may well have loaded the rest of the file; no token id here is one of its."""
        del region, about

    def engine_lost(self, reason: str = "", message: str = "", *, engine: int = 0) -> None:
        """One that cannot load the file says what is wrong with it; else it is no news."""
        if reason == REASON:
            super().engine_lost(reason, message, engine=engine)

    def _begin(self, exchange: Exchange) -> None:
        quiet = exchange.request.path in QUIET_PATHS or exchange.request.method == "OPTIONS"
        if exchange.refusal is None and not quiet:
            raise self.engines.unavailable_error()
        super()._begin(exchange)

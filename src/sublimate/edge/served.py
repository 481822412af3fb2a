"""One model of a server, as the edge has it: how its text becomes token ids and back, the engines
that compute it, and what its answers have taken.

defines: Served
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from .. import _core
from ..guard.standing import Standing
from . import limits
from .engine import EngineLink
from .engines import Engines
from .errors import ApiError
from .observe.answer_metrics import AnswerMetrics
from .sampling import Sampling, SamplingFields, check_sampling, with_defaults
from .textmodel import TextModel

if TYPE_CHECKING:
    from .observe.stories import Stories
    from .place import Place


class Served:
    """On the event loop's thread, but for its text, which readers on worker threads use too."""

    def __init__(
        self,
        text: TextModel,
        loop: asyncio.AbstractEventLoop,
        stories: Stories,
        place: Place,
        *,
        routes: bool = True,
    ) -> None:
        """routes: as for Engines."""
        self.name = text.name
        self.text = text
        self.metrics = AnswerMetrics()
        self.metrics.relaxations = text.grammars.relaxed
        self.standing = Standing()
        """Of its engines, as the watchdog tells it."""
        self.engines = Engines(
            loop,
            text.vocabulary,
            self.metrics,
            stories,
            place.key("signatures"),
            self.standing,
            place=place,
            routes=routes,
        )

    # ---- what a request of it may be -----------------------------------------------------------
    @property
    def context_tokens(self) -> int:
        """Served context; of the last engine while there is none."""
        return self.engines.context_tokens

    @property
    def prompt_tokens_max(self) -> int:
        """Of the served context; before there was an engine, of any."""
        return self.context_tokens or _core.LIMITS["CONTEXT_TOKENS_MAX"]

    def checked_sampling(self, fields: SamplingFields) -> Sampling:
        """Sampling parameters as this model takes them. Raises ApiError that names the field."""
        tokenizer = self.text.tokenizer
        return check_sampling(
            with_defaults(fields, self.text.sampling),
            vocabulary=len(tokenizer),
            stop_ids_max=_core.LIMITS["STOP_TOKENS_MAX"] - len(tokenizer.stop_tokens),
            bias_max=_core.LIMITS["LOGIT_BIAS_MAX"],
        )

    # ---- its engines ---------------------------------------------------------------------------
    @property
    def links(self) -> Sequence[EngineLink]:
        """Those that take requests."""
        return self.engines.links

    def engine_or_refuse(self) -> EngineLink:
        """Raises ApiError without an engine, or with none that is well."""
        if (engine := self.engines.first) is None:
            raise self.engines.unavailable_error()
        if self.engines.is_tripped:
            raise ApiError("engine_tripped").after(limits.TRIPPED_RETRY_SECONDS)
        return engine

    def unready_reason(self) -> str:
        """Empty if new requests would be served."""
        if (engine := self.engines.first) is None:
            return self.engines.unavailable_reason
        if self.engines.is_tripped:
            return "engine_tripped"
        return "" if engine.is_healthy() else "engine_stalled"

    def families(self, labels: dict[str, str]) -> Iterator[Any]:
        """Metrics of its engines' standing."""
        return self.standing.families(labels)

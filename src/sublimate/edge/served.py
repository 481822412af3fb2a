"""One model of a server, as the edge has it: how its text becomes token ids and back, the engines
that compute it, and what its answers have taken.

A model that is loaded when it is asked for has neither text nor engines at first; whoever finds
that out by a NotLoadedError waits (loading.py) and begins again.

defines: NotLoadedError, Served, Adapted
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from .. import _core
from ..control.channel import ModelPlace
from ..guard.standing import Standing
from . import limits
from .engine import EngineLink
from .engines import Engines
from .errors import ApiError
from .observe.answer_metrics import AnswerMetrics
from .observe.timing import NS_PER_SECOND
from .sampling import Sampling, SamplingFields, check_sampling, with_defaults
from .textmodel import TextModel

if TYPE_CHECKING:
    from .observe.stories import Stories
    from .place import Place


class NotLoadedError(Exception):
    """A model is not in memory, or nothing has been read of its file."""

    def __init__(self, served: Served, *, needs_engine: bool) -> None:
        super().__init__(served.name)
        self.served = served.whole
        self.needs_engine = needs_engine


class Served:
    """On the event loop's thread, but for its text, which readers on worker threads use too."""

    adapter = 0
    """By its place among those of the model, from 1, as its engines count them; 0: none."""
    parent = ""
    """Name of the model that an adapter is of."""

    def __init__(
        self,
        where: ModelPlace,
        text: TextModel | None,
        loop: asyncio.AbstractEventLoop,
        stories: Stories,
        place: Place,
        *,
        routes: bool = True,
    ) -> None:
        """text: None: read when it is asked for. routes: as for Engines."""
        self.name = where.name
        self.where = where
        self.loads = False
        """It may be out of memory, and comes into it when it is asked for."""
        self.text_version = 0
        """Another one when its file is another one: token ids made before are none of it."""
        self.failure: tuple[str, str] | None = None
        """Why it could not be loaded when that was tried last: reason and finding."""
        self.text_came: Callable[[], None] = lambda: None
        self.metrics = AnswerMetrics()
        self.standing = Standing()
        """Of its engines, as the watchdog tells it."""
        self.engines = Engines(
            loop,
            lambda: self.text.vocabulary,
            self.metrics,
            stories,
            place.key("signatures"),
            self.standing,
            place=place,
            routes=routes,
        )
        self._text: TextModel | None = None
        self._created_seconds = 0
        if text is not None:
            self.take_text(text)

    @property
    def whole(self) -> Served:
        """The model that is loaded for this one."""
        return self

    # ---- its text ------------------------------------------------------------------------------
    @property
    def text(self) -> TextModel:
        """Raises NotLoadedError."""
        if self._text is None:
            raise NotLoadedError(self, needs_engine=False)
        return self._text

    @property
    def text_if_read(self) -> TextModel | None:
        """For what can do without."""
        return self._text

    def take_text(self, text: TextModel) -> None:
        """It was read of its file."""
        self._text = text
        self.metrics.relaxations = text.grammars.relaxed
        self.text_came()

    def forget_text(self) -> None:
        """Its file is another one, or the memory is for others. No engine serves it."""
        self._text = None
        self.text_version += 1

    @property
    def display_name(self) -> str:
        """As its file calls it, if that was read."""
        return self._text.display_name if self._text is not None else self.name

    @property
    def created_seconds(self) -> int:
        """When this edge began with it, for people."""
        if self._text is not None:
            return self._text.created_seconds
        self._created_seconds = self._created_seconds or int(time.time())
        return self._created_seconds

    @property
    def file_bytes(self) -> int:
        """As told, if its file was not read."""
        return self._text.file_bytes if self._text is not None else self.where.file_bytes

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

    @property
    def rests(self) -> bool:
        """It is out of memory, as it may be: that is no fault."""
        return self.loads and not self.links and not self.engines.was_lost

    @property
    def is_coming(self) -> bool:
        """Whether a request must wait because no engine serves the model yet."""
        return self.rests or (self.engines.is_first_awaited and not self.links)

    @property
    def state(self) -> str:
        """For people: loaded, unloaded or lost (an engine that ended and is started again)."""
        if self.links:
            return "loaded"
        return "unloaded" if self.rests else "lost"

    def memory_bytes(self) -> int:
        """Of weights, which its engines share, keys and values; 0 while it is not loaded."""
        infos = [link.info for link in self.links]
        weights = max((int(info.get("weight_bytes", 0)) for info in infos), default=0)
        return weights + sum(int(info.get("kv_bytes", 0)) for info in infos)

    def requests(self) -> int:
        """That its engines have now, of all edges."""
        loads = [link.prefixes.load() for link in self.links if link.prefixes is not None]
        return sum(load["running"] + load["waiting"] for load in loads)

    def used_seconds(self) -> float:
        """Monotonic clock of the last step; 0: none since it was loaded."""
        return max((link.stats()["last_step_ns"] for link in self.links), default=0) / NS_PER_SECOND

    def engine_or_refuse(self) -> EngineLink:
        """Raises ApiError without an engine, or with none that is well, NotLoadedError where one
        can be loaded."""
        if self.is_coming:
            raise NotLoadedError(self, needs_engine=True)
        if (engine := self.engines.first) is None:
            raise self.engines.unavailable_error()
        if self.engines.is_tripped:
            raise ApiError("engine_tripped").after(limits.TRIPPED_RETRY_SECONDS)
        return engine

    def unready_reason(self) -> str:
        """Empty if new requests would be served."""
        if self.rests:
            return ""
        if (engine := self.engines.first) is None:
            return self.engines.unavailable_reason
        if self.engines.is_tripped:
            return "engine_tripped"
        return "" if engine.is_healthy() else "engine_stalled"

    def families(self, labels: dict[str, str]) -> Iterator[Any]:
        """Metrics of its engines' standing."""
        return self.standing.families(labels)


class Adapted(Served):
    """A model with one of its adapters: another name, and a number in each request. All else is the
    model's own, now and when it comes into memory."""

    def __init__(self, base: Served, name: str, number: int) -> None:
        if number < 1 or base.adapter:
            raise ValueError("adapters are counted from 1, each one of a model")
        self.base = base
        self.name, self.adapter, self.parent = name, number, base.name

    def __getattr__(self, name: str) -> Any:
        return getattr(self.base, name)

    @property
    def whole(self) -> Served:
        return self.base

    @property
    def text(self) -> TextModel:
        """As of the model, which is what is loaded."""
        return self.base.text

    def engine_or_refuse(self) -> EngineLink:
        """As of the model."""
        return self.base.engine_or_refuse()

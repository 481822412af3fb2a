"""The engines that this edge can give requests to, one or several.

defines: Engines
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from .. import _core
from ..guard.standing import Standing
from . import limits
from .engine import EngineLink
from .errors import ApiError
from .place import ALONE, Place
from .record import Tenant
from .router import PROMPT_TOKENS, Candidate, choose

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from .observe.answer_metrics import AnswerMetrics
    from .observe.stories import Stories

FOREVER_REASONS = ("hardware_not_supported", "load_failed")
IDLE_LOOK_SECONDS = 0.05


class Engines:
    """By number. On the event loop's thread only."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        vocabulary: Callable[[], _core.Vocabulary],
        metrics: AnswerMetrics,
        stories: Stories,
        signature_key: bytes,
        standing: Standing,
        *,
        place: Place = ALONE,
        routes: bool = True,
    ) -> None:
        """vocabulary: of the model, which is there once an engine is. routes: by prefix, else every
        request goes to the near engine."""
        self.signature_key = signature_key
        """Of thinking blocks."""
        self.context_tokens = 0
        """That all engines serve; of the last ones while there is none."""
        self._loop = loop
        self._vocabulary = vocabulary
        self._metrics = metrics
        self._stories = stories
        self._standing = standing
        self._worker = place.worker
        self._hasher = _core.PrefixHasher(place.prefix_secret)
        self._routes = routes
        self.links: tuple[EngineLink, ...] = ()
        """That take requests, in the order of their workers."""
        self._links: dict[int, EngineLink] = {}
        self._leaving: dict[int, EngineLink] = {}
        """They finish what they have."""
        self.was_lost = False
        """The last change was that one ended which was not to leave: it comes back by itself."""
        self.is_first_awaited = False
        """The first one is loading. Requests wait for it."""
        self._unavailable: tuple[str, str] = ("engine_unavailable", "")

    @property
    def first(self) -> EngineLink | None:
        """A healthy one if there is any; None: there is no engine."""
        links = self.links
        if len(links) > 1:
            return self._well()[0]
        return links[0] if links else None

    @property
    def is_tripped(self) -> bool:
        """None of them is to get anything new."""
        return all(self._standing.is_tripped(link.number) for link in self.links)

    def _well(self) -> Sequence[EngineLink]:
        """Those of several that are healthy; all, if none is."""
        untripped = [link for link in self.links if not self._standing.is_tripped(link.number)]
        return [link for link in untripped if link.is_healthy()] or untripped or self.links

    def _changed(self) -> None:
        self.links = tuple(sorted(self._links.values(), key=lambda link: link.worker))
        if self.links:
            self.context_tokens = min(link.context_tokens for link in self.links)

    # ---- their life ----------------------------------------------------------------------------
    def up(
        self,
        region: _core.Region,
        info: dict[str, Any],
        on_broken: Callable[[], None],
        number: int = 0,
        worker: int = 0,
        prefixes: _core.PrefixTable | None = None,
    ) -> None:
        """That engine serves this region from now on. `on_broken` is called, once, when the region
        turns out to be of no use; by then all that was in flight there has got its error. Raises
        CoreError if it is of no use from the start."""
        if min(number, worker) < 0:
            raise ValueError("engines and workers are counted from 0")
        self.lost(number)
        link = EngineLink(
            self._loop,
            region,
            self._vocabulary(),
            info,
            lambda: self._broke(number, link, on_broken),
            self._metrics.inter_token,
            self.signature_key,
        )
        link.number, link.worker, link.prefixes = number, worker, prefixes
        self._links[number] = link
        self.was_lost = self.is_first_awaited = False
        self._standing.came(number, worker)
        self._stories.engine_up(link.trace)
        self._changed()

    def _broke(self, number: int, link: EngineLink, tell: Callable[[], None]) -> None:
        # A request that was long in preparation may still hold the link before this one.
        if link in (self._links.get(number), self._leaving.get(number)):
            self.lost(number)
            tell()

    def lost(self, number: int, reason: str = "", message: str = "") -> None:
        """It has ended. What is in flight there ends now; without another one new requests are 503
        until the next."""
        known = reason if reason in FOREVER_REASONS else "engine_unavailable"
        self._unavailable = (known, message)
        self.is_first_awaited = False
        self._standing.lost(number)
        self.was_lost |= number in self._links
        gone = [links.pop(number, None) for links in (self._links, self._leaving)]
        self._changed()  # before who hears of it asks for those that are left
        for link in gone:
            if link is not None:
                link.close()
                self._stories.engine_lost(link.trace)

    def leave(self, number: int, idle: Callable[[], None]) -> None:
        """Give it nothing more; `idle` is called when it has nothing left to do for this edge."""
        if number in self._leaving:
            raise ValueError("it leaves once")
        self._standing.left(number)
        self.was_lost = False
        link = self._links.pop(number, None)
        if link is not None:
            self._leaving[number] = link
            self._changed()
            link.reservations.close()
        self._tell_if_idle(number, idle)

    def _tell_if_idle(self, number: int, idle: Callable[[], None]) -> None:
        link = self._leaving.get(number)
        if link is not None and link.is_busy:
            self._loop.call_later(IDLE_LOOK_SECONDS, self._tell_if_idle, number, idle)
        else:
            idle()

    def close(self) -> None:
        """Forget them all."""
        for number in (*self._links, *self._leaving):
            self.lost(number)

    # ---- requests ------------------------------------------------------------------------------
    def choose(
        self, ids: array[int], tenant: Tenant, queue_max: int, adapter: int = 0
    ) -> EngineLink:
        """The one for a prompt. Raises ApiError (503) without any."""
        links = self.links
        if not links:
            raise self.unavailable_error()
        if len(links) == 1:
            return links[0]
        healthy = self._well()
        if not self._routes:
            return next((link for link in healthy if link.worker == self._worker), healthy[0])
        chain = self._hasher.chain(
            ids, tenant_low=tenant.low, tenant_high=tenant.high, adapter=adapter
        )
        candidates = [self._candidate(link, chain, queue_max) for link in healthy]
        return healthy[choose(len(ids), candidates)]

    def refuse_unread(self, tenant: Tenant, body_bytes: int, target_seconds: float) -> None:
        """Before a request is read. Raises ApiError (529) if every engine would refuse it: what is
        refused in an overload then costs next to nothing."""
        if not self.links:
            return
        healthy = self._well()
        for link in healthy:
            if not link.reservations.refuses_unread(tenant, body_bytes, target_seconds):
                return
        for link in healthy[1:]:
            link.reservations.refused_elsewhere()
        raise healthy[0].reservations.refusal_unread(body_bytes, target_seconds)

    def _candidate(self, link: EngineLink, chain: NDArray[np.uint64], queue_max: int) -> Candidate:
        is_near = link.worker == self._worker
        if link.prefixes is None:
            return Candidate(running=link.in_flight, is_near=is_near)
        load = link.prefixes.load()
        # What was submitted since its last turn is in no figure of its own yet.
        stats = link.stats()
        fresh = max(0, link.in_flight - stats["running"] - stats["waiting"])
        return Candidate(
            cached_tokens=link.prefixes.match(chain),
            unread_tokens=load["prompt_tokens_left"] + fresh * PROMPT_TOKENS,
            running=load["running"],
            is_near=is_near,
            is_full=load["waiting"] >= queue_max,
        )

    def unavailable_error(self) -> ApiError:
        """Why there is none (503)."""
        code, finding = self._unavailable
        error = ApiError(code)
        if code == "engine_unavailable":
            return error.after(limits.ENGINE_LOST_RETRY_SECONDS)
        error.extra = {"reason": code, "finding": finding}
        return error

    @property
    def unavailable_reason(self) -> str:
        return self._unavailable[0]

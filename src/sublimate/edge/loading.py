"""Models that are loaded when they are asked for, and the main model's first engine, which loads
while the server starts: which requests wait, and for how long.

    a request finds no engine -> ModelWanted, and the text is read meanwhile -> EngineUp, or
    ModelFailed -> it is prepared again and handed over -> ModelTaken, once nobody waits any more

The supervisor decides what is loaded and what makes room (supervisor/residency.py); until
ModelTaken it leaves the model where it is, so that each of those who waited has had its turn.

defines: OnDemand, Loading
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Generator
from concurrent.futures import Executor

import msgspec

from ..control import channel
from ..control.channel import ModelPlace
from ..errors import ModelError
from . import limits
from .errors import ApiError
from .served import NotLoadedError, Served
from .textmodel import TextModel, load_text_model

LOG = logging.getLogger("sublimate.edge")
LOAD_FAILED = "load_failed"
UNREADABLE = "Its file cannot be read; the server's log says why."


class OnDemand(msgspec.Struct, frozen=True, kw_only=True):
    """What a server is told whose models are loaded when they are asked for."""

    main: ModelPlace
    more: tuple[ModelPlace, ...]
    tell: Callable[[channel.Message], None]
    """The supervisor."""


class _Load:
    """What is known of one model's loading."""

    def __init__(self) -> None:
        self.waiting = 0
        """Requests that wait, or whose turn has come and that have not been handed over."""
        self.is_wanted = False
        """The supervisor knows that requests wait."""
        self.sleepers: set[asyncio.Future[None]] = set()
        """Futures of the requests that wait now."""
        self.reading: asyncio.Task[None] | None = None
        """The task that reads its text."""
        self.arrivals: dict[int, Callable[[], None]] = {}
        """Engines that came before the text, by number."""
        self.used_seconds: float | None = None
        """When somebody asked for it last, on the monotonic clock."""


class Loading:
    """Of all models of one edge. On the event loop's thread only."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        executor: Executor,
        tell: Callable[[channel.Message], None],
        queue_max: int,
    ) -> None:
        """executor: files are read there. tell: the supervisor. queue_max: requests that may wait
        for one model."""
        if queue_max < 1:
            raise ValueError("somebody may wait")
        self._loop = loop
        self._executor = executor
        self._tell = tell
        self._queue_max = queue_max
        self._loads: defaultdict[Served, _Load] = defaultdict(_Load)
        self._refusal: Callable[[], ApiError] | None = None
        """Why nobody waits any more."""

    # ---- requests ------------------------------------------------------------------------------
    @contextlib.contextmanager
    def waits(self, served: Served) -> Generator[None]:
        """A request that needs this model, until it was handed over or has failed. Raises ApiError
        (529) where too many wait."""
        load = self._loads[served]
        if load.waiting >= self._queue_max:
            raise ApiError("overloaded").after(limits.OVERLOAD_RETRY_SECONDS)
        load.waiting += 1
        try:
            yield
        finally:
            load.waiting -= 1
            if not load.waiting and load.is_wanted:
                load.is_wanted = False
                self._tell(channel.ModelTaken(model=served.name))

    @property
    def waiting(self) -> int:
        """Requests of all models."""
        return sum(load.waiting for load in self._loads.values())

    async def come(self, error: NotLoadedError) -> None:
        """Returns when what was missing is there. Raises ApiError: 503, or 529 while draining."""
        served, load = error.served, self._loads[error.served]
        if not load.waiting:
            raise RuntimeError("a request that waits is counted first")
        until = self._loop.time() + limits.LOAD_SECONDS_MAX
        load.used_seconds = time.monotonic()
        served.failure = None
        self.read(served)
        while not self._is_there(served, error.needs_engine):
            if self._refusal is not None:
                raise self._refusal()
            if served.failure is not None:
                raise _failed(served)
            if error.needs_engine and served.rests and not load.is_wanted:
                load.is_wanted = True
                self._tell(channel.ModelWanted(model=served.name))
            await self._sleep(served, until - self._loop.time())

    def _is_there(self, served: Served, needs_engine: bool) -> bool:
        has_text = served.text_if_read is not None
        return has_text and (not needs_engine or not served.is_coming)

    async def _sleep(self, served: Served, seconds: float) -> None:
        sleepers, sleeper = self._loads[served].sleepers, self._loop.create_future()
        sleepers.add(sleeper)
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                await sleeper
        except TimeoutError:
            raise _not_in_time(served) from None
        finally:
            sleepers.discard(sleeper)

    def _wake(self, served: Served) -> None:
        for sleeper in self._loads[served].sleepers:
            if not sleeper.done():
                sleeper.set_result(None)

    # ---- text ----------------------------------------------------------------------------------
    def read(self, served: Served) -> None:
        """Begin to read its text, if it is not there."""
        load = self._loads[served]
        if served.text_if_read is None and load.reading is None:
            load.reading = self._loop.create_task(self._read(served))

    async def _read(self, served: Served) -> None:
        version = served.text_version
        try:
            text = await self._text_of(served)
        finally:
            self._loads[served].reading = None
        if served.text_version != version:
            self.read(served)  # its file is another one by now
        elif text is None:
            # Wanted until the last request that waits has ended: the supervisor does not know.
            served.failure = (LOAD_FAILED, UNREADABLE)
            self._wake(served)
        else:
            self._take(served, text)

    async def _text_of(self, served: Served) -> TextModel | None:
        """Read it; None if that fails, after logging why."""
        where = served.where
        try:
            return await self._loop.run_in_executor(
                self._executor, load_text_model, where.path, where.name, where.tool_format
            )
        except (ModelError, OSError) as error:
            LOG.warning("the model %s cannot be read: %s", served.name, error)
        except Exception:
            # A library that reads files may raise anything; no request is to wait after that.
            LOG.exception("the model %s cannot be read", served.name)
        return None

    def _take(self, served: Served, text: TextModel) -> None:
        served.take_text(text)
        self._executor.submit(text.warm_up)
        self._make_room(served)
        load = self._loads[served]
        arrivals, load.arrivals = load.arrivals, {}
        for arrive in arrivals.values():
            arrive()
        self._wake(served)

    def _make_room(self, served: Served) -> None:
        """Texts of models that rest are kept for a while: those that were used last."""
        self._loads[served].used_seconds = time.monotonic()
        resting = [
            (load.used_seconds, one)
            for one, load in self._loads.items()
            if load.used_seconds is not None and not load.waiting
            if one.rests and one.text_if_read is not None and one is not served
        ]
        resting.sort(key=lambda each: each[0], reverse=True)
        for _, one in resting[limits.RESTING_TEXTS_MAX :]:
            one.forget_text()

    # ---- the supervisor's word -----------------------------------------------------------------
    def arrived(self, served: Served, number: int, arrive: Callable[[], None]) -> None:
        """An engine has come: `arrive` takes it, once there is the text that it is asked about."""
        if served.text_if_read is None:
            self._loads[served].arrivals[number] = arrive
            self.read(served)
            return
        arrive()
        self._wake(served)

    def left(self, served: Served, number: int) -> None:
        """An engine is to get nothing more, or has ended."""
        self._loads[served].arrivals.pop(number, None)
        self._wake(served)

    def failed(self, served: Served, reason: str, message: str) -> None:
        """It will not come, and the supervisor waits for no word of it."""
        served.failure = (reason, message)
        self._loads[served].is_wanted = False
        self._wake(served)

    def file_changed(self, served: Served) -> None:
        """What was read of it is no more what its engines will compute."""
        served.forget_text()
        self._loads[served].arrivals.clear()

    def stop(self, served: Served) -> None:
        """Somebody wants its memory for something else."""
        self._tell(channel.ModelStop(model=served.name))

    def refuse(self, why: Callable[[], ApiError]) -> None:
        """The server ends: whoever waits, and whoever would, is told so."""
        self._refusal = why
        for served in list(self._loads):
            self._wake(served)

    def close(self) -> None:
        """The server ends."""
        for load in self._loads.values():
            if load.reading is not None:
                load.reading.cancel()


def _failed(served: Served) -> ApiError:
    reason, finding = served.failure or (LOAD_FAILED, "")
    error = ApiError("model_not_loaded", model=served.name)
    error.extra = {"reason": reason, "finding": finding}
    return error.after(limits.LOAD_RETRY_SECONDS)


def _not_in_time(served: Served) -> ApiError:
    error = ApiError("model_not_loaded", model=served.name)
    error.extra = {"reason": "not_in_time"}
    return error.after(limits.LOAD_RETRY_SECONDS)

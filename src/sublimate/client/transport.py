"""The two transports: what the HTTP library's clients hand their requests to.

Requests that no better carrier can take go to the library's own transport, untouched.

defines: SyncTransport, AsyncTransport, make_transport, make_async_transport
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from types import TracebackType
from typing import Any, cast

from .calls import Answer
from .choice import OVER_HTTP1
from .core import Core, Way
from .library import CarrierError, translated
from .report import say


class SyncTransport:
    """For any number of threads."""

    def __init__(self, core: Core, make_plain: Callable[[], Any], body: type[Any]) -> None:
        """make_plain: the library's own transport. body: the class of a response's stream."""
        self._core = core
        self._body = body
        self._make_plain = make_plain
        self._plain = make_plain()
        self._finalizer = weakref.finalize(self, _close_background, core)

    def __enter__(self) -> SyncTransport:
        self._plain.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        self._plain.__exit__(kind, error, trace)
        self._finalizer()

    def close(self) -> None:
        self._plain.close()
        self._finalizer()

    def handle_request(self, request: Any) -> Any:
        """A response whose body is still to come. Raises the library's exceptions."""
        core = self._core
        if core.after_fork():
            self._plain = self._make_plain()
        if (origin := core.must_ask(request)) is not None:
            core.ask(origin).result()
        way, fallback = core.way(request), ""
        if way.call is not None and not way.is_http1:
            going = core.exchange(way, way.call)
            try:
                return self._answered(going.result(), request)
            except CarrierError as error:
                fallback = _fallback(core, way, error, request)
            except BaseException:
                going.cancel()
                raise
        response = self._plain.handle_request(request)
        core.note_http(way, response, fallback)
        return response

    def _answered(self, answer: Answer, request: Any) -> Any:
        seconds = request.extensions.get("timeout", {}).get("read")
        return self._core.response(answer, self._body(self._core, answer, request, seconds))


class _SyncBody:
    """The body, piece by piece as it comes."""

    def __init__(self, core: Core, answer: Answer, request: Any, seconds: float | None) -> None:
        self.core = core
        self.pipe = answer.body
        self.request = request
        self.seconds = seconds

    def __iter__(self) -> Iterator[bytes]:
        try:
            while data := self.pipe.read(self.seconds):
                yield data
        except CarrierError as error:
            raise translated(self.core.library, error, self.request) from error

    def close(self) -> None:
        self.pipe.close()


class AsyncTransport:
    """For one or several loops of asyncio; under another library only its own transport is used."""

    def __init__(self, core: Core, make_plain: Callable[[], Any], body: type[Any]) -> None:
        self._core = core
        self._body = body
        self._make_plain = make_plain
        self._plain = make_plain()
        self._finalizer = weakref.finalize(self, _close_background, core)

    async def __aenter__(self) -> AsyncTransport:
        await self._plain.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        await self._plain.__aexit__(kind, error, trace)
        await self._end()

    async def aclose(self) -> None:
        await self._plain.aclose()
        await self._end()

    async def _end(self) -> None:
        await asyncio.to_thread(self._finalizer) if _in_asyncio() else self._finalizer()

    async def handle_async_request(self, request: Any) -> Any:
        """As the sync one's."""
        core = self._core
        if core.after_fork():
            self._plain = self._make_plain()
        in_asyncio = _in_asyncio()
        if in_asyncio and (origin := core.must_ask(request)) is not None:
            await asyncio.wrap_future(core.ask(origin))
        way, fallback = core.way(request), ""
        if way.call is not None and not way.is_http1:
            if in_asyncio:
                try:
                    answer = await asyncio.wrap_future(core.exchange(way, way.call))
                    return self._answered(answer, request)
                except CarrierError as error:
                    fallback = _fallback(core, way, error, request)
            else:
                fallback = "not asyncio"
        response = await self._plain.handle_async_request(request)
        core.note_http(way, response, fallback)
        return response

    def _answered(self, answer: Answer, request: Any) -> Any:
        seconds = request.extensions.get("timeout", {}).get("read")
        return self._core.response(answer, self._body(self._core, answer, request, seconds))


class _AsyncBody:
    """The same, awaited."""

    def __init__(self, core: Core, answer: Answer, request: Any, seconds: float | None) -> None:
        self.core = core
        self.pipe = answer.body
        self.request = request
        self.seconds = seconds

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            while data := await self.pipe.read_async(self.seconds):
                yield data
        except CarrierError as error:
            raise translated(self.core.library, error, self.request) from error

    async def aclose(self) -> None:
        self.pipe.close()


def _fallback(core: Core, way: Way, error: CarrierError, request: Any) -> str:
    """Why HTTP/1.1 carries it now. Raises the library's exception if it may not."""
    if not error.unsent or not any(name in OVER_HTTP1 for name in way.plan.carriers):
        raise translated(core.library, error, request) from error
    say(f"{way.origin.host}: {error} Going on over HTTP/1.1")
    return "udp blocked"


def _in_asyncio() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _close_background(core: Core) -> None:
    core.background.close()


def make_transport(core: Core, make_plain: Callable[[], Any]) -> Any:
    """An object of the library's BaseTransport."""
    body = _of(core.library.SyncByteStream, _SyncBody)
    return _of(core.library.BaseTransport, SyncTransport)(core, make_plain, body)


def make_async_transport(core: Core, make_plain: Callable[[], Any]) -> Any:
    """An object of the library's AsyncBaseTransport."""
    body = _of(core.library.AsyncByteStream, _AsyncBody)
    return _of(core.library.AsyncBaseTransport, AsyncTransport)(core, make_plain, body)


def _of(base: type[Any], own: type[Any]) -> Any:
    """Our class as one of the library's: its clients look at the class of what they are given."""
    return cast(Any, type(own.__name__, (own, base), {}))

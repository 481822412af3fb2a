"""The two transports: what the HTTP library's clients hand their requests to.

Requests that no better carrier can take go to the library's own transport, untouched.

defines: SyncTransport, AsyncTransport, make_transport, make_async_transport
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, cast

from .calls import Answer
from .core import Core, Way
from .events import Decoder, decoder_of
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
        sent, asked = core.http_request(way, request)
        response = self._plain.handle_request(sent)
        decoder, headers = decoder_of(asked, response.headers.multi_items())
        core.note_http(way, response, decoder is not None, fallback)
        if decoder is None:
            return response
        stream = response.stream
        return core.reframed(
            response, headers, self._body(core, request, stream, stream.close, decoder)
        )

    def _answered(self, answer: Answer, request: Any) -> Any:
        seconds = request.extensions.get("timeout", {}).get("read")
        pieces = iter(lambda: answer.body.read(seconds), b"")
        body = self._body(self._core, request, pieces, answer.body.close, answer.decoder)
        return self._core.response(answer, body)


class _SyncBody:
    """The body, piece by piece as it comes."""

    def __init__(
        self,
        core: Core,
        request: Any,
        pieces: Iterable[bytes],
        close: Callable[[], None],
        decoder: Decoder | None,
    ) -> None:
        self._core = core
        self._request = request
        self._pieces = pieces
        self._close = close
        self._decoder = decoder

    def __iter__(self) -> Iterator[bytes]:
        decoder = self._decoder
        try:
            for data in self._pieces:
                if shown := data if decoder is None else decoder.feed(data):
                    yield shown
            if decoder is not None and (shown := decoder.finish()):
                yield shown
        except CarrierError as error:
            raise translated(self._core.library, error, self._request) from error

    def close(self) -> None:
        self._close()


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
        sent, asked = core.http_request(way, request)
        response = await self._plain.handle_async_request(sent)
        decoder, headers = decoder_of(asked, response.headers.multi_items())
        core.note_http(way, response, decoder is not None, fallback)
        if decoder is None:
            return response
        stream = response.stream
        return core.reframed(
            response, headers, self._body(core, request, stream, stream.aclose, decoder)
        )

    def _answered(self, answer: Answer, request: Any) -> Any:
        seconds = request.extensions.get("timeout", {}).get("read")

        async def pieces() -> AsyncIterator[bytes]:
            while data := await answer.body.read_async(seconds):
                yield data

        async def close() -> None:
            answer.body.close()

        body = self._body(self._core, request, pieces(), close, answer.decoder)
        return self._core.response(answer, body)


class _AsyncBody:
    """The same, awaited."""

    def __init__(
        self,
        core: Core,
        request: Any,
        pieces: AsyncIterable[bytes],
        close: Callable[[], Awaitable[None]],
        decoder: Decoder | None,
    ) -> None:
        self._core = core
        self._request = request
        self._pieces = pieces
        self._close = close
        self._decoder = decoder

    async def __aiter__(self) -> AsyncIterator[bytes]:
        decoder = self._decoder
        try:
            async for data in self._pieces:
                if shown := data if decoder is None else decoder.feed(data):
                    yield shown
            if decoder is not None and (shown := decoder.finish()):
                yield shown
        except CarrierError as error:
            raise translated(self._core.library, error, self._request) from error

    async def aclose(self) -> None:
        await self._close()


def _fallback(core: Core, way: Way, error: CarrierError, request: Any) -> str:
    """Why HTTP/1.1 carries it now, as it does what no named carrier can. Raises the library's
    exception for what may have been sent."""
    if not error.unsent:
        raise translated(core.library, error, request) from error
    say(f"{way.origin.host}: {error} Going on over HTTP/1.1")
    return error.reason or "other failure"


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

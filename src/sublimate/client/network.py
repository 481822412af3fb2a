"""The connections of one client that are not the HTTP library's, and which of them a call takes.
On the background's loop only.

defines: Network
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import quic
from .calls import Answer, Call, Field
from .choice import OVER_QUIC, Carrier, Origin, Plan, Service
from .events import FRAMES_TYPE
from .library import CarrierError
from .race import Entrant, race
from .report import Used, say

if TYPE_CHECKING:
    from .quic import QuicSession, QuicStream, Trust

HEAD_START_SECONDS = 0.05
"""Of QUIC before TCP."""
FALLBACK_SECONDS = 0.25
"""After that a request goes another way, while the handshake may go on."""
HANDSHAKE_SECONDS = 3.0
TOO_EARLY = 425


@dataclass(frozen=True, slots=True)
class Ready:
    """A connection that a race was won by, with the request on it if that was in its first
    packet."""

    session: QuicSession
    stream: QuicStream | None = None


class Network:
    """Sessions by origin."""

    def __init__(
        self,
        trust: Callable[[Origin], Trust],
        ask: Callable[[Origin], Awaitable[Service | None]],
    ) -> None:
        """ask: for what the server says of itself; over TLS that was verified."""
        self._trust = trust
        self._ask = ask
        self._sessions: dict[int, QuicSession] = {}
        self._connecting: dict[int, asyncio.Task[Ready]] = {}
        self._asking: dict[int, asyncio.Task[None]] = {}
        self._late: set[asyncio.Task[Ready]] = set()
        self._all: set[QuicSession] = set()
        """Whose sockets are open."""

    # ---- what is known -------------------------------------------------------------------------
    async def discover(self, origin: Origin) -> None:
        """Ask once, however many want to know; then have a connection ready for who comes next."""
        key = id(origin)
        task = self._asking.get(key)
        if task is None:
            task = self._asking[key] = asyncio.ensure_future(self._discover(origin))
        await asyncio.shield(task)

    async def _discover(self, origin: Origin) -> None:
        try:
            service = await self._ask(origin)
        except CarrierError as error:
            say(f"{origin.host}: {error}")
            service = None
        if service is None:
            del self._asking[id(origin)]  # ask again, another time
            return
        origin.service, origin.is_sublimate = service, True
        say(f"{origin.host}: quic port {service.quic_port}, grpc port {service.grpc_port}")

    def warm(self, origin: Origin) -> None:
        """Begin a handshake that no request waits for."""
        if id(origin) not in self._connecting and self._live(origin) is None:
            task = self._share(origin, self._establish(origin, "h3", None, []))
            self._late.add(task)
            task.add_done_callback(self._late.discard)

    # ---- a call --------------------------------------------------------------------------------
    async def exchange(self, origin: Origin, call: Call, plan: Plan) -> Answer:
        """Until the head of the answer is there. Raises CarrierError."""
        begun = asyncio.get_running_loop().time()
        carrier: Carrier = plan.carriers[0]
        if carrier not in OVER_QUIC:
            raise ValueError(f"{carrier} is the HTTP library's")
        session = self._live(origin)
        ready = Ready(session) if session else await self._connect(origin, call, carrier, plan)
        waited = 0.0 if session else (asyncio.get_running_loop().time() - begun) * 1e3
        stream = ready.stream or ready.session.open(call, *_carried(call, carrier))
        status, headers = await _head(ready.session, stream, call)
        if status == TOO_EARLY and stream.was_early:
            await asyncio.shield(ready.session.established)
            stream = ready.session.open(call, *_carried(call, carrier))
            status, headers = await _head(ready.session, stream, call)
        used = Used(
            protocol=carrier,
            reused=session is not None,
            early_data=stream.was_early and ready.session.early_data_accepted,
            handshake_milliseconds=waited,
            fallback=plan.fallback,
        )
        return Answer(status, headers, stream.body, used, call.kind == "stream")

    async def _connect(self, origin: Origin, call: Call, carrier: Carrier, plan: Plan) -> Ready:
        """The winner of the handshakes. Raises CarrierError (unsent)."""
        sent: list[tuple[QuicSession, QuicStream]] = []
        task = self._connecting.get(id(origin))
        is_own = task is None
        if task is None:
            early = call if call.is_replayable and origin.tickets else None
            task = self._share(origin, self._establish(origin, carrier, early, sent))
        shared = task
        others = [name for name in plan.carriers if name not in OVER_QUIC]
        seconds = call.connect_seconds or HANDSHAKE_SECONDS
        deadline = min(FALLBACK_SECONDS, seconds) if others else seconds
        entrant = Entrant("quic", 0.0, lambda: asyncio.shield(shared))
        try:
            won = await race([entrant], deadline, self._late)
            if won is not None:
                return won[1] if is_own else Ready(won[1].session)
        except asyncio.CancelledError:
            _take_back(sent)
            raise
        _take_back(sent)
        if not shared.done():
            origin.quic_failed(asyncio.get_running_loop().time())
            say(f"{origin.host}: no handshake over UDP within {deadline * 1e3:.0f} ms")
        raise CarrierError("ConnectTimeout", "No QUIC handshake in time.", unsent=True)

    def _share(self, origin: Origin, story: Coroutine[Any, Any, Ready]) -> asyncio.Task[Ready]:
        """One handshake for all that want it."""
        task = self._connecting[id(origin)] = asyncio.ensure_future(story)
        task.add_done_callback(lambda _: self._connecting.pop(id(origin), None))
        task.add_done_callback(lambda done: None if done.cancelled() else done.exception())
        return task

    async def _establish(
        self,
        origin: Origin,
        carrier: Carrier,
        early: Call | None,
        sent: list[tuple[QuicSession, QuicStream]],
    ) -> Ready:
        """A session whose handshake is complete; early: a call for its first packet, put into
        `sent` when it went. Raises CarrierError, and notes it."""
        loop = asyncio.get_running_loop()
        service = origin.service
        if service is None or not service.quic_port:
            raise CarrierError("ConnectError", "The server has no QUIC port.", unsent=True)
        session = await quic.connect(
            origin, service.quic_port, self._trust(origin), early is not None
        )
        self._all.add(session)
        session.released.add_done_callback(lambda _: self._all.discard(session))
        stream = None
        if early is None:
            session.begin()
        else:
            stream = session.open(early, *_carried(early, carrier))
            sent.append((session, stream))
        try:
            async with asyncio.timeout(HANDSHAKE_SECONDS):
                await asyncio.shield(session.established)
        except (TimeoutError, CarrierError) as error:
            origin.quic_failed(loop.time())
            self._asking.pop(id(origin), None)  # it may have moved: the next probe asks again
            session.leave()
            text = str(error) or "No QUIC handshake in time."
            raise CarrierError("ConnectError", text, unsent=True) from None
        except asyncio.CancelledError:
            session.leave()
            raise
        origin.quic_worked()
        self._sessions[id(origin)] = session
        return Ready(session, stream)

    def _live(self, origin: Origin) -> QuicSession | None:
        session = self._sessions.get(id(origin))
        if session is not None and not session.is_open:
            del self._sessions[id(origin)]
            return None
        return session

    async def close(self) -> None:
        """End all connections in order."""
        for task in [*self._connecting.values(), *self._asking.values()]:
            task.cancel()
        sessions = list(self._all)
        for session in sessions:
            session.leave()
        self._sessions.clear()
        await asyncio.gather(*(session.released for session in sessions))


def _take_back(sent: list[tuple[QuicSession, QuicStream]]) -> None:
    """The call goes another way: a server that it has reached stops working for it."""
    for session, stream in sent:
        session.cancel(stream.number)


def _carried(call: Call, carrier: Carrier) -> tuple[list[Field], bytes]:
    """Header fields and body as this carrier sends them."""
    if call.kind == "stream":
        others = [field for field in call.headers if field[0] != "accept"]
        return [*others, ("accept", FRAMES_TYPE)], call.body
    return call.headers, call.body


async def _head(session: QuicSession, stream: QuicStream, call: Call) -> tuple[int, list[Field]]:
    try:
        async with asyncio.timeout(call.read_seconds):
            return await asyncio.shield(stream.head)
    except TimeoutError:
        session.cancel(stream.number)
        raise CarrierError("ReadTimeout", "No answer in time.") from None
    except asyncio.CancelledError:
        session.cancel(stream.number)
        raise

"""The connections of one client that are not the HTTP library's, and which of them a call takes.
On the background's loop only.

defines: Network
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any

from .calls import Answer, Call
from .choice import OVER_HTTP1, OVER_QUIC, Carrier, Origin, Plan, Service
from .library import LEAVING, CarrierError
from .race import Entrant, race
from .report import Used, say

if TYPE_CHECKING:
    from .http2 import Http2Channel
    from .http3 import Sent
    from .quic import QuicSession, Trust

HEAD_START_SECONDS = 0.05
"""Of QUIC before TCP."""
FALLBACK_SECONDS = 0.25
"""After that a request goes another way, while the handshakes may go on."""
HANDSHAKE_SECONDS = 3.0
UDP_BLOCKED, HTTP2_BLOCKED = "udp blocked", "http2 blocked"
"""Reasons: nothing has come back in time."""
Ready = Any
"""What a race is won by: a QuicSession or an Http2Channel."""


class Network:
    """Sessions and channels by origin."""

    def __init__(
        self,
        trust: Callable[[Origin], Trust],
        ask: Callable[[Origin], Awaitable[Service | None]],
    ) -> None:
        """ask: for what the server says of itself; over TLS that was verified."""
        self._trust = trust
        self._ask = ask
        self._sessions: dict[int, QuicSession] = {}
        self._channels: dict[int, Http2Channel] = {}
        self._connecting: dict[tuple[int, str], asyncio.Task[Ready]] = {}
        self._asking: dict[int, asyncio.Task[None]] = {}
        self._late: set[asyncio.Task[Ready]] = set()
        self._all: set[QuicSession] = set()
        """Whose sockets are open."""

    # ---- what is known -------------------------------------------------------------------------
    async def discover(self, origin: Origin) -> None:
        """Ask once, however many want to know."""
        task = self._asking.get(id(origin))
        if task is None:
            task = self._asking[id(origin)] = asyncio.ensure_future(self._discover(origin))
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
        if service.grpc_port and service.certificate_sha256:
            from .http2 import leaf_certificate

            where = origin.host, service.grpc_port, service.certificate_sha256
            pem = await asyncio.to_thread(leaf_certificate, *where)
            service = dataclasses.replace(service, certificate=pem)
        origin.service, origin.is_sublimate = service, True
        say(f"{origin.host}: quic port {service.quic_port}, grpc port {service.grpc_port}")

    def warm(self, origin: Origin, carriers: tuple[Carrier, ...]) -> None:
        """Begin handshakes that no request waits for, of what there is no connection for."""
        service = origin.service or Service()
        with_quic = service.quic_port > 0 and not {*OVER_QUIC}.isdisjoint(carriers)
        if with_quic and self._live(origin) is None:
            self._let_run(self._shared(origin, "quic", lambda: self._quic(origin, None)))
        if with_quic and not origin.udp.failures:
            return
        if origin.grpc_port and "grpc-h2" in carriers and id(origin) not in self._channels:
            self._let_run(self._shared(origin, "http2", lambda: self._http2(origin)))

    def _let_run(self, task: asyncio.Task[Ready]) -> None:
        self._late.add(task)
        task.add_done_callback(self._late.discard)

    # ---- a call --------------------------------------------------------------------------------
    async def exchange(self, origin: Origin, call: Call, plan: Plan) -> Answer:
        """Until the head of the answer is there. When the connection is lost before that, the call
        goes over another one, if the server does its work once. Raises CarrierError."""
        try:
            return await self._exchange(origin, call, plan)
        except CarrierError as error:
            quic = _over_quic(plan)
            if error.reason == LEAVING:
                return await self._exchange(origin, call, plan)  # over a new connection
            if not error.lost or quic is None or not call.may_repeat(quic):
                raise
            say(f"{origin.host}: {error} Once more.")
            try:
                return await self._exchange(origin, call, Plan((quic,), plan.fallback))
            except CarrierError:
                raise error from None  # over another carrier the work might be done twice

    async def _exchange(self, origin: Origin, call: Call, plan: Plan) -> Answer:
        """Once."""
        quic = _over_quic(plan)
        if quic is None and "grpc-h2" not in plan.carriers:
            raise ValueError("the HTTP library carries this call")
        session = self._live(origin) if quic is not None else None
        if session is not None and quic is not None:
            return await self._over_quic(session, call, Used(quic, fallback=plan.fallback))
        channel = self._channels.get(id(origin))
        if quic is None and channel is not None:
            return await channel.exchange(call, Used("grpc-h2", fallback=plan.fallback))
        begun = asyncio.get_running_loop().time()
        sent = await self._first(origin, call, plan, quic)
        waited = (asyncio.get_running_loop().time() - begun) * 1e3
        used = Used(quic or "grpc-h2", False, False, waited, plan.fallback)
        if sent[0] == "quic":
            return await self._over_quic(sent[1], call, used, sent[2])
        if quic is not None:
            used = dataclasses.replace(used, protocol="grpc-h2", fallback="quic slower")
        return await sent[1].exchange(call, used)

    async def _over_quic(
        self, session: QuicSession, call: Call, used: Used, sent: Sent | None = None
    ) -> Answer:
        from .http3 import exchange

        return await exchange(session, call, used, sent)

    async def _first(
        self, origin: Origin, call: Call, plan: Plan, quic: Carrier | None
    ) -> tuple[str, Ready, Sent | None]:
        """The winner of the handshakes, and the request if it went with one. Raises CarrierError
        (unsent)."""
        early: list[Sent] = []
        entrants: list[Entrant[Ready]] = []
        tasks: list[asyncio.Task[Ready]] = []

        def enter(name: str, after_seconds: float, story: Callable[[], Any]) -> None:
            async def connect() -> Ready:
                tasks.append(self._shared(origin, name, story))
                return await asyncio.shield(tasks[-1])

            entrants.append(Entrant(name, after_seconds, connect))

        if quic is not None:
            first = call if call.may_repeat(quic) and origin.tickets else None
            enter("quic", 0.0, lambda: self._quic(origin, first, quic, early))
        if "grpc-h2" in plan.carriers:
            enter("http2", HEAD_START_SECONDS * len(entrants), lambda: self._http2(origin))
        seconds = call.connect_seconds or HANDSHAKE_SECONDS
        has_other = any(name in OVER_HTTP1 for name in plan.carriers)
        deadline = min(FALLBACK_SECONDS, seconds) if has_other else seconds
        won = None
        try:
            won = await race(entrants, deadline, self._late)
        finally:
            if won is None or won[0] != "quic":
                for sent in early:
                    sent.take_back()
        if won is not None:
            return (*won, early[0] if early else None)
        self._nobody(origin, quic is not None, deadline)
        for task in tasks:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                raise error  # of the best carrier that says why
        reason = UDP_BLOCKED if quic is not None else HTTP2_BLOCKED
        raise CarrierError("ConnectTimeout", "No handshake in time.", unsent=True, reason=reason)

    def _nobody(self, origin: Origin, with_quic: bool, deadline: float) -> None:
        """Remember it, unless who has failed did so already."""
        now = asyncio.get_running_loop().time()
        if with_quic and (id(origin), "quic") in self._connecting:
            origin.udp.failed(now, UDP_BLOCKED)
            say(f"{origin.host}: no handshake over UDP within {deadline * 1e3:.0f} ms")
        if (id(origin), "http2") in self._connecting:
            origin.http2.failed(now, HTTP2_BLOCKED)

    def _shared(
        self, origin: Origin, name: str, story: Callable[[], Coroutine[Any, Any, Ready]]
    ) -> asyncio.Task[Ready]:
        """One handshake for all that want it."""
        key = id(origin), name
        task = self._connecting.get(key)
        if task is None:
            task = self._connecting[key] = asyncio.ensure_future(story())
            task.add_done_callback(lambda _: self._connecting.pop(key, None))
            task.add_done_callback(lambda done: None if done.cancelled() else done.exception())
        return task

    # ---- handshakes ----------------------------------------------------------------------------
    async def _quic(
        self,
        origin: Origin,
        call: Call | None,
        carrier: Carrier = "h3",
        early: list[Sent] | None = None,
    ) -> QuicSession:
        """A session whose handshake is complete; with a call in its first packet, which is then in
        `early`. Raises CarrierError, and notes it."""
        from . import http3, quic

        service = origin.service
        if service is None or not service.quic_port:
            raise CarrierError("ConnectError", "The server has no QUIC port.", unsent=True)
        trust = self._trust(origin)
        session = await quic.connect(origin, service.quic_port, trust, early=call is not None)
        self._all.add(session)
        session.released.add_done_callback(lambda _: self._all.discard(session))
        if call is None or early is None:
            session.begin()
        else:
            early.append(http3.send(session, call, carrier))
        try:
            async with asyncio.timeout(HANDSHAKE_SECONDS):
                await asyncio.shield(session.established)
        except (TimeoutError, CarrierError) as error:
            reason = getattr(error, "reason", "") or UDP_BLOCKED
            origin.udp.failed(asyncio.get_running_loop().time(), reason)
            self._asking.pop(id(origin), None)  # it may have moved: the next probe asks again
            session.leave()
            text = str(error) or "No QUIC handshake in time."
            raise CarrierError("ConnectError", text, unsent=True, reason=reason) from None
        except asyncio.CancelledError:
            session.leave()
            raise
        origin.udp.worked()
        self._sessions[id(origin)] = session
        return session

    async def _http2(self, origin: Origin) -> Http2Channel:
        """A channel that is connected. Raises CarrierError, and notes it."""
        from .http2 import Http2Channel

        service = origin.service
        if service is None or not origin.grpc_port:
            raise CarrierError("ConnectError", "The server has no gRPC port.", unsent=True)
        roots = None
        if service.certificate_sha256:
            roots = self._trust(origin).roots() + service.certificate
        channel = Http2Channel(f"{origin.host}:{origin.grpc_port}", roots)
        try:
            async with asyncio.timeout(HANDSHAKE_SECONDS):
                await channel.ready()
        except TimeoutError:
            origin.http2.failed(asyncio.get_running_loop().time(), HTTP2_BLOCKED)
            await channel.close()
            text = "No HTTP/2 in time."
            raise CarrierError("ConnectError", text, unsent=True, reason=HTTP2_BLOCKED) from None
        except asyncio.CancelledError:
            await channel.close()
            raise
        origin.http2.worked()
        self._channels[id(origin)] = channel
        return channel

    def _live(self, origin: Origin) -> QuicSession | None:
        session = self._sessions.get(id(origin))
        if session is not None and not session.is_open:
            del self._sessions[id(origin)]
            return None
        return session

    async def close(self) -> None:
        """End all connections in order."""
        tasks = [*self._connecting.values(), *self._asking.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        sessions = list(self._all)
        for session in sessions:
            session.leave()
        self._sessions.clear()
        channels, self._channels = self._channels, {}
        await asyncio.gather(*(channel.close() for channel in channels.values()))
        await asyncio.gather(*(session.released for session in sessions))


def _over_quic(plan: Plan) -> Carrier | None:
    """The first that is."""
    return next((name for name in plan.carriers if name in OVER_QUIC), None)

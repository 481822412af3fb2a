"""The edge process: follows the supervisor's control channel beside the event loop.

defines: main, EdgeProcess
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import socket
import sys
import time
from typing import Any

import msgspec
import uvloop

from .. import _core
from ..control import channel
from ..control.child import enter_child, first_message, tell_failed
from ..control.faults import open_faults
from ..control.stamps import stamp, stamps
from ..errors import ExitCode, ModelError, SublimateError
from ..guard.engine_watch import Verdict
from ..kernel.connections import Connections
from ..kernel.reason import LOADED, REASONS
from ..kernel.steering import Steering
from .app import EdgeServer
from .exchange import name_process
from .faults import EdgeFaults
from .later import Later
from .ledger import SharedLedgers
from .limits import limits_from_environment
from .loading import OnDemand
from .observe.log import configure
from .place import Place
from .routes import Routes
from .server import listen_on
from .textmodel import TextModel, load_text_model
from .without_model import EdgeWithoutModel, stand_in

REGION_DESCRIPTORS = 3
"""Those of a region; one more where the engine tells what it has cached."""

LOG = logging.getLogger("sublimate.edge")


def main(routes: Routes) -> None:
    """Entry of `python -m sublimate.edge`. Ends with the supervisor's Stop, or with it."""
    control = enter_child(channel.ToEdge)
    try:
        received = first_message(control)
        if received is None or not isinstance(received.message, channel.Start):
            return
        uvloop.run(EdgeProcess(control, routes).serve(received.message, received.fds))
    except SublimateError as error:
        LOG.error("%s", error)
        if isinstance(error, ModelError):
            tell_failed(control, error)
        sys.exit(error.exit_code)


class EdgeProcess:
    """One edge under a supervisor."""

    def __init__(self, control: channel.Channel[channel.ToEdge], routes: Routes) -> None:
        self._control = control
        self._routes = routes
        self._ended = asyncio.Event()
        self._engine_came = asyncio.Event()
        """There is an engine, or this process is to end."""
        self._server: EdgeServer | None = None
        self._ledgers: SharedLedgers | None = None

    async def serve(self, start: channel.Start, fds: tuple[int, ...]) -> None:
        """Returns when told to stop, or when the supervisor is gone. Raises SublimateError."""
        configure(start.log)
        stamp("told")
        model, is_whole = _text_model(start)
        stamp("text")
        count = len(fds) - len(start.extras)
        if not 1 <= count <= len(("HTTP", "HTTPS", "HTTP/3")):
            raise SublimateError("The supervisor sent no listening socket.")
        sock, *secure = [socket.socket(fileno=fd) for fd in fds[:count]]
        extras = dict(zip(start.extras, fds[count:], strict=True))
        if start.workers > 1:
            name_process(start.worker)
        place = Place(
            number=start.number,
            worker=start.worker,
            workers=start.workers,
            secret=start.secret,
            prefix_secret=start.prefix_secret,
        )
        http_limits = limits_from_environment(os.environ)
        if "quotas" in extras:
            self._ledgers = SharedLedgers(extras["quotas"], start.number)
        given = (start.settings, model, self._routes, http_limits, place, self._ledgers)
        on_demand = self._on_demand(start)
        self._server = (
            EdgeServer(*given, on_demand, start.adapters) if is_whole else EdgeWithoutModel(*given)
        )
        self._server.models.main.engines.is_first_awaited = is_whole and not start.loads
        if "inbox" in extras:
            self._server.siblings.open(socket.socket(fileno=extras["inbox"]))
        loop = asyncio.get_running_loop()
        self._control.setblocking(False)
        if start.waits:
            loop.add_reader(self._control.fileno(), self._follow, self._server)
            await self._engine_came.wait()
            if self._ended.is_set():
                for one in (sock, *secure):
                    one.close()
                await self._close(self._server)
                return
        await listen_on(
            self._server,
            sock,
            tls_sock=secure[0] if secure else None,
            grpc_address=start.grpc_address,
            udp_sock=secure[1] if secure[1:] else None,
        )
        folder = open_faults()
        faults = EdgeFaults(loop, folder) if folder is not None else None
        if not start.waits:
            loop.add_reader(self._control.fileno(), self._follow, self._server)
        # What is loaded stays: no collection need walk it, while streams wait. None has run so far
        # (__main__.py), and one now would be in the way of all that wait for this.
        gc.freeze()
        gc.enable()
        stamp("listening")
        info: dict[str, Any] = {"template": str(model.template.report), "stamps": stamps()}
        info |= self._server.tls_info
        if self._server.grpc_url:
            info["grpc"] = self._server.grpc_url
        self._tell(channel.EdgeReady(info=info, refuses=not is_whole, answers_pings=True))
        self._server.part(Later)
        try:
            await self._ended.wait()
        finally:
            if faults is not None:
                faults.close()
            await self._close(self._server)

    def _on_demand(self, start: channel.Start) -> OnDemand | None:
        if not start.loads:
            return None
        main = channel.ModelPlace(
            name=start.model_name,
            path=start.model_path,
            tool_format=start.settings.tool_format,
            file_bytes=start.model_bytes,
            adapters=start.adapters,
        )
        return OnDemand(main=main, more=start.more_models, tell=self._tell)

    async def _close(self, server: EdgeServer) -> None:
        asyncio.get_running_loop().remove_reader(self._control.fileno())
        server.close()
        await server.wait_closed()

    def _follow(self, server: EdgeServer) -> None:
        """All messages that have arrived."""
        while not self._ended.is_set():
            try:
                received = self._control.receive()
            except BlockingIOError:
                return
            except msgspec.DecodeError:
                LOG.exception("a control message cannot be read")
                sys.exit(ExitCode.BUG)
            if received is None:
                self._end()
                return
            self._obey(server, received)

    def _obey(self, server: EdgeServer, received: channel.Received[channel.ToEdge]) -> None:
        match received.message:
            case channel.EngineUp() as up:
                self._take_region(server, up, received.fds)
            case channel.Sibling(number=number, worker=worker):
                server.siblings.came(number, worker, socket.socket(fileno=received.fds[0]))
                if self._ledgers is not None:
                    self._ledgers.came(number)
            case channel.SiblingGone(number=number):
                server.siblings.gone(number)
                if self._ledgers is not None:
                    self._ledgers.gone(number)
            case channel.KernelMemory() as memory:
                server.kernel = _kernel_memory(memory, received.fds)
            case channel.EngineLost(engine=engine, reason=reason, message=message):
                server.engine_lost(reason, message, engine=engine)
            case channel.Health(engine=engine, state=state, fault=fault):
                server.models.told(engine, Verdict(state, fault))
            case channel.EdgeHealth() as health:
                _take_health(server, health)
            case channel.Ping(sent_seconds=sent):
                server.health.pinged(sent, time.monotonic())
                self._tell(channel.Pong())
            case channel.EngineLeaving(engine=engine):
                server.models.leave(engine, lambda: self._tell(channel.EngineIdle(engine=engine)))
            case channel.ModelFailed(model=name, reason=reason, message=message):
                server.models.failed(name, reason, message)
            case channel.ModelChanged(model=name):
                server.models.file_changed(name)
            case channel.Reload():
                server.reload()
            case channel.Drain(seconds=seconds, serves=serves):
                server.drain(seconds, lambda: self._tell(channel.Drained()), serves=serves)
            case channel.Stop():
                self._end()
            case channel.Start():
                LOG.error("a second start was ignored")

    def _take_region(self, server: EdgeServer, up: channel.EngineUp, fds: tuple[int, ...]) -> None:
        def broken() -> None:
            self._tell(channel.RegionBroken(edge=up.edge))

        try:
            if not REGION_DESCRIPTORS <= len(fds) <= REGION_DESCRIPTORS + 1:
                raise _core.CoreError("a region has three descriptors")
            region = _core.Region.attach(*fds[:REGION_DESCRIPTORS])
            more = fds[REGION_DESCRIPTORS:]
            prefixes = _core.PrefixTable.attach(more[0]) if more else None
            server.engine_up(
                region,
                up.info,
                broken,
                model=up.model,
                engine=up.engine,
                worker=up.worker,
                prefixes=prefixes,
            )
            self._engine_came.set()
        except _core.CoreError:
            LOG.exception("the region of an engine cannot be used")
            server.engine_lost(engine=up.engine)
            broken()
        finally:
            for fd in fds:
                os.close(fd)

    def _tell(self, message: channel.Message) -> None:
        try:
            self._control.send(message)
        except OSError:
            self._end()  # the supervisor is gone

    def _end(self) -> None:
        self._ended.set()
        self._engine_came.set()


def _text_model(start: channel.Start) -> tuple[TextModel, bool]:
    """The model, or one that stands in for it: then false, and the log says why. Raises
    SublimateError."""
    try:
        model = load_text_model(start.model_path, start.model_name, start.settings.tool_format)
    except ModelError as error:
        if not start.stays:
            raise
        LOG.error("%s", error)
        return stand_in(start.model_name), False
    return model, True


def _take_health(server: EdgeServer, health: channel.EdgeHealth) -> None:
    """Log what the watchdog found of an edge; count it if that is of this worker."""
    if health.state == "tripped":
        LOG.error(
            "the event loop of worker %d's edge stands still; if it stays so, the edge is replaced",
            health.worker,
        )
    if health.worker == server.place.worker:
        server.health.trips, server.health.restarts = health.trips, health.restarts


def _kernel_memory(memory: channel.KernelMemory, fds: tuple[int, ...]) -> Connections:
    """As the supervisor has loaded it, or why it has not: told once."""
    count = len(memory.names)
    if memory.reason == LOADED:
        state = Connections.from_fds(
            dict(zip(memory.names, fds[:count], strict=True)),
            memory.secret,
            row=memory.row,
            hook=memory.hook,
            sees_quic=memory.sees_quic,
        )
    else:
        state = Connections(memory.reason)
        if memory.reason != "off" and memory.row == 0:
            LOG.info("the kernel's memory of connections %s", REASONS[memory.reason])
    state.worker = memory.worker
    state.steering = Steering(fds[count:], memory.steering)
    return state

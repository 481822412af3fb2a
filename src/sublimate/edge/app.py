"""The edge as one object: settings, model, engine link, open answers, and what they all share.

defines: EdgeServer
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import ssl
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, TypeVar, cast

from .. import _core
from ..config import LISTEN_BACKLOG, EdgeSettings
from ..errors import ConfigError
from ..guard.edge_watch import EdgeHealth
from ..kernel.connections import Connections
from ..kernel.metrics import connection_families
from . import limits, relay
from .access import Access
from .engine import EngineLink
from .engines import Engines
from .errors import ApiError, ErrorShape
from .exchange import Exchange, Header
from .http import Connection, HttpConnection
from .idempotency import Outcomes, may_repeat
from .ledger import SharedLedgers
from .limits import HttpLimits
from .loading import OnDemand
from .masks import yield_to_others
from .models import open_models
from .observe.leftovers import orphan_families
from .observe.log import log_body, log_exchange
from .observe.metrics import Metrics
from .observe.stories import Stories
from .observe.telemetry import open_telemetry
from .part import Part, SomePart
from .place import ALONE, Place
from .relief import Relief, is_relieved
from .routes import Routes
from .served import Served
from .siblings import Siblings
from .stream import Answer
from .textmodel import TextModel
from .tls import fingerprint, load_chain, server_context
from .turns import Turns
from .version import package_version

if TYPE_CHECKING:
    from .grpc.http2 import Http2Listener
    from .quic.listener import QuicListener

LOG = logging.getLogger("sublimate.edge")
DEBUG_PATHS = "/v1/debug/"
"""Requests that ask for stories have none."""
QUIET_PATHS = frozenset(("/", "/api/hello", "/livez", "/readyz", "/health", "/ping", "/metrics"))
GRPC = "application/grpc"
CLIENT_GONE = "client_gone"


SomeResult = TypeVar("SomeResult")
_NO_TIMER: asyncio.TimerHandle | None = None


class EdgeServer:
    """Everything behind the connections of one edge. On the event loop's thread only."""

    def __init__(
        self,
        settings: EdgeSettings,
        model: TextModel,
        routes: Routes,
        http_limits: HttpLimits | None = None,
        place: Place = ALONE,
        ledgers: SharedLedgers | None = None,
        on_demand: OnDemand | None = None,
        adapters: tuple[str, ...] = (),
    ) -> None:
        """adapters: names of those of the model, in the order of its engines; with on_demand it
        says itself."""
        self.settings = settings
        self.place = place
        self.routes = routes
        self.limits = http_limits or HttpLimits()
        self.takes_gzip = settings.request_gzip
        self.access = Access(settings, place.key("tenants") if place.secret else b"", ledgers)
        self.version = package_version()
        self.telemetry = open_telemetry(settings.otlp_endpoint, self.version, os.environ)
        self.health = EdgeHealth()
        self.kernel = Connections()
        """What the kernel remembers of connections; nothing until the supervisor hands it on."""
        self.draining = self.leaving = False
        self.began_seconds = time.monotonic()
        threading.stack_size(limits.THREAD_STACK_BYTES)  # applies to threads that start later
        self.workers = ThreadPoolExecutor(limits.PREPARE_THREADS, "prepare")
        self.aside = ThreadPoolExecutor(limits.ASIDE_THREADS, "aside", yield_to_others)
        """Of work that no request for an answer waits for."""
        self.loop = asyncio.get_running_loop()
        self.turns = Turns(self.loop, limits.TURN_SECONDS)
        self.stories = Stories(self.loop, settings.trace)
        self.models = open_models(self, model, on_demand, adapters)
        self.metrics = Metrics(lambda: self.models.all, settings.metrics_compat)
        self._connections: set[Connection] = set()
        self._refused: set[Connection] = set()
        """Connections beyond the cap that have not read yet that they are."""
        self._connection_cap = self.limits.connection_cap()
        self._answers: set[Answer] = set()
        self._parts: dict[type[Part], Part] = {}
        self.relief: Relief | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._ticker: asyncio.TimerHandle | None = None
        self._drained: Callable[[], None] | None = None
        self._drain_timer = self._idle_timer = _NO_TIMER
        self._listeners: list[asyncio.Server] = []
        self._quic: QuicListener | None = None
        self._tls: ssl.SSLContext | None = None
        self._grpc: Http2Listener | None = None
        self.ports: dict[str, int] = {}
        """Where it listens: http, https, h3."""
        self.protocols = ["http/1.1"]
        self.tls_info: dict[str, str] = {}
        """URL and fingerprint of the certificate, for who starts the server; empty without TLS."""
        self._own_headers = [("x-layer", self.version), ("x-layer-config", _core.POLICY_DIGEST)]
        self.siblings = Siblings(self.loop, place)
        relay.serve_siblings(self)
        self.metrics.worker = str(place.worker) if place.workers > 1 else None
        self.metrics.parts.append(orphan_families)
        self.metrics.parts.append(self.health.families)
        self.metrics.parts.append(lambda labels: connection_families(self.kernel, labels))
        self.metrics.answers = lambda: len(self._answers)

    # ---- connections (Application of http.py) --------------------------------------------------
    async def listen(self, sock: Any) -> None:
        """Accept connections of a bound, listening socket."""
        listener = await self.loop.create_server(
            lambda: HttpConnection(self, self.loop), sock=sock, backlog=LISTEN_BACKLOG
        )
        self._listeners.append(listener)
        self.access.is_loopback = ip_address(sock.getsockname()[0]).is_loopback
        self.routes.begin(self)
        self.ports["http"] = sock.getsockname()[1]

    async def listen_tls(self, sock: Any, udp_sock: Any = None) -> None:
        """The same with TLS; on udp_sock, which has the same port, HTTP/3. Raises ConfigError for a
        certificate that cannot be used."""
        certificate = self.settings.tls_certificate
        self._tls = server_context(certificate, self.settings.tls_key)
        standing: list[Header] = []
        if udp_sock is not None:
            self._listen_quic(udp_sock)
            value = f'h3=":{self.ports["h3"]}"; ma={limits.ALTERNATIVE_SECONDS}'
            standing.append(("alt-svc", value))
        listener = await self.loop.create_server(
            lambda: HttpConnection(self, self.loop, standing),
            sock=sock,
            backlog=LISTEN_BACKLOG,
            ssl=self._tls,
            ssl_handshake_timeout=self.limits.header_seconds,
            ssl_shutdown_timeout=limits.LINGER_SECONDS,
        )
        self._listeners.append(listener)
        host, port = sock.getsockname()[:2]
        self.ports["https"] = port
        url = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
        self.tls_info = {"https": url, "certificate_sha256": fingerprint(certificate)}

    async def listen_grpc(self, address: str) -> None:
        """gRPC over HTTP/2 on host:port, with TLS where the server has a certificate. Raises
        ConfigError, ListenError."""
        from .grpc.http2 import Http2Listener  # imported only if gRPC is on

        self._grpc = Http2Listener(self)
        files = self.settings.tls_certificate, self.settings.tls_key
        self._listeners.append(await self._grpc.listen(address, *files))
        self.ports["grpc"] = int(self._grpc.url.rpartition(":")[2])

    @property
    def grpc_url(self) -> str:
        """Empty without gRPC over HTTP/2."""
        return self._grpc.url if self._grpc is not None else ""

    def _listen_quic(self, sock: Any) -> None:
        from .quic.listener import QuicListener  # only who needs it pays for its import

        settings = self.settings
        files = settings.tls_certificate, settings.tls_key
        self._quic = QuicListener(self, self.loop, sock, *files, self.siblings)
        self.ports["h3"] = sock.getsockname()[1]
        self.protocols.append("h3")

    def handshake_done(self, seconds: float, *, resumed: bool, early: bool) -> None:
        """Of a QUIC connection."""
        self.metrics.handshake.observe(seconds)
        self.metrics.handshakes["early" if early else "resumed" if resumed else "full"] += 1

    def is_replay_safe(self, exchange: Exchange) -> bool:
        """For a request in the first flight of a connection, which may have been recorded."""
        if exchange.is_carrier:
            from .grpc.in_body import is_replay_safe

            return is_replay_safe(exchange.request.path, exchange.request.fields)
        is_reading = exchange.request.method in ("GET", "HEAD", "OPTIONS")
        is_safe = exchange.handler in self.routes.replay_safe
        return is_reading or is_safe or may_repeat(exchange)

    def connection_opened(self, connection: Connection) -> bool:
        if len(self._connections) >= self._connection_cap:
            self.metrics.connections_refused += 1
            LOG.warning(
                "a connection was refused: %d are open, as many as the limit of descriptors allows "
                "(ulimit -n)",
                len(self._connections),
            )
            return False
        self._connections.add(connection)
        self.metrics.connections = len(self._connections)
        return True

    def connection_refused(self, connection: Connection) -> bool:
        if len(self._refused) >= limits.REFUSED_CONNECTIONS_MAX:
            return False
        self._refused.add(connection)
        return True

    def connection_closed(self, connection: Connection) -> None:
        self._connections.discard(connection)
        self._refused.discard(connection)
        self.kernel.forget(connection.key)
        self.metrics.connections = len(self._connections)
        self._tell_if_drained()

    def error_shape(self, path: str) -> ErrorShape:
        return self.routes.error_shape(path)

    def refuse_early(self, exchange: Exchange) -> ApiError | None:
        """By the head alone: access, then route; a call of gRPC sees to both by itself."""
        try:
            self._check_head(exchange)
        except ApiError as error:
            # The traceback leads back to the exchange: a cycle, which only a collection would free.
            return error.with_traceback(None)
        return None

    def _check_head(self, exchange: Exchange) -> None:
        """Raises ApiError."""
        exchange.request.check()
        if exchange.wire.has_trailers and exchange.request.field(b"content-type").startswith(GRPC):
            from .grpc.in_body import begin_call

            begin_call(self, exchange)
            return
        exchange.standing_headers += [*self._own_headers, *exchange.wire.standing]
        exchange.on_gone = lambda: self._gone(exchange)
        self.access.check(exchange)
        if exchange.request.method != "OPTIONS":
            exchange.handler = self.routes.find(exchange.request)
            if not relay.relays_to_first(self, exchange):
                make_sink = self.routes.sinks.get(exchange.handler)
                exchange.sink = make_sink(self, exchange) if make_sink is not None else None

    def handle(self, exchange: Exchange) -> None:
        """Begin to answer. Whatever a handler raises becomes one row of the error table."""
        try:
            is_here = exchange.refusal is None and not relay.is_for_first(exchange)
            if is_here and may_repeat(exchange):
                relay.kept_here_or_raise(self, exchange)
                made = self.part(Outcomes).enter(exchange)
                if made is None:
                    return  # another exchange makes its answer, or has made it
                exchange = made
            self._begin(exchange)
        except Exception as error:
            self._fail(exchange, error)
        if exchange.answered:
            self._note(exchange)

    def refused(self, exchange: Exchange) -> None:
        """Answered by the connection itself. Guessed keys and broken requests leave a trace; of a
        connection that was refused there is no request to tell of."""
        if exchange.error_code == "too_many_connections":
            self.metrics.responses[str(exchange.status)] += 1
        else:
            self._note(exchange)

    def _begin(self, exchange: Exchange) -> None:
        if exchange.refusal is not None:
            self._fail(exchange, exchange.refusal)
            return
        if self.settings.log_prompts and exchange.request.body:
            log_body(exchange)
        if exchange.request.method == "OPTIONS":
            self.access.preflight(exchange)
            return
        result = cast(Awaitable[None] | None, exchange.handler(self, exchange))
        if inspect.iscoroutine(result):
            self.spawn(exchange, result)

    def spawn(self, exchange: Exchange, story: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """A task that answers; what it raises becomes one row of the error table."""
        return self.hold(self._run(exchange, story))

    def hold(self, story: Coroutine[Any, Any, SomeResult]) -> asyncio.Task[SomeResult]:
        """Run it; the server is not drained before it has ended."""
        task = self.loop.create_task(story)
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)
        return task

    def _task_ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        self._tell_if_drained()

    async def _run(self, exchange: Exchange, story: Coroutine[Any, Any, None]) -> None:
        try:
            await story
        except Exception as error:
            self._fail(exchange, error)
        if exchange.answered:
            self._note(exchange)

    def _fail(self, exchange: Exchange, error: Exception) -> None:
        if isinstance(error, ApiError) and is_relieved(self, exchange, error):
            return
        if exchange.lease is not None:
            exchange.lease.cancel()
        if isinstance(error, ApiError):
            exchange.fail(error)
            return
        if isinstance(error, relay.ElsewhereError):
            self.hold(self._run(exchange, relay.relay_or(self, exchange, error)))
            return
        LOG.error("%s: a handler failed", exchange.request_id, exc_info=error)
        exchange.fail(ApiError("internal"))

    def _gone(self, exchange: Exchange) -> None:
        """Its client went before there was an answer, or anything to cancel."""
        if exchange.timing is not None:
            self.models.main.metrics.count_end(CLIENT_GONE)
        self._note(exchange, end=CLIENT_GONE)
        exchange.was_noted = True  # its handler may still go on to an answer that nobody reads

    def _note(self, exchange: Exchange, answer: Answer | None = None, end: str = "") -> None:
        """One line in the log and one in the counters per answer, or request without one."""
        if exchange.is_carrier or exchange.was_noted:
            return
        self.metrics.responses[str(exchange.status)] += 1
        self._tell(exchange, answer, end)
        if exchange.stream_type:
            self.metrics.streams[exchange.stream_type.partition(";")[0]] += 1
        self.metrics.protocols[exchange.wire.protocol or "batch"] += 1
        if self.telemetry is not None and exchange.request.path not in QUIET_PATHS:
            self.telemetry.note(exchange, answer)
        level = logging.DEBUG if exchange.request.path in QUIET_PATHS else logging.INFO
        log_exchange(level, exchange, answer, end)

    def _tell(self, exchange: Exchange, answer: Answer | None = None, end: str = "") -> None:
        path = exchange.request.path
        if path not in QUIET_PATHS and not path.startswith(DEBUG_PATHS):
            self.stories.ended(exchange, answer, end)

    def part(self, kind: type[SomePart]) -> SomePart:
        """The one of its kind, made when it is first asked for: at the start, if worker threads
        ask for it."""
        part = self._parts.get(kind)
        if part is None:
            part = self._parts[kind] = kind(self)
        return cast(SomePart, part)

    # ---- answers -------------------------------------------------------------------------------
    @property
    def is_busy(self) -> bool:
        """Somebody waits for an answer."""
        return bool(self._answers or self._tasks)

    @property
    def answers_open(self) -> int:
        """Requests between submission and end."""
        return len(self._answers)

    def admit(self, exchange: Exchange, prompt_tokens: int) -> None:
        """Charge the owner's limits for a request that is about to be submitted. Raises ApiError
        (429); the answer tells what is left either way."""
        quota = exchange.owner.quota
        if quota is None:
            return
        try:
            exchange.lease = quota.admit(prompt_tokens, exchange.give_way)
        finally:
            exchange.standing_headers += quota.headers()

    def answer_begun(self, answer: Answer) -> None:
        self._answers.add(answer)
        if self._ticker is None:
            self._ticker = self.loop.call_later(limits.TICK_SECONDS, self._tick)

    def answer_ended(self, answer: Answer) -> None:
        self._answers.discard(answer)
        if answer.exchange.lease is not None:
            if answer.admitted_seconds:
                answer.exchange.lease.settle(answer.cached_tokens, answer.output_tokens)
            else:
                answer.exchange.lease.cancel()
        if answer.use is not None:
            began = bool(answer.admitted_seconds)
            self.kernel.end(answer.use, answer.cached_tokens if began else None)
        if self.relief is not None:
            self.relief.ended(answer)
        self._note(answer.exchange, answer)
        self._tell_if_drained()

    def _tick(self) -> None:
        """Once a second while answers are open: pings, and the load figure that outlives them."""
        self._ticker = None
        if share := max((one.stats()["utilization_ppm"] for one in self.models.links), default=0):
            self.metrics.load_utilization_ppm = share
        now = time.monotonic()
        for answer in list(self._answers):
            answer.tick(now)
        if self._answers:
            self._ticker = self.loop.call_later(limits.TICK_SECONDS, self._tick)

    # ---- the main model ------------------------------------------------------------------------
    @property
    def model(self) -> TextModel:
        """Of text."""
        return self.models.main.text

    @property
    def engines(self) -> Engines:
        """All that it has."""
        return self.models.main.engines

    @property
    def engine(self) -> EngineLink | None:
        """One that serves; None: there is none."""
        return self.engines.first

    # ---- engines -------------------------------------------------------------------------------
    def engine_up(
        self,
        region: _core.Region,
        info: dict[str, Any],
        on_broken: Callable[[], None] = lambda: None,
        *,
        model: str = "",
        engine: int = 0,
        worker: int = 0,
        prefixes: _core.PrefixTable | None = None,
    ) -> None:
        """As Models.up."""
        self.models.up(model, region, info, on_broken, engine, worker, prefixes)

    def engine_lost(self, reason: str = "", message: str = "", *, engine: int = 0) -> None:
        """As Models.lost."""
        self.models.lost(engine, reason, message)

    def refuse_unread(self) -> None:
        """Before a request for an answer is read, where it is clear by then. Raises ApiError."""
        if self.draining:
            raise self.draining_error()
        if not self.models.loads and not self.models.main.is_coming:
            self.engine_or_refuse(self.models.main)

    def engine_or_refuse(self, served: Served) -> EngineLink:
        """Of a model. Raises ApiError while draining, without an engine, or with one that is not
        well."""
        if self.draining:
            raise self.draining_error()
        return served.engine_or_refuse()

    def draining_error(self) -> ApiError:
        return ApiError("draining").after(limits.OVERLOAD_RETRY_SECONDS)

    def unready_reason(self) -> str:
        """Empty if new requests would be served."""
        return "draining" if self.draining else self.models.unready_reason()

    def reload(self) -> None:
        """Read the keys file and the certificate again, each whatever becomes of the other. What is
        not valid is told in the log; what was known holds."""
        steps = {"Keys": self.access.reload, "The certificate": self._reload_certificate}
        if self._tls is None:
            del steps["The certificate"]
        for what, step in steps.items():
            try:
                step()
            except ConfigError as error:
                LOG.error("%s could not be read again. %s", what, error)
            else:
                LOG.info("%s: read again.", what)

    def _reload_certificate(self) -> None:
        """For new connections on all ports. Raises ConfigError, before anything is changed if the
        files do not fit each other."""
        certificate, key = self.settings.tls_certificate, self.settings.tls_key
        told = fingerprint(certificate)
        if self._tls is not None:
            load_chain(self._tls, certificate, key)
        self.tls_info["certificate_sha256"] = told
        if self._grpc is not None:
            self._grpc.reload(certificate, key)
        if self._quic is not None:
            self._quic.reload(certificate, key)

    # ---- end -----------------------------------------------------------------------------------
    def drain(self, seconds: float, drained: Callable[[], None], *, serves: bool = False) -> None:
        """Take nothing new, let answers finish within `seconds`, then call `drained` once.
        `serves`: another process has the sockets now. What open connections still ask is answered,
        as the last that they are."""
        if self.draining:
            return
        self.leaving = True
        self._drained = drained
        if serves:
            self._hand_over(seconds)
            return
        self.draining = True
        self.models.refuse(self.draining_error)
        for part in self._parts.values():
            part.drain()
        if self._drain_timer is not None:
            self._drain_timer.cancel()
        self._drain_timer = self.loop.call_later(seconds, self._end_answers)
        for connection in list(self._connections):
            connection.close_if_idle()
        self._tell_if_drained()

    def _hand_over(self, seconds: float) -> None:
        for listener in self._listeners:
            listener.close()
        if self._quic is not None:
            self._quic.stop_reading()
        for part in self._parts.values():
            part.drain()
        for kind in self.routes.with_folders:
            if (part := self._parts.pop(kind, None)) is not None:
                part.close()  # the other process wants the folder
        for connection in list(self._connections):
            connection.go_away()
        self._idle_timer = self.loop.call_later(limits.LEAVING_IDLE_SECONDS, self._close_idle)
        self._drain_timer = self.loop.call_later(seconds, self._end_answers)
        self._tell_if_drained()

    def _close_idle(self) -> None:
        """Clients that have asked nothing for a while since."""
        for connection in list(self._connections):
            connection.close_if_idle()
        self._idle_timer = self.loop.call_later(limits.LEAVING_IDLE_SECONDS, self._close_idle)

    def _end_answers(self) -> None:
        self.draining = True
        self.models.refuse(self.draining_error)
        for answer in list(self._answers):
            answer.abort(self.draining_error(), "draining")

    def _tell_if_drained(self) -> None:
        if self.leaving and not self.draining and self._connections:
            return  # they may ask once more
        if self._drained is not None and not self._answers and not self._tasks:
            drained, self._drained = self._drained, None
            # After the last bytes were handed to their sockets.
            self.loop.call_soon(drained)

    def close(self) -> None:
        """End at once. Idempotent."""
        for listener in self._listeners:
            listener.close()
        for timer in (self._drain_timer, self._idle_timer):
            if timer is not None:
                timer.cancel()
        for part in self._parts.values():
            part.close()
        self._parts.clear()
        self._end_answers()
        self.stories.close()
        if self._ticker is not None:
            self._ticker.cancel()
        for connection in [*self._connections, *self._refused]:
            connection.close()
        if self._quic is not None:
            self._quic.close()
        self.siblings.close()
        self.models.close()
        if self.telemetry is not None:
            self.telemetry.close()
            self.telemetry = None
        self.workers.shutdown(wait=False, cancel_futures=True)
        self.aside.shutdown(wait=False, cancel_futures=True)

    async def wait_closed(self) -> None:
        """After `close`: what was written last goes out."""
        await asyncio.sleep(0)

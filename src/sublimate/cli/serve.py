"""`sublimate serve`: fetch the model if needed, bind, supervise.

defines: check_header, passed_over, serve
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import time
from collections.abc import Callable
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ..config import Effective, Settings, data_folder, keys_path
from ..config.folders import check_data_folders
from ..control.run_record import RunRecord
from ..control.stamps import stamp, stamps
from ..edge.tls import server_context
from ..engine.loader import check_kv_memory
from ..engine.script import read_script
from ..errors import ConfigError, ExitCode
from ..guard.orphans import by_kind, look, places_of
from ..keys import read_keys
from ..model.adapters import check_adapters
from ..model.source import header_of
from ..supervisor.launch import EDGE_MODULE, Launch
from ..supervisor.listen import (
    Listeners,
    WorkerSockets,
    answers_at,
    bind,
    bind_each,
    bind_udp_each,
    hold,
)
from ..supervisor.notify import NotifyingReporter
from ..supervisor.supervise import Supervisor
from .certificate import own_certificate
from .output import note
from .served_models import launch_of

if TYPE_CHECKING:
    from ..probe.nvml import NvmlAnswer
    from .json_lines import JsonReporter
    from .screen import ScreenReporter


READ_AGAIN = ("api_key_file", "library", "idle_unload", "models_memory")
"""Settings of the supervisor's section that a reload takes."""


def check_header(path: str) -> None:
    """A file that is no model is told before processes start. Raises ModelError."""
    header_of(path)


def _checked_keys(settings: Settings) -> Path:
    """The keys file. One that was named must be there; the user's own may appear later. Raises
    ConfigError."""
    path = keys_path(settings)
    try:
        read_keys(path)
    except FileNotFoundError:
        if settings.edge.keys_file:
            raise ConfigError(f"keys_file = {str(path)!r}: there is no such file.") from None
    return path


def _check_fallback(settings: Settings, listeners: Listeners | None = None) -> None:
    """Raises ConfigError for a URL that is none, or that of `listeners`: of this server."""
    edge = settings.edge
    if not edge.fallback:
        return
    from ..guard.upstream import address_of, check_key

    to = address_of(edge.fallback)
    check_key(edge.fallback_key)
    if listeners is None:
        return
    own = [sock for worker in listeners.workers for sock in (worker.http, worker.https) if sock]
    if answers_at(own, to.host, to.port):
        raise ConfigError(
            f"fallback = {edge.fallback!r}: this server itself listens there. Name another one."
        )


def _found(settings: Settings) -> Settings:
    """The same with the files that the processes read, each looked at once. Raises ConfigError,
    ModelError."""
    _check_fallback(settings)
    keys = str(_checked_keys(settings))
    lora = check_adapters(settings.engine.lora)
    engine = msgspec.structs.replace(settings.engine, lora=lora)
    hosts = (*settings.edge.allowed_hosts, settings.server.host)
    edge = msgspec.structs.replace(settings.edge, keys_file=keys, allowed_hosts=hosts)
    check_data_folders(edge)
    if settings.server.tls and not edge.tls_certificate:
        certificate, key = own_certificate(data_folder(edge) / "tls")
        edge = msgspec.structs.replace(edge, tls_certificate=str(certificate), tls_key=str(key))
    if edge.tls_certificate:
        server_context(edge.tls_certificate, edge.tls_key)
    elif edge.tls_key:
        raise ConfigError("tls_key is set and tls_certificate is not.")
    return msgspec.structs.replace(settings, edge=edge, engine=engine)


def _speaks_grpc(settings: Settings, address: str) -> bool:
    """Whether it listens for gRPC. Raises ConfigError if that would be in the clear for others."""
    chosen, secure = settings.server.grpc, bool(settings.edge.tls_certificate)
    if chosen == "on" and not secure and not ip_address(address).is_loopback:
        raise ConfigError("grpc = on: gRPC in the clear is for loopback only. Add --tls.")
    return chosen == "on" or (chosen == "auto" and secure)


def _reporter(settings: Settings, started_seconds: float) -> JsonReporter | ScreenReporter:
    """Who needs no screen does not load what draws one."""
    if settings.log.log_format == "json":
        from .json_lines import JsonReporter

        return JsonReporter(settings, settings.model, started_seconds)
    from .screen import ScreenReporter

    return ScreenReporter(settings, settings.model, started_seconds)


def _gpus() -> NvmlAnswer | None:
    from ..probe.source import source_of

    return source_of(os.environ).nvml()


def _begin_run(settings: Settings, reporter: JsonReporter | ScreenReporter) -> RunRecord | None:
    """What killed runs left is cleaned up and told; then this one's record. None: there is no place
    for one, so a later run cannot clean up after this."""
    places = places_of(settings)
    orphans = look(places, _gpus, clean=True)
    for orphan in orphans:
        reporter.orphan(orphan)
    try:
        record = RunRecord(places.runs)
        record.tell(*by_kind(orphans))
    except OSError as error:
        note(f"No record of this run can be kept in {places.runs}: {error.strerror}.")
        return None
    return record


def _bound(settings: Settings, stack: contextlib.ExitStack) -> Listeners:
    """All sockets of all workers, closed with the stack. Raises ConfigError, ListenError."""
    server = settings.server

    def held(socks: list[socket.socket]) -> list[socket.socket]:
        for sock in socks:
            stack.enter_context(sock)
        return socks

    http = held(bind_each(server.host, server.port, server.workers))
    https: list[socket.socket] = []
    h3: list[socket.socket] = []
    if settings.edge.tls_certificate:
        https = held(bind_each(server.host, server.tls_port, server.workers))
        if server.http3:
            h3 = held(bind_udp_each(https))
    grpc_address = ""
    if _speaks_grpc(settings, http[0].getsockname()[0]):
        port_held = stack.enter_context(hold(server.host, server.grpc_port))
        address, port = port_held.getsockname()[:2]
        grpc_address = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
    each = itertools.zip_longest(http, https, h3)
    return Listeners(tuple(WorkerSockets(*socks) for socks in each), grpc_address)


def passed_over(before: Settings, now: Settings) -> list[str]:
    """A sentence of the settings that a reload does not take, if there are any."""
    names = [name for name in msgspec.structs.asdict(now.server) if name not in READ_AGAIN]
    changed = [
        f"{name} = {getattr(now.server, name)!r} (in force: {getattr(before.server, name)!r})"
        for name in names
        if getattr(now.server, name) != getattr(before.server, name)
    ]
    if not changed:
        return []
    return [f"Only a restart takes {', '.join(changed)}."]


def serve(effective: Effective, reread: Callable[[], Effective] | None = None) -> ExitCode:
    """Runs until a signal. `reread`: the settings as they are when somebody reloads. Raises
    SublimateError."""
    started_seconds = stamps().get("entered", time.monotonic())
    stamp("imported")
    settings = effective.settings
    if settings.engine.script:
        read_script(settings.engine.script)
    else:
        check_kv_memory(settings.engine.kv_memory, settings.server.workers)
    settings = _found(settings)
    reporter = _reporter(settings, started_seconds)
    # A port that is taken is told before a long download, and after who may still have it is gone.
    with contextlib.ExitStack() as stack:
        if (record := _begin_run(settings, reporter)) is not None:
            stack.callback(record.close)
        listeners = _bound(settings, stack)
        _check_fallback(settings, listeners)

        def launch(settings: Settings, edge_module: str, *, stays: bool = False) -> Launch:
            check = None if stays else check_header
            made = launch_of(settings, edge_module, reporter.fetching, check)
            reporter.model_name = made.model_name
            return made

        edge_module = EDGE_MODULE
        first = launch(settings, edge_module, stays=settings.server.stay)
        if settings.server.legacy_layer:
            from ..legacy import layer

            port = stack.enter_context(bind(settings.server.host, settings.server.legacy_port))
            stack.enter_context(layer.legacy_layer(settings, listeners.http, port))
            edge_module = layer.EDGE_MODULE
            first = msgspec.structs.replace(first, edge_module=edge_module)

        notes: list[str] = []

        def relaunch() -> Launch:
            now = _found((reread() if reread is not None else effective).settings)
            notes[:] = passed_over(settings, now)
            for text in notes:
                reporter.noted(text)
            # Where it listens, and how many there are, is settled while it runs.
            again = {name: getattr(now.server, name) for name in READ_AGAIN}
            server = msgspec.structs.replace(settings.server, **again)
            now = msgspec.structs.replace(now, server=server)
            _check_fallback(now, listeners)
            return launch(now, edge_module)

        def reload_ended(failure: str) -> None:
            if record is not None:
                record.tell_reload(failure, notes)
            notes.clear()

        stamp("settled")
        watcher = NotifyingReporter(reporter, reload_ended)
        return Supervisor(first, listeners, watcher, relaunch).run()

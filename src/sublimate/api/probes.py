"""Small answers: start-up probes of clients, health, version, well_known, metrics.

defines: empty, live, ready, health, version, metrics
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from .. import _core
from ..edge.exchange import Exchange
from ..edge.observe import metrics as numbers
from ..edge.relay import ask

if TYPE_CHECKING:
    from ..edge.app import EdgeServer

UNAVAILABLE = 503


def empty(server: EdgeServer, exchange: Exchange) -> None:
    """HEAD / and HEAD /api/hello: is somebody there?"""
    del server
    exchange.send(200, [], b"")


def live(server: EdgeServer, exchange: Exchange) -> None:
    """The process answers; nothing is said about the engine."""
    del server
    exchange.send_json(200, b'{"status":"ok"}')


def ready(server: EdgeServer, exchange: Exchange) -> None:
    """New requests would be served now."""
    reason = server.unready_reason()
    if reason:
        body: dict[str, Any] = {"status": "unavailable", "reason": reason}
        if watchdog := server.models.standing_shown():
            body["watchdog"] = watchdog
        exchange.send_json(UNAVAILABLE, msgspec.json.encode(body))
    else:
        body = {"status": "ready"}
        if warnings := template_warnings(server):
            body["warnings"] = warnings
        exchange.send_json(200, msgspec.json.encode(body))


def template_warnings(server: EdgeServer) -> list[str]:
    """A sentence for each model whose chat template cannot be used."""
    read = [(one.name, one.text_if_read) for one in server.models.all]
    return [
        f"The built-in chat template serves model {name} instead of its own: {replaced}."
        for name, text in read
        if text is not None and (replaced := text.template.report.replaced)
    ]


def health(server: EdgeServer, exchange: Exchange) -> None:
    """The engine makes steps while there is work; never "the port answers". A model that is out of
    memory until somebody asks for it is no fault."""
    if not server.models.is_healthy():
        exchange.send_json(UNAVAILABLE, b'{"status":"unhealthy"}')
    else:
        exchange.send_json(200, b'{"status":"ok"}')


def version(server: EdgeServer, exchange: Exchange) -> None:
    main = server.models.main
    text = main.text_if_read
    body = {
        "name": "sublimate",
        "version": server.version,
        "model": main.name,
        "policy": _core.POLICY_DIGEST,
        "template": str(text.template.report) if text is not None else "",
    }
    exchange.send_json(200, msgspec.json.encode(body))


def well_known(server: EdgeServer, exchange: Exchange) -> None:
    """Where else this server listens, what certificate to expect, which policy it is compiled with,
    and which of its settings decide before that policy does."""
    body = {
        "version": server.version,
        "ports": server.ports,
        "protocols": server.protocols,
        "certificate_sha256": server.tls_info.get("certificate_sha256"),
        "policy": _core.POLICY_DIGEST,
        "profiles": {
            "default": server.settings.profile,
            "pinned": server.settings.execution_profile or None,
            "required": server.settings.profile_contract == "strict",
        },
    }
    exchange.send_json(200, msgspec.json.encode(body))


async def metrics(server: EdgeServer, exchange: Exchange) -> None:
    """Of all workers, whichever is asked."""
    mine = server.metrics.exposition()
    if not exchange.is_relayed and server.place.workers > 1:
        asked = (ask(server, number, exchange) for number in server.siblings.numbers)
        mine = numbers.merged([mine, *await asyncio.gather(*asked)])
    exchange.send(200, [("content-type", server.metrics.content_type)], mine)

"""grpc.health.v1: whether new requests would be served, as /readyz tells it.

defines: HEALTH, Check, List, Watch
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2

from ...edge import limits
from ...edge.errors import ApiError
from ...edge.grpc.call import Call
from ...edge.grpc.route import check_access

if TYPE_CHECKING:
    from ...edge.app import EdgeServer

HEALTH = "grpc.health.v1.Health"
READY_TARGET = b"/readyz"
Response = health_pb2.HealthCheckResponse
_LIBRARY: Any = health_pb2  # whose stubs know less than it has
ListResponse = _LIBRARY.HealthListResponse


def _status(server: EdgeServer) -> int:
    return Response.NOT_SERVING if server.unready_reason() else Response.SERVING


class _HealthTalk:
    """One message, and an answer to it. "" is the server as a whole."""

    def __init__(self, services: Sequence[str], call: Call) -> None:
        """Raises ApiError for who may not ask."""
        check_access(call, READY_TARGET)
        self._services = services
        self._call = call
        self._service: str | None = None

    def message(self, data: bytes) -> None:
        if self._service is not None:
            raise ApiError("call_one_message")
        try:
            self._service = health_pb2.HealthCheckRequest.FromString(data).service
        except DecodeError:
            raise ApiError("call_message") from None

    def end(self) -> None:
        if self._service is None:
            raise ApiError("call_one_message")
        self._answer(self._service)

    def _answer(self, service: str) -> None:
        raise NotImplementedError

    def gone(self, error: ApiError | None) -> None:
        """Nothing runs for it."""


class Check(_HealthTalk):
    def _answer(self, service: str) -> None:
        if service and service not in self._services:
            raise ApiError("call_no_service")
        answer = Response(status=_status(self._call.server))
        self._call.reply([answer.SerializeToString()])
        self._call.complete()


class List(_HealthTalk):
    """Of all services. The request has no field: what a check would name is not looked at."""

    def _answer(self, service: str) -> None:
        del service
        status = _status(self._call.server)
        answer = ListResponse()
        for name in ("", *self._services):
            answer.statuses[name].status = status
        self._call.reply([answer.SerializeToString()])
        self._call.complete()


class Watch(_HealthTalk):
    """The status now, and each other one after it, until the client leaves."""

    _told: int | None = None

    def _answer(self, service: str) -> None:
        if service and service not in self._services:
            # The service might appear; here it will not, and the stream stays open all the same.
            self._tell(Response.SERVICE_UNKNOWN)
            return
        self._call.server.part(Watchers).add(self)
        self.look()

    def look(self) -> None:
        self._tell(_status(self._call.server))

    def _tell(self, status: int) -> None:
        if status != self._told:
            self._told = status
            self._call.reply([Response(status=status).SerializeToString()])

    def gone(self, error: ApiError | None) -> None:
        self._call.server.part(Watchers).discard(self)


class Watchers:
    """All who watch, and the one timer that looks for them. A Part."""

    def __init__(self, server: EdgeServer) -> None:
        self._loop = server.loop
        self._watching: set[Watch] = set()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, watch: Watch) -> None:
        self._watching.add(watch)
        if self._timer is None:
            self._timer = self._loop.call_later(limits.TICK_SECONDS, self._look)

    def discard(self, watch: Watch) -> None:
        self._watching.discard(watch)

    def _look(self) -> None:
        self._timer = None
        for watch in list(self._watching):
            watch.look()
        if self._watching:
            self._timer = self._loop.call_later(limits.TICK_SECONDS, self._look)

    def drain(self) -> None:
        """Told at once: who balances load goes elsewhere."""
        for watch in list(self._watching):
            watch.look()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

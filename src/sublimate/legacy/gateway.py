"""POST /v1/layer/negotiate: asks the scheduler where a request may go, and answers with a 302.

One endpoint of the edge, with its access rules. A prompt does not pass here: it goes once, to the
address that this names.

defines: NEGOTIATE_PATH, NegotiateBody, Gateway, negotiate, tell_migration, ROUTES
"""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING

import msgspec

from ..edge.errors import ApiError, field_error
from ..edge.exchange import Exchange
from ..edge.json_bounds import checked_json, syntax_error
from ..edge.routes import Methods
from . import records
from .broker import Broker

if TYPE_CHECKING:
    from ..edge.app import EdgeServer

NEGOTIATE_PATH = "/v1/layer/negotiate"
OK, FOUND = 200, 302
ANSWER_SECONDS = 5.0
CHANNEL_BYTES = 8


class NegotiateBody(msgspec.Struct):
    """What a client asks with."""

    model: str


class Gateway:
    """The edge's side of the broker, connected when first asked."""

    def __init__(self, server: EdgeServer) -> None:
        del server
        self.address = records.address()
        self._channel = b"layer:gateway:" + secrets.token_hex(CHANNEL_BYTES).encode()
        self._commands: Broker | None = None
        self._answers: Broker | None = None
        self._connecting = asyncio.Lock()
        self._asked: dict[str, asyncio.Future[records.Answer]] = {}
        self._count = 0

    async def ask(self, model: str) -> records.Granted:
        """Raises ApiError: the scheduler refuses, or nobody answers."""
        self._count += 1
        ask = str(self._count)
        answer: asyncio.Future[records.Answer] = asyncio.get_running_loop().create_future()
        self._asked[ask] = answer
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                commands = await self._connected()
                question = records.Negotiate(self._channel, ask, model)
                commands.send(b"RPUSH", records.QUESTIONS, records.encode(question))
                said = await answer
        except (TimeoutError, OSError):
            raise ApiError("legacy_unavailable") from None
        finally:
            del self._asked[ask]
        if isinstance(said, records.Refused):
            raise ApiError(said.code)
        if not isinstance(said, records.Granted):
            raise TypeError("the scheduler answered another question")
        return said

    async def _connected(self) -> Broker:
        async with self._connecting:
            if self._commands is None or self._answers is None:
                port, password = self.address.broker_port, self.address.broker_password
                answers = await Broker.connect(port, password, self._hear, self._lose)
                await answers.subscribe(self._channel)
                self._answers = answers
                self._commands = await Broker.connect(port, password, on_lost=self._lose)
            return self._commands

    def _hear(self, data: bytes) -> None:
        said = records.answer(data)
        waiting = self._asked.get(said.ask)
        if waiting is not None and not waiting.done():
            waiting.set_result(said)

    def _lose(self) -> None:
        """A new connection is made for the next question."""
        self.close()

    def drain(self) -> None:
        """A lease that is given out may still be used."""

    def close(self) -> None:
        for broker in (self._commands, self._answers):
            if broker is not None:
                broker.close()
        self._commands = self._answers = None


async def negotiate(server: EdgeServer, exchange: Exchange) -> None:
    """A lease and the address to use it at. Raises ApiError."""
    body = checked_json(exchange.request.body)
    try:
        asked = msgspec.json.decode(body, type=NegotiateBody)
    except msgspec.ValidationError:
        raise field_error("model", "the name of the model to use is needed, a string") from None
    except msgspec.DecodeError as error:
        raise syntax_error(error, body) from None
    model = server.models.resolve(asked.model).name
    gateway = server.part(Gateway)
    granted = await gateway.ask(model)
    scheme_and_host, _, _ = exchange.base_url().rpartition(":")
    if gateway.address.certificate:
        scheme_and_host = "https:" + scheme_and_host.partition(":")[2]
    port = gateway.address.model_port
    location = f"{scheme_and_host}:{port}/v1/messages?lease={granted.lease}"
    said = {"lease": granted.lease, "address": location, "expires_in_seconds": granted.seconds}
    headers = [("location", location), ("cache-control", "no-store"), *records.sunset_headers()]
    exchange.send_json(FOUND, msgspec.json.encode(said), headers)


def tell_migration(server: EdgeServer, exchange: Exchange) -> None:
    """What the Link of each answer leads to."""
    del server
    text = records.MIGRATION.format(sunset=records.SUNSET_AT)
    exchange.send(OK, [("content-type", "text/plain; charset=utf-8")], text.encode())


ROUTES: dict[str, Methods] = {
    NEGOTIATE_PATH: {"POST": negotiate},
    records.MIGRATION_PATH: {"GET": tell_migration},
}

"""POST and GET /v1/messages/batches, GET and DELETE of one, its cancel and its results.

defines: create, list_batches, retrieve, delete, cancel, results
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from ...edge.errors import ApiError, field_error
from ...edge.exchange import Exchange
from ...edge.json_bounds import checked_json
from ...edge.memory import trimmed
from ..body import send_body
from ..decode import decode_body
from ..pages import page_body, page_of
from .runner import Batches
from .store import WAITING, Batch, BatchStore

if TYPE_CHECKING:
    from ...edge.app import EdgeServer

CUSTOM_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
IDENTIFIER_BYTES = 12
RESULTS_AT_ONCE = 64
RESULTS_TYPE = "application/x-jsonl"
ENDS = ("succeeded", "errored", "canceled", "expired")


class BatchRequest(msgspec.Struct):
    custom_id: str
    params: msgspec.Raw


class BatchBody(msgspec.Struct):
    requests: list[BatchRequest]


_BODY = msgspec.json.Decoder(BatchBody)
_PARAMS = msgspec.json.Decoder(dict[str, msgspec.Raw])
ENCODE = msgspec.json.Encoder().encode


async def create(server: EdgeServer, exchange: Exchange) -> None:
    """Take a batch; it is kept before this answers. Raises ApiError."""
    body, exchange.request.body = exchange.request.body, b""
    requests = await server.loop.run_in_executor(
        server.aside, lambda: trimmed(lambda: _read(body), len(body))
    )
    if server.draining:
        raise server.draining_error()
    batches = server.part(Batches)
    identifier = f"msgbatch_{secrets.token_hex(IDENTIFIER_BYTES)}"
    now, owner = time.time(), exchange.tenant_key
    batch = await batches.stored(lambda store: store.create(identifier, owner, requests, now))
    batches.wake()
    _send(exchange, batch)


def _read(body: bytes) -> list[tuple[str, bytes]]:
    """(custom_id, body of a messages request). What the request itself has wrong is its result."""
    decoded = decode_body(_BODY, checked_json(body))
    if not decoded.requests:
        raise field_error("requests", "must not be empty")
    seen: set[str] = set()
    requests: list[tuple[str, bytes]] = []
    for index, request in enumerate(decoded.requests):
        path = f"requests.{index}"
        if CUSTOM_ID.fullmatch(request.custom_id) is None:
            raise field_error(f"{path}.custom_id", "expected 1 to 64 letters, digits, _ or -")
        if request.custom_id in seen:
            raise field_error(f"{path}.custom_id", "another request of this batch has it")
        seen.add(request.custom_id)
        try:
            params = _PARAMS.decode(request.params)
        except msgspec.ValidationError:
            raise field_error(f"{path}.params", "expected an object") from None
        params.pop("stream", None)  # a result is whole
        requests.append((request.custom_id, ENCODE(params)))
    return requests


async def list_batches(server: EdgeServer, exchange: Exchange) -> None:
    """The owner's, the newest first. Raises ApiError."""
    query, owner = exchange.request.query, exchange.tenant_key

    def read(store: BatchStore) -> tuple[list[Batch], bool]:
        identifiers, has_more = page_of(store.identifiers(owner), query)
        found = (store.get(identifier, owner) for identifier in identifiers)
        return [batch for batch in found if batch is not None], has_more

    shown, has_more = await server.part(Batches).stored(read)
    entries = [_shown(batch) for batch in shown]
    exchange.send_json(200, ENCODE(page_body([one.id for one in shown], entries, has_more)))


async def retrieve(server: EdgeServer, exchange: Exchange) -> None:
    """One batch. Raises ApiError."""
    _send(exchange, await _find(server, exchange, exchange.request.segments()[-1]))


async def cancel(server: EdgeServer, exchange: Exchange) -> None:
    """End a batch: what has no result gets none. Raises ApiError."""
    identifier, owner = exchange.request.segments()[-2], exchange.tenant_key
    batches = server.part(Batches)
    batch = await batches.stored(lambda store: store.cancel(identifier, owner, time.time()))
    if batch is None:
        raise ApiError("unknown_batch")
    batches.stop(identifier)
    _send(exchange, batch)


async def delete(server: EdgeServer, exchange: Exchange) -> None:
    """Forget a batch that has ended. Raises ApiError."""
    batch = await _find(server, exchange, exchange.request.segments()[-1])
    if batch.ended is None:
        raise ApiError("batch_runs")
    await server.part(Batches).stored(lambda store: store.delete(batch.id))
    exchange.send_json(200, ENCODE({"id": batch.id, "type": "message_batch_deleted"}))


async def results(server: EdgeServer, exchange: Exchange) -> None:
    """One line of JSON per request, in the order of the batch. Raises ApiError."""
    batch = await _find(server, exchange, exchange.request.segments()[-2])
    if batch.ended is None:
        raise ApiError("batch_runs")
    await send_body(exchange, RESULTS_TYPE, [], _lines(server.part(Batches), batch.id))


async def _lines(batches: Batches, identifier: str) -> AsyncIterator[bytes]:
    after = -1
    while True:
        rows = await batches.stored(
            lambda store, after=after: store.results(identifier, after, RESULTS_AT_ONCE)
        )
        for number, custom_id, state, result in rows:
            after = number
            shown = result if result is not None else ENCODE({"type": state})
            yield ENCODE({"custom_id": custom_id, "result": msgspec.Raw(shown)}) + b"\n"
        if len(rows) < RESULTS_AT_ONCE:
            return


async def _find(server: EdgeServer, exchange: Exchange, identifier: str) -> Batch:
    owner = exchange.tenant_key
    batch = await server.part(Batches).stored(lambda store: store.get(identifier, owner))
    if batch is None:
        raise ApiError("unknown_batch")
    return batch


def _send(exchange: Exchange, batch: Batch) -> None:
    exchange.send_json(200, ENCODE(_shown(batch)))


def _shown(batch: Batch) -> dict[str, Any]:
    counts = {"processing": batch.counts.get(WAITING, 0)}
    counts |= {state: batch.counts.get(state, 0) for state in ENDS}
    has_ended = batch.ended is not None
    return {
        "id": batch.id,
        "type": "message_batch",
        "processing_status": "ended" if has_ended else "in_progress",
        "request_counts": counts,
        "created_at": _time(batch.created),
        "expires_at": _time(batch.expires),
        "cancel_initiated_at": _time(batch.cancelled),
        "ended_at": _time(batch.ended),
        "archived_at": None,
        # Without a host: clients take it from their base URL, whatever stands in between.
        "results_url": f"/v1/messages/batches/{batch.id}/results" if has_ended else None,
    }


def _time(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

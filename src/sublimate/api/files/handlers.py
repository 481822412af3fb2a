"""POST and GET /v1/files, GET and DELETE of one, its content; and files named in messages.

defines: create, list_files, retrieve, delete, content, FileTexts
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, quote, urlencode

import msgspec

from ...edge import limits
from ...edge.errors import ApiError, field_error
from ...edge.exchange import Exchange
from ...edge.generate import NeedsThreadError
from ...edge.relay import first_or_here
from ..body import send_body
from ..pages import page_body, page_of
from .store import FileStore, StoredFile
from .upload import Files, Upload

if TYPE_CHECKING:
    from ...edge.app import EdgeServer

ENCODE = msgspec.json.Encoder().encode
READ_BYTES = 256 * limits.KIB
CURSOR = "page_"
IDS_MAX = 100
ONE_REFUSED = "this server reads text files (UTF-8) only, and this is not one"


async def create(server: EdgeServer, exchange: Exchange) -> None:
    """Keep the file whose body went to its sink. Raises ApiError."""
    del server
    sink = exchange.sink
    if not isinstance(sink, Upload):
        raise RuntimeError("the route of uploads has a sink")
    exchange.send_json(200, ENCODE(_shown(await sink.kept())))


async def list_files(server: EdgeServer, exchange: Exchange) -> None:
    """The owner's, the newest first, by either of the vendor's ways to page: after an id or by a
    cursor; or those that are named by `ids`. Raises ApiError."""
    query, owner = exchange.request.query, exchange.tenant_key
    asked = parse_qs(query)
    named = list(dict.fromkeys(asked.get("ids", []) + asked.get("ids[]", [])))
    if len(named) > IDS_MAX or (named and {"page", "limit"} & asked.keys()):
        raise field_error("ids", f"at most {IDS_MAX} are taken, without `page` and `limit`")
    if cursor := asked.get("page"):
        query += "&" + urlencode({"after_id": cursor[-1].removeprefix(CURSOR)})

    def read(store: FileStore) -> tuple[list[StoredFile], bool]:
        identifiers, has_more = (
            (named, False) if named else page_of(store.identifiers(owner), query)
        )
        found = (store.get(identifier, owner) for identifier in identifiers)
        return [kept for kept in found if kept is not None], has_more

    shown, has_more = await server.part(Files).stored(read)
    page = page_body([one.id for one in shown], [_shown(one) for one in shown], has_more)
    next_page = CURSOR + shown[-1].id if shown and has_more else None
    exchange.send_json(200, ENCODE({**page, "next_page": next_page}))


async def retrieve(server: EdgeServer, exchange: Exchange) -> None:
    """What is known of one. Raises ApiError."""
    identifier, owner = exchange.request.segments()[-1], exchange.tenant_key
    kept = await server.part(Files).stored(lambda store: _found(store, identifier, owner))
    exchange.send_json(200, ENCODE(_shown(kept)))


async def delete(server: EdgeServer, exchange: Exchange) -> None:
    """Raises ApiError."""
    identifier, owner = exchange.request.segments()[-1], exchange.tenant_key
    if not await server.part(Files).stored(lambda store: store.delete(identifier, owner)):
        raise ApiError("unknown_file")
    exchange.send_json(200, ENCODE({"id": identifier, "type": "file_deleted"}))


async def content(server: EdgeServer, exchange: Exchange) -> None:
    """Its bytes, as an attachment: no browser runs what somebody uploaded. Raises ApiError."""
    identifier, owner = exchange.request.segments()[-2], exchange.tenant_key

    def opened(store: FileStore) -> tuple[StoredFile, int]:
        kept = _found(store, identifier, owner)
        return kept, store.open(kept)

    files = server.part(Files)
    kept, descriptor = await files.stored(opened)

    async def pieces() -> AsyncIterator[bytes]:
        for offset in range(0, kept.size_bytes, READ_BYTES):
            yield await files.stored(lambda store, at=offset: os.pread(descriptor, READ_BYTES, at))

    ascii_name = "".join(c if c.isascii() and c not in '"%' else "_" for c in kept.name)
    disposition = f"attachment; filename=\"{ascii_name}\"; filename*=UTF-8''{quote(kept.name, '')}"
    headers = [("content-disposition", disposition), ("x-content-type-options", "nosniff")]
    try:
        await send_body(exchange, kept.media_type, headers, pieces())
    finally:
        os.close(descriptor)


class FileTexts:
    """The text files that one request names, of its owner. Together they may hold as much as a
    body could: naming one many times costs what sending it would."""

    def __init__(self, server: EdgeServer, owner: bytes) -> None:
        self._server = server
        self._owner = owner
        self._left_bytes = self._most = server.limits.body_bytes_max

    def text(self, identifier: str, path: str) -> str:
        """Raises ApiError, and NeedsThreadError on the event loop's thread: this waits for a
        disk."""
        if _is_event_loop():
            raise NeedsThreadError
        first_or_here(self._server)
        files = self._server.part(Files)
        return files.submit(lambda store: self._read(store, identifier, path)).result()

    def _read(self, store: FileStore, identifier: str, path: str) -> str:
        kept = store.get(identifier, self._owner)
        if kept is None:
            raise field_error(path, "there is no file with this id; upload it to /v1/files first")
        if not kept.is_text:
            raise field_error(path, ONE_REFUSED)
        self._left_bytes -= kept.size_bytes
        if self._left_bytes < 0:
            reason = f"the files of one request may hold {self._most} bytes together"
            raise field_error(path, reason)
        with open(store.open(kept), "rb") as file:
            return file.read().decode()


def _is_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _found(store: FileStore, identifier: str, owner: bytes) -> StoredFile:
    kept = store.get(identifier, owner)
    if kept is None:
        raise ApiError("unknown_file")
    return kept


def _shown(kept: StoredFile) -> dict[str, Any]:
    created = datetime.fromtimestamp(kept.created, UTC)
    return {
        "id": kept.id,
        "type": "file",
        "filename": kept.name,
        "mime_type": kept.media_type,
        "size_bytes": kept.size_bytes,
        "created_at": created.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "expires_at": None,
        "downloadable": True,
    }

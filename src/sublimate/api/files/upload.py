"""The body of an upload, written to the disk as it arrives: multipart/form-data with one part
`file`, parsed on the thread of the store. What waits for the disk is bounded: beyond it the
connection is not read.

defines: Files, Upload, begin
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from ...config import data_folder
from ...edge import limits
from ...edge.errors import ApiError, field_error
from ...edge.exchange import Exchange
from ..folder import data_unavailable
from .store import DATABASE, FileStore, Incoming, StoredFile

if TYPE_CHECKING:
    from ...edge.app import EdgeServer

LOG = logging.getLogger("sublimate.files")
Result = TypeVar("Result")

FOLDER = "files"
IDENTIFIER_BYTES = 12
WAITING_BYTES_MAX = limits.MIB
"""Of one upload, on the way to the disk."""
PART_HEADERS_MAX = 8
PART_HEADER_BYTES_MAX = 4 * limits.KIB
NAME_CHARACTERS_MAX = 255
BAD_NAME = re.compile(r"[\x00-\x1f\x7f/\\]")
MEDIA_TYPE = re.compile(r"[a-z0-9][a-z0-9!#$&^_.+-]{0,63}/[a-z0-9][a-z0-9!#$&^_.+-]{0,63}")
UNKNOWN_TYPE = "application/octet-stream"


TAKE_OVER_SECONDS = 3.0
"""In which an edge that leaves gives the folder to the one that comes."""


class Files:
    """Part of one server. On the event loop's thread, but for what the store's thread runs."""

    def __init__(self, server: EdgeServer) -> None:
        self._server = server
        self._folder = data_folder(server.settings) / FOLDER
        self._thread = ThreadPoolExecutor(1, "files")
        self._store: FileStore | None = None
        """Of the store's thread."""
        self._wait_until = time.monotonic() + TAKE_OVER_SECONDS
        self.is_closed = False

    def submit(self, action: Callable[[FileStore], Result]) -> Future[Result]:
        """Run on the store's thread. The result raises ApiError where there is no store or its
        disk fails; so does this after the end."""
        if self.is_closed:
            raise self._server.draining_error()
        return self._thread.submit(self._run, action)

    async def stored(self, action: Callable[[FileStore], Result]) -> Result:
        return await asyncio.wrap_future(self.submit(action))

    def resume(self) -> None:
        """Open what an earlier process has left, and clear away what it had half done."""
        if (self._folder / DATABASE).is_file():
            self.submit(lambda store: None).add_done_callback(_told)

    def _run(self, action: Callable[[FileStore], Result]) -> Result:
        try:
            if self._store is None:
                most = self._server.settings
                self._store = FileStore(
                    self._folder,
                    file_bytes_max=most.file_bytes_max,
                    owner_bytes_max=most.files_bytes_max,
                    wait_seconds=max(0.0, self._wait_until - time.monotonic()),
                )
            return action(self._store)
        except (OSError, sqlite3.Error) as error:
            raise data_unavailable(error) from None

    def drain(self) -> None:
        """Requests that are under way may finish."""

    def close(self) -> None:
        self.is_closed = True
        self._thread.submit(self._close)
        self._thread.shutdown(wait=True)

    def _close(self) -> None:
        if self._store is not None:
            self._store.close()


def _told(opened: Future[None]) -> None:
    if (error := opened.exception()) is not None:
        LOG.warning("files wait: %s", error)


class Upload:
    """The sink of one request's body. Methods with a leading underscore are the thread's."""

    def __init__(self, server: EdgeServer, exchange: Exchange) -> None:
        """Raises ApiError for a body that is no form."""
        # Few servers keep files: only who is sent one loads it.
        from python_multipart.exceptions import FormParserError
        from python_multipart.multipart import MultipartParser, parse_options_header

        kind, options = parse_options_header(exchange.request.field(b"content-type"))
        boundary = options.get(b"boundary", b"")
        if kind != b"multipart/form-data" or not boundary:
            raise field_error("content-type", "expected multipart/form-data with a boundary")
        if server.draining:
            raise server.draining_error()
        self._loop = server.loop
        self._files = server.part(Files)
        self._owner = exchange.tenant_key
        self._resume = exchange.resume_body
        self._waiting_bytes = 0
        self._is_paused = self._is_closed = False
        self._error: ApiError | None = None
        self._incoming: Incoming | None = None
        self._name = self._media_type = ""
        self._is_file = self._is_whole = False
        self._field = b""
        self._headers: dict[bytes, bytes] = {}
        try:
            self._parser = MultipartParser(
                boundary,
                {
                    "on_part_begin": self._part_begun,
                    "on_header_field": self._header_name,
                    "on_header_value": self._header_value,
                    "on_header_end": self._header_ended,
                    "on_headers_finished": self._headers_ended,
                    "on_part_data": self._part_data,
                    "on_part_end": self._part_ended,
                    "on_end": self._ended,
                },
                max_header_count=PART_HEADERS_MAX,
                max_header_size=PART_HEADER_BYTES_MAX,
            )
        except FormParserError:
            raise field_error("content-type", "the boundary is too long") from None
        self._header = (b"", b"")
        self._store: FileStore | None = None

    # ---- the connection's ----------------------------------------------------------------------
    def feed(self, data: bytes) -> bool:
        """More of the body; False: no more, until `resume_body` is called."""
        if self._is_closed:
            return True
        self._waiting_bytes += len(data)
        taken = self._files.submit(lambda store: self._take(store, data))
        taken.add_done_callback(self._lost)
        taken.add_done_callback(
            lambda done: self._loop.call_soon_threadsafe(self._taken, len(data))
        )
        self._is_paused = self._waiting_bytes > WAITING_BYTES_MAX
        return not self._is_paused

    def _taken(self, size: int) -> None:
        self._waiting_bytes -= size
        if self._is_paused and self._waiting_bytes <= WAITING_BYTES_MAX // 2:
            self._is_paused = False
            self._resume()

    def close(self) -> None:
        """The exchange has ended: what was not kept goes. Idempotent."""
        if not self._is_closed:
            self._is_closed = True
            if not self._files.is_closed:
                self._files.submit(self._drop)

    async def kept(self) -> StoredFile:
        """The file, once all of the body is on the disk. Raises ApiError."""
        return await self._files.stored(self._keep)

    def _lost(self, taken: Future[None]) -> None:
        # A piece for which there was no store is missing, though there may be one for the next.
        error = taken.exception()
        if error is not None and self._error is None:
            self._error = error if isinstance(error, ApiError) else ApiError("data_unavailable")

    # ---- the store's thread --------------------------------------------------------------------
    def _take(self, store: FileStore, data: bytes) -> None:
        if self._error is not None:
            return
        from python_multipart.exceptions import FormParserError

        self._store = store
        try:
            self._parser.write(data)
        except FormParserError:
            self._fail(store, field_error("body", "not a form as multipart/form-data has it"))
        except ApiError as error:
            self._fail(store, error)
        except OSError as error:
            self._fail(store, data_unavailable(error))

    def _fail(self, store: FileStore, error: ApiError) -> None:
        """What still comes of the body is dropped; the answer says why."""
        self._error = error
        self._drop(store)

    def _drop(self, store: FileStore) -> None:
        if self._incoming is not None:
            store.drop(self._incoming)

    def _keep(self, store: FileStore) -> StoredFile:
        if self._error is not None:
            raise self._error
        if not self._is_whole:
            raise field_error("body", "the form ends before its last boundary")
        if self._incoming is None:
            raise field_error("file", "field required: a part of the form with a filename")
        return store.keep(self._incoming, self._name, self._media_type, time.time())

    def _part_begun(self) -> None:
        self._headers = {}
        self._header = (b"", b"")

    def _header_name(self, data: bytes, start: int, end: int) -> None:
        self._header = (self._header[0] + data[start:end], b"")

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._header = (self._header[0], self._header[1] + data[start:end])

    def _header_ended(self) -> None:
        name, value = self._header
        self._headers[name.lower()] = value
        self._header = (b"", b"")

    def _headers_ended(self) -> None:
        disposition = self._headers.get(b"content-disposition", b"").decode("latin-1")
        from python_multipart.multipart import parse_options_header

        _, options = parse_options_header(disposition)
        self._is_file = options.get(b"name") == b"file"
        if options.get(b"name") == b"expires_in_seconds":
            raise field_error("expires_in_seconds", "files are kept until they are deleted")
        if options.get(b"name") == b"purpose":
            raise ApiError("batches_elsewhere")  # OpenAI's clients send `purpose` first
        if not self._is_file:
            return  # a field of other APIs' forms: without effect
        if self._incoming is not None:
            raise field_error("file", "a form has one file")
        if b"filename" not in options:
            raise field_error("file", "field required: a part of the form with a filename")
        self._name = _file_name(options[b"filename"])
        said = self._headers.get(b"content-type", b"").decode("latin-1").lower()
        said = said.partition(";")[0].strip()
        self._media_type = said if MEDIA_TYPE.fullmatch(said) else UNKNOWN_TYPE
        if self._store is not None:
            identifier = f"file_{secrets.token_hex(IDENTIFIER_BYTES)}"
            self._incoming = self._store.begin(identifier, self._owner)

    def _part_data(self, data: bytes, start: int, end: int) -> None:
        if self._is_file and self._store is not None and self._incoming is not None:
            self._store.write(self._incoming, data[start:end])

    def _part_ended(self) -> None:
        self._is_file = False

    def _ended(self) -> None:
        self._is_whole = True


def _file_name(raw: bytes) -> str:
    """As the client says, if it can be shown. Raises ApiError."""
    name = raw.decode("utf-8", "replace").replace("%22", '"')
    if not 1 <= len(name) <= NAME_CHARACTERS_MAX or BAD_NAME.search(name) or name in (".", ".."):
        reason = f"expected a name of 1 to {NAME_CHARACTERS_MAX} characters without a path"
        raise field_error("file.filename", reason)
    return name


def begin(server: EdgeServer) -> None:
    """Go on with the files that an earlier process kept."""
    if not server.place.worker:
        server.part(Files).resume()

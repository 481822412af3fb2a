"""Files as they are kept: what is known of them in SQLite, their bytes one file each, mode 0600.

A file is there if its row is. Bytes are written and synced before the row, and removed after it,
so a kill leaves at most bytes without a row; those go when the folder is opened next.

defines: StoredFile, Incoming, FileStore
"""

from __future__ import annotations

import os
import sqlite3
from codecs import getincrementaldecoder
from collections import Counter
from pathlib import Path

import msgspec

from ...config.folders import PRIVATE_FOLDER
from ...edge.errors import ApiError
from ..folder import keep_private, lock_folder

FILES_PER_OWNER_MAX = 10_000
CONTENT = "content"
DATABASE = "files.sqlite"
PDF_MARK = b"%PDF-"
READ_ONLY = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
CREATE_ONLY = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC

SCHEMA = """
CREATE TABLE IF NOT EXISTS files (
    id TEXT PRIMARY KEY, owner BLOB NOT NULL, created REAL NOT NULL, name TEXT NOT NULL,
    media_type TEXT NOT NULL, size INTEGER NOT NULL, is_text INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS files_of ON files (owner, created);
"""


class StoredFile(msgspec.Struct, frozen=True):
    """What is known of a file."""

    id: str
    created: float
    """Seconds of the wall clock."""
    name: str
    """As the client said; never a path here."""
    media_type: str
    size_bytes: int
    is_text: bool
    """UTF-8 without NUL, and no PDF."""


class Incoming:
    """A file that is being written."""

    def __init__(self, identifier: str, owner: bytes, descriptor: int) -> None:
        self.id = identifier
        self.owner = owner
        self.descriptor = descriptor
        self.size_bytes = 0
        self._decoder = getincrementaldecoder("utf-8")()
        self._is_text = True
        self._head = b""

    def judge(self, data: bytes, *, final: bool = False) -> bool:
        """Whether all of it so far is text."""
        if self._is_text:
            try:
                self._decoder.decode(data, final)
            except UnicodeDecodeError:
                self._is_text = False
            self._head = (self._head + data[: len(PDF_MARK)])[: len(PDF_MARK)]
            if self._head == PDF_MARK or b"\0" in data:
                self._is_text = False
        return self._is_text


class FileStore:
    """All methods on one thread. Raises sqlite3.Error and OSError if the disk does."""

    def __init__(
        self,
        folder: Path,
        *,
        file_bytes_max: int,
        owner_bytes_max: int,
        wait_seconds: float = 0.0,
    ) -> None:
        """Raises ApiError if another process has the folder and keeps it for `wait_seconds`."""
        self._file_bytes_max = file_bytes_max
        self._owner_bytes_max = owner_bytes_max
        self._incoming: dict[str, Incoming] = {}
        self._incoming_bytes: Counter[bytes] = Counter()
        """By owner: written, without a row yet."""
        self._lock = lock_folder(folder, wait_seconds)
        try:
            self._content = folder / CONTENT
            self._content.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
            keep_private(folder / DATABASE)
            self._db = sqlite3.connect(
                folder / DATABASE, isolation_level=None, check_same_thread=False
            )
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = FULL")
            self._db.executescript(SCHEMA)
            self._sweep()
        except BaseException:
            os.close(self._lock)  # else the next try, and every other server, finds it taken
            raise

    def close(self) -> None:
        """Uploads that are under way are dropped."""
        for incoming in list(self._incoming.values()):
            self.drop(incoming)
        self._db.close()
        os.close(self._lock)

    # ---- writing -------------------------------------------------------------------------------
    def begin(self, identifier: str, owner: bytes) -> Incoming:
        """Raises ApiError if the owner has as many as one may have."""
        count, _ = self._kept(owner)
        under_way = sum(other.owner == owner for other in self._incoming.values())
        if count + under_way >= FILES_PER_OWNER_MAX:
            raise ApiError("too_many_files", maximum=FILES_PER_OWNER_MAX)
        descriptor = os.open(self._content / identifier, CREATE_ONLY, 0o600)
        incoming = self._incoming[identifier] = Incoming(identifier, owner, descriptor)
        return incoming

    def write(self, incoming: Incoming, data: bytes) -> None:
        """Append. Raises ApiError if the file, or all of its owner, become too large."""
        owner, size = incoming.owner, incoming.size_bytes + len(data)
        if size > self._file_bytes_max:
            raise ApiError("file_too_large", maximum=self._file_bytes_max)
        _, kept_bytes = self._kept(owner)
        if kept_bytes + self._incoming_bytes[owner] + len(data) > self._owner_bytes_max:
            raise ApiError("files_too_large", maximum=self._owner_bytes_max)
        incoming.judge(data)
        left = memoryview(data)
        while left:
            left = left[os.write(incoming.descriptor, left) :]
        incoming.size_bytes = size
        self._incoming_bytes[owner] += len(data)

    def keep(self, incoming: Incoming, name: str, media_type: str, now: float) -> StoredFile:
        """It is whole: from here on it is there, whatever happens."""
        is_text = incoming.judge(b"", final=True)
        os.fsync(incoming.descriptor)
        folder = os.open(self._content, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        size = incoming.size_bytes
        kept = StoredFile(incoming.id, now, name, media_type, size, is_text)
        self._db.execute(
            "INSERT INTO files VALUES (?, ?, ?, ?, ?, ?, ?)",
            (kept.id, incoming.owner, now, name, media_type, size, is_text),
        )
        self._forget(incoming)
        return kept

    def drop(self, incoming: Incoming) -> None:
        """Nothing of it stays. Of a file that was kept: nothing happens."""
        if self._incoming.get(incoming.id) is incoming:
            self._forget(incoming)
            (self._content / incoming.id).unlink(missing_ok=True)

    def _forget(self, incoming: Incoming) -> None:
        del self._incoming[incoming.id]
        self._incoming_bytes[incoming.owner] -= incoming.size_bytes
        if not self._incoming_bytes[incoming.owner]:
            del self._incoming_bytes[incoming.owner]
        os.close(incoming.descriptor)

    def delete(self, identifier: str, owner: bytes) -> bool:
        """Whether there was one. What is being read is read to its end."""
        removed = self._db.execute(
            "DELETE FROM files WHERE id = ? AND owner = ?", (identifier, owner)
        )
        if not removed.rowcount:
            return False
        (self._content / identifier).unlink(missing_ok=True)
        return True

    # ---- reading -------------------------------------------------------------------------------
    def get(self, identifier: str, owner: bytes) -> StoredFile | None:
        row = self._db.execute(
            "SELECT id, created, name, media_type, size, is_text FROM files "
            "WHERE id = ? AND owner = ?",
            (identifier, owner),
        ).fetchone()
        if row is None:
            return None
        name, created, shown, media_type, size, is_text = row
        return StoredFile(name, created, shown, media_type, size, bool(is_text))

    def identifiers(self, owner: bytes) -> list[str]:
        """The newest first."""
        rows = self._db.execute(
            "SELECT id FROM files WHERE owner = ? ORDER BY created DESC, id DESC", (owner,)
        )
        return [identifier for (identifier,) in rows]

    def open(self, kept: StoredFile) -> int:
        """A descriptor to read it by."""
        return os.open(self._content / kept.id, READ_ONLY)

    def _kept(self, owner: bytes) -> tuple[int, int]:
        """(files, their bytes)."""
        row = self._db.execute(
            "SELECT COUNT(*), COALESCE(SUM(size), 0) FROM files WHERE owner = ?", (owner,)
        )
        return row.fetchone()

    def _sweep(self) -> None:
        """Remove bytes without a row, and rows without bytes."""
        known = {identifier for (identifier,) in self._db.execute("SELECT id FROM files")}
        found = {entry.name for entry in os.scandir(self._content)}
        for name in found - known:
            (self._content / name).unlink()
        for identifier in known - found:
            self._db.execute("DELETE FROM files WHERE id = ?", (identifier,))

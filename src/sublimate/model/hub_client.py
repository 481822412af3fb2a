"""Files of a Hugging Face hub over HTTP: listed, fetched with resume, and checked.

Source: the hub's HTTP interface (huggingface.co/docs/hub/api): api/models/{name}/revision/main with
blobs=true lists a revision's files, resolve/{commit}/{path} is the content of one. Large ones (LFS)
have a SHA-256, others the SHA-1 that git gives a blob.

defines: Listed, Repository, HubClient
"""

from __future__ import annotations

import errno
import hashlib
import http.client
import os
import re
import socket
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import msgspec

from ..errors import ModelError

DEFAULT_ENDPOINT = "https://huggingface.co"
TIMEOUT_SECONDS = 30.0
TRIES_MAX = 5
"""In a row without a byte."""
FIRST_PAUSE_SECONDS = 0.5
CHUNK_BYTES = 1 << 20
LISTING_BYTES_MAX = 32 << 20
FILES_MAX = 10_000
PART = ".part"
FILE_PATH = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._ +-]*(/[A-Za-z0-9_][A-Za-z0-9._ +-]*)*", re.ASCII)
COMMIT = re.compile(r"[0-9a-f]{40}", re.ASCII)
SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)
AGAIN = (408, 429, 500, 502, 503, 504)
"""Answers that may be others a moment later."""
PARTIAL, NO_SUCH_RANGE = 206, 416
OF_THE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EISDIR, errno.EFBIG)
"""Errors of what we write."""
UNAUTHORISED, FORBIDDEN, NOT_FOUND = 401, 403, 404


class _Lfs(msgspec.Struct, frozen=True):
    sha256: str
    size_bytes: int = msgspec.field(name="size")


class _Sibling(msgspec.Struct, frozen=True):
    rfilename: str
    size_bytes: int | None = msgspec.field(name="size", default=None)
    blob: str | None = msgspec.field(name="blobId", default=None)
    lfs: _Lfs | None = None


class _Revision(msgspec.Struct, frozen=True):
    sha: str
    siblings: list[_Sibling]


class Listed(msgspec.Struct, frozen=True):
    """One file of a repository."""

    path: str
    """Within it; checked, so that it is a path within any folder."""
    size_bytes: int
    digest: str
    """SHA-256 in hex of a large file, else git's SHA-1 of it as a blob."""

    def hasher(self) -> Any:
        """Of its content; what it gives in the end is `digest`."""
        if SHA256.fullmatch(self.digest):
            return hashlib.sha256()
        return hashlib.sha1(b"blob %d\0" % self.size_bytes, usedforsecurity=False)


class Repository(msgspec.Struct, frozen=True):
    """What a repository holds at one commit."""

    name: str
    commit: str
    files: Mapping[str, Listed]


class _AgainError(Exception):
    """The connection broke, or the hub asks to come again."""


class _SameHostAuthorisation(urllib.request.HTTPRedirectHandler):
    """The token is for the hub; where content lies elsewhere, that place does not get it."""

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        """As the base class has it."""
        request = super().redirect_request(req, fp, code, msg, headers, newurl)
        same = urlsplit(newurl)[:2] == urlsplit(req.full_url)[:2]  # scheme and host
        if request is not None and not same:
            request.remove_header("Authorization")
        return request


class HubClient:
    """One hub, named by HF_ENDPOINT; HF_TOKEN opens what is not public."""

    def __init__(
        self,
        environment: Mapping[str, str] = os.environ,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """Raises ModelError for an endpoint that is none."""
        self.endpoint = (environment.get("HF_ENDPOINT") or DEFAULT_ENDPOINT).rstrip("/")
        if urlsplit(self.endpoint).scheme not in ("http", "https"):
            raise ModelError(f"HF_ENDPOINT={self.endpoint!r} is no http or https address.")
        self._token = environment.get("HF_TOKEN", "").strip()
        self._offline = environment.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on")
        self._pause = pause
        self._opener = urllib.request.build_opener(_SameHostAuthorisation)

    # ---- listing -------------------------------------------------------------------------------
    def listing(self, name: str) -> Repository:
        """Of the branch main. Raises ModelError."""
        address = f"{self.endpoint}/api/models/{name}/revision/main?blobs=true"
        body = self._with_patience(name, lambda: self._read(name, address))
        try:
            told = msgspec.json.decode(body, type=_Revision)
        except (msgspec.MsgspecError, RecursionError):
            raise ModelError(
                f"{self.endpoint} does not answer as a hub does. HF_ENDPOINT names another."
            ) from None
        if not COMMIT.fullmatch(told.sha) or len(told.siblings) > FILES_MAX:
            raise ModelError(f"{self.endpoint} tells no usual revision of {name}.")
        files: dict[str, Listed] = {}
        for sibling in told.siblings:
            size = sibling.lfs.size_bytes if sibling.lfs else sibling.size_bytes
            digest = sibling.lfs.sha256 if sibling.lfs else sibling.blob
            known = digest and (SHA256.fullmatch(digest) or COMMIT.fullmatch(digest))
            # What has another name than a file here may have is nothing that a model needs.
            if FILE_PATH.fullmatch(sibling.rfilename) and known and digest and size is not None:
                path = sibling.rfilename
                files[path] = Listed(path, max(size, 0), digest)
        return Repository(name, told.sha, files)

    def _read(self, name: str, address: str) -> bytes:
        with self._open(name, address, {}) as response:
            body: bytes = response.read(LISTING_BYTES_MAX + 1)
        if len(body) > LISTING_BYTES_MAX:
            raise ModelError(f"{self.endpoint} tells too much of {name}.")
        return body

    # ---- content -------------------------------------------------------------------------------
    def fetch(
        self, repository: Repository, file: Listed, target: Path, told: Callable[[int], None]
    ) -> None:
        """The file at `target`, whole and checked. What was there of it from an earlier try is not
        fetched again. `told`: bytes that are there. Raises ModelError; OSError of the disk."""
        target.parent.mkdir(parents=True, exist_ok=True)
        # Of another content there may be a part as well.
        part = target.with_name(f"{target.name}.{file.digest[:16]}{PART}")
        resumed = part.exists() and part.stat().st_size > 0
        for last in (not resumed, True):
            self._complete(repository, file, part, told)
            found = _digest(part, file)
            if found == file.digest:
                part.replace(target)
                return
            part.unlink()
            if last:
                raise ModelError(
                    f"{file.path} of {repository.name} came with other bytes than it should have: "
                    f"its digest is {found}, not {file.digest}. It was not kept."
                )

    def _complete(
        self, repository: Repository, file: Listed, part: Path, told: Callable[[int], None]
    ) -> None:
        where = f"{repository.name}/resolve/{repository.commit}/{quote(file.path)}"
        address = f"{self.endpoint}/{where}"
        part.touch()
        if part.stat().st_size > file.size_bytes:
            part.unlink()
            part.touch()

        def append() -> None:
            have = part.stat().st_size
            told(have)
            if have == file.size_bytes:
                return
            self._append(repository.name, address, file, part, told)

        self._with_patience(repository.name, append, lambda: part.stat().st_size)

    def _append(
        self, name: str, address: str, file: Listed, part: Path, told: Callable[[int], None]
    ) -> None:
        have = part.stat().st_size
        headers = {"Range": f"bytes={have}-"} if have else {}
        with self._open(name, address, headers) as response:
            mode = "ab" if response.status == PARTIAL and have else "wb"
            done = have if mode == "ab" else 0
            with part.open(mode) as out:
                while done < file.size_bytes:
                    chunk: bytes = response.read(min(CHUNK_BYTES, file.size_bytes - done))
                    if not chunk:
                        raise _AgainError("the connection ended early")
                    out.write(chunk)
                    done += len(chunk)
                    told(done)

    # ---- requests ------------------------------------------------------------------------------
    def _open(self, name: str, address: str, headers: dict[str, str]) -> Any:
        if self._offline:
            raise ModelError(
                f"{name} is not here, and HF_HUB_OFFLINE says that the hub must not be asked."
            )
        request = urllib.request.Request(address, headers=headers)  # noqa: S310 - see __init__
        request.add_header("User-Agent", "sublimate")
        if self._token:
            request.add_header("Authorization", f"Bearer {self._token}")
        try:
            return self._opener.open(request, timeout=TIMEOUT_SECONDS)
        except urllib.error.HTTPError as error:
            with error:
                raise self._refusal(name, error.code) from None

    def _refusal(self, name: str, status: int) -> Exception:
        if status in AGAIN or status == NO_SUCH_RANGE:
            return _AgainError(f"it answers {status}")
        if status in (UNAUTHORISED, FORBIDDEN):
            # The hub says so of what does not exist as well.
            hint = (
                "HF_TOKEN does not open it" if self._token else "set HF_TOKEN if it is not public"
            )
            return ModelError(
                f"{self.endpoint} does not show {name} ({status}). Is the name right? If so, "
                f"{hint}, or accept its terms on its page first."
            )
        if status == NOT_FOUND:
            return ModelError(f"{self.endpoint} has no repository {name}. Is the name right?")
        return ModelError(f"{self.endpoint} answers {status} for {name}.")

    def _with_patience(
        self, name: str, action: Callable[[], Any], done: Callable[[], int] = lambda: 0
    ) -> Any:
        """The action's result, tried again while connections break; a try that got something
        further counts for nothing. Raises ModelError."""
        tries, have = 0, done()
        while True:
            try:
                return action()
            except (_AgainError, http.client.HTTPException, OSError) as error:
                if isinstance(error, OSError) and error.errno in OF_THE_DISK:
                    raise
                tries = 0 if done() > have else tries + 1
                have = done()
                if tries >= TRIES_MAX or _is_hopeless(error):
                    raise ModelError(
                        f"{self.endpoint} cannot be reached for {name}: {_reason(error)}. What "
                        f"came so far is kept. A file or folder that you have can be given by its "
                        f"path, as ./{name}; HF_ENDPOINT names another hub."
                    ) from None
                self._pause(FIRST_PAUSE_SECONDS * 2**tries)


def _digest(part: Path, file: Listed) -> str:
    hasher = file.hasher()
    with part.open("rb") as content:
        while chunk := content.read(CHUNK_BYTES):
            hasher.update(chunk)
    return hasher.hexdigest()


def _is_hopeless(error: Exception) -> bool:
    """The address has no host, or nothing listens there: asking again changes nothing."""
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    return isinstance(
        cause, socket.gaierror | ConnectionRefusedError | ssl.SSLCertVerificationError
    )


def _reason(error: Exception) -> str:
    cause: object = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror
    return str(cause) or type(cause).__name__

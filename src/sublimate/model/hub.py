"""Models of a Hugging Face hub: which files of a repository make one, and where they are kept.

A repository with GGUF files is one of them (or one in several parts); one with safetensors is its
folder. Both are kept under hub/ in the folder of models, as owner--name, with a note of what was
fetched and checked. What the hub's own library has in its cache is found as well.

defines: Fetched, place_of, located, download, choose, fetched
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ..errors import ModelError
from .folder.form import CONFIG, FOR_TOOLS, INDEX, SINGLE
from .registry import SUFFIX, HubRepository

if TYPE_CHECKING:
    from .hub_client import HubClient, Repository

# Taken in this order when a repository has several files and none was named.
PREFERRED = ("q4_k_m", "q4_1", "q4_0", "q5_k_m", "q6_k", "q8_0", "bf16", "f16", "f32")
TEXTS = (
    CONFIG,
    "generation_config.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    FOR_TOOLS,
)
"""Files of a folder beside its weights."""
SPLIT = re.compile(r"(.*)-\d{5}-of-(\d{5})\.gguf", re.IGNORECASE | re.DOTALL)
"""Part of a GGUF file."""
COMMIT = re.compile(r"[0-9a-f]{40}", re.ASCII)
NOTE = ".sublimate.json"
FOLDER = "hub"
Progress = Callable[[str, int, int], None]
"""(what is going on, bytes done, bytes in all or 0 if unknown)"""


class _Kept(msgspec.Struct, frozen=True):
    """A file that was checked. It is that file while these hold."""

    size_bytes: int
    mtime_ns: int
    digest: str


class _Model(msgspec.Struct, frozen=True):
    path: str
    """Of the file, or empty for the folder."""
    files: list[str]


class Fetched(msgspec.Struct, frozen=True):
    """A model that is here, by the name that it was asked for with."""

    name: str
    path: Path
    files: tuple[Path, ...]
    """All that is its own; a folder stands for what is in it."""


class _Note(msgspec.Struct):
    """What is in the folder of a repository."""

    commit: str = ""
    kept: dict[str, _Kept] = msgspec.field(default_factory=dict[str, _Kept])
    models: dict[str, _Model] = msgspec.field(default_factory=dict[str, _Model])
    """By what was asked for behind the colon, in lower case."""


def place_of(repository: str, folder: Path) -> Path:
    """Where a repository is kept; its name was checked (registry.HUB_NAME)."""
    return folder / FOLDER / repository.replace("/", "--")


def located(wanted: HubRepository, folder: Path) -> Path | None:
    """The model if it is here and whole, without asking the network."""
    place = place_of(wanted.repository, folder)
    note = _read_note(place)
    model = note.models.get(wanted.part.lower())
    if model is not None and all(_is_kept(place, note, name) for name in model.files):
        return place / model.path if model.path else place
    return _in_library_cache(wanted)


def download(wanted: HubRepository, folder: Path, progress: Progress) -> Path:
    """Fetch what makes the model, or what is missing of it. Raises ModelError."""
    from .hub_client import HubClient  # with HTTP and TLS, which few starts need

    client = HubClient()
    progress("asking the hub", 0, 0)
    repository = client.listing(wanted.repository)
    place = place_of(wanted.repository, folder)
    note = _read_note(place)
    model = choose(list(repository.files), wanted)
    if model:
        names = _parts_of(model, repository.files)
    else:
        names = [name for name in TEXTS if name in repository.files]
        _fetch(client, repository, [*names, *_present(repository, INDEX)], place, note, progress)
        names += _weights(repository.name, repository.files, place)
    _fetch(client, repository, names, place, note, progress)
    note.commit = repository.commit
    note.models[wanted.part.lower()] = _Model(model, names)
    _write_note(place, note)
    return place / model if model else place


def choose_or_none(names: Sequence[str], part: str) -> str | None:
    """The only GGUF file whose name contains `part`, regardless of case; of a file in several parts
    the first one."""
    matching = [name for name in _ggufs(names) if part.lower() in name.lower()]
    return matching[0] if len(matching) == 1 else None


def choose(names: Sequence[str], wanted: HubRepository) -> str:
    """The GGUF file to take; empty for a folder of safetensors. Raises ModelError if that is not
    clear, naming what there is."""
    files = _ggufs(names)
    is_folder = CONFIG in names and (SINGLE in names or INDEX in names)
    if not wanted.part and is_folder and not files:
        return ""
    if not files:
        held = "no safetensors with a config.json" if not is_folder else "safetensors only"
        pickled = any(name.endswith((".bin", ".pth", ".pt")) for name in names)
        hint = " Pickled weights are never read." if pickled and not is_folder else ""
        raise ModelError(f"{wanted.repository} holds no {SUFFIX} file and {held}.{hint}")
    if wanted.part:
        chosen = wanted.part if wanted.part in files else choose_or_none(files, wanted.part)
        if chosen is None:
            raise ModelError(
                f"{wanted.part!r} does not name one file of {wanted.repository}: {', '.join(files)}"
            )
        return chosen
    for kind in PREFERRED:
        if chosen := choose_or_none(files, kind):
            return chosen
    if len(files) == 1:
        return files[0]
    raise ModelError(
        f"{wanted.repository} holds several files; name one as {wanted.repository}:PART of "
        f"{', '.join(files)}"
    )


def fetched(folder: Path) -> list[Fetched]:
    """The models that are here and whole, by name."""
    found: list[Fetched] = []
    with contextlib.suppress(OSError):
        for place in sorted((folder / FOLDER).iterdir()):
            note = _read_note(place)
            owner, dashes, repository = place.name.partition("--")
            for part, model in note.models.items():
                if dashes and all(_is_kept(place, note, name) for name in model.files):
                    name = f"{owner}/{repository}" + (f":{part}" if part else "")
                    own = tuple(place / each for each in model.files) if model.path else (place,)
                    path = place / model.path if model.path else place
                    found.append(Fetched(name, path, own))
    return found


# ---- what belongs together -----------------------------------------------------------------------
def _ggufs(names: Iterable[str]) -> list[str]:
    """Of a file in several parts the first."""
    files = sorted(name for name in names if name.lower().endswith(SUFFIX))
    return [name for name in files if not SPLIT.fullmatch(name) or "-00001-of-" in name]


def _parts_of(name: str, files: Collection[str]) -> list[str]:
    """A GGUF file, or all that it was cut into. Raises ModelError."""
    match = SPLIT.fullmatch(name)
    if match is None:
        return [name]
    stem, count = match.groups()
    parts = [f"{stem}-{index + 1:05d}-of-{count}{SUFFIX}" for index in range(int(count))]
    if missing := [part for part in parts if part not in files]:
        raise ModelError(f"The repository has {name}, but not {missing[0]}.")
    return parts


def _present(repository: Repository, name: str) -> list[str]:
    return [name] if name in repository.files else []


def _weights(whose: str, files: Collection[str], place: Path) -> list[str]:
    """The safetensors files of a folder, with the index that names them. Raises ModelError."""
    if INDEX not in files:
        return [SINGLE]
    from .folder.safetensors import shard_names

    names = shard_names(place / INDEX)
    if missing := [name for name in names if name not in files]:
        raise ModelError(f"{whose} has {INDEX}, but not {missing[0]}.")
    return [INDEX, *names]


def _fetch(
    client: HubClient,
    repository: Repository,
    names: Sequence[str],
    place: Path,
    note: _Note,
    progress: Progress,
) -> None:
    files = [repository.files[name] for name in names]
    total, before = sum(file.size_bytes for file in files), 0
    for file in files:
        kept = note.kept.get(file.path)
        if kept is None or kept.digest != file.digest or not _is_kept(place, note, file.path):
            report = _Report(progress, f"downloading {file.path}", before, total)
            client.fetch(repository, file, place / file.path, report)
            status = (place / file.path).stat()
            note.kept[file.path] = _Kept(status.st_size, status.st_mtime_ns, file.digest)
            _write_note(place, note)
        before += file.size_bytes


class _Report:
    """Bytes of one file, told as bytes of all."""

    def __init__(self, progress: Progress, what: str, before: int, total: int) -> None:
        self._progress, self._what = progress, what
        self._before, self._total = before, total

    def __call__(self, done: int) -> None:
        self._progress(self._what, self._before + done, self._total)


# ---- what is here --------------------------------------------------------------------------------
def _read_note(place: Path) -> _Note:
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        return msgspec.json.decode((place / NOTE).read_bytes(), type=_Note)
    return _Note()


def _write_note(place: Path, note: _Note) -> None:
    place.mkdir(parents=True, exist_ok=True)
    temporary = place / f"{NOTE}.{os.getpid()}.part"
    temporary.write_bytes(msgspec.json.encode(note))
    temporary.replace(place / NOTE)


def _is_kept(place: Path, note: _Note, name: str) -> bool:
    kept = note.kept.get(name)
    if kept is None:
        return False
    try:
        status = (place / name).stat()
    except OSError:
        return False
    return (status.st_size, status.st_mtime_ns) == (kept.size_bytes, kept.mtime_ns)


def _in_library_cache(wanted: HubRepository) -> Path | None:
    """As the hub's own library keeps it: a folder of links for each commit."""
    home = os.environ.get("HF_HOME") or "~/.cache/huggingface"
    cache = Path(os.environ.get("HF_HUB_CACHE") or f"{home}/hub").expanduser()
    place = cache / f"models--{wanted.repository.replace('/', '--')}"
    try:
        commit = (place / "refs" / "main").read_text().strip()
        if not COMMIT.fullmatch(commit):
            return None
        snapshot = place / "snapshots" / commit
        names = [p.relative_to(snapshot).as_posix() for p in snapshot.rglob("*") if p.is_file()]
        chosen = choose(names, wanted)
        # These raise if it is not whole: a fetch may have been broken off.
        if chosen:
            _parts_of(chosen, names)
        else:
            _weights(wanted.name, names, snapshot)
    except (OSError, ValueError, ImportError, ModelError):
        return None  # not there, or not what was asked for
    return snapshot / chosen

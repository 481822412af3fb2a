"""The one seam through which facts about a machine are read: this one, or a recording of one.

A recording is one JSON file: the text of files of /proc and /sys, and what no file tells.
`sublimate probe --record FILE` writes one; SUBLIMATE_PROBE_FACTS names one to read in place of this
machine, for tests.

defines: ProcessFacts, Recording, Source, HostSource, RecordedSource,
         RecordingSource, source_of
"""

from __future__ import annotations

import ctypes
import importlib
import os
import resource
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import msgspec

from ..errors import ConfigError
from . import FACTS_VARIABLE
from .nvml import NvmlAnswer, read_nvml

READ_BYTES = 64 * 1024
DEVICE_FILE = "/dev/nvidiactl"
SHARED_MEMORY = "/dev/shm"  # noqa: S108 - its size is asked, nothing is written there

SYS_ARCH_PRCTL = 158
ARCH_GET_XCOMP_SUPP = 0x1021
XFEATURE_TILE_DATA = 1 << 18


class ProcessFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What this process is allowed, and what it could load."""

    architecture: str
    usable_cores: int
    """Its affinity mask; a control group may allow less time on them."""
    has_tile_state: bool = False
    """The kernel keeps AMX tiles for a process that asks."""
    locked_memory_bytes: int | None = None
    """RLIMIT_MEMLOCK. None: unlimited, as for the next two."""
    open_files: int | None = None
    open_files_max: int | None = None
    """The hard limit, up to which a process may raise its own."""
    shared_memory_bytes: int = 0
    """Free in /dev/shm."""
    isas: tuple[str, ...] = ()
    """Instruction sets that run here, as the extension found by asking CPU and kernel; empty: it
    was not asked."""
    extension_error: str = ""
    """Why the extension cannot be loaded."""
    python: str = ""


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    """All that a source was asked. files: path -> text; folders: path -> names in it."""

    process: ProcessFacts
    torch: str = ""
    nvml: NvmlAnswer | None = None
    files: dict[str, str] = {}
    folders: dict[str, tuple[str, ...]] = {}


class Source(Protocol):
    """Where facts come from. Nothing here raises for what is not there."""

    def read(self, path: str, limit_bytes: int = READ_BYTES) -> str:
        """The beginning of a file; empty if it is not there or may not be read."""
        ...

    def names(self, folder: str) -> tuple[str, ...]:
        """What is in a folder, sorted; empty if it is not there."""
        ...

    def process(self) -> ProcessFacts: ...

    def torch(self) -> str:
        """Version of the installed PyTorch; empty if there is none."""
        ...

    def nvml(self) -> NvmlAnswer | None:
        """None: there is no sign of an NVIDIA driver, so that it was not asked."""
        ...


class HostSource:
    """This machine."""

    def read(self, path: str, limit_bytes: int = READ_BYTES) -> str:
        try:
            with open(path, "rb") as file:
                return file.read(limit_bytes).decode("utf-8", errors="replace")
        except OSError:
            return ""

    def names(self, folder: str) -> tuple[str, ...]:
        try:
            return tuple(sorted(os.listdir(folder)))
        except OSError:
            return ()

    def process(self) -> ProcessFacts:
        isas, error = _extension()
        files, files_max = resource.getrlimit(resource.RLIMIT_NOFILE)
        return ProcessFacts(
            architecture=os.uname().machine,
            usable_cores=len(os.sched_getaffinity(0)),
            has_tile_state=_has_tile_state(),
            locked_memory_bytes=_limit(resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]),
            open_files=_limit(files),
            open_files_max=_limit(files_max),
            shared_memory_bytes=_free_bytes(SHARED_MEMORY),
            isas=isas,
            extension_error=error,
            python=".".join(map(str, sys.version_info[:3])),
        )

    def torch(self) -> str:
        from importlib import metadata  # slow, and not for `serve`

        try:
            return metadata.version("torch")
        except metadata.PackageNotFoundError:
            return ""

    def nvml(self) -> NvmlAnswer | None:
        return read_nvml() if os.path.exists(DEVICE_FILE) else None


class RecordedSource:
    """A recording."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording

    def read(self, path: str, limit_bytes: int = READ_BYTES) -> str:
        return self.recording.files.get(path, "")[:limit_bytes]

    def names(self, folder: str) -> tuple[str, ...]:
        return self.recording.folders.get(folder, ())

    def process(self) -> ProcessFacts:
        return self.recording.process

    def torch(self) -> str:
        return self.recording.torch

    def nvml(self) -> NvmlAnswer | None:
        return self.recording.nvml


class RecordingSource(RecordedSource):
    """Another source, of which everything that is asked is kept."""

    def __init__(self, source: Source) -> None:
        super().__init__(
            Recording(process=source.process(), torch=source.torch(), nvml=source.nvml())
        )
        self._source = source

    def read(self, path: str, limit_bytes: int = READ_BYTES) -> str:
        text = self._source.read(path, limit_bytes)
        if text:
            self.recording.files[path] = text
        return text

    def names(self, folder: str) -> tuple[str, ...]:
        names = self._source.names(folder)
        if names:
            self.recording.folders[folder] = names
        return names

    def save(self, path: Path) -> None:
        """Raises OSError, ValueError before anything was asked."""
        if not self.recording.files:
            raise ValueError("nothing was asked yet, so there is nothing to keep")
        path.write_bytes(msgspec.json.format(msgspec.json.encode(self.recording), indent=1))


def source_of(environment: Mapping[str, str]) -> Source:
    """This machine, or the recording that the environment names. Raises ConfigError."""
    path = environment.get(FACTS_VARIABLE, "")
    if not path:
        return HostSource()
    try:
        return RecordedSource(msgspec.json.decode(Path(path).read_bytes(), type=Recording))
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigError(f"{FACTS_VARIABLE} = {path}: {error}") from None


def _extension() -> tuple[tuple[str, ...], str]:
    """Instruction sets that the extension runs here, or why it cannot be loaded."""
    try:
        core = importlib.import_module("sublimate._core")
    except ImportError as error:
        return (), str(error)
    return tuple(core.probe()["isas"]), ""


def _limit(value: int) -> int | None:
    return None if value == resource.RLIM_INFINITY else value


def _free_bytes(folder: str) -> int:
    try:
        found = os.statvfs(folder)
    except OSError:
        return 0
    return found.f_bavail * found.f_frsize


def _has_tile_state() -> bool:
    """Linux, Documentation/arch/x86/xstate.rst: which state components a process may ask for."""
    if os.uname().machine != "x86_64":
        return False
    mask = ctypes.c_uint64()
    library = ctypes.CDLL(None, use_errno=True)
    failed = library.syscall(SYS_ARCH_PRCTL, ARCH_GET_XCOMP_SUPP, ctypes.byref(mask))
    return not failed and bool(mask.value & XFEATURE_TILE_DATA)

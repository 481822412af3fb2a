"""The folder of this process's cgroup (version 2), to which packet programs are attached."""

from __future__ import annotations

import os
from pathlib import Path

from .. import _core

PROC = Path("/proc/self")
ANY_BYTES = "latin-1"
"""Keeps every byte of a path whose name is not UTF-8."""


def own_cgroup(proc: Path = PROC) -> Path | None:
    """None where none is mounted. A machine may have both versions, the second one nested."""

    def read(path: str) -> str:
        try:
            return (proc / Path(path).name).read_bytes().decode(ANY_BYTES)
        except OSError:
            return ""

    for found in _core.group_folders(read, "")[:1]:
        folder = Path(os.fsdecode(found.encode(ANY_BYTES)))
        return folder if folder.is_dir() else None
    return None

"""The folder of this process's cgroup (version 2), to which packet programs are attached.

defines: own_cgroup
"""

from __future__ import annotations

import os
import re
from pathlib import Path

PROC = Path("/proc/self")
ESCAPED = re.compile(rb"\\([0-7]{3})")
"""A space or a line end in a path of the table of mounts."""


def own_cgroup(proc: Path = PROC) -> Path | None:
    """None where none is mounted. A machine may have both versions, the second one nested."""
    paths = [line[3:] for line in _lines(proc / "cgroup") if line.startswith(b"0::")]
    for line in _lines(proc / "mountinfo"):
        # ... what of the file system is mounted at 3, where at 4; behind a lone "-" its kind.
        fields = line.split()
        if not paths or b"-" not in fields or fields[fields.index(b"-") + 1] != b"cgroup2":
            continue
        root, point = (Path(os.fsdecode(ESCAPED.sub(_plain, field))) for field in fields[3:5])
        path = Path(os.fsdecode(paths[0]))
        if path.is_relative_to(root) and (folder := point / path.relative_to(root)).is_dir():
            return folder
    return None


def _plain(escape: re.Match[bytes]) -> bytes:
    return bytes([int(escape[1], 8) & 0xFF])


def _lines(path: Path) -> list[bytes]:
    try:
        return path.read_bytes().splitlines()
    except OSError:
        return []

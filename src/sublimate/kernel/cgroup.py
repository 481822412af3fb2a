"""The folder of this process's cgroup (version 2), to which packet programs are attached.

defines: own_cgroup
"""

from __future__ import annotations

from pathlib import Path

PROC = Path("/proc/self")


def own_cgroup(proc: Path = PROC) -> Path | None:
    """None where none is mounted. A machine may have both versions, the second one nested."""
    mounts = (line.split() for line in _lines(proc / "mountinfo"))
    # ... mount point at 4; behind a lone "-" the kind of file system.
    points = [line[4] for line in mounts if "-" in line and line[line.index("-") + 1] == "cgroup2"]
    paths = [line[3:] for line in _lines(proc / "cgroup") if line.startswith("0::")]
    if not points or not paths:
        return None
    folder = Path(points[0]) / paths[0].lstrip("/")
    return folder if folder.is_dir() else None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []

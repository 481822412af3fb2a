"""The switch by which tests make a running server fail. Never for production: docs/faults.md.

SUBLIMATE_FAULTS names a folder; a file in it, named after a point, is a fault. Without the variable
no process looks anywhere.

defines: POINTS, VARIABLE, FaultFolder, open_faults
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from ..errors import ConfigError

VARIABLE = "SUBLIMATE_FAULTS"

POINTS = {
    "engine.load": "once: the model cannot be loaded",
    "engine.abort": "once: the engine ends as by a failed CHECK, before its loop's next turn",
    "engine.region.broken": "once: the loop writes what no edge can read into the token ring",
    "engine.step.hung": "while it is there, no step of running requests ends",
    "engine.step.slow": "while it is there, each step takes so many milliseconds longer",
    "edge.abort": "once: the edge aborts",
    "edge.hung": "once: the edge's event loop stands still for so many milliseconds",
    "edge.descriptors": "while it is there, the edge can open no descriptor",
    "edge.writes": "while it is there, the edge can write to no file",
}
"""Name of the file -> what happens. "So many": the number in the file."""


class FaultFolder:
    """Reads the faults of one process. For its loop: core/engine/injected_faults.h."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def holds(self, point: str) -> bool:
        """As long as the file is there."""
        return (self.path / point).exists()

    def take(self, point: str) -> bool:
        """Remove the file; True if it was there. The fault happens once, in the process that
        removes its file. This needs no descriptor, because none may be left."""
        try:
            (self.path / point).unlink()
        except FileNotFoundError:
            return False
        return True

    def take_number(self, point: str) -> int | None:
        """Remove the file and return its number; None if there is no file. An empty file does not
        count yet: a writer creates it first and then writes the number."""
        if not self.holds(point):
            return None
        try:
            text = (self.path / point).read_text()
        except OSError:
            return None  # taken meanwhile, or there is no descriptor now
        return int(text) if text.strip() and self.take(point) else None


def open_faults() -> FaultFolder | None:
    """What the environment asks for; None, as ever in production, if it asks for nothing. Raises
    ConfigError if the folder is none, or somebody else could put files there."""
    name = os.environ.get(VARIABLE, "")
    if not name:
        return None
    path = Path(name)
    try:
        found = path.stat()
    except OSError as error:
        raise ConfigError(f"{VARIABLE}={name}: {error.strerror}.") from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise ConfigError(f"{VARIABLE}={name}: must be a folder that only this user can write to.")
    return FaultFolder(path)

"""`sublimate run`: a program whose anthropic clients use our transport, with its code unchanged.

defines: run_program
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence

from ..client.injected import inject_path
from ..errors import ConfigError
from .launch import run_child

PARENT = "SUBLIMATE_RUN_PARENT"


def environment(given: dict[str, str], parent: int) -> dict[str, str]:
    """That of the program, and of what it starts in turn."""
    inject = str(inject_path())
    entries = [entry for entry in given.get("PYTHONPATH", "").split(os.pathsep) if entry]
    path = [inject, *(entry for entry in entries if entry != inject)]
    return {**given, "PYTHONPATH": os.pathsep.join(path), PARENT: str(parent)}


def run_program(command: Sequence[str]) -> int:
    """Its exit status. Raises ConfigError if there is no such program."""
    program = shutil.which(command[0])
    if program is None:
        raise ConfigError(f"There is no program {command[0]!r} on the path.")
    return run_child([program, *command[1:]], environment(dict(os.environ), os.getpid()))

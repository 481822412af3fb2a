"""`sublimate run`: a program whose anthropic clients use our transport, with its code unchanged.

defines: run_program
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Sequence

from ..client.injected import PROFILE_VARIABLE, inject_path
from ..errors import ConfigError, PeerError
from .launch import run_child
from .peer import Peer

PARENT = "SUBLIMATE_RUN_PARENT"


def environment(given: dict[str, str], parent: int, profile: str = "") -> dict[str, str]:
    """The environment of the program, and of what it starts in turn. profile: that requests name;
    empty: as given."""
    inject = str(inject_path())
    entries = [entry for entry in given.get("PYTHONPATH", "").split(os.pathsep) if entry]
    path = [inject, *(entry for entry in entries if entry != inject)]
    named = {PROFILE_VARIABLE: profile} if profile else {}
    return {**given, "PYTHONPATH": os.pathsep.join(path), PARENT: str(parent), **named}


def run_program(command: Sequence[str], profile: str = "") -> int:
    """Its exit status. profile: that requests name; empty: the one that the server at
    ANTHROPIC_BASE_URL wants to be named, if it does. Raises ConfigError if there is no such
    program."""
    program = shutil.which(command[0])
    if program is None:
        raise ConfigError(
            f"There is no program {command[0]!r} on the path. (To talk to a model: "
            f"sublimate chat --model {command[0]})"
        )
    if not profile and PROFILE_VARIABLE not in os.environ:
        with contextlib.suppress(PeerError):  # no URL: the program's own requests say so
            profile = Peer(url).profile if (url := os.environ.get("ANTHROPIC_BASE_URL")) else ""
    return run_child([program, *command[1:]], environment(dict(os.environ), os.getpid(), profile))

"""How a process of a server begins, and that it ends with the one that began it.

An interpreter with all that it imports takes longer than the rest of a start. So `sublimate serve`
begins an edge and an engine before it has read its own command line: they import meanwhile, and
then wait on their channel for what they are to do. Whoever has nothing for them ends them.

Imports little, and nothing of ours: each millisecond here is one of every start.

defines: PARENT_VARIABLE, RUN_VARIABLE, start, begin_ahead, record_ahead, take, end_unused,
         tie_to_parent
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import subprocess

PARENT_VARIABLE = "SUBLIMATE_PARENT"
RUN_VARIABLE = "SUBLIMATE_PARENT_RUN"
"""Path of the record of the run (run_record.py) that a process belongs to."""
CONTROL_FLAG = "--control-fd"
CONTROL_BUFFER_BYTES = 1 << 20
PR_SET_PDEATHSIG = 1

Child = tuple["subprocess.Popen[bytes]", socket.socket]
"""A process, and our end of its control channel."""

_ahead: dict[str, Child] = {}
"""By module: begun, and taken by nobody yet."""
_record = ""


def start(module: str, more: Mapping[str, str] | None = None) -> Child:
    """Run `python -m module --control-fd N` with just the descriptor that it needs; `more`: of its
    environment.

    The child gets its own process group, so that Ctrl-C in a terminal reaches the supervisor alone
    and it can drain. Raises OSError.
    """
    import subprocess  # which a child has no use for

    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, CONTROL_BUFFER_BYTES)
        fd = theirs.fileno()
        command = [sys.executable, "-m", module, CONTROL_FLAG, str(fd)]
        environment = {**os.environ, **(more or {}), PARENT_VARIABLE: str(os.getpid())}
        try:
            process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                command,
                pass_fds=(fd,),
                process_group=0,
                stdin=subprocess.DEVNULL,
                env=environment,
            )
        except OSError:
            ours.close()
            raise
    return process, ours


# ---- ahead ---------------------------------------------------------------------------------------
def begin_ahead(modules: Sequence[str], record: str) -> None:
    """One process of each. `record`: where that of this run will be, in all likelihood: it stands
    in their environment, by which they are known."""
    global _record
    _record = record
    for module in modules:
        try:
            _ahead[module] = start(module, {RUN_VARIABLE: record})
        except OSError:
            return  # the supervisor tries it again, and says why not


def record_ahead(folder: str) -> str:
    """The path that processes begun ahead were told, if it is in this folder. Else they are of no
    use, and end; empty then, and where there are none."""
    if _ahead and os.path.realpath(os.path.dirname(_record)) == os.path.realpath(folder):
        return _record
    end_unused()
    return ""


def take(module: str) -> Child | None:
    """One that was begun ahead, for whoever now knows what it is to do."""
    child = _ahead.pop(module, None)
    if child is None:
        return None
    process, control = child
    if process.poll() is None:
        return child
    control.close()
    return None


def end_unused() -> None:
    """Those that nobody has taken. Idempotent."""
    while _ahead:
        _, (process, control) = _ahead.popitem()
        process.kill()
        control.close()
        process.wait()


# ---- in the child --------------------------------------------------------------------------------
def tie_to_parent() -> None:
    """Ask the kernel to kill this process when its parent dies. Exits if that is gone already."""
    import ctypes  # which the parent has no use for

    library = ctypes.CDLL(None, use_errno=True)
    if library.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        # Not fatal: the end of the control channel says the same a little later.
        sys.stderr.write("sublimate: PR_SET_PDEATHSIG is not available\n")
    expected = os.environ.get(PARENT_VARIABLE, "")
    if expected and os.getppid() != int(expected):
        sys.exit(0)

"""Starts a child process with just the descriptors it needs, and the child's side of that.

No child outlives the supervisor: PR_SET_PDEATHSIG kills it with its parent, and the end of the
control channel tells it if that could not be set. Should one do so all the same, the record of its
run names it (run_record.py).

defines: spawn, enter_child, tell_failed
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import faulthandler
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from ..errors import SublimateError
from .channel import Channel, Failed
from .rights import give_up_rights
from .run_record import join_run

PR_SET_PDEATHSIG = 1
CONTROL_BUFFER_BYTES = 1 << 20
PARENT_VARIABLE = "SUBLIMATE_PARENT"


def spawn(module: str, incoming: Any) -> tuple[subprocess.Popen[bytes], Channel[Any]]:
    """Run `python -m module --control-fd N`; returns the process and our end of its channel.

    The child gets its own process group, so that Ctrl-C in a terminal reaches the supervisor alone
    and it can drain. Raises OSError.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, CONTROL_BUFFER_BYTES)
        fd = theirs.fileno()
        command = [sys.executable, "-m", module, "--control-fd", str(fd)]
        environment = {**os.environ, PARENT_VARIABLE: str(os.getpid())}
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
    ours.setblocking(False)
    return process, Channel(ours, incoming)


def enter_child(incoming: Any, arguments: Sequence[str] | None = None) -> Channel[Any]:
    """First call of a child: ties its life to its parent's, gives up rights that it does not need
    (rights.py) and opens the control channel.

    The channel is blocking. Exits if the parent is already gone.
    """
    parser = argparse.ArgumentParser(description="A process of `sublimate serve`.")
    parser.add_argument("--control-fd", type=int, required=True)
    control_fd: int = parser.parse_args(arguments).control_fd
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    die_with_parent()
    give_up_rights()
    faulthandler.enable()  # a crash says where
    os.set_inheritable(control_fd, False)
    return Channel[Any].from_fd(control_fd, incoming)


def tell_failed(control: Channel[Any], error: SublimateError) -> None:
    """Last word of a child that ends for this, to who started it: the one who tells people."""
    with contextlib.suppress(OSError):  # the supervisor may be gone
        control.send(Failed(message=str(error)))


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent dies; enter it in its run's record."""
    library = ctypes.CDLL(None, use_errno=True)
    if library.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        # Not fatal: the end of the control channel says the same a little later.
        sys.stderr.write("sublimate: PR_SET_PDEATHSIG is not available\n")
    expected = os.environ.get(PARENT_VARIABLE, "")
    if expected and os.getppid() != int(expected):
        sys.exit(0)
    join_run()

"""The channel to a child process (started in birth.py), and the child's side of it.

No child outlives the supervisor: PR_SET_PDEATHSIG kills it with its parent, and the end of the
control channel tells it if that could not be set. Should one do so all the same, the record of its
run names it (run_record.py).

defines: spawn, enter_child, tell_failed, first_message, die_with_parent
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import SublimateError
from . import birth
from .channel import Channel, Failed, Received
from .rights import give_up_rights
from .run_record import join_run

if TYPE_CHECKING:
    import subprocess

Incoming = TypeVar("Incoming")


def spawn(module: str, incoming: Any) -> tuple[subprocess.Popen[bytes], Channel[Any]]:
    """A process of `python -m module`, which may have been begun ahead, and our end of its channel.
    Raises OSError."""
    process, ours = birth.take(module) or birth.start(module)
    ours.setblocking(False)
    return process, Channel(ours, incoming)


def enter_child(incoming: Any, arguments: Sequence[str] | None = None) -> Channel[Any]:
    """First call of a child: ties its life to its parent's, gives up rights that it does not need
    (rights.py) and opens the control channel.

    The channel is blocking. Exits if the parent is already gone.
    """
    flag, number, *more = [*(sys.argv[1:] if arguments is None else arguments), "", ""]
    if flag != birth.CONTROL_FLAG or not number.isdecimal() or any(more):
        sys.exit("This is a process of `sublimate serve`, which starts it by itself.")
    control_fd = int(number)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    birth.tie_to_parent()
    give_up_rights()
    faulthandler.enable()  # a crash says where
    os.set_inheritable(control_fd, False)
    return Channel[Any].from_fd(control_fd, incoming)


def tell_failed(control: Channel[Any], error: SublimateError) -> None:
    """Last word of a child that ends for this, to who started it: the one who tells people."""
    with contextlib.suppress(OSError):  # the supervisor may be gone
        control.send(Failed(message=str(error)))


def first_message(control: Channel[Incoming]) -> Received[Incoming] | None:
    """What a child is to do. None: nothing, the supervisor is gone or had no use for it.

    From now on it is in the record of its run, which is there by now, also for one that was begun
    ahead."""
    received = control.receive()
    if received is not None:
        join_run()
    return received


def die_with_parent() -> None:
    """For a process without a channel: as birth.tie_to_parent, and into its run's record."""
    birth.tie_to_parent()
    join_run()

"""What the `sublimate` command does first: `serve` begins its processes before it imports anything
else, even before it has read its own options (control/birth.py).

defines: main
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

from ..control.birth import begin_ahead, end_unused
from ..control.stamps import stamp

# As supervisor/launch.py and supervisor/members.py name them, which are not to be imported yet.
AHEAD = ("sublimate.edge", "sublimate.engine")
HELP = frozenset(("-h", "--help"))


def main() -> None:
    """Entry of the command."""
    stamp("entered")
    arguments = sys.argv[1:]
    try:
        if arguments[:1] == ["serve"] and not HELP & set(arguments):
            _end_at_interrupt()
            if _can_run():
                begin_ahead(AHEAD, _record(arguments))
                stamp("begun")
            _serve(arguments[1:])
        else:
            from .main import main as run

            run()
    finally:
        end_unused()  # wrong options, or Ctrl-C


def _end_at_interrupt() -> None:
    """Until all is imported (given.py) Ctrl-C is the kernel's: as an exception it could be lost
    in code that takes none, and the server would start. What was begun ends with the command."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def _serve(arguments: Sequence[str]) -> None:
    from .plain_flags import plain_flags

    given = plain_flags(arguments)
    if given is None:
        from .serve_command import main as run

        run()
    else:
        from .given import serve_with

        serve_with(given)


def _can_run() -> bool:
    """Whether the compiled part is there: else one process says so, and not three."""
    try:
        from .. import _core

        return bool(_core.LIMITS)
    except (ImportError, AttributeError):
        return False


def _record(arguments: Sequence[str]) -> str:
    """Where this run's record will be (config/folders.py), unless a file of settings names another
    data folder: then what was begun is of no use."""
    folder = os.environ.get("SUBLIMATE_DATA_DIR", "")
    for given, value in zip(arguments, [*arguments[1:], ""], strict=True):
        if given == "--data-dir":
            folder = value
        elif given.startswith("--data-dir="):
            folder = given.partition("=")[2]
    if not folder:
        folder = (os.environ.get("XDG_DATA_HOME") or "~/.local/share") + "/sublimate"
    return os.path.join(os.path.expanduser(folder), "runs", os.urandom(8).hex() + ".run")

"""From what was given on the command line to settings, and from there to a server.

defines: settings_of, end_with, serve_with
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any

from ..config import Effective, load_settings
from .output import note, run_guarded


def settings_of(config: Path | None, **given: Any) -> Effective:
    """Settings of all sources; a list flag that was not given arrives empty."""
    chosen = {name: value for name, value in given.items() if value not in (None, [], ())}
    effective = load_settings(chosen, config=config)
    for text in effective.notes:
        note(text)
    return effective


def end_with(code: int) -> None:
    """Of a command: its exit code."""
    if code:
        sys.exit(code)


def serve_with(given: dict[str, Any]) -> None:
    """`sublimate serve` with what its flags say, however they were read (plain_flags.py,
    serve_command.py)."""
    config = given.pop("config")
    if given.pop("json"):
        given["log_format"] = "json"
    model = given["model"] or [None]
    given["model"], given["models"] = model[0], model[1:]

    def settings() -> Effective:
        return settings_of(config, **given)

    def action() -> int:
        from .serve import serve as run

        if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # see entry.py
            signal.signal(signal.SIGINT, signal.default_int_handler)
        return run(settings(), settings)

    end_with(run_guarded(action))

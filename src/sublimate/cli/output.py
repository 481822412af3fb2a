"""Consoles and the one place where expected errors become a message and an exit code.

defines: out, errors, complain, note, run_guarded, print_plain, error_text
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from rich.console import Console
from rich.text import Text

from ..errors import ExitCode, SublimateError

ERROR_BYTES_MAX = 300
out = Console(highlight=False)
errors = Console(stderr=True, highlight=False)


def complain(message: str) -> None:
    """An error for a person, on standard error."""
    errors.print(Text("Error: ", style="bold red") + Text(message), soft_wrap=True)


def note(message: str) -> None:
    """Something that was passed over, on standard error."""
    errors.print(Text("Note: ", style="yellow") + Text(message), soft_wrap=True)


def run_guarded(action: Callable[[], int | None]) -> int:
    """The exit code of a command; expected errors are told, bugs keep their traceback."""
    try:
        return int(action() or ExitCode.OK)
    except SublimateError as error:
        complain(str(error))
        return int(error.exit_code)
    except KeyboardInterrupt:
        return int(ExitCode.INTERRUPTED)
    except BrokenPipeError:
        return int(ExitCode.OK)


def print_plain(text: str) -> None:
    """As it is: no wrapping and no colour, whatever the terminal."""
    Console(soft_wrap=True, highlight=False, markup=False, emoji=False).print(text)


class _Error(msgspec.Struct):
    message: str


class _Envelope(msgspec.Struct):
    error: _Error


def error_text(data: bytes) -> str:
    """What an answer with an error says to a person."""
    try:
        return msgspec.json.decode(data, type=_Envelope).error.message
    except msgspec.DecodeError:
        return data[:ERROR_BYTES_MAX].decode(errors="replace")

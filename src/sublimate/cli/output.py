"""Consoles and the one place where expected errors become a message and an exit code.

defines: out, errors, complain, note, run_guarded, print_plain, error_text
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec

from ..errors import ExitCode, SublimateError

if TYPE_CHECKING:
    from rich.console import Console

    out: Console
    errors: Console

ERROR_BYTES_MAX = 300
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
PIPE_COLUMNS = 10_000
"""Wide enough that a program gets each row of a table in one line."""


@cache
def _console(*, is_error: bool) -> Console:
    """Made when somebody has something to say, as no server that starts has: it takes a while."""
    from rich.console import Console

    console = Console(stderr=is_error, highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = PIPE_COLUMNS
    return console


def fold_help() -> None:
    """Wrap long words of the help, which would otherwise be cut at the end of the column."""
    from rich import columns
    from rich.table import Table
    from typer import rich_utils

    class FoldingTable(Table):
        def add_row(self, *cells: Any, **options: Any) -> None:
            super().add_row(*cells, **options)
            for column in self.columns:
                column.overflow = "fold"

    for module in (rich_utils, columns):
        vars(module)["Table"] = FoldingTable


def __getattr__(name: str) -> Any:
    if name not in ("out", "errors"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _console(is_error=name == "errors")


def _tell(word: str, style: str, message: str) -> None:
    """On standard error."""
    from rich.text import Text

    text = Text(word, style=style) + Text(message)
    _console(is_error=True).print(text, soft_wrap=True)


def complain(message: str) -> None:
    """An error for a person, on standard error."""
    _tell("Error: ", "bold red", message)


def note(message: str) -> None:
    """Something that was passed over, on standard error."""
    _tell("Note: ", "yellow", message)


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
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        complain(f"Cannot write {error.filename or 'the output'}: {error.strerror}.")
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # drop the rest at exit
        return int(ExitCode.USAGE)


def print_plain(text: str) -> None:
    """As it is: no wrapping and no colour, whatever the terminal."""
    from rich.console import Console

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
        text = data[:ERROR_BYTES_MAX].decode(errors="replace").strip()
        if text.startswith("<"):
            return "with a page instead of JSON. Is this the address of a model server?"
        return text

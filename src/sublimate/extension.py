"""What a process of ours says where the compiled part (`_core`) is missing, cannot be loaded, or is
of another version than the sources: a line with the way back, in place of a traceback.

defines: problem_of, explain_failures
"""

from __future__ import annotations

import sys
from types import TracebackType

MODULE = "_core"
ENGINE_EXIT_CODE = 4
"""As errors.ExitCode, which nothing need load before there is an error."""


def problem_of(error: BaseException) -> str:
    """What is wrong with the compiled part, if that is what the error is about; else empty."""
    about = getattr(error, "obj", None)
    name = str(getattr(error, "name", None) or "")
    if isinstance(error, AttributeError):
        is_ours = getattr(about, "__name__", "").rpartition(".")[2] == MODULE
        return f"it lacks {name}, so it is of another version" if is_ours else ""
    if isinstance(error, TypeError):
        return _unknown_argument(str(error))
    if not isinstance(error, ImportError):
        return ""
    is_ours = name.rpartition(".")[2] == MODULE
    if is_ours and str(error).startswith("cannot import name"):
        return f"it lacks {str(error).split(chr(39))[1]}, so it is of another version"
    if isinstance(error, ModuleNotFoundError):
        return "there is none for this Python" if is_ours else ""
    if f"cannot import name '{MODULE}'" in str(error):
        return "there is none for this Python"
    return f"it cannot be loaded ({error})" if is_ours else ""


def _unknown_argument(text: str) -> str:
    """As after `git pull` without `make build`. Wrong types are no such sign: they are bugs."""
    known, _, given = text.partition("Invoked with types: ")
    _, _, named = given.partition("kwargs = {")
    if "incompatible function arguments" not in known or not named:
        return ""
    for word in named.split():
        if word.endswith(":") and f"{word} " not in known:
            called = known.partition("(")[0]
            return f"its {called} takes no {word.rstrip(':')}, so it is of another version"
    return ""


def explain_failures(way_back: str) -> None:
    """From now on. `way_back`: what installs it again."""
    before = sys.excepthook

    def hook(
        error_type: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        if problem := problem_of(error):
            sys.stderr.write(
                f"Error: The compiled part of sublimate cannot be used: {problem}. To get it: "
                f"{way_back}.\n"
            )
            sys.exit(ENGINE_EXIT_CODE)
        before(error_type, error, trace)

    sys.excepthook = hook

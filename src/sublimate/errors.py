"""Errors that are the world's or the caller's fault, with a text for a person and an exit code.

SublimateError
├── ConfigError        a setting is wrong (exit 2)
├── ModelError         a model cannot be found, fetched or verified (exit 3)
├── EngineError        the engine cannot start, or ended (exit 4)
│   ├── HardwareError  this machine cannot run it
│   └── RequestError   one request was refused or failed
├── InvalidSignatureError  the policy or the decision module is not as it was signed (exit 7)
├── ListenError        the address cannot be bound (exit 5)
└── PeerError          a server that we talk to does not answer as expected (exit 6)

A bug is not in this tree: it stays an ordinary exception, or an abort in the core.

defines: ExitCode, SublimateError and its subclasses, nearest
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import ClassVar


class ExitCode(IntEnum):
    """Exit codes of the command line. Stable: scripts may depend on them."""

    OK = 0
    BUG = 1
    USAGE = 2
    MODEL = 3
    ENGINE = 4
    LISTEN = 5
    PEER = 6
    SIGNATURE = 7
    INTERRUPTED = 130


class SublimateError(Exception):
    """Base of all expected errors. The text says what happened and what to do about it."""

    exit_code: ClassVar[ExitCode] = ExitCode.BUG


class ConfigError(SublimateError):
    """A setting has a wrong name or value. The text names the field and where it came from."""

    exit_code = ExitCode.USAGE


class ModelError(SublimateError):
    """A model cannot be found, fetched, or verified."""

    exit_code = ExitCode.MODEL


class EngineError(SublimateError):
    """The engine cannot load, or ended while it was needed."""

    exit_code = ExitCode.ENGINE


class HardwareError(EngineError):
    """This machine cannot run the model. `reason` on the wire is hardware_not_supported."""


class RequestError(EngineError):
    """One in-process request was refused or failed; others go on."""


class InvalidSignatureError(SublimateError, ImportError):
    """A file of this package is not as it was signed: raised by `import sublimate`, so it is an
    ImportError too. The text names the file and the way back."""

    exit_code = ExitCode.SIGNATURE


class ListenError(SublimateError):
    """The listening address cannot be bound."""

    exit_code = ExitCode.LISTEN


class PeerError(SublimateError):
    """A server does not answer, or not in a way that this command understands."""

    exit_code = ExitCode.PEER


def nearest(name: str, known: Iterable[str]) -> str:
    """Sentence that names the closest known name, with a leading space; empty if none is close."""
    import difflib  # who makes no mistake does not wait for it

    matches = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f" Did you mean {matches[0]!r}?" if matches else ""

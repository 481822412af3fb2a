"""API keys with names and limits, in a TOML file that holds hashes and never a key.

    [keys.alice]
    sha256 = "..."
    requests_per_minute = 60

A key is 256 random bits, so one SHA-256 of it is as good as any slower hash.

defines: KeyLimits, NamedKey, read_keys, add_key, remove_key, half_written_keys
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import secrets
from collections.abc import Generator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from .errors import ConfigError, nearest

KEY_PREFIX = "sk-sublimate-"
KEY_BYTES = 32
NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
PRIVATE_MODE = 0o600
COPY = "[a-z0-9_]{8}"
"""What mkstemp puts behind a name."""
HEAD = "# API keys of Sublimate: hashes only. Written by `sublimate keys`; comments are not kept.\n"

Limit = Annotated[int, Meta(ge=0)]


class KeyLimits(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one key may use; 0 is no limit. Tokens: what is read from cache is not counted."""

    requests_per_minute: Limit = 0
    tokens_per_minute: Limit = 0
    """Input and output together."""
    input_tokens_per_minute: Limit = 0
    output_tokens_per_minute: Limit = 0
    concurrency: Limit = 0
    """Requests at once."""


class NamedKey(KeyLimits, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One entry of the file."""

    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    created: str = ""


class _File(msgspec.Struct, forbid_unknown_fields=True):
    keys: dict[str, NamedKey] = {}


def read_keys(path: Path) -> dict[str, NamedKey]:
    """Name -> key. Raises ConfigError, FileNotFoundError."""
    try:
        text = path.read_bytes().decode()
    except FileNotFoundError:
        raise
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"The keys file {path} cannot be read: {error}") from None
    import tomllib  # where there is something to read

    try:
        keys = msgspec.convert(tomllib.loads(text), _File).keys
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"The keys file {path} cannot be read: {error}") from None
    except msgspec.ValidationError as error:
        raise ConfigError(f"The keys file {path} is not valid: {error}") from None
    for name in keys:
        _check_name(name)
    if len({key.sha256 for key in keys.values()}) < len(keys):
        raise ConfigError(f"The keys file {path} has one key under two names.")
    return keys


def add_key(path: Path, name: str, limits: KeyLimits) -> str:
    """Make a key; returns it, which is the only time that it is known. Raises ConfigError."""
    _check_name(name)
    with _locked(path):
        keys = _keys_or_none(path)
        if name in keys:
            raise ConfigError(f"There is a key {name!r} already. Remove it first.")
        secret = KEY_PREFIX + secrets.token_urlsafe(KEY_BYTES)
        keys[name] = NamedKey(
            sha256=hashlib.sha256(secret.encode()).hexdigest(),
            created=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            **msgspec.structs.asdict(limits),
        )
        _write(path, keys)
    return secret


def remove_key(path: Path, name: str) -> None:
    """Raises ConfigError if there is no such key."""
    with _locked(path):
        keys = _keys_or_none(path)
        if name not in keys:
            raise ConfigError(f"There is no key {name!r} in {path}.{nearest(name, keys)}")
        del keys[name]
        _write(path, keys)


def half_written_keys(path: Path, clean: bool) -> list[Path]:
    """Copies that a writer left when it was killed; with `clean` they are removed. None while
    somebody writes."""
    copy = re.compile(re.escape(path.name) + COPY)
    try:
        copies = [one for one in path.parent.iterdir() if copy.fullmatch(one.name)]
        if not copies:
            return []
        lock = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, PRIVATE_MODE)
    except OSError:
        return []
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for one in copies if clean else ():
            one.unlink(missing_ok=True)
    except OSError:
        return []
    finally:
        os.close(lock)
    return sorted(copies)


def _check_name(name: str) -> None:
    if NAME.fullmatch(name) is None:
        raise ConfigError(
            f"A key's name has 1 to 64 letters, digits, _ or -; {name!r} does not fit."
        )


def _keys_or_none(path: Path) -> dict[str, NamedKey]:
    try:
        return read_keys(path)
    except FileNotFoundError:
        return {}


@contextlib.contextmanager
def _locked(path: Path) -> Generator[None]:
    """One writer at a time. The lock is a file of its own: the other one is replaced."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(path.with_suffix(".lock"), os.O_CREAT | os.O_RDWR, PRIVATE_MODE)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}.") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _write(path: Path, keys: dict[str, NamedKey]) -> None:
    """Whole or not at all. Every value is a number or text without quotes (see NamedKey)."""
    lines = [HEAD]
    for name, key in keys.items():
        lines.append(f"[keys.{name}]")
        for field, value in msgspec.to_builtins(key).items():
            lines.append(f"{field} = {msgspec.json.encode(value).decode()}")
        lines.append("")
    import tempfile  # no server writes keys

    try:
        descriptor, beside = tempfile.mkstemp(dir=path.parent, prefix=path.name)
        try:
            with open(descriptor, "w", encoding="utf-8") as file:
                file.write("\n".join(lines))
                file.flush()
                os.fsync(file.fileno())
            Path(beside).replace(path)
        except BaseException:
            Path(beside).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}.") from None

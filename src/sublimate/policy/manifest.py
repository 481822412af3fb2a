"""The manifest: a text file in the package that lists its files by SHA-256 and is signed.

    sublimate manifest 1
    kind: release
    version: 0.1.0
    key: <public key, 64 hex digits>
    <sha256 of a file>  <its path in the package>
    ...
    signature: <128 hex digits, of every byte above this line>

The lines of files are those of `sha256sum`. Kind release: signed with a key that is kept apart;
dev: with one that was made at build time and is forgotten. Standard library only, since the build
makes manifests too.

defines: NAME, Kind, Manifest, ManifestError, file_sha256, fingerprint, written, read,
         is_signature_valid, development_manifest
"""

from __future__ import annotations

import hashlib
import os
from mmap import ACCESS_READ, mmap
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

NAME = "MANIFEST"
TITLE = "sublimate manifest 1"
Kind = Literal["release", "dev"]
FILES_MAX = 4096
MANIFEST_BYTES_MAX = 1 << 20
MAPPED_BYTES_MIN = 1 << 18
KEY_DIGITS = 64
SIGNATURE_DIGITS = 128
SHA256_DIGITS = 64
HEX = frozenset("0123456789abcdef")


class ManifestError(ValueError):
    """This is no manifest."""


class Manifest(NamedTuple):
    """What one says. `signed`: the bytes that the signature is of."""

    kind: Kind
    version: str
    key: bytes
    files: dict[str, str]
    signed: bytes
    signature: bytes


def file_sha256(path: str | Path) -> str:
    """In hex. Raises OSError."""
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size < MAPPED_BYTES_MIN:
            return hashlib.sha256(file.read()).hexdigest()
        # Not copied: half of the time for the extension's two megabytes.
        with mmap(file.fileno(), 0, access=ACCESS_READ) as mapped:
            return hashlib.sha256(mapped).hexdigest()


def fingerprint(key: bytes) -> str:
    """What a public key is pinned by: its SHA-256 in hex."""
    return hashlib.sha256(key).hexdigest()


def written(
    kind: Kind,
    version: str,
    key: bytes,
    files: Mapping[str, str],
    sign: Callable[[bytes], bytes],
) -> bytes:
    """The file. `files`: path in the package -> SHA-256; `sign` signs with the key."""
    lines = [TITLE, f"kind: {kind}", f"version: {version}", f"key: {key.hex()}"]
    lines += [f"{digest}  {path}" for path, digest in sorted(files.items())]
    signed = "\n".join([*lines, ""]).encode()
    return signed + f"signature: {sign(signed).hex()}\n".encode()


def _field(line: str, name: str) -> str:
    found, _, value = line.partition(": ")
    if found != name:
        raise ManifestError(f"a line with {name} is missing")
    return value


def _hex(text: str, count: int) -> str:
    if len(text) != count or not HEX.issuperset(text):
        raise ManifestError(f"{count} hex digits are expected")
    return text


def read(data: bytes) -> Manifest:
    """Raises ManifestError. The signature is not looked at."""
    if len(data) > MANIFEST_BYTES_MAX:
        raise ManifestError("it is too long")
    try:
        lines = data.decode("ascii").split("\n")
    except UnicodeDecodeError:
        raise ManifestError("it is no text") from None
    if len(lines) < 6 or lines[0] != TITLE or lines[-1]:
        raise ManifestError("it begins or ends otherwise")
    kind = _field(lines[1], "kind")
    if kind not in get_args(Kind):
        raise ManifestError("its kind is unknown")
    files: dict[str, str] = {}
    for line in lines[4:-2]:
        path = line[SHA256_DIGITS + 2 :]
        if line[SHA256_DIGITS : SHA256_DIGITS + 2] != "  " or not path or len(files) == FILES_MAX:
            raise ManifestError("a line is no file's")
        if path.startswith("/") or ".." in path.split("/") or path in files:
            raise ManifestError("a path is not of the package, or comes twice")
        files[path] = _hex(line[:SHA256_DIGITS], SHA256_DIGITS)
    signature = _hex(_field(lines[-2], "signature"), SIGNATURE_DIGITS)
    return Manifest(
        kind="release" if kind == "release" else "dev",
        version=_field(lines[2], "version"),
        key=bytes.fromhex(_hex(_field(lines[3], "key"), KEY_DIGITS)),
        files=files,
        signed=data[: data.rindex(b"signature: ")],
        signature=bytes.fromhex(signature),
    )


def is_signature_valid(manifest: Manifest) -> bool:
    """By the manifest's own key: whether that is one to trust is another question."""
    from . import ed25519  # not for a development build at import

    return ed25519.verify(manifest.key, manifest.signed, manifest.signature)


def development_manifest(version: str, files: Mapping[str, str]) -> bytes:
    """Signed with a key that is made here and forgotten."""
    from . import ed25519

    seed = os.urandom(ed25519.KEY_BYTES)
    key = ed25519.public_key(seed)
    return written("dev", version, key, files, lambda signed: ed25519.sign(seed, signed))

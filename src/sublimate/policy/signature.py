"""Whether this package is what was signed: in part at import, whole for `sublimate verify`.

At import only what decides is looked at, so that it costs milliseconds: the policy's descriptor,
the decision module and this folder. A checkout of the sources has no manifest and is unsigned.

Who can change every file can change this one too. A signature finds damage and partial changes; to
find a whole replacement, pin the key from outside (SUBLIMATE_POLICY_KEY) or verify from another
installation (`sublimate verify --package FOLDER`).

defines: RELEASE_KEYS, PIN_VARIABLE, Provenance, Finding, way_back, provenance, check_at_import,
         is_own, check_or_exit, findings
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:  # pathlib takes longer than all the rest
    from collections.abc import Iterable
    from pathlib import Path

RELEASE_KEYS: frozenset[str] = frozenset()
"""Fingerprints (SHA-256 of the public key, in hex) of the keys that sign releases. Whoever
publishes releases puts theirs here, in the commit before the first (docs/policy.md)."""
PIN_VARIABLE = "SUBLIMATE_POLICY_KEY"
MANIFEST_NAME = "MANIFEST"
AT_IMPORT = ("_core.", "policy/", "v1/layer_pb2.")
DESCRIPTOR = "v1/layer_pb2.py"
COMMANDS = ("sublimate", "-m")
"""First words of a command line; -m stands there until the module that is run is found."""

Problem = Literal["changed", "missing", "unknown"]


class Provenance(NamedTuple):
    """What an installation says of itself."""

    kind: Literal["release", "dev", "unsigned"]
    version: str = ""
    fingerprint: str = ""
    """Of the key that signed it; empty: nobody did."""


class Finding(NamedTuple):
    """A file that is not as it was signed. unknown: a module that the manifest does not name."""

    path: str
    problem: Problem


def _manifest_path(folders: list[str]) -> str:
    for folder in folders:
        path = os.path.join(folder, MANIFEST_NAME)
        if os.path.isfile(path):
            return path
    return ""


def _is_checkout(folder: str) -> bool:
    return os.path.isfile(os.path.join(folder, os.pardir, os.pardir, "pyproject.toml"))


def way_back(kind: str) -> str:
    """What installs it again. `kind`: of Provenance."""
    if kind == "release":
        return "pip install --force-reinstall --no-deps sublimate"
    return "make build, or pip install again from the sources"


def _refuse(what: str, kind: str = "release") -> Exception:
    from ..errors import InvalidSignatureError

    return InvalidSignatureError(f"{what} To get back: {way_back(kind)}.")


def provenance(folders: Iterable[str | Path], pin: str = "") -> tuple[Provenance, dict[str, str]]:
    """Who signed the package in these folders (its `__path__`), and its files with their SHA-256.
    `pin`: the fingerprint that it must have been. Raises InvalidSignatureError."""
    places = [str(folder) for folder in folders]
    path = _manifest_path(places)
    if not path:
        if pin:
            raise _refuse(f"{PIN_VARIABLE} is set, and {places[0]} has no {MANIFEST_NAME}.")
        if not any(map(_is_checkout, places)):
            raise _refuse(f"{places[0]} has no {MANIFEST_NAME}.")
        return Provenance("unsigned"), {}
    from . import manifest

    try:
        with open(path, "rb") as file:
            found = manifest.read(file.read(manifest.MANIFEST_BYTES_MAX + 1))
    except (OSError, manifest.ManifestError) as error:
        raise _refuse(f"{path} cannot be used: {error}.") from None
    signer = manifest.fingerprint(found.key)
    if not manifest.is_signature_valid(found):
        raise _refuse(f"{path} is not as it was signed.", found.kind)
    if pin and signer != pin.lower():
        raise _refuse(f"{path} is signed by {signer}, and {PIN_VARIABLE} names {pin}.")
    if found.kind == "release" and not pin and signer not in RELEASE_KEYS:
        raise _refuse(f"{path} is signed by {signer}, which neither code nor {PIN_VARIABLE} names.")
    if DESCRIPTOR not in found.files or not any(n.startswith("_core.") for n in found.files):
        raise _refuse(f"{path} does not name {DESCRIPTOR} and _core.", found.kind)
    return Provenance(found.kind, found.version, signer), found.files


def _locate(places: list[str], name: str) -> str:
    """Where a file of the package is; an editable install has more than one folder."""
    for place in places:
        path = os.path.join(place, name)
        if os.path.isfile(path):
            return path
    return os.path.join(places[0], name)


def _problem(places: list[str], name: str, digest: str) -> Finding | None:
    from . import manifest

    try:
        changed = manifest.file_sha256(_locate(places, name)) != digest
    except FileNotFoundError:
        return Finding(name, "missing")
    except OSError:
        return Finding(name, "changed")  # what cannot be read cannot be vouched for
    return Finding(name, "changed") if changed else None


def _modules(root: str) -> list[str]:
    """What can be imported below a folder."""
    files = (os.path.join(folder, name) for folder, _, names in os.walk(root) for name in names)
    return sorted(os.path.relpath(path, root) for path in files if path.endswith((".py", ".so")))


def check_at_import(folders: Iterable[str]) -> Provenance:
    """What `import sublimate` does. Raises InvalidSignatureError that names the file."""
    places = list(folders)
    who, files = provenance(places, os.environ.get(PIN_VARIABLE, ""))
    for name, digest in files.items():
        if name.startswith(AT_IMPORT) and (found := _problem(places, name, digest)):
            path = _locate(places, name)
            state = "is missing" if found.problem == "missing" else "is not as it was signed"
            raise _refuse(f"{path} {state}.", who.kind)
    return who


def is_own(arguments: list[str]) -> bool:
    """A process of ours: `sublimate`, or `python -m sublimate`."""
    return os.path.basename(arguments[0] if arguments else "") in COMMANDS


def check_or_exit(folders: Iterable[str], arguments: list[str]) -> Provenance:
    """As check_at_import. In a process of our own (`sublimate`, `python -m sublimate`), whose
    command line has not come into being to say so, an error is a line and an exit code."""
    try:
        return check_at_import(folders)
    except ImportError as error:
        code = getattr(error, "exit_code", None)  # of an InvalidSignatureError
        if code is None or not is_own(arguments):
            raise
        sys.stderr.write(f"Error: {error}\n")
        sys.exit(code)


def findings(folders: Iterable[str | Path], files: dict[str, str]) -> list[Finding]:
    """Every file of the manifest that is not as it was signed, and, in a whole installation, every
    module that it does not name."""
    places = [str(folder) for folder in folders]
    found = [_problem(places, name, digest) for name, digest in files.items()]
    if "__init__.py" in files:
        root = os.path.dirname(_locate(places, "__init__.py"))
        found += [Finding(name, "unknown") for name in _modules(root) if name not in files]
    return [finding for finding in found if finding]

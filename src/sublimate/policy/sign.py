"""Signing a wheel with a key that is kept apart: its manifest is made of what is in it, and
replaces the one of the build.

defines: load_key, sign_wheel
"""

from __future__ import annotations

import base64
import hashlib
import os
import zipfile
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from ..errors import ConfigError
from . import manifest

PACKAGE = "sublimate/"
MEMBER = PACKAGE + manifest.NAME


def load_key(path: Path, password: bytes | None = None) -> Ed25519PrivateKey:
    """From a PEM file, as `openssl genpkey -algorithm ed25519` makes it. Raises ConfigError."""
    try:
        key = load_pem_private_key(path.read_bytes(), password)
    except OSError as error:
        raise ConfigError(f"The key {path} cannot be read: {error.strerror}.") from None
    except (ValueError, TypeError, UnsupportedAlgorithm):
        text = (
            f"{path} is no PEM private key, or its password is not that of SUBLIMATE_KEY_PASSWORD."
        )
        raise ConfigError(text) from None
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError(f"{path} is no Ed25519 key.")
    return key


def sign_wheel(wheel: Path, key: Ed25519PrivateKey) -> str:
    """Rewrite the wheel with a release manifest; returns the key's fingerprint. Raises
    ConfigError."""
    scratch = wheel.with_name(wheel.name + ".unsigned")
    public = key.public_key().public_bytes_raw()
    try:
        with zipfile.ZipFile(wheel) as old:
            names = old.namelist()
            record = next((name for name in names if name.endswith(".dist-info/RECORD")), "")
            if PACKAGE + "__init__.py" not in names or not record:
                raise ConfigError(f"{wheel} is no wheel of Sublimate.")
            files = {
                name.removeprefix(PACKAGE): hashlib.sha256(old.read(name)).hexdigest()
                for name in names
                if name.startswith(PACKAGE) and not name.endswith("/") and name != MEMBER
            }
            version = wheel.name.split("-")[1]
            text = manifest.written("release", version, public, files, key.sign)
            with zipfile.ZipFile(scratch, "w", zipfile.ZIP_DEFLATED) as new:
                for item in old.infolist():
                    if item.filename not in (MEMBER, record):
                        new.writestr(item, old.read(item))
                new.writestr(MEMBER, text)
                new.writestr(record, _recorded(old.read(record).decode(), text))
    except (OSError, zipfile.BadZipFile, IndexError):
        raise ConfigError(f"{wheel} cannot be read as a wheel, or not be written.") from None
    os.replace(scratch, wheel)
    return manifest.fingerprint(public)


def _recorded(record: str, text: bytes) -> str:
    """RECORD with the manifest's new line."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(text).digest()).rstrip(b"=").decode()
    lines = [line for line in record.splitlines() if not line.startswith(MEMBER + ",")]
    return "\n".join([*lines, f"{MEMBER},sha256={digest},{len(text)}", ""])

"""A certificate of one's own for loopback: made once, kept in the user's data folder, renewed in
time. Clients pin or trust it by its fingerprint.

defines: own_certificate
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import ipaddress
import os
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING

from ..config.folders import private_folder
from ..errors import ConfigError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric import ec

NAME = "Sublimate on this machine"
HOSTS = ("localhost",)
ADDRESSES = ("127.0.0.1", "::1")
VALID = datetime.timedelta(days=365)
RENEWED_BEFORE = datetime.timedelta(days=30)
PRIVATE_MODE = 0o600


def own_certificate(folder: Path) -> tuple[Path, Path]:
    """(certificate, key) as PEM files in the folder. Raises ConfigError."""
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    try:
        private_folder(folder)
        with _locked(folder):
            if not _is_fresh(certificate, key):
                _make(certificate, key)
    except OSError as error:
        raise ConfigError(f"{folder} cannot hold a certificate: {error.strerror}.") from None
    return certificate, key


@contextlib.contextmanager
def _locked(folder: Path) -> Generator[None]:
    """Waits for another start that is making the pair. Raises OSError."""
    with open(os.open(folder / "lock", os.O_CREAT | os.O_RDWR, PRIVATE_MODE), "rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _is_fresh(certificate: Path, key: Path) -> bool:
    """Also checks that they match: a start may have been killed between its two files."""
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        known = x509.load_pem_x509_certificate(certificate.read_bytes())
        private = load_pem_private_key(key.read_bytes(), None)
    except (FileNotFoundError, ValueError, TypeError):
        return False
    if known.public_key() != private.public_key():
        return False
    return known.not_valid_after_utc - datetime.datetime.now(datetime.UTC) > RENEWED_BEFORE


def _make(certificate: Path, key: Path) -> None:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    private = ec.generate_private_key(ec.SECP256R1())
    secret = private.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    # Write both before either is in place: a server that reads them meanwhile gets the old pair.
    made = [(certificate, _signed(private)), (key, secret)]
    parts = [path.with_suffix(".part") for path, _ in made]
    for part, (_, data) in zip(parts, made, strict=True):
        part.unlink(missing_ok=True)
        with open(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, PRIVATE_MODE), "wb") as file:
            file.write(data)
    for part, (path, _) in zip(parts, made, strict=True):
        os.replace(part, path)


def _signed(private: ec.EllipticCurvePrivateKey) -> bytes:
    """A certificate for loopback, signed by its own key, as PEM."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.x509.oid import ExtendedKeyUsageOID

    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, NAME)])
    names: list[x509.GeneralName] = [x509.DNSName(host) for host in HOSTS]
    names += [x509.IPAddress(ipaddress.ip_address(address)) for address in ADDRESSES]
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + VALID)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    )
    signed = builder.sign(private, hashes.SHA256())
    return signed.public_bytes(serialization.Encoding.PEM)

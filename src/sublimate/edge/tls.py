"""The TLS side of a listening socket.

defines: server_context, load_chain, fingerprint
"""

from __future__ import annotations

import hashlib
import ssl
from collections.abc import Sequence
from pathlib import Path

from ..errors import ConfigError

APPLICATION_PROTOCOLS = ["http/1.1"]


def server_context(
    certificate: str, key: str, protocols: Sequence[str] = APPLICATION_PROTOCOLS
) -> ssl.SSLContext:
    """From PEM files; the key may lie in the certificate's (key empty). Raises ConfigError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols([*protocols])
    load_chain(context, certificate, key)
    return context


def load_chain(context: ssl.SSLContext, certificate: str, key: str) -> None:
    """Also into a context in use: connections from then on get it. Raises ConfigError."""

    def no_password() -> str:
        raise ConfigError(f"The TLS key of {certificate} has a password; a server cannot ask.")

    try:
        context.load_cert_chain(certificate, key or None, no_password)
    except OSError as error:  # what ssl raises is one too
        reason = "they do not belong together, or are not PEM"
        if not isinstance(error, ssl.SSLError):
            reason = str(error.strerror)
        files = f"{certificate} and {key}" if key else certificate
        raise ConfigError(f"The TLS certificate cannot be used ({files}): {reason}.") from None


def fingerprint(certificate: str) -> str:
    """SHA-256 of the first certificate of a PEM file, in hex. Raises ConfigError."""
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    try:
        text = Path(certificate).read_text(encoding="ascii")
        first = text[text.index(begin) : text.index(end) + len(end)]
        return hashlib.sha256(ssl.PEM_cert_to_DER_cert(first)).hexdigest()
    except (OSError, ValueError):
        raise ConfigError(f"{certificate} is no PEM certificate.") from None

"""What a server says of itself: its ports and its certificate.

defines: PATH, read_service
"""

from __future__ import annotations

import msgspec

from .choice import Service

PATH = "/.well-known/sublimate"
BYTES_MAX = 64 << 10


class _Ports(msgspec.Struct):
    h3: int = 0
    grpc: int = 0


class _WellKnown(msgspec.Struct):
    ports: _Ports
    certificate_sha256: str | None = None


def read_service(body: bytes) -> Service | None:
    """None: that is no answer of a server of ours."""
    if len(body) > BYTES_MAX:
        return None
    try:
        said = msgspec.json.decode(body, type=_WellKnown)
    except msgspec.DecodeError:
        return None
    digest = (said.certificate_sha256 or "").lower()
    try:
        return Service(said.ports.h3, said.ports.grpc, digest)
    except ValueError:
        return None

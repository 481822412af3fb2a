"""Which of the server's edges this one is.

defines: Place, ALONE
"""

from __future__ import annotations

import hashlib
import secrets

import msgspec

SECRET_BYTES = 32


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """As the supervisor has told."""

    number: int = 0
    """Unlike that of any other edge that runs."""
    worker: int = 0
    workers: int = 1
    secret: bytes = b""
    """Of the server, the same for all its edges; empty: nobody has told one."""
    prefix_secret: int = 0
    """Of the hashes by which its engines tell what they have cached."""

    def __post_init__(self) -> None:
        if not 0 <= self.worker < self.workers:
            raise ValueError("a worker is one of those that there are")

    def key(self, purpose: str) -> bytes:
        """A key for one purpose (32 bytes), the same in all edges."""
        secret = self.secret or secrets.token_bytes(SECRET_BYTES)
        return hashlib.blake2b(purpose.encode(), key=secret, digest_size=SECRET_BYTES).digest()


ALONE = Place()

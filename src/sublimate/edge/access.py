"""Who may ask: API keys, tenants, and the origins of browsers.

Deny by default: every path needs a key, but for a fixed list. Keys are compared as SHA-256 digests,
all of them, in constant time.

defines: OPEN_PATHS, Access
"""

from __future__ import annotations

import hashlib
import hmac

from ..config import EdgeSettings
from .errors import ApiError
from .exchange import Exchange, Header, Request
from .record import Tenant

OPEN_PATHS = frozenset(
    [
        *(("HEAD", "/"), ("GET", "/"), ("HEAD", "/api/hello"), ("GET", "/api/hello")),
        *(("GET", path) for path in ("/livez", "/readyz", "/health", "/ping")),
        *(("HEAD", path) for path in ("/livez", "/readyz", "/health", "/ping")),
    ]
)
LOOPBACK_ORIGINS = ("http://localhost", "http://127.0.0.1", "http://[::1]")
ALLOWED_METHODS = "GET, HEAD, POST, OPTIONS"
ALLOWED_HEADERS = (
    "x-api-key, authorization, anthropic-version, anthropic-beta, "
    "anthropic-dangerous-direct-browser-access, content-type"
)
ALLOWED_HEADER_PREFIXES = ("x-stainless-", "anthropic-", "x-claude-code-")
EXPOSED_HEADERS = (
    "request-id, retry-after, x-should-retry, x-layer, x-layer-zero, x-compute-path, "
    "x-engine-utilization, x-layer-config"
)
PREFLIGHT_SECONDS = 600
TENANT_LABEL = b"sublimate tenant"


class Access:
    """The rules of one server."""

    def __init__(self, settings: EdgeSettings) -> None:
        self._digests = [_digest(key.encode()) for key in settings.api_keys]
        # Tenants are told apart by a secret that only the keys' owner knows, never by anything
        # that a client or the interpreter chooses.
        self._secret = hashlib.sha256(TENANT_LABEL + b"".join(sorted(self._digests))).digest()
        self._any_origin = "*" in settings.cors_origins
        self._origins = frozenset(settings.cors_origins)
        self._tenants: dict[bytes, Tenant] = {}

    def check(self, exchange: Exchange) -> None:
        """Raises ApiError; on success the exchange knows its key and the browser's headers."""
        request = exchange.request
        origin = request.field(b"origin")
        if origin:
            if not self._origin_allowed(origin):
                raise ApiError("origin_refused")
            exchange.standing_headers += self._origin_headers(origin)
        if request.method == "OPTIONS" and origin:
            return  # a preflight carries no key
        if (request.method, request.path) in OPEN_PATHS:
            return
        exchange.tenant_key = self._accepted_key(request)

    def _accepted_key(self, request: Request) -> bytes:
        """Digest of the request's key; empty if no key is needed."""
        if not self._digests:
            return b""
        given = [request.fields.get(b"x-api-key", b"")]
        scheme, _, token = request.fields.get(b"authorization", b"").partition(b" ")
        if scheme.lower() == b"bearer":
            given.append(token.strip())
        accepted = b""
        for key in given:
            digest = _digest(key)
            for known in self._digests:
                if hmac.compare_digest(digest, known):
                    accepted = known
        if not accepted:
            raise ApiError("unauthenticated")
        return accepted

    def tenant(self, key_digest: bytes) -> Tenant:
        """64 bits that stand for the key's owner in cache keys."""
        tenant = self._tenants.get(key_digest)
        if tenant is None:
            mac = hmac.digest(self._secret, key_digest, "sha256")
            low = int.from_bytes(mac[:4], "little", signed=True)
            high = int.from_bytes(mac[4:8], "little", signed=True)
            tenant = self._tenants[key_digest] = Tenant(low, high)
        return tenant

    # ---- browsers ------------------------------------------------------------------------------
    def _origin_allowed(self, origin: str) -> bool:
        if self._any_origin or origin in self._origins:
            return True
        # A page of this machine, whatever its port: the same person.
        return any(origin == local or origin.startswith(f"{local}:") for local in LOOPBACK_ORIGINS)

    def _origin_headers(self, origin: str) -> list[Header]:
        return [
            ("access-control-allow-origin", "*" if self._any_origin else origin),
            ("access-control-expose-headers", EXPOSED_HEADERS),
            ("vary", "origin"),
        ]

    def preflight(self, exchange: Exchange) -> None:
        """Answer OPTIONS."""
        asked = exchange.request.field(b"access-control-request-headers").lower()
        names = [name.strip() for name in asked.split(",")]
        more = [
            name
            for name in names
            if name.startswith(ALLOWED_HEADER_PREFIXES) and name.replace("-", "").isalnum()
        ]
        headers = [
            ("access-control-allow-methods", ALLOWED_METHODS),
            ("access-control-allow-headers", ", ".join([ALLOWED_HEADERS, *more])),
            ("access-control-max-age", str(PREFLIGHT_SECONDS)),
        ]
        exchange.send(204, headers, b"")


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()

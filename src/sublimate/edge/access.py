"""Who may ask: API keys, tenants, the origins of browsers, and the host that they mean.

Deny by default: every path needs a key, but for a fixed list. Keys are compared as SHA-256 digests,
all of them, in constant time. A key of the settings is its own tenant; a key of the keys file has
a name, which is the tenant, and limits. The file may be read again while requests run.

Without keys, who reaches the port may ask. On loopback that is meant to be this machine; a page
elsewhere that has its own name resolve to loopback would be let in with it, so there the host that
a request names has to be known.

defines: OPEN_PATHS, Access
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
from pathlib import Path

from ..config import EdgeSettings
from ..errors import ConfigError
from ..keys import NamedKey, read_keys
from .errors import ApiError
from .exchange import Exchange, Header, Request
from .ledger import SharedLedgers
from .quota import FIELDS, KINDS, NOBODY, Owner, Quota
from .record import Tenant

OPEN_PATHS = frozenset(
    [
        *(("HEAD", "/"), ("GET", "/"), ("HEAD", "/api/hello"), ("GET", "/api/hello")),
        *(("GET", path) for path in ("/livez", "/readyz", "/health", "/ping")),
        *(("HEAD", path) for path in ("/livez", "/readyz", "/health", "/ping")),
        ("GET", "/.well-known/sublimate"),
    ]
)
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
LOOPBACK_ORIGINS = ("http://localhost", "http://127.0.0.1", "http://[::1]")
SECURE_LOOPBACK_ORIGINS = ("https://localhost", "https://127.0.0.1", "https://[::1]")
"""Allowed if named in the settings, with any port."""
ALLOWED_METHODS = "GET, HEAD, POST, DELETE, OPTIONS"
ALLOWED_HEADERS = (
    "x-api-key, authorization, anthropic-version, anthropic-beta, "
    "anthropic-dangerous-direct-browser-access, content-type, idempotency-key, "
    "traceparent, x-execution-profile"
)
SCHEME = re.compile(r"(?!https?:)[a-z][a-z0-9+.-]*:(//\*)?")
"""All origins of an application's scheme, such as app://* or vscode-webview://, in a setting whose
last slashes are cut off."""
FIELD_NAME = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]+")
EXPOSED_HEADERS = (
    "request-id, retry-after, x-should-retry, x-layer, x-layer-zero, x-compute-path, "
    "x-engine-utilization, x-kv-headroom, x-layer-config, x-schema-relaxed, x-left-out, "
    "x-request-id, "
    + ", ".join(f"anthropic-ratelimit-{kind}-{field}" for kind in KINDS for field in FIELDS)
)
PREFLIGHT_SECONDS = 600
TENANT_LABEL = b"sublimate tenant"
NAME_LABEL = b"name:"


class Access:
    """The rules of one server. On the event loop's thread only."""

    def __init__(
        self, settings: EdgeSettings, secret: bytes = b"", ledgers: SharedLedgers | None = None
    ) -> None:
        """secret: that all edges of a server tell tenants apart by; empty: one of the keys.
        ledgers: where they count together. Raises ConfigError for a keys file that is not valid."""
        if not all(key.strip() for key in settings.api_keys):
            raise ConfigError("An API key is empty: a request without one would have it.")
        digests = [_digest(key.encode()) for key in settings.api_keys]
        self._unnamed = [(digest, Owner(digest)) for digest in digests]
        self._file = Path(settings.keys_file) if settings.keys_file else None
        self._owners: list[tuple[bytes, Owner]] = []
        self._quotas: dict[str, Quota] = {}
        self._ledgers = ledgers
        self._has_file = False
        """It was there once. One whose last key was removed opens nothing."""
        self.reload()
        # Tenants are told apart by a secret that only the keys' owner knows, never by anything
        # that a client or the interpreter chooses. Of the first keys: another reading of the file
        # moves nobody's cache.
        known = sorted(digest for digest, _ in self._owners)
        self._secret = secret or hashlib.sha256(TENANT_LABEL + b"".join(known)).digest()
        self._any_origin = "*" in settings.cors_origins
        named = [origin.lower().rstrip("/") for origin in settings.cors_origins]
        self._origins = frozenset(named)
        self._origin_beginnings = (
            *(f"{origin}:" for origin in LOOPBACK_ORIGINS),
            *(f"{origin}:" for origin in SECURE_LOOPBACK_ORIGINS if origin in self._origins),
            *(f"{origin.removesuffix('//*')}//" for origin in named if SCHEME.fullmatch(origin)),
        )
        self._tenants: dict[bytes, Tenant] = {}
        self._any_host = "*" in settings.allowed_hosts
        self._hosts = frozenset((*LOOPBACK_NAMES, *map(str.lower, settings.allowed_hosts)))
        self.is_loopback = False
        """Whether only this machine reaches the server; set when it listens."""

    # ---- keys ----------------------------------------------------------------------------------
    def reload(self) -> None:
        """Read the keys file. Who is being answered goes on, and what was used stays used. Raises
        ConfigError, and then what was known holds."""
        named: dict[str, NamedKey] = {}
        if self._file is not None:
            try:
                named = read_keys(self._file)
                self._has_file = True
            except FileNotFoundError:
                if self._has_file:
                    raise ConfigError(f"The keys file {self._file} is gone.") from None
        quotas: dict[str, Quota] = {}
        owners = list(self._unnamed)
        for name, key in named.items():
            quota = self._quotas.get(name)
            if quota is None:
                ledger = self._ledgers.of(name) if self._ledgers is not None else None
                quota = Quota(key, ledger=ledger)
            else:
                quota.set_limits(key)
            quotas[name] = quota
            owner = Owner(NAME_LABEL + name.encode(), name, quota)
            owners.append((bytes.fromhex(key.sha256), owner))
        self._owners, self._quotas = owners, quotas

    def check(self, exchange: Exchange) -> None:
        """Raises ApiError; on success the exchange knows its owner and the browser's headers."""
        request = exchange.request
        if self.is_loopback and not self.needs_key and not self._host_allowed(request):
            raise ApiError("host_refused")
        origin = request.field(b"origin")
        if origin:
            if not self.origin_allowed(origin):
                raise ApiError("origin_refused")
            exchange.standing_headers += self._origin_headers(origin)
        if request.method == "OPTIONS" and origin:
            return  # a preflight carries no key
        if (request.method, request.path) in OPEN_PATHS:
            return
        exchange.owner = self.owner(request)

    @property
    def needs_key(self) -> bool:
        """Else everybody who reaches the server may ask."""
        return bool(self._unnamed) or self._has_file

    def owner(self, request: Request) -> Owner:
        """Of the key that the request carries. Raises ApiError."""
        if not self.needs_key:
            return NOBODY
        given = [request.fields.get(b"x-api-key", b"")]
        scheme, _, token = request.fields.get(b"authorization", b"").partition(b" ")
        if scheme.lower() == b"bearer":
            given.append(token.strip())
        accepted = None
        for key in given:
            digest = _digest(key)
            for known, owner in self._owners:
                if hmac.compare_digest(digest, known):
                    accepted = owner
        if accepted is None:
            raise ApiError("unauthenticated")
        return accepted

    def owner_by_key(self, key: bytes) -> Owner | None:
        """Who was known by Owner.key before, also in an earlier process; for work that outlives
        its request. None: that key was removed, or now keys are needed and there was none."""
        if not key and not self.needs_key:
            return NOBODY
        return next((owner for _, owner in self._owners if owner.key == key), None)

    def tenant(self, key: bytes) -> Tenant:
        """64 bits that stand for the owner in cache keys."""
        tenant = self._tenants.get(key)
        if tenant is None:
            mac = hmac.digest(self._secret, key, "sha256")
            low = int.from_bytes(mac[:4], "little", signed=True)
            high = int.from_bytes(mac[4:8], "little", signed=True)
            tenant = self._tenants[key] = Tenant(low, high)
        return tenant

    # ---- browsers ------------------------------------------------------------------------------
    def _host_allowed(self, request: Request) -> bool:
        """A literal address needs no resolver, so nobody can have it resolve to another one."""
        host = request.field(b"host").lower()
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        if not name or self._any_host or name in self._hosts:
            return True
        try:
            ipaddress.ip_address(name.strip("[]"))
        except ValueError:
            return False
        return True

    def origin_allowed(self, origin: str) -> bool:
        if self._any_origin or origin.lower() in self._origins:
            return True
        # A page of this machine, whatever its port: the same person.
        return origin in LOOPBACK_ORIGINS or origin.lower().startswith(self._origin_beginnings)

    def _origin_headers(self, origin: str) -> list[Header]:
        return [
            ("access-control-allow-origin", "*" if self._any_origin else origin),
            ("access-control-expose-headers", EXPOSED_HEADERS),
            ("vary", "origin"),
        ]

    def preflight(self, exchange: Exchange) -> None:
        """Answer OPTIONS. An allowed origin may send whatever fields it asks for."""
        request = exchange.request
        asked = request.field(b"access-control-request-headers").lower()
        more = [name for part in asked.split(",") if FIELD_NAME.fullmatch(name := part.strip())]
        headers = [
            ("access-control-allow-methods", ALLOWED_METHODS),
            ("access-control-allow-headers", ", ".join([ALLOWED_HEADERS, *more])),
            ("access-control-max-age", str(PREFLIGHT_SECONDS)),
        ]
        if request.field(b"access-control-request-private-network").lower() == "true":
            headers.append(("access-control-allow-private-network", "true"))
        exchange.send(204, headers, b"")


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()

"""A running server, as the commands that look after it see it.

Servers of this machine are found by their listening processes: the kernel's own table, so nothing
is left behind by one that was killed.

defines: AGENT_CONTEXT_TOKENS, CONTEXT_ADVICE, connect, not_ready, Peer, configured_peer,
         own_certificate_of, gauges, local_urls, listening_ports
"""

from __future__ import annotations

import contextlib
import http.client
import re
import ssl
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from ..bench.apis import WELL_KNOWN, headers, required_profile
from ..config import Effective, data_folder
from ..errors import ConfigError, PeerError
from .output import error_text

AGENT_CONTEXT_TOKENS = 32_768
"""Below this an agent's own system prompt and tools leave no room for work."""
CONTEXT_ADVICE = (
    f"set --context-length {AGENT_CONTEXT_TOKENS}, and --rope-scaling yarn if the model was "
    "trained for less (the default model was)"
)
OK_STATUS = 200
LOOK_SECONDS = 3.0
LISTENING = "0A"
LOOPBACK_HEX = "0100007F"
ANY_HEX = "00000000"
SAMPLE = re.compile(r"(sublimate_\w+)(?:\{[^}]*\})? (\S+)")


def connect(
    url: str, timeout_seconds: float, context: ssl.SSLContext | None = None
) -> http.client.HTTPConnection:
    """Not connected yet. context: of https, where others than the usual are trusted. Raises
    PeerError for what is no URL."""
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise PeerError(f"{url!r} is no http or https URL.")
    host, port = parts.hostname, parts.port
    if parts.scheme == "https":
        return http.client.HTTPSConnection(host, port, timeout=timeout_seconds, context=context)
    return http.client.HTTPConnection(host, port, timeout=timeout_seconds)


def not_ready(url: str) -> PeerError:
    return PeerError(
        f"No server is ready at {url}: start one with `sublimate serve`, or name another by --url."
    )


class Model(msgspec.Struct):
    """What is used of an entry of GET /v1/models."""

    id: str
    max_input_tokens: int
    max_tokens: int


class _Entry(msgspec.Struct):
    """As it is told: without numbers before the model was loaded for the first time."""

    id: str
    max_input_tokens: int | None
    max_tokens: int | None


class _Models(msgspec.Struct):
    data: list[_Entry]


class _Ready(msgspec.Struct):
    warnings: list[str] = []


class Peer:
    """One server, asked one thing at a time."""

    def __init__(self, url: str, key: str = "", certificate: Path | None = None) -> None:
        """certificate: PEM to trust beside the usual authorities, for https. Raises PeerError for
        what is no URL, ConfigError for a file that holds no certificate."""
        self.url = (url if "://" in url else f"http://{url}").rstrip("/")
        self.key = key
        self.trusted = certificate if self.url.startswith("https:") else None
        """PEM beside the usual authorities."""
        self._trust: ssl.SSLContext | None = None
        if certificate is not None and self.url.startswith("https:"):
            self._trust = ssl.create_default_context()
            try:
                self._trust.load_verify_locations(certificate)
            except OSError:  # what ssl raises is one too
                raise ConfigError(f"{certificate} is no file with certificates (PEM).") from None
        connect(self.url, LOOK_SECONDS).close()

    @cached_property
    def profile(self) -> str:
        """The execution profile that requests must name; empty: none, or the server does not
        answer, which the next request reports."""
        with contextlib.suppress(PeerError):
            status, body = self._exchange(WELL_KNOWN, None, LOOK_SECONDS, "")
            return required_profile(body) if status == OK_STATUS else ""
        return ""

    def connection(self, seconds: float) -> http.client.HTTPConnection:
        """Not connected yet."""
        return connect(self.url, seconds, self._trust)

    def failure(self, error: Exception) -> PeerError:
        """Of a connection that has not come to be, or has ended."""
        if isinstance(error, ssl.SSLCertVerificationError):
            return PeerError(
                f"Nothing here trusts the certificate of {self.url} ({error.verify_message}). Name "
                "it: --cacert FILE. Of `serve --tls` it is tls/certificate.pem in its data folder."
            )
        return not_ready(self.url)

    def ask(
        self, path: str, body: dict[str, Any] | None = None, seconds: float = LOOK_SECONDS
    ) -> tuple[int, bytes]:
        """Status and body of GET, or of POST where there is a body. Raises PeerError."""
        return self._exchange(path, body, seconds, "" if body is None else self.profile)

    def _exchange(
        self, path: str, body: dict[str, Any] | None, seconds: float, profile: str
    ) -> tuple[int, bytes]:
        connection = self.connection(seconds)
        try:
            data = None if body is None else msgspec.json.encode(body)
            method = "GET" if data is None else "POST"
            connection.request(method, path, data, headers(self.key, profile))
            response = connection.getresponse()
            return response.status, response.read()
        except (OSError, http.client.HTTPException) as error:
            raise self.failure(error) from error
        finally:
            connection.close()

    def json(
        self, path: str, body: dict[str, Any] | None = None, seconds: float = LOOK_SECONDS
    ) -> Any:
        """The answer's JSON. Raises PeerError for any other answer."""
        status, data = self.ask(path, body, seconds)
        if status == http.client.UNAUTHORIZED:
            raise PeerError(f"{self.url} wants a key: set --api-key or SUBLIMATE_API_KEYS.")
        try:
            decoded = msgspec.json.decode(data)
        except msgspec.DecodeError:
            raise PeerError(f"{self.url}{path} does not answer as Sublimate does.") from None
        if status != OK_STATUS:
            raise PeerError(f"{self.url}{path} answers {status}: {error_text(data)}")
        return decoded

    def model(self) -> Model:
        """The served model with its effective limits. Raises PeerError."""
        try:
            first = msgspec.convert(self.json("/v1/models"), _Models).data[0]
            return Model(first.id, first.max_input_tokens or 0, first.max_tokens or 0)
        except (msgspec.ValidationError, IndexError):
            raise PeerError(f"{self.url} lists no model as Sublimate does.") from None

    def ready(self) -> bool:
        with contextlib.suppress(PeerError):
            return self.ask("/readyz")[0] == OK_STATUS
        return False

    def warnings(self) -> list[str]:
        """What a ready server says of itself. Raises PeerError."""
        try:
            return msgspec.convert(self.json("/readyz"), _Ready).warnings
        except msgspec.ValidationError:
            raise PeerError(f"{self.url}/readyz does not answer as Sublimate does.") from None

    def sublimate(self) -> bool:
        """It is one of ours, and not some other program with a port."""
        with contextlib.suppress(PeerError):
            status, data = self.ask("/livez")
            return status == OK_STATUS and data == b'{"status":"ok"}'
        return False


def configured_peer(effective: Effective, url: str, certificate: Path | None = None) -> Peer:
    """The server at a URL, or else the one at the configured address; asked with the first key. The
    certificate that this user's own server has made is trusted, if none is named."""
    settings = effective.settings
    keys = settings.edge.api_keys
    default = f"http://{settings.server.host}:{settings.server.port}"
    trusted = certificate or own_certificate_of(effective)
    return Peer(url or default, keys[0] if keys else "", trusted)


def own_certificate_of(effective: Effective) -> Path | None:
    """That this user's own server has made for loopback, if it has."""
    own = data_folder(effective.settings.edge) / "tls" / "certificate.pem"
    return own if own.is_file() else None


def gauges(exposition: bytes) -> dict[str, float]:
    """The plain samples of /metrics by name, without our prefix; of several workers their sum."""
    found: dict[str, float] = {}
    for match in SAMPLE.finditer(exposition.decode(errors="replace")):
        with contextlib.suppress(ValueError):
            name = match[1].removeprefix("sublimate_")
            found[name] = found.get(name, 0.0) + float(match[2])
    return found


def local_urls(proc: Path = Path("/proc")) -> list[str]:
    """URLs of loopback or wildcard ports (IPv4) that edge processes of this user listen on."""
    inodes: dict[str, int] = {}
    with contextlib.suppress(OSError):
        for line in (proc / "net/tcp").read_text().splitlines()[1:]:
            fields = line.split()
            address, port = fields[1].split(":")
            if fields[3] == LISTENING and address in (LOOPBACK_HEX, ANY_HEX):
                inodes[fields[9]] = int(port, 16)
    ports = {inodes[inode] for edge in _edges(proc) for inode in _sockets(edge) if inode in inodes}
    return [f"http://127.0.0.1:{port}" for port in sorted(ports)]


def listening_ports(process: Path) -> list[int]:
    """TCP ports that a process (/proc/NUMBER) listens on."""
    ports: dict[str, int] = {}
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in (process / "net" / name).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == LISTENING:
                    ports[fields[9]] = int(fields[1].rpartition(":")[2], 16)
    return sorted({ports[inode] for inode in _sockets(process) if inode in ports})


def _edges(proc: Path) -> Iterator[Path]:
    for folder in proc.iterdir():
        with contextlib.suppress(OSError):
            if folder.name.isdigit() and b"\0sublimate.edge\0" in (folder / "cmdline").read_bytes():
                yield folder


def _sockets(process: Path) -> Iterator[str]:
    """Inodes of its sockets."""
    with contextlib.suppress(OSError):
        for link in (process / "fd").iterdir():
            with contextlib.suppress(OSError):
                target = str(link.readlink())
                if target.startswith("socket:["):
                    yield target[len("socket:[") : -1]

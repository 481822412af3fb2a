"""A client of the HTTP library for SDKs, that carries their requests to a Sublimate server in the
best way there is: HTTP/3, gRPC, binary frames. What the SDK sees is HTTP with server-sent events.

    client = anthropic.Anthropic(base_url=..., http_client=sublimate.client.http_client())

In call order: choice.py (which carriers a request may take), core.py (what a client knows),
transport.py (what the HTTP library calls), network.py and race.py (connections, on the thread of
background.py), quic.py (HTTP/3), pipe.py (an answer's bytes, from there to the reader). Beside it
validation.py and alerts.py look at answers, for any client of the library.

defines: http_client, async_http_client, validator
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from .report import Report as Report
from .report import Used as Used
from .validation import DIRECT_PATHS
from .validation import TrafficPausedError as TrafficPausedError
from .validation import Validator as Validator

if TYPE_CHECKING:
    import httpx

__all__ = [
    "Report",
    "TrafficPausedError",
    "Used",
    "Validator",
    "async_http_client",
    "http_client",
    "validator",
]

PROFILE = "x-execution-profile"
CONNECTIONS_MAX = 1000
IDLE_CONNECTIONS_MAX = 100
"""As the SDK's own clients have it."""


def http_client(
    *,
    carriers: Sequence[str] = (),
    verify: Any = True,
    library: str = "",
    execution_profile: str = "",
    **options: Any,
) -> httpx.Client:
    """A client to hand to `anthropic.Anthropic(http_client=...)`; has `report()` besides.

    carriers: those that may be used, best first, of h3, grpc-h3, grpc-h2, frames and http/1.1; then
    servers are asked at once what they are. Empty: all, and a server is asked once it has answered
    as one of ours; the first request goes as the HTTP library sends it. verify: as the library
    takes it, or the path of a file with certificates (PEM). library: httpx or httpx2; empty: that
    of the installed anthropic. execution_profile: named to the server in the header
    x-execution-profile of each request; empty: none. options: others of the library's Client.
    Raises ConfigError.
    """
    return _make("Client", carriers, verify, library, _with_profile(options, execution_profile))


def async_http_client(
    *,
    carriers: Sequence[str] = (),
    verify: Any = True,
    library: str = "",
    execution_profile: str = "",
    **options: Any,
) -> httpx.AsyncClient:
    """The same for `anthropic.AsyncAnthropic`, in asyncio. Raises ConfigError."""
    options = _with_profile(options, execution_profile)
    return _make("AsyncClient", carriers, verify, library, options)


def _with_profile(options: dict[str, Any], execution_profile: str) -> dict[str, Any]:
    if not execution_profile:
        return options
    return {**options, "headers": {**(options.get("headers") or {}), PROFILE: execution_profile}}


def validator(
    *,
    compute_paths: Sequence[str] = DIRECT_PATHS,
    policy_digest: str | None = None,
    utilization: tuple[float, float] = (0.0, 1.0),
    webhook: str = "",
    webhook_headers: Mapping[str, str] | None = None,
    **options: Any,
) -> Validator:
    """Looks whether answers took the direct path: its `event_hooks()` and `async_event_hooks()` are
    for any client of the HTTP library.

    compute_paths: values of X-Compute-Path that are right. policy_digest: that X-Layer-Config has
    to be; None: the one of this installation, empty: any. utilization: least and greatest share.
    webhook: is POSTed a JSON object when traffic pauses and when it goes on. options: others of
    Validator (misses_max, probe_seconds, pauses, paths). Raises ConfigError.
    """
    from .. import _core
    from .alerts import Alerts
    from .validation import Expected

    digest = _core.POLICY_DIGEST if policy_digest is None else policy_digest
    expected = Expected(
        compute_paths=tuple(compute_paths), policy_digest=digest, utilization=utilization
    )
    return Validator(expected, Alerts(webhook, webhook_headers), **options)


def _make(
    base: str, carriers: Sequence[str], verify: Any, library_name: str, options: dict[str, Any]
) -> Any:
    from .choice import OVER_HTTP1
    from .core import Core
    from .library import load_library
    from .transport import make_async_transport, make_transport

    library = load_library(library_name)
    cert = options.pop("cert", None)
    if cert is not None:
        carriers = carriers or OVER_HTTP1  # a client's certificate is shown by the library alone
    if isinstance(verify, str):
        verify = ssl.create_default_context(cafile=verify)
    core = Core(library, carriers, verify, os.environ)
    limits = options.pop("limits", None) or library.Limits(
        max_connections=CONNECTIONS_MAX, max_keepalive_connections=IDLE_CONNECTIONS_MAX
    )
    trust_env = options.get("trust_env", True)
    is_async = base == "AsyncClient"
    plain = library.AsyncHTTPTransport if is_async else library.HTTPTransport

    def make_plain(proxy: Any = None) -> Any:
        return plain(verify=verify, trust_env=trust_env, limits=limits, cert=cert, proxy=proxy)

    # A given transport makes the library forget the environment's proxies, so they are told here:
    # what goes through a proxy is the library's own.
    found = _proxies(library) if trust_env else {}
    mounts = {name: proxy and make_plain(proxy) for name, proxy in found.items()}
    options["mounts"] = {**mounts, **(options.get("mounts") or {})}
    options.setdefault("follow_redirects", True)
    made = make_async_transport if is_async else make_transport

    def report(client: Any) -> Report:
        del client
        return core.tally.report()

    client_class = cast(Any, type(base, (getattr(library, base),), {"report": report}))
    return client_class(transport=made(core, make_plain), **options)


def _proxies(library: Any) -> dict[str, Any]:
    """Of the environment, by the library's patterns; None: no proxy for these."""
    return import_module(f"{library.__name__}._utils").get_environment_proxies()

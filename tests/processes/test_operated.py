"""`sublimate serve` with what an operator sets: HTTPS, named keys and their reload."""

import signal
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from servers import Server, wait_until
from test_serve import model as model
from test_serve import script as script
from test_serve import serving

from sublimate.keys import KeyLimits, add_key

SECONDS = 20.0


@pytest.fixture
def server(script: Path, tmp_path: Path) -> Iterator[Server]:
    keys = tmp_path / "keys.toml"
    add_key(keys, "first", KeyLimits())
    more = ("--tls", "--tls-port", "0", "--data-dir", str(tmp_path), "--keys-file", str(keys))
    with serving("--script", str(script), *more) as running:
        running.ready()
        yield running


def ask(url: str, key: str, trust: ssl.SSLContext | None = None) -> int:
    """Status of a small request."""
    body: dict[str, Any] = {"model": "default", "max_tokens": 3}
    body["messages"] = [{"role": "user", "content": "hi"}]
    headers = {"x-api-key": key, "content-type": "application/json"}
    request = urllib.request.Request(
        f"{url}/v1/messages", msgspec.json.encode(body), headers, method="POST"
    )
    try:
        with urllib.request.urlopen(request, timeout=SECONDS, context=trust) as reply:
            return reply.status
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_https_with_its_own_certificate_and_keys_that_change(
    server: Server, tmp_path: Path
) -> None:
    assert ask(server.url, "unknown") == 401
    key = add_key(tmp_path / "keys.toml", "second", KeyLimits())
    assert ask(server.url, key) == 401
    server.signal(signal.SIGHUP)
    wait_until(lambda: ask(server.url, key) == 200, SECONDS)
    request = urllib.request.Request(server.url + "/.well-known/sublimate")
    request.add_header("x-api-key", key)
    with urllib.request.urlopen(request, timeout=SECONDS) as reply:
        told = msgspec.json.decode(reply.read())
    trust = ssl.create_default_context(cafile=str(tmp_path / "tls" / "certificate.pem"))
    secure = f"https://127.0.0.1:{told['ports']['https']}"
    assert ask(secure, key, trust) == 200
    server.signal(signal.SIGTERM)
    assert server.wait() == 0

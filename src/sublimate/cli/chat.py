"""`sublimate chat`: a conversation in the terminal, with a running server or one started for it.

defines: chat, connect, own_server
"""

from __future__ import annotations

import http.client
import os
import secrets
import ssl
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import msgspec

from ..bench.apis import MESSAGES, headers, read_event
from ..config import Effective, cache_folder
from ..errors import EngineError, ExitCode, ModelError, PeerError
from .output import complain, error_text, errors, out

OK_STATUS = 200
CONNECT_SECONDS = 2.0
ANSWER_SECONDS = 600.0
STOP_SECONDS = 5.0
KEY_BYTES = 16
HELP = "/new starts over, /exit (or Ctrl-D) ends, Ctrl-C stops an answer."


def chat(
    effective: Effective,
    *,
    config: Path | None,
    url: str | None,
    system: str,
    max_tokens: int,
    temperature: float,
) -> ExitCode:
    """Talk until the end of the input. config: the file that was named, for a server of our own.
    Raises PeerError, ModelError, EngineError."""
    from ..model.files import locate
    from .models import pull

    settings = effective.settings
    default = f"http://{settings.server.host}:{settings.server.port}"
    key = settings.edge.api_keys[0] if settings.edge.api_keys else ""
    options = {"max_tokens": max_tokens, "temperature": temperature, "system": system}
    if url is not None and not _answers(url):
        raise PeerError(f"Nothing that is ready answers at {url}.")
    if url is not None or _answers(default):
        there = url or default
        called = _called(effective, there, key)
        if called is not None:
            return _converse(there, key, {**options, "model": called})
        if url is not None:
            raise PeerError(f"{url} does not serve {settings.model!r}: {url}/v1/models lists all.")
        why = f"{default} does not serve {settings.model}"
    else:
        why = f"Nothing serves at {default}"
    errors.print(f"{why}; starting a server for this chat ...", markup=False, soft_wrap=True)
    if not settings.engine.script and locate(settings.model, cache_folder(settings)) is None:
        pull(effective, settings.model)  # here and not by the server, whose screen nobody sees
    own_key = secrets.token_hex(KEY_BYTES)
    with own_server(effective, config, own_key) as own:
        return _converse(own, own_key, options)


def _called(effective: Effective, url: str, key: str) -> str | None:
    """What the server calls the model of the command line: as that does, or as its file is named.
    None: it has no such model; "default" if none was asked for."""
    from ..model.files import locate

    wanted = effective.settings.model
    if not effective.origins["model"].startswith("flag"):
        return "default"
    names = [wanted]
    with suppress(ModelError):
        if (file := locate(wanted, cache_folder(effective.settings))) is not None:
            names.append(file.name)
    # What it answers otherwise (a key is wanted, it has gone) it says to the first message, too.
    return next((name for name in names if not _is_unknown(url, key, name)), None)


def _is_unknown(url: str, key: str, model: str) -> bool:
    connection = connect(url, CONNECT_SECONDS)
    try:
        connection.request("GET", f"/v1/models/{quote(model, safe='')}", headers=headers(key))
        return connection.getresponse().status == http.client.NOT_FOUND
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


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


def _answers(url: str) -> bool:
    connection = connect(url, CONNECT_SECONDS)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == OK_STATUS
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


class _Line(msgspec.Struct):
    """What is used of a JSON line of `serve --log-format json`."""

    event: str = ""
    url: str = ""
    message: str = ""


@contextmanager
def own_server(effective: Effective, config: Path | None, key: str) -> Generator[str]:
    """A server on a free port that ends with this command. Raises EngineError.

    It reads the same file and environment as this command, but is for it alone: at loopback
    and with a key of its own, and what the file may say about other clients does not hold.
    """
    engine = effective.settings.engine
    command = [sys.executable, "-m", "sublimate", "serve", "--port", "0", "--log-format", "json"]
    command += ["--log-level", "error", "--host", "127.0.0.1", "--no-stay"]
    command += ["--profile-contract", "default", "--model", effective.settings.model]
    command += ["--exact" if engine.exact else "--no-exact"]
    command += ["--context-length", str(engine.context_length)]
    if engine.rope_scaling:
        command += ["--rope-scaling", engine.rope_scaling]
    if engine.script:
        command += ["--script", engine.script]
    if config is not None:
        command += ["--config", str(config)]
    with subprocess.Popen(  # noqa: S603 - our own interpreter and module
        command,
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        process_group=0,
        # Not as a flag, which every user of the machine could read.
        env={**os.environ, "SUBLIMATE_API_KEYS": key},
    ) as server:
        try:
            yield _ready_url(server)
        finally:
            server.terminate()
            try:
                server.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                server.kill()


def _ready_url(server: subprocess.Popen[bytes]) -> str:
    if server.stdout is not None:
        for data in server.stdout:
            line = msgspec.json.decode(data, type=_Line)
            if line.event == "ready":
                return line.url
            if line.event == "unavailable":
                raise EngineError(line.message)
    raise EngineError("The server for this command did not start.")


def _converse(url: str, key: str, options: dict[str, Any]) -> ExitCode:
    out.print(f"Talking to {url}. {HELP}")
    messages: list[dict[str, str]] = []
    while True:
        try:
            said = input("> ").strip()
        except (EOFError, KeyboardInterrupt):
            out.print()
            return ExitCode.OK
        if said in ("/exit", "/quit", "/bye"):
            return ExitCode.OK
        if said in ("/new", "/clear"):
            messages.clear()
        elif said.startswith("/"):
            out.print(HELP)
        elif said:
            messages.append({"role": "user", "content": said})
            answer = _say(url, key, messages, options)
            if answer:
                messages.append({"role": "assistant", "content": answer})
            else:
                messages.pop()


def _say(url: str, key: str, messages: list[dict[str, str]], options: dict[str, Any]) -> str:
    """Print the answer as it comes; returns it, or "" on an error, which is told."""
    body = {"model": "default", "stream": True, "messages": messages, **options}
    if not body["system"]:
        del body["system"]
    connection = connect(url, ANSWER_SECONDS)
    pieces: list[str] = []
    try:
        path = urlsplit(url if "://" in url else f"http://{url}").path.rstrip("/") + MESSAGES.path
        connection.request("POST", path, msgspec.json.encode(body), headers(key))
        response = connection.getresponse()
        if response.status != OK_STATUS:
            complain(f"{response.status} {error_text(response.read())}")
            return ""
        for line in response:
            if not line.startswith(b"data:"):
                continue
            delta = read_event(line[len(b"data:") :].strip())
            if delta.error:
                complain(delta.error)
                return ""
            out.file.write(delta.text)
            out.file.flush()
            pieces.append(delta.text)
            if delta.finished:
                break
    except KeyboardInterrupt:
        out.file.write(" ...")  # for the person; the model did not say it
    except (OSError, http.client.HTTPException) as error:
        complain(f"The connection ended: {type(error).__name__}.")
        return ""
    finally:
        connection.close()
        out.print()
    return "".join(pieces)

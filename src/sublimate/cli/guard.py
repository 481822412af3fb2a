"""`sublimate guard check URL`: whether a server's answers take the direct path.

Exit status 1 where one of them does not.

defines: Answer, check_server, guard_app and the command check
"""

from __future__ import annotations

import http.client
import sys
import time
from typing import Annotated, Any

import msgspec
import typer
from rich.table import Table

from ..bench.apis import MESSAGES, headers
from ..client.validation import Expected, Miss, misses_of, utilization_of
from ..config import load_settings
from ..errors import ConfigError, PeerError
from . import options as flags
from .chat import OK_STATUS
from .output import error_text, out, print_plain, run_guarded
from .peer import Peer, configured_peer

MISSED = 1
ANSWER_SECONDS = 60.0

guard_app = typer.Typer(help="Look at a server from outside.", no_args_is_help=True)


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """One answer, by its head."""

    request_id: str
    layer: str
    compute_path: str
    policy: str
    """X-Layer-Config: the digest of the server's policy."""
    utilization: float | None
    """Share; None: not told."""
    milliseconds: float
    """Until the head was there."""
    misses: list[Miss]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """`guard check --json`."""

    url: str
    checked: int
    missed: int
    answers: list[Answer]

    def __post_init__(self) -> None:
        if not 0 <= self.missed <= self.checked == len(self.answers):
            raise ValueError("each answer was looked at once")


def check_server(peer: Peer, model: str, count: int, expected: Expected) -> Report:
    """Ask for a token so many times. Raises PeerError where there is no answer to judge."""
    if count < 1:
        raise ConfigError("--count: at least one answer is needed.")
    asked: dict[str, Any] = {"model": model, "max_tokens": 1}
    asked["messages"] = [{"role": "user", "content": "Hello"}]
    body = msgspec.json.encode(asked)
    answers = [_ask(peer, body, expected) for _ in range(count)]
    missed = sum(bool(answer.misses) for answer in answers)
    return Report(url=peer.url, checked=count, missed=missed, answers=answers)


def _ask(peer: Peer, body: bytes, expected: Expected) -> Answer:
    connection = peer.connection(ANSWER_SECONDS)
    begun = time.perf_counter()
    try:
        connection.request("POST", MESSAGES.path, body, headers(peer.key))
        response = connection.getresponse()
        milliseconds = (time.perf_counter() - begun) * 1e3
        data = response.read()
    except (OSError, http.client.HTTPException) as error:
        raise peer.failure(error) from error
    finally:
        connection.close()
    if response.status != OK_STATUS:
        raise PeerError(f"{peer.url} answers {response.status}: {error_text(data)}")
    told = {name.lower(): value for name, value in response.getheaders()}
    return Answer(
        request_id=told.get("request-id", ""),
        layer=told.get("x-layer", ""),
        compute_path=told.get("x-compute-path", ""),
        policy=told.get("x-layer-config", ""),
        utilization=utilization_of(told),
        milliseconds=milliseconds,
        misses=misses_of(told, expected),
    )


def _window(text: str) -> tuple[float, float]:
    """Of LEAST:GREATEST. Raises ConfigError."""
    least, _, greatest = text.partition(":")
    try:
        return float(least or 0.0), float(greatest or 1.0)
    except ValueError:
        wanted = f"--utilization {text!r}: two shares are needed, as in 0.1:0.95."
        raise ConfigError(wanted) from None


def _table(report: Report) -> Table:
    table = Table(title=f"Answers of {report.url}", title_justify="left")
    for name in ("layer", "compute path", "policy", "utilisation", "ms", "misses"):
        table.add_column(name, overflow="fold")
    for answer in report.answers:
        share = "" if answer.utilization is None else f"{answer.utilization:.1%}"
        misses = "\n".join(miss.text for miss in answer.misses)
        table.add_row(
            answer.layer,
            answer.compute_path,
            answer.policy[:8],
            share,
            f"{answer.milliseconds:.1f}",
            misses,
        )
    return table


@guard_app.command("check")
def check(
    url: Annotated[str, typer.Argument(help="The server.")],
    count: Annotated[int, typer.Option("-n", "--count", min=1, help="Answers to look at.")] = 5,
    model: Annotated[str, typer.Option("-m", "--model", help="That is asked.")] = "default",
    utilization: Annotated[
        str, typer.Option(help="LEAST:GREATEST share that the engine may tell, as in 0.1:0.95.")
    ] = "0:1",
    any_policy: Annotated[
        bool,
        typer.Option("--any-policy", help="Also with another policy than this installation's."),
    ] = False,
    api_keys: flags.ApiKeys = None,
    cacert: flags.CaCert = None,
    json: flags.Json = False,
    config: flags.ConfigFile = None,
) -> None:
    """Ask a server for a token some times and look whether the answers took the direct path: no
    other server, no fallback, this policy, a utilisation in its window."""

    def action() -> int:
        from .. import _core

        digest = "" if any_policy else _core.POLICY_DIGEST
        expected = Expected(policy_digest=digest, utilization=_window(utilization))
        chosen = {"api_keys": api_keys} if api_keys else {}
        peer = configured_peer(load_settings(chosen, config=config), url, cacert)
        report = check_server(peer, model, count, expected)
        if json:
            print_plain(msgspec.json.encode(report).decode())
        else:
            out.print(_table(report))
            direct = report.checked - report.missed
            out.print(f"{direct} of {report.checked} answers took the direct path.")
        return MISSED if report.missed else 0

    if code := run_guarded(action):
        sys.exit(code)

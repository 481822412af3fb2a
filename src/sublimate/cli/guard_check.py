"""What `sublimate guard check URL` asks a server for, and how its answers are judged and shown.

defines: Answer, Report, check_server, window_of, report_table
"""

from __future__ import annotations

import http.client
import time
from typing import Any

import msgspec
from rich.table import Table

from ..bench.apis import MESSAGES, headers
from ..client.validation import Expected, Miss, misses_of, utilization_of
from ..errors import ConfigError, PeerError
from .output import error_text
from .peer import OK_STATUS, Peer

ANSWER_SECONDS = 60.0


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
        connection.request("POST", MESSAGES.path, body, headers(peer.key, peer.profile))
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


def window_of(text: str) -> tuple[float, float]:
    """Of LEAST:GREATEST. Raises ConfigError."""
    least, _, greatest = text.partition(":")
    try:
        return float(least or 0.0), float(greatest or 1.0)
    except ValueError:
        wanted = f"--utilization {text!r}: two shares are needed, as in 0.1:0.95."
        raise ConfigError(wanted) from None


def report_table(report: Report) -> Table:
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

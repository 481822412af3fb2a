"""Log lines of the edge: text for people or JSON lines. Never the text of a prompt or an
answer, unless the operator asks for the former (--log-prompts).

defines: configure, log_body, log_exchange
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, cast

import msgspec

from ...config import LogSettings

if TYPE_CHECKING:
    from ..exchange import Exchange
    from ..stream import Answer

REQUESTS = logging.getLogger("sublimate.request")
MILLISECONDS = 1000.0
PATH_CHARACTERS_MAX = 200
BODY_BYTES_MAX = 1 << 16


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    _second = (0, "")

    def format(self, record: logging.LogRecord) -> str:
        second = int(record.created)
        if second != self._second[0]:
            self._second = (second, self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"))
        fields: dict[str, Any] = {
            "time": self._second[1],
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields.update(getattr(record, "fields", {}))
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(fields).decode()


class TextFormatter(logging.Formatter):
    """The same for a terminal."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        fields: dict[str, Any] = getattr(record, "fields", {})
        return " ".join([text, *(f"{name}={_shown(value)}" for name, value in fields.items())])


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        parts = cast(dict[str, float], value)
        return ",".join(f"{name}:{part:.2f}" for name, part in parts.items())
    return str(value)


def configure(settings: LogSettings) -> None:
    """Send the package's log lines to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if settings.log_format == "json" else TextFormatter())
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False  # never shown
    logger = logging.getLogger("sublimate")
    logger.handlers[:] = [handler]
    logger.propagate = False
    logger.setLevel(settings.log_level.upper())


def log_body(exchange: Exchange) -> None:
    """What a client sent, as it was sent, up to a bound: only where somebody asked for it."""
    body = exchange.request.body[:BODY_BYTES_MAX].decode(errors="replace")
    fields = {"request_id": exchange.request_id, "body": body}
    REQUESTS.info("body", extra={"fields": fields})


def log_exchange(level: int, exchange: Exchange, answer: Answer | None, end: str = "") -> None:
    """One line per answer. `end`: of a request that has none."""
    if not REQUESTS.isEnabledFor(level):
        return
    elapsed = time.monotonic() - exchange.started_seconds
    fields: dict[str, Any] = {
        "request_id": exchange.request_id,
        "status": exchange.status,
        "milliseconds": round(elapsed * MILLISECONDS, 1),
        "protocol": exchange.wire.protocol,
    }
    if exchange.owner.name:
        fields["key"] = exchange.owner.name
    if end:
        fields["end"] = end
    if exchange.batch:
        fields["batch"] = exchange.batch
    if answer is not None:
        fields["prompt_tokens"] = answer.prompt_tokens
        fields["cached_tokens"] = answer.cached_tokens
        fields["output_tokens"] = answer.output_tokens
        fields["end"] = answer.stop_reason
        if stages := answer.timing.stages_ms():
            fields["stages_ms"] = stages
            fields["first_way_ms"] = answer.timing.first_way_ms()
    path = ascii(exchange.request.path[:PATH_CHARACTERS_MAX])[1:-1]
    # Not by REQUESTS.log: it walks the stack to find out who called, at ten times the price.
    arguments = (exchange.request.method, path)
    record = logging.LogRecord(REQUESTS.name, level, __file__, 0, "%s %s", arguments, None)
    record.fields = fields
    REQUESTS.handle(record)

"""Log lines of the edge: text for people or JSON lines. Never the text of a prompt or an
answer, unless the operator asks for the former (--log-prompts). A line that repeats is written once
a second at most, with a count.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import logging
import time
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, cast

import msgspec

from ...config import LogSettings
from ..exchange import IDENTIFIER

if TYPE_CHECKING:
    from ..exchange import Exchange
    from ..stream import Answer

REQUESTS = logging.getLogger("sublimate.request")
MILLISECONDS = 1000.0
PATH_CHARACTERS_MAX = 200
BODY_BYTES_MAX = 1 << 16
REPEAT_SECONDS = 1.0
REPEATS_KEPT_MAX = 256
LIBRARIES = ("asyncio",)
"""Loggers of libraries, whose lines are written like the server's own."""


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


class Repeats(logging.Handler):
    """Hands lines to another handler. After a line has been written, further ones like it are
    counted for a second; then the last of them is written with the count. The line of an answered
    request is never held back."""

    def __init__(
        self, handler: logging.Handler, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__()
        self._handler = handler
        self._clock = clock
        self._kept: dict[Hashable, tuple[float, int, logging.LogRecord]] = {}
        """Kind of line -> end of its second, lines not written, and the last of them."""
        self._loop: asyncio.AbstractEventLoop | None = None
        with contextlib.suppress(RuntimeError):
            self._loop = asyncio.get_running_loop()

    def emit(self, record: logging.LogRecord) -> None:
        if record.name == REQUESTS.name:
            self._handler.handle(record)
            return
        self.write_due()
        key = self._kind(record)
        if (kept := self._kept.get(key)) is not None:
            until, count, _ = kept
            self._kept[key] = until, count + 1, record
            return
        self._handler.handle(record)
        self._begin_second(key, record)

    def write_due(self) -> None:
        """Write the counts of all seconds that are over."""
        with self.lock or contextlib.nullcontext():
            now = self._clock()
            due = [key for key, (until, _, _) in self._kept.items() if until <= now]
            for key in due:
                _, count, record = self._kept.pop(key)
                if count:
                    self._handler.handle(_counted(record, count))
                    self._begin_second(key, record)

    def _begin_second(self, key: Hashable, record: logging.LogRecord) -> None:
        self._kept[key] = self._clock() + REPEAT_SECONDS, 0, record
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended: the next line writes it
                self._loop.call_soon_threadsafe(
                    self._loop.call_later, REPEAT_SECONDS, self.write_due
                )

    def _kind(self, record: logging.LogRecord) -> Hashable:
        """Lines that differ only in the identifier of their request are alike."""
        kind = record.name, record.levelno, record.msg, record.exc_info and record.exc_info[0]
        if len(self._kept) >= REPEATS_KEPT_MAX or not isinstance(record.args, tuple):
            return kind
        texts = (str(one) for one in record.args)
        return kind, tuple(text for text in texts if IDENTIFIER.fullmatch(text) is None)

    def close(self) -> None:
        """Write all counts."""
        self._clock = lambda: float("inf")
        self.write_due()
        super().close()


def _counted(record: logging.LogRecord, count: int) -> logging.LogRecord:
    counted = copy.copy(record)
    counted.msg, counted.args = f"{record.getMessage()} ({count} more like this)", ()
    counted.exc_info = counted.exc_text = None
    return counted


def configure(settings: LogSettings) -> None:
    """Send the package's log lines to standard error."""
    stream = logging.StreamHandler()
    stream.setFormatter(JsonFormatter() if settings.log_format == "json" else TextFormatter())
    handler = Repeats(stream)
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False  # never shown
    logger = logging.getLogger("sublimate")
    logger.handlers[:] = [handler]
    logger.propagate = False
    logger.setLevel(settings.log_level.upper())
    for name in LIBRARIES:
        logging.getLogger(name).handlers[:] = [handler]


def log_body(exchange: Exchange) -> None:
    """What a client sent, as it was sent, up to a bound: only where somebody asked for it."""
    body = exchange.request.body[:BODY_BYTES_MAX].decode(errors="replace")
    fields = {"request_id": exchange.request_id, "body": body}
    REQUESTS.info("body", extra={"fields": fields})


LEFT_OUT_CHARACTERS_MAX = 1024


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
        if answer.generation.left_out:
            fields["left_out"] = ", ".join(answer.generation.left_out)[:LEFT_OUT_CHARACTERS_MAX]
        if stages := answer.timing.stages_ms():
            fields["stages_ms"] = stages
            fields["first_way_ms"] = answer.timing.first_way_ms()
    path = ascii(exchange.request.path[:PATH_CHARACTERS_MAX])[1:-1]
    # Not by REQUESTS.log: it walks the stack to find out who called, at ten times the price.
    arguments = (exchange.request.method, path)
    record = logging.LogRecord(REQUESTS.name, level, __file__, 0, "%s %s", arguments, None)
    record.fields = fields
    REQUESTS.handle(record)

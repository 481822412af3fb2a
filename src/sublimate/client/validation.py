"""Whether answers really took the direct path, and what happens when they do not: after some misses
in a row traffic pauses until a probe passes, and a webhook hears of it.

    guard = validator(webhook="https://alerts.example/hook")
    client = httpx.Client(event_hooks=guard.event_hooks())

Any client of the HTTP library takes the hooks, ours too. They look at the heads of answers alone,
wait for nothing, and raise nothing but TrafficPausedError.

defines: Expected, Miss, utilization_of, misses_of, TrafficPausedError, ValidatorReport, Validator
"""

from __future__ import annotations

import logging
import math
import re
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from ..errors import ConfigError, PeerError

if TYPE_CHECKING:
    from .alerts import Alerts

LOG = logging.getLogger("sublimate.client")
DIRECT_PATHS = ("direct-kernel", "compiled-graph")
CHECKED_PATHS = (
    "/v1/messages",
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/api/chat",
    "/api/generate",
)
"""Where a POST is answered by a model."""
OK = 200
PERCENT = 100.0
SHARE = re.compile(r"(\d{1,3}(?:\.\d{1,6})?)(%?)")
PROBE = "sublimate_probe"
"""In the extensions of the request that is let through while traffic is paused."""

What = Literal["layer", "path", "policy", "utilization"]


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """What the head of an answer has to say. Raises ConfigError for what no answer could."""

    compute_paths: tuple[str, ...] = DIRECT_PATHS
    policy_digest: str = ""
    """That X-Layer-Config has to be; empty: any."""
    utilization: tuple[float, float] = (0.0, 1.0)
    """Least and greatest share, of X-GPU-Utilization, else of X-Engine-Utilization. An answer that
    has neither, as one of a server that has just woken up, is not judged by it."""

    def __post_init__(self) -> None:
        least, greatest = self.utilization
        if not (0.0 <= least <= greatest <= 1.0):
            raise ConfigError(f"utilization: {least:g} to {greatest:g} is no window within 0 to 1.")
        if not self.compute_paths or "fallback" in self.compute_paths:
            raise ConfigError("compute_paths: name those that are direct; fallback is none.")


class Miss(msgspec.Struct, frozen=True):
    """One thing that an answer's head should not say."""

    what: What
    text: str


def utilization_of(headers: Mapping[str, str]) -> float | None:
    """The share that an answer tells, names in lower case; None: none that can be read."""
    for name in ("x-gpu-utilization", "x-engine-utilization"):
        if match := SHARE.fullmatch(headers.get(name, "").strip()):
            return float(match[1]) / (PERCENT if match[2] else 1.0)
    return None


def misses_of(headers: Mapping[str, str], expected: Expected) -> list[Miss]:
    """What the head of a whole or streamed answer, names in lower case, says wrongly."""
    found: list[Miss] = []
    if not headers.get("x-layer"):
        found.append(Miss("layer", "no X-Layer: another server has answered"))
    path = headers.get("x-compute-path", "")
    if path not in expected.compute_paths:
        found.append(Miss("path", f"X-Compute-Path is {path or 'missing'}"))
    digest = headers.get("x-layer-config", "")
    if expected.policy_digest and digest != expected.policy_digest:
        found.append(Miss("policy", f"X-Layer-Config is {digest or 'missing'}, another policy"))
    share = utilization_of(headers)
    least, greatest = expected.utilization
    if share is not None and not least <= share <= greatest:
        text = f"utilisation {share:.3f} is outside {least:g} to {greatest:g}"
        found.append(Miss("utilization", text))
    return found


class TrafficPausedError(PeerError):
    """Requests are not sent: the last answers did not take the direct path. An SDK that wraps what
    its HTTP client raises has it as the cause of its own error."""

    def __init__(self, misses: Sequence[Miss], retry_seconds: float) -> None:
        """retry_seconds: until a request is let through as the next probe."""
        if not misses or retry_seconds < 0:
            raise ValueError("a pause has a reason, and an end")
        why = "; ".join(miss.text for miss in misses)
        super().__init__(
            f"Traffic is paused: {why}. The next probe may go in {retry_seconds:.1f} s."
        )
        self.misses = tuple(misses)
        self.retry_seconds = retry_seconds


class ValidatorReport(msgspec.Struct, frozen=True, kw_only=True):
    """Sums since the validator was made, and where it stands."""

    checked: int
    """Answers that were judged: those with status 200 to a POST that a model answers."""
    missed: int
    """Of these, with a miss at least."""
    misses: dict[str, int]
    """By what: layer, path, policy, utilization."""
    in_a_row: int
    is_paused: bool
    pauses: int
    refused: int
    """Requests that were not sent."""
    alerts_sent: int
    alerts_lost: int
    """That the webhook did not take."""


class Validator:
    """For any number of clients of one server, and threads."""

    def __init__(
        self,
        expected: Expected,
        alerts: Alerts,
        *,
        misses_max: int = 5,
        probe_seconds: float = 10.0,
        pauses: bool = True,
        paths: Sequence[str] = CHECKED_PATHS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """misses_max: answers in a row with a miss, then traffic pauses. probe_seconds: between
        requests that are let through while it does. pauses: False only tells and counts. paths:
        whose POSTs are looked at. Raises ConfigError."""
        if misses_max < 1:
            raise ConfigError("misses_max: at least 1 miss pauses traffic.")
        if not (0.0 < probe_seconds < math.inf):
            raise ConfigError("probe_seconds: more than 0 s.")
        if wrong := [path for path in paths if not path.startswith("/")]:
            raise ConfigError(f"paths: {wrong[0]!r} begins with no slash.")
        self.expected = expected
        self._alerts = alerts
        self._misses_max = misses_max
        self._probe_seconds = probe_seconds
        self._pauses = pauses
        self._paths = frozenset(paths)
        self._clock = clock
        self._lock = threading.Lock()
        self._last: list[Miss] = []
        """Of the latest answer that had one."""
        self._in_a_row = 0
        self._is_tripped = False
        """Too many answers in a row have missed: traffic is paused, if that is wanted."""
        self._probe_at_seconds = 0.0
        self._checked = self._missed = self._pause_count = self._refused = 0
        self._misses: Counter[str] = Counter()

    # ---- hooks ---------------------------------------------------------------------------------
    def event_hooks(self) -> dict[str, list[Callable[[Any], None]]]:
        """For a sync client: `httpx.Client(event_hooks=...)`."""
        return {"request": [self.before], "response": [self.after]}

    def async_event_hooks(self) -> dict[str, list[Callable[[Any], Awaitable[None]]]]:
        """For an async one."""

        async def sending(request: Any) -> None:
            self.before(request)

        async def answered(response: Any) -> None:
            self.after(response)

        return {"request": [sending], "response": [answered]}

    def before(self, request: Any) -> None:
        """A request is about to be sent. Raises TrafficPausedError."""
        if not self._is_checked(request):
            return
        with self._lock:
            if not self._is_tripped or not self._pauses:
                return
            now = self._clock()
            if now < self._probe_at_seconds:
                self._refused += 1
                raise TrafficPausedError(self._last, self._probe_at_seconds - now)
            # What becomes of the probe may never be heard: then another goes.
            self._probe_at_seconds = now + self._probe_seconds
        request.extensions = {**request.extensions, PROBE: True}

    def after(self, response: Any) -> None:
        """The head of an answer is there. Errors say nothing of a path: they are not judged."""
        request = response.request
        if response.status_code != OK or not self._is_checked(request):
            return
        found = misses_of(response.headers, self.expected)
        where = str(request.url.copy_with(query=None, fragment=None, userinfo=b""))
        self.judge(found, where, response.headers, is_probe=PROBE in request.extensions)

    def _is_checked(self, request: Any) -> bool:
        return request.method == "POST" and request.url.path.rstrip("/") in self._paths

    # ---- the count -----------------------------------------------------------------------------
    def judge(
        self, found: list[Miss], where: str, headers: Mapping[str, str], *, is_probe: bool
    ) -> None:
        """Count one answer. While traffic is paused only a probe's says that it may go on: others
        were sent before."""
        event = ""
        if is_probe and not self._pause_count:
            raise ValueError("there was no pause for a probe to end")
        with self._lock:
            self._checked += 1
            self._misses.update(miss.what for miss in found)
            if found:
                self._missed += 1
                self._last = found
                self._in_a_row += 1
                if self._in_a_row >= self._misses_max and not self._is_tripped:
                    event, self._is_tripped = "paused" if self._pauses else "missing", True
                    self._pause_count += 1
                    self._probe_at_seconds = self._clock() + self._probe_seconds
            elif is_probe or not (self._is_tripped and self._pauses):
                event = "resumed" if self._is_tripped else ""
                self._in_a_row, self._is_tripped = 0, False
            last, in_a_row = self._last, self._in_a_row
        if event:
            self._tell(event, where, headers, last, in_a_row)

    def _tell(
        self,
        event: str,
        where: str,
        headers: Mapping[str, str],
        last: list[Miss],
        in_a_row: int,
    ) -> None:
        LOG.warning("%s: %s: %s", where, event, "; ".join(miss.text for miss in last))
        self._alerts.send(
            {
                "event": event,
                "time": time.time(),
                "url": where,
                "misses_in_a_row": in_a_row,
                "misses": [msgspec.structs.asdict(miss) for miss in last],
                "request_id": headers.get("request-id", ""),
                "layer": headers.get("x-layer", ""),
            }
        )

    def report(self) -> ValidatorReport:
        with self._lock:
            return ValidatorReport(
                checked=self._checked,
                missed=self._missed,
                misses=dict(self._misses),
                in_a_row=self._in_a_row,
                is_paused=self._is_tripped and self._pauses,
                pauses=self._pause_count,
                refused=self._refused,
                alerts_sent=self._alerts.sent,
                alerts_lost=self._alerts.lost,
            )

    def close(self, seconds: float = 5.0) -> None:
        """Wait so long for alerts that are under way."""
        self._alerts.close(seconds)

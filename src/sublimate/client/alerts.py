"""Alerts to a webhook: JSON by POST, from threads of their own, so that no request waits for it.

defines: Alerts
"""

from __future__ import annotations

import http.client
import logging
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from urllib.parse import urlsplit

import msgspec

from ..errors import ConfigError

LOG = logging.getLogger("sublimate.client")
TRIES = 3
WAIT_SECONDS = 1.0
"""Before the second try; twice as long before the third."""
TIMEOUT_SECONDS = 5.0
UNDER_WAY_MAX = 4
"""A webhook that takes nothing costs so many threads; what comes then is lost, and counted."""
ANSWER_BYTES_MAX = 1 << 16


class Alerts:
    """One webhook; without an URL nothing is sent."""

    def __init__(self, url: str, headers: Mapping[str, str] | None = None) -> None:
        """headers: more of them, such as one with a token. Raises ConfigError."""
        parts = urlsplit(url)
        if url and (parts.scheme not in ("http", "https") or not parts.hostname):
            raise ConfigError(f"webhook: {url!r} is no http or https URL.")
        if wrong := [
            name for name, value in (headers or {}).items() if {*"\r\n"} & {*name, *value}
        ]:
            raise ConfigError(f"webhook_headers: {wrong[0]!r} has a line break.")
        self._url = url
        self._headers = {"content-type": "application/json", **(headers or {})}
        self._lock = threading.Lock()
        self._under_way: set[threading.Thread] = set()
        self._ending = threading.Event()
        self.sent = 0
        self.lost = 0

    def send(self, event: Mapping[str, object]) -> None:
        """Soon, with some tries. Never waits, never raises for what the webhook does."""
        if not self._url:
            return
        body = msgspec.json.encode(event)
        with self._lock:
            if len(self._under_way) >= UNDER_WAY_MAX or self._ending.is_set():
                self.lost += 1
                return
            thread = threading.Thread(
                target=self._deliver, args=(body,), name="sublimate-alert", daemon=True
            )
            self._under_way.add(thread)
        thread.start()

    def _deliver(self, body: bytes) -> None:
        why = ""
        for turn in range(TRIES):
            if turn and self._ending.wait(WAIT_SECONDS * 2 ** (turn - 1)):
                break
            why = self._post(body)
            if not why:
                break
        with self._lock:
            self.sent += not why
            self.lost += bool(why)
            self._under_way.discard(threading.current_thread())
        if why:
            LOG.error("An alert was not taken by %s: %s", urlsplit(self._url).hostname, why)

    def _post(self, body: bytes) -> str:
        """Why it was not taken; empty if it was."""
        asked = urllib.request.Request(  # noqa: S310 - of http or https, see above
            self._url, body, self._headers, method="POST"
        )
        try:
            with urllib.request.urlopen(asked, timeout=TIMEOUT_SECONDS) as reply:  # noqa: S310
                reply.read(ANSWER_BYTES_MAX)
                return ""
        except urllib.error.HTTPError as error:
            with error:
                return f"status {error.code}"
        except (OSError, http.client.HTTPException) as error:
            return str(getattr(error, "reason", error))

    def close(self, seconds: float) -> None:
        """Nothing new; wait so long for what is under way, whose further tries are left out."""
        if seconds < 0:
            raise ValueError("a wait takes no less than no time")
        with self._lock:
            self._ending.set()
            under_way = [*self._under_way]
        deadline = time.monotonic() + seconds
        for thread in under_way:
            thread.join(max(0.0, deadline - time.monotonic()))

"""When this process was done with each part of its start, for who asks where the time goes.

defines: stamp, stamps
"""

from __future__ import annotations

import time

_stamps: dict[str, float] = {}


def stamp(part: str) -> None:
    """It is done now; only the first time counts."""
    _stamps.setdefault(part, time.monotonic())


def stamps() -> dict[str, float]:
    """Seconds of the monotonic clock, which all processes of a machine share; in their order."""
    return dict(_stamps)

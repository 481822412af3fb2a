"""The trace ring of an engine's region (core/ring/trace_ring.h), as the edge reads it: when the
loop writes into it, and what a record says.

defines: RECORD_BYTES, READ_MAX, STEP, PART, head_of, is_record, EngineTrace
"""

from __future__ import annotations

import struct
import time
from typing import Any

from ... import _core
from .timing import NS_PER_SECOND

RECORD = struct.Struct("<q14i")
HEAD = struct.Struct("<3i")
RECORD_BYTES = RECORD.size
TIME_BYTES = 8
FIXED_FIELDS = 4
READ_MAX = 4096
"""Records of one read: a bound of what is copied in one turn of the event loop."""
KINDS = [(name, arguments.split()) for name, arguments in _core.TRACE_EVENTS]
STEP, PART = ([name for name, _ in KINDS].index(name) for name in ("step", "part"))
UINT32 = 0xFFFFFFFF

# Words for the numbers of core/loop/sequence.h and core/request.h.
WAITS = ("", "rows", "pages", "turn")
STATES = ("free", "queued", "prefill", "decode", "waiting_mask", "draining")
PROFILES = ("low-latency", "high-throughput", "long-context")
FINISHES = ("", "stop_token", "budget", "cancelled", "refused", "failed", "scored")
REFUSALS = ("", "too_long", "queue_full", "malformed")
FAILURES = ("", "not_finite", "nothing_allowed")
ARITHMETICS = ("prompt", "generated")
WORDS: dict[tuple[str, str], tuple[str, ...]] = {
    ("taken", "profile"): PROFILES,
    ("waiting", "reason"): WAITS,
    ("refused", "reason"): REFUSALS,
    ("cancelled", "state"): STATES,
    ("finished", "reason"): FINISHES,
    ("part", "arithmetic"): ARITHMETICS,
}
PHASES = ("few_rows", "many_rows")
AS_PROMPT = 2
"""Bit of `kernels`: generated rows took the prompt's arithmetic."""


def head_of(records: bytes | bytearray, at: int) -> tuple[int, int, int]:
    """Kind, slot and generation of the record at an offset in bytes."""
    kind, slot, generation = HEAD.unpack_from(records, at + TIME_BYTES)
    return kind, slot, generation


class EngineTrace:
    """Of one engine link."""

    def __init__(self, region: _core.Region, info: dict[str, Any]) -> None:
        """info: that of the engine, which names its kernels."""
        self._reader: _core.TraceReader | None = _core.TraceReader(region)
        """None: its region is gone."""
        self._variants = [_variant(info, phase) for phase in PHASES]

    def follow(self, seconds: float) -> None:
        """The loop traces for so long, unless this is said again; 0: no more. Raises ValueError."""
        if seconds < 0:
            raise ValueError("a time to follow")
        if self._reader is None:
            return
        until = time.monotonic_ns() + int(seconds * NS_PER_SECOND) if seconds else 0
        self._reader.follow(until)

    def read(self) -> tuple[int, bytes]:
        """(records that were overwritten before they were read, the next ones)."""
        return (0, b"") if self._reader is None else self._reader.read(READ_MAX)

    def close(self) -> None:
        """Nothing more will come. What was read can be told for as long as anybody keeps it, which
        is not to keep the region's memory and descriptors."""
        self._reader = None

    def told(self, records: bytes | bytearray, at: int = 0) -> dict[str, Any]:
        """The record at an offset: its time `ns`, `what` it is, and its arguments by name. Raises
        ValueError for what is no record."""
        if at % RECORD_BYTES or not is_record(records, at):
            raise ValueError("no record of the trace")
        fields: tuple[int, ...] = RECORD.unpack_from(records, at)
        kind, names = KINDS[fields[1]]
        event: dict[str, Any] = {"ns": fields[0], "what": kind}
        for name, value in zip(names, fields[FIXED_FIELDS:], strict=False):
            words = WORDS.get((kind, name))
            event[name] = value if words is None else _word(words, value)
        if kind == "step":
            event["took_ns"] &= UINT32
            event["kernels"], event["as_prompt"] = self._kernels(event["kernels"])
        if kind == "finished":
            words = {"refused": REFUSALS, "failed": FAILURES}.get(event["reason"])
            event["detail"] = "" if words is None else _word(words, event["detail"])
        return event

    def _kernels(self, number: int) -> tuple[str, bool]:
        if number < 0:
            return "", False
        return self._variants[number % AS_PROMPT], bool(number & AS_PROMPT)


def is_record(records: bytes | bytearray, at: int) -> bool:
    """Of a kind that is known: the loop's memory is input like any other."""
    return 0 <= head_of(records, at)[0] < len(KINDS)


def _word(words: tuple[str, ...], value: int) -> str:
    return words[value] if 0 <= value < len(words) else str(value)


def _variant(info: dict[str, Any], phase: str) -> str:
    """As `avx512, 2 threads`."""
    chosen: dict[str, Any] = info.get(phase, info)
    if "isa" not in chosen:
        return ""
    return f"{chosen['isa']}, {chosen['threads']} threads"

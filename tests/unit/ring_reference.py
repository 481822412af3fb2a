"""The loop's side of a region, written a second time: layout, submission ring, token ring.

Slow and plain, over a mapping of the same memory. The tests of the rings and of the text path play
the engine with it, and a difference between the two layouts shows as a failed test.

defines: layout, slot_offset, Row, LoopTwin
"""

import mmap
import os
import struct
from dataclasses import dataclass, field

import numpy as np

from sublimate import _core

LIMITS = _core.LIMITS
SLOT_WORDS = (1024, 4096, 16384, 65536, 524288)
SLOT_COUNTS = (256, 128, 64, 32, 8)
PAGE_BYTES = 4096

# Byte offsets inside the control page.
SUBMISSION_TAIL, TOKEN_HEAD, EDGE_SLEEPING = 128, 256, 384
SUBMISSION_HEAD, TOKEN_TAIL, ENGINE_SLEEPING = 512, 640, 768
HEARTBEAT, STATS = 896, 1024
TRACE_UNTIL, TRACE_HEAD = 1280, 1408
TRACE_RECORD = struct.Struct("<q14i")
TRACE_RECORD_BYTES = 64

ADMITTED, TOKEN, FINISHED = 1, 2, 4
STOP_TOKEN, BUDGET, CANCELLED, REFUSED, FAILED, SCORED = 1, 2, 3, 4, 5, 6


def align_up(value: int, alignment: int) -> int:
    return (value + alignment - 1) // alignment * alignment


def layout(vocabulary: int) -> dict[str, int]:
    """Byte offsets of the areas, and total_bytes."""
    sizes = {
        "control": PAGE_BYTES,
        "submission": LIMITS["SUBMISSION_RING_ENTRIES"] * 4,
        "cancel": LIMITS["SLOTS_MAX"] * 4,
        "mask_ready": LIMITS["MASK_SLOTS"] * 4,
        "tokens": LIMITS["TOKEN_RING_WORDS"] * 4,
        "masks": LIMITS["MASK_SLOTS"] * (align_up(vocabulary, 32) // 32) * 4,
        "slots": sum(w * n for w, n in zip(SLOT_WORDS, SLOT_COUNTS, strict=True)) * 4,
        "trace": LIMITS["TRACE_RECORDS"] * TRACE_RECORD_BYTES,
    }
    places: dict[str, int] = {}
    at = 0
    for name, size in sizes.items():
        places[name] = at
        at = align_up(at + size, PAGE_BYTES)
    places["total_bytes"] = at
    return places


def slot_offset(slot: int) -> tuple[int, int]:
    """(first word within the slot area, capacity in words)."""
    offset = 0
    for words, count in zip(SLOT_WORDS, SLOT_COUNTS, strict=True):
        if slot < count:
            return offset + slot * words, words
        offset += words * count
        slot -= count
    raise IndexError(slot)


@dataclass
class Row:
    """A row of a step record."""

    slot: int
    generation: int
    flags: int
    token: int = 0
    reason: int = 0
    detail: int = 0
    logprob: float = 0.0
    pairs: list[tuple[int, float]] = field(default_factory=list)

    def words(self) -> list[int]:
        bits = float_bits(self.logprob)
        fixed = [self.slot, self.generation, self.flags, self.token, bits, self.reason, self.detail]
        flat = [word for token, value in self.pairs for word in (token, float_bits(value))]
        return [*fixed, len(self.pairs), *flat]


def float_bits(value: float) -> int:
    (bits,) = struct.unpack("<i", struct.pack("<f", value))
    return int(bits)


class LoopTwin:
    """Plays the engine on a region's memory."""

    def __init__(self, region: _core.Region) -> None:
        self.memory_fd, self.submission_bell, self.token_bell = region.fds
        self.at = layout(region.vocabulary)
        self.map = mmap.mmap(self.memory_fd, 0)
        self.words = np.frombuffer(self.map, dtype=np.int32)
        self.step = 0

    def read_u64(self, offset: int) -> int:
        return int(struct.unpack_from("<Q", self.map, offset)[0])

    def write_u64(self, offset: int, value: int) -> None:
        struct.pack_into("<Q", self.map, offset, value)

    def read_u32(self, offset: int) -> int:
        return int(struct.unpack_from("<I", self.map, offset)[0])

    def write_u32(self, offset: int, value: int) -> None:
        struct.pack_into("<I", self.map, offset, value)

    def trace(self, *words: int) -> None:
        """One trace record: time, kind, slot, generation, arguments."""
        head = self.read_u64(TRACE_HEAD)
        place = self.at["trace"] + head % LIMITS["TRACE_RECORDS"] * TRACE_RECORD_BYTES
        TRACE_RECORD.pack_into(self.map, place, *words, *[0] * (15 - len(words)))
        self.write_u64(TRACE_HEAD, head + 1)

    def submission_pop(self) -> int | None:
        """The next slot, or None."""
        head, tail = self.read_u64(SUBMISSION_HEAD), self.read_u64(SUBMISSION_TAIL)
        if head == tail:
            return None
        entry = head % LIMITS["SUBMISSION_RING_ENTRIES"]
        self.write_u64(SUBMISSION_HEAD, head + 1)
        return self.read_u32(self.at["submission"] + 4 * entry)

    def record(self, slot: int) -> np.ndarray:
        """The words of a slot."""
        offset, capacity = slot_offset(slot)
        first = self.at["slots"] // 4 + offset
        return self.words[first : first + capacity]

    def header(self, slot: int) -> dict[str, int]:
        words = self.record(slot)
        return {name: int(words[first]) for name, (first, _) in _core.REQUEST_FIELDS.items()}

    def cancel_requested(self, slot: int, generation: int) -> bool:
        return self.read_u32(self.at["cancel"] + 4 * slot) == generation

    def token_push(self, rows: list[Row], time_ns: int = 1) -> None:
        """Publishes one record."""
        body = [word for row in rows for word in row.words()]
        self.step += 1
        low, high = time_ns & 0x7FFFFFFF, time_ns >> 32
        header = [len(body) + LIMITS["STEP_HEADER_WORDS"], len(rows), self.step, 0, low, high, 1, 0]
        self.push_words(header + body)

    def push_words(self, words: list[int]) -> None:
        """Any words at all, as a broken engine would write them."""
        tail = self.read_u64(TOKEN_TAIL)
        ring = LIMITS["TOKEN_RING_WORDS"]
        first = self.at["tokens"] // 4
        for i, word in enumerate(words):
            self.words[first + (tail + i) % ring] = word
        self.write_u64(TOKEN_TAIL, tail + len(words))

    def bell_rung(self) -> bool:
        """Whether the submission bell was rung; resets it."""
        try:
            return len(os.read(self.submission_bell, 8)) == 8
        except BlockingIOError:
            return False

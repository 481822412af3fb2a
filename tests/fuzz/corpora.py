"""The corpora of the targets in Python: inputs that each showed a line of ours that no other did.
Tests replay them; `python tests/fuzz/corpora.py` looks for more (PYTHONPATH=tests).

defines: TARGETS, files, replay, grow
"""

import asyncio
import hashlib
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from fuzz import fuzz_frames, fuzz_grpc, fuzz_quic, fuzz_request

FOLDER = Path(__file__).parent / "corpus"
OURS = str(Path(__file__).resolve().parents[2] / "src" / "sublimate")
SEED, SECONDS = 1, 15.0
INPUT_BYTES_MAX = 4096

Draw = Callable[[random.Random], bytes]


def head(data: bytes) -> str:
    """Bytes of an HTTP/1.1 connection."""
    loop = asyncio.new_event_loop()
    try:
        fuzz_request.one_head(loop, random.Random(SEED), data)
    finally:
        loop.close()
    return ""


def request_stream(data: bytes) -> str:
    """Bytes of an HTTP/3 request stream."""
    return asyncio.run(fuzz_quic.one_stream(data))


TARGETS: dict[str, tuple[Draw, Callable[[bytes], str]]] = {
    "frame_streams": (
        fuzz_frames.broken,
        lambda data: fuzz_frames.one_stream(random.Random(SEED), data),
    ),
    "grpc_calls": (fuzz_grpc.broken, lambda data: fuzz_grpc.one_body(random.Random(SEED), data)),
    "http_heads": (
        lambda draw: fuzz_request.mutate(
            draw, fuzz_request.REQUEST + fuzz_request.BODY, fuzz_request.HEADS
        ),
        head,
    ),
    "messages": (
        lambda draw: fuzz_request.mutate(draw, fuzz_request.BODY, fuzz_request.WORDS),
        fuzz_request.one_body,
    ),
    "quic_streams": (fuzz_quic.stream_bytes, request_stream),
}
"""Folder -> (what draws an input, what takes it)."""


def files(target: str) -> list[Path]:
    return sorted((FOLDER / target).iterdir())


def replay(target: str) -> dict[str, int]:
    """How often each outcome came."""
    outcomes: dict[str, int] = {}
    for path in files(target):
        outcome = TARGETS[target][1](path.read_bytes())
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
    return outcomes


def lines_of(take: Callable[[bytes], str], data: bytes) -> set[tuple[str, int]]:
    """Our lines that the input runs."""
    seen: set[tuple[str, int]] = set()

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(OURS):
            return None
        if event == "line":
            seen.add((frame.f_code.co_filename, frame.f_lineno))
        return trace

    sys.settrace(trace)
    try:
        take(data)
    finally:
        sys.settrace(None)
    return seen


def grow(target: str, seconds: float) -> int:
    """Adds inputs for what the corpus does not show; how many."""
    draw, take = TARGETS[target]
    folder = FOLDER / target
    folder.mkdir(exist_ok=True)
    known: set[tuple[str, int]] = set()
    for path in files(target):
        known |= lines_of(take, path.read_bytes())
    added, seed = 0, time.time_ns()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        seed += 1
        data = draw(random.Random(seed))
        if len(data) > INPUT_BYTES_MAX or lines_of(take, data) <= known:
            continue
        known |= lines_of(take, data)
        name = hashlib.sha256(data).hexdigest()[:12]
        (folder / name).write_bytes(data)
        added += 1
    return added


if __name__ == "__main__":
    for name in TARGETS:
        sys.stdout.write(f"{name}: {grow(name, SECONDS)} more, {len(files(name))} in all\n")

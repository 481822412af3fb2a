"""Every input of the corpora in Python gives an outcome, and raises nothing."""

from pathlib import Path

import pytest

from fuzz import corpora

BYTES_MAX = 300_000
REACHED = {
    "frame_streams": {"", "MalformedFrameError", "FrameTooLargeError", "TruncatedStreamError"},
    "grpc_calls": {"", "call_message", "call_framing", "cut"},
    "http_heads": {""},
    "messages": {"", "invalid_json", "field"},
    "quic_streams": {"closed", "open"},
}


@pytest.mark.parametrize("target", corpora.TARGETS)
def test_what_was_found_is_taken(target: str) -> None:
    outcomes = corpora.replay(target)
    assert REACHED[target] <= set(outcomes), outcomes
    assert sum(outcomes.values()) == len(corpora.files(target)) >= 10


def test_corpora_are_small_and_each_has_a_target() -> None:
    found = [path for path in corpora.FOLDER.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in found) < BYTES_MAX
    here = Path(__file__).parent
    in_cpp = {path.stem.removeprefix("fuzz_") for path in here.glob("fuzz_*.cpp")} - {"canary"}
    assert {path.parent.name for path in found} == in_cpp | set(corpora.TARGETS)

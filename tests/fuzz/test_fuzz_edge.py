"""A short run of the Python fuzzers, and of their own ability to find something."""

import asyncio
import random

import pytest

from fuzz import fuzz_frames, fuzz_grpc, fuzz_quic, fuzz_request, fuzz_template
from sublimate.edge.errors import ApiError
from sublimate.edge.grpc.framing import MessageReader
from sublimate.model.escape import Escape
from sublimate.model.template import ChatTemplate
from sublimate.wire.frames import FrameDecoder
from tiny_model import CONTROL

SECONDS = 4.0
SEED = 20_26


def test_requests() -> None:
    outcomes = fuzz_request.run(SECONDS, SEED)
    assert sum(outcomes.values()) > 100
    assert {"", "invalid_json", "field"} <= set(outcomes), "all kinds of outcomes are reached"


def test_templates() -> None:
    outcomes = fuzz_template.run(SECONDS, SEED)
    assert outcomes.get("rendered", 0) > 0 and outcomes.get("refused at load", 0) > 0


def test_frames() -> None:
    outcomes = fuzz_frames.run(SECONDS / 2, SEED)
    assert sum(outcomes.values()) > 1000
    reached = {"", "MalformedFrameError", "FrameTooLargeError", "TruncatedStreamError"}
    assert reached <= set(outcomes)


def test_calls_of_grpc() -> None:
    outcomes = fuzz_grpc.run(SECONDS / 2, SEED)
    assert sum(outcomes.values()) > 1000
    assert {"", "call_message", "call_framing", "call_too_large", "field", "cut"} <= set(outcomes)


def test_a_planted_fault_in_the_reader_of_calls_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    feed = MessageReader.feed
    # A prefix that comes in two pieces is lost.
    monkeypatch.setattr(
        MessageReader, "feed", lambda self, data: feed(self, data) if len(data) > 4 else []
    )
    with pytest.raises(AssertionError, match="pieces"):
        fuzz_grpc.run(60, SEED, 1000)


def test_a_planted_fault_in_the_frame_reader_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    feed = FrameDecoder.feed
    # A frame that comes in two pieces is lost.
    monkeypatch.setattr(
        FrameDecoder, "feed", lambda self, data: feed(self, data) if len(data) > 20 else []
    )
    with pytest.raises(AssertionError, match="pieces"):
        fuzz_frames.run(60, SEED, 1000)


def test_datagrams_and_streams_of_http_3() -> None:
    outcomes = fuzz_quic.run(SECONDS, SEED)
    assert outcomes.get("closed") and outcomes.get("open"), outcomes


def test_first_datagrams_of_http_3() -> None:
    begun = [asyncio.run(fuzz_quic.first_datagrams(random.Random(SEED + at))) for at in range(20)]
    assert min(begun) < fuzz_quic.TURNS and max(begun) > 0


def test_a_seed_repeats() -> None:
    first = fuzz_request.mutate(random.Random(5), fuzz_request.BODY, fuzz_request.WORDS)
    again = fuzz_request.mutate(random.Random(5), fuzz_request.BODY, fuzz_request.WORDS)
    assert first == again
    assert fuzz_request.run(30, SEED, 20) == fuzz_request.run(30, SEED, 20)


def test_a_planted_fault_in_the_escape_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Escape, "text", lambda self, text, marker: text)
    template = ChatTemplate(fuzz_template.TINY_TEMPLATE, CONTROL)
    with pytest.raises(AssertionError, match="control tokens"):
        for seed in range(200):
            fuzz_template.one_conversation(random.Random(seed), template)


def test_a_planted_fault_in_the_decoder_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def leak(body: bytes) -> bytes:
        if b"\xff" in body:
            raise UnicodeDecodeError("utf-8", body, 0, 1, "planted")
        return body

    monkeypatch.setattr(fuzz_request, "checked_json", leak)
    with pytest.raises((UnicodeDecodeError, ApiError)):
        fuzz_request.run(60, SEED, 5000)

"""The checker must refuse what real clients refuse: each fault is planted into a good stream."""

import re
from collections.abc import Callable

import pytest

from grammar import check_stream, prompt_tokens
from harness import Served


def without(name: str) -> Callable[[bytes], bytes]:
    """Drops the frames of a type."""
    pattern = re.compile(rb"event: " + name.encode() + rb"\n[^\n]*\n\n")
    return lambda stream: pattern.sub(b"", stream)


def swap(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    def change(stream: bytes) -> bytes:
        assert old in stream
        return stream.replace(old, new)

    return change


EXTRA = b'event: progress\ndata: {"type":"progress"}\n\n'
LATE = b'event: ping\ndata: {"type": "ping"}\n\n'
ERROR = b'event: error\ndata: {"type":"error","error":{"type":"api_error","message":"m"}}\n\n'
FAULTS: dict[str, Callable[[bytes], bytes]] = {
    "no event lines": lambda s: re.sub(rb"event: [a-z_]+\n", b"", s),
    "no message_stop": without("message_stop"),
    "no message_delta": without("message_delta"),
    "no message_start": without("message_start"),
    "no block start": without("content_block_start"),
    "no block stop": without("content_block_stop"),
    "cut": lambda s: s[: len(s) // 2],
    "cut between frames": lambda s: s[: s.index(b"event: message_delta")],
    "unknown type": lambda s: EXTRA + s,
    "type differs from its event": swap(b'{"type":"message_stop"}', b'{"type":"ping"}'),
    "something after the end": lambda s: s + LATE,
    "done line": lambda s: s + b"data: [DONE]\n\n",
    "comment": lambda s: b": hello\n\n" + s,
    "carriage returns": lambda s: s.replace(b"\n", b"\r\n"),
    "empty delta": swap(b'"text":"Hello there!"}}', b'"text":""}}'),
    "wrong delta": swap(b'"type":"text_delta"', b'"type":"input_json_delta"'),
    "first index": swap(b'"index":0', b'"index":1'),
    "start without text": swap(b'{"type":"text","text":""}', b'{"type":"text"}'),
    "null content": swap(b'"content":[]', b'"content":null'),
    "null count": swap(b'"cache_creation_input_tokens":0', b'"cache_creation_input_tokens":null'),
    "no usage at the end": lambda s: re.sub(rb',"usage":\{"input[^{}]*\}\}\n', b"}\n", s),
    "unknown stop reason": swap(b'"stop_reason":"end_turn"', b'"stop_reason":"done"'),
    "an error nobody expects": lambda s: s[: s.index(b"event: content_block_stop")] + ERROR,
}


@pytest.fixture(scope="module")
def good(shared: Served) -> bytes:
    stream = shared.message("say hello", stream=True).content
    # One delta, so that each fault has one place.
    text = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,"delta":'
    text += b'{"type":"text_delta","text":"Hello there!"}}\n\n'
    first = stream.index(b"event: content_block_delta")
    return stream[:first] + text + stream[stream.index(b"event: content_block_stop") :]


def test_the_good_stream_passes(good: bytes) -> None:
    folded = check_stream(good)
    assert folded.text == "Hello there!" and prompt_tokens(folded.message) > 0
    assert (
        check_stream(
            LATE + good.replace(b"event: content_block_stop", LATE + b"event: content_block_stop")
        ).pings
        == 2
    )


@pytest.mark.parametrize("name", FAULTS)
def test_every_fault_is_seen(good: bytes, name: str) -> None:
    broken = FAULTS[name](good)
    assert broken != good
    with pytest.raises((AssertionError, KeyError, ValueError, IndexError)):
        check_stream(broken)


def test_an_expected_error_ends_a_stream(good: bytes) -> None:
    cut = good[: good.index(b"event: content_block_stop")] + ERROR
    assert check_stream(cut, may_fail=True).error
    with pytest.raises(AssertionError):
        check_stream(ERROR + cut, may_fail=True)

"""The checker must refuse what real clients refuse: each fault is planted into a good stream."""

import re
from collections.abc import Callable

import msgspec
import pytest

import stream_grammar
from grammar import check_stream, prompt_tokens
from harness import Served
from stream_grammar import check_body


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


def block(index: int, start: str, *deltas: str, stop: bool = True) -> bytes:
    """Frames of one block, from the inside of its JSON."""
    events = [("content_block_start", f'"content_block":{start}')]
    events += [("content_block_delta", f'"delta":{delta}') for delta in deltas]
    events += [("content_block_stop", "")] if stop else []
    return b"".join(
        f'event: {kind}\ndata: {{"type":"{kind}","index":{index}{body and ","}{body}}}\n\n'.encode()
        for kind, body in events
    )


THINKING = '{"type":"thinking","thinking":"","signature":""}'
THOUGHT = '{"type":"thinking_delta","thinking":"hm"}'
SIGNED = '{"type":"signature_delta","signature":"c2ln"}'
TOOL = '{"type":"tool_use","id":"toolu_01","name":"get","input":{}}'
OTHER = TOOL.replace("toolu_01", "toolu_02")
TEXT = '{"type":"text","text":""}'
WORD = '{"type":"text_delta","text":"a"}'


def partial(json: str) -> str:
    return '{"type":"input_json_delta","partial_json":"' + json.replace('"', '\\"') + '"}'


CALL = block(0, TOOL, partial('{"a"'), partial(": 1}"))
GOOD_BLOCKS: dict[str, tuple[bytes, str]] = {
    "a call": (CALL, "tool_use"),
    "two calls": (CALL + block(1, OTHER, partial("{}")), "tool_use"),
    "text around a call": (
        block(0, TEXT, WORD) + block(1, TOOL, partial("{}")) + block(2, TEXT, WORD), "tool_use",
    ),
    "thinking": (block(0, THINKING, THOUGHT, THOUGHT, SIGNED) + block(1, TEXT, WORD), "end_turn"),
    "omitted thinking": (block(0, THINKING, SIGNED), "end_turn"),
    "a cut call": (CALL, "max_tokens"),
    "nothing": (b"", "end_turn"),
}  # fmt: skip
BAD_BLOCKS: dict[str, tuple[bytes, str]] = {
    "one id twice": (CALL + block(1, TOOL, partial("{}")), "tool_use"),
    "a gap": (CALL + block(2, OTHER, partial("{}")), "tool_use"),
    "cut arguments": (block(0, TOOL, partial('{"a"')), "max_tokens"),
    "arguments are a list": (block(0, TOOL, partial("[]")), "tool_use"),
    "no arguments": (block(0, TOOL), "tool_use"),
    "empty arguments": (block(0, TOOL, partial("{}"), partial("")), "tool_use"),
    "input is text": (block(0, TOOL.replace("{}", '""'), partial("{}")), "tool_use"),
    "no id": (block(0, TOOL.replace('"id":"toolu_01",', ""), partial("{}")), "tool_use"),
    "text in a call": (block(0, TOOL, partial("{}"), WORD), "tool_use"),
    "a call in a text": (block(0, TEXT, WORD, partial("{}")), "end_turn"),
    "a block in a block": (block(0, TEXT, WORD, stop=False) + block(1, TEXT, WORD), "end_turn"),
    "unsigned": (block(0, THINKING, THOUGHT), "end_turn"),
    "thinking after its signature": (block(0, THINKING, SIGNED, THOUGHT), "end_turn"),
    "signed twice": (block(0, THINKING, SIGNED, SIGNED), "end_turn"),
    "start without signature": (
        block(0, THINKING.replace(',"signature":""', ""), SIGNED), "end_turn",
    ),
    "an empty text": (block(0, TEXT), "end_turn"),
    "one text in two blocks": (block(0, TEXT, WORD) + block(1, TEXT, WORD), "end_turn"),
    "a call that ends no turn": (CALL, "end_turn"),
    "tool_use without a call": (block(0, TEXT, WORD), "tool_use"),
    "unknown block": (block(0, '{"type":"image"}', WORD), "end_turn"),
}  # fmt: skip


def with_blocks(good: bytes, blocks: bytes, reason: str) -> bytes:
    """The good stream with other blocks in it."""
    first = good.index(b"event: content_block_start")
    end = good[good.index(b"event: message_delta") :]
    assert b'"end_turn"' in end
    return good[:first] + blocks + end.replace(b'"end_turn"', f'"{reason}"'.encode())


@pytest.mark.parametrize("name", GOOD_BLOCKS)
def test_good_blocks_pass(good: bytes, name: str) -> None:
    blocks, reason = GOOD_BLOCKS[name]
    folded = check_stream(with_blocks(good, blocks, reason))
    assert len(folded.message["content"]) == blocks.count(b"event: content_block_stop")
    if name == "a call":
        call = {"type": "tool_use", "id": "toolu_01", "name": "get", "input": {"a": 1}}
        assert folded.message["content"] == [call]
    if name == "thinking":
        thought = {"type": "thinking", "thinking": "hmhm", "signature": "c2ln"}
        assert folded.message["content"][0] == thought


@pytest.mark.parametrize("name", BAD_BLOCKS)
def test_bad_blocks_are_seen(good: bytes, name: str) -> None:
    with pytest.raises((AssertionError, KeyError, msgspec.DecodeError)):
        check_stream(with_blocks(good, *BAD_BLOCKS[name]))


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


CHUNK = (
    b'data: {"id":"c","model":"m","created":1,"object":"chat.completion.chunk","choices":[%s]}\n\n'
)
SAID = CHUNK % b'{"index":0,"delta":{"content":"a"},"finish_reason":null}'
ENDED = CHUNK % b'{"index":0,"delta":{},"finish_reason":"stop"}'
DONE = b"data: [DONE]\n\n"
CREATED = b'event: response.created\ndata: {"type":"response.created","sequence_number":0}\n\n'
COMPLETED = (
    b'event: response.completed\ndata: {"type":"response.completed","sequence_number":%d}\n\n'
)
ITEM = (
    b"event: response.output_item.added\n"
    b'data: {"type":"response.output_item.added","sequence_number":1,"output_index":0}\n\n'
)
SSE, LINES = "text/event-stream", "application/x-ndjson"
CHAT, RESPONSES = ("/v1/chat/completions", SSE), ("/v1/responses", SSE)
OLLAMA = ("/api/chat", LINES)

OTHER_STREAMS: list[tuple[str, tuple[str, str], bytes, bool]] = [
    ("chat", CHAT, SAID + ENDED + DONE, True),
    ("chat-without-end", CHAT, SAID + DONE, False),
    ("chat-without-done", CHAT, SAID + ENDED, False),
    ("chat-behind-its-end", CHAT, SAID + ENDED + SAID + DONE, False),
    ("chat-of-two-ids", CHAT, SAID.replace(b'"c"', b'"d"') + SAID + ENDED + DONE, False),
    ("responses", RESPONSES, CREATED + COMPLETED % 1, True),
    ("responses-not-numbered", RESPONSES, CREATED + COMPLETED % 2, False),
    ("responses-without-end", RESPONSES, CREATED, False),
    ("responses-open-item", RESPONSES, CREATED + ITEM + COMPLETED % 2, False),
    ("ollama", OLLAMA, b'{"done":false}\n{"done":true}\n', True),
    ("ollama-without-end", OLLAMA, b'{"done":false}\n', False),
    ("ollama-two-ends", OLLAMA, b'{"done":true}\n{"done":true}\n', False),
    ("messages-cut", ("/v1/messages", SSE), b"event: ping\ndata: {}\n\n", False),
    ("no-grammar", ("/v1/models", SSE), DONE, False),
]


@pytest.mark.parametrize(
    ("where", "stream", "is_good"),
    [pytest.param(*one[1:], id=one[0]) for one in OTHER_STREAMS],
)
def test_what_is_watched(where: tuple[str, str], stream: bytes, is_good: bool) -> None:
    if is_good:
        check_body(*where, stream)
        return
    with pytest.raises((AssertionError, KeyError)):
        check_body(*where, stream)


def test_no_client_reads_a_stream_unwatched(
    shared: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(body: bytes) -> None:
        raise AssertionError("watched")

    monkeypatch.setitem(stream_grammar.GRAMMARS, ("/v1/messages", SSE), refuse)
    with pytest.raises(AssertionError, match="watched"):
        shared.message(stream=True)

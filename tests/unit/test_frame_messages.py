"""Frames: the native writer against the protobuf runtime and against server-sent events, JSON both
ways, and every way in which a stream can be wrong."""

import itertools
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ring_reference as ring
import text_reference as twin
from sublimate import _core
from sublimate.edge.blocks import block_format
from sublimate.edge.errors import TABLE, ApiError, envelope
from sublimate.model.tool_formats import Tool
from sublimate.v1 import frames_pb2 as v1
from sublimate.wire.frames import (
    FRAME_BYTES_MAX,
    FrameDecoder,
    FrameError,
    FrameTooLargeError,
    InexpressibleError,
    MalformedFrameError,
    TruncatedStreamError,
    encode_frame,
    encode_sse,
    event_json,
    event_of,
    message_json,
    message_of,
)
from test_edge_blocks import MISTRAL, SPECIAL, THINK
from test_edge_blocks import TOKENS as BLOCK_TOKENS
from test_text import Stream, cases, run

Json = dict[str, Any]


def decoded(data: bytes) -> list[v1.StreamEvent]:
    return FrameDecoder().feed(data)


def same_json(left: object, right: object) -> bool:
    return msgspec.json.encode(left, order="sorted") == msgspec.json.encode(right, order="sorted")


# ---- the native writer --------------------------------------------------------------------------


def check_same_stream(sse: bytes, frames: bytes) -> list[Json]:
    """Event by event the same JSON, and frames the bytes that the protobuf runtime writes."""
    events = decoded(frames)
    told = twin.parse_frames(sse)
    assert [event_json(event) for event in events] == told
    assert b"".join(map(encode_sse, events)) == sse, "members in the same order, too"
    assert b"".join(map(encode_frame, events)) == frames
    assert b"".join(encode_frame(event_of(event)) for event in told) == frames
    return told


@given(cases())
def test_frames_say_what_server_sent_events_say(
    case: tuple[list[bytes], list[str], list[int]],
) -> None:
    tokens, stops, polls = case
    streams = [Stream(tokens, stops, form=form) for form in ("sse", "frames")]
    for stream in streams:
        run(stream, len(tokens), polls, ring.BUDGET)
    told = check_same_stream(streams[0].data, streams[1].data)
    assert told[-1] == {"type": "message_stop"}


@pytest.mark.parametrize("omit", [False, True])
@pytest.mark.parametrize("eager", [False, True])
def test_blocks_of_every_kind_are_the_same(eager: bool, omit: bool) -> None:
    form = block_format(
        MISTRAL, THINK, SPECIAL, callable_tools=[Tool("get")], eager=eager, omit_thinking=omit
    )
    streams = [Stream(BLOCK_TOKENS, form=mode, blocks=form) for mode in ("sse", "frames")]
    for stream in streams:
        run(stream, len(BLOCK_TOKENS), [3, 5], ring.STOP_TOKEN)
    told = check_same_stream(streams[0].data, streams[1].data)
    starts = [event["content_block"]["type"] for event in told if "content_block" in event]
    assert starts == ["thinking", "text", "tool_use", "text"]
    assert told[-2]["delta"]["stop_reason"] == "tool_use"
    assert told[-2]["usage"]["output_tokens_details"]["thinking_tokens"] > 0


def test_a_long_text_is_cut_into_frames_between_code_points() -> None:
    """More than a frame may hold, of code points of three bytes, before which stands one byte."""
    token = "你".encode() * 340
    count = FRAME_BYTES_MAX // len(token) + 2
    stream = Stream([b"a", token], form="frames")
    stream.push(stream.token(0))
    for _ in range(count):
        stream.push(stream.token(1))
    stream.poll()
    deltas = [e.content_block_delta.text for e in decoded(stream.data) if e.HasField(
        "content_block_delta")]  # fmt: skip
    assert len(deltas) == 2 and "".join(deltas) == "a" + token.decode() * count
    lengths = [len(encode_frame(event)) for event in decoded(stream.data)]
    assert FRAME_BYTES_MAX - 64 < max(lengths) <= FRAME_BYTES_MAX + 4
    stream.close()


def test_chunked_frames_have_one_size_before_them() -> None:
    plain, chunked = (Stream([b"a"], form="frames", chunked=mode) for mode in (False, True))
    for stream in (plain, chunked):
        stream.data = b""
        stream.push(stream.token(0))
        stream.poll()
        stream.close()
    assert chunked.data == b"%x\r\n%b\r\n" % (len(plain.data), plain.data)


def test_pings_and_errors_of_the_edge() -> None:
    assert _core.ping_frame() == encode_frame(v1.StreamEvent(ping=v1.Ping()))
    for code, kind in TABLE.items():
        if "{" in kind.text:
            continue
        error = ApiError(code)
        frame = _core.error_frame(kind.type, error.text, "req_1", kind.error_code)
        (event,) = decoded(frame)
        assert msgspec.json.encode(event_json(event)) == envelope(error, "req_1")
        assert encode_frame(event) == frame
    with pytest.raises(ValueError, match="too long"):
        _core.error_frame("api_error", "x" * FRAME_BYTES_MAX, "req_1")


# ---- JSON, both ways ----------------------------------------------------------------------------

COUNTS = st.integers(0, 2**32 - 1)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=12)
INPUTS = st.dictionaries(
    TEXTS,
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**53), 2**53) | TEXTS,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
        max_leaves=6,
    ),
    max_size=3,
)
REASONS = st.sampled_from(
    [
        *(None, "end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal", "pause_turn"),
        "model_context_window_exceeded",
    ]
)


def object_of(**members: st.SearchStrategy[Any]) -> st.SearchStrategy[Json]:
    return st.fixed_dictionaries(members)


USAGES = st.fixed_dictionaries(
    {
        "input_tokens": COUNTS,
        "cache_creation_input_tokens": COUNTS,
        "cache_read_input_tokens": COUNTS,
        "output_tokens": COUNTS,
    },
    optional={
        "cache_creation": object_of(
            ephemeral_5m_input_tokens=COUNTS, ephemeral_1h_input_tokens=COUNTS
        ),
        "service_tier": TEXTS,
        "output_tokens_details": object_of(thinking_tokens=COUNTS),
    },
)
MANAGEMENT = object_of(
    applied_edits=st.lists(
        st.fixed_dictionaries(
            {"type": TEXTS, "cleared_input_tokens": COUNTS},
            optional={"cleared_thinking_turns": COUNTS, "cleared_tool_uses": COUNTS},
        ),
        max_size=2,
    )
)
DIAGNOSTICS = object_of(
    cache_miss_reason=st.none()
    | st.fixed_dictionaries({"type": TEXTS}, optional={"cache_missed_input_tokens": COUNTS})
)
BLOCKS = st.one_of(
    object_of(type=st.just("text"), text=TEXTS),
    object_of(type=st.just("thinking"), thinking=TEXTS, signature=TEXTS),
    object_of(type=st.just("tool_use"), id=TEXTS, name=TEXTS, input=INPUTS),
)
ENDS: dict[str, Any] = {
    "stop_reason": REASONS,
    "stop_sequence": st.none() | TEXTS,
    "stop_details": st.none(),
    "container": st.none(),
}
MESSAGES = st.fixed_dictionaries(
    {
        "id": TEXTS,
        "type": st.just("message"),
        "role": st.just("assistant"),
        "model": TEXTS,
        "content": st.lists(BLOCKS, max_size=3),
        "diagnostics": st.none() | DIAGNOSTICS,
        "usage": USAGES,
        **ENDS,
    },
    optional={"context_management": MANAGEMENT},
)
DELTAS = st.one_of(
    object_of(type=st.just("text_delta"), text=TEXTS),
    object_of(type=st.just("thinking_delta"), thinking=TEXTS),
    object_of(type=st.just("signature_delta"), signature=TEXTS),
    object_of(type=st.just("input_json_delta"), partial_json=TEXTS),
)
EVENTS = st.one_of(
    object_of(type=st.just("message_start"), message=MESSAGES),
    object_of(type=st.just("content_block_start"), index=COUNTS, content_block=BLOCKS),
    object_of(type=st.just("content_block_delta"), index=COUNTS, delta=DELTAS),
    object_of(type=st.just("content_block_stop"), index=COUNTS),
    st.fixed_dictionaries(
        {"type": st.just("message_delta"), "delta": object_of(**ENDS), "usage": USAGES},
        optional={"context_management": MANAGEMENT},
    ),
    object_of(type=st.just("ping")),
)
LAST_EVENTS = st.one_of(
    object_of(type=st.just("message_stop")),
    object_of(
        type=st.just("error"),
        error=st.fixed_dictionaries(
            {"type": TEXTS, "message": TEXTS}, optional={"details": object_of(error_code=TEXTS)}
        ),
        request_id=TEXTS,
    ),
)


@given(st.lists(EVENTS, max_size=4), LAST_EVENTS, st.lists(st.integers(0, 400), max_size=5))
def test_nothing_is_lost_on_the_way_however_it_is_cut(
    events: list[Json], last: Json, cuts: list[int]
) -> None:
    data = b"".join(encode_frame(event_of(event)) for event in [*events, last])
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    decoder = FrameDecoder()
    told = [
        event_json(event)
        for begin, end in itertools.pairwise(places)
        for event in decoder.feed(data[begin:end])
    ]
    decoder.close()
    assert same_json(told, [*events, last])


@given(MESSAGES)
def test_whole_messages_come_back(message: Json) -> None:
    made = message_of(message)
    assert same_json(message_json(made), message)
    assert message_of(message_json(made)) == made


EMPTY_CALL: Json = {"type": "tool_use", "id": "i", "name": "n", "input": {}}


def test_an_empty_input_is_not_on_the_wire() -> None:
    start = event_of({"type": "content_block_start", "index": 0, "content_block": EMPTY_CALL})
    assert start.content_block_start.content_block.tool_use.input == ""


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"type": "unheard_of"},
        {"type": "ping", "more": 1},
        {"type": "message_stop", "index": 0},
        {"type": "content_block_stop"},
        {"type": "content_block_stop", "index": -1},
        {"type": "content_block_stop", "index": 2**32},
        {"type": "content_block_stop", "index": True},
        {"type": "content_block_stop", "index": "0"},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta"}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "citations_delta"}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": None}},
        {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "text_delta", "text": "\ud800"},
        },
        {"type": "content_block_start", "index": 0, "content_block": {"type": "image"}},
        {
            "type": "content_block_start",
            "index": 0,
            "content_block": {"type": "tool_use", "id": "i", "name": "n", "input": [1]},
        },
        {"type": "error", "error": {"type": "t", "message": "m", "details": {}}, "request_id": "r"},
    ],
)
def test_what_has_no_place_is_refused_and_not_dropped(data: Json) -> None:
    with pytest.raises(InexpressibleError):
        event_of(data)


# ---- streams that are wrong ---------------------------------------------------------------------

STOP = encode_frame(v1.StreamEvent(message_stop=v1.MessageStop()))
PING = _core.ping_frame()


def framed(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (framed(b"\x3a"), MalformedFrameError),  # a field that is cut
        (framed(b"\x3a\x05ab"), MalformedFrameError),
        (framed(b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"), MalformedFrameError),
        (framed(b"\x1a\x03\x12\x01\xff"), MalformedFrameError),  # no UTF-8
        (STOP + PING, MalformedFrameError),
        (STOP + b"\0", MalformedFrameError),
        ((FRAME_BYTES_MAX + 1).to_bytes(4, "big"), FrameTooLargeError),
        (b"\xff\xff\xff\xff", FrameTooLargeError),
        (b"HTTP/1.1 200 OK\r\n", FrameTooLargeError),
    ],
)
def test_malformed_frames_are_typed_errors(data: bytes, error: type[FrameError]) -> None:
    with pytest.raises(error):
        decoded(data)
    one_by_one = FrameDecoder()
    with pytest.raises(error):
        for byte in data:
            one_by_one.feed(bytes([byte]))


@pytest.mark.parametrize("cut", [0, 1, 4, 5, len(PING), len(PING + STOP) - 1])
def test_a_cut_stream_is_told_at_its_end(cut: int) -> None:
    decoder = FrameDecoder()
    decoder.feed((PING + STOP)[:cut])
    with pytest.raises(TruncatedStreamError):
        decoder.close()


def test_events_of_a_later_version_are_left_out() -> None:
    unknown = framed(b"\xfa\x06\x02\x08\x01")  # field 111
    decoder = FrameDecoder()
    events = decoder.feed(framed(b"") + unknown + PING + unknown + STOP)
    assert [event.WhichOneof("event") for event in events] == ["ping", "message_stop"]
    with pytest.raises(MalformedFrameError):
        event_json(v1.StreamEvent())


@pytest.mark.parametrize(
    "event",
    [
        v1.StreamEvent(content_block_delta=v1.ContentBlockDelta(index=1)),
        v1.StreamEvent(content_block_start=v1.ContentBlockStart(index=1)),
        v1.StreamEvent(message_delta=v1.MessageDelta(stop_reason=77)),  # type: ignore[arg-type]
        v1.StreamEvent(
            content_block_start=v1.ContentBlockStart(
                content_block=v1.ContentBlock(tool_use=v1.ToolUseBlock(input="[1]"))
            )
        ),
    ],
)
def test_events_that_say_half_have_no_json(event: v1.StreamEvent) -> None:
    with pytest.raises(MalformedFrameError):
        event_json(event)


def test_a_reader_may_take_less_and_never_more() -> None:
    delta = v1.ContentBlockDelta(text="x" * 100)
    frame = encode_frame(v1.StreamEvent(content_block_delta=delta))
    assert FrameDecoder(len(frame) - 4).feed(frame)
    with pytest.raises(FrameTooLargeError):
        FrameDecoder(len(frame) - 5).feed(frame)
    for limit in (0, FRAME_BYTES_MAX + 1):
        with pytest.raises(ValueError):
            FrameDecoder(limit)
    huge = v1.StreamEvent(content_block_delta=v1.ContentBlockDelta(text="x" * FRAME_BYTES_MAX))
    with pytest.raises(FrameTooLargeError):
        encode_frame(huge)


def pieces_of(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[a:b] for a, b in itertools.pairwise(places)]


FRAMES = st.sampled_from([PING, STOP, framed(b"\x1a\x04\x12\x02hi")])


@given(
    st.lists(st.binary(max_size=40) | FRAMES, max_size=6),
    st.lists(st.integers(0, 1000), max_size=6),
)
def test_any_bytes_give_events_or_a_typed_error_wherever_they_are_cut(
    parts: list[bytes], cuts: list[int]
) -> None:
    data = b"".join(parts)

    def outcome(pieces: list[bytes]) -> tuple[list[bytes], type[FrameError] | None]:
        decoder, events = FrameDecoder(), []
        try:
            for piece in pieces:
                events += [event.SerializeToString() for event in decoder.feed(piece)]
        except FrameError as error:
            return [], type(error)
        return events, None

    assert outcome([data]) == outcome(pieces_of(data, cuts))

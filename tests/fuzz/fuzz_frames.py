"""Fuzz target of the frame reader: streams that were broken somewhere, in any pieces.

Each gives events or a typed error, the same wherever it is cut; each event has a JSON that leads
back to it, or a typed error.

    PYTHONPATH=tests python tests/fuzz/fuzz_frames.py --seconds 60     # tests run it for a moment

defines: broken, one_stream, run
"""

import itertools
import random
import sys

from fuzz.seeds import main, run_seeds
from sublimate.v1 import frames_pb2 as v1
from sublimate.wire.frames import (
    FRAME_BYTES_MAX,
    FrameDecoder,
    FrameError,
    MalformedFrameError,
    encode_frame,
    event_json,
    event_of,
)

MESSAGE = v1.Message(
    id="msg_1",
    model="tiny",
    usage=v1.Usage(input_tokens=300, service_tier="standard", cache_creation=v1.CacheCreation()),
    diagnostics=v1.Diagnostics(cache_miss_reason=v1.CacheMissReason(type="unavailable")),
)
TOOL = v1.ContentBlock(tool_use=v1.ToolUseBlock(id="toolu_1", name="get", input='{"a": [1]}'))
END = v1.MessageDelta(
    stop_reason=v1.STOP_REASON_STOP_SEQUENCE,
    stop_sequence="é",
    usage=v1.Usage(output_tokens=7, output_tokens_details=v1.OutputTokensDetails()),
    context_management=v1.ContextManagement(applied_edits=[v1.AppliedEdit(type="t")]),
)
EVENTS = [
    v1.StreamEvent(message_start=v1.MessageStart(message=MESSAGE)),
    v1.StreamEvent(content_block_start=v1.ContentBlockStart(index=200, content_block=TOOL)),
    v1.StreamEvent(content_block_delta=v1.ContentBlockDelta(text="a 😸")),
    v1.StreamEvent(content_block_delta=v1.ContentBlockDelta(index=1, partial_json='{"a')),
    v1.StreamEvent(content_block_stop=v1.ContentBlockStop(index=1)),
    v1.StreamEvent(message_delta=END),
    v1.StreamEvent(ping=v1.Ping()),
]
LAST = [
    v1.StreamEvent(message_stop=v1.MessageStop()),
    v1.StreamEvent(error=v1.Error(type="api_error", message="m", error_code="c")),
]
NUMBERS = (b"\0", b"\x7f", b"\x80\x80\x80\x80\x10", b"\xff" * 10, b"\xff" * 9 + b"\x01")


def broken(draw: random.Random) -> bytes:
    """A stream with some of its bytes changed, dropped, doubled or put in, and often its lengths
    mended, so that what is wrong lies inside of a frame."""
    events = draw.choices(EVENTS, k=draw.randrange(4)) + draw.choices(LAST, k=draw.randrange(2))
    frames: list[bytes] = []
    for event in events:
        data = bytearray(event.SerializeToString())
        for _ in range(draw.choice((0, 0, 1, 3))):
            at = draw.randrange(len(data) + 1)
            kind = draw.randrange(4)
            if kind == 0 and at < len(data):
                data[at] = draw.randrange(256)
            elif kind == 1:
                del data[at : at + draw.randrange(4)]
            elif kind == 2:
                data[at:at] = draw.choice(NUMBERS)
            else:
                data[at:at] = data[at : at + draw.randrange(9)]
        is_mended = draw.random() < 0.9
        size = len(data) if is_mended else draw.choice((0, 3, FRAME_BYTES_MAX, FRAME_BYTES_MAX + 1))
        frames.append(size.to_bytes(4, "big") + data)
    return b"".join(frames)


def events_of(pieces: list[bytes]) -> list[v1.StreamEvent] | type[FrameError]:
    decoder, events = FrameDecoder(), list[v1.StreamEvent]()
    try:
        for piece in pieces:
            events += decoder.feed(piece)
        decoder.close()
    except FrameError as error:
        return type(error)
    return events


def one_stream(draw: random.Random, data: bytes) -> str:
    """The outcome: "" or the name of an error."""
    places = sorted({0, len(data), *(draw.randrange(len(data) + 1) for _ in range(4))})
    cut = [data[a:b] for a, b in itertools.pairwise(places)]
    events = events_of([data])
    if events != events_of(cut):
        raise AssertionError("the pieces make a difference")
    if isinstance(events, type):
        return events.__name__
    for event in events:
        try:
            told = event_json(event)
        except MalformedFrameError:
            continue
        if event_json(event_of(told)) != told or not encode_frame(event):
            raise AssertionError("an event got lost in its JSON")
    return ""


def run(seconds: float, seed: int, count_max: int = sys.maxsize) -> dict[str, int]:
    """How often each outcome came."""
    return run_seeds(lambda draw: one_stream(draw, broken(draw)), seconds, seed, count_max)


if __name__ == "__main__":
    main(run, __doc__)

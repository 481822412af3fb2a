"""Streams in frames through the whole server: who gets them, and that they say what server-sent
events say, to the last event, however the stream ends."""

import re
from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest

from cases_tools import thinking_model
from grammar import parse_events
from harness import ANSWERS, Served, body, http_post, read_reply, serve, wait_until
from sublimate import _core
from sublimate.edge.coding import FRAMES_TYPE, accepts_frames
from sublimate.edge.limits import HttpLimits
from sublimate.wire.frames import FrameDecoder, TruncatedStreamError, event_json
from test_blocks_served import ANSWERS as CALLS
from test_blocks_served import TOOLS
from test_cancel import settled

Json = dict[str, Any]
FRAMES = {"accept": FRAMES_TYPE}


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    thoughts: dict[str, str | bytes] = {"ferret": "<think>\nHm, 2?\n</think>\n\nTwo."}
    answers = {**ANSWERS, **CALLS, **thoughts}
    with serve(answers=answers, model=thinking_model(), constrains=False) as server:
        yield server


def events_of(body: bytes) -> list[Json]:
    decoder = FrameDecoder()
    events = decoder.feed(body)
    decoder.close()
    return [event_json(event) for event in events]


def streamed(served: Served, asked: str, headers: dict[str, str], **fields: Any) -> httpx.Response:
    request = body(asked, stream=True, **fields)
    return served.client.post("/v1/messages", json=request, headers=headers)


def comparable(events: list[Json]) -> list[Json]:
    """Without pings, deltas of one kind that follow each other as one, which time alone cuts, and
    without what differs from request to request."""
    told: list[Json] = []
    for event in events:
        delta = event.get("delta", {})
        before = told[-1].get("delta", {}) if told else {}
        if event["type"] == "content_block_delta" and delta["type"] == before.get("type"):
            (key,) = set(delta) - {"type"}
            before[key] += delta[key]
        elif event["type"] != "ping":
            told.append(event)
    text = msgspec.json.encode(told)
    text = re.sub(rb"(msg|req|toolu)_[0-9a-z]+", rb"\1_1", text)
    # The second request finds the prompt of the first.
    text = re.sub(rb'"(cache_read_)?input_tokens":\d+', rb'"\1input_tokens":1', text)
    return msgspec.json.decode(text)


REQUESTS: dict[str, tuple[str, Json]] = {
    "text": ("say hello", {}),
    "escapes": ("say utf8", {}),
    "a broken end": ("say broken", {}),
    "nothing": ("say nothing", {}),
    "max_tokens": ("count", {"max_tokens": 50}),
    "none wanted": ("count", {"max_tokens": 0}),
    "stop_sequence": ("say stop", {"stop_sequences": ["STOP"]}),
    "tools": ("wombat", {"tools": TOOLS, "max_tokens": 4000}),
    "two calls": ("magpie", {"tools": TOOLS, "max_tokens": 4000}),
    "a cut call": ("wombat", {"tools": TOOLS, "max_tokens": 90}),
    "thinking": ("ferret", {"thinking": {"type": "adaptive"}, "max_tokens": 400}),
    "thinking, hidden": (
        "ferret",
        {"thinking": {"type": "adaptive", "display": "omitted"}, "max_tokens": 400},
    ),
    "edits": (
        "say hello",
        {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}},
    ),
    "diagnostics": ("say hello", {"diagnostics": {"previous_message_id": "msg_0"}}),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_frames_say_the_same(served: Served, name: str) -> None:
    asked, fields = REQUESTS[name]
    text = streamed(served, asked, {"accept": "text/event-stream"}, **fields)
    frames = streamed(served, asked, FRAMES, **fields)
    assert text.headers["content-type"].startswith("text/event-stream")
    assert frames.headers["content-type"] == FRAMES_TYPE
    told = [event.data for event in parse_events(text.content)]
    assert comparable(events_of(frames.content)) == comparable(told)
    assert told[-1]["type"] == "message_stop"
    assert set(text.headers) == set(frames.headers)
    if name == "diagnostics":
        assert told[0]["message"]["diagnostics"]["cache_miss_reason"]
    if name == "edits":
        assert told[-2]["context_management"] == {"applied_edits": []}
    if name.startswith("thinking"):
        assert told[1]["content_block"]["type"] == "thinking"


def test_the_end_of_the_context_is_named_in_frames_too() -> None:
    with serve(context_tokens=256) as small:
        newer = {"anthropic-version": "2026-10-21"}
        for headers in (newer, {**newer, **FRAMES}):
            reply = streamed(small, "count", headers, max_tokens=4000)
            told = (
                events_of(reply.content)
                if "accept" in headers
                else [event.data for event in parse_events(reply.content)]
            )
            assert told[-2]["delta"]["stop_reason"] == "model_context_window_exceeded"


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        ("application/octet-stream", True),
        ("Application/Octet-Stream", True),
        ("application/octet-stream, text/event-stream", True),
        ("application/octet-stream;q=0.5, text/event-stream;q=0.5", True),
        ("text/event-stream;q=0.9, application/octet-stream", True),
        ("application/octet-stream; q=0.2, */*; q=0.1", True),
        ("application/octet-stream, */*", True),
        ("application/octet-stream;q=0.3, text/event-stream;q=0, */*", True),
        ("", False),
        ("*/*", False),
        ("application/*", False),
        ("application/json", False),
        ("text/event-stream", False),
        ("text/event-stream, application/octet-stream;q=0.9", False),
        ("application/octet-stream;q=0.9, text/*", False),
        ("application/octet-stream;q=0.9, */*", False),
        ("application/octet-stream;q=0", False),
        ("application/octet-stream;q=0.000, text/event-stream;q=0", False),
        ("application/octet-stream;q=much", False),
        ("application/octet-stream;q=1.5", False),
        ("application/octet-streams", False),
        ("not,application/octet-stream;;q=,", False),
    ],
)
def test_who_gets_frames(field: str, expected: bool) -> None:
    assert accepts_frames(field) == expected


def test_frames_are_chosen_by_the_server_and_the_default_is_text(shared: Served) -> None:
    for accept, kind in (
        ("*/*", "text/event-stream; charset=utf-8"),
        ("application/json", "text/event-stream; charset=utf-8"),
        ("application/octet-stream, text/event-stream;q=0.5", FRAMES_TYPE),
    ):
        assert streamed(shared, "say hello", {"accept": accept}).headers["content-type"] == kind


def test_whole_answers_and_errors_before_the_stream_stay_json(shared: Served) -> None:
    whole = shared.client.post("/v1/messages", json=body("say hello"), headers=FRAMES)
    refused = streamed(shared, "say hello", FRAMES, max_tokens=-1)
    assert (whole.status_code, refused.status_code) == (200, 400)
    for reply in (whole, refused):
        assert reply.headers["content-type"] == "application/json"
    assert refused.json()["error"]["type"] == "invalid_request_error"


def test_tokens_go_to_the_socket_without_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve(step_delay_us=500) as quick:
        link = quick.server.engine
        assert link is not None
        seen: list[_core.StreamEvent] = []
        deliver = link._deliver

        def counting(events: list[_core.StreamEvent]) -> None:
            seen.extend(events)
            deliver(events)

        monkeypatch.setattr(link, "_deliver", counting)
        told = events_of(streamed(quick, "count", FRAMES, max_tokens=400).content)
        texts = [event["delta"]["text"] for event in told if event["type"].endswith("k_delta")]
        assert "".join(texts) == str(ANSWERS["count"])[:400] and len(texts) > 200
        settled(quick)
        assert len(seen) < 20, "the head, the first bytes and the end"


def test_without_chunks_the_stream_ends_with_the_connection(shared: Served) -> None:
    request = http_post(body("say hello", stream=True), accept=FRAMES_TYPE)
    with shared.connect() as sock:
        sock.sendall(request.replace(b"HTTP/1.1", b"HTTP/1.0", 1))
        raw = b""
        while more := sock.recv(65536):
            raw += more
    told = events_of(raw.partition(b"\r\n\r\n")[2])
    assert told[-1] == {"type": "message_stop"}


def test_pings_are_frames() -> None:
    limits = HttpLimits(ping_seconds=0.2)
    with serve(prefill_delay_us_per_token=2000, limits=limits) as slow:
        told = events_of(streamed(slow, "x" * 1200 + "say hello", FRAMES).content)
        assert slow.metrics.pings == told.count({"type": "ping"}) > 0
        assert [event["type"] for event in told[:2]] == ["message_start", "ping"]


def test_a_lost_engine_is_an_error_frame_and_a_cut_connection_none() -> None:
    with serve(step_delay_us=5000) as slow, slow.connect() as sock:
        sock.sendall(http_post(body("count", max_tokens=3000, stream=True), accept=FRAMES_TYPE))
        wait_until(lambda: slow.region.stats()["generated_tokens"] > 5)
        slow.call(slow.server.engine_lost)
        reply = read_reply(sock)
        told = events_of(reply.body)
        assert told[-1]["type"] == "error"
        assert told[-1]["error"]["type"] == "api_error"
        assert told[-1]["request_id"] == reply.headers["request-id"]
        assert told[0]["type"] == "message_start" and len(told) > 4
    decoder = FrameDecoder()
    decoder.feed(reply.body[:-1])
    with pytest.raises(TruncatedStreamError):
        decoder.close()


def test_who_leaves_in_the_middle_of_frames_leaves_nothing_behind() -> None:
    with serve(step_delay_us=1000) as slow:
        with slow.connect() as sock:
            sock.sendall(http_post(body("count", max_tokens=3000, stream=True), accept=FRAMES_TYPE))
            assert sock.recv(65536).startswith(b"HTTP/1.1 200 ")
            wait_until(lambda: slow.region.stats()["generated_tokens"] > 5)
        settled(slow)
        assert slow.region.stats()["cancelled_decode"] == 1

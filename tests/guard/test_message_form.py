"""What another server of the Messages API says, in the form that frames have a place for: what fits
comes back as it is, the rest is filled or left out, and nothing else happens whatever is said."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sublimate.guard.message_form import FittedEvents, OddFormError, fitted_message
from sublimate.wire.frames import event_json, event_of, message_json, message_of
from test_frame_messages import EVENTS, INPUTS, LAST_EVENTS, MESSAGES

Json = dict[str, Any]
ANYTHING = INPUTS | st.lists(INPUTS, max_size=2) | st.none() | st.integers() | st.text(max_size=3)


def fitted(said: Any) -> Json:
    return fitted_message(said, "msg_1", "asked")


@settings(max_examples=40)
@given(MESSAGES)
def test_a_message_that_has_a_place_stays_as_it_is(message: Json) -> None:
    expected = {**message, "stop_reason": message["stop_reason"] or "end_turn"}
    assert fitted(message) == expected == message_json(message_of(expected))


@settings(max_examples=40)
@given(MESSAGES, st.sampled_from(["", "usage", "content", "diagnostics"]), st.data())
def test_whatever_is_said_there_is_a_message_or_an_odd_form(
    message: Json, inside: str, data: st.DataObject
) -> None:
    place: Any = message[inside] if inside else message
    if isinstance(place, list):
        place = place[0] if place else message
    place = message if place is None else place
    place[data.draw(st.sampled_from(sorted(place)))] = data.draw(ANYTHING)
    place["unheard_of"] = {"of": [1]}
    try:
        shown = fitted(message)
    except OddFormError:
        return
    assert message_json(message_of(shown)) == shown


@settings(max_examples=40)
@given(st.lists(EVENTS, max_size=6), LAST_EVENTS, st.data())
def test_whatever_a_stream_says_its_events_have_a_place(
    events: list[Json], last: Json, data: st.DataObject
) -> None:
    for event in events:
        if data.draw(st.booleans()):
            event[data.draw(st.sampled_from(sorted(event)))] = data.draw(ANYTHING)
    form = FittedEvents("msg_1", "asked")
    for event in [*events, last]:
        try:
            shown = form.event(event)
        except OddFormError:
            continue
        if shown is not None and shown["type"] != "error":
            assert event_json(event_of(shown)) == shown


def test_what_is_missing_is_filled_and_what_has_no_place_left_out() -> None:
    said = {
        "type": "message",
        "content": [
            {"type": "server_tool_use", "id": "s", "name": "search", "input": {}},
            {"type": "text", "text": "Hi.", "citations": [{"type": "char_location"}]},
            {"type": "redacted_thinking", "data": "x"},
            {"type": "thinking", "thinking": "Hm."},
            {"type": "tool_use", "id": "t", "name": "look", "input": None, "caller": {}},
        ],
        "stop_reason": "made_up",
        "stop_details": {"type": "odd"},
        "usage": {"input_tokens": 3, "output_tokens": True, "service_tier": None, "other": {}},
    }
    shown = fitted(said)
    assert (shown["id"], shown["model"], shown["role"]) == ("msg_1", "asked", "assistant")
    assert shown["content"] == [
        {"type": "text", "text": "Hi."},
        {"type": "thinking", "thinking": "Hm.", "signature": ""},
        {"type": "tool_use", "id": "t", "name": "look", "input": {}},
    ]
    assert shown["stop_reason"] == "end_turn"
    assert shown["usage"] == {
        "input_tokens": 3,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": 0,
    }
    assert message_json(message_of(shown)) == shown


@pytest.mark.parametrize("reason", ["refusal", "pause_turn"])
def test_reasons_that_only_others_have_keep_their_names(reason: str) -> None:
    shown = fitted({"content": [], "stop_reason": reason})
    assert message_json(message_of(shown))["stop_reason"] == reason


@pytest.mark.parametrize(
    "said",
    [
        {},
        [],
        {"content": "odd"},
        {"content": [5]},
        {"content": [{"type": "tool_use", "name": "look"}]},
        {"content": [], "usage": []},
        {"content": [], "stop_reason": []},
        {"content": [], "id": 5},
    ],
    ids=msgspec.json.encode,
)
def test_what_is_no_message(said: Any) -> None:
    with pytest.raises(OddFormError):
        fitted(said)


def test_a_stream_has_no_gaps_where_blocks_are_left_out_and_its_end_counts_all() -> None:
    form = FittedEvents("msg_1", "asked")
    usage = {"input_tokens": 9, "cache_read_input_tokens": 4, "output_tokens": 1}
    tier = {"service_tier": "standard"}
    call = {"type": "tool_use", "id": "t", "name": "look", "input": {}}
    json_delta = {"type": "input_json_delta", "partial_json": "{}"}
    told: list[Json] = [
        {"type": "message_start", "message": {"id": "msg_9", "usage": usage | tier}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "odd"}},
        {"type": "content_block_delta", "index": 0, "delta": json_delta},
        {"type": "content_block_stop", "index": 0},
        {"type": "vendor_event"},
        {"type": "content_block_start", "index": 1, "content_block": call},
        {"type": "content_block_delta", "index": 1, "delta": {**json_delta, "partial_json": ""}},
        {"type": "content_block_delta", "index": 1, "delta": json_delta},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "citations_delta"}},
        {"type": "content_block_stop", "index": 1},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"},
         "usage": {"output_tokens": 6, "input_tokens": None}},
        {"type": "message_stop"},
    ]  # fmt: skip
    shown = [event for event in map(form.event, told) if event is not None]
    kinds = [event["type"].removeprefix("content_block_") for event in shown]
    assert kinds == ["message_start", "start", "delta", "stop", "message_delta", "message_stop"]
    assert [event["index"] for event in shown if "index" in event] == [0, 0, 0]
    assert shown[0]["message"]["id"] == "msg_9" and shown[0]["message"]["stop_reason"] is None
    assert shown[-2]["usage"] == {**usage, "output_tokens": 6, "cache_creation_input_tokens": 0}

"""The stages of an answer: contiguous by construction, so that they add up to the whole."""

import logging
import re
import threading
import time
from array import array
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import serve, wait_until
from sublimate import _core
from sublimate.edge.observe.log import TextFormatter
from sublimate.edge.observe.timing import STAGES, Timing


class Event:
    """The moments of a request, one after another from now on."""

    def __init__(self, steps_ns: list[int], has_token: bool = True) -> None:
        at = time.monotonic_ns()
        moments = []
        for step in steps_ns:
            at += step
            moments.append(at)
        self.submitted_ns, self.admitted_ns, self.first_token_ns = moments[:3]
        self.last_record_ns, self.polled_ns, self.encoded_ns = moments[3:]
        if not has_token:
            self.first_token_ns = 0
        self.first_sent_ns = 0


def ended(event: Event, prepared_ns: tuple[int, int, int] | None = None) -> Timing:
    timing = Timing(time.monotonic())
    now = time.monotonic_ns()
    timing.prepared(*(prepared_ns or (now, now, now)))
    timing.ended(cast(Any, event))
    return timing


@given(st.lists(st.integers(0, 10**9), min_size=6, max_size=6), st.booleans())
def test_stages_add_up_to_the_whole(steps_ns: list[int], has_token: bool) -> None:
    before = time.monotonic()
    timing = Timing(before)
    now = time.monotonic_ns()
    timing.prepared(now, now, now)
    event = Event(steps_ns, has_token)
    timing.ended(cast(Any, event))
    stages = timing.stages_ms()
    assert tuple(stages) == STAGES
    known = ["admit", "first_token", "generate", "wake", "encode"]
    assert all(stages[name] >= 0 for name in known)
    inside = (event.encoded_ns - event.submitted_ns) / 1e6
    assert sum(stages[name] for name in known) == pytest.approx(inside, abs=1e-3)
    whole = sum(stages.values())
    written_ms = (event.encoded_ns - before * 1e9) / 1e6 + stages["write"]
    assert whole == pytest.approx(written_ms, abs=1e-2)
    if not has_token:
        assert stages["generate"] == 0


def test_an_answer_that_did_not_go_all_the_way_has_no_stages() -> None:
    assert Timing(0.0).stages_ms() == {}
    event = Event([1, 1, 1, 1, 1, 1])
    event.admitted_ns = 0
    assert ended(event).stages_ms() == {}


def test_the_way_of_the_first_token_is_taken_once() -> None:
    event = Event([0, 0, 0, 0, 0, 0])
    timing = Timing(time.monotonic())
    timing.first_sent(cast(Any, event))
    first = timing.first_way_ms()
    time.sleep(0.01)
    timing.prepared(1, 1, 1)
    timing.ended(cast(Any, event))
    assert timing.first_way_ms() == first >= 0
    alone = ended(event)
    assert alone.first_way_ms() >= 10, "an answer of one event: its end is its first token's too"


def test_a_served_answer_logs_stages_that_cover_what_the_client_saw(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The engine's clock and the edge's are one; the whole is the time between head and end."""
    with (
        serve(step_delay_us=2000, prefill_delay_us_per_token=100) as served,
        caplog.at_level(logging.INFO, "sublimate.request"),
    ):
        for stream in (True, False):
            caplog.clear()
            begin = time.monotonic()
            reply = served.message("count", max_tokens=20, stream=stream)
            seen_ms = (time.monotonic() - begin) * 1000
            assert reply.status_code == 200
            wait_until(lambda: len(caplog.records) > 0)
            fields = cast(Any, caplog.records[-1]).fields
            stages = fields["stages_ms"]
            assert tuple(stages) == STAGES
            assert all(value >= 0 for value in stages.values()), stages
            whole = sum(stages.values())
            assert whole <= seen_ms
            # The log line's own figure is of the same request, a moment later.
            assert whole <= fields["milliseconds"] + 1
            assert stages["generate"] >= 19 * 2 and stages["first_token"] >= 2
            assert 0 <= fields["first_way_ms"] < whole  # of a stream it goes out at once
            line = TextFormatter().format(caplog.records[-1])
            assert "stages_ms=read:" in line and ",write:" in line


def test_the_first_token_is_counted_when_it_went_out() -> None:
    """And not with the next event, which may be the end: a lent socket has no event for it."""
    with serve(step_delay_us=5000) as served:
        assert served.message("count", max_tokens=60, stream=True).status_code == 200
        wait_until(lambda: sum(served.server.models.main.metrics.first_token.counts) == 1)
        text = served.client.get("/metrics").text
        lines = dict(re.findall(r"^(\w+_seconds_sum)\{.*\} (\S+)$", text, re.M))
        whole = float(lines["sublimate_e2e_request_latency_seconds_sum"])
        assert whole > 60 * 0.005
        assert float(lines["sublimate_time_to_first_token_seconds_sum"]) < whole / 2
        assert float(lines["sublimate_request_decode_time_seconds_sum"]) > whole / 2


def test_the_native_share_is_counted() -> None:
    with serve() as served:
        assert served.message("count", max_tokens=50, stream=True).status_code == 200
        link = served.server.engine
        assert link is not None and link.text_tokens == 50
        assert 0 < link.text_seconds < 1
        text = served.client.get("/metrics").text
        assert "sublimate_text_tokens_total" in text and "sublimate_text_seconds_total" in text
        assert "sublimate_engine_utilization_under_load" in text


def test_events_carry_moments_in_order() -> None:
    region = _core.Region.create(300)
    engine = _core.LoopEngine.with_script([([], [5, 6, 7])], vocabulary=300)
    engine.attach(region)
    client = _core.EdgeClient(region, None)
    lease = client.acquire(_core.REQUEST_HEADER_WORDS + 4)
    assert lease is not None
    slot, generation, view = lease
    for name, value in {"prompt_length": 4, "token_budget": 3, "logprobs": -1}.items():
        view[_core.REQUEST_FIELDS[name][0]] = value
    for name in ("mask_slot",):
        view[_core.REQUEST_FIELDS[name][0]] = -1
    one = 0x3F800000
    for name in ("top_p_bits", "repetition_penalty_bits"):
        view[_core.REQUEST_FIELDS[name][0]] = one
    prompt = slice(_core.REQUEST_HEADER_WORDS, _core.REQUEST_HEADER_WORDS + 4)
    view[prompt] = memoryview(array("i", [9] * 4))
    begin = time.monotonic_ns()
    client.submit(slot, generation, 1, format="raw")
    thread = threading.Thread(target=engine.run)
    thread.start()
    last = None
    try:
        while last is None or not last.finished:
            for event in client.poll():
                moments = [event.submitted_ns, event.admitted_ns]
                if event.first_token_ns:
                    moments.append(event.first_token_ns)
                moments += [event.last_record_ns, event.polled_ns, event.encoded_ns]
                assert begin <= moments[0] and moments == sorted(moments)
                last = event
    finally:
        engine.stop()
        thread.join()
    assert last.stop_reason == "max_tokens" and client.text_tokens == 3 and client.text_ns > 0

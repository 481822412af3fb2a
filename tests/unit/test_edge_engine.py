"""The edge's side of an engine when something there or here does not do its part."""

import asyncio
import gc
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import numpy as np
import pytest

from sublimate import _core
from sublimate.edge import engine as edge_engine
from sublimate.edge.engine import EngineLink, Submission
from sublimate.edge.errors import ApiError
from sublimate.edge.observe.stories import Stories
from sublimate.edge.observe.trace import EngineTrace
from sublimate.edge.record import Tenant
from test_edge_record import chosen

TOKENS = [bytes([65 + token]) for token in range(16)]
INFO = {"context_length": 8192}
WAIT_SECONDS = 10.0
TRIP_NS = 300_000_000

# An engine process that says when it is attached, on descriptors it inherited.
ENGINE = """
import sys
from sublimate import _core
region = _core.Region.attach(*map(int, sys.argv[1:]))
engine = _core.LoopEngine.with_script([([], [5, 6, 7])], vocabulary=16, stop_token=2)
engine.attach(region)
print("attached", flush=True)
engine.run()
"""


class Heard:
    """A listener that notes, and raises if it is told to."""

    def __init__(self, raises: bool = False) -> None:
        self.events: list[_core.StreamEvent] = []
        self.lost = False
        self.was_broken = False
        self.reason = ""
        self._raises = raises

    def on_event(self, event: _core.StreamEvent, now_seconds: float) -> None:
        del now_seconds
        self.events.append(event)
        if self._raises:
            raise RuntimeError("planted")

    def engine_lost(self) -> None:
        self.lost = True
        if self._raises:
            raise RuntimeError("planted")

    def broken(self, reason: str = "internal") -> None:
        self.was_broken, self.reason = True, reason
        if self._raises:
            raise RuntimeError("planted again")

    @property
    def finished(self) -> bool:
        return any(event.finished for event in self.events)


def submission() -> Submission:
    return Submission(
        ids=np.array([5, 6, 7], dtype=np.int32),
        sampling=chosen(temperature=0.0),
        token_budget=5,
        stop_tokens=(2,),
        profile="low-latency",
        tenant=Tenant(1, 2),
        format="text",
        message_id="m",
        model_name="m",
    )


async def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < end, "the condition never held"
        await asyncio.sleep(0.005)


def with_link(
    region: _core.Region, story: Callable[[EngineLink, list[str]], Awaitable[None]]
) -> None:
    async def run() -> None:
        broke: list[str] = []
        link = EngineLink(
            asyncio.get_running_loop(),
            region,
            _core.Vocabulary(TOKENS),
            INFO,
            lambda: broke.append("broke"),
        )
        try:
            await story(link, broke)
        finally:
            link.close()

    asyncio.run(run())


@pytest.fixture
def running() -> Iterator[_core.Region]:
    engine = _core.LoopEngine.with_script([([], [5, 6, 7])], vocabulary=16, stop_token=2)
    region = _core.Region.create(16)
    engine.attach(region)
    thread = threading.Thread(target=engine.run)
    thread.start()
    yield region
    engine.stop()
    thread.join()


# ---- health --------------------------------------------------------------------------------------
def test_a_stopped_idle_engine_is_noticed_once_it_owes_something(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(edge_engine, "STEP_AGE_TRIP_NS", TRIP_NS)
    region = _core.Region.create(16)
    command = [sys.executable, "-c", ENGINE, *map(str, region.fds)]
    path = os.pathsep.join(part for part in sys.path if part)
    child = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        pass_fds=region.fds,
        env={**os.environ, "PYTHONPATH": path},
    )

    async def story(link: EngineLink, broke: list[str]) -> None:
        before = Heard()
        link.submit(submission(), before, 8)
        await until(lambda: before.finished and link.in_flight == 0)
        await asyncio.sleep(2 * TRIP_NS / 1e9)
        assert link.is_healthy(), "an engine at rest is silent and well"
        os.kill(child.pid, signal.SIGSTOP)
        await asyncio.sleep(2 * TRIP_NS / 1e9)
        assert link.is_healthy(), "it owes nothing"
        owed = Heard()
        link.submit(submission(), owed, 8)
        assert link.is_healthy(), "what was asked just now is not late"
        await until(lambda: not link.is_healthy())
        link.submit(submission(), Heard(), 8)
        assert not link.is_healthy(), "more requests are no sign of life"
        os.kill(child.pid, signal.SIGCONT)
        await until(lambda: owed.finished and link.is_healthy())
        assert not broke

    try:
        assert child.stdout is not None and child.stdout.readline() == b"attached\n"
        with_link(region, story)
    finally:
        child.kill()
        child.wait(WAIT_SECONDS)
        if child.stdout is not None:
            child.stdout.close()


def test_an_engine_that_never_ran_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edge_engine, "STEP_AGE_TRIP_NS", TRIP_NS)

    async def story(link: EngineLink, broke: list[str]) -> None:
        await asyncio.sleep(2 * TRIP_NS / 1e9)
        assert link.is_healthy()
        link.submit(submission(), Heard(), 8)
        assert link.is_healthy()
        await until(lambda: not link.is_healthy())
        assert not broke

    with_link(_core.Region.create(16), story)


# ---- what is left of one -------------------------------------------------------------------------
def test_a_lost_engine_keeps_no_descriptor(running: _core.Region) -> None:
    """Requests that it had are told of for long, each with the trace of its engine."""

    async def serve_once(stories: Stories) -> EngineTrace:
        region = _core.Region.attach(*running.fds)
        lost: list[EngineLink] = []
        loop, vocabulary = asyncio.get_running_loop(), _core.Vocabulary(TOKENS)
        link = EngineLink(loop, region, vocabulary, INFO, lambda: lost[0].close())
        lost.append(link)  # so that the link and what it tells are in a cycle, as in Engines
        stories.engine_up(link.trace)
        link.close()
        stories.engine_lost(link.trace)
        return link.trace

    async def run() -> None:
        stories = Stories(asyncio.get_running_loop(), is_always_traced=False)
        before = len(os.listdir("/proc/self/fd"))
        kept = [await serve_once(stories) for _ in range(3)]
        await asyncio.sleep(0.01)  # each had something to do once more
        assert [trace.read() for trace in kept] == [(0, b"")] * 3
        assert len(os.listdir("/proc/self/fd")) == before

    gc.disable()
    try:
        asyncio.run(run())
    finally:
        gc.enable()


# ---- one bad listener ----------------------------------------------------------------------------
def test_a_listener_that_raises_ends_alone(
    running: _core.Region, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(link: EngineLink, broke: list[str]) -> None:
        for turn in range(3):
            heard = [Heard(raises=number % 2 == 0) for number in range(8)]
            for listener in heard:
                link.submit(submission(), listener, 64)
            await until(lambda those=heard: all(one.finished for one in those[1::2]))
            await until(lambda: link.in_flight == 0)
            assert all(one.was_broken for one in heard[::2]), turn
            assert not any(one.was_broken for one in heard[1::2])
        assert not broke

    with caplog.at_level(logging.ERROR), pytest.MonkeyPatch.context() as patch:
        patch.setattr(logging.getLogger("sublimate"), "propagate", True)
        with_link(running, story)
    failures = [record for record in caplog.records if record.exc_info]
    assert failures and "planted" in caplog.text


def test_a_lost_engine_is_told_to_all_even_if_one_raises() -> None:
    heard = [Heard(raises=number == 0) for number in range(3)]

    async def story(link: EngineLink, broke: list[str]) -> None:
        del broke
        for listener in heard:
            link.submit(submission(), listener, 64)

    with_link(_core.Region.create(16), story)
    assert [one.lost for one in heard] == [True] * 3
    assert [one.was_broken for one in heard] == [True, False, False]


# ---- a broken ring -------------------------------------------------------------------------------
@pytest.mark.parametrize("call", ["acquire", "submit"])
def test_a_ring_that_breaks_at_submission_is_503_and_the_end(call: str) -> None:
    class Broken:
        """A client whose engine wrote nonsense."""

        in_flight = 0

        def __init__(self, client: _core.EdgeClient) -> None:
            self._client = client

        def __getattr__(self, name: str) -> Any:
            if name == call:
                raise _core.CoreError("planted")
            return getattr(self._client, name)

    async def story(link: EngineLink, broke: list[str]) -> None:
        listener = Heard()
        client = link._client
        link._client = Broken(client)  # type: ignore[assignment]
        with pytest.raises(ApiError) as caught:
            link.submit(submission(), listener, 8)
        assert caught.value.kind.status == 503 and caught.value.retry_after_seconds
        assert broke == ["broke"] and client.slots_in_use == 0
        assert not link._listeners, "it was never begun"

    with_link(_core.Region.create(16), story)


def test_a_ring_found_broken_at_the_start_is_told_after_the_link_is_known() -> None:
    async def story(link: EngineLink, broke: list[str]) -> None:
        assert not broke

        def poll() -> None:
            raise _core.CoreError("planted")

        link._client = type("Broken", (), {"poll": staticmethod(poll), "in_flight": 0})()
        await until(lambda: broke == ["broke"])

    with_link(_core.Region.create(16), story)


def test_events_that_a_bug_keeps_from_delivery_end_the_link(
    running: _core.Region, caplog: pytest.LogCaptureFixture
) -> None:
    """Else nobody would read the ring on, and all requests hung, new ones too."""

    async def story(link: EngineLink, broke: list[str]) -> None:
        def follow(*_: object) -> None:
            raise ValueError("planted")

        link.reservations.follow = follow  # type: ignore[method-assign]
        link.submit(submission(), Heard(), 64)
        await until(lambda: broke == ["broke"])

    with caplog.at_level(logging.ERROR), pytest.MonkeyPatch.context() as patch:
        patch.setattr(logging.getLogger("sublimate"), "propagate", True)
        with_link(running, story)
    assert "could not be delivered" in caplog.text

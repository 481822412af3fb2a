"""Frames that the core writes to a lent socket itself: the same bytes, in order, to nobody else."""

import contextlib
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

import ring_reference as ring
from ring_reference import Row
from sublimate import _core

TOKENS = [b"a", b"bc ", "é".encode(), b"x" * 200]
REGION = _core.Region.create(len(TOKENS))
PROMPT_TOKENS = 3


class Pair:
    """A stream of one region and the socket it is lent; `far` is the client's end."""

    def __init__(self, gaps: _core.Histogram | None = None, chunked: bool = False) -> None:
        self.near, self.far = socket.socketpair()
        self.near.setblocking(False)
        self.far.setblocking(False)
        self.loop = ring.LoopTwin(REGION)
        self.client = _core.EdgeClient(REGION, _core.Vocabulary(TOKENS), gaps)
        self.chunked = chunked
        self.submit()

    def submit(self) -> None:
        lease = self.client.acquire(_core.REQUEST_HEADER_WORDS + PROMPT_TOKENS)
        assert lease is not None
        self.slot, self.generation, view = lease
        values = {"prompt_length": PROMPT_TOKENS, "token_budget": 4000, "logprobs": -1}
        for name, value in {**values, "mask_slot": -1}.items():
            view[_core.REQUEST_FIELDS[name][0]] = value
        self.client.submit(self.slot, self.generation, 7, format="sse", chunked=self.chunked)
        assert self.loop.submission_pop() == self.slot
        self.step(ring.ADMITTED)

    def step(self, flags: int, token: int = 0, reason: int = 0) -> list[_core.StreamEvent]:
        self.loop.token_push([Row(self.slot, self.generation, flags, token, reason)], time_ns=1)
        return self.client.poll()

    def lend(self) -> None:
        assert self.client.lend(self.slot, self.generation, self.near.fileno())

    def received(self) -> bytes:
        data = b""
        while True:
            try:
                more = self.far.recv(1 << 16)
            except BlockingIOError:
                return data
            if not more:
                return data
            data += more


@contextlib.contextmanager
def lending(**options: Any) -> Iterator[Pair]:
    made = Pair(**options)
    yield made
    made.step(ring.FINISHED, reason=ring.CANCELLED)
    assert made.client.in_flight == 0
    made.near.close()
    made.far.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    with lending() as made:
        yield made


def delta(text: str) -> bytes:
    return (
        b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,'
        b'"delta":{"type":"text_delta","text":"%b"}}\n\n' % text.encode()
    )


def test_frames_go_to_the_socket_and_make_no_event(pair: Pair) -> None:
    (event,) = pair.step(ring.TOKEN, 0)
    assert event.data.endswith(delta("a")), "before it is lent"
    pair.lend()
    assert pair.step(ring.TOKEN, 1) == []
    assert pair.step(ring.TOKEN, 2) == []
    assert pair.received() == delta("bc ") + delta("é")


def test_the_end_is_the_callers_to_write(pair: Pair) -> None:
    pair.lend()
    pair.step(ring.TOKEN, 0)
    pair.received()
    (event,) = pair.step(ring.TOKEN | ring.FINISHED, 1, ring.BUDGET)
    assert event.finished and event.data.startswith(delta("bc "))
    assert event.data.endswith(b'data: {"type":"message_stop"}\n\n') and event.output_tokens == 2
    assert pair.received() == b""


def test_what_the_socket_does_not_take_comes_back_and_ends_the_loan(pair: Pair) -> None:
    pair.near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    pair.lend()
    sent, events = 0, []
    while not events:
        events = pair.step(ring.TOKEN, 3)
        sent += 1
    rest = events[0].data
    assert 1 < sent < 1000 and rest
    assert pair.received() + rest == b"".join([pair_start(), *[delta("x" * 200)] * sent]), (
        "not a byte is lost or written twice"
    )
    (event,) = pair.step(ring.TOKEN, 0)
    assert event.data == delta("a"), "not lent any more"


def pair_start() -> bytes:
    return (
        b'event: content_block_start\ndata: {"type":"content_block_start","index":0,'
        b'"content_block":{"type":"text","text":""}}\n\n'
    )


@pytest.mark.parametrize("end", ["unlend", "cancel"])
def test_after_the_loan_nothing_is_written(pair: Pair, end: str) -> None:
    pair.lend()
    pair.step(ring.TOKEN, 0)
    pair.received()
    getattr(pair.client, end)(pair.slot, pair.generation)
    getattr(pair.client, end)(pair.slot, pair.generation)
    (event,) = pair.step(ring.TOKEN, 1)
    assert event.data == delta("bc ") and pair.received() == b""


def test_a_broken_socket_is_the_lenders_to_find_out(pair: Pair) -> None:
    pair.lend()
    pair.far.close()
    (event,) = pair.step(ring.TOKEN, 0)
    assert event.data.endswith(delta("a")) and not event.finished


def test_only_a_running_stream_can_be_lent_to(pair: Pair) -> None:
    fd = pair.near.fileno()
    assert not pair.client.lend(pair.slot, pair.generation + 1, fd)
    assert not pair.client.lend(pair.slot + 1, pair.generation, fd)
    assert not pair.client.lend(pair.slot, pair.generation, -1)
    pair.step(ring.FINISHED, reason=ring.FAILED)
    assert not pair.client.lend(pair.slot, pair.generation, fd)
    pair.client.unlend(pair.slot, pair.generation)


def test_a_slot_forgets_the_socket_of_the_request_before(pair: Pair) -> None:
    pair.lend()
    pair.step(ring.FINISHED, reason=ring.FAILED)
    slot = pair.slot
    pair.submit()
    assert pair.slot == slot
    (event,) = pair.step(ring.TOKEN, 0)
    assert event.data.endswith(delta("a")) and pair.received() == b""


def test_chunks_have_their_size_before_them() -> None:
    with lending(chunked=True) as pair:
        pair.step(ring.TOKEN, 0)
        pair.lend()
        assert pair.step(ring.TOKEN, 3) == []
        frames = delta("x" * 200)
        assert pair.received() == b"%x\r\n%b\r\n" % (len(frames), frames)


def test_progress_is_known_without_events(pair: Pair) -> None:
    assert pair.client.progress(pair.slot, pair.generation) == (0, 0)
    pair.lend()
    begun = time.monotonic_ns()
    for _ in range(3):
        pair.step(ring.TOKEN, 0)
    tokens, sent_ns = pair.client.progress(pair.slot, pair.generation)
    assert tokens == 3 and begun < sent_ns <= time.monotonic_ns()
    assert pair.client.heard_ns == sent_ns
    assert pair.client.progress(pair.slot, pair.generation + 1) == (0, 0)


def test_gaps_are_counted_from_the_second_token_on() -> None:
    gaps = _core.Histogram([0.01, 10.0])
    with lending(gaps=gaps) as pair:
        assert gaps.counts == [0, 0, 0]
        pair.step(ring.TOKEN, 0)
        assert sum(gaps.counts) == 0
        pair.lend()
        time.sleep(0.02)
        pair.step(ring.TOKEN, 1)
    assert gaps.counts == [0, 1, 0] and 0.02 <= gaps.sum < 10
    with pytest.raises(TypeError):
        _core.EdgeClient(REGION, None, "gaps")  # type: ignore[arg-type]

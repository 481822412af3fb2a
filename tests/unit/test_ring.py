"""Regions, slots and rings through the binding: a model of the slots, a twin of the loop, and
engines that write anything at all."""

import fcntl
import gc
import os
import select

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

import ring_reference as ring
from ring_reference import Row
from sublimate import _core

VOCABULARY = 300
LIMITS = _core.LIMITS
HEADER_WORDS = _core.REQUEST_HEADER_WORDS


def field(view: np.ndarray, **values: int) -> None:
    for name, value in values.items():
        view[_core.REQUEST_FIELDS[name][0]] = value


def submit_raw(
    client: _core.EdgeClient, key: int, prompt: int = 1, **values: int
) -> tuple[int, int]:
    lease = client.acquire(HEADER_WORDS + 3 * prompt)
    assert lease is not None
    slot, generation, view = lease
    field(view, prompt_length=prompt, token_budget=64, logprobs=-1, mask_slot=-1, **values)
    client.submit(slot, generation, key, format="raw")
    return slot, generation


# ---- regions ------------------------------------------------------------------------------------


@pytest.mark.parametrize("vocabulary", [1, 31, 32, 33, VOCABULARY, LIMITS["VOCABULARY_MAX"]])
def test_layout_equals_its_twin(vocabulary: int) -> None:
    region = _core.Region.create(vocabulary)
    assert os.fstat(region.fds[0]).st_size == ring.layout(vocabulary)["total_bytes"]
    assert region.vocabulary == vocabulary
    client, loop = _core.EdgeClient(region, None), ring.LoopTwin(region)
    for words in (1, 1024, 1025, 4097, 16385, 65537, 524288):
        lease = client.acquire(words)
        assert lease is not None
        slot, generation, view = lease
        _, capacity = ring.slot_offset(slot)
        assert len(view) == capacity >= words
        view[-1] = 1000 + slot
        record = loop.record(slot)
        assert record[-1] == 1000 + slot
        header = loop.header(slot)
        assert (header["slot"], header["generation"]) == (slot, generation)
        assert header["version"] == _core.REQUEST_VERSION
    assert client.acquire(524289) is None


@pytest.mark.parametrize("vocabulary", [0, -1, LIMITS["VOCABULARY_MAX"] + 1])
def test_a_vocabulary_out_of_range_is_refused(vocabulary: int) -> None:
    with pytest.raises(_core.CoreError):
        _core.Region.create(vocabulary)


def test_a_region_is_sealed_and_its_descriptors_stay_here() -> None:
    region = _core.Region.create(VOCABULARY)
    for fd in region.fds:
        assert fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    with pytest.raises(OSError, match="not permitted"):
        os.ftruncate(region.fds[0], 4096)
    for fd in region.fds[1:]:
        assert fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_NONBLOCK


def test_attach_shares_the_memory_and_owns_its_own_descriptors() -> None:
    region = _core.Region.create(VOCABULARY)
    copies = [os.dup(fd) for fd in region.fds]
    other = _core.Region.attach(*copies)
    for fd in copies:
        os.close(fd)
    client = _core.EdgeClient(region, None)
    slot, _ = submit_raw(client, 1)
    loop = ring.LoopTwin(other)
    assert loop.submission_pop() == slot
    loop.write_u64(ring.HEARTBEAT, 99)
    loop.write_u64(ring.STATS + 8 * 3, 5)
    assert region.stats()["engine_heartbeat_ns"] == 99 and region.stats()["running"] == 5
    fds = other.fds
    del other, loop
    gc.collect()
    for fd in fds:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)


def damaged(offset: int, value: int) -> tuple[int, int, int]:
    region = _core.Region.create(VOCABULARY)
    ring.LoopTwin(region).write_u32(offset, value)
    first, second, third = (os.dup(fd) for fd in region.fds)
    return first, second, third


@pytest.mark.parametrize(
    ("offset", "value", "why"),
    [
        (0, 0, "not a region"),
        (4, 2, "another version"),
        (8, 0, "out of range"),
        (8, LIMITS["VOCABULARY_MAX"] + 1, "out of range"),
        (8, 0xFFFFFFFF, "out of range"),
        (8, 200_000, "does not fit"),
        (12, 1, "not a region"),
        (16, 4096, "not a region"),
    ],
)
def test_attach_refuses_damaged_words(offset: int, value: int, why: str) -> None:
    fds = damaged(offset, value)
    with pytest.raises(_core.CoreError, match=why):
        _core.Region.attach(*fds)
    for fd in fds:
        os.close(fd)


def test_attach_refuses_what_is_no_region() -> None:
    good = _core.Region.create(VOCABULARY)
    size = os.fstat(good.fds[0]).st_size
    seals = fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
    unsealed = os.memfd_create("t", os.MFD_ALLOW_SEALING)
    os.ftruncate(unsealed, size)
    empty = os.memfd_create("t", os.MFD_ALLOW_SEALING)
    fcntl.fcntl(empty, fcntl.F_ADD_SEALS, seals)
    reader, writer = os.pipe()
    bells = good.fds[1:]
    for fds, why in [
        ((unsealed, *bells), "not sealed"),
        ((empty, *bells), "size"),
        ((reader, *bells), "not sealed"),
        ((-1, *bells), "descriptor"),
        ((10_000, *bells), "descriptor"),
        ((good.fds[0], reader, bells[1]), "would block"),
        ((good.fds[0], bells[0], -1), "descriptor"),
    ]:
        with pytest.raises(_core.CoreError, match=why):
            _core.Region.attach(*fds)
    for fd in (unsealed, empty, reader, writer):
        os.close(fd)


def test_a_view_outlives_client_and_region() -> None:
    region = _core.Region.create(VOCABULARY)
    client = _core.EdgeClient(region, None)
    lease = client.acquire(524288)
    assert lease is not None
    view = np.asarray(lease[2])
    del region, client, lease
    gc.collect()
    view[:] = 3
    assert int(view.sum()) == 3 * 524288


# ---- submission, cancel, sleep ------------------------------------------------------------------


def test_submit_refuses_a_record_that_does_not_fit_and_keeps_the_slot() -> None:
    client = _core.EdgeClient(_core.Region.create(VOCABULARY), None)
    lease = client.acquire(100)
    assert lease is not None
    slot, generation, view = lease
    good = {
        "version": _core.REQUEST_VERSION, "slot": slot, "generation": generation,
        "prompt_length": 2, "token_budget": 1, "logprobs": -1, "logit_bias_count": 0,
    }  # fmt: skip
    for bad in [
        {"prompt_length": 0},
        {"prompt_length": -1},
        {"prompt_length": 961},
        {"prompt_length": 2**31 - 1},
        {"token_budget": -1},
        {"logprobs": 21},
        {"logit_bias_count": 257},
        {"logit_bias_count": -1},
        {"generation": generation + 1},
        {"slot": slot + 1},
        {"version": _core.REQUEST_VERSION + 1},
    ]:
        field(view, **{**good, **bad})
        with pytest.raises(ValueError, match="record"):
            client.submit(slot, generation, 1, format="raw")
    assert client.in_flight == 0 and client.slots_in_use == 1
    field(view, **good)
    with pytest.raises(ValueError, match="vocabulary"):
        client.submit(slot, generation, 1, format="sse")
    with pytest.raises(ValueError, match="text format"):
        client.submit(slot, generation, 1, format="raw", stop_strings=["a"])
    with pytest.raises(ValueError, match="one of"):
        client.submit(slot, generation, 1, format="xml")
    with pytest.raises(ValueError, match="not held"):
        client.submit(slot, generation + 1, 1, format="raw")
    client.submit(slot, generation, 1, format="raw")
    with pytest.raises(ValueError, match="not held"):
        client.submit(slot, generation, 1, format="raw")
    with pytest.raises(ValueError, match="not held"):
        client.discard(slot, generation)
    assert client.in_flight == 1


def test_submit_stamps_the_time_and_rings_only_a_sleeper() -> None:
    region = _core.Region.create(VOCABULARY)
    client, loop = _core.EdgeClient(region, None), ring.LoopTwin(region)
    slot, _ = submit_raw(client, 1)
    header = loop.header(slot)
    assert header["submitted_ns_low"] or header["submitted_ns_high"]
    assert not loop.bell_rung()
    loop.write_u32(ring.ENGINE_SLEEPING, 1)
    submit_raw(client, 2)
    assert loop.bell_rung()


def test_a_sleeper_is_told_of_pending_records_and_woken_by_the_bell() -> None:
    region = _core.Region.create(VOCABULARY)
    client, loop = _core.EdgeClient(region, None), ring.LoopTwin(region)
    assert client.sleep_prepare() and loop.read_u32(ring.EDGE_SLEEPING) == 1
    loop.token_push([])
    assert not client.sleep_prepare() and loop.read_u32(ring.EDGE_SLEEPING) == 0
    assert client.poll() == []
    assert client.sleep_prepare()
    os.write(loop.token_bell, (1).to_bytes(8, "little"))
    assert select.select([region.fds[2]], [], [], 0)[0]
    client.clear_bell()
    assert not select.select([region.fds[2]], [], [], 0)[0]
    assert loop.read_u32(ring.EDGE_SLEEPING) == 0


def test_late_and_unknown_cancels_are_no_ops() -> None:
    region = _core.Region.create(VOCABULARY)
    client, loop = _core.EdgeClient(region, None), ring.LoopTwin(region)
    slot, generation = submit_raw(client, 1)
    for wrong in [(slot, generation + 1), (slot + 1, 1), (-1, 1), (488, 1), (2**31 - 1, 0)]:
        client.cancel(*wrong)
    assert not loop.cancel_requested(slot, generation) and not loop.bell_rung()
    loop.token_push([Row(slot, generation, ring.FINISHED, reason=ring.CANCELLED)])
    assert [event.stop_reason for event in client.poll()] == ["cancelled"]
    client.cancel(slot, generation)
    assert not loop.cancel_requested(slot, generation)


def test_masks_reach_the_loop_whole() -> None:
    region = _core.Region.create(VOCABULARY)
    client, loop = _core.EdgeClient(region, None), ring.LoopTwin(region)
    mask = np.arange(10, dtype=np.uint32)
    client.mask_words(63)[:] = mask
    client.publish_mask(63, 4)
    assert loop.read_u32(loop.at["mask_ready"] + 4 * 63) == 5
    first = loop.at["masks"] // 4 + 63 * 10
    assert loop.words[first : first + 10].tolist() == mask.tolist()
    client.publish_free(63, 5)
    assert loop.read_u32(loop.at["mask_ready"] + 4 * 63) == 6 | 1 << 31
    client.clear_mask(63)
    assert loop.read_u32(loop.at["mask_ready"] + 4 * 63) == 0
    for slot in (LIMITS["MASK_SLOTS"], -1):
        with pytest.raises(ValueError, match="mask"):
            client.publish_mask(slot, 0)
        with pytest.raises(ValueError, match="mask"):
            client.publish_free(slot, 0)
        with pytest.raises(ValueError, match="mask"):
            client.clear_mask(slot)
        with pytest.raises(ValueError, match="mask"):
            client.mask_words(slot)
    with pytest.raises(ValueError, match="mask"):
        client.publish_mask(0, LIMITS["CONTEXT_TOKENS_MAX"])
    words = client.mask_words(1)
    del client, region
    gc.collect()
    words[:] = 7
    assert words.tolist() == [7] * 10, "a view keeps its memory"


def test_only_tokens_that_masks_depend_on_reach_the_caller() -> None:
    region = _core.Region.create(VOCABULARY)
    vocabulary = _core.Vocabulary([b"x"] * VOCABULARY)
    client, loop = _core.EdgeClient(region, vocabulary), ring.LoopTwin(region)
    lease = client.acquire(HEADER_WORDS + 3)
    assert lease is not None
    slot, generation, view = lease
    client.clear_mask(3)
    client.mask_words(4)[:] = 0
    client.mask_words(4)[2] = 1 << 6  # token 70 is a trigger
    client.publish_free(3, 0)
    masked = {"flags": _core.FLAGS["masked"], "mask_slot": 3, "trigger_slot": 4}
    field(view, prompt_length=1, token_budget=64, logprobs=-1, **masked)
    client.submit(slot, generation, 1, format="text")

    def said(*tokens: int) -> list[int]:
        loop.token_push([Row(slot, generation, ring.TOKEN, token) for token in tokens])
        return [token for event in client.poll() for token in event.token_ids]

    loop.token_push([Row(slot, generation, ring.ADMITTED)])
    assert [event.admitted for event in client.poll()] == [True]
    assert said(5, 6) == []
    assert said(7, 70) == [70]
    client.publish_mask(3, 4)
    assert said(70) == [70] and said(8) == [8]
    client.publish_free(3, 6)
    assert said(9) == []
    loop.token_push([Row(slot, generation, ring.FINISHED, reason=ring.FAILED, detail=2)])
    (event,) = client.poll()
    assert event.finished and event.text == "x" * 7
    assert (event.stop_reason, event.fail_reason) == ("failed", "nothing_allowed")


def test_scores_are_read_before_the_slot_is_free() -> None:
    region = _core.Region.create(VOCABULARY)
    client, loop = _core.EdgeClient(region, None), ring.LoopTwin(region)
    slot, generation = submit_raw(client, 1, prompt=3, flags=_core.FLAGS["score"])
    with pytest.raises(ValueError, match="not held"):
        client.scores(slot, generation)
    first = HEADER_WORDS + 3
    values = [0.0, -1.5, -2.5]
    loop.record(slot)[first : first + 6] = [
        word for i, value in enumerate(values) for word in (ring.float_bits(value), i - 1)
    ]
    loop.token_push([Row(slot, generation, ring.FINISHED, reason=ring.SCORED)])
    (event,) = client.poll()
    assert event.stop_reason == "scored" and client.in_flight == 1
    logprobs, best = client.scores(slot, generation)
    assert logprobs.tolist() == values and best.tolist() == [-1, 0, 1]
    assert logprobs.dtype == np.float32 and best.dtype == np.int32
    assert client.in_flight == 0 and client.slots_in_use == 0


def test_events_come_in_the_order_of_first_touch() -> None:
    region = _core.Region.create(VOCABULARY)
    client, loop = _core.EdgeClient(region, None), ring.LoopTwin(region)
    leases = [submit_raw(client, key) for key in range(5)]
    loop.token_push([Row(*lease, ring.ADMITTED) for lease in leases])
    assert [event.key for event in client.poll()] == [0, 1, 2, 3, 4]
    for key in (3, 1, 3, 0, 1):
        loop.token_push([Row(*leases[key], ring.TOKEN, key)])
    assert [(event.key, len(event.token_ids)) for event in client.poll()] == [
        (3, 2),
        (1, 2),
        (0, 1),
    ]


# ---- a model of the slots -----------------------------------------------------------------------


class SlotModel(RuleBasedStateMachine):
    """Any order of calls by the edge and rows by the loop; the model knows what must be held."""

    def __init__(self) -> None:
        super().__init__()
        self.region = _core.Region.create(VOCABULARY)
        self.client = _core.EdgeClient(self.region, None)
        self.loop = ring.LoopTwin(self.region)
        self.acquired: dict[tuple[int, int], np.ndarray] = {}
        self.submitted: dict[tuple[int, int], int] = {}
        self.admitted: set[tuple[int, int]] = set()
        self.finished: list[tuple[int, int]] = []
        self.queue: list[int] = []
        self.expected: dict[int, tuple[list[int], str]] = {}
        self.keys = 0
        self.stale = 0

    @rule(words=st.sampled_from([1, 1024, 1025, 5000, 20_000, 70_000, 524_288, 524_289]))
    def acquire(self, words: int) -> None:
        held = {slot for slot, _ in [*self.acquired, *self.submitted]}
        lease = self.client.acquire(words)
        free = [s for s in range(488) if s not in held and ring.slot_offset(s)[1] >= words]
        if lease is None:
            assert not free
            return
        slot, generation, view = lease
        view = np.asarray(view)
        assert slot in free
        assert len(view) == min(ring.slot_offset(s)[1] for s in free)
        assert not view[3:HEADER_WORDS].any()
        assert (slot, generation) not in self.finished
        self.acquired[slot, generation] = view

    @precondition(lambda self: self.acquired)
    @rule(data=st.data(), discard=st.booleans())
    def submit(self, data: st.DataObject, discard: bool) -> None:
        lease = data.draw(st.sampled_from(sorted(self.acquired)))
        view = self.acquired.pop(lease)
        if discard:
            self.client.discard(*lease)
            return
        field(view, prompt_length=1, token_budget=10**6, logprobs=-1)
        view[HEADER_WORDS] = self.keys
        self.client.submit(*lease, self.keys, format="raw")
        self.submitted[lease] = self.keys
        self.queue.append(lease[0])
        self.keys += 1

    @rule()
    def take(self) -> None:
        taken = self.loop.submission_pop()
        assert taken == (self.queue.pop(0) if self.queue else None)

    @precondition(lambda self: self.submitted)
    @rule(data=st.data(), tokens=st.lists(st.integers(0, VOCABULARY - 1), max_size=3))
    def generate(self, data: st.DataObject, tokens: list[int]) -> None:
        lease = data.draw(st.sampled_from(sorted(self.submitted)))
        key = self.submitted[lease]
        rows = [] if lease in self.admitted else [Row(*lease, ring.ADMITTED)]
        self.admitted.add(lease)
        self.loop.token_push(rows + [Row(*lease, ring.TOKEN, token) for token in tokens])
        self.expected.setdefault(key, ([], ""))[0].extend(tokens)

    @precondition(lambda self: self.submitted)
    @rule(data=st.data(), cancel=st.booleans())
    def finish(self, data: st.DataObject, cancel: bool) -> None:
        lease = data.draw(st.sampled_from(sorted(self.submitted)))
        if cancel:
            self.client.cancel(*lease)
            assert self.loop.cancel_requested(*lease)
        key = self.submitted.pop(lease)
        reason = ring.CANCELLED if cancel else ring.BUDGET
        self.loop.token_push([Row(*lease, ring.FINISHED, reason=reason)])
        ids = self.expected.get(key, ([], ""))[0]
        self.expected[key] = (ids, "cancelled" if cancel else "max_tokens")
        self.finished.append(lease)
        self.poll()

    @precondition(lambda self: self.finished)
    @rule(data=st.data(), flags=st.sampled_from([ring.TOKEN, ring.FINISHED, ring.ADMITTED]))
    def stale_row(self, data: st.DataObject, flags: int) -> None:
        lease = data.draw(st.sampled_from(self.finished))
        self.loop.token_push([Row(*lease, flags, reason=ring.BUDGET)])
        self.stale += 1
        self.client.cancel(*lease)

    @rule()
    def poll(self) -> None:
        for event in self.client.poll():
            ids, reason = self.expected.pop(event.key)
            assert (event.token_ids, event.stop_reason) == (ids, reason)
        assert not any(ids or reason for ids, reason in self.expected.values())
        assert self.client.stale_rows == self.stale

    @invariant()
    def counts(self) -> None:
        assert self.client.in_flight == len(self.submitted)
        assert self.client.slots_in_use == len(self.submitted) + len(self.acquired)


TestSlotModel = SlotModel.TestCase
TestSlotModel.settings = settings(max_examples=60, stateful_step_count=60)


def test_all_slots_can_be_submitted_at_once() -> None:
    region = _core.Region.create(VOCABULARY)
    client, loop = _core.EdgeClient(region, None), ring.LoopTwin(region)
    leases = [submit_raw(client, key) for key in range(LIMITS["SLOTS_MAX"])]
    assert client.acquire(1) is None
    assert [loop.submission_pop() for _ in leases] == [slot for slot, _ in leases]
    for first in range(0, len(leases), 128):
        chunk = leases[first : first + 128]
        loop.token_push([Row(*lease, ring.FINISHED, reason=ring.REFUSED) for lease in chunk])
    assert len(client.poll()) == len(leases)
    assert client.in_flight == 0 and client.slots_in_use == 0


# ---- engines that break the protocol -------------------------------------------------------------


def broken(words: list[int] | None = None, row: Row | None = None, admit: bool = True) -> None:
    """One submitted request, then what a broken engine writes: CoreError, now and ever after."""
    region = _core.Region.create(VOCABULARY)
    client, loop = _core.EdgeClient(region, None), ring.LoopTwin(region)
    slot, generation = submit_raw(client, 1)
    if admit:
        loop.token_push([Row(slot, generation, ring.ADMITTED)])
    if words is not None:
        loop.push_words(words)
    if row is not None:
        row.slot, row.generation = slot, generation
        loop.token_push([row])
    for _ in range(2):
        with pytest.raises(_core.CoreError, match="damaged"):
            client.poll()
    with pytest.raises(_core.CoreError, match="damaged"):
        client.submit(slot, generation, 1, format="raw")


BAD_RECORDS = {
    "no words": [0] * 8,
    "negative words": [-8, *[0] * 7],
    "too short": [7, *[0] * 6],
    "longer than written": [9, *[0] * 7],
    "longer than any": [2**31 - 1, *[0] * 7],
    "rows missing": [8, 1, *[0] * 6],
    "rows beyond count": [16, 0, *[0] * 14],
    "half a row": [12, 1, *[0] * 10],
    "count overflows": [8, 2**31 - 1, *[0] * 6],
    "negative count": [16, -1, *[0] * 14],
    "pairs beyond the end": [16, 1, *[0] * 6, *[0] * 7, 1],
    "too many pairs": [16 + 42, 1, *[0] * 6, *[0] * 7, 21, *[0] * 42],
    "negative pairs": [16, 1, *[0] * 6, *[0] * 7, -1],
}
BAD_ROWS = {
    "no flags": Row(0, 0, 0),
    "unknown flag": Row(0, 0, 8),
    "second admission": Row(0, 0, ring.ADMITTED),
    "token of no vocabulary": Row(0, 0, ring.TOKEN, VOCABULARY),
    "negative token": Row(0, 0, ring.TOKEN, -1),
    "end without reason": Row(0, 0, ring.FINISHED),
    "end with a wrong reason": Row(0, 0, ring.FINISHED, reason=7),
    "scored without a score request": Row(0, 0, ring.FINISHED, reason=ring.SCORED),
    "refusal with a wrong detail": Row(0, 0, ring.FINISHED, reason=ring.REFUSED, detail=4),
}
BAD_FIRST_ROWS = {
    "token before admission": Row(0, 0, ring.TOKEN, 1),
    "admission with a token": Row(0, 0, ring.ADMITTED | ring.TOKEN),
    "more cached than prompt": Row(0, 0, ring.ADMITTED, 2),
    "negative cached": Row(0, 0, ring.ADMITTED, -1),
    "negative bucket": Row(0, 0, ring.ADMITTED, 0, detail=-1),
}


@pytest.mark.parametrize("name", BAD_RECORDS)
def test_a_bad_record_ends_the_client_expecting_core_error(name: str) -> None:
    broken(words=BAD_RECORDS[name])


@pytest.mark.parametrize("name", BAD_ROWS)
def test_a_bad_row_ends_the_client_expecting_core_error(name: str) -> None:
    broken(row=BAD_ROWS[name])


@pytest.mark.parametrize("name", BAD_FIRST_ROWS)
def test_a_bad_first_row_ends_the_client_expecting_core_error(name: str) -> None:
    broken(row=BAD_FIRST_ROWS[name], admit=False)


def test_more_tokens_than_the_budget_end_the_client() -> None:
    region = _core.Region.create(VOCABULARY)
    client, loop = _core.EdgeClient(region, None), ring.LoopTwin(region)
    lease = submit_raw(client, 1)
    loop.token_push([Row(*lease, ring.ADMITTED)] + [Row(*lease, ring.TOKEN)] * 64)
    assert client.poll()[0].output_tokens == 64
    loop.token_push([Row(*lease, ring.TOKEN)])
    with pytest.raises(_core.CoreError, match="damaged"):
        client.poll()


@pytest.mark.parametrize("head", [0, 1, 511, 512, 2**63, 2**64 - 512])
def test_a_damaged_submission_head_never_loses_a_slot_silently(head: int) -> None:
    region = _core.Region.create(VOCABULARY)
    client, loop = _core.EdgeClient(region, None), ring.LoopTwin(region)
    loop.write_u64(ring.SUBMISSION_HEAD, head)
    if head == 0:
        submit_raw(client, 1)
        assert client.in_flight == 1
    else:
        with pytest.raises(_core.CoreError, match="damaged"):
            submit_raw(client, 1)
        assert client.in_flight == 0


@settings(max_examples=200)
@given(
    st.lists(st.integers(-(2**31), 2**31 - 1) | st.integers(0, 40), max_size=80),
    st.integers(0, 2**64 - 1) | st.integers(0, 100),
    st.integers(0, 2**64 - 1) | st.integers(0, 100),
)
def test_random_words_never_crash_expecting_at_worst_core_error(
    words: list[int], head: int, tail: int
) -> None:
    client = _core.EdgeClient(HOSTILE, _core.Vocabulary([b"a"] * VOCABULARY))
    loop = ring.LoopTwin(HOSTILE)
    loop.write_u64(ring.SUBMISSION_HEAD, loop.read_u64(ring.SUBMISSION_TAIL))
    lease = submit_raw(client, 1)
    loop.push_words(words)
    loop.write_u64(ring.TOKEN_HEAD, head)
    loop.write_u64(ring.TOKEN_TAIL, tail)
    try:
        for event in client.poll():
            assert event.key == 1
        client.cancel(*lease)
    except _core.CoreError:
        assert client.in_flight <= 1
    loop.write_u64(ring.TOKEN_HEAD, 0)
    loop.write_u64(ring.TOKEN_TAIL, 0)


HOSTILE = _core.Region.create(VOCABULARY)

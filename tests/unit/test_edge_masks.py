"""Constrained requests at the edge, beside a real loop: their masks, slots, and every end."""

import asyncio
import json
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import jsonschema
import numpy as np
import pytest

from sublimate import _core
from sublimate.edge.engine import EngineLink, Submission
from sublimate.edge.record import Tenant
from sublimate.grammar.compiler import Grammars, Wanted
from sublimate.grammar.constraint import Constraint
from sublimate.grammar.matcher import Matcher
from sublimate.model.thinking import ThinkingFormat
from sublimate.model.tool_formats import Tool, ToolCall, ToolFormat
from test_edge_engine import Heard, until
from test_edge_record import chosen
from tiny_model import STOP, ids, tiny_model

MODEL = tiny_model()
VOCABULARY = len(MODEL.tokenizer)
SLOTS = _core.LIMITS["MASK_SLOTS"]
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"title": {"type": "string", "maxLength": 8}, "n": {"type": "boolean"}},
    "required": ["title", "n"],
    "additionalProperties": False,
}
TOOL = Tool("f", "d", SCHEMA)
CALL = ToolFormat().call_text(ToolCall("", "f", '{"title": "t", "n": true}'))


def constraint_of(**wanted: Any) -> Constraint:
    found = MODEL.grammars.constraint(Wanted(**wanted))
    assert found is not None
    return found


DOCUMENT = constraint_of(answer_schema=SCHEMA)
AUTO = constraint_of(tools=(TOOL,))
THOUGHT = Grammars(MODEL.tokenizer, ToolFormat(), ThinkingFormat("<think>", "</think>"))
THINKING = THOUGHT.constraint(Wanted(begins_in_thinking=True))


def submission(prompt: str, constraint: Constraint | None, **changes: Any) -> Submission:
    values: dict[str, Any] = {
        "ids": np.array(ids(prompt), dtype=np.int32),
        "sampling": chosen(temperature=1.0, seed=changes.pop("seed", 5)),
        "token_budget": 400,
        "stop_tokens": (STOP,),
        "profile": "high-throughput",
        "tenant": Tenant(1, 2),
        "format": "text",
        "message_id": "m",
        "model_name": "m",
        "constraint": constraint,
    }
    return Submission(**{**values, **changes})


def with_engine(
    story: Callable[[EngineLink, _core.LoopEngine], Awaitable[None]],
    script: list[tuple[str, str]] | None = None,
    is_kept: bool = True,
) -> None:
    """A story beside a running loop; afterwards nothing is owned by anybody. is_kept: the link is
    open to the end."""
    lines = [(ids(asked), ids(said)) for asked, said in script or [("x", "no document at all")]]
    engine = _core.LoopEngine.with_script(
        lines, vocabulary=VOCABULARY, stop_token=STOP, speculation=True
    )
    region = _core.Region.create(VOCABULARY)
    engine.attach(region)
    thread = threading.Thread(target=engine.run)
    thread.start()

    async def run() -> None:
        broke: list[str] = []
        link = EngineLink(
            asyncio.get_running_loop(),
            region,
            MODEL.vocabulary,
            {"context_length": 8192},
            lambda: broke.append("broke"),
        )
        try:
            await story(link, engine)
            await until(lambda: not is_kept or link.in_flight == 0)
            if is_kept:
                assert link.masks.slots_in_use == link.slots_in_use == link.masks.waiting == 0
            assert not broke
        finally:
            link.close()

    try:
        asyncio.run(run())
        if is_kept:
            assert engine.stats()["accepted"] == engine.stats()["finished"]
    finally:
        engine.stop()
        thread.join()


def text_of(heard: Heard) -> str:
    assert heard.events[-1].finished and not heard.was_broken, heard.events
    return heard.events[-1].text


def test_documents_validate_and_do_not_depend_on_company() -> None:
    said: dict[int, list[str]] = {}

    async def story(link: EngineLink, engine: _core.LoopEngine) -> None:
        del engine
        for company in (1, 12):
            heards = [Heard() for _ in range(company)]
            plain = Heard()
            link.submit(submission("x", None, sampling=chosen(temperature=0.0)), plain, 384)
            for seed, heard in enumerate(heards):
                link.submit(submission("x", DOCUMENT, seed=seed), heard, 384)
            await until(lambda h=heards, p=plain: all(one.finished for one in [*h, p]))
            assert text_of(plain) == "no document at all"
            said[company] = [text_of(heard) for heard in heards]
            assert all(heard.events[-1].stop_reason == "end_turn" for heard in heards)

    with_engine(story)
    assert said[1][0] == said[12][0]
    assert len(set(said[12])) > 6
    for text in said[12]:
        jsonschema.validate(json.loads(text), SCHEMA)
        assert text.startswith('{"title": "')


def test_text_is_free_and_its_calls_are_held() -> None:
    wrong = CALL.replace('"n": true', '"n": 17, "zz": 3')
    script = [("a", f"so\n{CALL}\n{CALL}"), ("b", f"well <b>\n{wrong}"), ("c", "only text <")]

    async def story(link: EngineLink, engine: _core.LoopEngine) -> None:
        heards = {asked: Heard() for asked, _ in script}
        for asked, heard in heards.items():
            sampling = chosen(temperature=0.0)
            link.submit(submission(asked, AUTO, sampling=sampling), heard, 384)
        await until(lambda: all(heard.finished for heard in heards.values()))
        assert text_of(heards["a"]) == script[0][1]
        assert text_of(heards["c"]) == script[2][1]
        told = text_of(heards["b"])
        assert told.startswith("well <b>\n<tool_call>\n") and '"zz"' not in told
        arguments = told[told.index('"arguments": ') + 13 :].partition("}\n</tool_call>")[0]
        jsonschema.validate(json.loads(arguments), SCHEMA)
        # Of free text no token passes through Python.
        tokens = [token for event in heards["c"].events for token in event.token_ids]
        assert tokens == ids("<")[:1] or len(tokens) <= 2
        assert engine.stats()["failed"] == 0

    with_engine(story, script)


def test_requests_wait_for_slots_in_their_order() -> None:
    count = SLOTS + 20
    order: list[int] = []

    class InOrder(Heard):
        def __init__(self, number: int) -> None:
            super().__init__()
            self.number = number

        def on_event(self, event: _core.StreamEvent, now_seconds: float) -> None:
            super().on_event(event, now_seconds)
            if event.admitted:
                order.append(self.number)

    async def story(link: EngineLink, engine: _core.LoopEngine) -> None:
        del engine
        heards = [InOrder(number) for number in range(count)]
        for heard in heards:
            constraint = AUTO if heard.number % 3 == 0 else DOCUMENT  # of two slots and of one
            link.submit(submission("x", constraint), heard, 384)
        assert link.masks.waiting > 20 and link.masks.slots_in_use >= SLOTS - 1
        assert link.slots_in_use == count
        await until(lambda: all(heard.finished for heard in heards))
        assert all(text_of(heard) for heard in heards)

    with_engine(story)
    assert order == sorted(order)


def test_a_request_that_waits_can_be_cancelled() -> None:
    async def story(link: EngineLink, engine: _core.LoopEngine) -> None:
        del engine
        heards = [Heard() for _ in range(SLOTS + 2)]
        tickets = [link.submit(submission("x", DOCUMENT), heard, 384) for heard in heards]
        assert link.masks.waiting == 2
        link.cancel(tickets[SLOTS])
        link.cancel(tickets[SLOTS])
        assert link.masks.waiting == 1
        for ticket in tickets[:3]:
            link.cancel(ticket)
        await until(lambda: all(h.finished for h in [*heards[:SLOTS], heards[-1]]))
        assert not heards[SLOTS].events

    with_engine(story)


@pytest.fixture
def slow_masks(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Every mask is made on a thread, and not before the event is set."""
    go = threading.Event()
    fill = Matcher.fill

    def waits(self: Matcher, words: Any) -> None:
        assert go.wait(10)
        fill(self, words)
        self.is_slow = True

    monkeypatch.setattr(Matcher, "fill", waits)
    monkeypatch.setattr(
        Matcher,
        "is_slow",
        property(lambda self: True, lambda self, value: None),
        raising=False,
    )
    return go


def test_a_slow_mask_holds_up_nobody(slow_masks: threading.Event) -> None:
    async def story(link: EngineLink, engine: _core.LoopEngine) -> None:
        held, plain = Heard(), Heard()
        link.submit(submission("x", DOCUMENT), held, 384)
        link.submit(submission("x", None, sampling=chosen(temperature=0.0)), plain, 384)
        await until(lambda: plain.finished)
        assert text_of(plain) == "no document at all" and not held.finished
        steps = engine.stats()["step_count"]
        used = time.process_time()
        await asyncio.sleep(0.2)
        assert engine.stats()["step_count"] == steps, "nothing is computed for a row that waits"
        assert time.process_time() - used < 0.1
        slow_masks.set()
        await until(lambda: held.finished)
        jsonschema.validate(json.loads(text_of(held)), SCHEMA)
        assert engine.stats()["mask_waits"] > 0

    with_engine(story)


@pytest.mark.parametrize("how", ["cancel", "engine"])
def test_an_end_while_a_mask_is_made_leaves_nothing(slow_masks: threading.Event, how: str) -> None:
    async def story(link: EngineLink, engine: _core.LoopEngine) -> None:
        del engine
        heard = Heard()
        ticket = link.submit(submission("x", DOCUMENT), heard, 384)
        await until(lambda: any(event.admitted for event in heard.events))
        if how == "cancel":
            link.cancel(ticket)
            await until(lambda: heard.finished)
            assert link.masks.slots_in_use == 1, "a thread still writes there"
            slow_masks.set()
            await until(lambda: link.masks.slots_in_use == 0)
            return
        link.close()
        assert heard.lost
        slow_masks.set()
        await asyncio.sleep(0.05)

    with_engine(story, is_kept=how == "cancel")


@pytest.mark.parametrize("at", [0, 3])
def test_an_answer_that_cannot_be_held_ends_with_an_error(
    monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """Whether its first mask fails or a later one; the others go on."""
    fill = Matcher.fill
    masks: dict[int, int] = {}

    def fail(self: Matcher, words: Any) -> None:
        index = masks[id(self)] = masks.get(id(self), -1) + 1
        if next(iter(masks)) == id(self) and index == at:
            self.abandon("planted")
        else:
            fill(self, words)

    monkeypatch.setattr(Matcher, "fill", fail)

    async def story(link: EngineLink, engine: _core.LoopEngine) -> None:
        heards = [Heard() for _ in range(3)]
        for seed, heard in enumerate(heards):
            link.submit(submission("x", DOCUMENT, seed=seed), heard, 384)
        await until(lambda: all(one.finished or one.was_broken for one in heards))
        assert [one.reason for one in heards] == ["constraint_failed", "", ""]
        assert sum(len(event.token_ids) for event in heards[0].events) == at
        for heard in heards[1:]:
            jsonschema.validate(json.loads(text_of(heard)), SCHEMA)
        await until(lambda: engine.stats()["finished"] == 3)
        assert link.masks.broken_answers == 1

    with_engine(story)


@pytest.mark.parametrize("thinks", [False, True])
def test_a_mask_that_fails_ends_its_own_request(
    monkeypatch: pytest.MonkeyPatch, thinks: bool
) -> None:
    calls = 0
    consume = Matcher.consume
    constraint, budget = (THINKING, 40) if thinks else (DOCUMENT, 400)

    def fail_once(self: Matcher, tokens: Any, count: int) -> Any:
        nonlocal calls
        calls += 1
        if calls == 5:
            raise RuntimeError("planted")
        return consume(self, tokens, count)

    monkeypatch.setattr(Matcher, "consume", fail_once)

    async def story(link: EngineLink, engine: _core.LoopEngine) -> None:
        del engine
        heards = [Heard() for _ in range(4)]
        tickets = [
            link.submit(
                submission("x", constraint, seed=seed, thinking_tokens=12, token_budget=budget),
                heard,
                384,
            )
            for seed, heard in enumerate(heards)
        ]
        await until(lambda: all(one.finished or one.was_broken for one in heards))
        assert [one.was_broken for one in heards].count(True) == 1
        for ticket, heard in zip(tickets, heards, strict=True):
            if heard.was_broken:
                link.cancel(ticket)
            elif thinks:
                assert "</think>" in text_of(heard)
            else:
                jsonschema.validate(json.loads(text_of(heard)), SCHEMA)

    with_engine(story)

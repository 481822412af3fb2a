"""Thinking that is bounded: its end is forced, no turn ends in it, and an answer follows it."""

import json
from typing import Any

import jsonschema
import numpy as np
import pytest

from grammar_speaker import Speaker, has, speaker_tokenizer
from sublimate.edge.generation import ThinkingBudget, answer_reserve, thinking_limit
from sublimate.grammar.compiler import Grammars, Wanted
from sublimate.grammar.constraint import Constraint
from sublimate.grammar.matcher import Matcher
from sublimate.model.thinking import ThinkingFormat
from sublimate.model.tool_formats import FORMATS, Tool, ToolCall, ToolFormat

THINK = ThinkingFormat("<think>", "</think>")
FLAG = {
    "type": "object",
    "properties": {"x": {"type": "boolean"}},
    "required": ["x"],
    "additionalProperties": False,
}
TOOLS = (Tool("set-flag", "d", FLAG),)
CALL = ToolFormat().call_text(ToolCall("", "set-flag", '{"x": true}'))
TEXT = Grammars(speaker_tokenizer(), ToolFormat(), THINK)
MARKED = Grammars(speaker_tokenizer(control=("<think>", "</think>")), ToolFormat(), THINK)
BUDGET = 40
WANTED: dict[str, dict[str, Any]] = {
    "nothing": {},
    "tools": {"tools": TOOLS},
    "one call": {"tools": TOOLS, "must_call": True, "parallel": False},
    "document": {"answer_schema": FLAG},
}


class Thinker(Speaker):
    """Asks for a mask where the loop does, and never ends a turn that is kept from ending."""

    def __init__(self, constraint: Constraint, thinking_tokens: int, prefer: str) -> None:
        super().__init__(constraint, 1, prefer.encode())
        self.matcher = Matcher(constraint, thinking_tokens)
        self.tokens: list[int] = []

    def speak(self, tokens_max: int) -> bytes:
        matcher, free = self.matcher, False
        words = self.vocabulary.words([])
        triggers = words
        while len(self.tokens) < tokens_max:
            if not free and matcher.is_free:
                free, triggers = True, matcher.triggers
            if free:
                self.free += 1
                stops = self.vocabulary.stop_words & triggers
                token = self.choose(np.full_like(words, 0xFFFFFFFF) & ~stops)
            else:
                self.masks += 1
                matcher.fill(words)
                assert not matcher.broken, matcher.broken
                token = self.choose(words)
            if token in self.vocabulary.stop_tokens:
                self.ended = True
                break
            self.tokens.append(token)
            self.said += self.vocabulary.token_bytes[token]
            count = len(self.tokens)
            if free and not has(triggers, token) and count != matcher.free_end:
                continue
            free = False
            matcher.consume([token], count)
        return self.said


def thinker(of: Grammars, budget: int, prefer: str, **wanted: Any) -> Thinker:
    constraint = of.constraint(Wanted(**wanted))
    assert constraint is not None
    return Thinker(constraint, budget, prefer)


def tokens_until_closed(one: Thinker) -> int:
    said = b""
    for count, token in enumerate(one.tokens, 1):
        said += one.vocabulary.token_bytes[token]
        if THINK.closing.encode() in said:
            return count
    raise AssertionError(said)


@pytest.mark.parametrize("begun", [True, False])
@pytest.mark.parametrize("of", [TEXT, MARKED], ids=["text", "control"])
@pytest.mark.parametrize("asked", WANTED)
def test_endless_thinking_is_closed_within_its_budget(
    asked: str, of: Grammars, begun: bool
) -> None:
    opening = "" if begun else "<think>"
    begins = {"begins_in_thinking": True} if begun else {"may_think": True}
    one = thinker(of, BUDGET, opening + "hm < a" * 99, **begins, **WANTED[asked])
    one.speak(BUDGET)
    assert tokens_until_closed(one) <= BUDGET, one.said
    assert one.said.endswith(b"\n</think>"), "the closing is what templates write"
    one.prefer = CALL.encode() if asked in ("tools", "one call") else b'{"x": true}'
    one.speak(400)
    answer = one.said.partition(b"</think>")[2].strip()
    assert not one.matcher.broken and answer
    if asked == "document":
        jsonschema.validate(json.loads(answer), FLAG)
    if asked in ("tools", "one call"):
        assert answer.startswith(CALL.encode())


@pytest.mark.parametrize("asked", WANTED)
def test_thinking_that_ends_by_itself_costs_few_masks(asked: str) -> None:
    one = thinker(TEXT, 400, "hm < a\n</think>", begins_in_thinking=True, **WANTED[asked])
    one.speak(14)
    assert one.said.startswith(b"hm < a\n</think>") and one.masks < 14, one.said
    plain = thinker(TEXT, 0, "hm " * 50, begins_in_thinking=True)
    plain.speak(150)
    assert plain.masks == 0 and plain.matcher.free_end == 0


def test_no_turn_ends_in_thinking_nor_right_behind_it() -> None:
    for of in (TEXT, MARKED):
        constraint = of.constraint(Wanted(begins_in_thinking=True))
        assert constraint is not None
        matcher, vocabulary = Matcher(constraint, BUDGET), constraint.vocabulary
        stop = vocabulary.stop_tokens[0]
        assert matcher.is_free and has(matcher.triggers, stop), "drawn again by the loop"
        words = vocabulary.words([])
        for token in (*constraint.closing_tokens, vocabulary.token_bytes.index(b"\n")):
            matcher.consume([token])
        assert not matcher.is_free
        matcher.fill(words)
        assert not has(words, stop) and has(words, vocabulary.token_bytes.index(b"a"))
        matcher.consume([vocabulary.token_bytes.index(b"a")])
        assert matcher.is_free and not matcher.triggers.any(), "free for good"


def test_a_call_may_follow_thinking_at_once() -> None:
    for family in (FORMATS["hermes"], FORMATS["llama3"], FORMATS["gemma"]):
        of = Grammars(speaker_tokenizer(), family, THINK)
        call = ToolCall("", "set-flag", '{"x": true}')
        text = "hm</think>\n\n" + family.calls_text([call])
        one = thinker(of, 400, text, begins_in_thinking=True, tools=TOOLS, parallel=False)
        one.speak(200)
        assert not one.prefer and not one.matcher.broken, one.said


@pytest.mark.parametrize("tools", [(), TOOLS])
def test_a_late_opening_is_text(tools: tuple[Tool, ...]) -> None:
    said = "well <think> is a marker </think> of thinking"
    one = thinker(TEXT, 8, said + " and so on", may_think=True, tools=tools)
    one.speak(len(said))
    assert one.said.startswith(b"well <think> is a marker </think>"), one.said
    assert one.matcher.is_free and not one.matcher.broken
    assert one.masks <= (2 if not tools else 12)


def test_what_began_like_thinking_may_be_a_call() -> None:
    one = thinker(TEXT, 400, "", may_think=True, tools=TOOLS, parallel=False)
    vocabulary = one.vocabulary
    matcher = one.matcher
    for token in [vocabulary.token_bytes.index(bytes([byte])) for byte in CALL[:14].encode()]:
        if not matcher.is_free or has(matcher.triggers, token):
            matcher.consume([token])
    words = vocabulary.words([])
    assert not matcher.is_free and not matcher.broken
    matcher.fill(words)
    assert not has(words, vocabulary.token_bytes.index(b"z")), "held to a call"


def test_the_reserve_is_kept_whatever_is_asked() -> None:
    assert [answer_reserve(tokens) for tokens in (64, 256, 1000)] == [64, 64, 250]
    wide = ThinkingBudget(1 << 20)
    for room in (1, 2, 64, 65, 256, 4096):
        limit = thinking_limit(wide, room)
        assert limit == thinking_limit(None, room) >= 1
        assert room < 256 or room - limit == answer_reserve(room)
        assert room < 4 or room - limit >= room // 4
    assert thinking_limit(ThinkingBudget(7), 4096) == 7

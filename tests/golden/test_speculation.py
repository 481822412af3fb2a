"""Speculation changes no bit of an answer of the real model: tokens, log-probabilities and ends,
greedy and sampled, alone and in a batch of mixed requests; and it does happen."""

import os
from collections.abc import Iterator
from typing import Any

import pytest

import sublimate

pytestmark = pytest.mark.alone
IS_LONG = os.environ.get("SUBLIMATE_TEST_LONG") == "1"

Case = dict[str, Any]
TOKENS = 96
STORY = (
    "The old lighthouse keeper climbed the stairs every evening at dusk. He carried a lamp, a book "
    "and a small loaf of bread. The wind howled around the tower, but the keeper was not afraid."
)
SAMPLINGS = {
    "greedy": {},
    "seeded": {"temperature": 0.7, "top_p": 0.9, "seed": 11},
    "hot": {"temperature": 1.2, "top_k": 40, "min_p": 0.02, "seed": 5},
    "penalties": {"repetition_penalty": 1.1, "frequency_penalty": 0.3, "presence_penalty": 0.2},
    "bias": {"temperature": 0.5, "seed": 2, "logit_bias": {28: 1.5, 30: -2.0}},
}


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[sublimate.Engine, sublimate.Engine]]:
    """(speculation off, speculation auto)"""
    options: dict[str, Any] = {"context_length": 2048, "kv_memory": 1 << 29}
    with (
        sublimate.Engine(speculation="off", **options) as off,
        sublimate.Engine(speculation="auto", **options) as auto,
    ):
        yield off, auto


def copying(engine: sublimate.Engine, golden: list[Case]) -> list[int]:
    """The prompt of a request to say a text again."""
    user = next(case for case in golden if case["name"] == "hello")
    before, after = user["prompt"].split("Hello, how are you?")
    text = engine.tokenise(f"Repeat the following text exactly:\n\n{STORY}")
    count = len(engine.tokenise("Hello, how are you?"))
    head = next(
        at
        for at in range(len(user["ids"]))
        if engine.detokenise(user["ids"][at : at + count]) == "Hello, how are you?"
    )
    assert before and after
    return [*user["ids"][:head], *text, *user["ids"][head + count :]]


def drafts(engine: sublimate.Engine) -> tuple[int, int]:
    stats = engine.stats
    return stats["drafted_tokens"], stats["accepted_drafts"]


@pytest.mark.parametrize("name", SAMPLINGS)
def test_alone(
    pair: tuple[sublimate.Engine, sublimate.Engine], golden: list[Case], name: str
) -> None:
    off, auto = pair
    prompts = [copying(off, golden), golden[1]["ids"], golden[4]["ids"]]
    for ids in prompts:
        before = drafts(auto)[1]
        sampling: dict[str, Any] = {"logprobs": 2, "cache": False, **SAMPLINGS[name]}
        first = off.generate([ids], TOKENS, **sampling)[0]
        second = auto.generate([ids], TOKENS, **sampling)[0]
        assert first.token_ids == second.token_ids
        assert first.logprobs == second.logprobs
        assert first.finish_reason == second.finish_reason
        if ids is prompts[0] and name == "greedy":
            assert drafts(auto)[1] - before > 20
    assert drafts(off) == (0, 0)


def test_a_mixed_batch(pair: tuple[sublimate.Engine, sublimate.Engine], golden: list[Case]) -> None:
    """Requests of all kinds at once, cached pages and answers as prompts included."""
    off, auto = pair
    before = drafts(auto)
    some = golden if IS_LONG else golden[::3]
    prompts = [case["ids"][:200] for case in some] + [copying(off, golden)] * 2
    for sampling in SAMPLINGS.values():
        options: dict[str, Any] = {"logprobs": 1, **sampling}
        first = off.generate(prompts, TOKENS, **options)
        second = auto.generate(prompts, TOKENS, **options)
        assert [one.token_ids for one in first] == [one.token_ids for one in second]
        if auto.info["same_arithmetic"]:
            assert [one.logprobs for one in first] == [one.logprobs for one in second]
        assert [one.finish_reason for one in first] == [one.finish_reason for one in second]
        prompts = [[*ids, *one.token_ids][:600] for ids, one in zip(prompts, first, strict=True)]
    drafted, accepted = (now - then for now, then in zip(drafts(auto), before, strict=True))
    assert 0 < accepted <= drafted
    assert auto.audit() == ""


def test_ends_are_exact(
    pair: tuple[sublimate.Engine, sublimate.Engine], golden: list[Case]
) -> None:
    """Budgets and stop tokens that fall between drafts."""
    off, auto = pair
    ids = copying(off, golden)
    whole = off.generate([ids], TOKENS, ignore_eos=True)[0].token_ids
    for budget in range(1, 24):
        assert auto.generate([ids], budget, ignore_eos=True)[0].token_ids == whole[:budget]
    for at in range(4, 40, 5):
        stop = whole[at]
        done = auto.generate([ids], TOKENS, stop_tokens=[stop])[0]
        assert done.finish_reason == "end_turn"
        assert done.token_ids == whole[: whole.index(stop)]

"""A request's tokens and log-probabilities do not depend on its company or on how it was cut.

What holds for pages: a page that a prompt wrote gives the bits of computing it anew, always. A page
that decoding wrote does so where prompt and generated rows share one arithmetic
(Engine.info["same_arithmetic"]: every instruction set but AMX); elsewhere its last bits differ, and
the page is marked so that the difference is never silent.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import sublimate

pytestmark = pytest.mark.alone

Engines = Callable[[bool], sublimate.Engine]
Case = dict[str, Any]
TOKENS = 24
SAMPLED = {"temperature": 0.9, "top_p": 0.95, "seed": 7}


@pytest.fixture(params=["greedy", "seeded"])
def sampling(request: pytest.FixtureRequest) -> dict[str, Any]:
    return {} if request.param == "greedy" else SAMPLED


def answer(engine: sublimate.Engine, ids: list[int], **options: Any) -> tuple[Any, ...]:
    completion = engine.generate([ids], max_tokens=TOKENS, logprobs=2, **options)[0]
    return completion.token_ids, completion.logprobs


def test_alone_and_among_31_others(
    engines: Engines, golden: list[Case], sampling: dict[str, Any]
) -> None:
    engine = engines(False)
    subject = golden[6]["ids"]
    alone = answer(engine, subject, cache=False, **sampling)
    others = [golden[i % len(golden)]["ids"][: 20 + 7 * i] for i in range(31)]
    batch = [*others[:15], subject, *others[15:]]
    together = engine.generate(batch, max_tokens=TOKENS, logprobs=2, cache=False, **sampling)[15]
    assert (together.token_ids, together.logprobs) == alone


@pytest.mark.parametrize("profile", ["low-latency", "high-throughput", "long-context"])
def test_cut_into_other_chunks(
    engines: Engines, golden: list[Case], sampling: dict[str, Any], profile: str
) -> None:
    """Each profile cuts a long prompt beside running requests in its own way."""
    engine = engines(False)
    subject = next(case["ids"] for case in golden if case["name"] == "long-500")
    alone = answer(engine, subject, cache=False, **sampling)
    others = [golden[i]["ids"] for i in range(6)]
    together = engine.generate(
        [*others, subject],
        max_tokens=TOKENS,
        logprobs=2,
        cache=False,
        profile=profile,
        **sampling,
    )[-1]
    assert (together.token_ids, together.logprobs) == alone


def test_a_prefix_hit_on_prompt_pages(engines: Engines, golden: list[Case]) -> None:
    engine = engines(False)
    subject = next(case["ids"] for case in golden if case["name"] == "long-500")
    fresh = answer(engine, subject, cache=False)
    engine.generate([subject[:300]], max_tokens=1)
    hit = engine.generate([subject], max_tokens=TOKENS, logprobs=2)[0]
    assert hit.cached_tokens >= 256
    assert (hit.token_ids, hit.logprobs) == fresh


def test_a_prefix_hit_on_pages_that_decoding_wrote(engines: Engines, golden: list[Case]) -> None:
    engine = engines(False)
    prompt = golden[3]["ids"]
    first = engine.generate([prompt], max_tokens=96, ignore_eos=True)[0]
    longer = prompt + first.token_ids + golden[0]["ids"]
    hit = engine.generate([longer], max_tokens=TOKENS, logprobs=2)[0]
    assert hit.cached_tokens >= len(prompt) + 32
    fresh = engine.generate([longer], max_tokens=TOKENS, logprobs=2, cache=False)[0]
    if engine.info["same_arithmetic"]:
        assert (hit.token_ids, hit.logprobs) == (fresh.token_ids, fresh.logprobs)
    else:
        ours = np.array([value for value, _ in hit.logprobs])
        theirs = np.array([value for value, _ in fresh.logprobs])
        assert np.abs(ours[0] - theirs[0]) < 0.05


def test_both_arithmetics_score_alike(engines: Engines, golden: list[Case]) -> None:
    engine = engines(False)
    ids = golden[4]["ids"]
    prompt, _ = engine.score(ids, arithmetic="prompt")
    decode, _ = engine.score(ids, arithmetic="decode")
    if engine.info["same_arithmetic"]:
        assert np.array_equal(prompt, decode)
    else:
        assert float(np.abs(prompt - decode).mean()) < 0.05

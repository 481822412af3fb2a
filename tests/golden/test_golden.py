"""The default model against fp32 reference outputs, teacher-forced, by both arithmetics.

NLL bars: nats per token of the prompt. Gap bars: the reference's distance between its two best
logits; below it the order may flip. Prompts and ids are compared in tests/unit/test_template.py
and test_tokenizer.py.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import sublimate

Engines = Callable[[bool], sublimate.Engine]
Case = dict[str, Any]

GAP_BAR = {False: 0.5, True: 0.05}
NLL_BAR_CASE = {False: 0.03, True: 0.001}
END_OF_TURN = 2  # not part of an answer's tokens
NLL_BAR_MEAN = {False: 0.01, True: 0.001}
MODES = [(exact, arithmetic) for exact in (False, True) for arithmetic in ("prompt", "decode")]


def scores(engines: Engines, case: Case, exact: bool, arithmetic: str) -> tuple[float, list[int]]:
    """(mean NLL of the prompt, arg-max before each token of the continuation)."""
    ids = case["ids"] + case["greedy"]
    logprobs, best = engines(exact).score(ids, arithmetic=arithmetic)
    prompt = len(case["ids"])
    return -float(np.mean(logprobs[1:prompt], dtype=np.float64)), best[prompt:].tolist()


@pytest.mark.parametrize(("exact", "arithmetic"), MODES)
def test_teacher_forced(engines: Engines, golden: list[Case], exact: bool, arithmetic: str) -> None:
    errors: list[float] = []
    weights: list[int] = []
    positions = 0
    for case in golden:
        nll, best = scores(engines, case, exact, arithmetic)
        errors.append(nll - case["nll"])
        weights.append(len(case["ids"]) - 1)
        assert abs(errors[-1]) <= NLL_BAR_CASE[exact], case["name"]
        for index, (gap, token) in enumerate(zip(case["gaps"], case["greedy"], strict=True)):
            if gap > GAP_BAR[exact]:
                positions += 1
                assert best[index] == token, f"{case['name']}: position {index}, gap {gap}"
    assert positions > 400
    assert abs(float(np.average(errors, weights=weights))) <= NLL_BAR_MEAN[exact]


@pytest.mark.parametrize("exact", [False, True])
def test_greedy_tokens_follow_the_reference(
    engines: Engines, golden: list[Case], exact: bool
) -> None:
    """Generated in one batch: equal up to the first position whose gap is below the bar."""
    answers = engines(exact).generate([case["ids"] for case in golden], max_tokens=48)
    for case, answer in zip(golden, answers, strict=True):
        gaps = case["gaps"]
        sure = next((i for i, gap in enumerate(gaps) if gap <= GAP_BAR[exact]), len(gaps))
        expected = [token for token in case["greedy"][:sure] if token != END_OF_TURN]
        assert answer.token_ids[: len(expected)] == expected, case["name"]
        if END_OF_TURN in case["greedy"][:sure]:
            assert answer.finish_reason == "end_turn", case["name"]

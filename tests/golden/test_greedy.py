"""Greedy answers of the default model, generated in one batch, against the fp32 reference."""

from collections.abc import Callable
from typing import Any

import pytest

import sublimate

pytestmark = pytest.mark.alone

GAP_BAR = {False: 0.5, True: 0.05}
END_OF_TURN = 2  # not part of an answer's tokens


@pytest.mark.parametrize("exact", [False, True])
def test_tokens_are_the_references_up_to_the_first_close_call(
    engines: Callable[[bool], sublimate.Engine], golden: list[dict[str, Any]], exact: bool
) -> None:
    answers = engines(exact).generate([case["ids"] for case in golden], max_tokens=48)
    compared = 0
    for case, answer in zip(golden, answers, strict=True):
        gaps = case["gaps"]
        sure = next((i for i, gap in enumerate(gaps) if gap <= GAP_BAR[exact]), len(gaps))
        expected = [token for token in case["greedy"][:sure] if token != END_OF_TURN]
        compared += len(expected)
        assert answer.token_ids[: len(expected)] == expected, case["name"]
        if END_OF_TURN in case["greedy"][:sure]:
            assert answer.finish_reason == "end_turn", case["name"]
    assert compared > 50

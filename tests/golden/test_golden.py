"""Teacher-forced over every golden continuation: the default model against the fp32 reference.

Both arithmetics, in the default and the exact mode. The bars are those of the design: arg-max at
every position whose two best logits are far enough apart, and the mean negative log-likelihood of
the prompt's tokens.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import pytest

from sublimate import Engine

pytestmark = pytest.mark.alone
IS_LONG = os.environ.get("SUBLIMATE_TEST_LONG") == "1"

GOLDEN = Path(__file__).parent / "smollm2-135m-q4_1.json"
CASES: list[dict[str, Any]] = msgspec.json.decode(GOLDEN.read_bytes())["cases"]
# mode -> (gap above which the arg-max must agree, NLL over all tokens, NLL of one case)
BARS = {
    "default": (0.5, 0.01, 0.03),
    "exact": (0.05, 0.001, 0.001),
    "int8 pages": (0.5, 0.002, 0.03),
}
KV_BYTES = 1 << 30


@pytest.fixture(scope="module", params=list(BARS))
def mode_and_engine(request: pytest.FixtureRequest) -> Iterator[tuple[str, Engine]]:
    exact, kv = request.param == "exact", "int8" if request.param == "int8 pages" else "bf16"
    with Engine("default", exact=exact, kv=kv, kv_memory=KV_BYTES) as engine:
        yield request.param, engine


def test_there_are_cases() -> None:
    assert len(CASES) == 15
    assert sum(gap > 0.5 for case in CASES for gap in case["gaps"]) > 400


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("arithmetic", ["prompt", "decode"])
def test_every_continuation(
    mode_and_engine: tuple[str, Engine],
    arithmetic: Literal["prompt", "decode"],
    record_property: Any,
) -> None:
    mode, engine = mode_and_engine
    gap_bar, mean_bar, case_bar = BARS[mode]
    # The default mode has them all; the slow ones do with some, and have all in `make test-long`.
    is_slow = mode != "default" or os.environ.get("SUBLIMATE_ISA") == "portable"
    cases = CASES[::3] if is_slow and not IS_LONG else CASES
    scores = engine.score([case["ids"] + case["greedy"] for case in cases], arithmetic)
    total, reference, tokens, worst = 0.0, 0.0, 0, 0.0
    for case, (logprobs, argmax) in zip(cases, scores, strict=True):
        prompt = len(case["ids"])
        sure = np.array(case["gaps"]) > gap_bar
        expected = np.array(case["greedy"])
        assert np.array_equal(argmax[prompt:][sure], expected[sure]), case["name"]
        nll = -float(logprobs[1:prompt].astype(np.float64).sum())
        difference = abs(nll / (prompt - 1) - case["nll"])
        assert difference <= case_bar, f"{case['name']}: {difference:.5f}"
        worst = max(worst, difference)
        total, reference = total + nll, reference + case["nll"] * (prompt - 1)
        tokens += prompt - 1
    mean = abs(total - reference) / tokens
    record_property(f"nll_{mode}_{arithmetic}", f"mean {mean:.5f}, worst case {worst:.5f}")
    assert mean <= mean_bar
    assert engine.audit() == ""

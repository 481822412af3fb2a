"""After load the loop and its compute threads take no memory from the heap."""

import time
from collections.abc import Callable
from typing import Any

import pytest

import sublimate
from sublimate import _core

pytestmark = pytest.mark.alone


def test_no_heap_allocation_on_the_loops_threads(
    engines: Callable[[bool], sublimate.Engine], golden: list[dict[str, Any]]
) -> None:
    engine = engines(False)
    before = _core.heap_allocations()
    prompts = [case["ids"] for case in golden]
    engine.generate(prompts, max_tokens=16)
    engine.generate(
        prompts,
        max_tokens=16,
        temperature=0.8,
        top_k=40,
        top_p=0.9,
        min_p=0.01,
        repetition_penalty=1.1,
        presence_penalty=0.5,
        frequency_penalty=0.5,
        logit_bias=[(5, 1.0)],
        logprobs=5,
    )
    engine.score(prompts[0], arithmetic="decode")
    assert _core.heap_allocations() == before
    # Nor does it while somebody follows what it decides.
    trace = _core.TraceReader(engine._region)
    trace.follow(time.monotonic_ns() + 600_000_000_000)
    engine.generate(prompts, max_tokens=16)
    trace.follow(0)
    missed, records = trace.read(_core.LIMITS["TRACE_RECORDS"])
    assert missed == 0 and len(records) > 64 * 16 * len(prompts)
    assert _core.heap_allocations() == before

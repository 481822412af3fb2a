"""What the engines are asked to do, the same for each of them. Standard library only, since
peers' interpreters run it too.

defines: PREFILLS, DECODE_PROMPT, DECODE_TOKENS, STREAMS, engine_figures
"""

from __future__ import annotations

from collections.abc import Callable

PREFILLS = (512, 2048)
DECODE_PROMPT, DECODE_TOKENS = 128, 64
STREAMS = 32

Run = Callable[[int, int, int], "dict[str, float]"]
"""(streams, prompt tokens, generated tokens) -> rates() of them"""


def engine_figures(run: Run, quick: bool) -> dict[str, float]:
    """All figures of the engine section; quick: those of a large model."""
    run(2, 16, 4)  # warm-up
    figures: dict[str, float] = {}
    for size in PREFILLS[: 1 if quick else None]:
        figures[f"prefill_{size}"] = run(1, size, 1)["prefill"]
    figures["decode_1"] = run(1, DECODE_PROMPT, DECODE_TOKENS)["decode"]
    if not quick:
        many = run(STREAMS, DECODE_PROMPT, DECODE_TOKENS)
        figures["generate_32"] = many["all"]
        if "decode" in many:
            figures["decode_32"] = many["decode"]
    return figures

"""Times the resident loop in this process: rows pp512, tg128, ... as the field names them.

defines: NativeRow, bench_engine
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence

import msgspec

from ..engine.inprocess import Engine
from .figures import Spread

ROW_SECONDS_MAX = 20.0
SHORT_PROMPT_TOKENS = 4
RowDone = Callable[["NativeRow"], None]


class NativeRow(msgspec.Struct, frozen=True, kw_only=True):
    """One row. tok_s: prompt tokens (pp) or generated tokens (tg) per second, all streams."""

    test: str
    batch: int
    tok_s: float
    tok_s_least: float
    tok_s_greatest: float
    repetitions: int
    tokens: int
    """Per repetition."""
    isa: str
    threads: int
    exact: bool


def bench_engine(
    engine: Engine,
    *,
    prompt_tokens: Sequence[int],
    generate_tokens: Sequence[int],
    batches: Sequence[int],
    repetitions: int,
    done: RowDone,
    seed: int = 0,
) -> list[NativeRow]:
    """All rows; `done` is called after each. Raises ValueError if a row exceeds the context."""
    context = int(engine.info["context_length"])
    for size in (*prompt_tokens, *(count + SHORT_PROMPT_TOKENS for count in generate_tokens)):
        if not 1 <= size < context:
            raise ValueError(f"{size} tokens do not fit the context of {context}")
    rows: list[NativeRow] = []
    source = random.Random(seed)  # noqa: S311 - load, not secrets
    shapes = [(f"pp{size}", size, 1, size) for size in prompt_tokens]
    shapes += [(f"tg{size}", SHORT_PROMPT_TOKENS, size, size) for size in generate_tokens]
    for name, prompt, generate, counted in shapes:
        for batch in batches:
            row = _row(engine, name, prompt, generate, batch, counted, repetitions, source)
            rows.append(row)
            done(row)
    return rows


def _row(
    engine: Engine,
    name: str,
    prompt: int,
    generate: int,
    batch: int,
    counted: int,
    repetitions: int,
    source: random.Random,
) -> NativeRow:
    vocabulary = int(engine.info["vocabulary"])

    def once() -> float:
        prompts = [[source.randrange(vocabulary) for _ in range(prompt)] for _ in range(batch)]
        begin = time.perf_counter()
        engine.generate(prompts, generate, ignore_eos=True, cache=False)
        return batch * counted / (time.perf_counter() - begin)

    once()  # warm-up
    speeds, begin = list[float](), time.perf_counter()
    while len(speeds) < repetitions:
        speeds.append(once())
        if time.perf_counter() - begin > ROW_SECONDS_MAX:
            break
    speed = Spread.of(speeds)
    return NativeRow(
        test=name,
        batch=batch,
        tok_s=speed.median,
        tok_s_least=speed.least,
        tok_s_greatest=speed.greatest,
        repetitions=len(speeds),
        tokens=batch * counted,
        isa=str(engine.info["isa"]),
        threads=int(engine.info["threads"]),
        exact=bool(engine.info["exact"]),
    )

"""What int8 keys and values cost a text, and what they gain a long context (docs/kv.md).

    .venv/bin/python bench/kv.py [TEXT ...] [--model default] [--window 2048] [--context 7680]

The loss: mean negative log-likelihood of the texts' tokens, in windows, against bf16. The gain:
tokens per second of streams that decode behind long prompts, both kinds in turn.
"""

import argparse
import random
import statistics
import time
from pathlib import Path
from typing import Literal

import numpy as np

from sublimate import Engine

ROOT = Path(__file__).resolve().parents[1]
TEXTS = sorted((ROOT / "docs").glob("*.md"))
"""Prose with tables and commands, which no model has seen."""
GENERATED = 64
KINDS: tuple[Literal["bf16", "int8"], ...] = ("bf16", "int8")


def mean_nll(engine: Engine, windows: list[list[int]]) -> float:
    """Nats per token; the first of a window has nothing before it."""
    scores = engine.score(windows)
    total = sum(float(logprobs[1:].astype(np.float64).sum()) for logprobs, _ in scores)
    return -total / sum(len(window) - 1 for window in windows)


def loss(model: str, texts: list[Path], window: int, with_exact: bool) -> None:
    results: dict[str, float] = {}
    for name in (*KINDS, "f32") if with_exact else KINDS:
        exact = name == "f32"
        kv = "int8" if name == "int8" else "bf16"
        with Engine(model, exact=exact, kv=kv, context_length=window + 1) as engine:
            ids = engine.tokenise("\n\n".join(text.read_text() for text in texts))
            windows = [ids[at : at + window] for at in range(0, len(ids) - window + 1, window)]
            results[name] = mean_nll(engine, windows or [ids])
            told = f"{sum(map(len, windows or [ids])):,} tokens in windows of {window:,}"
    print(f"mean negative log-likelihood, {told}:")
    for name, nll in results.items():
        label = "all of it exact, f32 pages" if name == "f32" else f"{name} pages"
        against = nll - results["bf16"]
        print(f"  {label:28}{nll:.5f} nats  perplexity {np.exp(nll):.4f}  {against:+.5f}")


def decode_rate(engine: Engine, prompts: list[list[int]]) -> float:
    """Tokens per second of all streams, their prompts being in the cache."""
    seconds: list[float] = []
    for tokens in (1, 1 + GENERATED):
        begin = time.perf_counter()
        engine.generate(prompts, tokens, ignore_eos=True)
        seconds.append(time.perf_counter() - begin)
    return GENERATED * len(prompts) / (seconds[1] - seconds[0])


def gain(model: str, context: int, batches: list[int], rounds: int) -> None:
    source = random.Random(1)  # noqa: S311 - load, not secrets
    engines = {
        kind: Engine(
            model,
            kv=kind,
            speculation="off",
            context_length=context + 2 * GENERATED,
            kv_memory=3 << 30,
        )
        for kind in KINDS
    }
    vocabulary = int(engines["bf16"].info["vocabulary"])
    for batch in batches:
        prompts = [[source.randrange(vocabulary) for _ in range(context)] for _ in range(batch)]
        rates: dict[str, list[float]] = {kind: [] for kind in KINDS}
        for turn in range(rounds + 1):
            for kind, engine in engines.items():
                rate = decode_rate(engine, prompts)
                if turn > 0:  # the first one fills the caches
                    rates[kind].append(rate)
        medians = {kind: statistics.median(rates[kind]) for kind in KINDS}
        ratio = statistics.median(
            after / before for before, after in zip(rates["bf16"], rates["int8"], strict=True)
        )
        shown = ", ".join(f"{kind} {rate:.1f}" for kind, rate in medians.items())
        print(f"decode at {context:,}, {batch} streams, tok/s: {shown}; int8 to bf16 {ratio:.2f}")
    for engine in engines.values():
        engine.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("texts", nargs="*", type=Path, default=TEXTS)
    parser.add_argument("--model", default="default")
    parser.add_argument("--window", type=int, default=2048)
    parser.add_argument("--exact", action="store_true", help="also with --exact, which is slow")
    parser.add_argument("--context", type=int, default=7680)
    parser.add_argument("--batch", default="1,8")
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args()
    loss(chosen.model, chosen.texts, chosen.window, chosen.exact)
    gain(
        chosen.model, chosen.context, [int(part) for part in chosen.batch.split(",")], chosen.rounds
    )


if __name__ == "__main__":
    main()

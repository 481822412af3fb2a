"""One round of load against one server, by the project's own generator. Prints one JSON object.

usage: python client.py URL [--api openai] [--streams 32] [--requests 32] [--prompt 100]
         [--generate 64] [--busy 2]

--busy: processes that spin meanwhile, as many as cores to keep them all busy.

defines: main
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random

import msgspec

from sublimate.bench.figures import percentile
from sublimate.bench.load import Load, Round, discover, run_round
from sublimate.bench.processes import busy_loops
from sublimate.bench.prompts import Counter, PromptMaker
from sublimate.config import Settings, cache_folder
from sublimate.engine.text import load_text
from sublimate.model.files import fetch

SEED_RANGE = 1 << 32


async def load(options: argparse.Namespace, counter: Counter) -> Round:
    """Raises PeerError if the server does not answer."""
    wanted = Load(
        concurrency=options.streams,
        requests=options.requests,
        prompt_tokens=options.prompt,
        generate_tokens=options.generate,
    )
    peer = await discover(options.url, options.api, "", wanted)
    prompts = PromptMaker(options.prompt, counter, random.randrange(SEED_RANGE))
    return await run_round(peer, wanted, prompts, None)


def figures(one: Round, generate: int) -> dict[str, float]:
    """Raises SystemExit if a stream failed or has not the forced length: no figure is better than
    a wrong one."""
    wrong = [s.error or f"{s.tokens} tokens" for s in one.samples if s.tokens != generate]
    if wrong:
        raise SystemExit(f"{len(wrong)} of {len(one.samples)} streams failed: {wrong[0]}")
    good = one.good
    found = {
        "tok_s": one.tokens_per_second,
        "first_ms": percentile([s.first_token_ms for s in good], 0.5),
        "prompt_tokens": percentile([s.input_tokens for s in good], 0.5),
    }
    if generate > 1:
        each = [(s.last_token_ms - s.first_token_ms) / (generate - 1) for s in good]
        found["token_ms"] = percentile(each, 0.5)
        found["largest_gap_ms"] = max(max(s.gaps_ms, default=0.0) for s in good)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--api", default="")
    parser.add_argument("--model", default="default", help="for its tokenizer")
    parser.add_argument("--streams", type=int, default=1)
    parser.add_argument("--requests", type=int, default=1)
    parser.add_argument("--prompt", type=int, default=100)
    parser.add_argument("--generate", type=int, default=64)
    parser.add_argument("--busy", type=int, default=0)
    options = parser.parse_args()
    text = load_text(str(fetch(options.model, cache_folder(Settings())).path))
    if text is None:
        raise SystemExit(f"{options.model} has no tokenizer")
    with busy_loops(options.busy) if options.busy else contextlib.nullcontext():
        one = asyncio.run(load(options, lambda words: len(text.encode(words))))
    print(msgspec.json.encode(figures(one, options.generate)).decode())


if __name__ == "__main__":
    main()

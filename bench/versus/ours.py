"""The in-process loop: prefill, one stream, many streams. Prints one JSON object of figures.

usage: python ours.py MODEL [--threads N] [--quick] [--limits PROGRAM]

--limits: an independent program that prints "read_gb_s_96mb_tN" in one JSON object; without it the
read limit is that of `sublimate limits`.

defines: read_limit, main
"""

from __future__ import annotations

import argparse
import random
import subprocess

import msgspec

import shapes
import sublimate
from sublimate.bench.machine import measure
from window import rates

GIGA = 1e9
WORKING_SET = "read_gb_s_96mb"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="only prefill 512 and one stream")
    parser.add_argument("--limits", default="")
    options = parser.parse_args()
    figures: dict[str, float] = {}
    # Random prompts and forced lengths make a model repeat itself: drafts would come true as they
    # never do for a reader's text, and the peers make none.
    with sublimate.Engine(options.model, threads=options.threads, speculation="off") as engine:

        def run(streams: int, prompt: int, generate: int) -> dict[str, float]:
            words = range(int(engine.info["vocabulary"]))
            prompts = [random.choices(words, k=prompt) for _ in range(streams)]
            answers = engine.generate(prompts, generate, ignore_eos=True, cache=False)
            for answer in answers:
                if len(answer.token_ids) != generate:
                    raise SystemExit("an answer has not the forced length")
            return rates([_each_token(answer) for answer in answers], prompt)

        figures = shapes.engine_figures(run, options.quick)
        weight_bytes = int(engine.info["weight_bytes"])
    read = read_limit(options.limits)
    figures["read_limit"] = read
    figures["decode_1_read_share"] = figures["decode_1"] * weight_bytes / read
    print(msgspec.json.encode(figures).decode())


def read_limit(program: str) -> float:
    """Bytes per second from a working set of about the default model's weights, all threads."""
    if program:
        printed = subprocess.run([program], capture_output=True, check=True).stdout
        found = msgspec.json.decode(printed, type=dict[str, float])
        return GIGA * max(rate for name, rate in found.items() if name.startswith(WORKING_SET))
    reads = measure().reads
    least = min(read.working_set_bytes for read in reads)
    return max(read.bytes_per_s for read in reads if read.working_set_bytes == least)


def _each_token(answer: sublimate.Completion) -> list[float]:
    """Tokens that were taken together count at that moment; they are few."""
    times = answer.arrivals_seconds
    missing = len(answer.token_ids) - len(times)
    return [*times, *([times[-1]] * missing)]


if __name__ == "__main__":
    main()

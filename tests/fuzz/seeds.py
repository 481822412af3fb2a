"""What the fuzz targets in Python share: a seed for each input, printed, so that one repeats.

defines: run_seeds, main
"""

import argparse
import random
import sys
import time
from collections.abc import Callable

ONE_SEED_SECONDS = 60


def run_seeds(
    one: Callable[[random.Random], str], seconds: float, seed: int, count_max: int
) -> dict[str, int]:
    """How often each outcome came. `one`: an input that is drawn, and what came of it."""
    outcomes: dict[str, int] = {}
    end = time.monotonic() + seconds
    number = 0
    while number < count_max and time.monotonic() < end:
        try:
            outcome = one(random.Random(seed + number))
        except BaseException:
            sys.stderr.write(f"failing seed: {seed + number}\n")
            raise
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
        number += 1
    return outcomes


def main(run: Callable[[float, int, int], dict[str, int]], description: str | None) -> None:
    """The command of a target. `run`: seconds, first seed, inputs at most."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=None, help="one seed, once")
    arguments = parser.parse_args()
    if arguments.seed is not None:
        sys.stdout.write(f"{run(ONE_SEED_SECONDS, arguments.seed, 1)}\n")
        return
    seed = time.time_ns()
    sys.stdout.write(f"first seed {seed}\n{run(arguments.seconds, seed, sys.maxsize)}\n")

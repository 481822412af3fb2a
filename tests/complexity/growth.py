"""Measures how the time of a piece of work grows with the number of its units.

The time is that of the process on a core, so that waiting does not count, and of several runs the
least, so that neighbours on the machine count little. What is judged is the exponent of growth
between two sizes a factor of four apart, twice: 1 for work in proportion to its bytes, 2 for a
quadratic path. A path is quadratic only if every attempt says so.
"""

import gc
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

STEPS = (1, 2, 4, 8)
EXPONENT_MAX = 1.5
"""A factor of four in units may cost a factor of eight in time. A quadratic path costs 16."""
FLAT_MAX = 3.0
"""Of work that a budget ends: what eight times as many units may cost more."""
ATTEMPTS = 3
RUNS_MIN, RUNS_MAX = 3, 9
ENOUGH_SECONDS = 0.1
"""Of all runs of one size; then no more are made."""
NEGLIGIBLE_SECONDS = 0.002
"""The largest size takes no longer: what grows in it is not measured, and delays nobody."""

Run = Callable[[], object]
Clock = Callable[[], float]


@dataclass(frozen=True)
class Growth:
    """What was measured of one path."""

    units: int
    seconds: tuple[float, ...]
    """Of each of STEPS times as many units."""

    @property
    def exponent(self) -> float:
        """The larger one of those from 1 to 4 and from 2 to 8 times as many units; 0 where the time
        is too short to be measured."""
        if self.seconds[-1] < NEGLIGIBLE_SECONDS:
            return 0.0
        pairs = [(self.seconds[0], self.seconds[2]), (self.seconds[1], self.seconds[3])]
        return max(
            math.log(after / max(before, NEGLIGIBLE_SECONDS / 8), 4) for before, after in pairs
        )

    @property
    def is_flat(self) -> bool:
        return self.seconds[-1] < FLAT_MAX * max(self.seconds[0], NEGLIGIBLE_SECONDS)

    def __str__(self) -> str:
        times = ", ".join(f"{1000 * seconds:.2f}" for seconds in self.seconds)
        return f"exponent {self.exponent:.2f}: {times} ms for {self.units} units times {STEPS}"


class QuadraticError(AssertionError):
    """Time grows faster than the units."""


def check_growth(
    make: Callable[[int], Run], units: int, clock: Clock = time.process_time
) -> Growth:
    """make(n) prepares work of n units, which is not measured; what it returns is run and measured,
    by a clock that runs only while the work does. Raises QuadraticError."""
    return _check(make, units, clock, lambda growth: growth.exponent <= EXPONENT_MAX)


def check_flat(make: Callable[[int], Run], units: int, clock: Clock = time.process_time) -> Growth:
    """`units` are already beyond a budget: what goes further beyond it costs nothing more. Raises
    QuadraticError."""
    return _check(make, units, clock, lambda growth: growth.is_flat)


def _check(
    make: Callable[[int], Run], units: int, clock: Clock, is_good: Callable[[Growth], bool]
) -> Growth:
    found: list[Growth] = []
    for _ in range(ATTEMPTS):
        seconds = tuple(least_seconds(make(step * units), clock) for step in STEPS)
        found.append(Growth(units, seconds))
        if is_good(found[-1]):
            return found[-1]
    raise QuadraticError("; ".join(map(str, found)))


def least_seconds(run: Run, clock: Clock = time.process_time) -> float:
    """Time on a core of the fastest of several runs."""
    least, spent, runs = math.inf, 0.0, 0
    gc.collect()
    gc.disable()
    try:
        while runs < RUNS_MIN or (spent < ENOUGH_SECONDS and runs < RUNS_MAX):
            begin = clock()
            run()
            seconds = clock() - begin
            least, spent, runs = min(least, seconds), spent + seconds, runs + 1
    finally:
        gc.enable()
    return least

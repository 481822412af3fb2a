"""What an engine has measured of its model before the first request, as the next one is told.

defines: Variant, Choice, Measured
"""

from __future__ import annotations

import msgspec


class Variant(msgspec.Struct, frozen=True, kw_only=True):
    """Kernels and threads of a step."""

    isa: str
    threads: int
    least_ms: float = 0.0
    """Of a step, where it was measured."""


class Choice(Variant, frozen=True, kw_only=True):
    """What runs the steps of a kind, and between what it was chosen."""

    measured: list[Variant] = []


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """As LoopEngine.measured tells it."""

    key: str
    """Of the model, the settings, the cores and the build that it holds for."""
    bytes_per_s: float
    row_ops_per_s: float
    few_rows: Choice
    many_rows: Choice
    step_cost: dict[str, int]
    """Picoseconds."""

"""The harness itself: it catches what it is for, and nothing else."""

import zlib
from collections.abc import Callable

import pytest

from growth import QuadraticError, Run, check_flat, check_growth

UNITS = 2000


def copies_all_before(count: int) -> Run:
    """The most common quadratic path: an immutable buffer that grows by each piece."""

    def run() -> None:
        text = b""
        for _ in range(count):
            text = text[:] + b"0123456789abcdef"

    return run


def searches_all_before(count: int) -> Run:
    def run() -> None:
        seen: list[int] = []
        for number in range(count // 4):
            if number not in seen:
                seen.append(number)

    return run


def sorts(count: int) -> Run:
    values = [zlib.crc32(bytes(str(number), "ascii")) for number in range(10 * count)]
    return lambda: sorted(values)


def joins(count: int) -> Run:
    return lambda: b"".join(b"0123456789abcdef" for _ in range(10 * count))


@pytest.mark.parametrize("planted", [copies_all_before, searches_all_before])
def test_a_planted_quadratic_path_is_caught(planted: Callable[[int], Run]) -> None:
    with pytest.raises(QuadraticError, match=r"exponent [12]\.\d"):
        check_growth(planted, UNITS)


def stops(count: int) -> Run:
    return lambda: [bytes(1000) for _ in range(min(count, UNITS))]


def test_work_that_a_budget_ends_is_flat() -> None:
    check_flat(stops, UNITS)
    with pytest.raises(QuadraticError):
        check_flat(lambda count: joins(4 * count), UNITS)


@pytest.mark.parametrize("linear", [sorts, joins])
def test_work_in_proportion_to_its_units_passes(linear: Callable[[int], Run]) -> None:
    check_growth(linear, UNITS)
